//! What the short ways look at, instead of all that it follows from.

use super::{Numbering, WorkQueues};
use crate::types::{QpState, Service, Sge};

/// Kept in step with the state by [`WorkQueues::set_state`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Gates {
    /// It is a reliable connection that is ready to send, and no limit is set on that.
    pub sends: bool,
    /// As that, and what it sends may have ranges.
    pub ranges: bool,
    /// Ready to send, with ranges and without a limit, and so that one-sided work requests may be
    /// carried out directly.
    pub direct: bool,
    /// It is a reliable connection that is ready to send, has received before, and what it receives
    /// goes to receives of its own.
    pub messages: bool,
    /// So many receives of one range may occupy the queue; 0 where there is more to be looked at.
    pub receives: u32,
}

impl<T: Numbering> WorkQueues<T> {
    /// The program has polled a completion of the send queue: its work request, and the unsignaled
    /// ones before it, leave the queue. `places` is what the device was told with that
    /// ([`crate::host::Completions`]).
    #[inline(always)]
    pub fn release_send(&mut self, places: u32) {
        self.sq.release(places);
    }

    /// The program has polled so many completions of the receive queue.
    #[inline(always)]
    pub fn release_recvs(&mut self, count: u32) {
        if !self.config.srq {
            self.rq_used = self.rq_used.saturating_sub(count);
        }
    }

    /// Whether no send can be posted before a completion is polled.
    #[inline(always)]
    pub fn is_send_full(&self) -> bool {
        self.sq.used() >= self.config.cap.max_send_wr
    }

    /// Whether no receive can be posted before a completion is polled.
    #[inline(always)]
    pub fn is_recv_full(&self) -> bool {
        self.rq_used >= self.config.cap.max_recv_wr
    }

    /// Whether [`WorkQueues::post_recv_range`] may post one.
    #[inline(always)]
    pub fn takes_recv_range(&self) -> bool {
        self.rq_used < self.gates.receives
    }

    /// As [`WorkQueues::post_recv`] of a receive of one range, where nothing is out of the
    /// ordinary: the shortest way. Returns false, with nothing done, where that must look.
    #[inline(always)]
    pub fn post_recv_range(&mut self, wr_id: u64, range: Sge) -> bool {
        let posted = self.takes_recv_range() && self.rq.try_push(wr_id, range);
        self.rq_used += u32::from(posted);
        posted
    }

    /// The state changes, and what the short ways look at with it.
    pub fn set_state(&mut self, to: QpState) {
        self.attr.state = to;
        self.set_gates();
    }

    /// What they follow from has changed.
    pub fn set_gates(&mut self) {
        let (state, cap) = (self.attr.state, &self.config.cap);
        let ready = self.config.service == Service::Rc && state == QpState::Rts;
        // What is traced goes the ways of all others, which record it.
        let short = !self.is_paced() && !self.traced;
        let receives = !matches!(state, QpState::Reset | QpState::Err) && !self.config.srq;
        self.gates = Gates {
            sends: ready && short,
            ranges: ready && short && cap.max_send_sge > 0,
            direct: self.direct && state == QpState::Rts && cap.max_send_sge > 0 && short,
            messages: ready && self.established && !self.config.srq && !self.traced,
            receives: match receives && cap.max_recv_sge > 0 {
                true => cap.max_recv_wr,
                false => 0,
            },
        };
    }
}
