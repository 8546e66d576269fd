//! The helper thread: progress while the program neither polls nor waits.
//!
//! A program that polls makes its own progress, and one that blocks in a call waits on the sources
//! itself. Otherwise it is the helper that sleeps on the sources, using no time at all, and makes
//! progress when one calls: one-sided operations on a program that computes, or that spins on its
//! memory, proceed.
//!
//! To be woken for what the program would have polled a moment later ruins both on few processors.
//! So the helper counts the program's calls: where they came faster than one in [`SPIN`] while it
//! slept, it keeps off the sources for a tick and looks again. No poll knows that it was the last;
//! the tick is what bounds the delay after it. While the program goes on polling, ticks get longer
//! ([`TICK_FIRST`] to [`TICK_LAST`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use causeway_proto::Instant;
use rustix::event::{PollFd, PollFlags, poll};

use crate::clock::{self, Now};
use crate::endpoint::Shared;
use crate::errno::Errno;

/// How long a peer's request may wait after the last poll of a program that has just begun to poll,
/// and of one that has been polling for long: each tick interrupts it, which costs some 20 µs where
/// all processors are busy.
const TICK_FIRST: Duration = Duration::from_micros(200);
const TICK_LAST: Duration = Duration::from_micros(1600);
/// A program that calls more often than this on average is polling.
const SPIN: Duration = Duration::from_micros(10);
/// A program whose last call is further back than this is not polling just now.
const RECENT: Duration = Duration::from_micros(3);
/// The shortest time over which that can be told.
const SAMPLE: Duration = Duration::from_micros(20);
/// Later than any time there is.
const FAR: Instant = Instant(u64::MAX);
/// How late the kernel may let a sleep of this thread end, in nanoseconds; its default is 50 µs.
const TIMER_SLACK: libc::c_ulong = 1000;

/// Starts the thread. It blocks every signal: those are the program's.
pub(crate) fn start(shared: Arc<Shared>) -> Result<JoinHandle<()>, Errno> {
    let run = move || {
        // SAFETY: concerns this thread's timers alone.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK) };
        Helper {
            seen: shared.activity.load(Ordering::Relaxed),
            since: clock::now(),
            due: FAR,
            tick: TICK_FIRST,
            shared,
        }
        .run();
    };
    let blocked = block_signals();
    let thread = std::thread::Builder::new()
        .name("causeway".into())
        .spawn(run);
    restore_signals(&blocked);
    Ok(thread?)
}

struct Helper {
    shared: Arc<Shared>,
    /// The program's calls when they were last counted, and when that was.
    seen: u64,
    since: Instant,
    /// When the last such sleep was to end.
    due: Instant,
    /// How long the next sleep lasts, if the program polls.
    tick: Duration,
}

impl Helper {
    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            self.shared.run_errands();
            if self.shared.blocked.load(Ordering::SeqCst) > 0 {
                self.park();
            } else if self.is_polled() {
                self.shared.control_events();
                self.keep_off(self.tick);
                self.tick = (2 * self.tick).min(TICK_LAST);
            } else {
                self.tick = TICK_FIRST;
                // Before it looks for the last time: a blocked thread that takes the doorbell's
                // ring from it sees this and kicks, or has left before that look.
                self.shared.helper_asleep.store(true, Ordering::SeqCst);
                self.sleep_on_sources();
                self.shared.helper_asleep.store(false, Ordering::SeqCst);
            }
        }
    }

    /// Whether the program has been polling since this was last asked.
    fn is_polled(&mut self) -> bool {
        let now = clock::now();
        let calls = self.shared.activity.load(Ordering::Relaxed);
        let elapsed = now.since(self.since);
        let new = u32::try_from(calls.wrapping_sub(self.seen)).unwrap_or(u32::MAX);
        if elapsed < SAMPLE && new > 0 {
            // Too short to tell; it may have begun just now.
            return true;
        }
        (self.seen, self.since) = (calls, now);
        let last = Instant(self.shared.last_call.load(Ordering::Relaxed));
        // Waking takes longer than that, and where this thread takes the program's processor the
        // program cannot call meanwhile: what counts is the moment it should have woken.
        SPIN * new > elapsed && now.min(self.due).since(last) < RECENT
    }

    /// Sleeps while the program polls.
    fn keep_off(&mut self, tick: Duration) {
        self.due = clock::now() + tick;
        self.sleep(false, Some(tick));
    }

    /// Sleeps until a peer, the network, the broker, a timer or a thread of the program calls.
    fn sleep_on_sources(&mut self) {
        let shared = Arc::clone(&self.shared);
        let now = Now::default();
        self.due = FAR;
        shared.arm();
        // Never waits for the lock: who holds it makes progress, and a lock handed to a thread that
        // is not running stalls the program until it is.
        let Some(mut state) = shared.state.try_lock() else {
            shared.disarm();
            return self.keep_off(TICK_FIRST);
        };
        let worked = state.progress_everywhere(&now);
        let deadline = state.deadline;
        let enough = worked && state.core.enough;
        let errands = !state.errands.is_empty();
        if !worked {
            // The program is quiet: time for what is not urgent.
            state.count_objects(shared.wakeups.swap(0, Ordering::Relaxed));
            shared
                .source_deadline
                .store(deadline.map_or(u64::MAX, |d| d.0), Ordering::SeqCst);
        }
        drop(state);
        if errands {
            shared.send_helper();
        }
        if !worked {
            self.sleep(true, deadline.map(|d| d.since(now.get())));
            shared.source_deadline.store(0, Ordering::SeqCst);
            shared.wakeups.fetch_add(1, Ordering::Relaxed);
        }
        shared.disarm();
        if shared.blocked.load(Ordering::SeqCst) > 0 {
            // It watches the sources from now on: let it look once more, and set its deadline.
            shared.ring_own_doorbell();
        } else if enough {
            // Its turn: more at once is more than it may expect for one event.
            self.keep_off(TICK_FIRST);
        }
    }

    /// Sleeps until kicked: blocked threads watch the sources and the timers.
    fn park(&self) {
        let shared = &self.shared;
        shared.helper_asleep.store(true, Ordering::SeqCst);
        // Who left before it could see this has not kicked: look again.
        if shared.blocked.load(Ordering::SeqCst) > 0 {
            self.sleep(false, None);
        }
        shared.helper_asleep.store(false, Ordering::SeqCst);
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
        let watched = if on_sources {
            &mut fds[..]
        } else {
            &mut fds[..1]
        };
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
