//! The short ways: what is posted, sent, received or carried out in one go where nothing is out of
//! the ordinary. One that declines has changed nothing.

use super::{AtOnce, Express, PlainSend, PostError, Qp};
use crate::bytes::Bytes;
use crate::host::{Completions, Host};
use crate::reach::Reach;
use crate::transport::Transport;
use crate::transports::with_transport;
use crate::types::{SendFlags, SendWr, Sge, Wc, WcOpcode};
use crate::unit::Unit;

impl Qp {
    /// The program has polled a completion of the send queue: its work request, and the unsignaled
    /// ones before it, leave the queue. `places` is what the device was told with that
    /// ([`crate::host::Completions`]).
    #[inline(always)]
    pub fn release_send(&mut self, places: u32) {
        with_transport!(&mut self.0, |work, _| work.release_send(places));
    }

    /// The program has polled so many completions of the receive queue.
    #[inline(always)]
    pub fn release_recvs(&mut self, count: u32) {
        with_transport!(&mut self.0, |work, _| work.release_recvs(count));
    }

    /// Whether no send can be posted before a completion is polled.
    #[inline(always)]
    #[must_use]
    pub fn is_send_full(&self) -> bool {
        with_transport!(&self.0, |work, _| work.is_send_full())
    }

    /// Whether no receive can be posted before a completion is polled.
    #[inline(always)]
    #[must_use]
    pub fn is_recv_full(&self) -> bool {
        with_transport!(&self.0, |work, _| work.is_recv_full())
    }

    /// Whether [`Qp::post_recv_range`] may post one.
    #[inline(always)]
    #[must_use]
    pub fn takes_recv_range(&self) -> bool {
        with_transport!(&self.0, |work, _| work.takes_recv_range())
    }

    /// As [`Qp::post_recv`] of a receive of one range, where nothing is out of the ordinary: the
    /// shortest way. Returns false, with nothing done, where that must look.
    #[inline(always)]
    #[must_use]
    pub fn post_recv_range(&mut self, wr_id: u64, range: Sge) -> bool {
        with_transport!(&mut self.0, |work, _| work.post_recv_range(wr_id, range))
    }

    /// As [`Ulp::message`](crate::ulp::Ulp::message), where nothing is out of the ordinary: the
    /// shortest way to its completion. Returns false, with nothing done, where that must look.
    #[inline(always)]
    pub fn receive_plain<H: Host>(&mut self, body: Bytes<'_>, host: &mut H) -> bool {
        with_transport!(&mut self.0, |work, transport| {
            transport.receive_plain(work, body, host)
        })
    }

    /// The receive that a SEND without options, of `len` bytes, the next of its queue pair, can be
    /// placed into at once: its name and its only range. `None` where there is more to look at.
    #[inline(always)]
    #[must_use]
    pub fn takes_message(&self, len: u32) -> Option<(u64, Sge)> {
        with_transport!(&self.0, |work, transport| {
            transport.takes_message(work, len)
        })
    }

    /// Takes the receive that [`Qp::takes_message`] has shown, into which a message of `len` bytes
    /// was placed. Returns its completion, which is the device's to queue.
    #[inline(always)]
    #[must_use]
    pub fn took_message(&mut self, wr_id: u64, len: u32) -> Wc {
        with_transport!(&mut self.0, |work, transport| {
            transport.took_message(work, wr_id, len)
        })
    }

    /// As [`Qp::took_message`], of a completion that is given to the program at once: the place of
    /// the receive is free.
    #[inline(always)]
    #[must_use]
    pub fn took_polled_message(&mut self, wr_id: u64, len: u32) -> Wc {
        with_transport!(&mut self.0, |work, transport| {
            debug_assert!(work.rq_used > 0, "one of its own receives was taken");
            work.rq_used = work.rq_used.wrapping_sub(1);
            transport.took_message(work, wr_id, len)
        })
    }

    /// The peer has acknowledged the requests below `upto`: the completion of the oldest work
    /// request, if it is a plain send that this completes, the only one, with a completion, and
    /// nothing else follows from it. `None` where there is more to look at.
    #[inline(always)]
    #[must_use]
    pub fn one_acked(&self, upto: u64) -> Option<Wc> {
        with_transport!(&self.0, |work, transport| transport.one_acked(work, upto))
    }

    /// Takes the work request whose completion [`Qp::one_acked`] has shown, which the device gives
    /// to the program at once: its place in the queue, and those of the unsignaled ones before it,
    /// are free.
    #[inline(always)]
    pub fn take_one_acked(&mut self, upto: u64) {
        with_transport!(&mut self.0, |work, transport| {
            transport.take_one_acked(work, upto)
        });
    }

    /// Whether a SEND without options, of `len` bytes, can be posted and sent at once as segment
    /// `seq` ([`Qp::post_plain`]): there is room for it, and nothing else to send.
    #[inline(always)]
    #[must_use]
    pub fn takes_plain(&self, len: u32, inline: bool, seq: u64) -> bool {
        with_transport!(&self.0, |work, transport| {
            transport.takes_plain(work, len, inline, seq)
        })
    }

