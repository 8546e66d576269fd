//! The responder half: places and executes what the peer asks for, and builds the answers.

use std::collections::VecDeque;

use causeway_wire::rdmap::{Atomic, MAX_HEADER, Message, Segment};

use super::segments::{put_header, scatter};
use super::{Qp, sendq::Runs};
use crate::bytes::{Bytes, BytesMut};
use crate::host::{AtomicOp, Host, Remote};
use crate::types::{QpEvent, QpState, RecvWr, Wc, WcFlags, WcOpcode, WcStatus};
use crate::ulp::{Nak, SegMeta, Verdict};

/// A receive that a SEND is being placed into.
#[derive(Debug)]
struct Current {
    wr: RecvWr,
    capacity: u64,
    first: u64,
    placed: u32,
}

/// What an answer consists of.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Read {
        sink: u32,
        rkey: u32,
        addr: u64,
        len: u32,
    },
    Atomic {
        id: u32,
        msn: u32,
        original: u64,
    },
}

/// An answer, from the request's execution until the peer has acknowledged its last segment.
#[derive(Debug)]
struct Response {
    answer: Answer,
    /// Number of the request, for a refusal found late.
    request: u64,
    first: u64,
    end: Option<u64>,
    emitted: u32,
    runs: Runs,
}

/// State of the responder.
#[derive(Debug, Default)]
pub(super) struct Responder {
    current: Option<Current>,
    responses: VecDeque<Response>,
    /// How many of `responses`, from the front, are built whole.
    built: usize,
    /// Expected untagged message sequence numbers of queues 0 and 1.
    send_msn: u32,
    read_msn: u32,
    atomic_msn: u32,
    /// The WRITE under way or just done: number of its first segment, of the next, bytes placed.
    write: Option<(u64, u64, u32)>,
    established: bool,
    pub(super) late_refusal: Option<(u64, Nak)>,
}

impl Responder {
    pub fn has_response(&self) -> bool {
        self.built < self.responses.len()
    }

    pub fn acked(&mut self, upto: u64) {
        while self
            .responses
            .front()
            .is_some_and(|r| r.end.is_some_and(|end| end <= upto))
        {
            self.responses.pop_front();
            self.built = self.built.saturating_sub(1);
        }
    }

    /// Takes the receive under way, to flush it.
    pub fn take_current(&mut self) -> Option<u64> {
        self.current.take().map(|c| c.wr.wr_id)
    }

    pub fn drop_responses(&mut self) {
        self.responses.clear();
        self.built = 0;
    }

    /// Finds the answer that response segment `seq` belongs to.
    fn find(&self, seq: u64) -> Option<&Response> {
        let at = self
            .responses
            .partition_point(|r| r.end.is_some_and(|end| end <= seq));
        self.responses
            .get(at)
            .filter(|r| r.first <= seq && (r.end.is_some() || r.emitted > 0))
    }
}

impl Response {
    fn len(&self) -> u32 {
        match self.answer {
            Answer::Read { len, .. } => len,
            Answer::Atomic { .. } => 0,
        }
    }

    fn header(&self, offset: u32, last: bool) -> Segment {
        let message = match self.answer {
            Answer::Read { sink, .. } => Message::ReadResponse {
                stag: sink,
                to: u64::from(offset),
            },
            Answer::Atomic { id, msn, original } => Message::AtomicResponse {
                msn,
                request_id: id,
                original,
            },
        };
        Segment { message, last }
    }
}

impl Qp {
    /// Places or executes a request segment.
    pub(super) fn on_request<H: Host>(
        &mut self,
        meta: SegMeta,
        segment: Bytes<'_>,
        in_order: bool,
        host: &mut H,
    ) -> Verdict {
        if !matches!(
            self.attr.state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        ) {
            return Verdict::Ignore;
        }
        let mut head = [0; MAX_HEADER];
        let n = segment.copy_to(&mut head);
        let parsed = Segment::parse(&head[..n]);
        let Ok((segment_header, header)) = parsed else {
            return self.judge(Err(Nak::InvalidRequest), in_order, host);
        };
        let body = segment.split_at(header).1;
        if !in_order {
            return self.place_early(meta, segment_header, body, host);
        }
        let done = match segment_header.message {
            Message::Write { stag, to } => self.place_write(meta, stag, to, body, host),
            Message::Send {
                msn,
                mo,
                solicited,
                invalidate,
                imm,
            } => {
                let send = Send {
                    msn,
                    mo,
                    solicited,
                    invalidate,
                    imm,
                };
                self.place_send(meta, &send, body, host)
            }
            Message::Immediate {
                msn,
                solicited,
                imm,
                written,
            } => self.take_immediate(meta, msn, solicited, (imm, written), host),
            Message::ReadRequest {
                msn,
                sink_stag,
                len,
                src_stag,
                src_to,
                ..
            } => {
                let answer = Answer::Read {
                    sink: sink_stag,
                    rkey: src_stag,
                    addr: src_to,
                    len,
                };
                self.accept_read(meta.seq, msn, answer, host)
                    .map(|()| Verdict::Placed)
            }
            Message::AtomicRequest {
                msn,
                request_id,
                stag,
                to,
                op,
            } => self
                .execute_atomic(meta.seq, msn, (request_id, stag, to), op, host)
                .map(|()| Verdict::Placed),
            Message::ReadResponse { .. } | Message::AtomicResponse { .. } => {
                Err(Nak::InvalidRequest)
            }
        };
        self.judge(done, in_order, host)
    }

