//! Work requests that send nothing: what they change is which of this side's memory peers reach.
//!
//! They take effect in their turn, when all before them are sent, and need no peer for that. One
//! that withdraws a key is complete when no peer is in the middle of an access by it; until then it
//! keeps its place, and what is behind it is not started.

use super::Qp;
use crate::host::{Host, Via};
use crate::types::{Payload, QpState, SendOp, SendWr, WcStatus};

impl Qp {
    /// Carries out those whose turn it is, as they are posted: the link is not asked.
    #[inline]
    pub(super) fn run_local<H: Host>(&mut self, host: &mut H) {
        while self.attr.state == QpState::Rts
            && !self.sq.is_held()
            && let Some(wqe) = self.sq.current()
            && wqe.wr.op.is_local()
            && self.may_start(wqe)
        {
            self.carry_out_local(self.sq.sent_before(), host);
        }
    }

    /// Carries out the one at the cursor. `seq` is the number of the next segment.
    pub(super) fn carry_out_local<H: Host>(&mut self, seq: u64, host: &mut H) {
        let position = self.sq.cursor;
        let via = self.via();
        let Some(wqe) = self.sq.get(position) else {
            return;
        };
        match carry_out(&wqe.wr, via, host) {
            Ok(Some(key)) => self.sq.withdrawing = Some(key),
            done => self.finish_local(position, seq, done.err(), host),
        }
    }

    /// Whether a work request waits for the end of accesses by a key that it has withdrawn:
    /// [`Qp::look_at_withdrawal`] finds out, which somebody has to call.
    #[inline]
    #[must_use]
    pub fn is_withdrawing(&self) -> bool {
        self.sq.withdrawing.is_some()
    }

    /// Completes the work request that withdraws a key, if the accesses by it have ended, and
    /// carries out what follows it.
    pub fn look_at_withdrawal<H: Host>(&mut self, host: &mut H) {
        let Some(key) = self.sq.withdrawing else {
            return;
        };
        if !host.is_quiet(key) {
            return;
        }
        self.sq.withdrawing = None;
        self.finish_local(self.sq.cursor, self.sq.sent_before(), None, host);
        if self.peer_lost {
            self.lose_peer(host);
        } else {
            self.run_local(host);
        }
    }
}

/// Does what a work request says. Returns the key that it has withdrawn, if an access by that is
/// under way.
pub(super) fn carry_out<H: Host>(
    wr: &SendWr,
    via: Via,
    host: &mut H,
) -> Result<Option<u32>, WcStatus> {
    let done = match (wr.op, &wr.payload) {
        (SendOp::LocalInv(rkey), _) => host.invalidate(via, rkey),
        (SendOp::BindMw(rkey), Payload::Window(binding)) => host.bind_window(via, rkey, binding),
        _ => Ok(None),
    };
    done.map_err(|_| WcStatus::MwBindErr)
}
