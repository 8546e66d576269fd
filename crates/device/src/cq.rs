//! Completion queues and completion channels.

use std::ops::DerefMut;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use causeway_biased_lock::{BiasedGuard, Hurried, hurry};
use causeway_cancel::Allowed;
use causeway_proto::Instant;
use causeway_proto::types::Wc;
use parking_lot::{Condvar, Mutex};

use crate::at::At;
use crate::channel::EventQueue;
use crate::clock::Now;
use crate::completions::{Completions, Frees};
use crate::context::Context;
use crate::core::{Armed, Core, CqState};
use crate::endpoint::Shared;
use crate::engines::{Engine, LastSeen};
use crate::errno::Errno;
use crate::events::EventSource;
use crate::limits::LIMITS;
use crate::state::State;

/// Completions taken after which a poll looks for more though there are some. What a program posts
/// may complete at once (datagrams, WRITEs straight into a peer's memory): its queue may never be
/// empty, and what others send to it has to be found all the same.
const LOOK_AFTER: usize = 64;
/// Looks of one such poll at most.
const LOOKS_MOST: usize = 1024;

/// A completion channel (`ibv_create_comp_channel(3)`).
pub struct CompChannel {
    pub(crate) context: Arc<Context>,
    pub(crate) queue: Arc<EventQueue<usize>>,
}

/// A completion queue (`ibv_create_cq(3)`).
pub struct Cq {
    context: Arc<Context>,
    /// The endpoint of that: a poll follows no chain of pointers to it.
    shared: Arc<Shared>,
    pub(crate) number: u32,
    /// Where its state is.
    pub(crate) at: Arc<At>,
    seen: LastSeen,
    cookie: usize,
    channel: Option<Arc<CompChannel>>,
    /// Completion events acknowledged, ever.
    acked: Mutex<u64>,
    changed: Condvar,
}

impl Context {
    /// Creates a completion channel (`ibv_create_comp_channel(3)`).
    ///
    /// # Errors
    /// EMFILE and what else eventfd(2) fails with.
    pub fn create_comp_channel(self: &Arc<Self>) -> Result<Arc<CompChannel>, Errno> {
        let queue = Arc::new(EventQueue::new()?);
        Ok(Arc::new(CompChannel {
            context: Arc::clone(self),
            queue,
        }))
    }

    /// Creates a completion queue for `cqe` completions (`ibv_create_cq(3)`). `cookie` names it in
    /// events.
    ///
    /// # Errors
    /// EINVAL for no or too many entries, ENOMEM beyond the device's limit.
    pub fn create_cq(
        self: &Arc<Self>,
        cqe: u32,
        channel: Option<&Arc<CompChannel>>,
        cookie: usize,
    ) -> Result<Arc<Cq>, Errno> {
        if cqe == 0 || cqe > LIMITS.max_cqe {
            return Err(Errno(libc::EINVAL));
        }
        let at = At::first();
        let state = CqState {
            queue: Completions::limited(cqe as usize),
            armed: Armed::No,
            overrun: false,
            timestamps: false,
            channel: channel.map(|c| Arc::clone(&c.queue)),
            events: Arc::clone(&self.events),
            cookie,
            announced: 0,
            users: 0,
            at: Arc::clone(&at),
        };
        let shared = &self.endpoint.shared;
        let number = shared.cq_numbers.lock().insert(());
        let number = number.ok_or(Errno(libc::ENOMEM))?;
        let (_, mut first) = shared.engines.lock_at(&at);
        first.core.cqs.put(number, state);
        drop(first);
        Ok(Arc::new(Cq::new(
            Arc::clone(self),
            (number, at),
            cookie,
            channel.cloned(),
        )))
    }
}

impl CompChannel {
    /// An eventfd, readable if and only if a completion event is queued.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.queue.raw_fd()
    }

    /// Takes the next event, waiting for it (`ibv_get_cq_event(3)`), and returns the cookie of the
    /// completion queue that announced it.
    ///
    /// # Errors
    /// EAGAIN if there is none and the descriptor is non-blocking; EINTR after a signal;
    /// [`Errno::CANCELLED`].
    pub fn get_event(&self, allowed: Allowed) -> Result<usize, Errno> {
        self.context
            .endpoint
            .shared
            .wait(&self.queue, allowed, || self.queue.pop())
    }

    /// Ends it (`ibv_destroy_comp_channel(3)`).
    ///
    /// # Errors
    /// EBUSY while completion queues use it.
    pub fn destroy(&self) -> Result<(), Errno> {
        let is_ours = |cq: &CqState| {
            let channel = cq.channel.as_ref();
            channel.is_some_and(|channel| Arc::ptr_eq(channel, &self.queue))
        };
        let mut used = false;
        self.context.endpoint.shared.engines.each(|_, state| {
            used |= state.core.cqs.iter().any(|(_, cq)| is_ours(cq));
        });
        if used {
            Err(Errno(libc::EBUSY))
        } else {
            Ok(())
        }
    }
}