    /// Turns a refusal into the error state of the responder (InfiniBand specification 9.9.3,
    /// class C faults).
    fn judge<H: Host>(
        &mut self,
        done: Result<Verdict, Nak>,
        in_order: bool,
        host: &mut H,
    ) -> Verdict {
        match done {
            Ok(verdict) => {
                if verdict == Verdict::Placed && !self.responder.established {
                    self.responder.established = true;
                    if self.attr.state == QpState::Rtr {
                        host.event(self.config.qpn, QpEvent::CommEstablished);
                    }
                }
                verdict
            }
            Err(_) if !in_order => Verdict::Later,
            Err(nak) => {
                let event = match nak {
                    Nak::RemoteAccess => QpEvent::AccessError,
                    Nak::InvalidRequest => QpEvent::RequestError,
                    Nak::RemoteOperation => QpEvent::Fatal,
                };
                host.event(self.config.qpn, event);
                self.enter_error(host);
                Verdict::Refused(nak)
            }
        }
    }

    /// Places a middle segment ahead of its turn. Whatever is not plainly in order is judged when
    /// its turn comes.
    fn place_early<H: Host>(
        &mut self,
        meta: SegMeta,
        segment: Segment,
        body: Bytes<'_>,
        host: &mut H,
    ) -> Verdict {
        if segment.last || meta.last {
            return Verdict::Later;
        }
        let done = match segment.message {
            Message::Write { stag, to } => self.place_write(meta, stag, to, body, host),
            Message::Send { mo, .. } => match &mut self.responder.current {
                Some(current) if current.first == meta.first => {
                    let end = u64::from(mo) + body.len() as u64;
                    let fits = end <= current.capacity;
                    let pd = self.config.pd;
                    if fits && scatter(host, pd, &current.wr.sges, mo, body).is_ok() {
                        current.placed = current.placed.saturating_add(length(&body));
                        Ok(Verdict::Placed)
                    } else {
                        Ok(Verdict::Later)
                    }
                }
                _ => Ok(Verdict::Later),
            },
            _ => Ok(Verdict::Later),
        };
        self.judge(done, false, host)
    }

    fn place_write<H: Host>(
        &mut self,
        meta: SegMeta,
        stag: u32,
        to: u64,
        body: Bytes<'_>,
        host: &mut H,
    ) -> Result<Verdict, Nak> {
        if !self
            .attr
            .access
            .contains(crate::types::Access::REMOTE_WRITE)
        {
            return Err(Nak::InvalidRequest);
        }
        // A WRITE of no bytes needs no valid key (InfiniBand specification 9.7.4.1.5).
        let len = length(&body);
        if len > 0 {
            host.write_remote(self.config.pd, stag, to, body)
                .map_err(|_| Nak::RemoteAccess)?;
        }
        let so_far = match self.responder.write {
            Some((first, _, bytes)) if first == meta.first => bytes,
            _ => 0,
        };
        self.responder.write = Some((meta.first, meta.seq + 1, so_far.saturating_add(len)));
        Ok(Verdict::Placed)
    }

    fn pop_recv<H: Host>(&mut self, host: &mut H) -> Option<RecvWr> {
        if self.config.srq {
            host.pop_srq(self.config.qpn)
        } else {
            self.rq.pop_front()
        }
    }

