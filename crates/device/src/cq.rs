//! Completion queues and completion channels.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use causeway_cancel::Allowed;
use causeway_proto::types::Wc;
use parking_lot::{Condvar, Mutex};

use crate::channel::EventQueue;
use crate::clock::Now;
use crate::context::Context;
use crate::core::{Armed, Core, CqState, Frees};
use crate::endpoint::State;
use crate::errno::Errno;
use crate::events::EventSource;
use crate::limits::LIMITS;

/// A completion channel (`ibv_create_comp_channel(3)`).
pub struct CompChannel {
    pub(crate) context: Arc<Context>,
    pub(crate) queue: Arc<EventQueue<usize>>,
}

/// A completion queue (`ibv_create_cq(3)`).
pub struct Cq {
    context: Arc<Context>,
    pub(crate) number: u32,
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
        };
        let number = self.endpoint.shared.state.lock().core.cqs.insert(state);
        let number = number.ok_or(Errno(libc::ENOMEM))?;
        Ok(Arc::new(Cq::new(
            Arc::clone(self),
            number,
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
        let state = self.context.endpoint.shared.state.lock();
        let used = state.core.cqs.iter().any(|(_, cq)| {
            cq.channel
                .as_ref()
                .is_some_and(|c| Arc::ptr_eq(c, &self.queue))
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
        number: u32,
        cookie: usize,
        channel: Option<Arc<CompChannel>>,
    ) -> Self {
        let (acked, changed) = (Mutex::new(0), Condvar::new());
        Cq {
            context,
            number,
            cookie,
            channel,
            acked,
            changed,
        }
    }

    /// How many completions it holds.
    #[must_use]
    pub fn cqe(&self) -> u32 {
        let state = self.context.endpoint.shared.state.lock();
        let capacity = state.core.cqs.get(self.number).map_or(0, |cq| cq.capacity);
        u32::try_from(capacity).unwrap_or(u32::MAX)
    }

    /// Records the time of each completion from now on (`ibv_create_cq_ex(3)`).
    pub fn record_timestamps(&self) {
        let mut state = self.context.endpoint.shared.state.lock();
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
        let mut state = self.context.endpoint.shared.state.lock();
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
        let mut state = shared.state.lock();
        let empty = state
            .core
            .cqs
            .get(self.number)
            .is_none_or(|cq| cq.queue.is_empty());
        let mut spinning = false;
        if empty {
            let now = Now::default();
            if state.progress(&now) {
                state.spin.end();
            } else {
                spinning = state.spin.turn(&now);
                if state.awaits_reply() {
                    state.on_vain_poll(&now);
                }
            }
            shared.note_activity(&now);
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
        let (deadline, errands) = (state.timers.next(), !state.errands.is_empty());
        drop(state);
        shared.mind(deadline, errands);
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
        let mut state = shared.state.lock();
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
        let mut state = self.context.endpoint.shared.state.lock();
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

/// Calls for one reading of the clock, where nothing else needs it.
const CALLS_PER_TIME: u64 = 16;

impl crate::endpoint::Shared {
    /// The program makes progress itself: the helper may leave it alone.
    pub(crate) fn note_activity(&self, now: &Now) {
        // The clock costs as much as the rest of a fruitless poll: not every call reads it.
        if self.count_call().is_multiple_of(CALLS_PER_TIME) || now.known().is_some() {
            self.note_time(now);
        }
    }

    /// As [`Self::note_activity`], for who has no use for the time.
    #[inline(always)]
    pub(crate) fn note_call(&self) {
        if self.count_call().is_multiple_of(CALLS_PER_TIME) {
            self.note_time(&Now::default());
        }
    }

    /// Counts a call that made progress; how many there were before.
    #[inline(always)]
    fn count_call(&self) -> u64 {
        // Under the state lock, so no update is lost; a plain store spares the locked add.
        let before = self.activity.load(Ordering::Relaxed);
        self.activity
            .store(before.wrapping_add(1), Ordering::Relaxed);
        before
    }

    #[cold]
    #[inline(never)]
    fn note_time(&self, now: &Now) {
        self.last_call.store(now.get().0, Ordering::Relaxed);
    }
}
