//! The requester half: send work requests become units, acknowledgments and answers become
//! completions.

use super::plain::PlainSend;
use super::segments::{gather, scatter};
use super::{Qp, sendq::SendWqe};
use crate::bytes::Bytes;
use crate::host::Host;
use crate::types::{
    Payload, QpEvent, QpState, RNR_RETRY_INFINITE, SendFlags, SendOp, Service, WcOpcode, WcStatus,
};
use crate::ulp::{Nak, SegMeta, Verdict};
use crate::unit::{Frame, Unit};

/// A unit to build, and which bytes of the work request are its payload.
struct Plan {
    unit: Unit,
    last: bool,
    first: u64,
    offset: u32,
    len: u32,
    /// Some of the message's bytes were placed directly.
    direct: bool,
}

impl Plan {
    fn meta(&self, seq: u64) -> SegMeta {
        SegMeta {
            seq,
            first: self.first,
            last: self.last,
            direct: self.direct,
        }
    }
}

impl Qp {
    /// Whether a request can be built now.
    pub(super) fn has_request(&self) -> bool {
        if self.sq.is_held() {
            return false;
        }
        let Some(wqe) = self.sq.current() else {
            return false;
        };
        match self.attr.state {
            QpState::Rts => wqe.begun() || (self.may_start(wqe) && !self.goes_directly(wqe)),
            // Draining: what is begun is finished, nothing is started.
            QpState::Sqd => wqe.begun(),
            _ => false,
        }
    }

    /// Payload that the work request to be sent next has left.
    pub(super) fn next_request_len(&self) -> Option<u32> {
        let wqe = self.sq.current()?;
        Some(wqe.outgoing() - wqe.emitted)
    }

    /// Fence, and the limit on READs and atomics outstanding (`ibv_modify_qp(3)`, `max_rd_atomic`).
    pub(super) fn may_start(&self, wqe: &SendWqe) -> bool {
        let fenced = wqe.wr.flags.contains(SendFlags::FENCE) && self.sq.reads_out > 0;
        let limit = u32::from(self.attr.max_rd_atomic);
        let limited = wqe.wr.op.is_answered() && limit > 0 && self.sq.reads_out >= limit;
        !fenced && !limited
    }

    pub(super) fn next_request<H: Host>(
        &mut self,
        seq: u64,
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        loop {
            if !self.has_request() {
                return None;
            }
            let room = frame.room(self.sq.current()?.kind())?;
            if self.sq.current()?.is_whole(room) {
                // Where it fails, nothing is sent after it.
                return self.next_whole(seq, frame, host);
            }
            if !self.sq.current()?.begun() && !self.start(seq, host) {
                continue;
            }
            let position = self.sq.cursor;
            let plan = self.plan_next(position, seq, room)?;
            self.build(position, &plan, frame, host)?;
            self.advance(position, seq, &plan, room);
            return Some(plan.meta(seq));
        }
    }

    /// Whether the next thing to send, and the last, is a message that one unit with `room` bytes
    /// of payload carries whole.
    #[inline]
    #[must_use]
    pub fn is_last_whole(&self, room: u32) -> bool {
        self.attr.state == QpState::Rts
            && self.sq.unsent() == 1
            && !self.answers.is_due()
            && self.has_request()
            && self.sq.current().is_some_and(|wqe| wqe.is_whole(room))
    }

    /// Builds a message that is one unit, as most are, in one go. `None` where it has failed.
    pub(super) fn next_whole<H: Host>(
        &mut self,
        seq: u64,
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        let position = self.sq.cursor;
        let msn = self.sq.send_msn.wrapping_add(1);
        let wqe = self.sq.get_mut(position)?;
        let untagged = !matches!(wqe.wr.op, SendOp::Write { .. });
        wqe.msn = if untagged { msn } else { 0 };
        let len = wqe.len as usize;
        let plain = matches!(wqe.wr.op, SendOp::Send);
        let body = if plain && !wqe.wr.flags.contains(SendFlags::SOLICITED) {
            frame.put(&Unit::plain_send(msn), true, len)?
        } else {
            frame.put(&wqe.unit(position, 0, false), true, len)?
        };
        if len > 0 && gather(host, self.config.pd, &wqe.wr.payload, 0, body).is_err() {
            self.finish_local(position, seq, Some(WcStatus::LocProtErr), host);
            return None;
        }
        wqe.first = seq;
        wqe.end = Some(seq + 1);
        wqe.emitted = wqe.len;
        wqe.runs.note(seq, 0, wqe.len);
        self.sq.cursor = position + 1;
        if untagged {
            self.sq.send_msn = msn;
        }
        let meta = SegMeta {
            seq,
            first: seq,
            last: true,
            direct: false,
        };
        Some(meta)
    }

