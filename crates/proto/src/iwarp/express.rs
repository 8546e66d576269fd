//! Requests that were sent as they were posted ([`crate::express`]).

use smallvec::{SmallVec, smallvec};

use super::{Iwarp, Queues, Wqe};
use crate::transport::{Content, Express};
use crate::types::{Payload, SendFlags, SendOp, SendWr};
use crate::unit::Unit;
use crate::work::{INLINE_WORDS, PLAIN_INLINE, PlainPayload, PlainSend};

impl Iwarp {
    /// Whether a SEND or WRITE of one range can be posted and sent at once: it has no options,
    /// there is room for it, and nothing else is to be sent.
    #[inline]
    #[must_use]
    pub(super) fn takes_express(&self, work: &Queues, request: &Express<'_>) -> bool {
        let cap = &work.config.cap;
        let fits = match request.content {
            Content::Inline(bytes) => bytes.len() <= cap.max_inline_data as usize,
            Content::Range(_) => cap.max_send_sge > 0,
        };
        let plain = !request
            .flags
            .intersects(SendFlags::SOLICITED | SendFlags::FENCE);
        fits && plain
            && work.gates.sends
            && !work.peer_lost
            && work.sq.unsent() == 0
            && !work.sq.is_stopped()
            && work.sq.used() < cap.max_send_wr
            && !self.answers.is_due()
    }

    /// What such a request says to the peer.
    #[inline]
    #[must_use]
    pub(super) fn express_unit(&self, request: &Express<'_>) -> Unit {
        match request.to {
            None => Unit::plain_send(self.send_msn.wrapping_add(1)),
            Some(to) => Unit::Write {
                rkey: to.rkey,
                addr: to.addr,
            },
        }
    }

    /// Posts such a request, which has been sent as unit `seq`, since [`Iwarp::takes_express`] said
    /// so.
    #[inline]
    pub(super) fn post_express(&mut self, work: &mut Queues, request: &Express<'_>, seq: u64) {
        if request.to.is_none() {
            if let Some(send) = plain(request).filter(|_| work.sq.takes_plain(seq)) {
                return self.push_plain(work, send, seq);
            }
            self.behind = 0;
            self.count_message();
        }
        let msn = request.to.map_or(self.send_msn, |_| 0);
        work.sq.push_sent(wide(request, seq, msn));
    }
}

/// The request as a plain send, if its bytes fit there.
#[inline]
fn plain(request: &Express<'_>) -> Option<PlainSend> {
    let payload = match request.content {
        Content::Range(sge) => PlainPayload::Range(sge),
        Content::Inline(bytes) => {
            let mut padded = [0; PLAIN_INLINE];
            padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
            let mut words = [0; INLINE_WORDS];
            for (word, chunk) in words.iter_mut().zip(padded.as_chunks().0) {
                *word = u64::from_ne_bytes(*chunk);
            }
            PlainPayload::Inline(words)
        }
    };
    Some(PlainSend {
        wr_id: request.wr_id,
        flags: request.flags,
        len: request.content.len(),
        payload,
    })
}

/// The request as others lie in the queue.
fn wide(request: &Express<'_>, seq: u64, msn: u32) -> Wqe {
    let op = request.to.map_or(SendOp::Send, |to| SendOp::Write {
        addr: to.addr,
        rkey: to.rkey,
    });
    let payload = match request.content {
        Content::Range(sge) => Payload::Sges(smallvec![sge]),
        Content::Inline(bytes) => Payload::Inline(SmallVec::from_slice(bytes)),
    };
    let wr = SendWr {
        wr_id: request.wr_id,
        op,
        flags: request.flags,
        payload,
    };
    Wqe::sent(wr, request.content.len(), seq, msn)
}
