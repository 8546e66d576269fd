//! The requester half: send work requests become units, acknowledgments and answers become
//! completions.

use super::{Iwarp, Queues, SendPart};
use crate::bytes::{Bytes, Payloads, PayloadsMut};
use crate::host::Host;
use crate::types::{
    Payload, QpState, RNR_RETRY_INFINITE, SendFlags, SendOp, Wc, WcOpcode, WcStatus,
};
use crate::ulp::{Nak, SegMeta, Verdict};
use crate::unit::{Frame, Unit};
use crate::work::{Part, PlainSend, gather, gather_parts, scatter, scatter_parts};

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

/// How many units of `each` bytes may be built of `left` bytes, so that others are left.
#[inline]
pub(super) fn not_last(left: u32, each: u32) -> u32 {
    left.saturating_sub(1).checked_div(each).unwrap_or(0)
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

impl Iwarp {
    /// Whether a request can be built now.
    pub(super) fn has_request(&self, work: &Queues) -> bool {
        if work.sq.is_held() {
            return false;
        }
        let Some(wqe) = work.sq.current() else {
            return false;
        };
        match work.attr.state {
            QpState::Rts => {
                wqe.part.is_begun() || (work.may_start(wqe) && !self.goes_directly(work, wqe))
            }
            // Draining: what is begun is finished, nothing is started.
            QpState::Sqd => wqe.part.is_begun(),
            _ => false,
        }
    }

    /// Payload that the work request to be sent next has left.
    pub(super) fn next_request_len(&self, work: &Queues) -> Option<u32> {
        let wqe = work.sq.current()?;
        Some(wqe.outgoing() - wqe.part.emitted)
    }

    pub(super) fn next_request<H: Host>(
        &mut self,
        work: &mut Queues,
        seq: u64,
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        loop {
            if !self.has_request(work) {
                return None;
            }
            let room = frame.room(work.sq.current()?.kind())?;
            if work.sq.current()?.is_whole(room) {
                // Where it fails, nothing is sent after it.
                return self.next_whole(work, seq, frame, host);
            }
            if !work.sq.current()?.part.is_begun() && !self.start(work, seq, host) {
                continue;
            }
            let position = work.sq.cursor;
            let plan = self.plan_next(work, position, seq, room)?;
            self.build(work, position, &plan, frame, host)?;
            self.advance(work, position, seq, &plan, room);
            return Some(plan.meta(seq));
        }
    }

    /// Whether the next thing to send, and the last, is a message that one unit with `room` bytes
    /// of payload carries whole.
    #[inline]
    pub(super) fn is_last_whole(&self, work: &Queues, room: u32) -> bool {
        work.attr.state == QpState::Rts
            && work.sq.unsent() == 1
            && !self.answers.is_due()
            && self.has_request(work)
            && work.sq.current().is_some_and(|wqe| wqe.is_whole(room))
    }

    /// Builds a message that is one unit, as most are, in one go. `None` where it has failed.
    pub(super) fn next_whole<H: Host>(
        &mut self,
        work: &mut Queues,
        seq: u64,
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        let position = work.sq.cursor;
        let msn = self.send_msn.wrapping_add(1);
        let wqe = work.sq.get_mut(position)?;
        let untagged = !matches!(wqe.wr.op, SendOp::Write { .. });
        wqe.part.msn = if untagged { msn } else { 0 };
        let len = wqe.len as usize;
        let plain = matches!(wqe.wr.op, SendOp::Send);
        let body = if plain && !wqe.wr.flags.contains(SendFlags::SOLICITED) {
            frame.put(&Unit::plain_send(msn), true, len)?
        } else {
            frame.put(&wqe.unit(position, 0, false), true, len)?
        };
        if len > 0 && gather(host, work.config.pd, &wqe.wr.payload, 0, body).is_err() {
            work.finish_local(self, Some(WcStatus::LocProtErr), host);
            return None;
        }
        wqe.part.first = seq;
        wqe.part.end = Some(seq + 1);
        wqe.part.emitted = wqe.len;
        wqe.part.runs.note(seq, 0, wqe.len);
        work.sq.cursor = position + 1;
        if untagged {
            self.count_message();
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
    /// `seq` ([`Iwarp::push_plain`]): there is room for it, and nothing else to send.
    #[inline(always)]
    pub(super) fn takes_plain(&self, work: &Queues, len: u32, inline: bool, seq: u64) -> bool {
        let cap = &work.config.cap;
        let fits = match inline {
            true => work.gates.sends && len <= cap.max_inline_data,
            false => work.gates.ranges,
        };
        fits && work.sq.takes_plain(seq)
            && work.sq.used() < cap.max_send_wr
            && !self.answers.is_due()
    }

    /// As [`Iwarp::push_plain`], where the send queue has a place for it
    /// ([`SendQueue::has_plain_place`](crate::work::SendQueue::has_plain_place)).
    #[inline(always)]
    pub(super) fn put_plain(&mut self, work: &mut Queues, send: PlainSend, seq: u64) {
        (self.behind, self.since_plain) = (0, 0);
        self.send_msn = self.send_msn.wrapping_add(1);
        work.sq.put_plain(send, seq);
    }

    /// Queues the next message as one that was sent whole as segment `seq`.
    #[inline(always)]
    pub(super) fn push_plain(&mut self, work: &mut Queues, send: PlainSend, seq: u64) {
        (self.behind, self.since_plain) = (0, 0);
        self.send_msn = self.send_msn.wrapping_add(1);
        work.sq.push_plain(send, seq);
    }

    /// One more message of queue 0 is on its way, and is not plain.
    #[inline]
    pub(super) fn count_message(&mut self) {
        self.send_msn = self.send_msn.wrapping_add(1);
        self.since_plain = self.since_plain.wrapping_add(1);
    }

    /// Position of the started work request that segment `seq` belongs to, which is not plain any
    /// more then.
    fn find(&self, work: &mut Queues, seq: u64) -> Option<u64> {
        let (end, newest) = (
            work.sq.plain_end(),
            self.send_msn.wrapping_sub(self.since_plain),
        );
        work.sq.widen_at(seq, |seq, len| {
            // Those that follow it, in numbers and in messages, up to the newest.
            let later = end.map_or(0, |end| end - 1 - seq);
            SendPart::sent(len, seq, newest.wrapping_sub(later as u32))
        });
        // Those with segments are in order of `first`; local ones have an empty range.
        let found = work
            .sq
            .find(|wqe| wqe.part.end.is_some_and(|end| end <= seq));
        found
            .filter(|(_, wqe)| wqe.part.first <= seq)
            .map(|(position, _)| position)
    }

    /// Begins the work request at the cursor. Returns false where it needs no unit, because it
    /// is local or has failed.
    fn start<H: Host>(&mut self, work: &mut Queues, seq: u64, host: &mut H) -> bool {
        let Some(wqe) = work.sq.current() else {
            return false;
        };
        let op = wqe.wr.op;
        if op.is_local() {
            work.carry_out_local(self, host);
            return false;
        }
        if let Err(status) = work.check_start(wqe, host) {
            work.finish_local(self, Some(status), host);
            return false;
        }
        let msn = match op {
            SendOp::Write { .. } => 0,
            SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. } => {
                self.read_msn = self.read_msn.wrapping_add(1);
                work.sq.reads_out += 1;
                self.read_msn
            }
            _ => {
                self.count_message();
                self.send_msn
            }
        };
        if let Some(wqe) = work.sq.current_mut() {
            wqe.part.first = seq;
            wqe.part.msn = msn;
        }
        true
    }

    #[inline]
    fn plan_next(&self, work: &Queues, position: u64, seq: u64, room: u32) -> Option<Plan> {
        let wqe = work.sq.get(position)?;
        let total = wqe.outgoing();
        let with_imm = matches!(wqe.wr.op, SendOp::WriteImm { .. });
        let sent = wqe.part.emitted == total || wqe.part.placed == Some((wqe.part.emitted, total));
        if with_imm && sent {
            return Some(Plan {
                unit: wqe.unit(position, 0, true),
                last: true,
                first: seq,
                offset: 0,
                len: 0,
                direct: wqe.part.placed.is_some(),
            });
        }
        let (offset, len, last) = wqe.next_part(wqe.part.emitted, room);
        Some(Plan {
            unit: wqe.unit(position, offset, false),
            last,
            first: wqe.part.first,
            offset,
            len,
            direct: wqe.part.placed.is_some(),
        })
    }

    fn plan_again(&self, work: &Queues, position: u64, seq: u64) -> Option<Plan> {
        let wqe = work.sq.get(position)?;
        let total = wqe.outgoing();
        let with_imm = matches!(wqe.wr.op, SendOp::WriteImm { .. });
        if with_imm && wqe.part.end == Some(seq + 1) {
            return Some(Plan {
                unit: wqe.unit(position, 0, true),
                last: true,
                first: seq,
                offset: 0,
                len: 0,
                direct: wqe.part.placed.is_some(),
            });
        }
        let (offset, room) = wqe.part.runs.range(seq, total)?;
        let (offset, len, last) = wqe.next_part(offset, room);
        Some(Plan {
            unit: wqe.unit(position, offset, false),
            last,
            first: wqe.part.first,
            offset,
            len,
            direct: wqe.part.placed.is_some(),
        })
    }

    /// Builds a planned unit. A gather that fails halts the queue at this work request.
    fn build<H: Host>(
        &mut self,
        work: &mut Queues,
        position: u64,
        plan: &Plan,
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<()> {
        let body = frame.put(&plan.unit, plan.last, plan.len as usize)?;
        if plan.len > 0 {
            let wqe = work.sq.get(position)?;
            if gather(host, work.config.pd, &wqe.wr.payload, plan.offset, body).is_err() {
                work.fail_at(self, position, WcStatus::LocProtErr, host);
                return None;
            }
        }
        Some(())
    }

    fn advance(&mut self, work: &mut Queues, position: u64, seq: u64, plan: &Plan, room: u32) {
        let Some(wqe) = work.sq.get_mut(position) else {
            return;
        };
        let with_imm = matches!(wqe.wr.op, SendOp::WriteImm { .. });
        let is_imm = matches!(plan.unit, Unit::Immediate { .. });
        if !is_imm {
            if plan.offset == wqe.part.emitted {
                wqe.part.runs.note(seq, plan.offset, room);
            } else {
                wqe.part.runs.begin(seq, plan.offset, room);
            }
            wqe.part.emitted = plan.offset + plan.len;
        }
        if plan.last && (!with_imm || is_imm) {
            wqe.part.end = Some(seq + 1);
            work.sq.cursor = position + 1;
        }
    }

    /// See [`Ulp::next_alike`](crate::ulp::Ulp::next_alike). What fails is for
    /// [`Iwarp::next_request`] to find.
    pub(super) fn next_alike<H: Host>(
        &mut self,
        work: &mut Queues,
        seq: u64,
        bodies: PayloadsMut<'_>,
        host: &mut H,
    ) -> usize {
        if work.sq.is_held() || !matches!(work.attr.state, QpState::Rts | QpState::Sqd) {
            return 0;
        }
        let pd = work.config.pd;
        let Some((wqe, each)) = work.sq.current_mut().zip(u32::try_from(bodies.each()).ok()) else {
            return 0;
        };
        let offset = wqe.part.emitted;
        let count = not_last(wqe.outgoing().saturating_sub(offset), each);
        let goes_on =
            offset > 0 && count > 0 && wqe.part.placed.is_none() && wqe.part.runs.ends_with(each);
        if !goes_on {
            return 0;
        }
        let bodies = bodies.at_most(count as usize);
        let built = gather_parts(host, pd, &wqe.wr.payload, offset, bodies);
        if built > 0 {
            // No more than `count`, which fits.
            wqe.part.emitted += built as u32 * each;
            self.handed_over(work, seq + built as u64 - 1, host);
        }
        built
    }

    pub(super) fn request_again<H: Host>(
        &mut self,
        work: &mut Queues,
        seq: u64,
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        if work.attr.state == QpState::Err {
            return None;
        }
        let position = self.find(work, seq)?;
        let plan = self.plan_again(work, position, seq)?;
        self.build(work, position, &plan, frame, host)?;
        Some(plan.meta(seq))
    }

    #[inline(always)]
    pub(super) fn requests_acked<H: Host>(&mut self, work: &mut Queues, upto: u64, host: &mut H) {
        if upto > self.acked {
            self.acked = upto;
            work.retire(self, host);
        }
    }

    /// See [`crate::qp::Qp::one_acked`].
    #[inline(always)]
    pub(super) fn one_acked(&self, work: &Queues, upto: u64) -> Option<Wc> {
        let send = work.sq.only_below(upto)?;
        if !work.gates.sends || !work.signaled(send.flags) {
            return None;
        }
        Some(Wc {
            byte_len: send.len,
            ..work.blank_wc(send.wr_id, WcOpcode::Send, WcStatus::Success)
        })
    }

    /// See [`crate::qp::Qp::take_one_acked`].
    #[inline(always)]
    pub(super) fn take_one_acked(&mut self, work: &mut Queues, upto: u64) {
        (self.placed, self.acked) = (upto, upto);
        work.sq.drop_polled();
    }

    /// Whether to send request `seq`, refused for want of a receive, again.
    pub(super) fn on_not_ready<H: Host>(
        &mut self,
        work: &mut Queues,
        seq: u64,
        host: &mut H,
    ) -> bool {
        let Some(position) = self.find(work, seq) else {
            return false;
        };
        let tries = match self.rnr {
            Some((at, tries)) if at == seq => tries,
            _ => 0,
        };
        let limit = work.attr.rnr_retry;
        if limit != RNR_RETRY_INFINITE && tries >= limit {
            work.fail_at(self, position, WcStatus::RnrRetryExcErr, host);
            return false;
        }
        self.rnr = Some((seq, tries.saturating_add(1)));
        true
    }

    pub(super) fn on_refused<H: Host>(
        &mut self,
        work: &mut Queues,
        seq: u64,
        nak: Nak,
        host: &mut H,
    ) {
        if work.attr.state == QpState::Err {
            return;
        }
        self.requests_acked(work, seq, host);
        match self.find(work, seq) {
            Some(position) => work.fail_at(self, position, nak.status(), host),
            None => work.enter_error(host),
        }
    }

    /// Places an answer.
    pub(super) fn on_response<H: Host>(
        &mut self,
        work: &mut Queues,
        unit: &Unit,
        payload: Bytes<'_>,
        host: &mut H,
    ) -> Verdict {
        if !matches!(work.attr.state, QpState::Rts | QpState::Sqd) {
            // Late answers of a failed queue pair: acknowledge them, so that the peer forgets them.
            return Verdict::Placed;
        }
        let placed = match *unit {
            Unit::ReadAnswer { id, offset } => self.place_answer(work, id, offset, payload, host),
            Unit::AtomicAnswer { id, original, .. } => {
                self.place_answer(work, id, 0, original.to_ne_bytes().as_slice().into(), host)
            }
            _ => Err(None),
        };
        match placed {
            Ok(()) => work.retire(self, host),
            Err(Some((position, status))) => work.fail_at(self, position, status, host),
            // An answer to nothing: a faulty peer.
            Err(None) => {
                let front = work.sq.position_of_front();
                match front.filter(|_| work.sq.in_flight()) {
                    Some(position) => work.fail_at(self, position, WcStatus::BadRespErr, host),
                    None => work.enter_error(host),
                }
            }
        }
        Verdict::Placed
    }

    /// See [`Ulp::receive_alike`](crate::ulp::Ulp::receive_alike). What would make the answer whole
    /// is for [`Iwarp::on_response`] to take, and so is what fails.
    pub(super) fn on_responses_alike<H: Host>(
        &mut self,
        work: &mut Queues,
        unit: &Unit,
        payloads: Payloads<'_>,
        host: &mut H,
    ) -> usize {
        let (Unit::ReadAnswer { id, offset }, QpState::Rts | QpState::Sqd) =
            (*unit, work.attr.state)
        else {
            return 0;
        };
        let pd = work.config.pd;
        let each = payloads.each() as u32;
        let found = work.sq.position_of(id);
        let (Some(wqe), Ok(offset), Ok(total)) = (
            found.and_then(|position| work.sq.get_mut(position)),
            u32::try_from(offset),
            u32::try_from(payloads.total()),
        ) else {
            return 0;
        };
        let part = &mut wqe.part;
        let expected = wqe.wr.op.is_answered() && part.end.is_some() && !part.answered;
        let end = offset.checked_add(total);
        let all = part.answered_bytes.checked_add(total);
        let fits = end.is_some_and(|end| end <= wqe.len) && all.is_some_and(|all| all < wqe.len);
        let Payload::Sges(sges) = &wqe.wr.payload else {
            return 0;
        };
        if !expected || !fits {
            return 0;
        }
        let placed = scatter_parts(host, pd, sges, offset, payloads);
        // No more than `total`, which fits.
        part.answered_bytes += placed as u32 * each;
        placed
    }

    /// Scatters an answer's bytes and counts them: each unit arrives once, so the answer is
    /// whole when as many bytes as asked for have come.
    fn place_answer<H: Host>(
        &mut self,
        work: &mut Queues,
        id: u32,
        offset: u64,
        bytes: Bytes<'_>,
        host: &mut H,
    ) -> Result<(), Option<(u64, WcStatus)>> {
        let position = work.sq.position_of(id).ok_or(None)?;
        let pd = work.config.pd;
        let wqe = work.sq.get_mut(position).ok_or(None)?;
        if !wqe.wr.op.is_answered() || wqe.part.end.is_none() || wqe.part.answered {
            return Err(None);
        }
        let bad = Some((position, WcStatus::BadRespErr));
        let len = u32::try_from(bytes.len()).map_err(|_| bad)?;
        let offset = u32::try_from(offset).map_err(|_| bad)?;
        let fits = offset.checked_add(len).is_some_and(|end| end <= wqe.len);
        let total = wqe
            .part
            .answered_bytes
            .checked_add(len)
            .filter(|t| fits && *t <= wqe.len);
        let total = total.ok_or(bad)?;
        if let Payload::Sges(sges) = &wqe.wr.payload
            && scatter(host, pd, sges, offset, bytes).is_err()
        {
            return Err(Some((position, WcStatus::LocProtErr)));
        }
        wqe.part.answered_bytes = total;
        if total == wqe.len {
            wqe.part.answered = true;
            work.sq.reads_out = work.sq.reads_out.saturating_sub(1);
        }
        Ok(())
    }
}
