//! The helper thread: progress while the program neither polls nor waits.
//!
//! A program that polls makes its own progress, and one that blocks in a call for completions waits
//! on the sources itself. Otherwise it is the helper that sleeps on the sources, using no time at
//! all, and makes progress when one calls: one-sided operations on a program that computes, or that
//! spins on its memory, proceed.
//!
//! To be woken for what the program would have polled a moment later ruins both on few processors.
//! So the helper counts the times that it was woken in vain, because the program had been quicker:
//! after [`VAIN_WAKES`] in a row it keeps off the sources for a tick, and looks again. No poll
//! knows that it was the last; the tick is what bounds the delay after it. While the program goes
//! on polling, ticks get longer ([`TICK_FIRST`] to [`TICK_LAST`]). A program that spins on its
//! memory and polls in between makes some wakes vain, but never so many in a row: it is served at
//! once.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use causeway_proto::Instant;
use rustix::event::{PollFd, PollFlags, poll};

use crate::clock::{self, Now, earlier};
use crate::closed_fds;
use crate::engines::Engine;
use crate::errno::Errno;
use crate::handlers;
use crate::look_on::LookOn;
use crate::shared::{HelperSleep, Shared};
use crate::threads;

/// How long a peer's request may wait after the last poll of a program that has just begun to poll,
/// and of one that has been polling for long: each tick interrupts it, which costs some 20 µs where
/// all processors are busy.
const TICK_FIRST: Duration = Duration::from_micros(200);
const TICK_LAST: Duration = closed_fds::LOOK_LAST;
/// How often objects are counted while threads are blocked.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// Wakes in a row for which the program had been quicker that prove it to be polling.
const VAIN_WAKES: u32 = 3;
/// A program whose last call is further back than this is not polling just now.
const RECENT: Duration = Duration::from_micros(5);
/// After activity the first sleep on the sources is no longer than this, so that a post need not
/// wake the helper to tell it of a time-out further away: a system call and a wake for each.
const FIRST_SLEEP_MAX: Duration = Duration::from_millis(1);
/// How long a program has for its reply to a request that this thread has received, before the
/// acknowledgment goes without.
const REPLY_PAUSE: Duration = Duration::from_micros(100);
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
            seen: shared.activity(),
            arms: 0,
            due: FAR,
            counted: Instant(0),
            tick: TICK_FIRST,
            vain: 0,
            woken: false,
            looks: LookOn::default(),
            has_stepped_back: false,
            is_prompt: false,
            shared,
        }
        .run();
    };
    threads::spawn("causeway", run)
}

/// What a pass over the engines found.
#[derive(Default)]
struct Pass {
    worked: bool,
    /// As much as a program that waits for events may expect at once.
    enough: bool,
    /// Something at a port, or a stream under way.
    arrived: bool,
    stream: bool,
    /// A thread of the program held an engine's lock.
    held: bool,
}

impl Shared {
    /// How many calls of the program have made progress.
    fn activity(&self) -> u64 {
        let calls = self.engines.iter().map(Engine::activity);
        calls.fold(0, u64::wrapping_add)
    }

    /// Makes progress at each engine. It never waits for a lock: a thread that holds it makes
    /// progress, and a lock handed to a thread that is not running stalls the program until it is.
    fn pass(&self, spinning: bool, now: &Now) -> Pass {
        let mut pass = Pass::default();
        for engine in self.engines.iter() {
            let Some(mut state) = engine.state.try_lock() else {
                pass.held = true;
                continue;
            };
            let worked = if spinning {
                state.progress(now)
            } else {
                state.progress_everywhere(now)
            };
            if !state.broker_requests.is_empty() {
                self.send_broker_requests();
            }
            if worked {
                pass.worked = true;
                pass.enough |= state.core.enough;
                pass.arrived |= state.udp.arrived;
                pass.stream |= state.udp.stream;
            }
        }
        pass
    }
}

struct Helper {
    shared: Arc<Shared>,
    /// The program's calls when they were last counted.
    seen: u64,
    /// The times that it was about to sleep by calls of its own, likewise.
    arms: u64,
    /// When the last sleep off the sources was to end.
    due: Instant,
    /// How long the next one lasts, if the program polls.
    tick: Duration,
    /// Wakes in a row at which the program had been quicker.
    vain: u32,
    /// The last sleep was ended by a source.
    woken: bool,
    /// Whether it looks again instead of sleeping.
    looks: LookOn,
    /// It has slept to let the program reply to what came last.
    has_stepped_back: bool,
    /// When it last counted objects while threads were blocked.
    counted: Instant,
    /// It has asked for short slices of processor time: so it has the processor soon after a sleep,
    /// though a thread of the program spins there.
    is_prompt: bool,
}

