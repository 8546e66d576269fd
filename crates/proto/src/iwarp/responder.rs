//! The responder half: places and executes what the peer asks for.

use super::answers::Answer;
use super::{Iwarp, Queues};
use crate::bytes::{Bytes, Payloads};
use crate::host::Host;
use crate::types::{Access, QpEvent, QpState, Service, Sge, Wc, WcFlags, WcOpcode, WcStatus};
use crate::ulp::{Nak, SegMeta, Verdict};
use crate::unit::Unit;
use crate::work::{capacity, scatter, scatter_parts};

/// A receive that a SEND is being placed into.
#[derive(Debug)]
pub struct Current {
    capacity: u64,
    first: u64,
    placed: u32,
}

/// State of the responder.
#[derive(Debug, Default)]
pub struct Responder {
    pub(super) current: Option<Current>,
    /// Expected message sequence number of untagged queue 0.
    pub(super) send_msn: u32,
    /// The WRITE under way or just done: number of its first unit, of the next, bytes placed.
    write: Option<(u64, u64, u32)>,
    /// The message of an unreliable connection that is being dropped, by its first unit.
    pub(super) dropping: Option<u64>,
    pub late_refusal: Option<(u64, Nak)>,
}

impl Iwarp {
    /// Places or executes a request.
    pub(super) fn on_request<H: Host>(
        &mut self,
        work: &mut Queues,
        meta: SegMeta,
        unit: &Unit,
        payload: Bytes<'_>,
        in_order: bool,
        host: &mut H,
    ) -> Verdict {
        if !matches!(
            work.attr.state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        ) {
            return Verdict::Ignore;
        }
        if work.config.service == Service::Uc {
            return self.on_unreliable(work, meta, unit, payload, in_order, host);
        }
        if !in_order {
            return self.place_early(work, meta, unit, payload, host);
        }
        let done = self.execute(work, meta, unit, payload, host);
        self.judge(work, done, in_order, host)
    }

    /// See [`Ulp::receive_alike`](crate::ulp::Ulp::receive_alike). What is not plainly right is for
    /// [`Iwarp::on_request`] to judge.
    pub(super) fn on_requests_alike<H: Host>(
        &mut self,
        work: &mut Queues,
        meta: SegMeta,
        unit: &Unit,
        payloads: Payloads<'_>,
        host: &mut H,
    ) -> usize {
        let receives = matches!(
            work.attr.state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        );
        let each = payloads.each();
        if !receives || work.config.service != Service::Rc || each == 0 {
            return 0;
        }
        let placed = match *unit {
            Unit::Write { rkey, addr } if work.attr.access.contains(Access::REMOTE_WRITE) => {
                host.write_remote_parts(work.via(), rkey, addr, payloads)
            }
            Unit::Send { offset, .. } => {
                let end = u64::from(offset) + payloads.total();
                let current = self.responder.current.as_ref();
                let fits = current.is_some_and(|c| c.first == meta.first && end <= c.capacity);
                match work.receiving().filter(|_| fits) {
                    Some((sges, pd)) => scatter_parts(host, pd, sges, offset, payloads),
                    None => 0,
                }
            }
            _ => 0,
        };
        if placed == 0 {
            return 0;
        }
        let bytes = u32::try_from(placed * each).unwrap_or(u32::MAX);
        match (unit, &mut self.responder.current) {
            (Unit::Send { .. }, Some(current)) => {
                current.placed = current.placed.saturating_add(bytes);
            }
            _ => self.count_written(meta.first, meta.seq + placed as u64, bytes),
        }
        work.note_established(host);
        placed
    }

    /// A WRITE has got so many bytes more. Its first unit is number `first`, its next one `next`.
    fn count_written(&mut self, first: u64, next: u64, bytes: u32) {
        let so_far = match self.responder.write {
            Some((known, _, so_far)) if known == first => so_far,
            _ => 0,
        };
        self.responder.write = Some((first, next, so_far.saturating_add(bytes)));
    }

    /// Places a SEND that is one unit, the next expected and without options, as its link
    /// says: what carries it names neither its number nor what it is.
    pub(super) fn on_message<H: Host>(
        &mut self,
        work: &mut Queues,
        meta: SegMeta,
        body: Bytes<'_>,
        host: &mut H,
    ) -> Verdict {
        let due = work.config.service == Service::Rc && self.responder.current.is_none();
        let unit = match due {
            true => Unit::plain_send(self.responder.send_msn.wrapping_add(1)),
            false => Unit::Unreadable,
        };
        self.on_request(work, meta, &unit, body, true, host)
    }

