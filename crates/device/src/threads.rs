//! Threads of the library.

use std::thread::JoinHandle;

use crate::errno::Errno;
use crate::signals;

/// How long a thread that asks for it may run before another has its turn, in nanoseconds: the
/// least that Linux takes.
const SHORT_SLICE: u64 = 100_000;

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

/// Has the scheduler give this thread the processor more often, for shorter times: as much of it in
/// all, and sooner where a thread of the program spins. A system call that is refused, and a kernel
/// before Linux 6.12, leave it as it is; so do policies other than `SCHED_OTHER`.
pub(crate) fn ask_for_short_slices() {
    let Some(mut scheduling) = scheduling() else {
        return;
    };
    if scheduling.sched_policy == libc::SCHED_OTHER.cast_unsigned() {
        scheduling.sched_runtime = SHORT_SLICE;
        // SAFETY: the structure is as long as it says, and outlives the call.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const scheduling, 0) };
    }
}

/// How the scheduler treats this thread, if it says so.
fn scheduling() -> Option<libc::sched_attr> {
    // SAFETY: plain numbers.
    let mut found: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills as many bytes as it is told.
    let done = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            0,
            &raw mut found,
            size_of_val(&found),
            0,
        )
    };
    (done == 0).then_some(found)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_short_slices_where_the_kernel_knows_them() {
        let thread = spawn("short", || {
            ask_for_short_slices();
            // 0 before Linux 6.12; else the default's, some milliseconds, if nothing was asked for.
            let slice = scheduling().expect("sched_getattr").sched_runtime;
            assert!(slice == SHORT_SLICE || slice == 0, "{slice} ns");
        });
        thread.unwrap().join().unwrap();
    }
}
