//! RDMAP messages and the DDP segments that carry them (RFC 5040, RFC 5041, RFC 7306).
//!
//! [`Segment::parse`] and [`Segment::emit`] are inverse to each other: what one accepts the other
//! produces, byte for byte. docs/WIRE.md, section "DDP and RDMAP", has every field.

use crate::codec::{get, put, room, take};
use crate::ddp::{self, Header, TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged};
use crate::error::Error;

/// Largest header any segment has: DDP untagged (18) and an atomic request (52), rounded up.
pub const MAX_HEADER: usize = 72;

/// RDMA Read Request header after DDP's (RFC 5040 section 4.4).
const READ_REQUEST_LEN: usize = 28;
/// Immediate data after DDP's header (RFC 7306 section 6.2).
const IMMEDIATE_LEN: usize = 8;
/// Atomic Request header after DDP's (RFC 7306 section 5.2.1).
const ATOMIC_REQUEST_LEN: usize = 52;
/// Atomic Response header after DDP's (RFC 7306 section 5.2.2).
const ATOMIC_RESPONSE_LEN: usize = 12;

/// Queues of the untagged model (RFC 5040 section 3.1, RFC 7306 section 5.2).
mod queue {
    pub const SEND: u32 = 0;
    pub const REQUEST: u32 = 1;
    pub const ATOMIC_RESPONSE: u32 = 3;
}

/// RDMAP opcodes (RFC 5040 section 4.1, RFC 7306 section 4, and two of ours).
mod opcode {
    pub const WRITE: u8 = 0x0;
    pub const READ_REQUEST: u8 = 0x1;
    pub const READ_RESPONSE: u8 = 0x2;
    pub const SEND: u8 = 0x3;
    pub const SEND_INV: u8 = 0x4;
    pub const SEND_SE: u8 = 0x5;
    pub const SEND_SE_INV: u8 = 0x6;
    pub const IMMEDIATE: u8 = 0x8;
    pub const IMMEDIATE_SE: u8 = 0x9;
    pub const ATOMIC_REQUEST: u8 = 0xa;
    pub const ATOMIC_RESPONSE: u8 = 0xb;
    // Unassigned by IANA's "RDMAP Message Operation Codes"; private to Causeway.
    pub const SEND_IMM: u8 = 0xc;
    pub const SEND_IMM_SE: u8 = 0xd;
}

/// RV = 1 in the upper two bits (RFC 5040 section 4.1).
const VERSION: u8 = 0x40;
/// The RV bits.
const VERSION_BITS: u8 = 0xc0;
/// The reserved bits between version and opcode.
const RESERVED_BITS: u8 = 0x30;
/// The opcode bits.
const OPCODE_BITS: u8 = 0x0f;

/// RDMAP's control byte of a Send without options.
pub(crate) const SEND_CONTROL: u8 = VERSION | opcode::SEND;

/// Atomic opcodes (RFC 7306 section 5.2.1, AOpCode).
const FETCH_ADD: u32 = 0;
const CMP_SWAP: u32 = 2;

/// An atomic operation (RFC 7306 section 5.1). On the whole 64 bits: a swap's masks
/// are all ones; an addition's mask, which marks where carries stop, is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// FetchAdd
    FetchAdd {
        /// Add data
        add: u64,
    },
    /// CmpSwap
    CmpSwap {
        /// Compare data
        compare: u64,
        /// Swap data
        swap: u64,
    },
}

