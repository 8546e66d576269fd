//! Signals that arrive during a blocking call.
//!
//! `ibv_get_cq_event(3)` is a read(2): a signal whose handler was installed without `SA_RESTART`
//! ends it with EINTR, and programs end their tests so. The call here does more than sleep, so
//! signals are held back from its beginning, and let in where it sleeps: none is handled unseen.

use std::{mem, ptr, slice};

use causeway_cancel::{Allowed, Ended, FAULTS};
use rustix::event::{PollFd, Timespec};

/// All signals but the thread's own faults: those of copies are recovered from.
pub(crate) fn all() -> libc::sigset_t {
    // SAFETY: the set is plain memory that the calls fill.
    unsafe {
        let mut all: libc::sigset_t = mem::zeroed();
        libc::sigfillset(&raw mut all);
        for fault in FAULTS {
            libc::sigdelset(&raw mut all, fault);
        }
        all
    }
}

/// Holds signals back from this thread until it is dropped.
pub(crate) struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    pub fn new() -> Self {
        // SAFETY: the sets are plain memory that the calls fill.
        unsafe {
            let all = all();
            let mut before: libc::sigset_t = mem::zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            BlockedSignals { before }
        }
    }

    /// poll(2) with signals let in, as ppoll(2) does, and a cancellation point where that is
    /// allowed.
    ///
    /// # Errors
    /// EINTR if a signal was handled.
    pub fn poll(
        &self,
        fds: &mut [PollFd<'_>],
        timeout: Option<Timespec>,
        allowed: Allowed,
    ) -> Result<(), Ended> {
        let timeout = timeout.map(|t| libc::timespec {
            tv_sec: t.tv_sec,
            tv_nsec: t.tv_nsec,
        });
        // SAFETY: a `PollFd` is a `struct pollfd`.
        let fds = unsafe { slice::from_raw_parts_mut(fds.as_mut_ptr().cast(), fds.len()) };
        causeway_cancel::poll(fds, timeout, Some(&self.before), allowed)
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set was filled by `new`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}
