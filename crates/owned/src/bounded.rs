//! A limit to how long a write to an eventfd blocks, for programs whose signals are their own.
//!
//! Where the kernel signals no eventfd itself ([`crate::signal()`]), write(2) has to, and blocks on
//! a counter that another holder has filled, once that holder has cleared `O_NONBLOCK`, which all
//! have in common. Nothing but a signal ends that. So a thread of such a program has a timer of its
//! own, which sends it one while it writes for too long: again and again, since the first may come
//! before the write begins.

use std::cell::OnceCell;
use std::io;
use std::mem::zeroed;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

/// How long a write may block. One that does not block takes a microsecond, and the timer around
/// it 4 to 10, in a virtual machine.
const WRITE_MAX_NS: libc::c_long = 1_000_000;
/// The signal. Nobody sends it but to say that urgent data has come to a socket whose owner has
/// asked for it.
const SIGNAL: libc::c_int = libc::SIGURG;

/// The program has asked for the limit.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread's timer, once it has got one.
    static TIMER: OnceCell<Timer> = const { OnceCell::new() };
}

/// From now on no eventfd that this process signals holds the caller up for more than a
/// millisecond. For programs, not libraries: SIGURG is taken for it, and interrupts system calls.
/// To be called before there are threads.
///
/// # Errors
/// What sigaction(2) reports.
pub fn bound_signals() -> io::Result<()> {
    extern "C" fn interrupt(_: libc::c_int) {}
    // SAFETY: an action of plain data, whose handler does nothing; without `SA_RESTART`, so that
    // the write that it interrupts returns.
    let done = unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = interrupt as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut())
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    IS_WANTED.store(true, Ordering::Release);
    Ok(())
}

/// Adds one to the counter of an eventfd by write(2); within the limit, if the program wants one.
///
/// # Errors
/// `EAGAIN` where the counter is full and the descriptor non-blocking, or the thread gets no timer;
/// `EINTR` where the limit has ended the write, or a signal.
pub(crate) fn write_one(bell: BorrowedFd<'_>) -> Result<(), Errno> {
    let write = || rustix::io::write(bell, &1u64.to_ne_bytes()).map(drop);
    if !IS_WANTED.load(Ordering::Acquire) {
        return write();
    }
    let within_limit = TIMER.try_with(|timer| {
        if timer.get().is_none() {
            // If there is none to be had now (they count for the user), the next write asks again.
            let _ = timer.set(Timer::new()?);
        }
        let timer = timer.get()?;
        timer.set(WRITE_MAX_NS);
        let outcome = write();
        timer.set(0);
        Some(outcome)
    });
    // Not at all is better than for ever.
    within_limit.ok().flatten().unwrap_or(Err(Errno::AGAIN))
}

/// A timer that interrupts the thread that made it.
struct Timer(libc::timer_t);

impl Timer {
    /// Also lets the thread take its signal.
    fn new() -> Option<Timer> {
        // SAFETY: plain data that the calls fill or read, each in a place that lives for the call.
        unsafe {
            let mut event: libc::sigevent = zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = SIGNAL;
            event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_pid();
            let mut timer: libc::timer_t = zeroed();
            let made = libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer);
            if made != 0 {
                return None;
            }
            let mut own: libc::sigset_t = zeroed();
            libc::sigaddset(&raw mut own, SIGNAL);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const own, std::ptr::null_mut());
            Some(Timer(timer))
        }
    }

    /// Has it interrupt the thread after each such time; never, if that is 0.
    fn set(&self, nanoseconds: libc::c_long) {
        let each = libc::timespec {
            tv_sec: 0,
            tv_nsec: nanoseconds,
        };
        let times = libc::itimerspec {
            it_interval: each,
            it_value: each,
        };
        // SAFETY: the timer is this object's, and the times live for the call. It cannot fail.
        unsafe { libc::timer_settime(self.0, 0, &raw const times, std::ptr::null_mut()) };
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: as in `set`; nobody uses it afterwards.
        unsafe { libc::timer_delete(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// Far more than the limit.
    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn a_write_that_blocks_ends() {
        bound_signals().unwrap();
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&bell, &(u64::MAX - 2).to_ne_bytes()).unwrap();
        // As threads of libraries do.
        let blocks_all = || {
            // SAFETY: a set of signals, plain data, and this thread's mask.
            unsafe {
                let mut all: libc::sigset_t = zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                blocks_all();
                write_one(bell.as_fd()).unwrap();
                for _ in 0..3 {
                    let begun = Instant::now();
                    assert_eq!(write_one(bell.as_fd()), Err(Errno::INTR));
                    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
                }
            });
        });
    }
}