    fn place_send<H: Host>(
        &mut self,
        meta: SegMeta,
        send: &Send,
        body: Bytes<'_>,
        host: &mut H,
    ) -> Result<Verdict, Nak> {
        if self.responder.current.is_none() {
            if meta.seq != meta.first || send.mo != 0 {
                return Err(Nak::InvalidRequest);
            }
            if send.msn != self.responder.send_msn.wrapping_add(1) {
                return Err(Nak::InvalidRequest);
            }
            let Some(wr) = self.pop_recv(host) else {
                return Ok(Verdict::NotReady(self.attr.min_rnr_timer));
            };
            let capacity = wr.sges.iter().map(|s| u64::from(s.length)).sum();
            self.responder.current = Some(Current {
                wr,
                capacity,
                first: meta.first,
                placed: 0,
            });
        }
        let Some(current) = &mut self.responder.current else {
            return Err(Nak::InvalidRequest);
        };
        let len = length(&body);
        let end = u64::from(send.mo) + u64::from(len);
        if current.first != meta.first {
            return Err(Nak::InvalidRequest);
        }
        if end > current.capacity {
            return Err(self.fail_recv(WcStatus::LocLenErr, Nak::InvalidRequest, host));
        }
        if scatter(host, self.config.pd, &current.wr.sges, send.mo, body).is_err() {
            return Err(self.fail_recv(WcStatus::LocProtErr, Nak::RemoteOperation, host));
        }
        current.placed = current.placed.saturating_add(len);
        if !meta.last {
            return Ok(Verdict::Placed);
        }
        if u64::from(current.placed) != end {
            return Err(self.fail_recv(WcStatus::LocLenErr, Nak::InvalidRequest, host));
        }
        self.finish_send(send, host)
    }

    fn finish_send<H: Host>(&mut self, send: &Send, host: &mut H) -> Result<Verdict, Nak> {
        if let Some(stag) = send.invalidate
            && host.invalidate(self.config.pd, stag).is_err()
        {
            return Err(self.fail_recv(WcStatus::LocAccessErr, Nak::RemoteAccess, host));
        }
        let Some(current) = self.responder.current.take() else {
            return Err(Nak::InvalidRequest);
        };
        self.responder.send_msn = send.msn;
        let (imm, flags) = match (send.imm, send.invalidate) {
            (Some(imm), _) => (imm, WcFlags::WITH_IMM),
            (None, Some(stag)) => (stag, WcFlags::WITH_INV),
            (None, None) => (0, WcFlags::empty()),
        };
        let blank = self.blank_wc(current.wr.wr_id, WcOpcode::Recv, WcStatus::Success);
        let wc = Wc {
            byte_len: current.placed,
            imm,
            flags,
            ..blank
        };
        host.complete_recv(self.config.qpn, wc, send.solicited);
        Ok(Verdict::Placed)
    }

    /// Completes the receive under way in error, and passes on what to tell the requester.
    fn fail_recv<H: Host>(&mut self, status: WcStatus, nak: Nak, host: &mut H) -> Nak {
        if let Some(wr_id) = self.responder.take_current() {
            self.complete_recv_error(host, wr_id, status);
        }
        nak
    }

    fn take_immediate<H: Host>(
        &mut self,
        meta: SegMeta,
        msn: u32,
        solicited: bool,
        (imm, written): (u32, u32),
        host: &mut H,
    ) -> Result<Verdict, Nak> {
        // A WRITE of no bytes has no segment: the one before this, if any, is another message.
        let agrees = match self.responder.write {
            _ if written == 0 => true,
            Some((_, next, bytes)) => next == meta.seq && bytes == written,
            None => false,
        };
        let expected = self.responder.send_msn.wrapping_add(1);
        if msn != expected || !agrees || self.responder.current.is_some() {
            return Err(Nak::InvalidRequest);
        }
        let Some(wr) = self.pop_recv(host) else {
            return Ok(Verdict::NotReady(self.attr.min_rnr_timer));
        };
        self.responder.send_msn = msn;
        let blank = self.blank_wc(wr.wr_id, WcOpcode::RecvRdmaWithImm, WcStatus::Success);
        let wc = Wc {
            byte_len: written,
            imm,
            flags: WcFlags::WITH_IMM,
            ..blank
        };
        host.complete_recv(self.config.qpn, wc, solicited);
        Ok(Verdict::Placed)
    }

    fn accept_read<H: Host>(
        &mut self,
        request: u64,
        msn: u32,
        answer: Answer,
        host: &mut H,
    ) -> Result<(), Nak> {
        if !self.attr.access.contains(crate::types::Access::REMOTE_READ) {
            return Err(Nak::InvalidRequest);
        }
        if let Answer::Read {
            rkey, addr, len, ..
        } = answer
            && len > 0
        {
            host.check_remote(self.config.pd, rkey, addr, u64::from(len), Remote::Read)
                .map_err(|_| Nak::RemoteAccess)?;
        }
        self.queue_answer(request, msn, answer)
    }

