//! Completion queues and completion channels.

use std::ops::Deref;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use causeway_biased_lock::{BiasedGuard, hurry};
use causeway_cancel::Allowed;
use causeway_proto::Instant;
use causeway_proto::types::Wc;
use parking_lot::{Condvar, Mutex};

use crate::channel::{EventQueue, Handle};
use crate::clock::{self, Now};
use crate::completion_queue::{CompletionQueue, CqInit, Waiting};
use crate::context::Context;
use crate::engines::{Engine, LastSeen};
use crate::errno::Errno;
use crate::events::EventSource;
use crate::glance::{Glance, GlancedRing, Held};
use crate::limits::LIMITS;
use crate::shared::Shared;
use crate::state::State;

/// Looks of a poll that looks for more though there is some, at most.
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
    pub(crate) queue: Arc<CompletionQueue>,
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
        let shared = &self.endpoint.shared;
        let number = shared.cq_numbers.lock().insert(());
        let number = number.ok_or(Errno(libc::ENOMEM))?;
        let queue = Arc::new(CompletionQueue::new(CqInit {
            number,
            most: cqe as usize,
            channel: channel.map(|c| Arc::clone(&c.queue)),
            events: Arc::clone(&self.events),
            cookie,
            released: Arc::clone(&shared.common.released),
            outliving: Arc::clone(&shared.common.outliving),
        }));
        let (_, mut first) = shared.engines.lock_at(&queue.at);
        first.core.cqs.put(number, Arc::clone(&queue));
        drop(first);
        let context = Arc::clone(self);
        Ok(Arc::new(Cq::new(context, queue, cookie, channel.cloned())))
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
            .wait(&self.queue, None, allowed, || self.queue.pop())
    }

    /// As [`CompChannel::get_event`], for so long at most. Who waits here is woken by what arrives,
    /// not by the helper thread once that has been.
    ///
    /// # Errors
    /// As there; ETIMEDOUT.
    pub fn get_event_within(&self, most: Duration, allowed: Allowed) -> Result<usize, Errno> {
        let until = Some(clock::now() + most);
        self.context
            .endpoint
            .shared
            .wait(&self.queue, until, allowed, || self.queue.pop())
    }

    /// Makes the descriptor non-blocking, for who sleeps on it by calls of his own, such as
    /// `poll(2)`: once such a thread has asked for an event, the helper thread does not keep off
    /// the sources.
    ///
    /// # Errors
    /// Those of fcntl(2).
    pub fn set_nonblocking(&self) -> Result<(), Errno> {
        self.queue.set_nonblocking()
    }

    /// Has the helper thread call `handler` about events of its own progress, for who only passes
    /// on what arrives; it takes and arms as who sleeps on the descriptor would, which does not
    /// block. No lock of the device's is held, and nothing arrives meanwhile, so it may wait for
    /// nothing but those. What it leaves makes the descriptor readable, and so does its failure,
    /// until [`CompChannel::get_event`] has nothing to take: it may have taken the last event, and
    /// says by means of its own what it met. The former handler does not run any more when this
    /// returns: so a handler must not call this, nor anything that does, and neither may who holds
    /// what the handler waits for.
    pub fn set_handler(&self, handler: Option<Handle>) {
        self.queue.set_handler(handler);
    }

    /// Ends it (`ibv_destroy_comp_channel(3)`).
    ///
    /// # Errors
    /// EBUSY while completion queues use it.
    pub fn destroy(&self) -> Result<(), Errno> {
        let is_ours = |cq: &CompletionQueue| {
            let channel = cq.channel.as_ref();
            channel.is_some_and(|channel| Arc::ptr_eq(channel, &self.queue))
        };
        let mut used = false;
        self.context.endpoint.shared.engines.each(|_, state| {
            used |= state.core.cqs.iter().any(|(_, cq)| is_ours(cq));
        });
        if used {
            return Err(Errno(libc::EBUSY));
        }
        self.queue.set_handler(None);
        Ok(())
    }
}

