//! What the services promise: reliable connections (RC), unreliable ones (UC), datagrams (UD).

use super::local::carry_out;
use super::{Numbering, WorkQueues};
use crate::host::Host;
use crate::types::{QpEvent, QpState, SendOp, Service, WcStatus};

/// What a link waits for a peer that does not answer, as `timeout` and `retry_cnt` of a reliable
/// connection: these have none. Then it drops what it has.
const PATIENCE: (u8, u8) = (14, 7);

impl<T: Numbering> WorkQueues<T> {
    /// Codes of the time-out and the retry count by which a link gives its peer up.
    pub fn patience(&self) -> (u8, u8) {
        match self.config.service {
            Service::Rc => (self.attr.timeout, self.attr.retry_cnt),
            Service::Uc | Service::Ud => PATIENCE,
        }
    }

    /// Whether its service has such an operation.
    pub fn offers(&self, op: &SendOp) -> bool {
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
    pub fn enter_send_error<H: Host>(&mut self, host: &mut H) {
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
    pub fn lose_peer<H: Host>(&mut self, host: &mut H) {
        self.peer_lost = true;
        let via = self.via();
        while let Some(wqe) = self.sq.front()
            && !(self.is_withdrawing() && self.sq.at_front())
        {
            // What sends nothing needs no peer; what was before the cursor has been carried out.
            let done = match self.sq.at_front() {
                true => carry_out(&wqe.wr, via, host),
                false => Ok(None),
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

    /// The peer is unreachable or gone: a reliable connection fails, an unreliable one goes on
    /// without it.
    pub fn on_lost<H: Host>(&mut self, host: &mut H) {
        if matches!(self.attr.state, QpState::Err | QpState::Reset) {
            return;
        }
        if self.config.service == Service::Uc {
            return self.lose_peer(host);
        }
        self.sq.halted = true;
        host.event(self.config.qpn, QpEvent::Fatal);
        if self.sq.in_flight() || self.is_ready_to_send() {
            self.fail_front(WcStatus::RetryExcErr, host);
        } else {
            self.fell = self.attr.state == QpState::Rtr;
            self.enter_error(host);
        }
    }

    /// Sends queued that never got as far as a unit, because the peer did not answer.
    fn is_ready_to_send(&self) -> bool {
        matches!(self.attr.state, QpState::Rts | QpState::Sqd) && !self.sq.is_empty()
    }
}
