//! The seam between a queue pair and whatever carries its segments.
//!
//! A *link* (TRP over datagrams, or a ring in shared memory) moves [`Unit`]s in two sequence
//! spaces, each with its own numbers: a requester's messages and a responder's answers. They are
//! separate so that a SEND refused for want of a receive never holds up a READ response behind it.
//! The link numbers units without gaps; the queue pair remembers what each number carried, so that
//! a unit can be built again from the application's memory instead of being kept. How a unit is
//! laid out is the link's business alone: to the queue pair it shows a [`Frame`].

use crate::bytes::{Bytes, Payloads, PayloadsMut};
use crate::host::Tally;
use crate::time::Instant;
use crate::types::WcStatus;
use crate::unit::{Frame, Unit};

/// The two sequence spaces of a link direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Space {
    /// SEND, WRITE, immediate data, READ and atomic *requests*; accepted in order.
    Request = 0,
    /// READ and atomic *responses*; placed in any order.
    Response = 1,
}

/// Where a unit stands in its space and its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegMeta {
    /// Sequence number in its space (not truncated; links put a truncation on the wire).
    pub seq: u64,
    /// Sequence number of the first unit of the same message. `seq` where that is the only one.
    pub first: u64,
    /// Whether it is the last unit of its message.
    pub last: bool,
    /// The requester has placed bytes of the message itself (a link in shared memory only).
    pub direct: bool,
}

/// Answer of a queue pair to a unit offered to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Placed or executed; its number may be acknowledged.
    Placed,
    /// Not now: no receive is posted. The number counts as not received; the link tells the
    /// requester, which goes back to it after the time encoded as in `min_rnr_timer`.
    NotReady(u8),
    /// Never: the link tells the requester, whose queue pair fails at this number.
    Refused(Nak),
    /// Offered ahead of its turn (`in_order` false) and not placeable yet: hold it and offer it
    /// again.
    Later,
    /// The queue pair is in no state to receive: drop, do not acknowledge.
    Ignore,
}

/// Why a responder refuses a request for good (InfiniBand's NAK codes; on the wire, RFC 5040
/// section 4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// Malformed, too long for the receive, unsupported or misaligned.
    InvalidRequest,
    /// Bad rkey, bounds, protection domain or permission.
    RemoteAccess,
    /// The responder could not carry it out through no fault of the request.
    RemoteOperation,
}

impl Nak {
    /// The completion status the requester reports.
    #[must_use]
    pub fn status(self) -> WcStatus {
        match self {
            Nak::InvalidRequest => WcStatus::RemInvReqErr,
            Nak::RemoteAccess => WcStatus::RemAccessErr,
            Nak::RemoteOperation => WcStatus::RemOpErr,
        }
    }
}

/// What a link carries for: a queue pair bound to the memory and queues of its device.
pub trait Ulp {
    /// Whether [`Ulp::next`] would yield a unit now. Cheap; called on every poll.
    fn has_next(&self, space: Space) -> bool;

    /// Builds the next new unit of `space` as number `seq` in `frame`, or returns `None` when there
    /// is nothing to send; what the frame holds then is of no meaning. `seq` is always one more
    /// than in the previous successful call for the space.
    fn next(&mut self, space: Space, seq: u64, frame: &mut impl Frame) -> Option<SegMeta>;

    /// Puts the payloads of the next units, from number `seq` on, in `bodies`, as long as all that
    /// a unit says is known: it continues the message of the unit that was built last, with exactly
    /// as many bytes as that one, and does not end it. Returns how many were built; of those behind
    /// them [`Ulp::next`] must look at the first.
    fn next_alike(&mut self, _space: Space, _seq: u64, _bodies: PayloadsMut<'_>) -> usize {
        0
    }

    /// Builds unit `seq` again, of the same range of its message; `None` if the message is gone
    /// (its queue pair failed meanwhile).
    fn again(&mut self, space: Space, seq: u64, frame: &mut impl Frame) -> Option<SegMeta>;

