//! Unreliable connections (UC): the machinery of reliable ones, with other promises.
//!
//! The link below may well deliver everything; it is the responder that drops in silence what it
//! has no receive for, what does not fit, and what is not allowed, and the requester that never
//! hears of it. A send is complete when the link has taken it, or has given it up: with success
//! either way. Local errors stop the send queue (SQE), and leave receives as they are.

use super::Qp;
use super::local::carry_out;
use crate::bytes::Bytes;
use crate::host::Host;
use crate::types::{QpEvent, QpState, SendOp, Service, WcStatus};
use crate::ulp::{Nak, SegMeta, Verdict};
use crate::unit::Unit;

/// What a link waits for a peer that does not answer, as `timeout` and `retry_cnt` of a reliable
/// connection: these have none. Then it drops what it has.
const PATIENCE: (u8, u8) = (14, 7);

impl Qp {
    /// The service it gives.
    #[inline]
    #[must_use]
    pub fn service(&self) -> Service {
        self.config.service
    }

    /// Codes of the time-out and the retry count by which a link gives its peer up.
    #[must_use]
    pub fn patience(&self) -> (u8, u8) {
        match self.config.service {
            Service::Rc => (self.attr.timeout, self.attr.retry_cnt),
            Service::Uc | Service::Ud => PATIENCE,
        }
    }

    /// Whether its service has such an operation.
    pub(super) fn offers(&self, op: &SendOp) -> bool {
        match self.config.service {
            Service::Rc => !matches!(op, SendOp::Datagram { .. }),
            Service::Uc => matches!(
                op,
                SendOp::Send
                    | SendOp::SendImm(_)
                    | SendOp::SendInv(_)
                    | SendOp::Write { .. }
                    | SendOp::WriteImm { .. }
                    | SendOp::LocalInv(_)
                    | SendOp::BindMw(_)
            ),
            Service::Ud => matches!(op, SendOp::Datagram { .. }),
        }
    }

    /// A local error of an unreliable service: sends are flushed, and no more are taken until the
    /// program has brought the queue pair back to RTS. Receives go on.
    pub(super) fn enter_send_error<H: Host>(&mut self, host: &mut H) {
        if self.attr.state == QpState::Err {
            return;
        }
        self.set_state(QpState::Sqe);
        self.flush_sends(host);
        self.sq.halted = false;
    }

    /// The device can't go on with it: it fails, whatever its service.
    pub fn fail<H: Host>(&mut self, host: &mut H) {
        if !matches!(self.attr.state, QpState::Err | QpState::Reset) {
            host.event(self.config.qpn, QpEvent::Fatal);
            self.enter_error(host);
        }
    }

    /// The peer is gone: sends are complete as they are posted from now on, and go nowhere.
    pub(super) fn lose_peer<H: Host>(&mut self, host: &mut H) {
        self.peer_lost = true;
        let via = self.via();
        while let Some(wqe) = self.sq.front()
            && !(self.is_withdrawing() && self.sq.at_front())
        {
            // What sends nothing needs no peer.
            let done = match wqe.end {
                None => carry_out(&wqe.wr, via, host),
                Some(_) => Ok(None),
            };
            if let Ok(Some(key)) = done {
                self.sq.withdrawing = Some(key);
                return;
            }
            let Some(wqe) = self.sq.pop() else { return };
            let opcode = wqe.wr.op.opcode();
            if let Err(status) = done {
                self.complete_send(host, wqe.wr.wr_id, opcode, status, 0);
                return self.enter_send_error(host);
            }
            if self.signaled(wqe.wr.flags) {
                self.complete_send(host, wqe.wr.wr_id, opcode, WcStatus::Success, wqe.len);
            }
        }
    }

    /// Request `seq` has been put where the peer will find it.
    pub(super) fn handed_over<H: Host>(&mut self, seq: u64, host: &mut H) {
        if self.config.service == Service::Uc && self.direct {
            self.handed = seq + 1;
            self.requests_acked(seq + 1, host);
        }
    }

    /// Whether what is complete here is not yet placed there: nothing may overtake it.
    #[inline]
    pub(super) fn trails(&self) -> bool {
        self.handed > self.placed
    }

    /// Whether the work request at the cursor is the next to take effect at the peer.
    #[inline]
    pub(super) fn is_next(&self) -> bool {
        self.sq.at_front() && !self.trails()
    }

    /// Places a unit of an unreliable connection, or drops the message that it belongs to.
    pub(super) fn on_unreliable<H: Host>(
        &mut self,
        meta: SegMeta,
        unit: &Unit,
        body: Bytes<'_>,
        in_order: bool,
        host: &mut H,
    ) -> Verdict {
        if !in_order {
            return Verdict::Later;
        }
        if self.responder.dropping == Some(meta.first) {
            return Verdict::Placed;
        }
        let (msn, offered) = match *unit {
            Unit::Send { msn, .. } | Unit::Immediate { msn, .. } => (Some(msn), true),
            Unit::Write { .. } => (None, true),
            _ => (None, false),
        };
        if !offered {
            self.drop_message(meta, msn);
            return Verdict::Placed;
        }
        match self.execute(meta, unit, body, host) {
            Ok(Verdict::Placed) => self.note_established(host),
            // Its own memory is at fault, not the message.
            Err(Nak::RemoteOperation) => self.fail(host),
            _ => self.drop_message(meta, msn),
        }
        Verdict::Placed
    }

    /// Drops what comes of the message from now on. The receive that it was placed into is used
    /// for the next.
    fn drop_message(&mut self, meta: SegMeta, msn: Option<u32>) {
        self.responder.dropping = Some(meta.first);
        self.responder.current = None;
        if let Some(msn) = msn {
            self.responder.send_msn = msn;
        }
    }
}
