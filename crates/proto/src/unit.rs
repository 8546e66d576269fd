//! What one queue pair says to the other: typed units, which a carrier turns into bytes and back.
//!
//! A message is sent as one unit or several. A unit says what it is in the terms of verbs (key,
//! address, offset, length); how that is laid out is the carrier's business. To send, the carrier
//! shows the queue pair a [`Frame`]: the queue pair names the unit, and puts the payload where the
//! frame has room for it, so nothing is copied twice. What has come the carrier reads, and offers
//! with a view of its payload ([`crate::ulp::Ulp::receive`]).

use crate::bytes::BytesMut;
use crate::host::AtomicOp;

/// What a unit says, beside its payload and its place in the sequence
/// ([`crate::ulp::SegMeta`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// SEND, of which the payload is a part.
    Send {
        /// Number of the message among those that consume a receive; the first is 1.
        msn: u32,
        /// Where in the message the payload lies.
        offset: u32,
        /// Wakes waiters for solicited completions only.
        solicited: bool,
        /// Key to invalidate. Excludes `imm`.
        invalidate: Option<u32>,
        /// Immediate data: 32 bits as they stand in memory.
        imm: Option<u32>,
    },
    /// RDMA WRITE of the payload.
    Write {
        /// Key of the target.
        rkey: u32,
        /// Where in the target this payload goes.
        addr: u64,
    },
    /// The end of an RDMA WRITE with immediate data. Without payload, and always the last of its
    /// message.
    Immediate {
        /// As of a SEND: it consumes a receive.
        msn: u32,
        /// Wakes waiters for solicited completions only.
        solicited: bool,
        /// Immediate data: 32 bits as they stand in memory.
        imm: u32,
        /// Bytes of the whole WRITE.
        written: u32,
    },
    /// RDMA READ request. Without payload.
    Read {
        /// Number of the message among requests that are answered; the first is 1.
        msn: u32,
        /// Names the request in its answer.
        id: u32,
        /// Bytes to read.
        len: u32,
        /// Key of the source.
        rkey: u32,
        /// Address in the source.
        addr: u64,
    },
    /// Atomic request on 8 bytes. Without payload.
    Atomic {
        /// As of a READ.
        msn: u32,
        /// Names the request in its answer.
        id: u32,
        /// Key of the target.
        rkey: u32,
        /// Address in the target.
        addr: u64,
        /// What to do.
        op: AtomicOp,
    },
    /// Answer to a READ, of which the payload is a part.
    ReadAnswer {
        /// That of the request.
        id: u32,
        /// Where in the answer the payload lies.
        offset: u64,
    },
    /// Answer to an atomic. Without payload.
    AtomicAnswer {
        /// Number among answers to atomics; the first is 1.
        msn: u32,
        /// That of the request.
        id: u32,
        /// The value before.
        original: u64,
    },
    /// The carrier could not read what has come. It is never sent.
    Unreadable,
}

impl Unit {
    /// A SEND without options that is whole: what most units are.
    #[inline]
    #[must_use]
    pub const fn plain_send(msn: u32) -> Unit {
        Unit::Send {
            msn,
            offset: 0,
            solicited: false,
            invalidate: None,
            imm: None,
        }
    }
}

/// Units by the room that they leave for payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`Unit::Send`]
    Send,
    /// [`Unit::Write`] of a plain WRITE
    Write,
    /// [`Unit::ReadAnswer`]
    ReadAnswer,
    /// All others, and [`Unit::Write`] of a WRITE that ends with [`Unit::Immediate`].
    Other,
}

/// Where one unit is built by its carrier.
pub trait Frame {
    /// Most bytes of payload that a unit of a kind may have here; `None` where there is no room
    /// even for one without payload.
    fn room(&self, kind: Kind) -> Option<u32>;

    /// Begins the unit, the last of its message or not, and returns where its payload of `len`
    /// bytes is to be put, which is exactly so long. `None` where it does not fit.
    fn put(&mut self, unit: &Unit, last: bool, len: usize) -> Option<BytesMut<'_>>;
}