    /// Whether the memory may still be read that response `seq` comes from; false if that is
    /// forgotten. [`Ulp::again`] fails the queue pair where it cannot be read. So a link asks first
    /// where the requester may have the response already, since then nobody misses it.
    fn can_repeat(&self, _seq: u64) -> bool {
        true
    }

    /// Offers a received unit. Each number is offered until it is `Placed` and never after.
    /// `in_order`: every earlier number of the space has been placed. Otherwise the link has made
    /// sure that every number before `meta.first` has been placed, and that `meta.last` is false
    /// (Response space: offered at once in any order, `in_order` is true for each).
    fn receive(
        &mut self,
        space: Space,
        meta: SegMeta,
        unit: &Unit,
        payload: Bytes<'_>,
        in_order: bool,
    ) -> Verdict;

    /// As [`Ulp::receive`], in order, of a unit and those that follow it in its message, each with
    /// as many bytes, none of which ends it. Returns how many are placed: the first of the others
    /// is to be offered by [`Ulp::receive`].
    fn receive_alike(
        &mut self,
        _space: Space,
        _meta: SegMeta,
        _unit: &Unit,
        _payloads: Payloads<'_>,
    ) -> usize {
        0
    }

    /// Every number of `space` below `upto` has been placed at the peer.
    fn acked(&mut self, space: Space, upto: u64);

    /// The peer has refused request `seq` for want of a receive; asks whether to go on.
    /// `Some(when)`: send `seq` and what follows again at that time. `None`: the retry count is
    /// used up and the queue pair has failed.
    fn not_ready(&mut self, seq: u64, timer: u8, now: Instant) -> Option<Instant>;

    /// The peer has refused request `seq` for good. All before it count as placed.
    fn refused(&mut self, seq: u64, nak: Nak);

    /// The peer speaks another version of the link's protocol, `theirs` instead of `ours`:
    /// [`Ulp::lost`] follows.
    fn other_version(&mut self, theirs: u8, ours: u8);

    /// The peer makes no secured connection, for the reason of this number
    /// (`causeway_wire::secure`): [`Ulp::lost`] follows.
    fn not_secured(&mut self, _why: u8) {}

    /// Whether the queue pair waits for something that only the peer can do.
    fn expects_answer(&self) -> bool;

    /// Whether the queue pair is in the error state.
    fn is_failed(&self) -> bool;

    /// Whether the next unit of `space` has at most `len` bytes of payload.
    fn is_next_short(&self, _space: Space, _len: usize) -> bool {
        false
    }

    /// A request refused after it had been acknowledged, as for [`Verdict::Refused`]: the link
    /// tells the requester. To be asked after each [`Ulp::next`] of a response.
    fn take_late_refusal(&mut self) -> Option<(u64, Nak)> {
        None
    }

    /// Whether there is something to send that may not have to be sent: a link that can reach the
    /// peer's memory has to look at it.
    fn has_direct(&self) -> bool {
        false
    }

    /// As [`Ulp::receive`], in order, of the next [`Unit::plain_send`]: its link says that it is
    /// one, and neither the unit nor its number was sent. An upper layer that knows no such
    /// messages refuses them.
    fn message(&mut self, _meta: SegMeta, _payload: Bytes<'_>) -> Verdict {
        Verdict::Refused(Nak::InvalidRequest)
    }

    /// As [`Ulp::message`], where nothing is out of the ordinary: the shortest way. Returns false,
    /// with nothing done, where that must look.
    fn message_plain(&mut self, _payload: Bytes<'_>) -> bool {
        false
    }

    /// See [`Host::has_enough`](crate::host::Host::has_enough).
    fn has_enough(&self) -> bool {
        false
    }

    /// See [`Host::is_sated`](crate::host::Host::is_sated).
    fn is_sated(&self) -> bool {
        false
    }

    /// See [`Host::tally`](crate::host::Host::tally).
    fn tally(&self, _what: Tally, _times: u64) {}

    /// The peer is unreachable or gone: the retry budget is used up, or its death was proved.
    fn lost(&mut self);
}