impl Cq {
    pub(crate) fn new(
        context: Arc<Context>,
        (number, at): (u32, Arc<At>),
        cookie: usize,
        channel: Option<Arc<CompChannel>>,
    ) -> Self {
        let (acked, changed) = (Mutex::new(0), Condvar::new());
        Cq {
            seen: LastSeen::new(context.endpoint.shared.engines.first()),
            shared: Arc::clone(&context.endpoint.shared),
            context,
            number,
            at,
            cookie,
            channel,
            acked,
            changed,
        }
    }

    /// Its engine, unless it has just been moved to another: then it is not found there.
    #[inline(always)]
    fn engine(&self) -> &Engine {
        self.seen.get()
    }

    /// Its engine, and the engine's state.
    fn lock(&self) -> (&Engine, BiasedGuard<'_, State>) {
        let (engine, state) = self.shared.engines.lock_at(&self.at);
        self.seen.set(engine);
        (engine, state)
    }

    /// How many completions it holds.
    #[must_use]
    pub fn cqe(&self) -> u32 {
        let (_, state) = self.lock();
        let capacity = state
            .core
            .cqs
            .get(self.number)
            .map_or(0, |cq| cq.queue.most());
        u32::try_from(capacity).unwrap_or(u32::MAX)
    }

    /// Records the time of each completion from now on (`ibv_create_cq_ex(3)`).
    pub fn record_timestamps(&self) {
        let (_, mut state) = self.lock();
        if let Some(cq) = state.core.cqs.get_mut(self.number) {
            cq.timestamps = true;
        }
    }

    /// Changes how many it holds (`ibv_resize_cq(3)`).
    ///
    /// # Errors
    /// EINVAL for a bad size, or one smaller than what is queued.
    pub fn resize(&self, cqe: u32) -> Result<(), Errno> {
        if cqe == 0 || cqe > LIMITS.max_cqe {
            return Err(Errno(libc::EINVAL));
        }
        let (_, mut state) = self.lock();
        let cq = state
            .core
            .cqs
            .get_mut(self.number)
            .ok_or(Errno(libc::EINVAL))?;
        if cq.queue.len() > cqe as usize {
            return Err(Errno(libc::EINVAL));
        }
        cq.queue.set_most(cqe as usize);
        Ok(())
    }

    /// Takes up to `max` completions, oldest first, with their times in nanoseconds, and makes
    /// progress (`ibv_poll_cq(3)`).
    ///
    /// # Errors
    /// EOVERFLOW once the queue has overrun and what it held has been taken.
    pub fn poll(&self, max: usize, out: impl FnMut(&Wc, u64)) -> Result<usize, Errno> {
        // A program that waits for events is served in portions, and looks itself in between.
        let waits = self.channel.is_some();
        if !waits && self.engine().is_served(&self.at) {
            return Ok(0);
        }
        let (engine, mut state) = self.lock();
        let looked = match self.is_empty(&state) {
            true => state.look(engine),
            false => Looked::SOME,
        };
        if looked == Looked::SOME && state.unlooked >= LOOK_AFTER {
            match waits {
                true => state.unlooked = 0,
                false => self.look_beside(engine, &mut state),
            }
        }
        self.at.note_polled(engine.activity());
        self.take(engine, state, looked, max, out)
    }

