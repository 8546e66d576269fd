//! Signals that arrive during a blocking call.
//!
//! `ibv_get_cq_event(3)` is a read(2): a signal whose handler was installed without `SA_RESTART`
//! ends it with EINTR, and programs end their tests so. The call here does more than sleep, so
//! signals are held back from its beginning, and let in where it sleeps: none is handled unseen.

use std::io;
use std::mem;
use std::ptr;

use rustix::event::{PollFd, Timespec};

/// Bytes of the kernel's signal set.
const KERNEL_SET_BYTES: usize = 8;
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
pub(crate) struct Held {
    before: libc::sigset_t,
}

impl Held {
    pub fn new() -> Self {
        // SAFETY: the sets are plain memory that the calls fill.
        unsafe {
            let all = all();
            let mut before: libc::sigset_t = mem::zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Held { before }
        }
    }

    /// poll(2) with signals let in, as ppoll(2) does.
    ///
    /// # Errors
    /// EINTR if one was handled.
    pub fn poll(&self, fds: &mut [PollFd<'_>], timeout: Option<Timespec>) -> io::Result<()> {
        let mut timeout = timeout.map(|t| libc::timespec {
            tv_sec: t.tv_sec,
            tv_nsec: t.tv_nsec,
        });
        let timeout = timeout.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // The system call itself: the C library's function is a point where a thread may be
        // cancelled, and unwound.
        // SAFETY: a `PollFd` is a `struct pollfd`; the kernel reads the set, writes the time left
        // and the events.
        let polled = unsafe {
            libc::syscall(
                libc::SYS_ppoll,
                fds.as_mut_ptr(),
                fds.len(),
                timeout,
                &raw const self.before,
                KERNEL_SET_BYTES,
            )
        };
        if polled < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for Held {
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
