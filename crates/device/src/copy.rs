//! Copying to and from registered memory, which the program and others may touch meanwhile, and
//! which the program may take away.

use std::sync::atomic::{Ordering, fence};

use causeway_proto::host::{AtomicOp, MemError};
use causeway_proto::{Bytes, BytesMut};
use causeway_recover::{Fault, compare_exchange, copy, copy_word, fetch_add, store as store_one};

/// Bytes that the kernel maps at once where a page of a file is first read, and not where it is
/// first written (`fault_around_bytes`, unless set otherwise).
const FAULT_AROUND: usize = 64 << 10;

/// The owner of the memory that a copy to or from `len` bytes of an MR at `addr` did not find.
#[cold]
pub(crate) fn blame(fault: Fault, addr: usize, len: usize) -> MemError {
    if fault.is_in(addr, len) {
        MemError::Gone
    } else {
        MemError::Elsewhere
    }
}

/// Copies `src` to `dst`, in an MR.
///
/// # Errors
/// Where one of both is gone.
///
/// # Safety
/// `dst` must be memory that `src.len()` bytes may be written to, as far as it is mapped, and
/// overlap no Rust reference.
#[inline]
pub(crate) unsafe fn store(dst: *mut u8, src: Bytes<'_>) -> Result<(), MemError> {
    // SAFETY: the caller's promise; the view is valid.
    let copied = unsafe { copy(dst, src.as_ptr(), src.len()) };
    copied.map_err(|fault| blame(fault, dst.addr(), src.len()))
}

/// Copies from `src`, in an MR, into the whole of `dst`.
///
/// # Errors
/// Where one of both is gone.
///
/// # Safety
/// `src` must be memory that `dst.len()` bytes may be read of, as far as it is mapped.
#[inline]
pub(crate) unsafe fn load(src: *const u8, mut dst: BytesMut<'_>) -> Result<(), MemError> {
    // SAFETY: as in `store`.
    let copied = unsafe { copy(dst.as_mut_ptr(), src, dst.len()) };
    copied.map_err(|fault| blame(fault, src.addr(), dst.len()))
}

/// Carries out an atomic on 8 bytes, and returns what they were.
///
/// # Errors
/// Where that faults.
///
/// # Safety
/// As [`store`]; and `at` must be aligned to 8 bytes.
#[inline]
pub(crate) unsafe fn atomic(at: *mut u8, op: AtomicOp) -> Result<u64, Fault> {
    // SAFETY: the caller's promise.
    unsafe {
        match op {
            AtomicOp::FetchAdd(add) => fetch_add(at, add),
            AtomicOp::CmpSwap { compare, swap } => compare_exchange(at, compare, swap),
        }
    }
}

/// As [`store`], but the last aligned 8 bytes, or what there is of them, become visible last and
/// in one piece: programs poll on them.
///
/// # Errors
/// As [`store`].
///
/// # Safety
/// As [`store`].
pub(crate) unsafe fn store_last_word_last(dst: *mut u8, src: Bytes<'_>) -> Result<(), MemError> {
    let len = src.len();
    if len == 0 {
        return Ok(());
    }
    let tail = last_word(dst.addr() + len, len);
    let (body, last) = src.split_at(len - tail);
    let mut word = [0; 8];
    last.copy_to(&mut word);
    // SAFETY: the caller's range, cut in two.
    unsafe {
        store(dst, body)?;
        store_last_word(dst.add(len - tail), &word[..tail]).map_err(|_| MemError::Gone)
    }
}

/// Copies from `src` to `dst`, one of which is a peer's memory and the other this program's. The
/// last aligned 8 bytes, or what there is of them, become visible last and in one piece.
///
/// # Errors
/// Where one of both is gone.
///
/// # Safety
/// As [`store`] for `dst`, as [`load`] for `src`.
#[inline(always)]
pub(crate) unsafe fn copy_last_word_last(
    dst: *mut u8,
    src: *const u8,
    len: usize,
) -> Result<(), Fault> {
    if len == 8 && dst.addr().is_multiple_of(8) {
        // SAFETY: the caller's ranges.
        return unsafe { copy_word(dst, src) };
    }
    // SAFETY: the caller's promise.
    unsafe { copy_in_two(dst, src, len) }
}

/// Copies a few bytes, in any order.
///
/// # Errors
/// Where one of both is gone.
///
/// # Safety
/// As [`store`] for `dst`, as [`load`] for `src`.
#[inline(always)]
pub(crate) unsafe fn copy_short(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe {
        match len == 8 && dst.addr().is_multiple_of(8) {
            true => copy_word(dst, src),
            false => copy(dst, src, len),
        }
    }
}

/// Has the kernel map the pages of a long range by the dozen, before it is written one by one.
#[inline]
pub(crate) fn map_around(at: *mut u8, len: usize) {
    if len < FAULT_AROUND {
        return;
    }
    let mut byte = 0;
    for offset in (0..len).step_by(FAULT_AROUND) {
        // SAFETY: the caller is about to write there; what it reads is not used. Where nothing can
        // be read it will find out, too.
        let _ = unsafe { copy(&raw mut byte, at.add(offset), 1) };
    }
}

/// As [`copy_last_word_last`] of more or less than an aligned word.
///
/// # Errors
/// As that.
///
/// # Safety
/// As that.
#[inline(never)]
unsafe fn copy_in_two(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    let tail = last_word(dst.addr() + len, len);
    let body = len - tail;
    map_around(dst, body);
    let mut word = [0; 8];
    // SAFETY: the caller's ranges, cut in two.
    unsafe {
        if body > 0 {
            copy(dst, src, body)?;
        }
        copy(word.as_mut_ptr(), src.add(body), tail)?;
        store_last_word(dst.add(body), &word[..tail])
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
/// # Errors
/// Where that faults.
///
/// # Safety
/// As [`store`].
#[inline]
pub(crate) unsafe fn store_last_word(dst: *mut u8, bytes: &[u8]) -> Result<(), Fault> {
    fence(Ordering::Release);
    // SAFETY: the caller's promise; a whole word ends where an aligned one does.
    unsafe {
        match bytes.first_chunk() {
            Some(word) => store_one::<8>(dst, u64::from_le_bytes(*word)),
            None => store_word(dst, bytes),
        }
    }
}

/// Stores up to 8 bytes that lie within one aligned word, in as few aligned stores as there can
/// be, first byte first.
///
/// # Errors
/// Where one faults.
///
/// # Safety
/// As [`store`].
#[inline]
unsafe fn store_word(mut dst: *mut u8, bytes: &[u8]) -> Result<(), Fault> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let align = 1usize << dst.addr().trailing_zeros().min(3);
        let n = align.min(1 << rest.len().ilog2());
        let (piece, tail) = rest.split_at(n);
        let mut value = [0; 8];
        value[..n].copy_from_slice(piece);
        let value = u64::from_le_bytes(value);
        // SAFETY: in range by the caller's promise, and aligned to n.
        unsafe {
            match n {
                8 => store_one::<8>(dst, value),
                4 => store_one::<4>(dst, value),
                2 => store_one::<2>(dst, value),
                _ => store_one::<1>(dst, value),
            }?;
            dst = dst.add(n);
        }
        rest = tail;
    }
    Ok(())
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
                    store_last_word_last(dst, src.as_slice().into()).unwrap();
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
