//! Packets: a header of fixed length, at most a path MTU of payload, and a checksum.

use causeway_proto::unit::{Frame, Kind, Unit};
use causeway_proto::{BytesMut, crc32c};

/// Bits of a packet sequence number on the wire.
const PSN_BITS: u32 = 24;
/// Bytes of a header.
const HEADER: usize = 2 + 4 + 4 + 3 * 8;
/// Bytes of the checksum behind the payload.
const CHECKSUM: usize = 4;
/// Largest path MTU.
pub const MAX_MTU: usize = 4096;
/// Bytes that a packet has beside its payload.
pub const OVERHEAD: usize = HEADER + CHECKSUM;

/// Requests, then what answers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Part of a SEND. Only the last one has immediate data or a key to invalidate.
    Send,
    /// Part of a WRITE. Only the first one says where to.
    Write,
    /// The end of a WRITE with immediate data.
    Immediate,
    /// READ of `args[0]` bytes, which takes as many numbers as its answer has packets.
    Read,
    /// FETCH_ADD of `args[0]`.
    FetchAdd,
    /// CMP_SWAP: `args[0]` is the value expected, `args[1]` the new one.
    CmpSwap,
    /// Part of the answer to a READ.
    ReadAnswer,
    /// Answer to an atomic: `args[0]` is the value before.
    AtomicAnswer,
    /// All up to this number has been carried out.
    Ack,
    /// The request with this number found no receive; `args[0]` is the time to wait.
    NotReady,
    /// This number is the one expected, and a later one came.
    OutOfOrder,
    /// The request with this number was refused for good; `args[0]` is why.
    Refused,
}

const OPCODES: [Opcode; 12] = [
    Opcode::Send,
    Opcode::Write,
    Opcode::Immediate,
    Opcode::Read,
    Opcode::FetchAdd,
    Opcode::CmpSwap,
    Opcode::ReadAnswer,
    Opcode::AtomicAnswer,
    Opcode::Ack,
    Opcode::NotReady,
    Opcode::OutOfOrder,
    Opcode::Refused,
];

impl Opcode {
    /// Whether it goes from requester to responder.
    pub fn is_request(self) -> bool {
        (self as u8) < Opcode::ReadAnswer as u8
    }

    /// Whether a request is answered with data.
    pub fn is_answered(self) -> bool {
        matches!(self, Opcode::Read | Opcode::FetchAdd | Opcode::CmpSwap)
    }
}

/// Bits of [`Header::flags`].
pub mod flag {
    /// First of its message.
    pub const FIRST: u8 = 1;
    /// Last of its message.
    pub const LAST: u8 = 2;
    /// Wakes waiters for solicited completions only.
    pub const SOLICITED: u8 = 4;
    /// `key` is immediate data.
    pub const IMMEDIATE: u8 = 8;
    /// `key` is to be invalidated.
    pub const INVALIDATE: u8 = 16;
    /// An acknowledgment is wanted.
    pub const ASKS: u8 = 32;
}

/// What a packet says beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub opcode: Opcode,
    /// See [`flag`].
    pub flags: u8,
    /// Packet sequence number. On the wire it is truncated.
    pub psn: u64,
    /// Key of the target, immediate data, or key to invalidate.
    pub key: u32,
    /// Address in the target.
    pub addr: u64,
    /// See [`Opcode`].
    pub args: [u64; 2],
}

impl Header {
    /// One that says so much.
    pub fn new(opcode: Opcode, psn: u64, arg: u64) -> Self {
        Header {
            opcode,
            flags: 0,
            psn,
            key: 0,
            addr: 0,
            args: [arg, 0],
        }
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Puts the packet into `out`, and says how long it is.
    pub fn emit(&self, body: &[u8], out: &mut [u8]) -> usize {
        let psn = self.psn as u32 & ((1 << PSN_BITS) - 1);
        let mut bytes = vec![self.opcode as u8, self.flags];
        bytes.extend_from_slice(&psn.to_le_bytes());
        bytes.extend_from_slice(&self.key.to_le_bytes());
        for word in [self.addr, self.args[0], self.args[1]] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(&crc32c(0, &bytes).to_le_bytes());
        out[..bytes.len()].copy_from_slice(&bytes);
        bytes.len()
    }

    /// Reads a packet whose checksum is right: header and payload.
    pub fn parse(packet: &[u8]) -> Option<(Header, &[u8])> {
        let (bytes, sum) = packet.split_at_checked(packet.len().checked_sub(CHECKSUM)?)?;
        let (head, body) = bytes.split_at_checked(HEADER)?;
        if crc32c(0, bytes).to_le_bytes() != sum {
            return None;
        }
        let half = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let header = Header {
            opcode: *OPCODES.get(usize::from(head[0]))?,
            flags: head[1],
            psn: u64::from(half(2)),
            key: half(6),
            addr: word(10),
            args: [word(18), word(26)],
        };
        Some((header, body))
    }
}

/// The whole number that is nearest to `near` and has the low bits `psn`.
pub fn widen(psn: u64, near: u64) -> u64 {
    let shift = u64::BITS - PSN_BITS;
    let ahead = (psn.wrapping_sub(near) << shift).cast_signed() >> shift;
    near.wrapping_add_signed(ahead)
}

/// First of a side's numbers. None is ever below zero.
pub fn start(psn: u32) -> u64 {
    (1 << 32) + u64::from(psn)
}

/// How many packets answer a READ.
pub fn packets(len: u64, mtu: u32) -> u64 {
    len.div_ceil(u64::from(mtu)).max(1)
}

/// Where the queue pair builds the unit of one packet.
pub struct Room {
    mtu: u32,
    body: [u8; MAX_MTU],
    len: usize,
    unit: Unit,
}

impl Room {
    /// Room for a path MTU of payload.
    pub fn new(mtu: u32) -> Self {
        Room {
            mtu,
            body: [0; MAX_MTU],
            len: 0,
            unit: Unit::Unreadable,
        }
    }

    /// What was built: the unit, and its payload.
    pub fn built(&self) -> (Unit, &[u8]) {
        (self.unit, &self.body[..self.len])
    }
}

impl Frame for Room {
    fn room(&self, _kind: Kind) -> Option<u32> {
        Some(self.mtu)
    }

    fn put(&mut self, unit: &Unit, _last: bool, len: usize) -> Option<BytesMut<'_>> {
        (self.unit, self.len) = (*unit, len);
        Some(BytesMut::from(self.body.get_mut(..len)?))
    }
}
