//! The helper thread: progress while the program neither polls nor waits.
//!
//! A program that polls makes its own progress, and one that blocks in a call waits on the sources
//! itself. The helper looks every [`TICK`] whether either goes on. If not, it takes over: it makes
//! progress, and once nothing has happened for [`QUIET_TICKS`], sleeps on the sources, using no
//! time at all. No poll knows that it was the last; this is what bounds the delay after it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::clock;
use crate::endpoint::Shared;
use crate::errno::Errno;

/// How long a peer's request may wait after the program's last poll.
const TICK: Duration = Duration::from_micros(200);
/// Ticks without any work after which the helper goes to sleep on the sources.
const QUIET_TICKS: u32 = 5;

/// Starts the thread. It blocks every signal: those are the program's.
pub(crate) fn start(shared: Arc<Shared>) -> Result<JoinHandle<()>, Errno> {
    let run = move || Helper { shared, seen: 0, quiet: 0 }.run();
    let blocked = block_signals();
    let thread = std::thread::Builder::new().name("causeway".into()).spawn(run);
    restore_signals(&blocked);
    Ok(thread?)
}

struct Helper {
    shared: Arc<Shared>,
    /// Activity count at the last tick.
    seen: u64,
    quiet: u32,
}

impl Helper {
    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            let activity = self.shared.activity.load(Ordering::Relaxed);
            let active = activity != self.seen;
            self.seen = activity;
            if active {
                self.quiet = 0;
                self.shared.control_events();
                self.sleep(false, Some(TICK));
            } else if self.shared.blocked.load(Ordering::SeqCst) > 0 {
                self.park();
            } else if self.progress() {
                self.quiet = 0;
                self.sleep(false, Some(TICK));
            } else if self.quiet < QUIET_TICKS {
                self.quiet += 1;
                self.sleep(false, Some(TICK));
            } else {
                self.sleep_on_sources();
            }
        }
    }

    fn progress(&self) -> bool {
        let mut state = self.shared.state.lock();
        let worked = state.progress_everywhere(clock::now());
        drop(state);
        self.shared.control_events() || worked
    }

    /// Sleeps until a peer, the network, the broker, a timer or a thread of the program calls.
    fn sleep_on_sources(&mut self) {
        let shared = Arc::clone(&self.shared);
        let now = clock::now();
        let mut state = shared.state.lock();
        state.arm();
        let worked = state.progress_everywhere(now);
        let deadline = state.deadline;
        if worked || shared.activity.load(Ordering::Relaxed) != self.seen {
            self.quiet = 0;
            state.disarm();
            return;
        }
        shared.source_deadline.store(deadline.map_or(u64::MAX, |d| d.0), Ordering::SeqCst);
        drop(state);
        self.sleep(true, deadline.map(|d| d.since(now)));
        shared.source_deadline.store(0, Ordering::SeqCst);
        shared.state.lock().disarm();
    }

    /// Sleeps until kicked: blocked threads watch the sources and the timers.
    fn park(&self) {
        let shared = &self.shared;
        shared.helper_parked.store(true, Ordering::SeqCst);
        // Who left before it could see this has not kicked: look again.
        if shared.blocked.load(Ordering::SeqCst) > 0 {
            self.sleep(false, None);
        }
        shared.helper_parked.store(false, Ordering::SeqCst);
    }

    fn sleep(&self, on_sources: bool, timeout: Option<Duration>) {
        let shared = &self.shared;
        let timespec = timeout.map(clock::timespec);
        let [doorbell, udp, control] = shared.sources();
        let mut fds = [
            PollFd::from_borrowed_fd(shared.kick_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(doorbell, PollFlags::IN),
            PollFd::from_borrowed_fd(udp, PollFlags::IN),
            PollFd::from_borrowed_fd(control, PollFlags::IN),
        ];
        let watched = if on_sources { &mut fds[..] } else { &mut fds[..1] };
        let _ = poll(watched, timespec.as_ref());
        let mut count = [0; 8];
        let _ = rustix::io::read(shared.kick_fd(), &mut count);
        if on_sources {
            let _ = shared.doorbell.drain();
            shared.control_events();
        }
    }
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are plain data that the calls fill.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut old = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        old
    }
}

fn restore_signals(old: &libc::sigset_t) {
    // SAFETY: `old` was filled by `block_signals`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old, std::ptr::null_mut()) };
}