    /// As [`Ulp::message`](crate::ulp::Ulp::message), where nothing is out of the ordinary: the
    /// shortest way to its completion. Returns false, with nothing done, where that must look.
    #[inline(always)]
    pub(super) fn receive_plain<H: Host>(
        &mut self,
        work: &mut Queues,
        body: Bytes<'_>,
        host: &mut H,
    ) -> bool {
        let Some((wr_id, range)) = self.takes_message(work, length(&body)) else {
            return false;
        };
        let placed = host.write_local(work.config.pd, range.lkey, range.addr, body);
        if placed.is_ok() {
            let wc = self.took_message(work, wr_id, length(&body));
            host.complete_recv(work.config.qpn, wc, false);
        }
        placed.is_ok()
    }

    /// The receive that a SEND without options, of `len` bytes, the next of its queue pair, can be
    /// placed into at once: its name and its only range. `None` where there is more to look at.
    #[inline(always)]
    pub(super) fn takes_message(&self, work: &Queues, len: u32) -> Option<(u64, Sge)> {
        let (wr_id, range) = work.rq.front_range()?;
        // From one byte on. One of several ranges shows none that has room.
        let fits = len.wrapping_sub(1) < range.length;
        let takes = fits && work.gates.messages && self.responder.current.is_none();
        takes.then_some((wr_id, *range))
    }

    /// Takes the receive that [`Iwarp::takes_message`] has shown, into which a message of `len`
    /// bytes was placed. Returns its completion.
    #[inline(always)]
    pub(super) fn took_message(&mut self, work: &mut Queues, wr_id: u64, len: u32) -> Wc {
        work.rq.drop_range();
        self.responder.send_msn = self.responder.send_msn.wrapping_add(1);
        Wc {
            byte_len: len,
            ..work.blank_wc(wr_id, WcOpcode::Recv, WcStatus::Success)
        }
    }

    pub(super) fn execute<H: Host>(
        &mut self,
        work: &mut Queues,
        meta: SegMeta,
        unit: &Unit,
        body: Bytes<'_>,
        host: &mut H,
    ) -> Result<Verdict, Nak> {
        match *unit {
            Unit::Write { rkey, addr } => self.place_write(work, meta, rkey, addr, body, host),
            Unit::Send {
                msn,
                offset,
                solicited,
                invalidate,
                imm,
            } => {
                let send = Send {
                    msn,
                    offset,
                    solicited,
                    invalidate,
                    imm,
                };
                self.place_send(work, meta, &send, body, host)
            }
            Unit::Immediate {
                msn,
                solicited,
                imm,
                written,
            } => self.take_immediate(work, meta, msn, solicited, (imm, written), host),
            Unit::Read {
                msn,
                id,
                len,
                rkey,
                addr,
            } => {
                let answer = Answer::Read {
                    id,
                    rkey,
                    addr,
                    len,
                };
                self.accept_read(work, meta.seq, msn, answer, host)
                    .map(|()| Verdict::Placed)
            }
            Unit::Atomic {
                msn,
                id,
                rkey,
                addr,
                op,
            } => self
                .execute_atomic(work, meta.seq, msn, (id, rkey, addr), op, host)
                .map(|()| Verdict::Placed),
            Unit::ReadAnswer { .. } | Unit::AtomicAnswer { .. } | Unit::Unreadable => {
                Err(Nak::InvalidRequest)
            }
        }
    }

