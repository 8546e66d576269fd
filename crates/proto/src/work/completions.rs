//! The order of completions: work requests of the send queue complete one after the other, as they
//! were posted, and those behind one that has failed are flushed.

use super::{Numbering, WorkQueues};
use crate::host::{Completions, Host};
use crate::types::{QpEvent, QpState, SendFlags, Service, Wc, WcFlags, WcOpcode, WcStatus};

impl<T: Numbering> WorkQueues<T> {
    /// Completes the oldest work requests while they are done.
    #[inline(always)]
    pub fn retire<H: Host>(&mut self, transport: &T, host: &mut H) {
        while let Some(send) = self.sq.pop_plain(transport.done_below()) {
            let signaled = self.signaled(send.flags);
            self.succeed(host, (send.wr_id, WcOpcode::Send), signaled, send.len);
        }
        if self.sq.has_front() || self.attr.state == QpState::Sqd {
            self.retire_others(transport, host);
        }
    }

    /// As [`WorkQueues::retire`], where the oldest is not plain.
    #[inline(never)]
    fn retire_others<H: Host>(&mut self, transport: &T, host: &mut H) {
        while let Some(wqe) = self.sq.front() {
            if wqe.failed.is_some() {
                let status = wqe.failed.unwrap_or(WcStatus::GeneralErr);
                return self.fail_front(status, host);
            }
            if !transport.is_done(wqe) {
                break;
            }
            let (id, opcode, len) = (wqe.wr.wr_id, wqe.wr.op.opcode(), wqe.len);
            let signaled = self.signaled(wqe.wr.flags);
            self.sq.drop_front();
            self.succeed(host, (id, opcode), signaled, len);
        }
        if self.attr.state == QpState::Sqd {
            self.note_drained(host);
        }
    }

    /// The oldest work request completes in error; the queue pair follows.
    pub fn fail_front<H: Host>(&mut self, status: WcStatus, host: &mut H) {
        if let Some(wqe) = self.sq.pop() {
            self.complete_send(host, wqe.wr.wr_id, wqe.wr.op.opcode(), status, 0);
        }
        match self.config.service {
            Service::Rc => self.enter_error(host),
            Service::Uc | Service::Ud => self.enter_send_error(host),
        }
    }

    /// A work request has failed: nothing more is started, and it completes once those before it
    /// have.
    pub fn fail_at<H: Host>(
        &mut self,
        transport: &T,
        position: u64,
        status: WcStatus,
        host: &mut H,
    ) {
        self.sq.halted = true;
        if let Some(wqe) = self.sq.get_mut(position) {
            wqe.failed.get_or_insert(status);
        }
        self.retire(transport, host);
    }

    /// The oldest work request, which is not plain, is complete.
    #[inline]
    pub fn succeed_front<H: Host>(&mut self, host: &mut H) {
        let Some(wqe) = self.sq.front() else { return };
        let (id, opcode, len) = (wqe.wr.wr_id, wqe.wr.op.opcode(), wqe.len);
        let signaled = self.signaled(wqe.wr.flags);
        self.sq.drop_front();
        self.succeed(host, (id, opcode), signaled, len);
    }

    /// Whether something of the send queue is under way, which SQD waits for.
    pub fn is_busy(&self) -> bool {
        self.sq.in_flight() || self.is_withdrawing()
    }

    /// Says that nothing is under way any more, if the program wants to know (SQD).
    pub fn note_drained<H: Host>(&mut self, host: &mut H) {
        if self.attr.en_sqd_async_notify && !self.is_busy() {
            self.attr.en_sqd_async_notify = false;
            host.event(self.config.qpn, QpEvent::SqDrained);
        }
    }

    /// Completes all sends, flushed.
    pub fn flush_sends<H: Host>(&mut self, host: &mut H) {
        self.sq.withdrawing = None;
        while let Some(wqe) = self.sq.pop() {
            let status = wqe.failed.unwrap_or(WcStatus::WrFlushErr);
            self.complete_send(host, wqe.wr.wr_id, WcOpcode::Send, status, 0);
        }
    }

    /// Completes all receives of its own queue, flushed.
    pub fn flush_recvs<H: Host>(&mut self, host: &mut H) {
        while let Some(wr) = self.rq.pop() {
            self.complete_recv_error(host, wr.wr_id, WcStatus::WrFlushErr);
        }
    }

    /// The send just taken out of the queue completes, and those before it with it.
    #[inline(always)]
    pub fn complete_send<C: Completions>(
        &mut self,
        host: &mut C,
        wr_id: u64,
        opcode: WcOpcode,
        status: WcStatus,
        byte_len: u32,
    ) {
        let places = self.sq.completed();
        let wc = Wc {
            byte_len,
            ..self.blank_wc(wr_id, opcode, status)
        };
        host.complete_send(self.config.qpn, wc, places);
    }

    /// A work request succeeded; its completion, if it is `signaled`.
    #[inline(always)]
    pub fn succeed<H: Host>(
        &mut self,
        host: &mut H,
        (wr_id, opcode): (u64, WcOpcode),
        signaled: bool,
        bytes: u32,
    ) {
        if signaled {
            self.complete_send(host, wr_id, opcode, WcStatus::Success, bytes);
        } else {
            host.succeeded_silently(self.config.qpn, bytes);
        }
    }

    /// A receive completes in error.
    pub fn complete_recv_error<H: Host>(&mut self, host: &mut H, wr_id: u64, status: WcStatus) {
        let wc = self.blank_wc(wr_id, WcOpcode::Recv, status);
        host.complete_recv(self.config.qpn, wc, true);
    }

    /// A completion that says no more than whose it is and how it ended.
    #[inline(always)]
    pub fn blank_wc(&self, wr_id: u64, opcode: WcOpcode, status: WcStatus) -> Wc {
        Wc {
            wr_id,
            status,
            opcode,
            vendor_err: match status {
                WcStatus::RetryExcErr => self.vendor_err,
                _ => 0,
            },
            byte_len: 0,
            imm: 0,
            qp_num: self.config.qpn,
            src_qp: self.attr.dest_qpn,
            flags: WcFlags::empty(),
        }
    }

    /// Whether a success is to be told.
    pub fn signaled(&self, flags: SendFlags) -> bool {
        self.config.sq_sig_all || flags.contains(SendFlags::SIGNALED)
    }

    /// A work request was carried out as it was to be posted, with nothing before it. Returns
    /// whether it has a completion.
    #[inline(always)]
    pub fn passed<C: Completions>(
        &mut self,
        host: &mut C,
        (wr_id, opcode): (u64, WcOpcode),
        flags: SendFlags,
        len: u32,
    ) -> bool {
        self.sq.pass();
        let signaled = self.signaled(flags);
        if signaled {
            self.complete_passed(host, (wr_id, opcode), len);
        } else {
            host.succeeded_silently(self.config.qpn, len);
        }
        signaled
    }

    /// The completion of a work request that passed. Apart, for those that have none.
    #[inline(never)]
    fn complete_passed<C: Completions>(
        &mut self,
        host: &mut C,
        (wr_id, opcode): (u64, WcOpcode),
        len: u32,
    ) {
        self.complete_send(host, wr_id, opcode, WcStatus::Success, len);
    }
}
