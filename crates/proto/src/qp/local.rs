//! Work requests that send nothing: what they change is which of this side's memory peers reach.
//!
//! They take effect in their turn, when all before them are sent, and need no peer for that.

use super::Qp;
use crate::host::{Host, Via};
use crate::types::{Payload, QpState, SendOp, SendWr, WcStatus};

impl Qp {
    /// Carries out those whose turn it is, as they are posted: the link is not asked.
    #[inline]
    pub(super) fn run_local<H: Host>(&mut self, host: &mut H) {
        while self.attr.state == QpState::Rts
            && !self.sq.halted
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
        let failed = carry_out(&wqe.wr, via, host).err();
        self.finish_local(position, seq, failed, host);
    }
}

/// Does what a work request says.
pub(super) fn carry_out<H: Host>(wr: &SendWr, via: Via, host: &mut H) -> Result<(), WcStatus> {
    let done = match (wr.op, &wr.payload) {
        (SendOp::LocalInv(rkey), _) => host.invalidate(via, rkey),
        (SendOp::BindMw(rkey), Payload::Window(binding)) => host.bind_window(via, rkey, binding),
        _ => Ok(()),
    };
    done.map_err(|_| WcStatus::MwBindErr)
}
