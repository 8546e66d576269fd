//! Copying to and from registered memory, which the program and others may touch meanwhile.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use causeway_proto::{Bytes, BytesMut};

/// Bytes that are copied in one go at most, where a copy is not longer than [`PIECED_BELOW`]. The
/// C library copies a little more with one string instruction, which waits for what is before it
/// and holds up what is behind it: worth it for many kilobytes.
const PIECE: usize = 2048;
/// From so many bytes on a copy is made in one piece.
const PIECED_BELOW: usize = 8192;

/// Copies `len` bytes.
///
/// # Safety
/// `src` must be valid for reading `len` bytes, `dst` for writing them, and `dst` overlap no Rust
/// reference. They may overlap each other, as two MRs may.
#[inline]
unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    let apart = src.addr().abs_diff(dst.addr()) >= len;
    let mut at = 0;
    if len < PIECED_BELOW && apart {
        while len - at > PIECE {
            // SAFETY: a part of the caller's ranges, which do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(src.add(at), dst.add(at), PIECE) };
            at += PIECE;
        }
    }
    // SAFETY: what is left of the caller's ranges; memmove allows them to overlap.
    unsafe { std::ptr::copy(src.add(at), dst.add(at), len - at) };
}

/// Copies `src` to `dst`.
///
/// # Safety
/// `dst` must be valid for writing `src.len()` bytes and overlap no Rust reference.
pub(crate) unsafe fn store(dst: *mut u8, src: Bytes<'_>) {
    // SAFETY: the caller's promise; the view is valid.
    unsafe { copy(src.as_ptr(), dst, src.len()) };
}

/// Copies from `src` into the whole of `dst`.
///
/// # Safety
/// `src` must be valid for reading `dst.len()` bytes.
pub(crate) unsafe fn load(src: *const u8, mut dst: BytesMut<'_>) {
    // SAFETY: as in `store`.
    unsafe { copy(src, dst.as_mut_ptr(), dst.len()) };
}

/// As [`store`], but the last aligned 8 bytes, or what there is of them, become visible last and
/// in one piece: programs poll on them.
///
/// # Safety
/// As [`store`].
pub(crate) unsafe fn store_last_word_last(dst: *mut u8, src: Bytes<'_>) {
    let len = src.len();
    if len == 0 {
        return;
    }
    let tail = last_word(dst.addr() + len, len);
    let (body, last) = src.split_at(len - tail);
    let mut word = [0; 8];
    last.copy_to(&mut word);
    // SAFETY: the caller's range, cut in two.
    unsafe {
        store(dst, body);
        store_last_word(dst.add(len - tail), &word[..tail]);
    }
}

/// How many of the last bytes of a range of `len` that ends at `end` lie in one aligned word.
#[inline]
pub(crate) fn last_word(end: usize, len: usize) -> usize {
    let odd = end % 8;
    len.min(if odd == 0 { 8 } else { odd })
}

/// Stores the last bytes of a WRITE, which lie in one aligned word, after all stores before.
///
/// # Safety
/// `dst` must be valid for writing `bytes.len()` bytes and overlap no Rust reference.
#[inline]
pub(crate) unsafe fn store_last_word(dst: *mut u8, bytes: &[u8]) {
    fence(Ordering::Release);
    // SAFETY: the caller's promise.
    unsafe { store_word(dst, bytes) };
}

/// Stores up to 8 bytes that lie within one aligned word, in as few aligned stores as there can
/// be, first byte first.
///
/// # Safety
/// `dst` must be valid for writing `bytes.len()` bytes.
unsafe fn store_word(mut dst: *mut u8, bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let align = 1usize << dst.addr().trailing_zeros().min(3);
        let n = align.min(1 << rest.len().ilog2());
        let (piece, tail) = rest.split_at(n);
        // SAFETY: in range by the caller's promise, and aligned to n.
        unsafe {
            match n {
                8 => AtomicU64::from_ptr(dst.cast())
                    .store(u64::from_ne_bytes(array(piece)), Ordering::Release),
                4 => AtomicU32::from_ptr(dst.cast())
                    .store(u32::from_ne_bytes(array(piece)), Ordering::Release),
                2 => AtomicU16::from_ptr(dst.cast())
                    .store(u16::from_ne_bytes(array(piece)), Ordering::Release),
                _ => AtomicU8::from_ptr(dst).store(piece[0], Ordering::Release),
            }
            dst = dst.add(n);
        }
        rest = tail;
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(bytes);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_all_lengths_are_whole_even_onto_themselves() {
        for len in (0..3)
            .chain(PIECE - 1..PIECE + 2)
            .chain(2 * PIECE..2 * PIECE + 9)
        {
            for (from, to) in [(0, len), (0, 7), (7, 0), (len, 0), (3, PIECE)] {
                let room = len + from.max(to);
                let mut buf: Vec<u8> = (0..room).map(|i| (i % 251) as u8).collect();
                let mut expected = buf.clone();
                expected.copy_within(from..from + len, to);
                let at = buf.as_mut_ptr();
                // SAFETY: both ranges are within the buffer.
                unsafe { copy(at.add(from), at.add(to), len) };
                assert!(buf == expected, "{len} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn every_length_and_alignment_arrives_whole_and_nothing_beside_it() {
        for at in 0..16 {
            for len in 0..40 {
                let src: Vec<u8> = (1..=len).collect();
                let mut buf = [0xee_u8; 72];
                // SAFETY: at + len is within the buffer.
                unsafe {
                    let dst = buf.as_mut_ptr().add(at);
                    store_last_word_last(dst, src.as_slice().into());
                }
                assert_eq!(&buf[at..at + src.len()], &src[..]);
                assert!(
                    buf[..at]
                        .iter()
                        .chain(&buf[at + src.len()..])
                        .all(|b| *b == 0xee)
                );
            }
        }
    }
}
