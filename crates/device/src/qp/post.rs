//! Posting to a queue pair's send and receive queues.

use std::sync::atomic::Ordering;

use causeway_biased_lock::hurry;
use causeway_proto::qp::Qp as ProtoQp;
use causeway_proto::types::{RecvWr, SendWr, Sge};

use super::Qp;
use crate::clock::{Now, earlier};
use crate::core::Core;
use crate::endpoint::Shared;
use crate::engines::Engine;
use crate::errno::Errno;
use crate::qp_entry::{Link, QpEntry};
use crate::ring::{self, OneSided, Request, RingLink};
use crate::state::State;

impl Qp {
    /// Whether it is worth while to try the short way.
    #[inline(always)]
    #[must_use]
    pub fn may_be_short(&self) -> bool {
        self.by_ring.load(Ordering::Relaxed)
    }

    /// Carries out a WRITE or READ (`READ`) at once, the short way. Returns false, with nothing
    /// done, where it is to be posted as all others are.
    #[inline(always)]
    #[must_use]
    pub fn post_one_sided<const READ: bool>(&self, wr: &impl OneSided) -> bool {
        let engine = self.engine();
        match hurry(&engine.state) {
            Some(mut state) => state.post_one_sided::<READ>(self.qpn, wr, engine),
            None => self.lock_one_sided::<READ>(wr),
        }
    }

    /// As [`Qp::post_one_sided`], where the lock is not biased towards this thread.
    #[cold]
    #[inline(never)]
    fn lock_one_sided<const READ: bool>(&self, wr: &impl OneSided) -> bool {
        let (engine, mut state) = self.lock();
        state.post_one_sided::<READ>(self.qpn, wr, engine)
    }

    /// Posts a SEND and writes it at once, the short way. Returns false, with nothing done, where
    /// it is to be posted as all others are.
    #[inline(always)]
    #[must_use]
    pub fn post_two_sided(&self, wr: &impl Request) -> bool {
        let engine = self.engine();
        let Some(mut state) = hurry(&engine.state) else {
            return self.lock_two_sided(wr);
        };
        let owed = match state.post_two_sided(self.qpn, wr, engine) {
            None => return false,
            Some(owed) => owed,
        };
        drop(state);
        if owed {
            self.shared.note_unanswered(engine);
        }
        true
    }

    /// As [`Qp::post_two_sided`], where the lock is not biased towards this thread.
    #[cold]
    #[inline(never)]
    fn lock_two_sided(&self, wr: &impl Request) -> bool {
        let (engine, mut state) = self.lock();
        let posted = state.post_two_sided(self.qpn, wr, engine);
        drop(state);
        if posted == Some(true) {
            self.shared.note_unanswered(engine);
        }
        posted.is_some()
    }

    /// Posts sends in order, and starts them (`ibv_post_send(3)`). On an error those before it are
    /// posted.
    ///
    /// # Errors
    /// The index of the first that was not posted, and ENOMEM (full) or EINVAL.
    pub fn post_send_list(
        &self,
        wrs: impl Iterator<Item = Result<SendWr, Errno>>,
    ) -> Result<(), (usize, Errno)> {
        self.with_send_queue((0, Errno(libc::EINVAL)), |entry, core| {
            for (index, wr) in wrs.enumerate() {
                let posted = wr.and_then(|mut wr| Ok(entry.post_send(&mut wr, core)?));
                posted.map_err(|errno| (index, errno))?;
            }
            Ok(())
        })
    }

    /// Posts all of `wrs` or, on an error, none (`ibv_wr_complete`). Leaves `wrs` empty.
    ///
    /// # Errors
    /// ENOMEM where the queue has no room for all, EINVAL.
    pub fn post_send_batch(&self, wrs: &mut Vec<SendWr>) -> Result<(), Errno> {
        self.with_send_queue(Errno(libc::EINVAL), |entry, core| {
            entry.qp.check_sends(wrs)?;
            for mut wr in wrs.drain(..) {
                entry.post_send(&mut wr, core)?;
            }
            Ok(())
        })
    }

    /// Posts with `post`, and starts what it posted. `gone` is the error for a queue pair that has
    /// ended.
    fn with_send_queue<E>(
        &self,
        gone: E,
        post: impl FnOnce(&mut QpEntry, &mut Core) -> Result<(), E>,
    ) -> Result<(), E> {
        let shared = self.shared();
        let (engine, mut guard) = self.lock();
        let state = &mut *guard;
        let now = Now::default();
        let Some(entry) = state.qps.place_mut(self.qpn) else {
            return Err(gone);
        };
        entry.take_released(&state.core.released);
        let outcome = post(entry, &mut state.core);
        if let Link::Ring(ring) = &mut entry.link {
            ring.tell_posted(&state.core);
            self.by_ring.store(true, Ordering::Relaxed);
        }
        let unsent = entry.qp.has_unsent();
        let owed = !state.unanswered && entry.qp.has_sends();
        let idle = entry.hot && state.pending.is_empty();
        let sent = if unsent && entry.wants_segment() {
            shared.await_segment(&mut guard, self.qpn);
            false
        } else {
            idle && (!unsent || ring::transmit_short(entry, &mut state.core))
        };
        let state = &mut *guard;
        state.note_posted();
        if !sent {
            // Its acknowledgments are awaited now.
            state.set_hot(self.qpn);
            state.send_now(self.qpn, &now);
        }
        engine.note_activity(&now);
        // A thread that sleeps without a limit is to look at the peer now and then, from now on.
        state.unanswered |= owed;
        let look_at = owed.then_some(state.look_at);
        let deadline = earlier(state.timers.next(), look_at);
        let broker_requests = !state.broker_requests.is_empty();
        drop(guard);
        shared.note_deadline(deadline, broker_requests);
        outcome
    }

