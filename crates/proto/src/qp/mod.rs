//! Queue-pair semantics of the reliable connection (RC) service, and of the unreliable ones (UC,
//! UD), which are what is left of it without answers.
//!
//! A [`Qp`] holds the work queues, the state of `ibv_modify_qp(3)`, and both halves of the
//! protocol: the requester that turns send work requests into units and answers
//! into completions, and the responder that places what the peer sends. It is bound
//! to a device with [`Qp::bind`] to act as the [`Ulp`] of a link.
//!
//! Not thread-safe: the device holds its lock around every call.

mod answers;
mod datagram;
mod direct;
#[cfg(test)]
mod direct_tests;
mod express;
mod gates;
mod headers;
mod local;
#[cfg(test)]
mod local_tests;
mod modify;
#[cfg(test)]
mod modify_tests;
mod plain;
#[cfg(test)]
mod plain_tests;
mod recvq;
mod requester;
mod responder;
mod rnr;
mod segments;
mod sendq;
#[cfg(test)]
mod tests;
mod unreliable;
#[cfg(test)]
mod unreliable_tests;
#[cfg(test)]
mod world;

pub use datagram::{Fate, Incoming, Outgoing};
pub use direct::AtOnce;
pub use express::{Content, Express, Target};
pub use modify::AttrError;
pub use plain::{PLAIN_INLINE, PlainPayload, PlainSend};
pub use rnr::rnr_time;

use crate::bytes::Bytes;
use crate::host::{Completions, Host, Tally, Via};
use crate::time::Instant;
use crate::types::{
    Payload, QpAttr, QpCap, QpEvent, QpState, RecvWr, SendFlags, SendOp, SendWr, Service, Wc,
    WcFlags, WcOpcode, WcStatus,
};
use crate::ulp::{Nak, SegMeta, Space, Ulp, Verdict};
use crate::unit::{Frame, Unit};
use answers::Answers;
use gates::Gates;
use recvq::RecvQueue;
use responder::Responder;
use sendq::SendQueue;

/// What a queue pair is created with (`ibv_create_qp(3)`).
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Number, 24 bits.
    pub qpn: u32,
    /// What it promises.
    pub service: Service,
    /// Protection domain its accesses are checked against.
    pub pd: u32,
    /// Queue sizes.
    pub cap: QpCap,
    /// Every send completes with a work completion, whatever its flags.
    pub sq_sig_all: bool,
    /// Receives come from a shared receive queue.
    pub srq: bool,
}

/// Why a work request was not accepted (`ibv_post_send(3)`, `ibv_post_recv(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue holds as many work requests as it was created for.
    #[error("the work queue is full")]
    Full,
    /// The work request is malformed, too long, or the state does not allow posting.
    #[error("invalid work request or queue-pair state")]
    Invalid,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    config: QpConfig,
    attr: QpAttr,
    sq: SendQueue,
    rq: RecvQueue,
    /// Receives posted whose completion the program has not polled yet; they occupy the queue.
    rq_used: u32,
    gates: Gates,
    responder: Responder,
    answers: Answers,
    /// One-sided work requests may be carried out directly.
    direct: bool,
    /// WRITEs in a row that were sent behind others, though they could have been carried out here.
    behind: u32,
    /// Requests of an unreliable connection: those below are handed over, and placed.
    handed: u64,
    placed: u64,
    /// Of an unreliable connection whose peer is gone: what is posted goes nowhere.
    peer_lost: bool,
    /// It went from RTR to the error state because its peer ended: the program, which is about to
    /// make it ready to send, is not to be refused that.
    fell: bool,
    /// Why the peer was lost, as completions with `RetryExcErr` say it.
    vendor_err: u32,
}

/// A queue pair bound to its device for the length of a call: the upper layer of a link.
#[derive(Debug)]
pub struct Bound<'a, H: Host> {
    /// The queue pair.
    pub qp: &'a mut Qp,
    /// Memory and completion queues.
    pub host: &'a mut H,
}

