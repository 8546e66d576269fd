//! Blocking calls: a thread that waits for an event waits on the sources of events itself, so that
//! it wakes once. Where events come often it looks for them a while before it sleeps
//! (`causeway-look`).

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use causeway_cancel::{Allowed, Ended};
use causeway_look::Wait;
use causeway_proto::Instant;
use rustix::event::{PollFd, PollFlags};

use crate::channel::EventQueue;
use crate::clock::{self, Now, earlier};
use crate::engines::{ENGINES_MAX, Engine};
use crate::errno::Errno;
use crate::shared::Shared;
use crate::signals::BlockedSignals;

/// How long a thread looks before it asks whether the channel's descriptor is non-blocking, and
/// holds signals back: three system calls. To the program, a signal that is handled so soon is one
/// that came just before the call, and that ends no read(2) either.
const AS_IF_BEFORE: Duration = Duration::from_micros(5);

/// How a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Woken {
    /// There was something to do at once.
    Awake,
    Slept,
    /// A signal was handled that interrupts system calls.
    Interrupted,
    /// The program cancels the thread.
    Cancelled,
}

impl Woken {
    /// What poll(2) was ended by.
    fn of(slept: Result<(), Ended>) -> Woken {
        match slept {
            Err(Ended::Cancelled) => Woken::Cancelled,
            Err(Ended::Failed(error))
                if error.kind() == ErrorKind::Interrupted && causeway_cancel::interrupt() =>
            {
                Woken::Interrupted
            }
            _ => Woken::Slept,
        }
    }
}

/// How many calls had made progress at each engine after this thread looked last.
#[derive(Default)]
struct Seen([u64; ENGINES_MAX]);

impl Seen {
    /// Whether no other thread has made progress there since.
    fn is_quiet(&self, engine: &Engine) -> bool {
        self.0[usize::from(engine.number) % ENGINES_MAX] == engine.activity()
    }

    fn note(&mut self, engine: &Engine) {
        self.0[usize::from(engine.number) % ENGINES_MAX] = engine.activity();
    }
}

impl Shared {
    /// Makes progress until `take` yields something, looking for it and then sleeping on `queue`
    /// and the sources.
    ///
    /// # Errors
    /// EAGAIN where there is nothing and the queue's descriptor is non-blocking; EINTR after a
    /// signal whose handler interrupts system calls; ETIMEDOUT; EIO where there is nothing and the
    /// device has failed; [`Errno::CANCELLED`].
    pub(crate) fn wait<T, E>(
        &self,
        queue: &EventQueue<E>,
        until: Option<Instant>,
        allowed: Allowed,
        mut take: impl FnMut() -> Option<T>,
    ) -> Result<T, Errno> {
        if let Some(found) = take() {
            return Ok(found);
        }
        let mut wait = queue.looks.begin(&self.lookers);
        // Before anything is asked of the kernel: the event may be there soon. Signals are not held
        // back yet, so the processor is kept.
        let alone = |wait: &mut Wait<'_>| wait.again_alone() && wait.looked() < AS_IF_BEFORE;
        if let Some(found) = self.look_for(queue, &mut wait, alone, &mut take) {
            wait.over();
            return Ok(found);
        }
        if queue.nonblocking() {
            self.progress_once();
            return take().ok_or(Errno(libc::EAGAIN));
        }
        let blocked = BlockedSignals::new();
        self.blocked.fetch_add(1, Ordering::SeqCst);
        let found = match self.look_for(queue, &mut wait, |wait| wait.again(), &mut take) {
            Some(found) => Ok(found),
            None => self.sleep_for(queue, until, (&blocked, allowed), &mut take),
        };
        if found.is_ok() {
            wait.over();
        }
        if self.blocked.fetch_sub(1, Ordering::SeqCst) > 1 {
            // Others still sleep, with the deadline of before: let one look again.
            self.ring_own_doorbell();
        }
        // The helper sleeps in the belief that the sources are watched, or missed a call that this
        // thread took; what this thread has received may have to be acknowledged yet.
        self.kick_if_asleep();
        found
    }

    /// Waits until `take` yields something, and leaves progress to others. Programs keep a thread
    /// that waits for asynchronous events for ever: it is not to be woken by each message, and to
    /// take locks from the threads that poll.
    ///
    /// # Errors
    /// As [`Shared::wait`], but for the time.
    pub(crate) fn wait_aside<T, E>(
        &self,
        queue: &EventQueue<E>,
        allowed: Allowed,
        mut take: impl FnMut() -> Option<T>,
    ) -> Result<T, Errno> {
        if let Some(found) = take() {
            return Ok(found);
        }
        if queue.nonblocking() {
            self.progress_once();
            return take().ok_or(Errno(libc::EAGAIN));
        }
        let blocked = BlockedSignals::new();
        let mut woken = Woken::Slept;
        loop {
            let has_failed = self.common.failure.has_happened();
            if let Some(found) = take() {
                return Ok(found);
            }
            match woken {
                Woken::Cancelled => return Err(Errno::CANCELLED),
                Woken::Interrupted => return Err(Errno(libc::EINTR)),
                _ if has_failed => {
                    // What that ends is the last to come.
                    self.progress_once();
                    return take().ok_or(Errno(libc::EIO));
                }
                _ => {}
            }
            let input = PollFd::from_borrowed_fd(queue.as_fd(), PollFlags::IN);
            let mut fds = [input, self.hangup.watched()];
            woken = Woken::of(blocked.poll(&mut fds, None, allowed));
            self.descriptors.heed_hangup(&fds[1]);
        }
    }

