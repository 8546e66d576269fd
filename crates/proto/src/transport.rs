//! The seam between work queues and what carries their work out: a transport.
//!
//! A [`Transport`] has a requester, which turns send work requests into units and answers into
//! completions, and a responder, which places what the peer sends. It knows no bytes on a wire: a
//! carrier asks for units, and offers those that have come ([`crate::ulp::Ulp`]). The work queues
//! are an argument of every call, so that they are the same for all transports.
//!
//! The first methods are the general way, which every transport has. The others are short ways, for
//! what is frequent and plain. A transport that has none of them declines, which is what they do
//! here; one that declines has changed nothing.

mod express;

pub use express::{Content, Express, Target};

use core::fmt;

use crate::bytes::{Bytes, Payloads, PayloadsMut};
use crate::host::Host;
use crate::reach::Reach;
use crate::types::{SendWr, Sge, Wc, WcOpcode, WcStatus};
use crate::ulp::{Nak, SegMeta, Space, Verdict};
use crate::unit::{Frame, Unit};
use crate::work::{Numbering, PlainSend, PostError, WorkQueues};

/// The work queues of a queue pair with a transport.
type Queues<T> = WorkQueues<T>;

/// What became of a work request that was to be carried out as it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtOnce {
    /// It is complete.
    Done,
    /// Nothing has been done: it is to be posted.
    Declined,
    /// It was carried out at the peer, or can't be, and has failed:
    /// [`Qp::post_failed`](crate::qp::Qp::post_failed). To post it would carry an atomic out again.
    Failed(WcStatus),
}

/// What carries out the work of a queue pair: the methods of [`Ulp`](crate::ulp::Ulp) and
/// [`Qp`](crate::qp::Qp) that are more than the work queues' business, by their names there.
///
/// By default it is that of a queue pair in the RESET state.
pub trait Transport: Numbering + Default + fmt::Debug {
    /// A work request has been posted, one-sided or not.
    fn posted(&mut self, _one_sided: bool) {}

    /// The queue pair is in the error state: what the peer has asked for is answered no more.
    fn forget_answers(&mut self);

    /// Whether a unit of a space can be built now.
    fn has_next(&self, work: &Queues<Self>, space: Space) -> bool;

    /// Payload that the message has left whose unit is the next of a space; `None` where there is
    /// no such message.
    fn next_len(&self, work: &Queues<Self>, space: Space) -> Option<u32>;

