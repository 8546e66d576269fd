//! Signals that are handled while a thread waits.
//!
//! Which signal it was `poll(2)` does not say, nor does it go on after one whose handler asks for
//! that (`SA_RESTART`), as `read(2)` does. The waits of verbs and of the connection manager are
//! reads in rdma-core.

use core::{mem, ptr};
use std::io;

/// The last number of a signal, of which the last are real-time signals.
const SIGNALS: i32 = 64;
/// Faults of the thread itself, which come of what it does and not of a wait.
pub const FAULTS: [i32; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// What a handler of the program asks for (`sa_flags`), if it has one for a signal.
fn handler(signal: i32) -> Option<i32> {
    // SAFETY: the structure is plain memory, filled if the call succeeds.
    let action = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        let failed = libc::sigaction(signal, ptr::null(), &raw mut action) != 0;
        (!failed).then_some(action)
    };
    action
        .filter(|action| ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction))
        .map(|action| action.sa_flags)
}

/// Whether a handler of the program interrupts system calls. So did one of which nothing is left:
/// it is for one signal (`SA_RESETHAND`), or has removed itself.
#[must_use]
pub fn interrupt() -> bool {
    let mut handlers = (1..=SIGNALS)
        .filter(|signal| !FAULTS.contains(signal))
        .filter_map(handler)
        .peekable();
    handlers.peek().is_none() || handlers.any(|flags| flags & libc::SA_RESTART == 0)
}

/// Whether a wait that has failed so is to go on, as `read(2)` does: a signal was handled, and no
/// handler of the program interrupts system calls.
#[must_use]
pub fn goes_on(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted && !interrupt()
}