/// What one DDP segment says, apart from its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// RDMA Write (tagged).
    Write {
        /// Data sink STag: the rkey.
        stag: u32,
        /// Tagged offset: the address.
        to: u64,
    },
    /// RDMA Read Request (untagged, queue 1).
    ReadRequest {
        /// Message sequence number in queue 1.
        msn: u32,
        /// Data sink STag: names the request, not an MR (USIW section 2.4).
        sink_stag: u32,
        /// Data sink tagged offset.
        sink_to: u64,
        /// RDMA read message size in bytes.
        len: u32,
        /// Data source STag: the rkey.
        src_stag: u32,
        /// Data source tagged offset: the address.
        src_to: u64,
    },
    /// RDMA Read Response (tagged).
    ReadResponse {
        /// Data sink STag of the request.
        stag: u32,
        /// Tagged offset: offset of the payload in the data sink.
        to: u64,
    },
    /// Send in all its variants (untagged, queue 0).
    Send {
        /// Message sequence number in queue 0.
        msn: u32,
        /// Message offset of the payload.
        mo: u32,
        /// With Solicited Event.
        solicited: bool,
        /// With Invalidate: the STag. Excludes `imm`.
        invalidate: Option<u32>,
        /// With immediate data (a Causeway opcode): 32 bits in the order they stood in memory.
        imm: Option<u32>,
    },
    /// Immediate Data (RFC 7306 section 6; untagged, queue 0): ends a WRITE_WITH_IMM.
    Immediate {
        /// Message sequence number in queue 0.
        msn: u32,
        /// With Solicited Event.
        solicited: bool,
        /// 32 bits in the order they stood in memory: first half of the immediate data.
        imm: u32,
        /// Bytes written by the RDMA Write before it: second half of the immediate data.
        written: u32,
    },
    /// Atomic Request (RFC 7306 section 5.1; untagged, queue 1).
    AtomicRequest {
        /// Message sequence number in queue 1.
        msn: u32,
        /// Echoed in the response.
        request_id: u32,
        /// Remote STag: the rkey.
        stag: u32,
        /// Remote tagged offset: the address.
        to: u64,
        /// Operation and operands.
        op: Atomic,
    },
    /// Atomic Response (RFC 7306 section 5.2; untagged, queue 3).
    AtomicResponse {
        /// Message sequence number in queue 3.
        msn: u32,
        /// That of the request.
        request_id: u32,
        /// Value before the operation.
        original: u64,
    },
}

/// The header of a DDP segment; the payload follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// What it carries.
    pub message: Message,
    /// DDP's L flag: last segment of its message.
    pub last: bool,
}

impl Message {
    /// Whether payload may follow the header. Bytes after the header of any other message are
    /// garbage, which the receiver must refuse.
    #[inline]
    #[must_use]
    pub fn has_payload(&self) -> bool {
        matches!(
            self,
            Message::Write { .. } | Message::ReadResponse { .. } | Message::Send { .. }
        )
    }
}

impl Segment {
    /// Decodes the header at the front of `input` and returns it with its length. `input` is the
    /// segment or any prefix of it of at least the header's length ([`MAX_HEADER`] is enough).
    /// Fields are checked, ranges are not: a tagged offset may lie anywhere.
    ///
    /// # Errors
    /// Whatever [`Segment::emit`] would not have produced (see [`Error`]).
    #[inline(always)]
    pub fn parse(input: &[u8]) -> Result<(Segment, usize), Error> {
        let mut rest = input;
        let (message, last) = match Header::parse(&mut rest)? {
            Header::Tagged(h) => (parse_tagged(&h)?, h.last),
            Header::Untagged(h) => (parse_untagged(&h, &mut rest)?, h.last),
        };
        Ok((Segment { message, last }, input.len() - rest.len()))
    }

    /// Encodes the header at the front of `out` and returns its length. `None` if it does not fit,
    /// or no segment can say it: a Send with both STag and immediate data, or a message of one
    /// segment that is not the last.
    #[inline]
    #[must_use]
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        let len = out.len();
        let mut rest = out;
        match self.message {
            Message::Write { stag, to } => self.tagged(opcode::WRITE, stag, to).emit(&mut rest)?,
            Message::ReadResponse { stag, to } => {
                self.tagged(opcode::READ_RESPONSE, stag, to)
                    .emit(&mut rest)?;
            }
            Message::Send {
                msn,
                mo,
                solicited,
                invalidate,
                imm,
            } => {
                let (op, ulp_word) = send_fields(solicited, invalidate, imm)?;
                let h = Untagged {
                    last: self.last,
                    ulp: VERSION | op,
                    ulp_word,
                    queue: queue::SEND,
                    msn,
                    offset: mo,
                };
                h.emit(&mut rest)?;
            }
            _ if !self.last => return None,
            _ => emit_single(&self.message, &mut rest)?,
        }
        Some(len - rest.len())
    }

    /// Length of the header that [`Segment::emit`] writes.
    #[inline]
    #[must_use]
    pub fn header_len(&self) -> usize {
        match self.message {
            Message::Write { .. } | Message::ReadResponse { .. } => TAGGED_LEN,
            Message::Send { .. } => UNTAGGED_LEN,
            Message::ReadRequest { .. } => UNTAGGED_LEN + READ_REQUEST_LEN,
            Message::Immediate { .. } => UNTAGGED_LEN + IMMEDIATE_LEN,
            Message::AtomicRequest { .. } => UNTAGGED_LEN + ATOMIC_REQUEST_LEN,
            Message::AtomicResponse { .. } => UNTAGGED_LEN + ATOMIC_RESPONSE_LEN,
        }
    }

    #[inline(always)]
    fn tagged(&self, op: u8, stag: u32, to: u64) -> Tagged {
        Tagged {
            last: self.last,
            ulp: VERSION | op,
            stag,
            to,
        }
    }
}