    /// The engine's lock, if it is biased towards this thread: [`Cq::poll`] in pieces, the frequent
    /// ones of which call nothing. It is not to be held for anything else.
    #[inline(always)]
    pub fn hurry(&self) -> Option<Held<'_>> {
        let engine = self.engine();
        hurry(&engine.state).map(|state| Held { engine, state })
    }

    /// What waits to be taken.
    #[inline(always)]
    #[must_use]
    pub fn waiting(&self, held: &Held<'_>) -> Waiting {
        match held.state.core.cqs.get(self.number) {
            Some(cq) if !cq.queue.is_empty() => match held.state.unlooked < LOOK_AFTER {
                true => Waiting::Some,
                false => Waiting::Unclear,
            },
            Some(cq) if !cq.overrun => Waiting::None,
            _ => Waiting::Unclear,
        }
    }

    /// Makes progress, where none waits.
    #[inline(always)]
    pub fn look(&self, held: &mut Held<'_>) -> Looked {
        held.state.look_inlined(held.engine)
    }

    /// Takes completions that wait, up to `max`, one after the other until `out` returns false,
    /// which has taken nothing then, or one is out of the ordinary. Returns how many.
    ///
    /// # Errors
    /// None was taken: the lock, still held, for [`Cq::take_held`], which may take others.
    #[inline(always)]
    pub fn take_plain<'a>(
        &self,
        mut held: Held<'a>,
        max: usize,
        mut out: impl FnMut(&Wc) -> bool,
    ) -> Result<usize, Held<'a>> {
        let State {
            core,
            qps,
            unlooked,
            ..
        } = &mut *held.state;
        let mut taken = 0;
        if let Some(cq) = core.cqs.get_mut(self.number) {
            while taken < max
                && let Some(cqe) = cq.queue.front()
                && let Some(entry) = qps.place_mut(cqe.wc.qp_num)
            {
                let frees = cqe.frees;
                if frees == Frees::Nothing || !out(&cqe.wc) {
                    break;
                }
                cq.queue.drop_front();
                taken += 1;
                match frees {
                    Frees::Send(places) => entry.qp.release_send(places),
                    _ => entry.qp.release_recv(),
                }
            }
            if cq.queue.is_empty() && !cq.overrun {
                cq.at.ready.store(false, Ordering::Relaxed);
            }
        }
        *unlooked += taken;
        match taken {
            0 => Err(held),
            _ => Ok(taken),
        }
    }

    /// Takes completions up to `max`, and does what [`Cq::look`] has left to do.
    ///
    /// # Errors
    /// As [`Cq::poll`].
    pub fn take_held(
        &self,
        held: Held<'_>,
        looked: Looked,
        max: usize,
        out: impl FnMut(&Wc, u64),
    ) -> Result<usize, Errno> {
        self.take(held.engine, held.state, looked, max, out)
    }

    #[inline(always)]
    fn is_empty(&self, state: &State) -> bool {
        let cq = state.core.cqs.get(self.number);
        cq.is_none_or(|cq| cq.queue.is_empty())
    }

    fn take<G: DerefMut<Target = State>>(
        &self,
        engine: &Engine,
        mut state: G,
        looked: Looked,
        max: usize,
        mut out: impl FnMut(&Wc, u64),
    ) -> Result<usize, Errno> {
        let State { core, qps, .. } = &mut *state;
        let Core { cqs, outliving, .. } = core;
        let Some(cq) = cqs.get_mut(self.number) else {
            return Ok(0);
        };
        let mut taken = 0;
        while taken < max {
            // Not copied out of the queue: a copy of a copy is a store that loads wait for.
            let Some(cqe) = cq.queue.front() else {
                if cq.overrun && taken == 0 {
                    return Err(Errno(libc::EOVERFLOW));
                }
                break;
            };
            match (cqe.frees, qps.place_mut(cqe.wc.qp_num)) {
                (Frees::Send(places), Some(entry)) => entry.qp.release_send(places),
                (Frees::Receive, Some(entry)) => entry.qp.release_recv(),
                _ => outliving.remove(cqe.wc.qp_num),
            }
            out(&cqe.wc, cqe.timestamp);
            cq.queue.drop_front();
            taken += 1;
        }
        if cq.queue.is_empty() && !cq.overrun {
            cq.at.ready.store(false, Ordering::Relaxed);
        }
        state.unlooked += taken;
        if looked.minds || looked.yields || looked.serves {
            let (deadline, broker_requests) =
                (state.timers.next(), !state.broker_requests.is_empty());
            drop(state);
            looked.end(deadline, broker_requests, &self.shared);
            if looked.serves {
                self.shared.serve_others(engine);
            }
        }
        Ok(taken)
    }

    /// Asks for an event at the next completion (`ibv_req_notify_cq(3)`).
    ///
    /// # Errors
    /// EINVAL if it has been destroyed.
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), Errno> {
        let shared = &self.context.endpoint.shared;
        let (_, mut state) = self.lock();
        let cq = state
            .core
            .cqs
            .get_mut(self.number)
            .ok_or(Errno(libc::EINVAL))?;
        cq.armed = match (solicited_only, cq.armed) {
            // Arming for all is not narrowed by arming for solicited ones.
            (true, Armed::Any) => Armed::Any,
            (true, _) => Armed::Solicited,
            (false, _) => Armed::Any,
        };
        drop(state);
        if self.channel.as_ref().is_some_and(|c| c.queue.is_slept_on()) {
            shared.end_tick();
        }
        Ok(())
    }

    /// Acknowledges completion events (`ibv_ack_cq_events(3)`).
    pub fn ack_events(&self, n: u32) {
        *self.acked.lock() += u64::from(n);
        self.changed.notify_all();
    }

    /// Ends it (`ibv_destroy_cq(3)`). Waits until the events taken have been acknowledged.
    ///
    /// # Errors
    /// EBUSY while queue pairs use it.
    pub fn destroy(&self) -> Result<(), Errno> {
        let (_, mut state) = self.lock();
        let cq = state
            .core
            .cqs
            .get_mut(self.number)
            .ok_or(Errno(libc::EINVAL))?;
        if cq.users > 0 {
            return Err(Errno(libc::EBUSY));
        }
        cq.armed = Armed::No;
        let announced = cq.announced;
        state.core.remove_cq(self.number);
        drop(state);
        self.shared.cq_numbers.lock().remove(self.number);
        let cookie = self.cookie;
        let never_taken = match &self.channel {
            Some(channel) => channel.queue.remove(|event| *event == cookie),
            None => 0,
        };
        let taken = announced - never_taken as u64;
        let mut acked = self.acked.lock();
        while *acked < taken {
            self.changed.wait(&mut acked);
        }
        drop(acked);
        self.context.events.retire(EventSource::Cq(self.cookie));
        Ok(())
    }
}

