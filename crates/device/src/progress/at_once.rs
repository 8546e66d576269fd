//! The shortest way of progress: one message of one line, or the acknowledgment of one send, from
//! the ring that is likely to have it to the program that polls, where nothing is out of the
//! ordinary. Nothing else is looked at, but in every so many passes.

use causeway_biased_lock::hurry;
use causeway_proto::types::Wc;
use causeway_shm::ring::{Probe, Seen};

use super::short::PASSES_PER_LONG_ONE;
use crate::completion_queue::CompletionQueue;
use crate::core::Core;
use crate::glance::{Glance, GlancedRing};
use crate::qp_entry::{Link, QpEntry};
use crate::state::State;

impl State {
    /// Looks at the ring that is likely to have something, and changes nothing.
    #[inline(always)]
    pub fn glance(&mut self) -> Glance {
        if self.is_long_pass() {
            return Glance::All;
        }
        let Some(hot) = self.hot.get_mut(self.first_ring) else {
            return Glance::All;
        };
        let ring = GlancedRing::of(hot);
        match hot.probe.glance() {
            Seen::Record if hot.probe.has_word() => Glance::Word(ring),
            Seen::Record => Glance::Record(ring),
            Seen::Ack => Glance::Ack(ring),
            Seen::Nothing if self.has_one_to_settle() => Glance::Ack(ring),
            Seen::Nothing => Glance::Nothing,
        }
    }

    /// Whether the next pass may take the long way.
    #[inline(always)]
    pub(super) fn is_long_pass(&self) -> bool {
        self.turn.is_multiple_of(PASSES_PER_LONG_ONE)
    }

    /// Whether one peer is to be told what has been taken, and other rings are polled beside that
    /// one: with a single ring the program is likely to answer.
    #[inline(always)]
    fn has_one_to_settle(&self) -> bool {
        self.unsettled.len() == 1 && self.hot.len() > 1
    }

    /// Takes a message that [`State::glance`] has seen, for a poll of `cq`, which finds that empty.
    /// Gives its completion to `out`; false where [`State::look`] must look. `WORD`: one that
    /// [`Glance::Word`] spoke of, by a way that calls nothing; false where that of all messages
    /// must look.
    ///
    /// # Safety
    /// [`State::glance`] has shown `ring`, and no ring was added to the list or removed since.
    #[inline(always)]
    pub unsafe fn take_message_at_once<const WORD: bool>(
        &mut self,
        ring: GlancedRing,
        cq: &CompletionQueue,
        out: impl FnOnce(&Wc),
    ) -> bool {
        let State {
            core, unsettled, ..
        } = self;
        // SAFETY: where it was, as the caller promises; the list is not looked at meanwhile.
        let hot = unsafe { ring.get() };
        let Some(mut entry) = hurry(&hot.cell.entry) else {
            return false;
        };
        let taken = entry.take_message_at_once::<WORD>(&mut hot.probe, core, unsettled, cq);
        // At once, since it is in registers now.
        let Some(wc) = taken else { return false };
        out(&wc);
        drop(entry);
        self.end_pass();
        true
    }

    /// Takes an acknowledgment, as [`State::take_message_at_once`] takes a message, after telling
    /// the one peer that is to be told. `CALLS`: whether it may call anything; where it may not,
    /// false says that the same which may must look.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn take_ack_at_once<const CALLS: bool>(
        &mut self,
        ring: GlancedRing,
        cq: &CompletionQueue,
        out: impl FnOnce(&Wc),
    ) -> bool {
        if self.has_one_to_settle() {
            match CALLS {
                true => self.settle(1),
                false if self.settle_at_once() => {}
                false => return false,
            }
        }
        let core = &self.core;
        // SAFETY: where it was, as the caller promises: to tell a peer changes no list of rings,
        // and this one is not looked at meanwhile.
        let hot = unsafe { ring.get() };
        let Some(upto) = hot.probe.news() else {
            return false;
        };
        let Some(mut entry) = hurry(&hot.cell.entry) else {
            return false;
        };
        if !entry.take_ack_at_once(core, cq, upto, out) {
            return false;
        }
        drop(entry);
        hot.probe.note_ack(upto);
        self.end_pass();
        true
    }

    /// Tells the one peer that is to be told, if it looks by itself.
    #[inline(always)]
    fn settle_at_once(&mut self) -> bool {
        let settled = match self.unsettled.as_slice() {
            &[qpn] => self
                .qps
                .hurry(qpn)
                .is_some_and(|mut entry| entry.settle_at_once()),
            _ => false,
        };
        if settled {
            self.unsettled.clear();
        }
        settled
    }

    /// A pass has found something. The next begins with the ring behind.
    #[inline(always)]
    fn end_pass(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        let next = self.first_ring + 1;
        self.first_ring = match next < self.hot.len() {
            true => next,
            false => 0,
        };
        self.note_posted();
    }
}

impl QpEntry {
    /// See [`State::take_message_at_once`].
    #[inline(always)]
    fn take_message_at_once<const WORD: bool>(
        &mut self,
        probe: &mut Probe,
        core: &mut Core,
        unsettled: &mut Vec<u32>,
        cq: &CompletionQueue,
    ) -> Option<Wc> {
        let Link::Ring(ring) = &mut self.link else {
            return None;
        };
        if !std::ptr::eq(&raw const *self.poster.recv_cq, cq) {
            return None;
        }
        if WORD {
            // Before, where nothing has to grow: a peer that is told nothing new is not woken.
            if !self.unsettled {
                if unsettled.len() >= unsettled.capacity() {
                    return None;
                }
                unsettled.push(self.qp.qpn());
                self.unsettled = true;
            }
            let wc = ring.take_word_at_once(&mut self.qp, core, cq)?;
            ring.renew(probe);
            return Some(wc);
        }
        let acked = ring.acked();
        let wc = ring.take_at_once(&mut self.qp, core, cq)?;
        ring.renew(probe);
        probe.note_calm(ring.acked() == acked);
        if ring.is_unsettled() && !std::mem::replace(&mut self.unsettled, true) {
            unsettled.push(self.qp.qpn());
        }
        Some(wc)
    }

    /// See [`State::take_ack_at_once`].
    #[inline(always)]
    fn take_ack_at_once(
        &mut self,
        core: &Core,
        cq: &CompletionQueue,
        upto: u64,
        out: impl FnOnce(&Wc),
    ) -> bool {
        let Link::Ring(ring) = &mut self.link else {
            return false;
        };
        if !std::ptr::eq(&raw const *self.poster.send_cq, cq) {
            return false;
        }
        ring.take_ack_at_once(&mut self.qp, core, cq, upto, out)
    }
}
