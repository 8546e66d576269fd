//! What a ring's protocol asks of the memory that the two sides share.

use crate::bytes::{Bytes, BytesMut};

/// The other side wrote what it must not: the ring is unusable, its queue pair fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer has corrupted the ring")]
pub struct Corrupt;

/// Kinds of records (docs/LAYOUT.md).
pub mod kind {
    /// A request.
    pub const REQUEST: u8 = 1;
    /// A response.
    pub const RESPONSE: u8 = 2;
    /// Request `seq` found no receive; the flags hold the timer code.
    pub const NOT_READY: u8 = 3;
    /// Request `seq` is refused for good; the flags hold the reason.
    pub const REFUSED: u8 = 4;
    /// Request `seq` is a SEND without options, whole, and the next of its queue pair: its payload
    /// alone.
    pub const MESSAGE: u8 = 5;
}

/// Flag of a record: last unit of its message.
pub const LAST: u8 = 1;
/// Flag of a record: bytes of its message were placed by the writer itself.
pub const DIRECT: u8 = 2;

/// A record that has come. All but the body is a copy; the body lies in the ring, and a malicious
/// peer may change it meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// What it is, as the peer says: one of [`kind`], or anything.
    pub kind: u8,
    /// Flags, as the peer says.
    pub flags: u8,
    /// Sequence number, as the peer says.
    pub seq: u64,
    /// What the peer acknowledges with it: every request below is placed, as it says.
    pub ack: u64,
    /// What it carries.
    pub body: Bytes<'a>,
}

/// What a side has to tell the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// Records were published, or a flag set.
    pub data: bool,
    /// Requests were acknowledged in the acknowledgment word.
    pub ack: bool,
    /// Records were taken: there is room again.
    pub room: bool,
}

impl News {
    /// Nothing.
    pub const NONE: News = News {
        data: false,
        ack: false,
        room: false,
    };
    /// Records, or a flag.
    pub const DATA: News = News {
        data: true,
        ..News::NONE
    };
    /// A flag, and an acknowledgment before it.
    pub const END: News = News {
        ack: true,
        ..News::DATA
    };
}

/// Room for a record. Dropped without [`Slot::commit`], it leaves no trace.
pub trait Slot {
    /// Where the body goes.
    fn body(&mut self) -> BytesMut<'_>;

    /// Makes a record of the first `len` bytes of the body, which [`Shared::publish`] will show to
    /// the reader. It carries the newest acknowledgment ([`Shared::set_ack`]).
    fn commit(self, kind: u8, flags: u8, seq: u64, len: usize);
}

/// A side's end of a ring: it writes records into one direction and takes those of the other. What
/// is written arrives whole, once and in order, at some time.
pub trait Shared {
    /// See [`Slot`].
    type Slot<'a>: Slot
    where
        Self: 'a;

    /// Room for a record with a body of `len` bytes. `None`: not now, the reader must take others
    /// first.
    ///
    /// # Errors
    /// [`Corrupt`] if the reader says that it has taken what it can't have.
    fn reserve(&mut self, len: usize) -> Result<Option<Self::Slot<'_>>, Corrupt>;

    /// Shows everything committed to the reader. Returns whether that was anything.
    fn publish(&mut self) -> bool;

    /// The next record, if there is one; the same again until it is consumed.
    ///
    /// # Errors
    /// [`Corrupt`] if the writer wrote what is no record, and ever after.
    fn peek(&mut self) -> Result<Option<Record<'_>>, Corrupt>;

    /// Takes the record that [`Shared::peek`] showed, and gives its room back.
    fn consume(&mut self);

    /// Whether a record seems to have come.
    fn is_ready(&self) -> bool;

    /// Every request of the peer below `upto` has been placed: the next record says so, or
    /// [`Shared::publish_ack`].
    fn set_ack(&mut self, upto: u64);

    /// Whether the newest acknowledgment has not been shown to the peer.
    fn ack_pending(&self) -> bool;

    /// Shows the newest acknowledgment without a record. Returns whether it was news.
    fn publish_ack(&mut self) -> bool;

    /// The newest acknowledgment that has come, with a record or without. It never goes back.
    fn ack(&mut self) -> u64;

    /// As [`Shared::ack`], of a peer that is dead: also what it had not come to show.
    fn last_ack(&mut self) -> u64;

    /// Says for good that nothing more will come: the queue pair has failed, or (`closed`) was
    /// destroyed or reset.
    fn leave(&mut self, closed: bool);

    /// Whether the peer has said so. What it published before is visible afterwards.
    fn is_peer_leaving(&self) -> bool;

    /// Tells the peer of what has just become visible, if it wants to be told. Returns whether it
    /// had to be woken.
    fn tell(&mut self, news: News) -> bool;
}
