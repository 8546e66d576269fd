//! Posting to a queue pair's send and receive queues.

use std::sync::atomic::Ordering;

use causeway_biased_lock::{BiasedGuard, hurry};
use causeway_proto::qp::{AtOnce, Qp as ProtoQp};
use causeway_proto::types::{Payload, RecvWr, SendOp, SendWr, Sge, WcStatus};

use super::Qp;
use crate::clock::{Now, earlier};
use crate::core::Core;
use crate::errno::Errno;
use crate::poster::Poster;
use crate::qp_entry::{Link, QpEntry};
use crate::request::{Atomic, OneSided, Request};
use crate::ring::{Posted, RingLink, Sent};
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
    pub fn post_one_sided<const READ: bool>(&self, wr: impl OneSided) -> bool {
        let Some(mut entry) = hurry(&self.cell.entry) else {
            return self.lock_one_sided::<READ>(wr);
        };
        let posted = match entry.post_one_sided::<READ>(&wr) {
            Posted::Declined => entry.post_one_sided_again::<READ>(&wr),
            posted => posted,
        };
        if posted == Posted::Declined {
            return false;
        }
        let overran = posted == Posted::Completed && entry.poster.overran;
        drop(entry);
        self.engine().note_posted();
        if overran {
            self.fail_overrun();
        }
        true
    }

    /// Carries out a WRITE of one word that asks for no completion at once, if the lock is biased
    /// towards this thread. Returns false, with nothing done, where [`Qp::post_one_sided`] must
    /// look. Calls nothing.
    #[inline(always)]
    #[must_use]
    pub fn hurry_write(&self, wr: &impl OneSided) -> bool {
        let Some(mut entry) = hurry(&self.cell.entry) else {
            return false;
        };
        let done = match entry.short_way() {
            Some((ring, qp, poster)) => ring.write_word_silently(qp, wr, poster),
            None => false,
        };
        drop(entry);
        if done {
            self.engine().note_posted();
        }
        done
    }

    /// As [`Qp::post_one_sided`], where the lock is not biased towards this thread.
    #[cold]
    #[inline(never)]
    fn lock_one_sided<const READ: bool>(&self, wr: impl OneSided) -> bool {
        let mut entry = self.cell.entry.lock();
        entry.release_if_full();
        let posted = entry.post_one_sided::<READ>(&wr);
        let overran = entry.poster.overran;
        drop(entry);
        if overran {
            self.fail_overrun();
        }
        posted != Posted::Declined
    }

    /// Carries out an atomic at once, the short way. Returns false, with nothing done, where it is
    /// to be posted as all others are.
    #[inline]
    #[must_use]
    pub fn post_atomic(&self, wr: &impl Atomic) -> bool {
        let mut entry = self.cell.entry.lock();
        entry.release_if_full();
        let outcome = entry.post_atomic(wr);
        let overran = entry.poster.overran;
        drop(entry);
        match outcome {
            AtOnce::Done => self.engine().note_posted(),
            AtOnce::Declined => return false,
            AtOnce::Failed(status) => self.post_failed(wr, status),
        }
        if overran {
            self.fail_overrun();
        }
        true
    }

    /// An atomic has failed as it was posted.
    #[cold]
    #[inline(never)]
    fn post_failed(&self, wr: &impl Atomic, status: WcStatus) {
        let (addr, rkey) = (wr.remote_addr(), wr.rkey());
        let range = Sge {
            addr: wr.addr(),
            length: wr.length(),
            lkey: wr.lkey(),
        };
        let wr = SendWr {
            wr_id: wr.wr_id(),
            op: SendOp::atomic_at(wr.op(), addr, rkey),
            flags: wr.flags(),
            payload: Payload::Sges([range].into_iter().collect()),
        };
        // It was accepted a moment ago. Where the queue pair is gone since, so is the request.
        let _ = self.with_send_queue((), |entry, core| {
            entry.post_failed(wr, status, core).map_err(|_| ())
        });
    }

    /// Posts a SEND and writes it at once, the short way. Returns false, with nothing done, where
    /// it is to be posted as all others are.
    #[inline(always)]
    #[must_use]
    pub fn post_two_sided(&self, wr: impl Request) -> bool {
        let Some(mut entry) = hurry(&self.cell.entry) else {
            return self.lock_two_sided(wr);
        };
        if !entry.post_two_sided(&wr) && !entry.post_two_sided_again(&wr) {
            return false;
        }
        drop(entry);
        let engine = self.engine();
        engine.note_posted();
        if !engine.has_unanswered() {
            self.note_unanswered();
        }
        true
    }

    /// Posts a SEND of one word and writes it at once, if the lock is biased towards this thread.
    /// Returns false, with nothing done, where [`Qp::post_two_sided`] must look. Calls nothing,
    /// where the peer polls.
    #[inline(always)]
    #[must_use]
    pub fn hurry_send(&self, wr: &impl Request) -> bool {
        let Some(mut entry) = hurry(&self.cell.entry) else {
            return false;
        };
        let sent = match entry.short_way() {
            Some((ring, qp, poster)) => ring.send_word(qp, wr, poster),
            None => Sent::Declined,
        };
        // Each has an end of its own, or what was decided would be kept, and looked at again.
        match sent {
            Sent::Declined => {
                drop(entry);
                return false;
            }
            Sent::Told => drop(entry),
            Sent::Untold => {
                drop(entry);
                self.engine().note_posted();
                self.finish_send(Sent::Untold);
                return true;
            }
        }
        let engine = self.engine();
        engine.note_posted();
        if !engine.has_unanswered() {
            self.finish_send(Sent::Told);
        }
        true
    }

    /// What [`Qp::hurry_send`] leaves. The lock was free since: where the queue pair has no ring
    /// any more, another thread has reset it, which discards what it has sent.
    #[cold]
    #[inline(never)]
    fn finish_send(&self, sent: Sent) {
        if sent == Sent::Untold {
            let mut entry = self.cell.entry.lock();
            let QpEntry { link, poster, .. } = &mut *entry;
            if let Link::Ring(ring) = link {
                ring.tell_one(&poster.counts);
            }
        }
        if !self.engine().has_unanswered() {
            self.note_unanswered();
        }
    }

    /// As [`Qp::post_two_sided`], where the lock is not biased towards this thread.
    #[cold]
    #[inline(never)]
    fn lock_two_sided(&self, wr: impl Request) -> bool {
        let mut entry = self.cell.entry.lock();
        entry.release_if_full();
        let posted = entry.post_two_sided(&wr);
        drop(entry);
        if posted && !self.engine().has_unanswered() {
            self.note_unanswered();
        }
        posted
    }

    /// Something is unanswered that nothing was before: who sleeps without a limit is to look at
    /// the peer now and then, from now on.
    #[cold]
    #[inline(never)]
    fn note_unanswered(&self) {
        let (_, state) = self.lock();
        self.end_post(state, true);
    }

    /// What was posted has completed where there was no room: the queue pairs that complete there
    /// fail.
    #[cold]
    #[inline(never)]
    fn fail_overrun(&self) {
        let (_, mut state) = self.lock();
        if let Some(mut entry) = state.qps.lock(self.qpn) {
            entry.poster.overran = false;
        }
        state.core.overrun.push(self.send_cq.queue.number);
        let now = Now::default();
        state.fail_users();
        state.flush_pending(&now);
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
        let Some(mut held) = state.qps.lock(self.qpn) else {
            return Err(gone);
        };
        let entry = &mut *held;
        entry.take_released();
        let outcome = post(entry, &mut state.core);
        match &mut entry.link {
            Link::Ring(ring) => {
                ring.tell_posted(&state.core);
                self.by_ring.store(true, Ordering::Relaxed);
            }
            Link::Udp(_) => self.note_way(&entry.qp),
            _ => {}
        }
        let unsent = entry.qp.has_unsent();
        let owed = !state.unanswered.load(Ordering::Relaxed) && entry.qp.has_sends();
        let idle = entry.hot && state.pending.is_empty();
        let sent = if unsent && entry.wants_segment() {
            drop(held);
            shared.await_segment(&mut guard, self.qpn);
            false
        } else {
            let sent = idle && (!unsent || entry.transmit_short(&mut state.core));
            drop(held);
            sent
        };
        let state = &mut *guard;
        state.note_posted();
        if !sent {
            // Its acknowledgments are awaited now.
            state.set_hot(self.qpn);
            state.send_now(self.qpn, &now);
        }
        engine.note_activity(&now);
        self.end_post(guard, owed);
        outcome
    }

    /// Gives the engine's lock back after a post. `owed`: since then some peer owes an answer, so a
    /// thread that sleeps without a limit is to look at it now and then.
    #[inline(always)]
    pub(super) fn end_post(&self, state: BiasedGuard<'_, State>, owed: bool) {
        if owed {
            state.unanswered.store(true, Ordering::Relaxed);
        }
        let look_at = owed.then_some(state.look_at);
        let deadline = earlier(state.timers.next(), look_at);
        let broker_requests = !state.broker_requests.is_empty();
        drop(state);
        self.shared.note_deadline(deadline, broker_requests);
    }

    /// Posts a receive of one range, the short way. Returns false, with nothing done, where it is
    /// to be posted as all others are.
    #[must_use]
    pub fn post_recv_range(&self, wr_id: u64, range: Sge) -> bool {
        self.cell.entry.lock().post_recv_range(wr_id, range)
    }

    /// As [`Qp::post_recv_range`], and only if the lock is biased towards this thread. Calls
    /// nothing.
    #[inline(always)]
    #[must_use]
    pub fn hurry_recv_range(&self, wr_id: u64, range: Sge) -> bool {
        match hurry(&self.cell.entry) {
            Some(mut entry) => entry.post_recv_range(wr_id, range),
            None => false,
        }
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
        let Some(mut entry) = state.qps.lock(self.qpn) else {
            return Err((0, Errno(libc::EINVAL)));
        };
        entry.take_released();
        for (index, wr) in wrs.enumerate() {
            let posted = wr.and_then(|wr| Ok(entry.qp.post_recv(wr, &mut state.core)?));
            posted.map_err(|errno| (index, errno))?;
        }
        Ok(())
    }
}