    fn execute_atomic<H: Host>(
        &mut self,
        request: u64,
        msn: u32,
        (id, stag, to): (u32, u32, u64),
        op: Atomic,
        host: &mut H,
    ) -> Result<(), Nak> {
        let allowed = self
            .attr
            .access
            .contains(crate::types::Access::REMOTE_ATOMIC);
        if !allowed || to % 8 != 0 || !self.may_queue_answer(msn) {
            return Err(Nak::InvalidRequest);
        }
        let op = match op {
            Atomic::FetchAdd { add } => AtomicOp::FetchAdd(add),
            Atomic::CmpSwap { compare, swap } => AtomicOp::CmpSwap { compare, swap },
        };
        let original = host
            .atomic(self.config.pd, stag, to, op)
            .map_err(|_| Nak::RemoteAccess)?;
        self.responder.atomic_msn = self.responder.atomic_msn.wrapping_add(1);
        let msn_out = self.responder.atomic_msn;
        self.queue_answer(
            request,
            msn,
            Answer::Atomic {
                id,
                msn: msn_out,
                original,
            },
        )
    }

    /// The peer keeps to the number of READs and atomics agreed on (`max_dest_rd_atomic`).
    fn may_queue_answer(&self, msn: u32) -> bool {
        let unbuilt = self.responder.responses.len() - self.responder.built;
        msn == self.responder.read_msn.wrapping_add(1)
            && unbuilt < usize::from(self.attr.max_dest_rd_atomic)
    }

    fn queue_answer(&mut self, request: u64, msn: u32, answer: Answer) -> Result<(), Nak> {
        if !self.may_queue_answer(msn) {
            return Err(Nak::InvalidRequest);
        }
        self.responder.read_msn = msn;
        self.responder.responses.push_back(Response {
            answer,
            request,
            first: 0,
            end: None,
            emitted: 0,
            runs: Runs::default(),
        });
        Ok(())
    }

    pub(super) fn next_response<H: Host>(
        &mut self,
        seq: u64,
        out: &mut BytesMut<'_>,
        host: &mut H,
    ) -> Option<(SegMeta, usize)> {
        let room = u32::try_from(out.len().checked_sub(MAX_HEADER)?).ok()?;
        let at = self.responder.built;
        let response = self.responder.responses.get_mut(at)?;
        if response.emitted == 0 && response.end.is_none() {
            response.first = seq;
        }
        let offset = response.emitted;
        let len = room.min(response.len() - offset);
        let built = self.build_response(at, seq, offset, len, out, host)?;
        let response = self.responder.responses.get_mut(at)?;
        response.runs.note(seq, offset, room);
        response.emitted += len;
        if built.0.last {
            response.end = Some(seq + 1);
            self.responder.built += 1;
        }
        Some(built)
    }

    pub(super) fn response_again<H: Host>(
        &mut self,
        seq: u64,
        out: &mut BytesMut<'_>,
        host: &mut H,
    ) -> Option<(SegMeta, usize)> {
        let response = self.responder.find(seq)?;
        let (offset, len) = response.runs.range(seq, response.len())?;
        let first = response.first;
        let at = self
            .responder
            .responses
            .iter()
            .position(|r| r.first == first)?;
        self.build_response(at, seq, offset, len, out, host)
    }

    fn build_response<H: Host>(
        &mut self,
        at: usize,
        seq: u64,
        offset: u32,
        len: u32,
        out: &mut BytesMut<'_>,
        host: &mut H,
    ) -> Option<(SegMeta, usize)> {
        let response = self.responder.responses.get(at)?;
        let last = offset + len == response.len();
        let header = put_header(&response.header(offset, last), out)?;
        if out.len() - header < len as usize {
            return None;
        }
        if let Answer::Read { rkey, addr, .. } = response.answer
            && len > 0
        {
            let addr = addr.wrapping_add(u64::from(offset));
            let room = out.slice(header, len as usize);
            if host.read_remote(self.config.pd, rkey, addr, room).is_err() {
                self.refuse_late(response.request, host);
                return None;
            }
        }
        let first = response.first;
        Some((SegMeta { seq, first, last }, header + len as usize))
    }

    /// The memory of a READ that was accepted has gone before its answer was built.
    fn refuse_late<H: Host>(&mut self, request: u64, host: &mut H) {
        self.responder.late_refusal = Some((request, Nak::RemoteAccess));
        self.responder.responses.truncate(self.responder.built);
        if self.attr.state != QpState::Err {
            host.event(self.config.qpn, QpEvent::AccessError);
            self.enter_error(host);
        }
    }
}

/// The fields of a SEND segment.
struct Send {
    msn: u32,
    mo: u32,
    solicited: bool,
    invalidate: Option<u32>,
    imm: Option<u32>,
}

fn length(body: &Bytes<'_>) -> u32 {
    u32::try_from(body.len()).unwrap_or(u32::MAX)
}