/// Opcode and ULP word of a Send; `None` for the combination that has no opcode.
#[inline(always)]
fn send_fields(se: bool, inv: Option<u32>, imm: Option<u32>) -> Option<(u8, [u8; 4])> {
    Some(match (inv, imm, se) {
        (None, None, false) => (opcode::SEND, [0; 4]),
        (None, None, true) => (opcode::SEND_SE, [0; 4]),
        (Some(stag), None, false) => (opcode::SEND_INV, stag.to_be_bytes()),
        (Some(stag), None, true) => (opcode::SEND_SE_INV, stag.to_be_bytes()),
        (None, Some(imm), false) => (opcode::SEND_IMM, imm.to_ne_bytes()),
        (None, Some(imm), true) => (opcode::SEND_IMM_SE, imm.to_ne_bytes()),
        (Some(_), Some(_), _) => return None,
    })
}

/// Checks RDMAP's control byte and returns its opcode.
#[inline(always)]
fn control(byte: u8) -> Result<u8, Error> {
    // RFC 5040 section 4.1 has receivers ignore Rsv; see ddp::Header::parse for why we do not.
    if byte & VERSION_BITS != VERSION {
        return Err(Error::RdmapVersion);
    }
    if byte & RESERVED_BITS != 0 {
        return Err(Error::Reserved);
    }
    Ok(byte & OPCODE_BITS)
}

#[inline(always)]
fn parse_tagged(h: &Tagged) -> Result<Message, Error> {
    match control(h.ulp)? {
        opcode::WRITE => Ok(Message::Write {
            stag: h.stag,
            to: h.to,
        }),
        opcode::READ_RESPONSE => Ok(Message::ReadResponse {
            stag: h.stag,
            to: h.to,
        }),
        _ => Err(Error::Opcode),
    }
}

/// The STag and the offset of a segment of a WRITE, most of a long message: recognized at once
/// instead of field by field. `None` where [`Segment::parse`] must look.
#[inline]
#[must_use]
pub fn parse_write(header: &[u8; TAGGED_LEN]) -> Option<(u32, u64)> {
    let stag = u32::from_be_bytes(get::<2, 4, TAGGED_LEN>(header));
    let to = u64::from_be_bytes(get::<6, 8, TAGGED_LEN>(header));
    let is_write = ddp::is_regular_tagged(header[0]) && header[1] == VERSION | opcode::WRITE;
    is_write.then_some((stag, to))
}

