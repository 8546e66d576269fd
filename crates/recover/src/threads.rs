//! Threads of a library: signals that are sent to the process are the program's to take.

use std::io;
use std::thread::{Builder, JoinHandle};

use crate::masks;

/// The signals that a thread blocks.
#[derive(Clone, Copy, Debug)]
pub struct SignalMask(u64);

impl SignalMask {
    /// All but those by which an instruction fails, from which copies recover, and the one by which
    /// a sandbox has the program make a system call itself (seccomp(2), `SECCOMP_RET_TRAP`).
    fn library() -> SignalMask {
        SignalMask(!(masks::synchronous() | masks::bit(libc::SIGSYS)))
    }

    /// The calling thread blocks these from now on, and no others.
    fn set(self) {
        masks::block(self.0);
    }

    /// Calls a function of the program's in a thread of [`spawn`]'s: it runs, and what it starts,
    /// with these signals blocked, and the thread goes on as before.
    pub fn during<T>(self, call: impl FnOnce() -> T) -> T {
        self.set();
        let result = call();
        SignalMask::library().set();
        result
    }
}

/// Starts a thread of a library's, which blocks all signals but those of its own faults. Otherwise
/// a signal that the program blocks in its threads, and waits for by sigwait(3), would end it. The
/// thread is told what its creator blocks.
///
/// # Errors
/// As [`Builder::spawn`].
pub fn spawn(
    builder: Builder,
    run: impl FnOnce(SignalMask) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let creator = SignalMask(masks::blocked());
    // A new thread inherits the mask.
    SignalMask::library().set();
    let started = builder.spawn(move || run(creator));
    creator.set();
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_blocks_what_is_sent_and_the_programs_functions_do_not() {
        let own = masks::blocked();
        let bit = masks::bit(libc::SIGTERM);
        let thread = spawn(Builder::new(), move |creator| {
            assert_eq!(masks::blocked() & bit, bit);
            assert_eq!(masks::blocked() & masks::synchronous(), 0);
            assert_eq!(creator.during(masks::blocked), own);
            assert_eq!(masks::blocked() & bit, bit);
        });
        assert_eq!(masks::blocked(), own);
        assert!(thread.unwrap().join().is_ok());
    }
}
