//! The short way of what has come on a ring: from the line that the peer wrote to the program's
//! memory and its completion queue, in one straight line.

use causeway_proto::host::Host;
use causeway_proto::qp::Qp;
use causeway_proto::ring::{LAST, is_enough, kind};

use super::RingLink;
use crate::copy::copy_short;
use crate::core::Core;

impl RingLink {
    /// Takes messages that have come, as [`Link::take_plain`] does. Returns false, with nothing
    /// taken, where [`RingLink::receive`] must look. `waited`: what is there came just now.
    ///
    /// [`Link::take_plain`]: causeway_proto::ring::Link::take_plain
    #[inline(always)]
    pub fn take_plain(&mut self, qp: &mut Qp, core: &mut Core, waited: bool) -> bool {
        let mut taken = 0;
        while self.take_short(qp, core) {
            taken += 1;
            if waited || is_enough(taken, core.has_enough()) || !self.is_ready() {
                return true;
            }
        }
        self.take_others(qp, core, waited, taken)
    }

    /// Takes the rest of them, after so many that one line held.
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

    /// Takes the next record, if it is a message that one line holds, and nothing is out of the
    /// ordinary. Returns false, with no more done than to take what the record acknowledges, where
    /// [`RingLink::take_others`] must look.
    #[inline(always)]
    fn take_short(&mut self, qp: &mut Qp, core: &mut Core) -> bool {
        let RingLink {
            link,
            memory,
            received,
            ..
        } = self;
        let Some(record) = memory.ring.rx.peek_short(kind::MESSAGE, LAST) else {
            return false;
        };
        let (ack, len) = (record.ack, record.len);
        if !link.takes_message(record.seq, ack, &mut qp.bind(core)) || core.is_sated() {
            return false;
        }
        let Some((wr_id, range)) = qp.takes_message(len) else {
            return false;
        };
        let pd = qp.config().pd;
        let Ok(at) = received.find(&core.mrs, (pd, range.lkey), (range.addr, len), true) else {
            return false;
        };
        // SAFETY: `at` is inside a registered region, which is writable; the record has so many
        // bytes, and stays mapped while the ring is borrowed. No reference covers either.
        if unsafe { copy_short(at as *mut u8, record.as_ptr(), len as usize) }.is_err() {
            // Whose memory it was that is gone, the long way finds out.
            return false;
        }
        memory.ring.rx.consume_short(ack);
        qp.took_message(core, wr_id, len);
        link.took_message(memory, &qp.bind(core));
        true
    }
}