impl QpEntry {
    /// What a request that goes the short way needs, where the queue pair has a ring whose peer's
    /// acknowledgments are polled for already.
    #[inline(always)]
    fn short_way(&mut self) -> Option<(&mut RingLink, &mut ProtoQp, &mut Poster)> {
        if !self.hot {
            return None;
        }
        match &mut self.link {
            Link::Ring(ring) => Some((ring, &mut self.qp, &mut self.poster)),
            _ => None,
        }
    }

    /// See [`Qp::post_one_sided`]. It is complete at once, so nothing is left to do for it
    /// afterwards.
    #[inline(always)]
    fn post_one_sided<const READ: bool>(&mut self, wr: &impl OneSided) -> Posted {
        match self.short_way() {
            Some((ring, qp, poster)) => ring.post_one_sided::<READ>(qp, wr, poster),
            None => Posted::Declined,
        }
    }

    /// Makes room in a send queue that is full, if polls have made some. Returns whether it has
    /// looked: what was declined may go the short way now.
    #[inline]
    fn release_if_full(&mut self) -> bool {
        let full = self.qp.is_send_full();
        if full {
            self.take_released();
        }
        full
    }

    /// As [`QpEntry::post_one_sided`], of a request that it has declined: the send queue may have
    /// been full. Looked at only here, since that itself looks too.
    #[inline(never)]
    fn post_one_sided_again<const READ: bool>(&mut self, wr: &impl OneSided) -> Posted {
        match self.release_if_full() {
            true => self.post_one_sided::<READ>(wr),
            false => Posted::Declined,
        }
    }