#[inline(always)]
fn parse_untagged(h: &Untagged, rest: &mut &[u8]) -> Result<Message, Error> {
    let op = control(h.ulp)?;
    match op {
        opcode::SEND..=opcode::SEND_SE_INV | opcode::SEND_IMM | opcode::SEND_IMM_SE => {
            parse_send(op, h)
        }
        opcode::READ_REQUEST => {
            check_single(h, queue::REQUEST)?;
            parse_read_request(h.msn, rest)
        }
        opcode::IMMEDIATE | opcode::IMMEDIATE_SE => {
            check_single(h, queue::SEND)?;
            let b: &[u8; IMMEDIATE_LEN] = take(rest).ok_or(Error::Truncated)?;
            Ok(Message::Immediate {
                msn: h.msn,
                solicited: op == opcode::IMMEDIATE_SE,
                imm: u32::from_ne_bytes(get::<0, 4, IMMEDIATE_LEN>(b)),
                written: u32::from_be_bytes(get::<4, 4, IMMEDIATE_LEN>(b)),
            })
        }
        opcode::ATOMIC_REQUEST => {
            check_single(h, queue::REQUEST)?;
            parse_atomic_request(h.msn, rest)
        }
        opcode::ATOMIC_RESPONSE => {
            check_single(h, queue::ATOMIC_RESPONSE)?;
            let b: &[u8; ATOMIC_RESPONSE_LEN] = take(rest).ok_or(Error::Truncated)?;
            Ok(Message::AtomicResponse {
                msn: h.msn,
                request_id: u32::from_be_bytes(get::<0, 4, ATOMIC_RESPONSE_LEN>(b)),
                original: u64::from_be_bytes(get::<4, 8, ATOMIC_RESPONSE_LEN>(b)),
            })
        }
        _ => Err(Error::Opcode),
    }
}

/// Send in all variants (RFC 5040 section 4.3): the ULP word is the STag to invalidate, our
/// immediate data, or zero.
#[inline(always)]
fn parse_send(op: u8, h: &Untagged) -> Result<Message, Error> {
    if h.queue != queue::SEND {
        return Err(Error::Queue);
    }
    let (mut invalidate, mut imm) = (None, None);
    match op {
        opcode::SEND_INV | opcode::SEND_SE_INV => invalidate = Some(u32::from_be_bytes(h.ulp_word)),
        opcode::SEND_IMM | opcode::SEND_IMM_SE => imm = Some(u32::from_ne_bytes(h.ulp_word)),
        _ if h.ulp_word != [0; 4] => return Err(Error::Reserved),
        _ => {}
    }
    let solicited = matches!(
        op,
        opcode::SEND_SE | opcode::SEND_SE_INV | opcode::SEND_IMM_SE
    );
    Ok(Message::Send {
        msn: h.msn,
        mo: h.offset,
        solicited,
        invalidate,
        imm,
    })
}

/// What holds for every untagged message that always fits one segment.
#[inline(always)]
fn check_single(h: &Untagged, queue: u32) -> Result<(), Error> {
    if h.queue != queue {
        return Err(Error::Queue);
    }
    if h.ulp_word != [0; 4] {
        return Err(Error::Reserved);
    }
    if !h.last || h.offset != 0 {
        return Err(Error::Fragment);
    }
    Ok(())
}

/// RFC 5040 section 4.4.
#[inline(always)]
fn parse_read_request(msn: u32, rest: &mut &[u8]) -> Result<Message, Error> {
    const N: usize = READ_REQUEST_LEN;
    let b: &[u8; N] = take(rest).ok_or(Error::Truncated)?;
    Ok(Message::ReadRequest {
        msn,
        sink_stag: u32::from_be_bytes(get::<0, 4, N>(b)),
        sink_to: u64::from_be_bytes(get::<4, 8, N>(b)),
        len: u32::from_be_bytes(get::<12, 4, N>(b)),
        src_stag: u32::from_be_bytes(get::<16, 4, N>(b)),
        src_to: u64::from_be_bytes(get::<20, 8, N>(b)),
    })
}

/// RFC 7306 section 5.2.1: 28 reserved bits, AOpCode, request id, STag, TO, and four operands.
#[inline(always)]
fn parse_atomic_request(msn: u32, rest: &mut &[u8]) -> Result<Message, Error> {
    const N: usize = ATOMIC_REQUEST_LEN;
    let b: &[u8; N] = take(rest).ok_or(Error::Truncated)?;
    let data = u64::from_be_bytes(get::<20, 8, N>(b));
    let mask = u64::from_be_bytes(get::<28, 8, N>(b));
    let compare = u64::from_be_bytes(get::<36, 8, N>(b));
    let compare_mask = u64::from_be_bytes(get::<44, 8, N>(b));
    let op = match u32::from_be_bytes(get::<0, 4, N>(b)) {
        FETCH_ADD if (mask, compare, compare_mask) == (0, 0, 0) => Atomic::FetchAdd { add: data },
        CMP_SWAP if (mask, compare_mask) == (u64::MAX, u64::MAX) => Atomic::CmpSwap {
            compare,
            swap: data,
        },
        code if code & !0xf != 0 => return Err(Error::Reserved),
        _ => return Err(Error::Atomic),
    };
    Ok(Message::AtomicRequest {
        msn,
        request_id: u32::from_be_bytes(get::<4, 4, N>(b)),
        stag: u32::from_be_bytes(get::<8, 4, N>(b)),
        to: u64::from_be_bytes(get::<12, 8, N>(b)),
        op,
    })
}