    /// Looks until `take` yields something, for as long as `again` says that it is worth it. The
    /// doorbell is not armed meanwhile: peers on this host need not ring.
    fn look_for<T, E>(
        &self,
        queue: &EventQueue<E>,
        wait: &mut Wait<'_>,
        again: impl Fn(&mut Wait<'_>) -> bool,
        take: &mut impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if !wait.is_looking() {
            return None;
        }
        queue.holding(|| {
            let mut seen = Seen::default();
            while again(wait) {
                self.look(&mut seen);
                let found = take();
                if found.is_some() {
                    return found;
                }
            }
            None
        })
    }

    /// A pass of a thread that looks, over all engines. It never waits for a lock: a thread that
    /// holds one makes progress, and so does one that polls one of several engines.
    fn look(&self, seen: &mut Seen) {
        let one = self.engines.count() == 1;
        for engine in self.engines.iter() {
            if one || seen.is_quiet(engine) {
                self.look_at(engine);
            }
            seen.note(engine);
        }
    }

    fn look_at(&self, engine: &Engine) {
        let Some(mut state) = engine.state.try_lock() else {
            return std::hint::spin_loop();
        };
        let now = Now::default();
        state.core.stops_at_event = true;
        let worked = state.progress(&now);
        state.core.stops_at_event = false;
        if !worked && state.awaits_reply() {
            // Of this thread there will be none.
            state.give_up_replies(&now);
        }
        engine.note_activity(&now);
        let broker_requests = !state.broker_requests.is_empty();
        drop(state);
        if broker_requests {
            self.send_broker_requests();
        }
    }

    /// Sleeps until `take` yields something, or the time comes.
    fn sleep_for<T, E>(
        &self,
        queue: &EventQueue<E>,
        until: Option<Instant>,
        sleep: (&BlockedSignals, Allowed),
        take: &mut impl FnMut() -> Option<T>,
    ) -> Result<T, Errno> {
        let mut interrupted = false;
        loop {
            if let Some(found) = take() {
                return Ok(found);
            }
            if interrupted {
                return Err(Errno(libc::EINTR));
            }
            if until.is_some_and(|until| clock::now() >= until) {
                return Err(Errno(libc::ETIMEDOUT));
            }
            if self.common.failure.has_happened() {
                // What that ends is the last to come. A sleep on files that the program has put in
                // the places of descriptors would end at once, each time, with signals held back.
                let last = queue.holding(|| {
                    self.progress_once();
                    take()
                });
                return last.ok_or(Errno(libc::EIO));
            }
            let woken = self.sleep_until_work(queue, until, sleep);
            if woken == Woken::Cancelled {
                return Err(Errno::CANCELLED);
            }
            interrupted = woken == Woken::Interrupted;
            if woken != Woken::Awake
                && let Some(found) = queue.holding(|| {
                    self.progress_once();
                    take()
                })
            {
                return Ok(found);
            }
        }
    }

    fn progress_once(&self) {
        let now = Now::default();
        let mut broker_requests = false;
        self.engines.each(|engine, state| {
            state.progress_everywhere(&now);
            engine.note_activity(&now);
            broker_requests |= !state.broker_requests.is_empty();
        });
        if broker_requests {
            self.send_broker_requests();
        }
    }

    /// Sleeps, not beyond `until`, unless there is something to do at once. The sleep is a
    /// cancellation point, and the only one: there no lock is held.
    fn sleep_until_work<E>(
        &self,
        queue: &EventQueue<E>,
        until: Option<Instant>,
        (blocked, allowed): (&BlockedSignals, Allowed),
    ) -> Woken {
        let now = Now::default();
        now.get();
        self.arm();
        let (mut worked, mut broker_requests, mut deadline) = (false, false, None);
        // Before the looks: a post that comes later than the look at its engine wakes this thread.
        let before = self.source_deadline.swap(u64::MAX, Ordering::SeqCst);
        self.engines.each(|engine, state| {
            // What is at the ports ends the sleep: no need to look.
            let some = state.progress_but_port(&now);
            engine.note_activity(&now);
            if !some && state.awaits_reply() {
                state.give_up_replies(&now);
            }
            worked |= some;
            deadline = earlier(deadline, state.timers.next());
            deadline = earlier(deadline, state.look_for_silence(&now));
            broker_requests |= !state.broker_requests.is_empty();
        });
        let watched_until = if worked {
            before
        } else {
            deadline.map_or(u64::MAX, |d| d.0)
        };
        self.source_deadline.store(watched_until, Ordering::SeqCst);
        if broker_requests {
            self.send_broker_requests();
        }
        if worked {
            self.disarm();
            return Woken::Awake;
        }
        let timeout = earlier(deadline, until).map(|d| clock::timespec(d.since(now.get())));
        let own = [queue.as_fd(), self.sleepers.doorbell.fd()];
        let own = own.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let mut fds: Vec<_> = own.into_iter().chain(self.live_ports()).collect();
        let hangup = fds.len();
        fds.push(self.hangup.watched());
        let slept = blocked.poll(&mut fds, timeout, allowed);
        self.source_deadline.store(0, Ordering::SeqCst);
        let ready = |fd: &&PollFd<'_>| !fd.revents().is_empty();
        // If one is the program's, the next pass says so. The first two are drained by calls that
        // reach nothing else.
        let sockets = fds[2..hangup].iter().filter(ready).map(AsFd::as_fd);
        self.descriptors.heed_hangup(&fds[hangup]);
        self.descriptors.look_after_sleep(clock::now(), sockets);
        self.note_errors(&fds[2..hangup]);
        if !fds[1].revents().is_empty() {
            self.sleepers.note_rung();
        }
        self.disarm();
        Woken::of(slept)
    }
}
