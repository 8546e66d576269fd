//! A made-up transport, for tests: of each direction one unit is under way at a time.
//!
//! It shows that a queue pair needs of its transport no more than the seam
//! ([`crate::transport`]): a folder, and a row in [`crate::transports`]. It knows SEND, WRITE and
//! READ. Of the short ways it has none, and it numbers no messages, since there is never a second
//! one under way.

mod responder;

use crate::bytes::Bytes;
use crate::host::Host;
use crate::transport::Transport;
use crate::types::{Payload, QpState, RNR_RETRY_INFINITE, SendFlags, SendOp, WcStatus};
use crate::ulp::{Nak, SegMeta, Space, Verdict};
use crate::unit::{Frame, Kind, Unit};
use crate::work::{Entry, Numbering, Part, SendQueue, WorkQueues, gather, scatter};
use responder::{Answer, Receiving};

type Queues = WorkQueues<StopAndWait>;

/// What it keeps with a work request.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes sent.
    sent: u32,
    /// The number behind that of its last unit.
    end: Option<u64>,
    begun: bool,
    /// Bytes of the answer that have come, and whether all have.
    come: u32,
    answered: bool,
}

impl Part for Progress {
    fn is_begun(&self) -> bool {
        self.begun
    }
}

/// A unit that is under way.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    meta: SegMeta,
    unit: Unit,
    offset: u32,
    len: u32,
}

/// Requester and responder.
#[derive(Debug, Default)]
pub struct StopAndWait {
    /// Requests below are placed.
    acked: u64,
    /// The first unit of the message under way.
    first: u64,
    request: Option<UnderWay>,
    /// How often it was refused for want of a receive.
    refusals: u8,
    receiving: Option<Receiving>,
    answer: Option<Answer>,
    response: Option<UnderWay>,
    late_refusal: Option<(u64, Nak)>,
}

impl Numbering for StopAndWait {
    type Part = Progress;

    fn is_done(&self, entry: &Entry<Progress>) -> bool {
        let placed = entry.part.end.is_some_and(|end| end <= self.acked);
        placed && (!entry.wr.op.is_answered() || entry.part.answered)
    }

    fn done_below(&self) -> u64 {
        self.acked
    }

    fn skip(&self, queue: &mut SendQueue<Progress>) {
        if let Some(wqe) = queue.current_mut() {
            wqe.part.end = Some(self.acked);
        }
    }
}

impl StopAndWait {
    /// Whether the oldest work request has a unit to send: whatever is behind it waits.
    fn has_request(&self, work: &Queues) -> bool {
        let Some(wqe) = work.sq.current().filter(|_| work.sq.at_front()) else {
            return false;
        };
        let may_begin = work.attr.state == QpState::Rts && work.may_start(wqe);
        let goes_on = matches!(work.attr.state, QpState::Rts | QpState::Sqd);
        let idle = self.request.is_none() && !work.sq.is_held();
        idle && (may_begin || (goes_on && wqe.part.begun))
    }

    /// Begins the work request at the cursor. Returns false where it is not sent.
    fn begin<H: Host>(&mut self, work: &mut Queues, seq: u64, host: &mut H) -> bool {
        let Some(wqe) = work.sq.current() else {
            return false;
        };
        if wqe.wr.op.is_local() {
            work.carry_out_local(self, host);
            return false;
        }
        let failed = match unit(wqe, 0) {
            Unit::Unreadable => Some(WcStatus::LocQpOpErr),
            _ => work.check_start(wqe, host).err(),
        };
        if failed.is_some() {
            work.finish_local(self, failed, host);
            return false;
        }
        self.first = seq;
        work.sq.reads_out += u32::from(wqe.wr.op.is_answered());
        true
    }

