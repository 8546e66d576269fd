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
mod rnr;
mod short;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod transports_tests;
#[cfg(test)]
mod unreliable_tests;

pub use crate::datagram::{Fate, Incoming, Outgoing};
pub use crate::transport::{AtOnce, Content, Express, Target};
pub use crate::transports::TransportType;
pub use crate::work::{AttrError, PLAIN_INLINE, PlainPayload, PlainSend, PostError, QpConfig};
pub use rnr::rnr_time;

use crate::bytes::{Bytes, BytesMut, Payloads, PayloadsMut};
use crate::datagram;
use crate::host::{Host, Tally};
use crate::time::Instant;
use crate::transport::Transport;
use crate::transports::{Transports, with_transport};
use crate::types::{QpAttr, QpAttrMask, QpState, RecvWr, SendWr, Service, WcStatus};
use crate::ulp::{Nak, SegMeta, Space, Ulp, Verdict};
use crate::unit::{Frame, Unit};

/// A queue pair.
#[derive(Debug)]
pub struct Qp(Transports);

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
    pub fn new(transport: TransportType, config: QpConfig) -> Self {
        Qp(Transports::new(transport, config))
    }

    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        with_transport!(&self.0, |work, _| work.config.qpn)
    }

    /// What it was created with.
    #[must_use]
    pub fn config(&self) -> &QpConfig {
        with_transport!(&self.0, |work, _| &work.config)
    }

    /// The service it gives.
    #[inline]
    #[must_use]
    pub fn service(&self) -> Service {
        with_transport!(&self.0, |work, _| work.config.service)
    }

    /// Its state (`ibv_query_qp(3)`).
    #[must_use]
    pub fn state(&self) -> QpState {
        with_transport!(&self.0, |work, _| work.attr.state)
    }

    /// Its attributes as last modified (`ibv_query_qp(3)`).
    #[must_use]
    pub fn attr(&self) -> QpAttr {
        with_transport!(&self.0, |work, _| work.attr())
    }

    /// Codes of the time-out and the retry count by which a link gives its peer up.
    #[must_use]
    pub fn patience(&self) -> (u8, u8) {
        with_transport!(&self.0, |work, _| work.patience())
    }

    /// Checks a modification without carrying it out.
    ///
    /// # Errors
    /// As [`Qp::modify`].
    pub fn check_modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), AttrError> {
        with_transport!(&self.0, |work, _| work.check_modify(attr, mask))
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
        with_transport!(&mut self.0, |work, transport| {
            work.modify(attr, mask, host)?;
            match work.attr.state {
                QpState::Reset => *transport = Default::default(),
                QpState::Err => transport.forget_answers(),
                _ => {}
            }
            Ok(())
        })
    }

    /// Why its peer is about to be lost, as completions are to say it.
    fn set_vendor_err(&mut self, why: u32) {
        with_transport!(&mut self.0, |work, _| work.vendor_err = why);
    }

    /// Binds it to its device.
    pub fn bind<'a, H: Host>(&'a mut self, host: &'a mut H) -> Bound<'a, H> {
        Bound { qp: self, host }
    }

    /// The device can't go on with it: it fails, whatever its service.
    pub fn fail<H: Host>(&mut self, host: &mut H) {
        with_transport!(&mut self.0, |work, _| work.fail(host));
    }

    /// Whether it waits for something only the peer can do: worth finding out if the peer lives.
    #[must_use]
    pub fn expects_peer(&self) -> bool {
        with_transport!(&self.0, |work, _| work.expects_peer())
    }

    /// Whether anything it has been asked to send awaits the peer.
    #[must_use]
    pub fn expects_answer(&self) -> bool {
        with_transport!(&self.0, |work, transport| {
            work.sq.in_flight() || transport.has_next(work, Space::Request) || self.has_direct()
        })
    }

    /// Whether the send queue holds anything that is not done.
    #[inline]
    #[must_use]
    pub fn has_sends(&self) -> bool {
        with_transport!(&self.0, |work, _| !work.sq.is_empty())
    }

    /// A refusal found after its request had been acknowledged (an MR deregistered while its READ
    /// was being answered): the link must send it as for [`Verdict::Refused`].
    pub fn take_late_refusal(&mut self) -> Option<(u64, Nak)> {
        with_transport!(&mut self.0, |_, transport| transport.take_late_refusal())
    }

    /// Accepts a send work request (`ibv_post_send(3)`). In the error state it completes at once,
    /// flushed.
    ///
    /// # Errors
    /// [`PostError::Full`], or [`PostError::Invalid`] before RTS, with too many entries or too
    /// many bytes.
    pub fn post_send<H: Host>(&mut self, wr: SendWr, host: &mut H) -> Result<(), PostError> {
        with_transport!(&mut self.0, |work, transport| {
            let one_sided = wr.op.is_one_sided();
            work.post_send(transport, wr, host)?;
            transport.posted(one_sided);
            Ok(())
        })
    }

    /// Whether [`Qp::post_send`] would accept every one of `wrs`, posted one after the other
    /// (`ibv_wr_complete`, which posts all or nothing).
    ///
    /// # Errors
    /// As [`Qp::post_send`].
    pub fn check_sends(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        with_transport!(&self.0, |work, _| work.check_sends(wrs))
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
        with_transport!(&mut self.0, |work, transport| {
            work.post_failed(transport, wr, status, host)
        })
    }

    /// Accepts a receive work request (`ibv_post_recv(3)`). In the error state it completes at
    /// once, flushed.
    ///
    /// # Errors
    /// [`PostError::Full`], or [`PostError::Invalid`] in RESET, with an SRQ, or with too many
    /// entries.
    pub fn post_recv<H: Host>(&mut self, wr: RecvWr, host: &mut H) -> Result<(), PostError> {
        with_transport!(&mut self.0, |work, _| work.post_recv(wr, host))
    }

    /// Whether anything posted has not been sent whole.
    #[inline]
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        with_transport!(&self.0, |work, _| work.sq.has_unsent())
    }

    /// Work requests posted and not complete.
    #[inline]
    #[must_use]
    pub fn sends(&self) -> u64 {
        with_transport!(&self.0, |work, _| work.sq.unsent() + work.sq.under_way())
    }

    /// Whether what is queued had better wait for more to share a datagram with: `under_way` or
    /// more work requests are unacknowledged, so that the program must call again, and those
    /// unsent are fewer than `messages` and, by the newest's length, make less than `bytes`.
    #[must_use]
    pub fn may_gather(&self, under_way: u64, messages: u64, bytes: u64) -> bool {
        with_transport!(&self.0, |work, _| {
            let unsent = work.sq.unsent();
            let newest = work.sq.newest_len();
            work.attr.state == QpState::Rts
                && work.sq.under_way() >= under_way
                && unsent < messages
                && unsent * u64::from(newest) < bytes
        })
    }

    /// Whether there is a unit to send now.
    #[must_use]
    pub fn has_segment(&self) -> bool {
        with_transport!(&self.0, |work, transport| {
            transport.has_next(work, Space::Response)
                || transport.has_next(work, Space::Request)
                || self.has_direct()
        })
    }

    /// Whether the next unit of `space` has at most `len` bytes of payload.
    #[must_use]
    pub fn is_next_short(&self, space: Space, len: usize) -> bool {
        with_transport!(&self.0, |work, transport| {
            let payload = transport.next_len(work, space);
            payload.is_some_and(|payload| payload as usize <= len)
        })
    }

    /// Whether the next thing to send, and the last, is a message that one unit with `room` bytes
    /// of payload carries whole.
    #[inline]
    #[must_use]
    pub fn is_last_whole(&self, room: u32) -> bool {
        with_transport!(&self.0, |work, transport| {
            transport.is_last_whole(work, room)
        })
    }

    /// Takes the oldest send of a UD queue pair, writes its payload to `out`, and completes it.
    /// `None` where there is none to send, or `out` is too short.
    pub fn next_datagram<H: Host>(
        &mut self,
        out: &mut BytesMut<'_>,
        host: &mut H,
    ) -> Option<Outgoing> {
        with_transport!(&mut self.0, |work, _| datagram::next(work, out, host))
    }

    /// Places a datagram that has come into the next receive. One that is longer is dropped and
    /// leaves the receive to the next (InfiniBand specification 9.9.3, class D faults): anybody may
    /// have sent it.
    pub fn take_datagram<H: Host>(&mut self, incoming: &Incoming<'_>, host: &mut H) -> Fate {
        with_transport!(&mut self.0, |work, _| datagram::take(work, incoming, host))
    }

    /// Whether a limit is set on what it sends ([`Qp::set_paced`]).
    #[inline]
    #[must_use]
    pub fn is_paced(&self) -> bool {
        with_transport!(&self.0, |work, _| work.is_paced())
    }

    /// A limit is set from now on: what is not begun waits until [`Qp::admit`] lets it through.
    /// Or none is.
    pub fn set_paced(&mut self, paced: bool) {
        with_transport!(&mut self.0, |work, _| work.set_paced(paced));
    }

    /// Lets work requests through, the oldest first, as long as `take` does, which is asked for the
    /// bytes of each.
    pub fn admit(&mut self, take: impl FnMut(u32) -> bool) {
        with_transport!(&mut self.0, |work, _| work.admit(take))
    }

    /// Whether a work request waits for the end of accesses by a key that it has withdrawn:
    /// [`Qp::look_at_withdrawal`] finds out, which somebody has to call.
    #[inline]
    #[must_use]
    pub fn is_withdrawing(&self) -> bool {
        with_transport!(&self.0, |work, _| work.is_withdrawing())
    }

    /// Completes the work request that withdraws a key, if the accesses by it have ended, and
    /// carries out what follows it.
    pub fn look_at_withdrawal<H: Host>(&mut self, host: &mut H) {
        with_transport!(&mut self.0, |work, transport| {
            work.look_at_withdrawal(transport, host)
        });
    }
}