impl Cq {
    pub(crate) fn new(
        context: Arc<Context>,
        queue: Arc<CompletionQueue>,
        cookie: usize,
        channel: Option<Arc<CompChannel>>,
    ) -> Self {
        let (acked, changed) = (Mutex::new(0), Condvar::new());
        Cq {
            seen: LastSeen::new(context.endpoint.shared.engines.first()),
            shared: Arc::clone(&context.endpoint.shared),
            context,
            queue,
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
        let (engine, state) = self.shared.engines.lock_at(&self.queue.at);
        self.seen.set(engine);
        (engine, state)
    }

    /// How many completions it holds.
    #[must_use]
    pub fn cqe(&self) -> u32 {
        u32::try_from(self.queue.most()).unwrap_or(u32::MAX)
    }

    /// Records the time of each completion from now on (`ibv_create_cq_ex(3)`).
    pub fn record_timestamps(&self) {
        self.queue.record_timestamps();
    }

    /// Changes how many it holds (`ibv_resize_cq(3)`).
    ///
    /// # Errors
    /// EINVAL for a bad size, or one smaller than what is queued.
    pub fn resize(&self, cqe: u32) -> Result<(), Errno> {
        if cqe == 0 || cqe > LIMITS.max_cqe {
            return Err(Errno(libc::EINVAL));
        }
        self.queue.resize(cqe as usize)
    }

    /// Takes up to `max` completions, oldest first, with their times in nanoseconds, and makes
    /// progress (`ibv_poll_cq(3)`).
    ///
    /// # Errors
    /// EOVERFLOW once the queue has overrun and what it held has been taken.
    pub fn poll(&self, max: usize, out: impl FnMut(&Wc, u64)) -> Result<usize, Errno> {
        // A program that waits for events is served in portions.
        let waits = self.channel.is_some();
        let queue = &*self.queue;
        match queue.waiting() {
            Waiting::None if !waits && self.engine().is_served(&queue.at) => Ok(0),
            Waiting::None => {
                let (engine, mut state) = self.lock();
                let looked = state.look(engine);
                queue.note_looked();
                queue.at.note_polled(engine.activity());
                self.take_after(engine, state, looked, max, out)
            }
            Waiting::Some => self.take(max, out),
            Waiting::Unclear if waits => {
                let unlooked = queue.unlooked();
                let taken = self.take(max, out);
                // Afterwards: what comes is announced, where the program has asked for that, and
                // its next poll takes it all.
                self.look_beside(unlooked, max);
                taken
            }
            Waiting::Unclear => {
                let unlooked = queue.unlooked();
                self.look_beside(unlooked, queue.len().saturating_add(unlooked));
                queue.take(max, out)
            }
        }
    }

    /// What a poll finds, without a look at anything else.
    #[inline(always)]
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        self.queue.waiting()
    }