impl Qp {
    /// A queue pair in the RESET state.
    #[must_use]
    pub fn new(config: QpConfig) -> Self {
        Qp {
            config,
            attr: QpAttr::default(),
            sq: SendQueue::default(),
            rq: RecvQueue::default(),
            rq_used: 0,
            gates: Gates::default(),
            responder: Responder::default(),
            answers: Answers::default(),
            direct: false,
            behind: 0,
            handed: 0,
            placed: 0,
            peer_lost: false,
            fell: false,
            vendor_err: 0,
        }
    }

    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.config.qpn
    }

    /// What it was created with.
    #[must_use]
    pub fn config(&self) -> &QpConfig {
        &self.config
    }

    /// Its state (`ibv_query_qp(3)`).
    #[must_use]
    pub fn state(&self) -> QpState {
        self.attr.state
    }

    /// Its attributes as last modified (`ibv_query_qp(3)`).
    #[must_use]
    pub fn attr(&self) -> QpAttr {
        QpAttr {
            cur_state: self.attr.state,
            ..self.attr
        }
    }

    /// The queue pair whose peer reaches memory, or that reaches it.
    #[inline]
    pub(super) fn via(&self) -> Via {
        Via {
            pd: self.config.pd,
            qpn: self.config.qpn,
        }
    }

    /// Binds it to its device.
    pub fn bind<'a, H: Host>(&'a mut self, host: &'a mut H) -> Bound<'a, H> {
        Bound { qp: self, host }
    }

    /// Whether it waits for something only the peer can do: worth finding out if the peer lives.
    #[must_use]
    pub fn expects_peer(&self) -> bool {
        match self.attr.state {
            QpState::Rtr | QpState::Rts | QpState::Sqd => {
                // A side that listens for what may never come need not know.
                let listens =
                    self.config.service == Service::Rc && (self.config.srq || !self.rq.is_empty());
                listens || self.sq.in_flight()
            }
            _ => false,
        }
    }

    /// Whether anything it has been asked to send awaits the peer.
    #[must_use]
    pub fn expects_answer(&self) -> bool {
        self.sq.in_flight() || self.has_request() || self.has_direct()
    }

    /// Whether the send queue holds anything that is not done.
    #[inline]
    #[must_use]
    pub fn has_sends(&self) -> bool {
        !self.sq.is_empty()
    }

    /// A refusal found after its request had been acknowledged (an MR deregistered while its READ
    /// was being answered): the link must send it as for [`Verdict::Refused`].
    pub fn take_late_refusal(&mut self) -> Option<(u64, Nak)> {
        self.responder.late_refusal.take()
    }

    /// Accepts a send work request (`ibv_post_send(3)`). In the error state it completes at once,
    /// flushed.
    ///
    /// # Errors
    /// [`PostError::Full`], or [`PostError::Invalid`] before RTS, with too many entries or too
    /// many bytes.
    pub fn post_send<H: Host>(&mut self, wr: SendWr, host: &mut H) -> Result<(), PostError> {
        self.check_room(1)?;
        let len = self.check_send(&wr)?;
        if !wr.op.is_one_sided() {
            self.behind = 0;
        }
        self.sq.push(wr, len);
        if matches!(self.attr.state, QpState::Err | QpState::Sqe) {
            self.flush_sends(host);
        } else if self.peer_lost {
            self.lose_peer(host);
        } else {
            self.run_local(host);
        }
        Ok(())
    }

    /// Whether [`Qp::post_send`] would accept every one of `wrs`, posted one after the other
    /// (`ibv_wr_complete`, which posts all or nothing).
    ///
    /// # Errors
    /// As [`Qp::post_send`].
    pub fn check_sends(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        self.check_room(wrs.len())?;
        wrs.iter()
            .try_for_each(|wr| self.check_send(wr).map(|_| ()))
    }

    /// Accepts a receive work request (`ibv_post_recv(3)`). In the error state it completes at
    /// once, flushed.
    ///
    /// # Errors
    /// [`PostError::Full`], or [`PostError::Invalid`] in RESET, with an SRQ, or with too many
    /// entries.
    pub fn post_recv<H: Host>(&mut self, wr: RecvWr, host: &mut H) -> Result<(), PostError> {
        let sges = u32::try_from(wr.sges.len()).unwrap_or(u32::MAX);
        if self.attr.state == QpState::Reset
            || self.config.srq
            || sges > self.config.cap.max_recv_sge
        {
            return Err(PostError::Invalid);
        }
        if self.rq_used >= self.config.cap.max_recv_wr {
            return Err(PostError::Full);
        }
        self.rq_used += 1;
        self.rq.push(wr);
        if self.attr.state == QpState::Err {
            self.flush_recvs(host);
        }
        Ok(())
    }

    /// Whether anything posted has not been sent whole.
    #[inline]
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.sq.unsent() > 0
    }

    /// Work requests posted and not complete.
    #[inline]
    #[must_use]
    pub fn sends(&self) -> u64 {
        self.sq.unsent() + self.sq.under_way()
    }

    /// Whether what is queued had better wait for more to share a datagram with: `under_way` or
    /// more work requests are unacknowledged, so that the program must call again, and those
    /// unsent are fewer than `messages` and, by the newest's length, make less than `bytes`.
    #[must_use]
    pub fn may_gather(&self, under_way: u64, messages: u64, bytes: u64) -> bool {
        let unsent = self.sq.unsent();
        let newest = self.sq.newest_len();
        self.attr.state == QpState::Rts
            && self.sq.under_way() >= under_way
            && unsent < messages
            && unsent * u64::from(newest) < bytes
    }

    /// Whether there is a unit to send now.
    #[must_use]
    pub fn has_segment(&self) -> bool {
        self.answers.is_due() || self.has_request() || self.has_direct()
    }

    /// Whether the next unit of `space` has at most `len` bytes of payload.
    #[must_use]
    pub fn is_next_short(&self, space: Space, len: usize) -> bool {
        let payload = match space {
            Space::Request => self.next_request_len(),
            Space::Response => self.answers.next_len(),
        };
        payload.is_some_and(|payload| payload as usize <= len)
    }

    fn check_room(&self, count: usize) -> Result<(), PostError> {
        if !matches!(
            self.attr.state,
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err
        ) {
            return Err(PostError::Invalid);
        }
        let room = self.config.cap.max_send_wr.saturating_sub(self.sq.used());
        if count > room as usize {
            return Err(PostError::Full);
        }
        Ok(())
    }

    fn check_send(&self, wr: &SendWr) -> Result<u32, PostError> {
        if !self.offers(&wr.op) {
            return Err(PostError::Invalid);
        }
        let cap = &self.config.cap;
        let len = match &wr.payload {
            Payload::Window(_) if matches!(wr.op, SendOp::BindMw(_)) => 0,
            Payload::Window(_) => return Err(PostError::Invalid),
            _ if matches!(wr.op, SendOp::BindMw(_)) => return Err(PostError::Invalid),
            Payload::Inline(data) => {
                let fits = data.len() <= cap.max_inline_data as usize;
                let sends = !matches!(
                    wr.op,
                    SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. }
                );
                if !fits || !sends {
                    return Err(PostError::Invalid);
                }
                data.len() as u64
            }
            Payload::Sges(sges) => {
                if sges.len() > cap.max_send_sge as usize {
                    return Err(PostError::Invalid);
                }
                sges.iter().map(|s| u64::from(s.length)).sum()
            }
        };
        let atomic = matches!(wr.op, SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. });
        let longest = match self.config.service {
            Service::Ud => crate::types::MAX_DATAGRAM,
            Service::Rc | Service::Uc => crate::types::MAX_MESSAGE,
        };
        if len > u64::from(longest) || (atomic && len != 8) {
            return Err(PostError::Invalid);
        }
        u32::try_from(len).map_err(|_| PostError::Invalid)
    }

    /// Enters the error state (InfiniBand specification 10.3.1.7): what is queued completes as
    /// flushed, in order.
    pub(crate) fn enter_error<H: Host>(&mut self, host: &mut H) {
        if self.attr.state == QpState::Err {
            return;
        }
        self.set_state(QpState::Err);
        self.flush_sends(host);
        if let Some(current) = self.responder.take_current() {
            self.complete_recv_error(host, current, WcStatus::WrFlushErr);
        }
        self.flush_recvs(host);
        if self.config.srq {
            host.event(self.config.qpn, QpEvent::LastWqeReached);
        }
    }

    fn flush_sends<H: Host>(&mut self, host: &mut H) {
        self.sq.withdrawing = None;
        while let Some(wqe) = self.sq.pop() {
            let status = wqe.failed.unwrap_or(WcStatus::WrFlushErr);
            self.complete_send(host, wqe.wr.wr_id, WcOpcode::Send, status, 0);
        }
    }

    fn flush_recvs<H: Host>(&mut self, host: &mut H) {
        while let Some(wr) = self.rq.pop() {
            self.complete_recv_error(host, wr.wr_id, WcStatus::WrFlushErr);
        }
    }

    #[inline(always)]
    fn complete_send<C: Completions>(
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
    fn succeed<H: Host>(
        &mut self,
        host: &mut H,
        (wr_id, opcode): (u64, WcOpcode),
        signaled: bool,
        bytes: u32,
    ) {
        if signaled {
            self.complete_send(host, wr_id, opcode, WcStatus::Success, bytes);
        } else {
            host.succeeded_silently(bytes);
        }
    }

    fn complete_recv_error<H: Host>(&mut self, host: &mut H, wr_id: u64, status: WcStatus) {
        let wc = self.blank_wc(wr_id, WcOpcode::Recv, status);
        host.complete_recv(self.config.qpn, wc, true);
    }

    #[inline(always)]
    fn blank_wc(&self, wr_id: u64, opcode: WcOpcode, status: WcStatus) -> Wc {
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

    fn signaled(&self, flags: SendFlags) -> bool {
        self.config.sq_sig_all || flags.contains(SendFlags::SIGNALED)
    }
}

impl<H: Host> Bound<'_, H> {
    /// As [`Ulp::next`], for a request that is known to be whole ([`Qp::is_last_whole`]).
    pub fn next_whole(&mut self, seq: u64, frame: &mut impl Frame) -> Option<SegMeta> {
        let next = self.qp.next_whole(seq, frame, self.host)?;
        self.qp.handed_over(seq, self.host);
        Some(next)
    }
}

