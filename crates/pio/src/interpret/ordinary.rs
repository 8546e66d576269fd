//! Loads and stores of other memory than windows, which may fault.

use std::ptr;

use causeway_recover as recover;

/// Bytes of a word.
const WORD: usize = 8;

/// Loads bytes, in one go where they are an aligned word or less; None where that faults.
pub(super) fn load(from: usize, into: &mut [u8]) -> Option<()> {
    let from = ptr::with_exposed_provenance::<u8>(from);
    if into.len() != WORD || !from.addr().is_multiple_of(WORD) {
        // SAFETY: the caller's own bytes, and what the program itself would load.
        return unsafe { recover::copy(into.as_mut_ptr(), from, into.len()) }.ok();
    }
    let mut word = 0_u64;
    // SAFETY: as above.
    unsafe { recover::copy_word((&raw mut word).cast(), from) }.ok()?;
    into.copy_from_slice(&word.to_le_bytes());
    Some(())
}

/// Stores bytes, by words where they are more than one, each once. None where that faults, after
/// some words perhaps, and where the address is not aligned.
pub(super) fn store(to: usize, bytes: &[u8]) -> Option<()> {
    if !to.is_multiple_of(bytes.len().min(WORD)) {
        return None;
    }
    for (index, part) in bytes.chunks(WORD).enumerate() {
        let at = ptr::with_exposed_provenance_mut(to + index * WORD);
        let mut word = [0; WORD];
        word[..part.len()].copy_from_slice(part);
        let word = u64::from_le_bytes(word);
        // SAFETY: what the program itself would store, aligned.
        let stored = unsafe {
            match part.len() {
                1 => recover::store::<1>(at, word),
                2 => recover::store::<2>(at, word),
                4 => recover::store::<4>(at, word),
                8 => recover::store::<8>(at, word),
                _ => return None,
            }
        };
        stored.ok()?;
    }
    Some(())
}
