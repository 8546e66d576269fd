//! TRP datagrams: the Trivial Reliability Protocol of USIW section 2.3, extended (docs/WIRE.md).
//!
//! Two layouts exist. *Handshake* datagrams (connection request and accept) carry a [`Hello`]; all
//! others begin with the same 40-byte header, after which data segments carry DDP and selective
//! acknowledgments carry ranges. Multi-byte fields are big-endian. Nothing here interprets a
//! sequence number or checks a cookie; that is the state machine's work.

use causeway_identity::QPN_MASK;

use crate::terminate::Terminate;

mod bundle;
mod emit;
mod parse;
mod run;
#[cfg(test)]
mod tests;

pub use bundle::{MAX_BUNDLE, MAX_BUNDLED, Segments, Table, table_len};
pub use parse::{ParseError, Ranges};
pub use run::{RunHeader, TAGGED_HEADER, UNTAGGED_HEADER};

/// Protocol version, the high nibble of the first byte.
pub const VERSION: u8 = 1;
/// Length of the header of every datagram but handshakes. A multiple of 8, so that the DDP header
/// behind it is 8-byte aligned whenever the datagram is.
pub const HEADER_LEN: usize = 40;
/// Length of a connection request or accept.
pub const HELLO_LEN: usize = 80;
/// Where the CRC32C stands in every datagram.
pub const CRC_OFFSET: usize = 32;
/// Most ranges of one selective acknowledgment.
pub const MAX_RANGES: usize = 32;
/// Bytes of one range.
pub const RANGE_LEN: usize = 8;

/// Feature bit of a [`Hello`]: every datagram of this connection carries a CRC32C.
pub const FEATURE_CRC: u32 = 1;
/// Feature bit of a [`Hello`]: its sender takes datagrams that are ECT, and tells of marks
/// ([`Common::marks`]). It holds where both sides have it.
pub const FEATURE_ECN: u32 = 1 << 1;

/// What a datagram is: 4 bits. 0 to 5 are USIW's table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// DDP segment of the request space.
    Data = 0,
    /// Connection request.
    Request = 1,
    /// Connection accept.
    Accept = 2,
    /// Connection reject.
    Reject = 3,
    /// Connection shutdown, also sent as a stateless reset.
    Shutdown = 4,
    /// Selective acknowledgment.
    Sack = 5,
    /// Receiver not ready: no receive is posted for the request.
    Rnr = 6,
    /// Request refused for good.
    Nak = 7,
    /// Acknowledgment without data; asks for an answer if [`FLAG_ASK`] is set.
    Ack = 8,
    /// DDP segment of the response space.
    Response = 9,
    /// Several DDP segments of the request space.
    Bundle = 10,
    /// Several DDP segments of the response space.
    ResponseBundle = 11,
}

impl Opcode {
    pub(crate) fn from_bits(bits: u8) -> Option<Opcode> {
        Some(match bits {
            0 => Opcode::Data,
            1 => Opcode::Request,
            2 => Opcode::Accept,
            3 => Opcode::Reject,
            4 => Opcode::Shutdown,
            5 => Opcode::Sack,
            6 => Opcode::Rnr,
            7 => Opcode::Nak,
            8 => Opcode::Ack,
            9 => Opcode::Response,
            10 => Opcode::Bundle,
            11 => Opcode::ResponseBundle,
            _ => return None,
        })
    }
}

/// Flag: last segment of its message.
pub const FLAG_LAST: u8 = 1;
/// Flag: the target memory allows relaxed ordering. Advisory; a receiver may ignore it.
pub const FLAG_RELAXED: u8 = 1 << 1;
/// Flag: the CRC32C field is valid. Always set in handshakes, rejects and shutdowns.
pub const FLAG_CRC: u8 = 1 << 2;
/// Flag of a selective acknowledgment: its ranges are of the response space.
pub const FLAG_RESPONSE: u8 = 1 << 3;
/// Flag: the sender wants an acknowledgment at once.
pub const FLAG_ASK: u8 = 1 << 4;
/// Where the number of [`Common::marks`] begins among the flags: the upper three bits.
const MARKS_SHIFT: u32 = 5;
/// The greatest number of [`Common::marks`].
pub const MARKS_MAX: u8 = 7;