impl<H: Host> Bound<'_, H> {
    /// As [`Ulp::next`], for a request that is known to be whole ([`Qp::is_last_whole`]).
    pub fn next_whole(&mut self, seq: u64, frame: &mut impl Frame) -> Option<SegMeta> {
        let host = &mut *self.host;
        with_transport!(&mut self.qp.0, |work, transport| {
            transport.next_whole(work, seq, frame, host)
        })
    }
}

impl<H: Host> Ulp for Bound<'_, H> {
    fn has_next(&self, space: Space) -> bool {
        with_transport!(&self.qp.0, |work, transport| {
            transport.has_next(work, space)
        })
    }

    fn next(&mut self, space: Space, seq: u64, frame: &mut impl Frame) -> Option<SegMeta> {
        let host = &mut *self.host;
        with_transport!(&mut self.qp.0, |work, transport| {
            transport.next(work, (space, seq), frame, host)
        })
    }

    #[inline]
    fn next_alike(&mut self, space: Space, seq: u64, bodies: PayloadsMut<'_>) -> usize {
        let host = &mut *self.host;
        with_transport!(&mut self.qp.0, |work, transport| {
            transport.next_alike(work, (space, seq), bodies, host)
        })
    }

    fn receive_alike(
        &mut self,
        space: Space,
        meta: SegMeta,
        unit: &Unit,
        payloads: Payloads<'_>,
    ) -> usize {
        let host = &mut *self.host;
        with_transport!(&mut self.qp.0, |work, transport| {
            transport.receive_alike(work, (space, meta), unit, payloads, host)
        })
    }

    fn again(&mut self, space: Space, seq: u64, frame: &mut impl Frame) -> Option<SegMeta> {
        let host = &mut *self.host;
        with_transport!(&mut self.qp.0, |work, transport| {
            transport.again(work, (space, seq), frame, host)
        })
    }

    fn can_repeat(&self, seq: u64) -> bool {
        with_transport!(&self.qp.0, |work, transport| {
            transport.can_repeat(work, seq, &*self.host)
        })
    }

    fn receive(
        &mut self,
        space: Space,
        meta: SegMeta,
        unit: &Unit,
        payload: Bytes<'_>,
        in_order: bool,
    ) -> Verdict {
        let host = &mut *self.host;
        with_transport!(&mut self.qp.0, |work, transport| {
            match space {
                Space::Request => transport.on_request(work, meta, unit, payload, in_order, host),
                Space::Response => transport.on_response(work, unit, payload, host),
            }
        })
    }

    #[inline(always)]
    fn acked(&mut self, space: Space, upto: u64) {
        let host = &mut *self.host;
        with_transport!(&mut self.qp.0, |work, transport| {
            transport.acked(work, space, upto, host);
        });
    }

    fn not_ready(&mut self, seq: u64, timer: u8, now: Instant) -> Option<Instant> {
        let host = &mut *self.host;
        let again = with_transport!(&mut self.qp.0, |work, transport| {
            transport.on_not_ready(work, seq, host)
        });
        again.then(|| now + rnr_time(timer))
    }

    fn refused(&mut self, seq: u64, nak: Nak) {
        let host = &mut *self.host;
        with_transport!(&mut self.qp.0, |work, transport| {
            transport.on_refused(work, seq, nak, host);
        });
    }

    fn other_version(&mut self, theirs: u8, ours: u8) {
        self.qp
            .set_vendor_err(crate::types::other_version(theirs, ours));
    }

    fn not_secured(&mut self, why: u8) {
        self.qp
            .set_vendor_err(crate::types::VENDOR_ERR_SECURE | u32::from(why));
    }

    fn expects_answer(&self) -> bool {
        self.qp.expects_answer()
    }

    fn is_failed(&self) -> bool {
        self.qp.state() == QpState::Err
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
        let host = &mut *self.host;
        with_transport!(&mut self.qp.0, |work, transport| {
            transport.on_message(work, meta, payload, host)
        })
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
        let host = &mut *self.host;
        with_transport!(&mut self.qp.0, |work, _| work.on_lost(host));
    }
}
