//! Whose windows these are: a child made by fork(2) has its parent's, but no way to the memory
//! behind them.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::limits::WINDOWS;

/// A byte for each window, 1 in the process that has made it. The kernel empties them in a child
/// (`MADV_WIPEONFORK`), however it was made.
static MARKS: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Maps the marks, unless they are there.
pub(crate) fn prepare() -> io::Result<()> {
    if !MARKS.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address the kernel chooses, unmapped unless it becomes known.
    unsafe {
        let at = libc::mmap(ptr::null_mut(), WINDOWS, prot, flags, -1, 0);
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if libc::madvise(at, WINDOWS, libc::MADV_WIPEONFORK) != 0 {
            let error = io::Error::last_os_error();
            libc::munmap(at, WINDOWS);
            return Err(error);
        }
        let (ordering, none) = (Ordering::AcqRel, ptr::null_mut());
        let before = MARKS.compare_exchange(none, at.cast(), ordering, Ordering::Acquire);
        if before.is_err() {
            libc::munmap(at, WINDOWS);
        }
    }
    Ok(())
}

fn mark(slot: usize) -> *mut u8 {
    assert!(slot < WINDOWS);
    MARKS.load(Ordering::Acquire).wrapping_add(slot)
}

/// Makes a window this process's.
pub(crate) fn claim(slot: usize) {
    // SAFETY: mapped by `prepare`; whoever has the slot alone writes its byte.
    unsafe { mark(slot).write_volatile(1) };
}

/// Whether a window is a parent's.
pub(crate) fn is_parents(slot: usize) -> bool {
    // SAFETY: as above.
    unsafe { mark(slot).read_volatile() == 0 }
}