    /// Posts a send that has been sent as segment `seq`, since [`Qp::takes_plain`] said so.
    #[inline(always)]
    pub fn post_plain(&mut self, send: PlainSend, seq: u64) {
        with_transport!(&mut self.0, |work, transport| {
            transport.post_plain(work, send, seq)
        });
    }

    /// As [`Qp::takes_plain`], where [`Qp::put_plain`] is to follow: also whether the queue has a
    /// place already.
    #[inline(always)]
    #[must_use]
    pub fn has_plain_place(&self, len: u32, seq: u64) -> bool {
        with_transport!(&self.0, |work, _| {
            self.takes_plain(len, false, seq) && work.sq.has_plain_place()
        })
    }

    /// As [`Qp::post_plain`], since [`Qp::has_plain_place`] said so. Calls nothing.
    #[inline(always)]
    pub fn put_plain(&mut self, send: PlainSend, seq: u64) {
        with_transport!(&mut self.0, |work, transport| {
            transport.put_plain(work, send, seq)
        });
    }

    /// Whether a SEND or WRITE of one range can be posted and sent at once: it has no options,
    /// there is room for it, and nothing else is to be sent.
    #[inline]
    #[must_use]
    pub fn takes_express(&self, request: &Express<'_>) -> bool {
        with_transport!(&self.0, |work, transport| {
            transport.takes_express(work, request)
        })
    }

    /// What such a request says to the peer.
    #[inline]
    #[must_use]
    pub fn express_unit(&self, request: &Express<'_>) -> Unit {
        with_transport!(&self.0, |_, transport| transport.express_unit(request))
    }

    /// Posts such a request, which has been sent as unit `seq`, since [`Qp::takes_express`] said
    /// so.
    #[inline]
    pub fn post_express(&mut self, request: &Express<'_>, seq: u64) {
        with_transport!(&mut self.0, |work, transport| {
            transport.post_express(work, request, seq)
        });
    }

    /// Its link can carry one-sided work requests directly, if it says so: each is looked at by
    /// [`Qp::run_direct`] before it is sent.
    pub fn set_direct(&mut self, direct: bool) {
        with_transport!(&mut self.0, |work, _| {
            work.direct = direct;
            work.set_gates();
        });
    }

    /// What it sends and receives is recorded, if it says so: no short way is taken then.
    pub fn set_traced(&mut self, traced: bool) {
        with_transport!(&mut self.0, |work, _| {
            work.traced = traced;
            work.set_gates();
        });
    }

    /// Whether [`Qp::run_direct`] has something to look at.
    #[inline]
    #[must_use]
    pub fn has_direct(&self) -> bool {
        with_transport!(&self.0, |work, transport| transport.has_direct(work))
    }

    /// Whether a WRITE or READ of one range of registered memory, or an inline WRITE that is not
    /// too long for that, could be carried out here and now, as [`Qp::post_direct`] would: it would
    /// be accepted, and nothing is before it.
    #[inline(always)]
    #[must_use]
    pub fn takes_short(&self, read: bool) -> bool {
        with_transport!(&self.0, |work, transport| transport.takes_short(work, read))
    }

    /// A work request that [`Qp::takes_short`] said yes to has been carried out. Returns whether it
    /// has a completion.
    #[inline(always)]
    pub fn passed<C: Completions>(
        &mut self,
        host: &mut C,
        (wr_id, opcode): (u64, WcOpcode),
        flags: SendFlags,
        len: u32,
    ) -> bool {
        with_transport!(&mut self.0, |work, _| {
            work.passed(host, (wr_id, opcode), flags, len)
        })
    }

    /// As [`Qp::passed`], of one that has no completion. The caller counts it.
    #[inline(always)]
    pub fn passed_silently(&mut self) {
        with_transport!(&mut self.0, |work, _| work.sq.pass());
    }

    /// Whether each work request that succeeds has a completion, whether it asks for one or not.
    #[inline(always)]
    #[must_use]
    pub fn signals_all(&self) -> bool {
        with_transport!(&self.0, |work, _| work.config.sq_sig_all)
    }

    /// Carries out a WRITE, READ or atomic without queueing it, where nothing is before it and its
    /// target is within reach: the shortest way.
    ///
    /// # Errors
    /// As [`Qp::post_send`].
    #[inline]
    pub fn post_direct<H: Host, R: Reach>(
        &mut self,
        wr: &SendWr,
        host: &mut H,
        reach: &mut R,
    ) -> Result<AtOnce, PostError> {
        with_transport!(&mut self.0, |work, transport| {
            transport.post_direct(work, wr, host, reach)
        })
    }

    /// Carries out the work requests whose turn it is and whose targets are within reach, and
    /// decides of the next one how it goes.
    pub fn run_direct<H: Host, R: Reach>(&mut self, host: &mut H, reach: &mut R) {
        with_transport!(&mut self.0, |work, transport| {
            transport.run_direct(work, host, reach)
        });
    }
}