    /// Whether a SEND without options, of `len` bytes, can be posted and sent at once as segment
    /// `seq` ([`Qp::post_plain`]): there is room for it, and nothing else to send.
    #[inline(always)]
    #[must_use]
    pub fn takes_plain(&self, len: u32, inline: bool, seq: u64) -> bool {
        let cap = &self.config.cap;
        let fits = match inline {
            true => len <= cap.max_inline_data,
            false => cap.max_send_sge > 0,
        };
        fits && self.gates.sends
            && self.sq.takes_plain(seq)
            && self.sq.used() < cap.max_send_wr
            && !self.answers.is_due()
    }

    /// Posts a send that has been sent as segment `seq`, since [`Qp::takes_plain`] said so.
    #[inline(always)]
    pub fn post_plain(&mut self, send: PlainSend, seq: u64) {
        self.behind = 0;
        self.sq.push_plain(send, seq);
    }

    /// Begins the work request at the cursor. Returns false where it needs no unit, because it
    /// is local or has failed.
    fn start<H: Host>(&mut self, seq: u64, host: &mut H) -> bool {
        let position = self.sq.cursor;
        let pd = self.config.pd;
        let Some(wqe) = self.sq.get(position) else {
            return false;
        };
        let op = wqe.wr.op;
        if op.is_local() {
            self.carry_out_local(seq, host);
            return false;
        }
        let bad = match &wqe.wr.payload {
            Payload::Inline(_) | Payload::Window(_) => false,
            Payload::Sges(sges) => sges.iter().any(|s| {
                let len = u64::from(s.length);
                len > 0
                    && host
                        .check_local(pd, s.lkey, s.addr, len, op.is_answered())
                        .is_err()
            }),
        };
        if bad {
            self.finish_local(position, seq, Some(WcStatus::LocProtErr), host);
            return false;
        }
        if op.is_answered() && self.attr.max_rd_atomic == 0 {
            self.finish_local(position, seq, Some(WcStatus::LocQpOpErr), host);
            return false;
        }
        let msn = match op {
            SendOp::Write { .. } => 0,
            SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. } => {
                self.sq.read_msn = self.sq.read_msn.wrapping_add(1);
                self.sq.reads_out += 1;
                self.sq.read_msn
            }
            _ => {
                self.sq.send_msn = self.sq.send_msn.wrapping_add(1);
                self.sq.send_msn
            }
        };
        if let Some(wqe) = self.sq.get_mut(position) {
            wqe.first = seq;
            wqe.msn = msn;
        }
        true
    }

    /// Ends a work request that sends nothing.
    pub(super) fn finish_local<H: Host>(
        &mut self,
        position: u64,
        seq: u64,
        failed: Option<WcStatus>,
        host: &mut H,
    ) {
        if let Some(wqe) = self.sq.get_mut(position) {
            wqe.first = seq;
            wqe.end = Some(seq);
            wqe.failed = failed;
        }
        self.sq.halted |= failed.is_some();
        self.sq.cursor = position + 1;
        self.retire(host);
    }

    #[inline]
    fn plan_next(&self, position: u64, seq: u64, room: u32) -> Option<Plan> {
        let wqe = self.sq.get(position)?;
        let total = wqe.outgoing();
        let with_imm = matches!(wqe.wr.op, SendOp::WriteImm { .. });
        let sent = wqe.emitted == total || wqe.placed == Some((wqe.emitted, total));
        if with_imm && sent {
            return Some(Plan {
                unit: wqe.unit(position, 0, true),
                last: true,
                first: seq,
                offset: 0,
                len: 0,
                direct: wqe.placed.is_some(),
            });
        }
        let (offset, len, last) = wqe.next_part(wqe.emitted, room);
        Some(Plan {
            unit: wqe.unit(position, offset, false),
            last,
            first: wqe.first,
            offset,
            len,
            direct: wqe.placed.is_some(),
        })
    }

    fn plan_again(&self, position: u64, seq: u64) -> Option<Plan> {
        let wqe = self.sq.get(position)?;
        let total = wqe.outgoing();
        let with_imm = matches!(wqe.wr.op, SendOp::WriteImm { .. });
        if with_imm && wqe.end == Some(seq + 1) {
            return Some(Plan {
                unit: wqe.unit(position, 0, true),
                last: true,
                first: seq,
                offset: 0,
                len: 0,
                direct: wqe.placed.is_some(),
            });
        }
        let (offset, room) = wqe.runs.range(seq, total)?;
        let (offset, len, last) = wqe.next_part(offset, room);
        Some(Plan {
            unit: wqe.unit(position, offset, false),
            last,
            first: wqe.first,
            offset,
            len,
            direct: wqe.placed.is_some(),
        })
    }

    /// Builds a planned unit. A gather that fails halts the queue at this work request.
    fn build<H: Host>(
        &mut self,
        position: u64,
        plan: &Plan,
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<()> {
        let body = frame.put(&plan.unit, plan.last, plan.len as usize)?;
        if plan.len > 0 {
            let wqe = self.sq.get(position)?;
            if gather(host, self.config.pd, &wqe.wr.payload, plan.offset, body).is_err() {
                self.fail_at(position, WcStatus::LocProtErr, host);
                return None;
            }
        }
        Some(())
    }

    fn advance(&mut self, position: u64, seq: u64, plan: &Plan, room: u32) {
        let Some(wqe) = self.sq.get_mut(position) else {
            return;
        };
        let with_imm = matches!(wqe.wr.op, SendOp::WriteImm { .. });
        let is_imm = matches!(plan.unit, Unit::Immediate { .. });
        if !is_imm {
            if plan.offset == wqe.emitted {
                wqe.runs.note(seq, plan.offset, room);
            } else {
                wqe.runs.begin(seq, plan.offset, room);
            }
            wqe.emitted = plan.offset + plan.len;
        }
        if plan.last && (!with_imm || is_imm) {
            wqe.end = Some(seq + 1);
            self.sq.cursor = position + 1;
        }
    }

    pub(super) fn request_again<H: Host>(
        &mut self,
        seq: u64,
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        if self.attr.state == QpState::Err {
            return None;
        }
        let position = self.sq.find(seq)?;
        let plan = self.plan_again(position, seq)?;
        self.build(position, &plan, frame, host)?;
        Some(plan.meta(seq))
    }

    #[inline(always)]
    pub(super) fn requests_acked<H: Host>(&mut self, upto: u64, host: &mut H) {
        if upto > self.sq.acked {
            self.sq.acked = upto;
            self.retire(host);
        }
    }

    /// Completes the oldest work requests while they are done.
    #[inline(always)]
    fn retire<H: Host>(&mut self, host: &mut H) {
        while let Some(send) = self.sq.pop_plain() {
            let signaled = self.signaled(send.flags);
            self.succeed(host, (send.wr_id, WcOpcode::Send), signaled, send.len);
        }
        if self.sq.has_front() || self.attr.state == QpState::Sqd {
            self.retire_others(host);
        }
    }

    /// As [`Qp::retire`], where the oldest is not plain.
    #[inline(never)]
    fn retire_others<H: Host>(&mut self, host: &mut H) {
        while let Some(wqe) = self.sq.front() {
            if wqe.failed.is_some() {
                let status = wqe.failed.unwrap_or(WcStatus::GeneralErr);
                return self.fail_front(status, host);
            }
            let acked = wqe
                .end
                .is_some_and(|end| end <= self.sq.acked || end == wqe.first);
            if !acked || (wqe.wr.op.is_answered() && !wqe.answered) {
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
    fn fail_front<H: Host>(&mut self, status: WcStatus, host: &mut H) {
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
    pub(super) fn fail_at<H: Host>(&mut self, position: u64, status: WcStatus, host: &mut H) {
        self.sq.halted = true;
        if let Some(wqe) = self.sq.get_mut(position) {
            wqe.failed.get_or_insert(status);
        }
        self.retire(host);
    }

    /// Whether to send request `seq`, refused for want of a receive, again.
    pub(super) fn on_not_ready<H: Host>(&mut self, seq: u64, host: &mut H) -> bool {
        let Some(position) = self.sq.find(seq) else {
            return false;
        };
        let tries = match self.sq.rnr {
            Some((at, tries)) if at == seq => tries,
            _ => 0,
        };
        let limit = self.attr.rnr_retry;
        if limit != RNR_RETRY_INFINITE && tries >= limit {
            self.fail_at(position, WcStatus::RnrRetryExcErr, host);
            return false;
        }
        self.sq.rnr = Some((seq, tries.saturating_add(1)));
        true
    }

    pub(super) fn on_refused<H: Host>(&mut self, seq: u64, nak: Nak, host: &mut H) {
        if self.attr.state == QpState::Err {
            return;
        }
        self.requests_acked(seq, host);
        match self.sq.find(seq) {
            Some(position) => self.fail_at(position, nak.status(), host),
            None => self.enter_error(host),
        }
    }

    pub(super) fn on_lost<H: Host>(&mut self, host: &mut H) {
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
        matches!(self.attr.state, QpState::Rts | QpState::Sqd) && self.has_sends()
    }

    pub(super) fn note_drained<H: Host>(&mut self, host: &mut H) {
        let busy = self.sq.in_flight() || self.is_withdrawing();
        if self.attr.en_sqd_async_notify && !busy {
            self.attr.en_sqd_async_notify = false;
            host.event(self.config.qpn, QpEvent::SqDrained);
        }
    }

    /// Places an answer.
    pub(super) fn on_response<H: Host>(
        &mut self,
        unit: &Unit,
        payload: Bytes<'_>,
        host: &mut H,
    ) -> Verdict {
        if !matches!(self.attr.state, QpState::Rts | QpState::Sqd) {
            // Late answers of a failed queue pair: acknowledge them, so that the peer forgets them.
            return Verdict::Placed;
        }
        let placed = match *unit {
            Unit::ReadAnswer { id, offset } => self.place_answer(id, offset, payload, host),
            Unit::AtomicAnswer { id, original, .. } => {
                self.place_answer(id, 0, original.to_ne_bytes().as_slice().into(), host)
            }
            _ => Err(None),
        };
        match placed {
            Ok(()) => self.retire(host),
            Err(Some((position, status))) => self.fail_at(position, status, host),
            // An answer to nothing: a faulty peer.
            Err(None) => {
                let front = self.sq.position_of_front();
                match front.filter(|_| self.sq.in_flight()) {
                    Some(position) => self.fail_at(position, WcStatus::BadRespErr, host),
                    None => self.enter_error(host),
                }
            }
        }
        Verdict::Placed
    }

    /// Scatters an answer's bytes and counts them: each unit arrives once, so the answer is
    /// whole when as many bytes as asked for have come.
    fn place_answer<H: Host>(
        &mut self,
        id: u32,
        offset: u64,
        bytes: Bytes<'_>,
        host: &mut H,
    ) -> Result<(), Option<(u64, WcStatus)>> {
        let position = self.sq.position_of(id).ok_or(None)?;
        let pd = self.config.pd;
        let wqe = self.sq.get_mut(position).ok_or(None)?;
        if !wqe.wr.op.is_answered() || wqe.end.is_none() || wqe.answered {
            return Err(None);
        }
        let bad = Some((position, WcStatus::BadRespErr));
        let len = u32::try_from(bytes.len()).map_err(|_| bad)?;
        let offset = u32::try_from(offset).map_err(|_| bad)?;
        let fits = offset.checked_add(len).is_some_and(|end| end <= wqe.len);
        let total = wqe
            .answered_bytes
            .checked_add(len)
            .filter(|t| fits && *t <= wqe.len);
        let total = total.ok_or(bad)?;
        if let Payload::Sges(sges) = &wqe.wr.payload
            && scatter(host, pd, sges, offset, bytes).is_err()
        {
            return Err(Some((position, WcStatus::LocProtErr)));
        }
        wqe.answered_bytes = total;
        if total == wqe.len {
            wqe.answered = true;
            self.sq.reads_out = self.sq.reads_out.saturating_sub(1);
        }
        Ok(())
    }
}
