//! Copies to and from memory that may have gone.
//!
//! A program may unmap memory that it has registered, take its permissions away, or cut short the
//! file behind it, at any time and also while a copy is under way. An access then raises SIGSEGV
//! or SIGBUS, which would end the process. The copies of this crate end with an error instead, as
//! the kernel's own do with EFAULT: their instructions lie in a known range, and the handler
//! ([`install`]) lets a fault there go on at the routine's end. All other faults, and signals sent
//! by kill(2), reach whatever handled them before; unless a crate has asked to see the faults of
//! other instructions first ([`serve_by`]) and serves one.
//!
//! Before [`install`] was called, and in threads that block the two signals, a fault ends the
//! process as ever: so POSIX has it.

mod handler;
mod levels;
mod masks;
mod routines;
mod threads;

pub use handler::{Server, Trap, exchange, install, serve_by};
pub use threads::{SignalMask, spawn};

use routines::Returned;

/// An access faulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The address, or that of its page; 0 where the processor does not tell.
    pub addr: usize,
}

impl Fault {
    /// Whether it was an access to a range of `len` bytes at `start`.
    #[must_use]
    pub fn is_in(&self, start: usize, len: usize) -> bool {
        self.addr.checked_sub(start).is_some_and(|at| at < len)
    }
}

#[inline]
fn judge(returned: Returned) -> Result<u64, Fault> {
    if returned.failed == 0 {
        return Ok(returned.value);
    }
    let addr = returned.value as usize;
    Err(Fault { addr })
}

/// Copies `len` bytes; the ranges may overlap.
///
/// # Errors
/// Where an access faults. Any of the bytes may have been copied then.
///
/// # Safety
/// What is mapped of `src` must be readable for anybody, of `dst` be the caller's to write, and
/// no Rust reference may cover `dst`, nor `src` unless it is shared.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    // SAFETY: the caller's promise; the routine recovers from the rest.
    judge(unsafe { routines::copy(dst, src, len) }).map(drop)
}

/// Copies `len` bytes by vector instructions, where the processor has AVX2; with `stream` by stores
/// that go around the caches and are complete when it returns. Else, and on other processors than
/// x86-64, as [`copy`].
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// As [`copy`]; and the ranges do not overlap.
#[inline]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "see above")
)]
pub unsafe fn copy_by_vectors(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    stream: bool,
) -> Result<(), Fault> {
    #[cfg(target_arch = "x86_64")]
    if len >= LEAST_BY_VECTORS && routines::has_vectors() {
        // SAFETY: the caller's promise; long enough, and the processor has the instructions.
        let returned = unsafe {
            if stream {
                routines::stream(dst, src, len)
            } else {
                routines::vectors(dst, src, len)
            }
        };
        return judge(returned).map(drop);
    }
    // SAFETY: the caller's promise.
    unsafe { copy(dst, src, len) }
}

/// Bytes of the rounds in which vectors are copied.
#[cfg(target_arch = "x86_64")]
const LEAST_BY_VECTORS: usize = 128;

/// Stores the first `N` bytes of `value` in one go, after all stores before: 1, 2, 4 or 8.
///
/// # Errors
/// Where that faults; nothing is stored then.
///
/// # Safety
/// As [`copy`]; and `at` must be aligned to `N`.
#[inline]
pub unsafe fn store<const N: usize>(at: *mut u8, value: u64) -> Result<(), Fault> {
    // The routine's store is one that is seen after those before it; a call that the compiler does
    // not see into keeps its order, too.
    // SAFETY: as in `copy`.
    let returned = unsafe {
        match N {
            1 => routines::store1(at, value),
            2 => routines::store2(at, value),
            4 => routines::store4(at, value),
            8 => routines::store8(at, value),
            _ => unreachable!("no such store"),
        }
    };
    judge(returned).map(drop)
}

/// Copies 8 bytes, stored in one go after all stores before.
///
/// # Errors
/// Where an access faults; nothing is stored then.
///
/// # Safety
/// As [`copy`]; and `dst` must be aligned to 8 bytes.
#[inline]
pub unsafe fn copy_word(dst: *mut u8, src: *const u8) -> Result<(), Fault> {
    // SAFETY: as in `copy`; in order as in `store`.
    judge(unsafe { routines::word(dst, src) }).map(drop)
}

/// Adds to 8 bytes atomically, wrapping, and returns what they were. A full barrier.
///
/// # Errors
/// Where that faults; nothing is stored then.
///
/// # Safety
/// As [`copy`]; and `at` must be aligned to 8 bytes.
#[inline]
pub unsafe fn fetch_add(at: *mut u8, value: u64) -> Result<u64, Fault> {
    // SAFETY: as in `copy`.
    judge(unsafe { routines::add(at, value) })
}

/// Stores `new` in 8 bytes atomically if they equal `compare`, and returns what they were. A full
/// barrier.
///
/// # Errors
/// Where that faults; nothing is stored then.
///
/// # Safety
/// As [`fetch_add`].
#[inline]
pub unsafe fn compare_exchange(at: *mut u8, compare: u64, new: u64) -> Result<u64, Fault> {
    // SAFETY: as in `copy`.
    judge(unsafe { routines::swap(at, compare, new) })
}
