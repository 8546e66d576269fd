//! Threads of the library.

use std::thread::JoinHandle;

use crate::errno::Errno;
use crate::signals;

/// Starts a thread of the library, which blocks every signal.
pub(crate) fn spawn(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Errno> {
    let blocked = block_signals();
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    restore_signals(&blocked);
    Ok(thread?)
}

fn block_signals() -> libc::sigset_t {
    let all = signals::all();
    // SAFETY: the set is plain data that the call fills.
    unsafe {
        let mut old = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        old
    }
}

fn restore_signals(old: &libc::sigset_t) {
    // SAFETY: `old` was filled by `block_signals`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old, std::ptr::null_mut()) };
}