/// What every datagram after the handshake says, whatever its opcode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Common {
    /// Queue pair addressed.
    pub dst_qpn: u32,
    /// Queue pair of the sender, so that an answer can be addressed without any state.
    pub src_qpn: u32,
    /// The *receiver's* cookie, as it gave it in the handshake.
    pub cookie: u64,
    /// Next request PSN the sender expects: all before it are placed.
    pub ack_request: u32,
    /// Next response PSN the sender expects: all before it are placed.
    pub ack_response: u32,
    /// Segments past `ack_request` and past `ack_response` that the sender will take.
    pub window: u16,
    /// Attempt number of the request space (see [`Body::Rnr`]): of the data carried, or of the data
    /// that this datagram answers.
    pub epoch: u8,
    /// Count, modulo 256, of data segments received in duplicate: shows a sender that it
    /// retransmitted without need.
    pub duplicates: u8,
    /// The sender wants an acknowledgment at once.
    pub ask: bool,
    /// The datagram carries, or is to carry, a CRC32C. The codec only transports the flag; see
    /// [`seal`] and [`crc_matches`].
    pub crc: bool,
    /// Count, modulo 8, of headers before which datagrams with a mark of congestion came (RFC 3168:
    /// CE). 0 without [`FEATURE_ECN`] of both sides.
    pub marks: u8,
}

/// Position of a data segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Of the response space rather than the request space.
    pub response: bool,
    /// Sequence number, truncated.
    pub psn: u32,
    /// Sequence number of the first segment of the message, truncated.
    pub first: u32,
    /// Last segment of its message.
    pub last: bool,
    /// The target memory allows relaxed ordering.
    pub relaxed: bool,
}

/// Position of the first segment of a bundle. The others follow it; where one is the last of its
/// message, the next begins another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bundled {
    /// Of the response space rather than the request space.
    pub response: bool,
    /// Sequence number, truncated.
    pub psn: u32,
    /// Sequence number of the first segment of its message, truncated.
    pub first: u32,
}

/// Why a connection was shut down or a datagram answered by a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// The queue pair was destroyed or reset in an orderly way.
    Closed = 1,
    /// No such queue pair, or another incarnation of it: its state is lost.
    Unknown = 2,
    /// The queue pair is in the error state.
    Failed = 3,
}

impl Reason {
    pub(crate) fn from_bits(bits: u32) -> Option<Reason> {
        Some(match bits {
            1 => Reason::Closed,
            2 => Reason::Unknown,
            3 => Reason::Failed,
            _ => return None,
        })
    }
}

/// Selectively acknowledged numbers: `start` up to, not including, `end`; never empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// First PSN received.
    pub start: u32,
    /// First PSN after it not received.
    pub end: u32,
}

/// The part of a datagram that depends on its opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// A DDP segment.
    Data(Position, &'a [u8]),
    /// Several DDP segments that follow each other.
    Bundle(Bundled, Segments<'a>),
    /// The request was turned down: PSN mismatch or a feature that cannot be agreed on. Reserved:
    /// a state machine may also stay silent.
    Reject(Reason),
    /// The peer is gone.
    Shutdown(Reason),
    /// Numbers received out of order.
    Sack {
        /// Of the response space.
        response: bool,
        /// Which.
        ranges: Ranges<'a>,
    },
    /// The receiver has no receive for request `psn`. All before it are placed; it and all after
    /// it are to be sent again, with `epoch + 1`, after the time encoded in `timer`.
    Rnr {
        /// The request refused.
        psn: u32,
        /// Code as in `min_rnr_timer`, 0 to 31 (InfiniBand specification, table 46).
        timer: u8,
    },
    /// The receiver refuses request `psn` for good. All before it are placed.
    Nak {
        /// The request refused.
        psn: u32,
        /// Why, as the control word of a Terminate message.
        terminate: Terminate,
    },
    /// Nothing but an acknowledgment.
    Ack,
}

/// A connection request or accept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// An accept, not a request.
    pub accept: bool,
    /// Queue pair addressed.
    pub dst_qpn: u32,
    /// Queue pair of the sender.
    pub src_qpn: u32,
    /// The receiver's cookie: in an accept as known, in a request as claimed, or 0.
    pub echo: u64,
    /// The sender's cookie, which every datagram to it must bear.
    pub cookie: u64,
    /// First PSN of the sender's request space; meaningless unless `sends`.
    pub psn: u32,
    /// First PSN the sender expects in the receiver's request space.
    pub expect: u32,
    /// The sender has a send queue running (RTS), so `psn` is valid.
    pub sends: bool,
    /// Largest datagram (UDP payload) the sender takes.
    pub max_datagram: u16,
    /// Segments it takes out of order, in each space.
    pub window: u16,
    /// `FEATURE_*` bits wanted.
    pub features: u32,
    /// Identity of the sender's host (its broker), or zeros.
    pub host_id: [u8; 16],
    /// Nonce for the introduction to shared memory, or zeros.
    pub nonce: [u8; 16],
}