impl<H: Host> Ulp for Bound<'_, H> {
    fn has_next(&self, space: Space) -> bool {
        match space {
            Space::Request => self.qp.has_request(),
            Space::Response => self.qp.answers.is_due(),
        }
    }

    fn next(&mut self, space: Space, seq: u64, frame: &mut impl Frame) -> Option<SegMeta> {
        match space {
            Space::Request => {
                let next = self.qp.next_request(seq, frame, self.host)?;
                self.qp.handed_over(seq, self.host);
                Some(next)
            }
            Space::Response => self.qp.next_response(seq, frame, self.host),
        }
    }

    fn again(&mut self, space: Space, seq: u64, frame: &mut impl Frame) -> Option<SegMeta> {
        match space {
            Space::Request => self.qp.request_again(seq, frame, self.host),
            Space::Response => self.qp.response_again(seq, frame, self.host),
        }
    }

    fn can_repeat(&self, seq: u64) -> bool {
        self.qp.can_repeat(seq, self.host)
    }

    fn receive(
        &mut self,
        space: Space,
        meta: SegMeta,
        unit: &Unit,
        payload: Bytes<'_>,
        in_order: bool,
    ) -> Verdict {
        match space {
            Space::Request => self.qp.on_request(meta, unit, payload, in_order, self.host),
            Space::Response => self.qp.on_response(unit, payload, self.host),
        }
    }

    #[inline(always)]
    fn acked(&mut self, space: Space, upto: u64) {
        match space {
            Space::Request => {
                self.qp.placed = upto;
                self.qp.requests_acked(upto, self.host);
            }
            Space::Response => self.qp.answers.acked(upto),
        }
    }

    fn not_ready(&mut self, seq: u64, timer: u8, now: Instant) -> Option<Instant> {
        self.qp
            .on_not_ready(seq, self.host)
            .then(|| now + rnr_time(timer))
    }

    fn refused(&mut self, seq: u64, nak: Nak) {
        self.qp.on_refused(seq, nak, self.host);
    }

    fn other_version(&mut self, theirs: u8, ours: u8) {
        self.qp.vendor_err = crate::types::other_version(theirs, ours);
    }

    fn expects_answer(&self) -> bool {
        self.qp.expects_answer()
    }

    fn is_failed(&self) -> bool {
        self.qp.attr.state == QpState::Err
    }

    fn is_next_short(&self, space: Space, len: usize) -> bool {
        self.qp.is_next_short(space, len)
    }

    fn take_late_refusal(&mut self) -> Option<(u64, Nak)> {
        self.qp.take_late_refusal()
    }

    fn has_direct(&self) -> bool {
        self.qp.has_direct()
    }

    #[inline]
    fn message(&mut self, meta: SegMeta, payload: Bytes<'_>) -> Verdict {
        self.qp.on_message(meta, payload, self.host)
    }

    #[inline(always)]
    fn message_plain(&mut self, payload: Bytes<'_>) -> bool {
        self.qp.receive_plain(payload, self.host)
    }

    #[inline]
    fn has_enough(&self) -> bool {
        self.host.has_enough()
    }

    #[inline]
    fn is_sated(&self) -> bool {
        self.host.is_sated()
    }

    #[inline]
    fn tally(&self, what: Tally, times: u64) {
        self.host.tally(what, times);
    }

    fn lost(&mut self) {
        self.qp.on_lost(self.host);
    }
}