    /// The engine's lock, if it is biased towards this thread: [`Cq::poll`] in pieces, the frequent
    /// ones of which call nothing. It is not to be held for anything else.
    #[inline(always)]
    pub fn hurry(&self) -> Option<Held<'_>> {
        hurry(self.engine()).map(Held)
    }

    /// Looks at what is likely to have something, where no completion waits: says what to call.
    #[inline(always)]
    #[must_use]
    pub fn glance(&self, held: &mut Held<'_>) -> Glance {
        held.0.glance()
    }

    /// Takes the message that [`Cq::glance`] has seen, and gives its completion, which goes before
    /// all that is in the queue, to `out`. Returns false where [`Cq::look`] must look. `WORD`: of
    /// [`Glance::Word`]; false where the same of all messages must look. Calls nothing then.
    ///
    /// # Safety
    /// [`Cq::glance`] has shown `ring` by means of `held`, with which nothing has been done since
    /// but what has returned false here or in [`Cq::take_ack`].
    #[inline(always)]
    #[must_use]
    pub unsafe fn take_message<const WORD: bool>(
        &self,
        held: &mut Held<'_>,
        ring: GlancedRing,
        out: impl FnOnce(&Wc),
    ) -> bool {
        // Of what a channel is armed for, it is told.
        match self.channel {
            Some(_) => false,
            // SAFETY: the caller's promise.
            None => unsafe { held.0.take_message_at_once::<WORD>(ring, &self.queue, out) },
        }
    }

    /// As [`Cq::take_message`], of an acknowledgment. `CALLS`: may call anything.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    #[must_use]
    pub unsafe fn take_ack<const CALLS: bool>(
        &self,
        held: &mut Held<'_>,
        ring: GlancedRing,
        out: impl FnOnce(&Wc),
    ) -> bool {
        match self.channel {
            Some(_) => false,
            // SAFETY: the caller's promise.
            None => unsafe { held.0.take_ack_at_once::<CALLS>(ring, &self.queue, out) },
        }
    }

    /// Makes progress, where no completion waits. The first that it finds may be written to `to`
    /// ([`Looked::FIRST`]): that one goes before all that is in the queue. `GLANCED`:
    /// [`Cq::glance`] has just said [`Glance::Nothing`].
    ///
    /// # Safety
    /// `to` may be written.
    #[inline(always)]
    pub unsafe fn look<const GLANCED: bool>(&self, held: &mut Held<'_>, to: *mut Wc) -> Looked {
        let engine = held.0.owner();
        let state = &mut *held.0;
        let queue = &*self.queue;
        queue.note_looked();
        // Of what a channel is armed for, it is told.
        if self.channel.is_none() {
            // SAFETY: the caller's promise; the look is closed below, under the same lock.
            unsafe { state.core.at_hand.open(queue.number, to) };
        }
        let looked = state.look_inlined::<GLANCED>(engine);
        looked.and(Looked::FIRST.only_if(state.core.at_hand.close()))
    }

    /// Takes completions that wait, up to `max`, one after the other until `out` returns false,
    /// which has taken nothing then. Returns how many: [`Cq::take`] may take others.
    #[inline(always)]
    pub fn take_plain(&self, max: usize, mut out: impl FnMut(&Wc) -> bool) -> usize {
        let mut newest = 0;
        let taken = self.queue.take_plain(max, |wc| {
            newest = wc.qp_num;
            out(wc)
        });
        // The helper leaves an active program alone.
        if taken > 0 && self.engine().note_call() {
            self.count_posts(newest);
        }
        taken
    }

    /// Counts what was posted to a queue pair: `causeway status` is to show it, also of a program
    /// that looks for nothing more. Where several threads share the engine, one looks in vain now
    /// and then, which does the same.
    #[cold]
    #[inline(never)]
    fn count_posts(&self, qpn: u32) {
        let Some(mut state) = self.engine().state.try_lock() else {
            return;
        };
        // What another thread posted may complete here while this one looks in vain.
        state.spin.end();
        if let Some(cell) = state.qps.place(qpn) {
            cell.counts.carry_over(&state.core.stats);
        }
    }

    /// Takes completions of any kind, up to `max`, without a look for more.
    ///
    /// # Errors
    /// As [`Cq::poll`].
    pub fn take(&self, max: usize, mut out: impl FnMut(&Wc, u64)) -> Result<usize, Errno> {
        let mut newest = 0;
        let taken = self.queue.take(max, |wc, time| {
            newest = wc.qp_num;
            out(wc, time);
        })?;
        let due = self.engine().note_call();
        // Who has taken all may look for nothing more.
        if taken > 0 && (due || !self.queue.is_ready()) {
            self.count_posts(newest);
        }
        Ok(taken)
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
        self.take_after(held.0.owner(), held.0, looked, max, out)
    }

    fn take_after<G: Deref<Target = State>>(
        &self,
        engine: &Engine,
        state: G,
        looked: Looked,
        max: usize,
        out: impl FnMut(&Wc, u64),
    ) -> Result<usize, Errno> {
        let leaves = looked.has(Looked::MINDS.and(Looked::YIELDS).and(Looked::SERVES));
        let (deadline, broker_requests) = match leaves {
            true => (state.timers.next(), !state.broker_requests.is_empty()),
            false => (None, false),
        };
        drop(state);
        let taken = self.queue.take(max, out);
        if leaves {
            looked.end(deadline, broker_requests, &self.shared);
            if looked.has(Looked::SERVES) {
                self.shared.serve_others(engine);
            }
        }
        taken
    }

    /// Asks for an event at the next completion (`ibv_req_notify_cq(3)`).
    ///
    /// # Errors
    /// EINVAL if it has been destroyed.
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), Errno> {
        self.queue.arm(solicited_only);
        if self.channel.as_ref().is_some_and(|c| c.queue.is_slept_on()) {
            self.shared.end_tick();
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
        if state.core.cqs.get(self.queue.number).is_none() {
            return Err(Errno(libc::EINVAL));
        }
        if self.queue.is_used() {
            return Err(Errno(libc::EBUSY));
        }
        let announced = self.queue.disarm();
        self.queue.discard();
        state.core.cqs.take(self.queue.number);
        drop(state);
        self.shared.cq_numbers.lock().remove(self.queue.number);
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

/// What came of it that a program has looked for completions. Bits of one byte: what is frequent is
/// told from all else by one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked(u8);

impl Looked {
    /// Nothing came.
    pub const NONE: Looked = Looked(0);
    /// Something came or waited: there may be completions. Alone: that was all.
    pub const SOME: Looked = Looked(1);
    /// The first completion was written where the poll wants it. Alone with [`Looked::SOME`]: that
    /// was all.
    pub const FIRST: Looked = Looked(1 << 1);
    /// Others may have to be woken for what was begun.
    pub(crate) const MINDS: Looked = Looked(1 << 2);
    /// Others had better go first.
    pub(crate) const YIELDS: Looked = Looked(1 << 3);
    /// Engines that nobody serves are to be served.
    pub(crate) const SERVES: Looked = Looked(1 << 4);

    /// This and that.
    #[inline(always)]
    #[must_use]
    pub const fn and(self, other: Looked) -> Looked {
        Looked(self.0 | other.0)
    }

    /// That, if it is so.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn only_if(self, so: bool) -> Looked {
        Looked(self.0 * so as u8)
    }

    /// Whether any of that is so.
    #[inline(always)]
    #[must_use]
    pub const fn has(self, any: Looked) -> bool {
        self.0 & any.0 != 0
    }

    /// Does what is left, without the lock.
    #[cold]
    #[inline(never)]
    fn end(self, deadline: Option<Instant>, broker_requests: bool, shared: &Shared) {
        if self.has(Looked::MINDS) {
            shared.note_deadline(deadline, broker_requests);
        }
        if self.has(Looked::YIELDS) {
            std::thread::yield_now();
        }
    }
}

impl Cq {
    /// Looks for more though there may be some: until `wanted` wait, or nothing comes. A look may
    /// bring a single datagram, so there are as many as completions were taken since the last.
    #[cold]
    fn look_beside(&self, unlooked: usize, wanted: usize) {
        let now = Now::default();
        let queue = &*self.queue;
        let mut looks = unlooked.min(LOOKS_MOST);
        let (engine, mut state) = self.lock();
        while looks > 0 && state.progress(&now) && queue.len() < wanted {
            looks -= 1;
        }
        engine.note_activity(&now);
        let (deadline, broker_requests) = (state.timers.next(), !state.broker_requests.is_empty());
        drop(state);
        queue.note_looked();
        queue.at.note_polled(engine.activity());
        self.shared.note_deadline(deadline, broker_requests);
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
