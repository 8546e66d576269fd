//! The seam between a queue pair and whatever carries its segments.
//!
//! A *link* (TRP over datagrams, or a ring in shared memory) moves DDP segments in two sequence
//! spaces, each with its own numbers: a requester's messages and a responder's answers. They are
//! separate so that a SEND refused for want of a receive never holds up a READ response behind it.
//! The link numbers segments without gaps; the queue pair remembers what each number carried, so
//! that a segment can be built again from the application's memory instead of being kept.

use crate::bytes::{Bytes, BytesMut};
use crate::time::Instant;
use crate::types::WcStatus;

/// The two sequence spaces of a link direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Space {
    /// SEND, WRITE, immediate data, READ and atomic *requests*; accepted in order.
    Request = 0,
    /// READ and atomic *responses*; placed in any order.
    Response = 1,
}

/// What a link must know of a segment beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegMeta {
    /// Sequence number in its space (not truncated; links put a truncation on the wire).
    pub seq: u64,
    /// Sequence number of the first segment of the same message. `seq` for single-segment messages.
    pub first: u64,
    /// Whether it is the last segment of its message.
    pub last: bool,
    /// The requester has placed bytes of the message itself (a link in shared memory only).
    pub direct: bool,
}

/// Answer of a queue pair to a request segment offered to it.
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
    /// Whether [`Ulp::next`] would yield a segment now. Cheap; called on every poll.
    fn has_next(&self, space: Space) -> bool;

    /// Writes the next new segment of `space` as number `seq` into `out` (DDP header and payload,
    /// at most `out.len()` bytes) and returns its meaning and its length, or `None` when there is
    /// nothing to send. `seq` is always one more than in the previous successful call for the
    /// space.
    fn next(&mut self, space: Space, seq: u64, out: &mut BytesMut<'_>) -> Option<(SegMeta, usize)>;

    /// Builds segment `seq` again, byte for byte of the same range of its message; `None` if the
    /// message is gone (its queue pair failed meanwhile).
    fn again(&mut self, space: Space, seq: u64, out: &mut BytesMut<'_>)
    -> Option<(SegMeta, usize)>;

    /// Offers a received segment. Each number is offered until it is `Placed` and never after.
    /// `in_order`: every earlier number of the space has been placed. Otherwise the link has made
    /// sure that every number before `meta.first` has been placed, and that `meta.last` is false
    /// (Response space: offered at once in any order, `in_order` is true for each).
    fn receive(
        &mut self,
        space: Space,
        meta: SegMeta,
        segment: Bytes<'_>,
        in_order: bool,
    ) -> Verdict;

    /// Every number of `space` below `upto` has been placed at the peer.
    fn acked(&mut self, space: Space, upto: u64);

    /// The peer has refused request `seq` for want of a receive; asks whether to go on.
    /// `Some(when)`: send `seq` and what follows again at that time. `None`: the retry count is
    /// used up and the queue pair has failed.
    fn not_ready(&mut self, seq: u64, timer: u8, now: Instant) -> Option<Instant>;

    /// The peer has refused request `seq` for good. All before it count as placed.
    fn refused(&mut self, seq: u64, nak: Nak);

    /// The peer speaks another version of the link's protocol, `speaks`: [`Ulp::lost`] follows.
    fn other_version(&mut self, speaks: u8);

    /// The peer is unreachable or gone: the retry budget is used up, or its death was proved.
    fn lost(&mut self);
}
