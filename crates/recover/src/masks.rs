//! Which signals a thread blocks.

use std::mem;
use std::ptr;

use libc::c_int;

/// The kernel's part of a set of signals: bit 0 is signal 1.
pub(crate) fn bits(set: *const libc::sigset_t) -> u64 {
    // SAFETY: it is what a set begins with, also in a context, which has no more of it.
    unsafe { set.cast::<u64>().read() }
}

pub(crate) fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// The signals by which an instruction fails, which are never blocked in the handler.
const SYNCHRONOUS: [c_int; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
];

pub(crate) fn synchronous() -> u64 {
    SYNCHRONOUS
        .into_iter()
        .fold(0, |all, signal| all | bit(signal))
}

/// The signals that are blocked in this thread.
pub(crate) fn blocked() -> u64 {
    // SAFETY: a set is plain memory, which the call fills; it is allowed in handlers.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut set);
        bits(&raw const set)
    }
}

/// Blocks these signals and no others.
pub(crate) fn block(blocked: u64) {
    // SAFETY: a set is plain memory, and the call is allowed in handlers.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        (&raw mut set).cast::<u64>().write(blocked);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, ptr::null_mut());
    }
}
