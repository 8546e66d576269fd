//! Queue pairs: the work queues, and the transport that carries their work out.
//!
//! A [`Qp`] joins the two. The work queues have the states of `ibv_modify_qp(3)`, the order of
//! completions and the checks; the transport has requester and responder: it turns send work
//! requests into units and answers into completions, and places what the peer sends. A queue pair
//! is bound to a device with [`Qp::bind`] to act as the [`Ulp`] of a link.
//!
//! Not thread-safe: the device holds its lock around every call.

#[cfg(test)]
mod direct_tests;
#[cfg(test)]
mod gates_tests;
#[cfg(test)]
mod local_tests;
#[cfg(test)]
mod modify_tests;
#[cfg(test)]
mod paced_tests;
#[cfg(test)]
mod plain_tests;
mod short;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unreliable_tests;

pub use crate::datagram::{Fate, Incoming, Outgoing};
pub use crate::iwarp::{AtOnce, Content, Express, Target, rnr_time};
pub use crate::work::{AttrError, PLAIN_INLINE, PlainPayload, PlainSend, PostError, QpConfig};

use crate::bytes::{Bytes, BytesMut};
use crate::datagram;
use crate::host::{Host, Tally};
use crate::iwarp::{Iwarp, Queues};
use crate::time::Instant;
use crate::types::{QpAttr, QpAttrMask, QpState, RecvWr, SendWr, Service, WcStatus};
use crate::ulp::{Nak, SegMeta, Space, Ulp, Verdict};
use crate::unit::{Frame, Unit};

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    work: Queues,
    transport: Iwarp,
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
            work: Queues::new(config),
            transport: Iwarp::default(),
        }
    }

    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.work.config.qpn
    }

    /// What it was created with.
    #[must_use]
    pub fn config(&self) -> &QpConfig {
        &self.work.config
    }

    /// The service it gives.
    #[inline]
    #[must_use]
    pub fn service(&self) -> Service {
        self.work.config.service
    }

    /// Its state (`ibv_query_qp(3)`).
    #[must_use]
    pub fn state(&self) -> QpState {
        self.work.attr.state
    }

    /// Its attributes as last modified (`ibv_query_qp(3)`).
    #[must_use]
    pub fn attr(&self) -> QpAttr {
        self.work.attr()
    }

    /// Codes of the time-out and the retry count by which a link gives its peer up.
    #[must_use]
    pub fn patience(&self) -> (u8, u8) {
        self.work.patience()
    }

    /// Checks a modification without carrying it out.
    ///
    /// # Errors
    /// As [`Qp::modify`].
    pub fn check_modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), AttrError> {
        self.work.check_modify(attr, mask)
    }

    /// Changes state and attributes (`ibv_modify_qp(3)`).
    ///
    /// # Errors
    /// [`AttrError`]; then nothing has changed.
    pub fn modify<H: Host>(
        &mut self,
        attr: &QpAttr,
        mask: QpAttrMask,
        host: &mut H,
    ) -> Result<(), AttrError> {
        self.work.modify(attr, mask, host)?;
        match self.work.attr.state {
            QpState::Reset => self.transport = Iwarp::default(),
            QpState::Err => self.transport.answers.drop_all(),
            _ => {}
        }
        Ok(())
    }

    /// Binds it to its device.
    pub fn bind<'a, H: Host>(&'a mut self, host: &'a mut H) -> Bound<'a, H> {
        Bound { qp: self, host }
    }

    /// The device can't go on with it: it fails, whatever its service.
    pub fn fail<H: Host>(&mut self, host: &mut H) {
        self.work.fail(host);
    }

    /// Whether it waits for something only the peer can do: worth finding out if the peer lives.
    #[must_use]
    pub fn expects_peer(&self) -> bool {
        self.work.expects_peer()
    }

    /// Whether anything it has been asked to send awaits the peer.
    #[must_use]
    pub fn expects_answer(&self) -> bool {
        self.work.sq.in_flight() || self.transport.has_request(&self.work) || self.has_direct()
    }

    /// Whether the send queue holds anything that is not done.
    #[inline]
    #[must_use]
    pub fn has_sends(&self) -> bool {
        !self.work.sq.is_empty()
    }

    /// A refusal found after its request had been acknowledged (an MR deregistered while its READ
    /// was being answered): the link must send it as for [`Verdict::Refused`].
    pub fn take_late_refusal(&mut self) -> Option<(u64, Nak)> {
        self.transport.responder.late_refusal.take()
    }

    /// Accepts a send work request (`ibv_post_send(3)`). In the error state it completes at once,
    /// flushed.
    ///
    /// # Errors
    /// [`PostError::Full`], or [`PostError::Invalid`] before RTS, with too many entries or too
    /// many bytes.
    pub fn post_send<H: Host>(&mut self, wr: SendWr, host: &mut H) -> Result<(), PostError> {
        let one_sided = wr.op.is_one_sided();
        self.work.post_send(&self.transport, wr, host)?;
        self.transport.posted(one_sided);
        Ok(())
    }

    /// Whether [`Qp::post_send`] would accept every one of `wrs`, posted one after the other
    /// (`ibv_wr_complete`, which posts all or nothing).
    ///
    /// # Errors
    /// As [`Qp::post_send`].
    pub fn check_sends(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        self.work.check_sends(wrs)
    }

    /// Posts a work request that [`AtOnce::Failed`]: it completes so, and the queue pair fails.
    ///
    /// # Errors
    /// As [`Qp::post_send`].
    pub fn post_failed<H: Host>(
        &mut self,
        wr: SendWr,
        status: WcStatus,
        host: &mut H,
    ) -> Result<(), PostError> {
        self.work.post_failed(&self.transport, wr, status, host)
    }

    /// Accepts a receive work request (`ibv_post_recv(3)`). In the error state it completes at
    /// once, flushed.
    ///
    /// # Errors
    /// [`PostError::Full`], or [`PostError::Invalid`] in RESET, with an SRQ, or with too many
    /// entries.
    pub fn post_recv<H: Host>(&mut self, wr: RecvWr, host: &mut H) -> Result<(), PostError> {
        self.work.post_recv(wr, host)
    }

    /// Whether anything posted has not been sent whole.
    #[inline]
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.work.sq.has_unsent()
    }

    /// Work requests posted and not complete.
    #[inline]
    #[must_use]
    pub fn sends(&self) -> u64 {
        self.work.sq.unsent() + self.work.sq.under_way()
    }

    /// Whether what is queued had better wait for more to share a datagram with: `under_way` or
    /// more work requests are unacknowledged, so that the program must call again, and those
    /// unsent are fewer than `messages` and, by the newest's length, make less than `bytes`.
    #[must_use]
    pub fn may_gather(&self, under_way: u64, messages: u64, bytes: u64) -> bool {
        let unsent = self.work.sq.unsent();
        let newest = self.work.sq.newest_len();
        self.work.attr.state == QpState::Rts
            && self.work.sq.under_way() >= under_way
            && unsent < messages
            && unsent * u64::from(newest) < bytes
    }

    /// Whether there is a unit to send now.
    #[must_use]
    pub fn has_segment(&self) -> bool {
        self.transport.answers.is_due()
            || self.transport.has_request(&self.work)
            || self.has_direct()
    }

    /// Whether the next unit of `space` has at most `len` bytes of payload.
    #[must_use]
    pub fn is_next_short(&self, space: Space, len: usize) -> bool {
        let payload = match space {
            Space::Request => self.transport.next_request_len(&self.work),
            Space::Response => self.transport.answers.next_len(),
        };
        payload.is_some_and(|payload| payload as usize <= len)
    }

    /// Whether the next thing to send, and the last, is a message that one unit with `room` bytes
    /// of payload carries whole.
    #[inline]
    #[must_use]
    pub fn is_last_whole(&self, room: u32) -> bool {
        self.transport.is_last_whole(&self.work, room)
    }

    /// Takes the oldest send of a UD queue pair, writes its payload to `out`, and completes it.
    /// `None` where there is none to send, or `out` is too short.
    pub fn next_datagram<H: Host>(
        &mut self,
        out: &mut BytesMut<'_>,
        host: &mut H,
    ) -> Option<Outgoing> {
        datagram::next(&mut self.work, out, host)
    }

    /// Places a datagram that has come into the next receive. One that is longer is dropped and
    /// leaves the receive to the next (InfiniBand specification 9.9.3, class D faults): anybody may
    /// have sent it.
    pub fn take_datagram<H: Host>(&mut self, incoming: &Incoming<'_>, host: &mut H) -> Fate {
        datagram::take(&mut self.work, incoming, host)
    }

    /// Whether a limit is set on what it sends ([`Qp::set_paced`]).
    #[inline]
    #[must_use]
    pub fn is_paced(&self) -> bool {
        self.work.is_paced()
    }

    /// A limit is set from now on: what is not begun waits until [`Qp::admit`] lets it through.
    /// Or none is.
    pub fn set_paced(&mut self, paced: bool) {
        self.work.set_paced(paced);
    }

    /// Lets work requests through, the oldest first, as long as `take` does, which is asked for the
    /// bytes of each.
    pub fn admit(&mut self, take: impl FnMut(u32) -> bool) {
        self.work.admit(take);
    }

    /// Whether a work request waits for the end of accesses by a key that it has withdrawn:
    /// [`Qp::look_at_withdrawal`] finds out, which somebody has to call.
    #[inline]
    #[must_use]
    pub fn is_withdrawing(&self) -> bool {
        self.work.is_withdrawing()
    }

    /// Completes the work request that withdraws a key, if the accesses by it have ended, and
    /// carries out what follows it.
    pub fn look_at_withdrawal<H: Host>(&mut self, host: &mut H) {
        self.work.look_at_withdrawal(&self.transport, host);
    }
}

