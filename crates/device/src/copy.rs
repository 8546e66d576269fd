//! Copying to and from registered memory, which the program and others may touch meanwhile.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use causeway_proto::{Bytes, BytesMut};

/// Copies `src` to `dst`.
///
/// # Safety
/// `dst` must be valid for writing `src.len()` bytes and overlap no Rust reference.
pub(crate) unsafe fn store(dst: *mut u8, src: Bytes<'_>) {
    // SAFETY: both ranges are valid; memmove allows them to overlap, as two MRs may.
    unsafe { std::ptr::copy(src.as_ptr(), dst, src.len()) };
}

/// Copies from `src` into the whole of `dst`.
///
/// # Safety
/// `src` must be valid for reading `dst.len()` bytes.
pub(crate) unsafe fn load(src: *const u8, mut dst: BytesMut<'_>) {
    // SAFETY: as in `store`.
    unsafe { std::ptr::copy(src, dst.as_mut_ptr(), dst.len()) };
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