    fn next_request<H: Host>(
        &mut self,
        work: &mut Queues,
        seq: u64,
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        while self.has_request(work) {
            if !work.sq.current()?.part.begun && !self.begin(work, seq, host) {
                continue;
            }
            let position = work.sq.cursor;
            let wqe = work.sq.get_mut(position)?;
            let (offset, total) = (wqe.part.sent, outgoing(wqe));
            let len = frame.room(Kind::Other)?.min(total - offset);
            let request = UnderWay {
                meta: SegMeta {
                    seq,
                    first: self.first,
                    last: offset + len == total,
                    direct: false,
                },
                unit: unit(wqe, offset),
                offset,
                len,
            };
            wqe.part.begun = true;
            wqe.part.sent += len;
            if request.meta.last {
                wqe.part.end = Some(seq + 1);
                work.sq.cursor += 1;
            }
            self.request = Some(request);
            return self.put_request(work, position, frame, host);
        }
        None
    }

    /// Builds the request under way, of the work request at a position.
    fn put_request<H: Host>(
        &mut self,
        work: &mut Queues,
        position: u64,
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        let request = self.request?;
        let body = frame.put(&request.unit, request.meta.last, request.len as usize)?;
        let payload = &work.sq.get(position)?.wr.payload;
        let gathered =
            request.len == 0 || gather(host, work.config.pd, payload, request.offset, body).is_ok();
        if !gathered {
            work.fail_at(self, position, WcStatus::LocProtErr, host);
        }
        gathered.then_some(request.meta)
    }

    /// Places an answer to the oldest work request. An error is how that ends.
    fn place_answer<H: Host>(
        work: &mut Queues,
        offset: u64,
        bytes: Bytes<'_>,
        host: &mut H,
    ) -> Result<(), WcStatus> {
        let pd = work.config.pd;
        let position = work.sq.position_of_front();
        let wqe = position.and_then(|position| work.sq.get_mut(position));
        let wqe = wqe.filter(|wqe| wqe.wr.op.is_answered() && wqe.part.begun);
        let wqe = wqe.ok_or(WcStatus::BadRespErr)?;
        let come = wqe.part.come as usize + bytes.len();
        let Payload::Sges(sges) = &wqe.wr.payload else {
            return Err(WcStatus::BadRespErr);
        };
        if offset != u64::from(wqe.part.come) || come > wqe.len as usize {
            return Err(WcStatus::BadRespErr);
        }
        scatter(host, pd, sges, wqe.part.come, bytes).map_err(|_| WcStatus::LocProtErr)?;
        wqe.part.come = come as u32;
        wqe.part.answered = wqe.part.come == wqe.len;
        work.sq.reads_out -= u32::from(wqe.part.answered);
        Ok(())
    }
}

impl Transport for StopAndWait {
    fn forget_answers(&mut self) {
        (self.answer, self.response) = (None, None);
    }

    fn has_next(&self, work: &Queues, space: Space) -> bool {
        match space {
            Space::Request => self.has_request(work),
            Space::Response => self.has_response(),
        }
    }

    fn next_len(&self, work: &Queues, space: Space) -> Option<u32> {
        match space {
            Space::Request => work.sq.current().map(|wqe| outgoing(wqe) - wqe.part.sent),
            Space::Response => self.answer.as_ref().map(Answer::left),
        }
    }

    fn next<H: Host>(
        &mut self,
        work: &mut Queues,
        (space, seq): (Space, u64),
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        match space {
            Space::Request => self.next_request(work, seq, frame, host),
            Space::Response => self.next_response(work, seq, frame, host),
        }
    }

    fn again<H: Host>(
        &mut self,
        work: &mut Queues,
        (space, _): (Space, u64),
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        match space {
            Space::Request => {
                let position = work.sq.position_of_front()?;
                self.put_request(work, position, frame, host)
            }
            Space::Response => self.put_response(work, frame, host),
        }
    }

    fn can_repeat<H: Host>(&self, work: &Queues, _seq: u64, host: &H) -> bool {
        let readable = |answer: &Answer| answer.check(work, host).is_ok();
        self.answer.as_ref().is_some_and(readable)
    }