    /// Turns a refusal into the error state of the responder (InfiniBand specification 9.9.3,
    /// class C faults).
    fn judge<H: Host>(
        &mut self,
        work: &mut Queues,
        done: Result<Verdict, Nak>,
        in_order: bool,
        host: &mut H,
    ) -> Verdict {
        match done {
            Ok(verdict) => {
                if verdict == Verdict::Placed {
                    work.note_established(host);
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
                host.event(work.config.qpn, event);
                work.enter_error(host);
                Verdict::Refused(nak)
            }
        }
    }

    /// Places a middle unit ahead of its turn. Whatever is not plainly in order is judged when
    /// its turn comes.
    fn place_early<H: Host>(
        &mut self,
        work: &mut Queues,
        meta: SegMeta,
        unit: &Unit,
        body: Bytes<'_>,
        host: &mut H,
    ) -> Verdict {
        if meta.last {
            return Verdict::Later;
        }
        let done = match *unit {
            Unit::Write { rkey, addr } => self.place_write(work, meta, rkey, addr, body, host),
            Unit::Send { offset, .. } => match &mut self.responder.current {
                Some(current) if current.first == meta.first => {
                    let end = u64::from(offset) + body.len() as u64;
                    let fits = end <= current.capacity;
                    let wr = work.receiving();
                    let placed =
                        |(sges, pd): (&[Sge], u32)| scatter(host, pd, sges, offset, body).is_ok();
                    if fits && wr.is_some_and(placed) {
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
        self.judge(work, done, false, host)
    }

    fn place_write<H: Host>(
        &mut self,
        work: &mut Queues,
        meta: SegMeta,
        rkey: u32,
        addr: u64,
        body: Bytes<'_>,
        host: &mut H,
    ) -> Result<Verdict, Nak> {
        if !work.attr.access.contains(Access::REMOTE_WRITE) {
            return Err(Nak::InvalidRequest);
        }
        // A WRITE of no bytes needs no valid key (InfiniBand specification 9.7.4.1.5).
        let len = length(&body);
        if len > 0 {
            host.write_remote(work.via(), rkey, addr, body)
                .map_err(|_| Nak::RemoteAccess)?;
        }
        self.count_written(meta.first, meta.seq + 1, len);
        Ok(Verdict::Placed)
    }

    fn place_send<H: Host>(
        &mut self,
        work: &mut Queues,
        meta: SegMeta,
        send: &Send,
        body: Bytes<'_>,
        host: &mut H,
    ) -> Result<Verdict, Nak> {
        if self.responder.current.is_none() {
            if meta.last && !work.config.srq && send.invalidate.is_none() {
                return self.place_whole(work, meta, send, body, host);
            }
            let expected = self.responder.send_msn.wrapping_add(1);
            if meta.seq != meta.first || send.offset != 0 || send.msn != expected {
                return Err(Nak::InvalidRequest);
            }
            let Some((sges, _)) = work.begin_recv(host) else {
                return Ok(Verdict::NotReady(work.attr.min_rnr_timer));
            };
            self.responder.current = Some(Current {
                capacity: capacity(sges),
                first: meta.first,
                placed: 0,
            });
        }
        let wr = work.receiving();
        let (Some(current), Some((sges, pd))) = (&mut self.responder.current, wr) else {
            return Err(Nak::InvalidRequest);
        };
        let len = length(&body);
        let end = u64::from(send.offset) + u64::from(len);
        if current.first != meta.first {
            return Err(Nak::InvalidRequest);
        }
        if end > current.capacity {
            return Err(self.fail_recv(work, WcStatus::LocLenErr, Nak::InvalidRequest, host));
        }
        if scatter(host, pd, sges, send.offset, body).is_err() {
            return Err(self.fail_recv(work, WcStatus::LocProtErr, Nak::RemoteOperation, host));
        }
        current.placed = current.placed.saturating_add(len);
        if !meta.last {
            return Ok(Verdict::Placed);
        }
        if u64::from(current.placed) != end {
            return Err(self.fail_recv(work, WcStatus::LocLenErr, Nak::InvalidRequest, host));
        }
        self.finish_send(work, send, host)
    }

    /// Places a SEND that is one unit, as most are, in one go. Invalidation aside.
    fn place_whole<H: Host>(
        &mut self,
        work: &mut Queues,
        meta: SegMeta,
        send: &Send,
        body: Bytes<'_>,
        host: &mut H,
    ) -> Result<Verdict, Nak> {
        let expected = self.responder.send_msn.wrapping_add(1);
        if meta.seq != meta.first || send.offset != 0 || send.msn != expected {
            return Err(Nak::InvalidRequest);
        }
        let Some((wr_id, sges)) = work.rq.front() else {
            return Ok(Verdict::NotReady(work.attr.min_rnr_timer));
        };
        let len = length(&body);
        let failed = if u64::from(len) > capacity(sges) {
            Some((WcStatus::LocLenErr, Nak::InvalidRequest))
        } else {
            let placed = scatter(host, work.config.pd, sges, 0, body);
            placed
                .err()
                .map(|_| (WcStatus::LocProtErr, Nak::RemoteOperation))
        };
        if let Some((status, nak)) = failed
            && work.spares(status)
        {
            return Err(nak);
        }
        work.rq.pop();
        if let Some((status, nak)) = failed {
            work.complete_recv_error(host, wr_id, status);
            return Err(nak);
        }
        self.responder.send_msn = expected;
        let wc = Wc {
            byte_len: len,
            imm: send.imm.unwrap_or(0),
            flags: send.imm.map_or(WcFlags::empty(), |_| WcFlags::WITH_IMM),
            ..work.blank_wc(wr_id, WcOpcode::Recv, WcStatus::Success)
        };
        host.complete_recv(work.config.qpn, wc, send.solicited);
        Ok(Verdict::Placed)
    }

    fn finish_send<H: Host>(
        &mut self,
        work: &mut Queues,
        send: &Send,
        host: &mut H,
    ) -> Result<Verdict, Nak> {
        if let Some(rkey) = send.invalidate {
            match host.invalidate(work.via(), rkey) {
                Ok(None) => {}
                // It accesses directly what all before this request is done for, and waits for the
                // acknowledgment of this one before it goes on.
                Ok(Some(key)) => host.expel(work.config.qpn, key),
                Err(_) => {
                    return Err(self.fail_recv(
                        work,
                        WcStatus::LocAccessErr,
                        Nak::RemoteAccess,
                        host,
                    ));
                }
            }
        }
        let (Some(current), Some(wr_id)) = (self.responder.current.take(), work.end_recv()) else {
            return Err(Nak::InvalidRequest);
        };
        self.responder.send_msn = send.msn;
        let (imm, flags) = match (send.imm, send.invalidate) {
            (Some(imm), _) => (imm, WcFlags::WITH_IMM),
            (None, Some(rkey)) => (rkey, WcFlags::WITH_INV),
            (None, None) => (0, WcFlags::empty()),
        };
        let blank = work.blank_wc(wr_id, WcOpcode::Recv, WcStatus::Success);
        let wc = Wc {
            byte_len: current.placed,
            imm,
            flags,
            ..blank
        };
        host.complete_recv(work.config.qpn, wc, send.solicited);
        Ok(Verdict::Placed)
    }

    /// Completes the receive under way in error, and passes on what to tell the requester.
    fn fail_recv<H: Host>(
        &mut self,
        work: &mut Queues,
        status: WcStatus,
        nak: Nak,
        host: &mut H,
    ) -> Nak {
        if self.responder.current.take().is_some()
            && !work.spares(status)
            && let Some(wr_id) = work.end_recv()
        {
            work.complete_recv_error(host, wr_id, status);
        }
        nak
    }

    fn take_immediate<H: Host>(
        &mut self,
        work: &mut Queues,
        meta: SegMeta,
        msn: u32,
        solicited: bool,
        (imm, written): (u32, u32),
        host: &mut H,
    ) -> Result<Verdict, Nak> {
        // A WRITE of no bytes has no unit: the one before this, if any, is another message.
        let agrees = match self.responder.write {
            _ if written == 0 || meta.direct => true,
            Some((_, next, bytes)) => next == meta.seq && bytes == written,
            None => false,
        };
        let expected = self.responder.send_msn.wrapping_add(1);
        if msn != expected || !agrees || self.responder.current.is_some() {
            return Err(Nak::InvalidRequest);
        }
        let Some((wr, _)) = work.pop_recv(host) else {
            return Ok(Verdict::NotReady(work.attr.min_rnr_timer));
        };
        self.responder.send_msn = msn;
        let blank = work.blank_wc(wr.wr_id, WcOpcode::RecvRdmaWithImm, WcStatus::Success);
        let wc = Wc {
            byte_len: written,
            imm,
            flags: WcFlags::WITH_IMM,
            ..blank
        };
        host.complete_recv(work.config.qpn, wc, solicited);
        Ok(Verdict::Placed)
    }
}

/// The fields of [`Unit::Send`].
struct Send {
    msn: u32,
    offset: u32,
    solicited: bool,
    invalidate: Option<u32>,
    imm: Option<u32>,
}

fn length(body: &Bytes<'_>) -> u32 {
    u32::try_from(body.len()).unwrap_or(u32::MAX)
}
