//! Work requests that send nothing: what they change is which of this side's memory peers reach.
//!
//! They take effect in their turn, when all before them are sent, and need no peer for that. One
//! that withdraws a key is complete when no peer is in the middle of an access by it; until then it
//! keeps its place, and what is behind it is not started.

use super::{Numbering, WorkQueues};
use crate::host::{Host, Via};
use crate::types::{Payload, QpState, SendOp, SendWr, WcStatus};

impl<T: Numbering> WorkQueues<T> {
    /// Carries out those whose turn it is, as they are posted: the link is not asked.
    #[inline]
    pub fn run_local<H: Host>(&mut self, transport: &T, host: &mut H) {
        while self.attr.state == QpState::Rts
            && !self.sq.is_held()
            && let Some(wqe) = self.sq.current()
            && wqe.wr.op.is_local()
            && self.may_start(wqe)
        {
            self.carry_out_local(transport, host);
        }
    }

    /// Carries out the one at the cursor.
    pub fn carry_out_local<H: Host>(&mut self, transport: &T, host: &mut H) {
        let via = self.via();
        let Some(wqe) = self.sq.current() else {
            return;
        };
        match carry_out(&wqe.wr, via, host) {
            Ok(Some(key)) => self.sq.withdrawing = Some(key),
            done => self.finish_local(transport, done.err(), host),
        }
    }

    /// Ends the work request at the cursor, which sends nothing.
    pub fn finish_local<H: Host>(&mut self, transport: &T, failed: Option<WcStatus>, host: &mut H) {
        transport.skip(&mut self.sq);
        if let Some(wqe) = self.sq.current_mut() {
            wqe.failed = failed;
        }
        self.sq.halted |= failed.is_some();
        self.sq.cursor += 1;
        self.retire(transport, host);
    }

    /// Whether a work request waits for the end of accesses by a key that it has withdrawn:
    /// [`WorkQueues::look_at_withdrawal`] finds out, which somebody has to call.
    #[inline]
    pub fn is_withdrawing(&self) -> bool {
        self.sq.withdrawing.is_some()
    }

    /// Completes the work request that withdraws a key, if the accesses by it have ended, and
    /// carries out what follows it.
    pub fn look_at_withdrawal<H: Host>(&mut self, transport: &T, host: &mut H) {
        let Some(key) = self.sq.withdrawing else {
            return;
        };
        if !host.is_quiet(key) {
            return;
        }
        self.sq.withdrawing = None;
        self.finish_local(transport, None, host);
        if self.peer_lost {
            self.lose_peer(host);
        } else {
            self.run_local(transport, host);
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
