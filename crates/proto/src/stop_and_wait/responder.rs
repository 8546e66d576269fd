//! The half that places what the peer sends, and answers.

use super::{Queues, StopAndWait, UnderWay};
use crate::bytes::Bytes;
use crate::host::{Host, MemError, Remote};
use crate::types::{Access, QpEvent, QpState, Wc, WcFlags, WcOpcode, WcStatus};
use crate::ulp::{Nak, SegMeta, Verdict};
use crate::unit::{Frame, Kind, Unit};
use crate::work::{capacity, scatter};

/// The SEND that comes.
#[derive(Debug)]
pub struct Receiving {
    come: u32,
}

/// The answer to a READ.
#[derive(Debug)]
pub struct Answer {
    request: u64,
    first: u64,
    rkey: u32,
    addr: u64,
    len: u32,
    sent: u32,
    built: bool,
}

impl Answer {
    /// Bytes not sent yet.
    pub fn left(&self) -> u32 {
        self.len - self.sent
    }

    /// Whether all its units have been built.
    pub fn is_built(&self) -> bool {
        self.built
    }

    /// Whether its memory may be read.
    pub fn check<H: Host>(&self, work: &Queues, host: &H) -> Result<(), MemError> {
        match self.len {
            0 => Ok(()),
            len => host.check_remote(work.via(), self.rkey, self.addr, len.into(), Remote::Read),
        }
    }
}

impl StopAndWait {
    pub(super) fn has_response(&self) -> bool {
        let due = self.answer.as_ref().is_some_and(|answer| !answer.built);
        due && self.response.is_none()
    }

    pub(super) fn next_response<H: Host>(
        &mut self,
        work: &mut Queues,
        seq: u64,
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        if !self.has_response() {
            return None;
        }
        let answer = self.answer.as_mut()?;
        if answer.sent == 0 {
            answer.first = seq;
        }
        let len = frame.room(Kind::ReadAnswer)?.min(answer.left());
        let offset = answer.sent;
        answer.sent += len;
        answer.built = answer.left() == 0;
        self.response = Some(UnderWay {
            meta: SegMeta {
                seq,
                first: answer.first,
                last: answer.built,
                direct: false,
            },
            unit: Unit::ReadAnswer {
                id: 0,
                offset: offset.into(),
            },
            offset,
            len,
        });
        self.put_response(work, frame, host)
    }

    /// Builds the unit of the answer under way.
    pub(super) fn put_response<H: Host>(
        &mut self,
        work: &mut Queues,
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        let (response, answer) = (self.response?, self.answer.as_ref()?);
        let body = frame.put(&response.unit, response.meta.last, response.len as usize)?;
        let addr = answer.addr.wrapping_add(response.offset.into());
        let read = response.len == 0
            || host
                .read_remote(work.via(), answer.rkey, addr, body)
                .is_ok();
        if read {
            return Some(response.meta);
        }
        self.late_refusal = Some((answer.request, Nak::RemoteAccess));
        (self.answer, self.response) = (None, None);
        if work.attr.state != QpState::Err {
            host.event(work.config.qpn, QpEvent::AccessError);
            work.enter_error(host);
        }
        None
    }

    /// Carries out a request whose turn it is.
    pub(super) fn carry_out<H: Host>(
        &mut self,
        work: &mut Queues,
        meta: SegMeta,
        unit: &Unit,
        body: Bytes<'_>,
        host: &mut H,
    ) -> Verdict {
        let done = match *unit {
            Unit::Send { .. } => self.place_send(work, meta, unit, body, host),
            Unit::Write { rkey, addr } => place_write(work, rkey, addr, body, host),
            Unit::Read {
                len, rkey, addr, ..
            } => self.accept_read(work, meta.seq, (rkey, addr, len), host),
            _ => Err(Nak::InvalidRequest),
        };
        match done {
            Ok(Verdict::Placed) => work.note_established(host),
            Ok(_) => {}
            Err(nak) => {
                let event = match nak {
                    Nak::RemoteAccess => QpEvent::AccessError,
                    Nak::InvalidRequest => QpEvent::RequestError,
                    Nak::RemoteOperation => QpEvent::Fatal,
                };
                host.event(work.config.qpn, event);
                work.enter_error(host);
            }
        }
        done.unwrap_or_else(Verdict::Refused)
    }

    fn accept_read<H: Host>(
        &mut self,
        work: &Queues,
        request: u64,
        (rkey, addr, len): (u32, u64, u32),
        host: &H,
    ) -> Result<Verdict, Nak> {
        if !work.attr.access.contains(Access::REMOTE_READ) || self.answer.is_some() {
            return Err(Nak::InvalidRequest);
        }
        let answer = Answer {
            request,
            first: 0,
            rkey,
            addr,
            len,
            sent: 0,
            built: false,
        };
        answer.check(work, host).map_err(|_| Nak::RemoteAccess)?;
        self.answer = Some(answer);
        Ok(Verdict::Placed)
    }

    fn place_send<H: Host>(
        &mut self,
        work: &mut Queues,
        meta: SegMeta,
        unit: &Unit,
        body: Bytes<'_>,
        host: &mut H,
    ) -> Result<Verdict, Nak> {
        let Unit::Send {
            offset,
            solicited,
            imm,
            ..
        } = *unit
        else {
            return Err(Nak::InvalidRequest);
        };
        let Some((sges, pd)) = work.begin_recv(host) else {
            return Ok(Verdict::NotReady(work.attr.min_rnr_timer));
        };
        let come = self.receiving.take().map_or(0, |receiving| receiving.come);
        let end = come.saturating_add(u32::try_from(body.len()).unwrap_or(u32::MAX));
        let failed = if offset != come || u64::from(end) > capacity(sges) {
            Some((WcStatus::LocLenErr, Nak::InvalidRequest))
        } else {
            let placed = scatter(host, pd, sges, offset, body);
            let why = (WcStatus::LocProtErr, Nak::RemoteOperation);
            placed.err().map(|_| why)
        };
        if failed.is_none() && !meta.last {
            self.receiving = Some(Receiving { come: end });
            return Ok(Verdict::Placed);
        }
        let wr_id = work.end_recv().ok_or(Nak::InvalidRequest)?;
        if let Some((status, nak)) = failed {
            work.complete_recv_error(host, wr_id, status);
            return Err(nak);
        }
        let wc = Wc {
            byte_len: end,
            imm: imm.unwrap_or(0),
            flags: imm.map_or(WcFlags::empty(), |_| WcFlags::WITH_IMM),
            ..work.blank_wc(wr_id, WcOpcode::Recv, WcStatus::Success)
        };
        host.complete_recv(work.config.qpn, wc, solicited);
        Ok(Verdict::Placed)
    }
}

fn place_write<H: Host>(
    work: &Queues,
    rkey: u32,
    addr: u64,
    body: Bytes<'_>,
    host: &H,
) -> Result<Verdict, Nak> {
    if !work.attr.access.contains(Access::REMOTE_WRITE) {
        return Err(Nak::InvalidRequest);
    }
    if !body.is_empty() {
        host.write_remote(work.via(), rkey, addr, body)
            .map_err(|_| Nak::RemoteAccess)?;
    }
    Ok(Verdict::Placed)
}