    fn on_request<H: Host>(
        &mut self,
        work: &mut Queues,
        meta: SegMeta,
        unit: &Unit,
        payload: Bytes<'_>,
        in_order: bool,
        host: &mut H,
    ) -> Verdict {
        match work.attr.state {
            QpState::Rtr | QpState::Rts | QpState::Sqd if in_order => {
                self.carry_out(work, meta, unit, payload, host)
            }
            QpState::Rtr | QpState::Rts | QpState::Sqd => Verdict::Later,
            _ => Verdict::Ignore,
        }
    }

    fn on_response<H: Host>(
        &mut self,
        work: &mut Queues,
        unit: &Unit,
        payload: Bytes<'_>,
        host: &mut H,
    ) -> Verdict {
        if !matches!(work.attr.state, QpState::Rts | QpState::Sqd) {
            return Verdict::Placed;
        }
        let placed = match *unit {
            Unit::ReadAnswer { offset, .. } => Self::place_answer(work, offset, payload, host),
            _ => Err(WcStatus::BadRespErr),
        };
        match (placed, work.sq.position_of_front()) {
            (Ok(()), _) => work.retire(self, host),
            (Err(status), Some(position)) => work.fail_at(self, position, status, host),
            (Err(_), None) => work.enter_error(host),
        }
        Verdict::Placed
    }

    fn acked<H: Host>(&mut self, work: &mut Queues, space: Space, upto: u64, host: &mut H) {
        match space {
            Space::Request => {
                (self.acked, self.request, self.refusals) = (upto, None, 0);
                work.retire(self, host);
            }
            Space::Response => {
                self.response = None;
                self.answer = self.answer.take().filter(|answer| !answer.is_built());
            }
        }
    }

    fn on_not_ready<H: Host>(&mut self, work: &mut Queues, _seq: u64, host: &mut H) -> bool {
        let limit = work.attr.rnr_retry;
        let goes_on = limit == RNR_RETRY_INFINITE || self.refusals < limit;
        self.refusals = self.refusals.saturating_add(1);
        if !goes_on && let Some(position) = work.sq.position_of_front() {
            work.fail_at(self, position, WcStatus::RnrRetryExcErr, host);
        }
        goes_on
    }

    fn on_refused<H: Host>(&mut self, work: &mut Queues, _seq: u64, nak: Nak, host: &mut H) {
        match work.sq.position_of_front() {
            Some(position) => work.fail_at(self, position, nak.status(), host),
            None => work.enter_error(host),
        }
    }

    fn take_late_refusal(&mut self) -> Option<(u64, Nak)> {
        self.late_refusal.take()
    }
}

/// Bytes of its own memory that a work request sends.
fn outgoing(wqe: &Entry<Progress>) -> u32 {
    if wqe.wr.op.is_answered() { 0 } else { wqe.len }
}

/// What the bytes of a work request from `offset` on say to the peer. `Unit::Unreadable` where this
/// transport knows no such operation.
fn unit(wqe: &Entry<Progress>, offset: u32) -> Unit {
    let imm = match wqe.wr.op {
        SendOp::SendImm(imm) => Some(imm),
        _ => None,
    };
    match wqe.wr.op {
        SendOp::Send | SendOp::SendImm(_) => Unit::Send {
            msn: 0,
            offset,
            solicited: wqe.wr.flags.contains(SendFlags::SOLICITED),
            invalidate: None,
            imm,
        },
        SendOp::Write { addr, rkey } => Unit::Write {
            rkey,
            addr: addr.wrapping_add(u64::from(offset)),
        },
        SendOp::Read { addr, rkey } => Unit::Read {
            msn: 0,
            id: 0,
            len: wqe.len,
            rkey,
            addr,
        },
        _ => Unit::Unreadable,
    }
}