    /// As [`QpEntry::post_one_sided_again`], of a SEND.
    #[inline(never)]
    fn post_two_sided_again(&mut self, wr: &impl Request) -> bool {
        self.release_if_full() && self.post_two_sided(wr)
    }

    /// See [`Qp::post_atomic`].
    #[inline]
    fn post_atomic(&mut self, wr: &impl Atomic) -> AtOnce {
        match self.short_way() {
            Some((ring, qp, poster)) => ring.post_atomic(qp, wr, poster),
            None => AtOnce::Declined,
        }
    }

    /// See [`Qp::post_two_sided`].
    #[inline(always)]
    fn post_two_sided(&mut self, wr: &impl Request) -> bool {
        let Some((ring, qp, poster)) = self.short_way() else {
            return false;
        };
        let posted = ring.post_plain(qp, wr, &poster.mrs);
        if posted {
            ring.tell_one(&poster.counts);
        }
        posted
    }

    /// See [`RingLink::transmit_short`].
    #[inline]
    fn transmit_short(&mut self, core: &mut Core) -> bool {
        self.ring()
            .is_some_and(|(qp, ring)| ring.transmit_short(qp, core))
    }

    /// See [`Qp::post_recv_range`].
    #[inline(always)]
    fn post_recv_range(&mut self, wr_id: u64, range: Sge) -> bool {
        // The gate of most is the length of the queue.
        if !self.qp.takes_recv_range() && self.qp.is_recv_full() {
            self.take_released();
        }
        self.qp.post_recv_range(wr_id, range)
    }
}

impl State {
    /// Something was posted: what it brings is looked for patiently.
    #[inline(always)]
    pub fn note_posted(&mut self) {
        self.fruitless = 0;
        self.spin.end();
    }
}
