//! Signals that arrive during a blocking call.
//!
//! `ibv_get_cq_event(3)` is a read(2): a signal whose handler was installed without `SA_RESTART`
//! ends it with EINTR, and programs end their tests so. The call here does more than sleep, so
//! signals are held back from its beginning, and let in where it sleeps: none is handled unseen.

use std::{mem, ptr, slice};

use causeway_cancel::{Allowed, Ended};
use rustix::event::{PollFd, Timespec};

/// The last signal that has a number of its own; real-time signals follow.
const SIGNALS: i32 = 64;
/// Faults of the thread itself, which cannot be held back.
const FAULTS: [i32; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
];

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

/// Whether the program has a handler that interrupts system calls. Which signal it was poll(2) does
/// not say, nor does it go on after one whose handler asks for that, as read(2) does.
pub(crate) fn interrupt() -> bool {
    (1..=SIGNALS)
        .filter(|signal| !FAULTS.contains(signal))
        .any(|signal| {
            // SAFETY: the structure is plain memory, filled if the call succeeds.
            let action = unsafe {
                let mut action: libc::sigaction = mem::zeroed();
                let failed = libc::sigaction(signal, ptr::null(), &raw mut action) != 0;
                (!failed).then_some(action)
            };
            action.is_some_and(|action| {
                let handled = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
                handled && action.sa_flags & libc::SA_RESTART == 0
            })
        })
}
