//! Signals that wait.

use std::marker::PhantomData;
use std::mem;
use std::ptr;

/// While it lives, signals that are sent to the thread wait; those of the thread's own faults are
/// delivered, so that copies recover from them.
///
/// Who holds a lock that a window's fault takes, too, needs one: otherwise a handler of the
/// program's may interrupt the thread, touch a window and wait for that lock for ever.
#[derive(Debug)]
pub struct Blocked {
    before: libc::sigset_t,
    /// The mask is the thread's.
    _thread: PhantomData<*const ()>,
}

/// The signals by which an instruction fails: signal(7).
const OWN: [libc::c_int; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
];

impl Blocked {
    /// Blocks the signals, or leaves them blocked. May be called in handlers.
    #[must_use]
    pub fn new() -> Blocked {
        // SAFETY: sets are plain memory, which the calls fill; pthread_sigmask(3) is allowed in
        // handlers, as are sigfillset(3) and sigdelset(3).
        let before = unsafe {
            let mut blocked: libc::sigset_t = mem::zeroed();
            let mut before: libc::sigset_t = mem::zeroed();
            libc::sigfillset(&raw mut blocked);
            for signal in OWN {
                libc::sigdelset(&raw mut blocked, signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, &raw mut before);
            before
        };
        Blocked {
            before,
            _thread: PhantomData,
        }
    }
}

impl Default for Blocked {
    fn default() -> Blocked {
        Blocked::new()
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe {
            let set = &raw const self.before;
            libc::pthread_sigmask(libc::SIG_SETMASK, set, ptr::null_mut());
        }
    }
}