    /// Builds the next unit of the space `at.0`, as number `at.1`.
    fn next<H: Host>(
        &mut self,
        work: &mut Queues<Self>,
        at: (Space, u64),
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta>;

    /// Builds unit `at.1` of the space `at.0` again.
    fn again<H: Host>(
        &mut self,
        work: &mut Queues<Self>,
        at: (Space, u64),
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta>;

    /// Whether the memory may still be read that response `seq` comes from.
    fn can_repeat<H: Host>(&self, work: &Queues<Self>, seq: u64, host: &H) -> bool;

    /// Places or carries out a request, whose turn it is if it is `in_order`.
    fn on_request<H: Host>(
        &mut self,
        work: &mut Queues<Self>,
        meta: SegMeta,
        unit: &Unit,
        payload: Bytes<'_>,
        in_order: bool,
        host: &mut H,
    ) -> Verdict;

    /// Places an answer.
    fn on_response<H: Host>(
        &mut self,
        work: &mut Queues<Self>,
        unit: &Unit,
        payload: Bytes<'_>,
        host: &mut H,
    ) -> Verdict;

    /// The peer has placed every number of a space below `upto`.
    fn acked<H: Host>(&mut self, work: &mut Queues<Self>, space: Space, upto: u64, host: &mut H);

    /// Whether to send request `seq` again, which the peer has refused for want of a receive. If
    /// not, the queue pair has failed.
    fn on_not_ready<H: Host>(&mut self, work: &mut Queues<Self>, seq: u64, host: &mut H) -> bool;

    /// The peer has refused request `seq` for good.
    fn on_refused<H: Host>(&mut self, work: &mut Queues<Self>, seq: u64, nak: Nak, host: &mut H);

    /// A request that is refused after it was acknowledged.
    fn take_late_refusal(&mut self) -> Option<(u64, Nak)>;

    /// Puts the payloads of the next units in `bodies`, of those that are like the one built last.
    #[inline(always)]
    fn next_alike<H: Host>(
        &mut self,
        _work: &mut Queues<Self>,
        _at: (Space, u64),
        _bodies: PayloadsMut<'_>,
        _host: &mut H,
    ) -> usize {
        0
    }

    /// Places units that follow each other in one message, none of which ends it.
    #[inline(always)]
    fn receive_alike<H: Host>(
        &mut self,
        _work: &mut Queues<Self>,
        _at: (Space, SegMeta),
        _unit: &Unit,
        _payloads: Payloads<'_>,
        _host: &mut H,
    ) -> usize {
        0
    }

    /// Whether the next thing to send, and the last, is a message that one unit with `room` bytes
    /// of payload carries whole.
    #[inline(always)]
    fn is_last_whole(&self, _work: &Queues<Self>, _room: u32) -> bool {
        false
    }

    /// As [`Transport::next`] of a request, for one that [`Transport::is_last_whole`].
    #[inline(always)]
    fn next_whole<H: Host>(
        &mut self,
        work: &mut Queues<Self>,
        seq: u64,
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        self.next(work, (Space::Request, seq), frame, host)
    }

    /// Places the next [`Unit::plain_send`], as its carrier says.
    #[inline(always)]
    fn on_message<H: Host>(
        &mut self,
        _work: &mut Queues<Self>,
        _meta: SegMeta,
        _body: Bytes<'_>,
        _host: &mut H,
    ) -> Verdict {
        Verdict::Refused(Nak::InvalidRequest)
    }

    /// As [`Transport::on_message`], where nothing is out of the ordinary.
    #[inline(always)]
    fn receive_plain<H: Host>(
        &mut self,
        _work: &mut Queues<Self>,
        _body: Bytes<'_>,
        _host: &mut H,
    ) -> bool {
        false
    }

    /// The receive that the next plain SEND, of `len` bytes, can be placed into at once.
    #[inline(always)]
    fn takes_message(&self, _work: &Queues<Self>, _len: u32) -> Option<(u64, Sge)> {
        None
    }

    /// Takes the receive that [`Transport::takes_message`] has shown.
    #[inline(always)]
    fn took_message(&mut self, work: &mut Queues<Self>, wr_id: u64, len: u32) -> Wc {
        work.rq.drop_range();
        Wc {
            byte_len: len,
            ..work.blank_wc(wr_id, WcOpcode::Recv, WcStatus::Success)
        }
    }

    /// The completion of the only send that requests being placed below `upto` completes.
    #[inline(always)]
    fn one_acked(&self, _work: &Queues<Self>, _upto: u64) -> Option<Wc> {
        None
    }

    /// Takes the work request whose completion [`Transport::one_acked`] has shown.
    #[inline(always)]
    fn take_one_acked(&mut self, work: &mut Queues<Self>, _upto: u64) {
        work.sq.drop_polled();
    }

    /// Whether a plain SEND of `len` bytes can be posted and sent at once as unit `seq`.
    #[inline(always)]
    fn takes_plain(&self, _work: &Queues<Self>, _len: u32, _inline: bool, _seq: u64) -> bool {
        false
    }

    /// Posts a send that has been sent as unit `seq`, since [`Transport::takes_plain`] said so.
    #[inline(always)]
    fn post_plain(&mut self, work: &mut Queues<Self>, send: PlainSend, seq: u64) {
        work.sq.push_plain(send, seq);
    }

    /// As [`Transport::post_plain`], where the send queue has a place for it
    /// ([`SendQueue::has_plain_place`](crate::work::SendQueue::has_plain_place)).
    #[inline(always)]
    fn put_plain(&mut self, work: &mut Queues<Self>, send: PlainSend, seq: u64) {
        work.sq.put_plain(send, seq);
    }

    /// Whether a SEND or WRITE of one range can be posted and sent at once.
    #[inline(always)]
    fn takes_express(&self, _work: &Queues<Self>, _request: &Express<'_>) -> bool {
        false
    }

    /// What such a request says to the peer.
    #[inline(always)]
    fn express_unit(&self, _request: &Express<'_>) -> Unit {
        Unit::Unreadable
    }

    /// Posts such a request, which has been sent as unit `seq`, since
    /// [`Transport::takes_express`] said so.
    #[inline(always)]
    fn post_express(&mut self, _work: &mut Queues<Self>, _request: &Express<'_>, _seq: u64) {
        debug_assert!(false, "it was declined");
    }

    /// Whether [`Transport::run_direct`] has something to look at.
    #[inline(always)]
    fn has_direct(&self, _work: &Queues<Self>) -> bool {
        false
    }

    /// Whether a WRITE or READ of one range could be carried out here and now.
    #[inline(always)]
    fn takes_short(&self, _work: &Queues<Self>, _read: bool) -> bool {
        false
    }

    /// Carries out a WRITE, READ or atomic without queueing it.
    ///
    /// # Errors
    /// As [`WorkQueues::post_send`].
    #[inline(always)]
    fn post_direct<H: Host, R: Reach>(
        &mut self,
        _work: &mut Queues<Self>,
        _wr: &SendWr,
        _host: &mut H,
        _reach: &mut R,
    ) -> Result<AtOnce, PostError> {
        Ok(AtOnce::Declined)
    }

    /// Carries out the work requests whose turn it is and whose targets are within reach.
    #[inline(always)]
    fn run_direct<H: Host, R: Reach>(
        &mut self,
        _work: &mut Queues<Self>,
        _host: &mut H,
        _reach: &mut R,
    ) {
    }
}
