//! Decodes TRP datagrams. Every access is checked, and lengths must be exact.

use causeway_identity::QPN_MASK;

use super::{
    Body, Bundled, Common, FLAG_ASK, FLAG_CRC, FLAG_LAST, FLAG_RELAXED, FLAG_RESPONSE, HEADER_LEN,
    HELLO_LEN, Hello, MARKS_MAX, MARKS_SHIFT, MAX_RANGES, Opcode, Packet, Position, RANGE_LEN,
    Range, Reason, Segments, VERSION,
};
use crate::terminate::Terminate;

/// Why a datagram is none of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParseError {
    /// Shorter than its header.
    Truncated,
    /// Another protocol version.
    Version,
    /// An opcode that does not exist.
    Opcode,
    /// Longer than its content, or a list of the wrong length.
    Length,
    /// A field out of range.
    Field,
}

impl core::fmt::Display for ParseError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            ParseError::Truncated => "datagram shorter than its header",
            ParseError::Version => "unknown protocol version",
            ParseError::Opcode => "unknown opcode",
            ParseError::Length => "length does not match the content",
            ParseError::Field => "field out of range",
        })
    }
}

impl core::error::Error for ParseError {}

/// The ranges of a selective acknowledgment, decoded as they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges<'a> {
    bytes: &'a [u8],
}

impl<'a> Ranges<'a> {
    /// Takes a list of whole, non-empty ranges, at least one and at most [`MAX_RANGES`].
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let count = bytes.len() / RANGE_LEN;
        if !bytes.len().is_multiple_of(RANGE_LEN) || count == 0 || count > MAX_RANGES {
            return Err(ParseError::Length);
        }
        let ranges = Ranges { bytes };
        // Half the number space is the furthest that two numbers can be told apart.
        if ranges
            .iter()
            .any(|r| r.end.wrapping_sub(r.start).cast_signed() <= 0)
        {
            return Err(ParseError::Field);
        }
        Ok(ranges)
    }

    /// Writes ranges to `buf` and returns a view of them; `None` where they do not fit, or a
    /// decoder would refuse them.
    #[must_use]
    pub fn build(list: &[Range], buf: &'a mut [u8; MAX_RANGES * RANGE_LEN]) -> Option<Self> {
        let bytes = buf.get_mut(..list.len() * RANGE_LEN)?;
        for (slot, range) in bytes.chunks_exact_mut(RANGE_LEN).zip(list) {
            let (start, end) = slot.split_at_mut(4);
            start.copy_from_slice(&range.start.to_be_bytes());
            end.copy_from_slice(&range.end.to_be_bytes());
        }
        Ranges::parse(bytes).ok()
    }

    /// The ranges in the order they stand.
    pub fn iter(&self) -> impl Iterator<Item = Range> + 'a {
        self.bytes.chunks_exact(RANGE_LEN).map(|c| Range {
            start: u32_at(c, 0),
            end: u32_at(c, 4),
        })
    }

    pub(super) fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Big-endian at `at`; zeros past the end. Callers have checked the length of what they read.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..).and_then(|b| b.first_chunk()) {
        Some(b) => u32::from_be_bytes(*b),
        None => 0,
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    match bytes.get(at..).and_then(|b| b.first_chunk()) {
        Some(b) => u16::from_be_bytes(*b),
        None => 0,
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(|b| b.first_chunk()) {
        Some(b) => u64::from_be_bytes(*b),
        None => 0,
    }
}

fn block_at(bytes: &[u8], at: usize) -> [u8; 16] {
    bytes
        .get(at..)
        .and_then(|b| b.first_chunk())
        .copied()
        .unwrap_or_default()
}

pub(super) fn packet(datagram: &[u8]) -> Result<Packet<'_>, ParseError> {
    let first = *datagram.first().ok_or(ParseError::Truncated)?;
    if first >> 4 != VERSION {
        return Err(ParseError::Version);
    }
    let opcode = Opcode::from_bits(first & 0xF).ok_or(ParseError::Opcode)?;
    match opcode {
        Opcode::Request | Opcode::Accept => hello(opcode, datagram).map(Packet::Hello),
        _ => segment(opcode, datagram),
    }
}

const HELLO_FLAGS: u8 = FLAG_CRC | FLAG_LAST;