    /// Posts a receive of one range, the short way. Returns false, with nothing done, where it is
    /// to be posted as all others are.
    #[must_use]
    pub fn post_recv_range(&self, wr_id: u64, range: Sge) -> bool {
        self.put_recv_range(&mut self.lock().1, wr_id, range)
    }

    /// As [`Qp::post_recv_range`], and only if the lock is biased towards this thread. Calls
    /// nothing.
    #[inline(always)]
    #[must_use]
    pub fn hurry_recv_range(&self, wr_id: u64, range: Sge) -> bool {
        match hurry(&self.engine().state) {
            Some(mut state) => self.put_recv_range(&mut state, wr_id, range),
            None => false,
        }
    }

    #[inline(always)]
    fn put_recv_range(&self, state: &mut State, wr_id: u64, range: Sge) -> bool {
        let Some(entry) = state.qps.place_mut(self.qpn) else {
            return false;
        };
        if entry.qp.is_recv_full() {
            entry.take_released(&state.core.released);
        }
        entry.qp.post_recv_range(wr_id, range)
    }

    /// Posts receives in order (`ibv_post_recv(3)`). On an error those before it are posted.
    ///
    /// # Errors
    /// The index of the first that was not posted, and ENOMEM (full) or EINVAL.
    pub fn post_recv_list(
        &self,
        wrs: impl Iterator<Item = Result<RecvWr, Errno>>,
    ) -> Result<(), (usize, Errno)> {
        let (_, mut guard) = self.lock();
        let state = &mut *guard;
        let Some(entry) = state.qps.place_mut(self.qpn) else {
            return Err((0, Errno(libc::EINVAL)));
        };
        entry.take_released(&state.core.released);
        for (index, wr) in wrs.enumerate() {
            let posted = wr.and_then(|wr| Ok(entry.qp.post_recv(wr, &mut state.core)?));
            posted.map_err(|errno| (index, errno))?;
        }
        Ok(())
    }
}

impl State {
    /// What a request that goes the short way needs, where the queue pair has a ring whose peer's
    /// acknowledgments are polled for already, and nothing waits to be sent.
    #[inline(always)]
    fn short_way(&mut self, qpn: u32) -> Option<(&mut RingLink, &mut ProtoQp, &mut Core)> {
        let entry = self.qps.place_mut(qpn)?;
        if !entry.hot || !self.pending.is_empty() {
            return None;
        }
        if entry.qp.is_send_full() {
            entry.take_released(&self.core.released);
        }
        match &mut entry.link {
            Link::Ring(ring) => Some((ring, &mut entry.qp, &mut self.core)),
            _ => None,
        }
    }

    /// See [`Qp::post_one_sided`].
    #[inline(always)]
    fn post_one_sided<const READ: bool>(
        &mut self,
        qpn: u32,
        wr: &impl OneSided,
        engine: &Engine,
    ) -> bool {
        let Some((ring, qp, core)) = self.short_way(qpn) else {
            return false;
        };
        if !ring.post_one_sided::<READ>(qp, wr, core) {
            return false;
        }
        // It is complete at once, so nothing is left to do for it afterwards.
        self.note_posted();
        engine.note_call();
        true
    }

    /// See [`Qp::post_two_sided`]. Returns `None` where that is false, else whether
    /// [`Shared::note_unanswered`] is to follow.
    #[inline(always)]
    fn post_two_sided(&mut self, qpn: u32, wr: &impl Request, engine: &Engine) -> Option<bool> {
        let (ring, qp, core) = self.short_way(qpn)?;
        if !ring.post_plain(qp, wr, core) {
            return None;
        }
        ring.tell_one(core);
        self.note_posted();
        engine.note_call();
        Some(!std::mem::replace(&mut self.unanswered, true))
    }

    /// Something was posted: what it brings is looked for patiently.
    #[inline(always)]
    fn note_posted(&mut self) {
        self.fruitless = 0;
        self.spin.end();
    }
}

impl Shared {
    /// Something is unanswered that nothing was before: who sleeps without a limit is to look at
    /// the peer now and then, from now on.
    #[cold]
    #[inline(never)]
    fn note_unanswered(&self, engine: &Engine) {
        let state = engine.state.lock();
        let deadline = earlier(state.timers.next(), Some(state.look_at));
        let broker_requests = !state.broker_requests.is_empty();
        drop(state);
        self.note_deadline(deadline, broker_requests);
    }
}
