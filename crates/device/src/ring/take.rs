//! The short way of what has come on a ring: from the line that the peer wrote to the program's
//! memory and its completion queue, in one straight line.

use causeway_proto::host::Host;
use causeway_proto::qp::Qp;
use causeway_proto::ring::{LAST, is_enough, kind};
use causeway_proto::types::Wc;
use causeway_recover::copy;

use super::RingLink;
use crate::completion_queue::CompletionQueue;
use crate::copy::copy_short;
use crate::core::Core;

impl RingLink {
    /// Takes messages that have come, as [`Link::take_plain`] does, and completes them to `to`,
    /// where the queue pair's receives do. Returns false, with nothing
    /// taken, where [`RingLink::receive`] must look. `waited`: what is there came just now.
    ///
    /// [`Link::take_plain`]: causeway_proto::ring::Link::take_plain
    #[inline(always)]
    pub fn take_plain(
        &mut self,
        qp: &mut Qp,
        core: &mut Core,
        to: &CompletionQueue,
        waited: bool,
    ) -> bool {
        let mut taken = 0;
        while self.take_short(qp, core, to) || self.take_long(qp, core, to) {
            taken += 1;
            if waited || !self.is_ready() || is_enough(taken, core.has_enough()) {
                return true;
            }
        }
        self.take_others(qp, core, waited, taken)
    }

    /// Takes the rest of them, after so many that were taken in one go.
    #[inline(never)]
    fn take_others(&mut self, qp: &mut Qp, core: &mut Core, waited: bool, taken: usize) -> bool {
        let RingLink { link, memory, .. } = self;
        let mut bound = qp.bind(core);
        link.take_plain(memory, &mut bound, waited, taken)
    }

    /// Takes an acknowledgment that came without a record. Returns false, with nothing taken, where
    /// there is none, or [`RingLink::receive`] must look.
    #[inline(always)]
    pub fn take_acks(&mut self, qp: &mut Qp, core: &mut Core) -> bool {
        let RingLink { link, memory, .. } = self;
        let mut bound = qp.bind(core);
        link.take_ack_word(memory, &mut bound).unwrap_or(false)
    }

    /// Takes the next record for a poll of `to_cq`, which finds that empty, if it is a message that
    /// one line holds, and nothing is out of the ordinary. Returns its completion, before which
    /// none of this queue pair waits. `None`, with no more done than to take what the record
    /// acknowledges, where [`RingLink::take_plain`] must look.
    #[inline(always)]
    pub fn take_at_once(
        &mut self,
        qp: &mut Qp,
        core: &mut Core,
        to_cq: &CompletionQueue,
    ) -> Option<Wc> {
        let record = self.memory.ring.rx.peek_short(kind::MESSAGE, LAST)?;
        let (from, len, ack) = (record.as_ptr(), record.len, record.ack);
        let seq = record.seq;
        if self.link.is_news(ack) && !self.take_news(qp, core, (seq, ack)) {
            return None;
        }
        if !self.link.takes_next(seq) || to_cq.is_ready() {
            return None;
        }
        let (wr_id, range) = qp.takes_message(len)?;
        let (pd, range) = (|| qp.config().pd, (range.addr, len, range.lkey));
        let to = self.received.find(&core.mrs, pd, range, true).ok()?;
        // SAFETY: as in `take_short`.
        unsafe { copy_short(to as *mut u8, from, len as usize) }.ok()?;
        self.memory.ring.rx.consume_short_alone();
        core.count_received(len);
        self.link.took_message(&mut self.memory, &qp.bind(core));
        Some(qp.took_polled_message(wr_id, len))
    }

    /// Takes what the record of a message acknowledges. Returns whether that was all there is to
    /// do before the message.
    #[inline(never)]
    fn take_news(&mut self, qp: &mut Qp, core: &mut Core, (seq, ack): (u64, u64)) -> bool {
        let taken = self.link.takes_message(seq, ack, &mut qp.bind(core));
        if taken {
            self.memory.ring.note_req_ack(ack);
        }
        taken && !qp.has_unsent() && core.overrun.is_empty()
    }

