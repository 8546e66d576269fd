//! Loads and stores of other memory than windows, which may fault. One that is aligned is done in
//! one go, as the processor does.

use std::ptr;

use causeway_recover as recover;

/// Loads bytes; None where that faults.
pub(super) fn load(from: usize, into: &mut [u8]) -> Option<()> {
    let inside = from % 8;
    if inside + into.len() > 8 {
        // SAFETY: the caller's own bytes, and what the program itself would load.
        let copied = unsafe {
            let from = ptr::with_exposed_provenance(from);
            recover::copy(into.as_mut_ptr(), from, into.len())
        };
        return copied.ok();
    }
    let mut word = 0_u64;
    // SAFETY: as above, of the word that has them all, which lies in the same page.
    unsafe {
        let from = ptr::with_exposed_provenance(from - inside);
        recover::copy_word((&raw mut word).cast(), from)
    }
    .ok()?;
    into.copy_from_slice(&word.to_le_bytes()[inside..inside + into.len()]);
    Some(())
}

/// Stores bytes; None where that faults. Some of those of a long store may have been stored then.
pub(super) fn store(to: usize, bytes: &[u8]) -> Option<()> {
    let at = ptr::with_exposed_provenance_mut(to);
    let mut word = [0; 8];
    let is_aligned = to.is_multiple_of(bytes.len());
    if is_aligned && bytes.len() <= 8 {
        word[..bytes.len()].copy_from_slice(bytes);
    }
    let word = u64::from_le_bytes(word);
    // SAFETY: what the program itself would store, aligned where that is asked for.
    let stored = unsafe {
        match bytes.len() {
            1 => recover::store::<1>(at, word),
            2 if is_aligned => recover::store::<2>(at, word),
            4 if is_aligned => recover::store::<4>(at, word),
            8 if is_aligned => recover::store::<8>(at, word),
            len => recover::copy(at, bytes.as_ptr(), len),
        }
    };
    stored.ok()
}
