//! The event thread, which does what the broker says about blocks: it lets go of what is taken
//! away, and follows what has moved. Otherwise it sleeps.

use std::sync::Arc;
use std::thread::JoinHandle;

use causeway_fabric::pool::Event;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::library::Inner;

/// Starts the thread. It blocks every signal: those are the program's.
pub(crate) fn start(inner: Arc<Inner>) -> Result<JoinHandle<()>> {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset writes the set it is given, pthread_sigmask reads that one and writes the
    // other.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let thread = std::thread::Builder::new().name("causeway".into());
    let thread = thread.spawn(move || run(&inner));
    // SAFETY: `before` was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    thread.map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        Error::of("start a thread", errno)
    })
}

fn run(inner: &Arc<Inner>) {
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(inner.session.event_fd(), PollFlags::IN),
            PollFd::new(&inner.stop, PollFlags::IN),
        ];
        // Whatever interrupts it, it looks.
        let _ = poll(&mut fds, None);
        if !fds[1].revents().is_empty() {
            return;
        }
        let events = inner.session.poll_events().unwrap_or_default();
        if events.is_empty() {
            // Another thread is inside a call, which takes what comes.
            std::thread::yield_now();
        }
        for event in events {
            follow(inner, event);
        }
    }
}

fn follow(inner: &Arc<Inner>, event: Event) {
    causeway_fault::point("block.event");
    let held = |handle| inner.held(handle);
    match event {
        Event::Changed(handle) => {
            if let Some(held) = held(handle) {
                // Refused: it is no more, which another event says.
                let _ = held.follow();
            }
        }
        Event::Freed(handle) => {
            if let Some(held) = held(handle) {
                held.freed();
            }
        }
        Event::Orphaned(handle) => {
            if let Some(held) = held(handle) {
                held.orphaned();
            }
        }
        Event::Unknown(handle) => {
            if let Some(held) = held(handle) {
                // Refused: it is its owner's to bring, or lost.
                let _ = held.bring();
            }
        }
        Event::Ready(ticket) => inner.waits.tell(ticket),
        Event::BrokerGone => {
            // If there is no broker to be had, a reminder comes.
            if inner.session.reattach().is_ok() {
                // Fails only in a forked child, which has no such thread.
                let _ = inner.renew_locker();
                inner.waits.forget();
            }
        }
    }
}