    /// Takes the acknowledgment `upto`, which came without a record, where it completes one send
    /// and nothing is out of the ordinary. Gives the completion of that, before which none of this
    /// queue pair waits in `to_cq`, to `out`. Returns false, with nothing done, where
    /// [`RingLink::take_acks`] must look.
    #[inline(always)]
    pub fn take_ack_at_once(
        &mut self,
        qp: &mut Qp,
        core: &Core,
        to_cq: &CompletionQueue,
        upto: u64,
        out: impl FnOnce(&Wc),
    ) -> bool {
        if !self.link.is_plain() || to_cq.is_ready() {
            return false;
        }
        // What was never sent is acknowledged to no request.
        let Some(wc) = qp.one_acked(upto) else {
            return false;
        };
        core.count_sent(wc.byte_len);
        // Before all else, which needs the registers.
        out(&wc);
        qp.take_one_acked(upto);
        self.link.took_ack(upto);
        self.memory.ring.note_req_ack(upto);
        true
    }

    /// Takes the next record, if it is a message that one line holds, and nothing is out of the
    /// ordinary. Returns false, with no more done than to take what the record acknowledges, where
    /// [`RingLink::take_others`] must look.
    #[inline(always)]
    fn take_short(&mut self, qp: &mut Qp, core: &mut Core, to_cq: &CompletionQueue) -> bool {
        let Some(record) = self.memory.ring.rx.peek_short(kind::MESSAGE, LAST) else {
            return false;
        };
        let (from, len, ack) = (record.as_ptr(), record.len, record.ack);
        let Some((wr_id, to)) = self.place(qp, core, (record.seq, ack), len) else {
            return false;
        };
        // SAFETY: `to` is inside a registered region, which is writable; the record has so many
        // bytes, and stays mapped while the ring is borrowed. No reference covers either.
        if unsafe { copy_short(to, from, len as usize) }.is_err() {
            // Whose memory it was that is gone, the long way finds out.
            return false;
        }
        self.memory.ring.rx.consume_short(ack);
        self.took(qp, core, to_cq, (wr_id, len));
        true
    }

    /// As [`RingLink::take_short`], of a message that takes several lines.
    #[inline(never)]
    fn take_long(&mut self, qp: &mut Qp, core: &mut Core, to_cq: &CompletionQueue) -> bool {
        let Some(record) = self.memory.ring.rx.peek_long(kind::MESSAGE, LAST) else {
            return false;
        };
        let (from, len, ack) = (record.as_ptr(), record.len(), record.ack);
        let Some((wr_id, to)) = self.place(qp, core, (record.seq, ack), len as u32) else {
            return false;
        };
        // SAFETY: as in `take_short`.
        if unsafe { copy(to, from, len) }.is_err() {
            return false;
        }
        self.memory.ring.rx.consume_long(ack, len);
        self.took(qp, core, to_cq, (wr_id, len as u32));
        true
    }

    /// Takes what a record acknowledges. The receive that its message, request `seq` of `len`
    /// bytes, can be placed into at once: its name, and where its memory is.
    #[inline(always)]
    fn place(
        &mut self,
        qp: &mut Qp,
        core: &mut Core,
        (seq, ack): (u64, u64),
        len: u32,
    ) -> Option<(u64, *mut u8)> {
        if !self.link.takes_message(seq, ack, &mut qp.bind(core)) || core.is_sated() {
            return None;
        }
        let (wr_id, range) = qp.takes_message(len)?;
        let (pd, range) = (|| qp.config().pd, (range.addr, len, range.lkey));
        let at = self.received.find(&core.mrs, pd, range, true).ok()?;
        Some((wr_id, at as *mut u8))
    }

    /// A message was placed, and its record given back.
    #[inline(always)]
    fn took(
        &mut self,
        qp: &mut Qp,
        core: &mut Core,
        to: &CompletionQueue,
        (wr_id, len): (u64, u32),
    ) {
        let wc = qp.took_message(wr_id, len);
        core.complete_message(to, wc);
        self.link.took_message(&mut self.memory, &qp.bind(core));
    }
}