impl<H: Host> Bound<'_, H> {
    /// Transport, work queues and device.
    #[inline(always)]
    fn parts(&mut self) -> (&mut Iwarp, &mut Queues, &mut H) {
        (&mut self.qp.transport, &mut self.qp.work, self.host)
    }

    /// As [`Ulp::next`], for a request that is known to be whole ([`Qp::is_last_whole`]).
    pub fn next_whole(&mut self, seq: u64, frame: &mut impl Frame) -> Option<SegMeta> {
        let (transport, work, host) = self.parts();
        let next = transport.next_whole(work, seq, frame, host)?;
        transport.handed_over(work, seq, host);
        Some(next)
    }
}

impl<H: Host> Ulp for Bound<'_, H> {
    fn has_next(&self, space: Space) -> bool {
        match space {
            Space::Request => self.qp.transport.has_request(&self.qp.work),
            Space::Response => self.qp.transport.answers.is_due(),
        }
    }

    fn next(&mut self, space: Space, seq: u64, frame: &mut impl Frame) -> Option<SegMeta> {
        let (transport, work, host) = self.parts();
        match space {
            Space::Request => {
                let next = transport.next_request(work, seq, frame, host)?;
                transport.handed_over(work, seq, host);
                Some(next)
            }
            Space::Response => transport.next_response(work, seq, frame, host),
        }
    }

    #[inline]
    fn next_alike(&mut self, space: Space, seq: u64, body: BytesMut<'_>) -> bool {
        let (transport, work, host) = self.parts();
        match space {
            Space::Request => transport.next_alike(work, seq, body, host),
            Space::Response => transport.next_answer_alike(work, body, host),
        }
    }

    fn again(&mut self, space: Space, seq: u64, frame: &mut impl Frame) -> Option<SegMeta> {
        let (transport, work, host) = self.parts();
        match space {
            Space::Request => transport.request_again(work, seq, frame, host),
            Space::Response => transport.response_again(work, seq, frame, host),
        }
    }

    fn can_repeat(&self, seq: u64) -> bool {
        let Qp { work, transport } = &*self.qp;
        transport.can_repeat(work, seq, self.host)
    }

    fn receive(
        &mut self,
        space: Space,
        meta: SegMeta,
        unit: &Unit,
        payload: Bytes<'_>,
        in_order: bool,
    ) -> Verdict {
        let (transport, work, host) = self.parts();
        match space {
            Space::Request => transport.on_request(work, meta, unit, payload, in_order, host),
            Space::Response => transport.on_response(work, unit, payload, host),
        }
    }

    #[inline(always)]
    fn acked(&mut self, space: Space, upto: u64) {
        let (transport, work, host) = self.parts();
        match space {
            Space::Request => {
                transport.placed = upto;
                transport.requests_acked(work, upto, host);
            }
            Space::Response => transport.answers.acked(upto),
        }
    }

    fn not_ready(&mut self, seq: u64, timer: u8, now: Instant) -> Option<Instant> {
        let (transport, work, host) = self.parts();
        transport
            .on_not_ready(work, seq, host)
            .then(|| now + rnr_time(timer))
    }

    fn refused(&mut self, seq: u64, nak: Nak) {
        let (transport, work, host) = self.parts();
        transport.on_refused(work, seq, nak, host);
    }

    fn other_version(&mut self, theirs: u8, ours: u8) {
        self.qp.work.vendor_err = crate::types::other_version(theirs, ours);
    }

    fn not_secured(&mut self, why: u8) {
        self.qp.work.vendor_err = crate::types::VENDOR_ERR_SECURE | u32::from(why);
    }

    fn expects_answer(&self) -> bool {
        self.qp.expects_answer()
    }

    fn is_failed(&self) -> bool {
        self.qp.work.attr.state == QpState::Err
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
        let (transport, work, host) = self.parts();
        transport.on_message(work, meta, payload, host)
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
        self.qp.work.on_lost(self.host);
    }
}