/// A whole datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// Connection request or accept.
    Hello(Hello),
    /// Any other.
    Segment(Common, Body<'a>),
}

impl<'a> Packet<'a> {
    /// Decodes a datagram.
    ///
    /// # Errors
    /// [`ParseError`] if it is none; never panics and never reads past `datagram`.
    pub fn parse(datagram: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        parse::packet(datagram)
    }

    /// Encodes the datagram into `out` and returns its length, or `None` where it does not fit or
    /// a field exceeds its range. The CRC is left zero; see [`seal`].
    #[must_use]
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        emit::packet(self, out)
    }
}

/// Writes only the header of a data segment, for a payload that is built in place behind it.
/// Returns `None` where `out` is shorter than [`HEADER_LEN`].
#[must_use]
pub fn emit_data_header(common: &Common, position: &Position, out: &mut [u8]) -> Option<()> {
    emit::data_header(common, position, out)
}

/// As [`emit_data_header`], of a bundle.
#[must_use]
pub fn emit_bundle_header(common: &Common, bundled: &Bundled, out: &mut [u8]) -> Option<()> {
    emit::bundle_header(common, bundled, out)
}

/// The number of the queue pair that a datagram addresses, without decoding the rest; `None` where
/// it is too short to say.
#[must_use]
pub fn destination(datagram: &[u8]) -> Option<u32> {
    let word: [u8; 4] = datagram.get(4..8)?.try_into().ok()?;
    Some(u32::from_be_bytes(word) & QPN_MASK)
}

/// Stores the CRC32C of a finished datagram in it. `crc(seed, bytes)` continues a CRC32C; the field
/// itself counts as zero. Does nothing to a datagram shorter than a header.
pub fn seal(datagram: &mut [u8], crc: impl Fn(u32, &[u8]) -> u32) {
    let Some(value) = checksum(datagram, crc) else {
        return;
    };
    if let Some(field) = datagram.get_mut(CRC_OFFSET..CRC_OFFSET + 4) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}

/// Whether the CRC32C of a datagram is right. False for one shorter than a header.
#[must_use]
pub fn crc_matches(datagram: &[u8], crc: impl Fn(u32, &[u8]) -> u32) -> bool {
    let Some(value) = checksum(datagram, crc) else {
        return false;
    };
    datagram.get(CRC_OFFSET..CRC_OFFSET + 4) == Some(&value.to_be_bytes())
}

fn checksum(datagram: &[u8], crc: impl Fn(u32, &[u8]) -> u32) -> Option<u32> {
    // Of one piece up to the field's end: each piece has a cost of its own.
    let mut head = *datagram.first_chunk::<{ CRC_OFFSET + 4 }>()?;
    head[CRC_OFFSET..].fill(0);
    Some(crc(crc(0, &head), &datagram[head.len()..]))
}

/// Decodes arbitrary bytes and checks that whatever was understood is encoded again the same way:
/// the body of the fuzz target.
///
/// # Panics
/// If a decoded datagram does not survive encoding and decoding: a defect in this module.
pub fn fuzz_trp(data: &[u8]) {
    let _ = destination(data);
    let Ok(packet) = Packet::parse(data) else {
        return;
    };
    let mut out = [0; 2048];
    let Some(len) = packet.emit(&mut out) else {
        assert!(
            data.len() > out.len(),
            "decoded but not encodable: {packet:?}"
        );
        return;
    };
    assert_eq!(len, data.len(), "{packet:?}");
    assert_eq!(Packet::parse(&out[..len]), Ok(packet));
}
