//! Completion queues and completion channels.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use causeway_cancel::Allowed;
use causeway_favour::FavouredGuard;
use causeway_proto::types::Wc;
use parking_lot::{Condvar, Mutex};

use crate::at::At;
use crate::channel::EventQueue;
use crate::clock::Now;
use crate::context::Context;
use crate::core::{Armed, Core, CqState, Frees};
use crate::endpoint::Shared;
use crate::engines::Engine;
use crate::errno::Errno;
use crate::events::EventSource;
use crate::limits::LIMITS;
use crate::state::State;

/// Polls in vain for one look at engines that nobody serves.
const POLLS_PER_LOOK_ELSEWHERE: u32 = 64;

/// Completions taken after which a poll looks for more though there are some. What a program posts
/// may complete at once (datagrams, WRITEs straight into a peer's memory): its queue may never be
/// empty, and what others send to it has to be found all the same.
const LOOK_AFTER: usize = 64;
/// Looks of one such poll at most.
const LOOKS_MOST: usize = 16;

/// A completion channel (`ibv_create_comp_channel(3)`).
pub struct CompChannel {
    pub(crate) context: Arc<Context>,
    pub(crate) queue: Arc<EventQueue<usize>>,
}

/// A completion queue (`ibv_create_cq(3)`).
pub struct Cq {
    context: Arc<Context>,
    pub(crate) number: u32,
    /// Where its state is.
    pub(crate) at: Arc<At>,
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
            queue: std::collections::VecDeque::new(),
            capacity: cqe as usize,
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
            context,
            number,
            at,
            cookie,
            channel,
            acked,
            changed,
        }
    }

    /// Its engine, and the engine's state.
    #[inline(always)]
    fn lock(&self) -> (&Engine, FavouredGuard<'_, State>) {
        self.context.endpoint.shared.engines.lock_at(&self.at)
    }

    /// How many completions it holds.
    #[must_use]
    pub fn cqe(&self) -> u32 {
        let (_, state) = self.lock();
        let capacity = state.core.cqs.get(self.number).map_or(0, |cq| cq.capacity);
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
        cq.capacity = cqe as usize;
        Ok(())
    }

    /// Takes up to `max` completions, oldest first, with their times in nanoseconds, and makes
    /// progress (`ibv_poll_cq(3)`).
    ///
    /// # Errors
    /// EOVERFLOW once the queue has overrun and what it held has been taken.
    pub fn poll(&self, max: usize, mut out: impl FnMut(&Wc, u64)) -> Result<usize, Errno> {
        let shared = &self.context.endpoint.shared;
        if shared.engines.get(self.at.get()).is_served(&self.at) {
            return Ok(0);
        }
        let (engine, mut state) = self.lock();
        let empty = state
            .core
            .cqs
            .get(self.number)
            .is_none_or(|cq| cq.queue.is_empty());
        let (mut spinning, mut elsewhere) = (false, false);
        if !empty && state.unlooked >= LOOK_AFTER {
            engine.look_beside(&mut state);
        }
        if empty {
            state.unlooked = 0;
            let now = Now::default();
            state.crowded = engine.is_crowded();
            if state.progress(&now) {
                state.spin.end();
            } else {
                spinning = state.spin.turn(&now);
                state.vain_polls = state.vain_polls.wrapping_add(1);
                elsewhere = state.vain_polls.is_multiple_of(POLLS_PER_LOOK_ELSEWHERE);
                if state.awaits_reply() {
                    state.on_vain_poll(&now);
                }
            }
            engine.note_activity(&now);
            self.at.note_polled(engine.activity());
        }
        let mut taken = 0;
        let State { core, qps, .. } = &mut *state;
        let Core { cqs, outliving, .. } = core;
        let Some(cq) = cqs.get_mut(self.number) else {
            return Ok(0);
        };
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
            cq.queue.pop_front();
            taken += 1;
        }
        if cq.queue.is_empty() && !cq.overrun {
            cq.at.ready.store(false, Ordering::Relaxed);
        }
        state.unlooked += taken;
        let (deadline, errands) = (state.timers.next(), !state.errands.is_empty());
        drop(state);
        shared.mind(deadline, errands);
        if elsewhere {
            shared.serve_others(engine);
        }
        if spinning {
            std::thread::yield_now();
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
        let shared = &self.context.endpoint.shared;
        shared.cq_numbers.lock().remove(self.number);
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

impl Engine {
    /// Looks for more though there is some: as often as the program has taken portions meanwhile.
    #[cold]
    fn look_beside(&self, state: &mut State) {
        let now = Now::default();
        let looks = (state.unlooked / LOOK_AFTER).min(LOOKS_MOST);
        let _ = (0..looks).all(|_| state.progress(&now));
        self.note_activity(&now);
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
            let (deadline, errands) = (state.timers.next(), !state.errands.is_empty());
            drop(state);
            self.mind(deadline, errands);
        }
    }
}