/// What waits in a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Nothing: to be looked for ([`Cq::look`]).
    None,
    /// Completions: to be taken ([`Cq::take_plain`]).
    Some,
    /// Something out of the ordinary, that [`Cq::poll`] is to find.
    Unclear,
}

/// What came of it that a program has looked for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    /// There may be some.
    pub some: bool,
    /// Others may have to be woken for what was begun.
    pub(crate) minds: bool,
    /// Others had better go first.
    pub(crate) yields: bool,
    /// Engines that nobody serves are to be served.
    pub(crate) serves: bool,
}

impl Looked {
    /// Nothing came.
    pub const NONE: Looked = Looked {
        some: false,
        minds: false,
        yields: false,
        serves: false,
    };
    /// Something came or waited, and that was all.
    pub const SOME: Looked = Looked {
        some: true,
        ..Looked::NONE
    };

    /// Does what is left, without the lock.
    #[cold]
    #[inline(never)]
    fn end(self, deadline: Option<Instant>, broker_requests: bool, shared: &Shared) {
        if self.minds {
            shared.note_deadline(deadline, broker_requests);
        }
        if self.yields {
            std::thread::yield_now();
        }
    }
}

/// An engine's lock ([`Cq::hurry`]).
pub struct Held<'a> {
    engine: &'a Engine,
    state: Hurried<'a, State>,
}

impl Cq {
    /// Looks for more though there is some: until as much has come as the program has taken, or
    /// nothing comes. A look may bring a single datagram.
    #[cold]
    fn look_beside(&self, engine: &Engine, state: &mut State) {
        let now = Now::default();
        let waiting = |state: &State| {
            let cq = state.core.cqs.get(self.number);
            cq.map_or(usize::MAX, |cq| cq.queue.len())
        };
        let wanted = waiting(state).saturating_add(state.unlooked);
        let mut looks = state.unlooked.min(LOOKS_MOST);
        while looks > 0 && waiting(state) < wanted && state.progress(&now) {
            looks -= 1;
        }
        engine.note_activity(&now);
        state.unlooked = 0;
    }
}

impl Shared {
    /// Makes progress for engines that no thread seems to serve: a program that polls one of
    /// several queues need not wait for the helper with the others.
    #[cold]
    fn serve_others(&self, own: &Engine) {
        for other in self.engines.unserved(own) {
            // A thread that holds the lock makes progress itself.
            let Some(mut state) = other.state.try_lock() else {
                continue;
            };
            state.progress(&Now::default());
            let (deadline, broker_requests) =
                (state.timers.next(), !state.broker_requests.is_empty());
            drop(state);
            self.note_deadline(deadline, broker_requests);
        }
    }
}