/// What a look at the sources found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    /// Nothing: time to sleep, until the given time at the latest.
    Nothing(Option<Instant>),
    /// Something, now or just now.
    Worked,
    /// As much as a program that waits for events may expect at once.
    Enough,
    /// That the program is looking itself.
    Polled,
}

impl Helper {
    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            if self.shared.common.failure.has_happened() {
                self.shared.engines.each(|_, state| _ = state.abandon());
                return;
            }
            let blocked = self.shared.blocked.load(Ordering::SeqCst) > 0;
            if blocked {
                self.count_now_and_then();
            }
            if blocked && !self.has_called() {
                self.park();
            } else if blocked {
                self.keep_off(self.tick);
                self.tick = (2 * self.tick).min(TICK_LAST);
            } else if self.vain >= VAIN_WAKES && self.is_polling() {
                self.step_back(self.tick);
                self.tick = (2 * self.tick).min(TICK_LAST);
            } else {
                self.tick = TICK_FIRST;
                if self.vain >= VAIN_WAKES {
                    // It has stopped, or it polls only now and then.
                    self.vain = 0;
                }
                self.sleep_on_sources();
            }
        }
    }

    /// Counts objects for who looks at the endpoint from outside, since threads that block again
    /// and again keep this one off the sources.
    fn count_now_and_then(&mut self) {
        let now = clock::now();
        if now.since(self.counted) >= COUNT_EVERY {
            self.counted = now;
            self.shared.count_objects();
        }
    }

    /// Whether the program has made a call since this was last asked.
    fn has_called(&mut self) -> bool {
        let calls = self.shared.activity();
        calls != std::mem::replace(&mut self.seen, calls)
    }

    /// Whether the program is in a call, or just was.
    fn is_polling(&self) -> bool {
        let engines = &self.shared.engines;
        let last = engines.iter().map(Engine::last_call).max();
        let last = Instant(last.unwrap_or_default());
        // Waking takes longer than that, and where this thread takes the program's processor the
        // program cannot call meanwhile: what counts is the moment it should have woken.
        engines.iter().any(|engine| engine.state.is_locked())
            || clock::now().min(self.due).since(last) < RECENT
    }

    /// Whether the program was about to sleep by calls of its own since this was last asked.
    fn has_armed(&mut self) -> bool {
        let arms = self.shared.arms();
        arms != std::mem::replace(&mut self.arms, arms)
    }

    /// Sleeps while the program polls, or blocks now and then.
    fn keep_off(&mut self, tick: Duration) {
        self.due = clock::now() + tick;
        self.sleep(false, Some(tick));
    }

    /// Lets the program have its turn, unless it sleeps already, by calls of its own.
    fn step_back(&mut self, tick: Duration) {
        let shared = Arc::clone(&self.shared);
        // Before it looks for the last time: a thread that arms afterwards sees this and kicks.
        shared.set_helper_sleep(HelperSleep::Tick);
        let mut armed = self.has_armed();
        if !armed {
            self.keep_off(tick);
            armed = self.has_armed();
        }
        shared.set_helper_sleep(HelperSleep::No);
        if armed {
            self.vain = 0;
        }
    }

    /// Sleeps until a peer, the network, a timer or a thread of the program calls.
    fn sleep_on_sources(&mut self) {
        let shared = Arc::clone(&self.shared);
        // Before it looks for the last time: a blocked thread that takes the doorbell's ring from
        // it sees this and kicks, or has left before that look.
        shared.set_helper_sleep(HelperSleep::OnSources);
        shared.arm();
        // What it finds now may be what the program has armed for until now.
        self.has_armed();
        let now = Now::default();
        self.due = FAR;
        let looked = self.look(&now);
        if let Looked::Nothing(until) = looked {
            self.woken = self.sleep(true, until.map(|d| d.since(now.get())));
            shared.source_deadline.store(0, Ordering::SeqCst);
            shared.wakeups.fetch_add(1, Ordering::Relaxed);
        }
        shared.disarm();
        shared.set_helper_sleep(HelperSleep::No);
        if shared.blocked.load(Ordering::SeqCst) > 0 {
            // It watches the sources from now on: let it look once more, and set its deadline.
            shared.ring_own_doorbell();
        } else if looked == Looked::Enough {
            // Its turn: more at once is more than it may expect for one event.
            self.step_back(TICK_FIRST);
        }
    }

    /// Makes progress before a sleep on the sources.
    fn look(&mut self, now: &Now) -> Looked {
        let shared = Arc::clone(&self.shared);
        let woken = std::mem::take(&mut self.woken);
        let spinning = self.looks.is_due(now.get());
        let pass = handlers::run_after(|| shared.pass(spinning, now));
        if pass.worked {
            self.vain = 0;
            self.has_stepped_back = false;
            if pass.stream || pass.arrived {
                self.looks.arrived(pass.stream, now.get());
            }
            return if pass.enough {
                Looked::Enough
            } else {
                Looked::Worked
            };
        }
        if pass.held {
            self.vain += 1;
            return Looked::Polled;
        }
        if spinning {
            // What is to arrive may come from a thread that needs this processor.
            if std::mem::take(&mut self.is_prompt) {
                causeway_memory::be_patient();
            }
            std::thread::yield_now();
            return Looked::Worked;
        }
        self.looks.slept();
        if woken {
            self.vain += 1;
            if self.vain >= VAIN_WAKES {
                return Looked::Polled;
            }
        }
        // The program is quiet: time for what is not urgent.
        let mut until = self.end_look(now);
        if self.has_called() {
            until = earlier(until, Some(now.get() + FIRST_SLEEP_MAX));
        }
        let published = until.map_or(u64::MAX, |d| d.0);
        shared.source_deadline.store(published, Ordering::SeqCst);
        Looked::Nothing(until)
    }

    /// What is to be done at each engine before a sleep on the sources. Returns when the first of
    /// them wants attention without any input.
    fn end_look(&mut self, now: &Now) -> Option<Instant> {
        let shared = Arc::clone(&self.shared);
        // A post that comes later than the look at its engine wakes this thread.
        shared.source_deadline.store(u64::MAX, Ordering::SeqCst);
        let (mut until, mut replies, mut broker_requests) = (None, false, false);
        let step_back = !self.has_stepped_back;
        shared.engines.each(|engine, state| {
            state.count_objects(shared.take_wakeups(engine));
            until = earlier(until, state.timers.next());
            until = earlier(until, state.look_for_silence(now));
            broker_requests |= !state.broker_requests.is_empty();
            if state.awaits_reply() {
                // A program that spins on its memory is about to answer, but may need this
                // processor.
                replies = true;
                if !step_back {
                    state.give_up_replies(now);
                }
            }
        });
        if broker_requests {
            shared.send_broker_requests();
        }
        if replies {
            self.has_stepped_back = true;
            if step_back {
                until = earlier(until, Some(now.get() + REPLY_PAUSE));
            }
        }
        until
    }

    /// Sleeps until kicked: blocked threads watch the sources and the timers.
    fn park(&mut self) {
        let shared = Arc::clone(&self.shared);
        shared.set_helper_sleep(HelperSleep::Parked);
        // A thread that left before it could see this has not kicked: look again.
        if shared.blocked.load(Ordering::SeqCst) > 0 {
            self.sleep(false, None);
        }
        shared.set_helper_sleep(HelperSleep::No);
        // A thread that has waited polls next.
        (self.vain, self.tick, self.due) = (VAIN_WAKES, TICK_FIRST, FAR);
    }

    /// Sleeps, and returns whether a source ended it.
    fn sleep(&mut self, on_sources: bool, timeout: Option<Duration>) -> bool {
        if !std::mem::replace(&mut self.is_prompt, true) {
            causeway_memory::be_prompt();
        }
        let shared = Arc::clone(&self.shared);
        let timespec = timeout.map(clock::timespec);
        let input = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let single = [
            shared.hangup.watched(),
            input(shared.kick_fd()),
            input(shared.sleepers.doorbell.fd()),
        ];
        let mut fds: Vec<_> = single.into_iter().chain(shared.live_ports()).collect();
        let watched = if on_sources {
            &mut fds[..]
        } else {
            &mut fds[..2]
        };
        let _ = poll(watched, timespec.as_ref());
        shared.descriptors.heed_hangup(&fds[0]);
        let fds = &fds[1..];
        if on_sources {
            // The first two are drained by calls that reach nothing else.
            let ready = |fd: &&PollFd<'_>| !fd.revents().is_empty();
            let sockets = fds[2..].iter().filter(ready).map(AsFd::as_fd);
            shared.descriptors.look_after_sleep(clock::now(), sockets);
        } else {
            // Meanwhile the program uses them.
            shared.descriptors.are_intact();
        }
        if shared.common.failure.has_happened() {
            return false;
        }
        let [kick, doorbell] = [0, 1].map(|at| fds[at].revents());
        let ports = &fds[2..];
        let port = ports.iter().any(|fd| !fd.revents().is_empty());
        if !kick.is_empty() {
            shared
                .descriptors
                .heed(causeway_shm::drain(shared.kick_fd()));
        }
        if !doorbell.is_empty() {
            shared.sleepers.note_rung();
        }
        shared.note_errors(&fds[2..]);
        port || !doorbell.is_empty()
    }
}