/// Encodes a message that always is one segment and has no payload.
#[inline(always)]
fn emit_single(message: &Message, out: &mut &mut [u8]) -> Option<()> {
    match *message {
        Message::ReadRequest {
            msn,
            sink_stag,
            sink_to,
            len,
            src_stag,
            src_to,
        } => {
            const N: usize = READ_REQUEST_LEN;
            single(opcode::READ_REQUEST, queue::REQUEST, msn).emit(out)?;
            let b: &mut [u8; N] = room(out)?;
            put::<0, 4, N>(b, sink_stag.to_be_bytes());
            put::<4, 8, N>(b, sink_to.to_be_bytes());
            put::<12, 4, N>(b, len.to_be_bytes());
            put::<16, 4, N>(b, src_stag.to_be_bytes());
            put::<20, 8, N>(b, src_to.to_be_bytes());
        }
        Message::Immediate {
            msn,
            solicited,
            imm,
            written,
        } => {
            let op = if solicited {
                opcode::IMMEDIATE_SE
            } else {
                opcode::IMMEDIATE
            };
            single(op, queue::SEND, msn).emit(out)?;
            let b: &mut [u8; IMMEDIATE_LEN] = room(out)?;
            put::<0, 4, IMMEDIATE_LEN>(b, imm.to_ne_bytes());
            put::<4, 4, IMMEDIATE_LEN>(b, written.to_be_bytes());
        }
        _ => emit_atomic(message, out)?,
    }
    Some(())
}

/// The rest of [`emit_single`]: RFC 7306 section 5.2.
#[inline(always)]
fn emit_atomic(message: &Message, out: &mut &mut [u8]) -> Option<()> {
    match *message {
        Message::AtomicRequest {
            msn,
            request_id,
            stag,
            to,
            op,
        } => {
            const N: usize = ATOMIC_REQUEST_LEN;
            single(opcode::ATOMIC_REQUEST, queue::REQUEST, msn).emit(out)?;
            let b: &mut [u8; N] = room(out)?;
            let (code, operands) = match op {
                Atomic::FetchAdd { add } => (FETCH_ADD, [add, 0, 0, 0]),
                Atomic::CmpSwap { compare, swap } => {
                    (CMP_SWAP, [swap, u64::MAX, compare, u64::MAX])
                }
            };
            put::<0, 4, N>(b, code.to_be_bytes());
            put::<4, 4, N>(b, request_id.to_be_bytes());
            put::<8, 4, N>(b, stag.to_be_bytes());
            put::<12, 8, N>(b, to.to_be_bytes());
            put::<20, 8, N>(b, operands[0].to_be_bytes());
            put::<28, 8, N>(b, operands[1].to_be_bytes());
            put::<36, 8, N>(b, operands[2].to_be_bytes());
            put::<44, 8, N>(b, operands[3].to_be_bytes());
        }
        Message::AtomicResponse {
            msn,
            request_id,
            original,
        } => {
            single(opcode::ATOMIC_RESPONSE, queue::ATOMIC_RESPONSE, msn).emit(out)?;
            let b: &mut [u8; ATOMIC_RESPONSE_LEN] = room(out)?;
            put::<0, 4, ATOMIC_RESPONSE_LEN>(b, request_id.to_be_bytes());
            put::<4, 8, ATOMIC_RESPONSE_LEN>(b, original.to_be_bytes());
        }
        _ => return None,
    }
    Some(())
}

/// DDP header of a message of one segment.
#[inline(always)]
fn single(op: u8, queue: u32, msn: u32) -> Untagged {
    Untagged {
        last: true,
        ulp: VERSION | op,
        ulp_word: [0; 4],
        queue,
        msn,
        offset: 0,
    }
}