fn hello(opcode: Opcode, d: &[u8]) -> Result<Hello, ParseError> {
    if d.len() < HELLO_LEN {
        return Err(ParseError::Truncated);
    }
    if d.len() > HELLO_LEN {
        return Err(ParseError::Length);
    }
    let flags = d[1];
    let qpns = [u32_at(d, 4), u32_at(d, 36)];
    if flags & !HELLO_FLAGS != 0
        || flags & FLAG_CRC == 0
        || u16_at(d, 2) != 0
        || qpns.iter().any(|q| *q > QPN_MASK)
    {
        return Err(ParseError::Field);
    }
    Ok(Hello {
        accept: opcode == Opcode::Accept,
        dst_qpn: qpns[0],
        src_qpn: qpns[1],
        echo: u64_at(d, 8),
        cookie: u64_at(d, 16),
        psn: u32_at(d, 24),
        expect: u32_at(d, 28),
        sends: flags & FLAG_LAST != 0,
        max_datagram: u16_at(d, 40),
        window: u16_at(d, 42),
        features: u32_at(d, 44),
        host_id: block_at(d, 48),
        nonce: block_at(d, 64),
    })
}

fn segment(opcode: Opcode, d: &[u8]) -> Result<Packet<'_>, ParseError> {
    let Some((head, rest)) = d.split_at_checked(HEADER_LEN) else {
        return Err(ParseError::Truncated);
    };
    let flags = head[1];
    let (epoch_dst, dup_src) = (u32_at(head, 4), u32_at(head, 36));
    let common = Common {
        dst_qpn: epoch_dst & QPN_MASK,
        src_qpn: dup_src & QPN_MASK,
        cookie: u64_at(head, 8),
        ack_request: u32_at(head, 24),
        ack_response: u32_at(head, 28),
        window: u16_at(head, 2),
        epoch: (epoch_dst >> 24) as u8,
        duplicates: (dup_src >> 24) as u8,
        ask: flags & FLAG_ASK != 0,
        crc: flags & FLAG_CRC != 0,
        marks: flags >> MARKS_SHIFT,
    };
    let own = flags & !(FLAG_ASK | FLAG_CRC | MARKS_MAX << MARKS_SHIFT);
    let body = body(opcode, own, u32_at(head, 16), u32_at(head, 20), rest)?;
    Ok(Packet::Segment(common, body))
}

/// `flags` are those that only some opcodes may have, `psn` and `aux` the two words whose meaning
/// depends on the opcode.
fn body(
    opcode: Opcode,
    flags: u8,
    psn: u32,
    aux: u32,
    rest: &[u8],
) -> Result<Body<'_>, ParseError> {
    let allowed = match opcode {
        Opcode::Data | Opcode::Response => FLAG_LAST | FLAG_RELAXED,
        Opcode::Sack => FLAG_RESPONSE,
        _ => 0,
    };
    if flags & !allowed != 0 {
        return Err(ParseError::Field);
    }
    if matches!(opcode, Opcode::Data | Opcode::Response) {
        let position = Position {
            response: opcode == Opcode::Response,
            psn,
            first: aux,
            last: flags & FLAG_LAST != 0,
            relaxed: flags & FLAG_RELAXED != 0,
        };
        return Ok(Body::Data(position, rest));
    }
    if matches!(opcode, Opcode::Bundle | Opcode::ResponseBundle) {
        let bundled = Bundled {
            response: opcode == Opcode::ResponseBundle,
            psn,
            first: aux,
        };
        return Ok(Body::Bundle(bundled, Segments::parse(rest)?));
    }
    if opcode == Opcode::Sack {
        let response = flags & FLAG_RESPONSE != 0;
        let zero = psn == 0 && aux == 0;
        let ranges = Ranges::parse(rest)?;
        return zero
            .then_some(Body::Sack { response, ranges })
            .ok_or(ParseError::Field);
    }
    if !rest.is_empty() {
        return Err(ParseError::Length);
    }
    fixed(opcode, psn, aux).ok_or(ParseError::Field)
}

/// Bodies that are nothing but the two words of the header.
fn fixed<'a>(opcode: Opcode, psn: u32, aux: u32) -> Option<Body<'a>> {
    match opcode {
        Opcode::Rnr => {
            let timer = u8::try_from(aux).ok().filter(|t| *t < 32)?;
            Some(Body::Rnr { psn, timer })
        }
        Opcode::Nak => Some(Body::Nak {
            psn,
            terminate: Terminate::from_word(aux).ok()?,
        }),
        Opcode::Ack => (psn == 0 && aux == 0).then_some(Body::Ack),
        Opcode::Reject if psn == 0 => Reason::from_bits(aux).map(Body::Reject),
        Opcode::Shutdown if psn == 0 => Reason::from_bits(aux).map(Body::Shutdown),
        _ => None,
    }
}
