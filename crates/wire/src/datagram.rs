//! Datagrams of UD queue pairs (docs/WIRE.md): one message each, to whoever has the Q_Key.
//!
//! They share the endpoint's port with TRP, of whose opcodes they are one, and nothing else: there
//! is no connection, no cookie and no sequence number.

use causeway_identity::QPN_MASK;

use crate::trp::{ParseError, VERSION};

/// TRP opcode of a datagram.
pub const OPCODE: u8 = 12;
/// Length of the header, a multiple of 8: the payload is aligned as the datagram is.
pub const HEADER_LEN: usize = 24;
/// Most bytes of payload: the largest MTU that verbs knows.
pub const MAX_PAYLOAD: usize = 4096;
/// Flow labels have 20 bits.
pub const MAX_FLOW_LABEL: u32 = 0x000F_FFFF;

/// Flag: wakes who waits for solicited completions only.
const FLAG_SOLICITED: u8 = 1;
/// Flag: there is immediate data.
const FLAG_IMM: u8 = 1 << 1;

/// The header of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Datagram {
    /// Queue pair addressed, or [`causeway_identity::QPN_MULTICAST`].
    pub dst_qpn: u32,
    /// Queue pair of the sender.
    pub src_qpn: u32,
    /// Must equal that of the receiving queue pair.
    pub qkey: u32,
    /// Immediate data: 32 bits in the order they stood in memory.
    pub imm: Option<u32>,
    /// Wakes who waits for solicited completions only.
    pub solicited: bool,
    /// Traffic class of the sender's address handle.
    pub traffic_class: u8,
    /// Its hop limit.
    pub hop_limit: u8,
    /// Its flow label, 20 bits.
    pub flow_label: u32,
}

/// Whether what has arrived at an endpoint's port claims to be a datagram.
#[inline]
#[must_use]
pub fn is_datagram(bytes: &[u8]) -> bool {
    bytes.first() == Some(&(VERSION << 4 | OPCODE))
}

impl Datagram {
    /// Decodes a datagram: header and payload.
    ///
    /// # Errors
    /// [`ParseError`] if it is none; never panics and never reads past `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<(Datagram, &[u8]), ParseError> {
        let Some((h, payload)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(ParseError::Truncated);
        };
        if h[0] >> 4 != VERSION {
            return Err(ParseError::Version);
        }
        if h[0] & 0xF != OPCODE {
            return Err(ParseError::Opcode);
        }
        if payload.len() > MAX_PAYLOAD {
            return Err(ParseError::Length);
        }
        let imm = u32::from_ne_bytes([h[12], h[13], h[14], h[15]]);
        let has_imm = h[1] & FLAG_IMM != 0;
        let flow_label = u32::from_be_bytes([h[20], h[21], h[22], h[23]]);
        let reserved = h[1] & !(FLAG_SOLICITED | FLAG_IMM) | h[4] | h[16];
        if reserved != 0 || (!has_imm && imm != 0) || flow_label > MAX_FLOW_LABEL {
            return Err(ParseError::Field);
        }
        let datagram = Datagram {
            dst_qpn: u32::from_be_bytes([0, h[5], h[6], h[7]]),
            src_qpn: u32::from_be_bytes([0, h[17], h[18], h[19]]),
            qkey: u32::from_be_bytes([h[8], h[9], h[10], h[11]]),
            imm: has_imm.then_some(imm),
            solicited: h[1] & FLAG_SOLICITED != 0,
            traffic_class: h[2],
            hop_limit: h[3],
            flow_label,
        };
        Ok((datagram, payload))
    }

    /// The header as it stands before the payload; `None` where a field exceeds its range.
    #[must_use]
    pub fn emit(&self) -> Option<[u8; HEADER_LEN]> {
        if self.dst_qpn > QPN_MASK || self.src_qpn > QPN_MASK || self.flow_label > MAX_FLOW_LABEL {
            return None;
        }
        let mut h = [0; HEADER_LEN];
        h[0] = VERSION << 4 | OPCODE;
        h[1] = u8::from(self.solicited) * FLAG_SOLICITED + u8::from(self.imm.is_some()) * FLAG_IMM;
        h[2] = self.traffic_class;
        h[3] = self.hop_limit;
        h[4..8].copy_from_slice(&self.dst_qpn.to_be_bytes());
        h[8..12].copy_from_slice(&self.qkey.to_be_bytes());
        h[12..16].copy_from_slice(&self.imm.unwrap_or(0).to_ne_bytes());
        h[16..20].copy_from_slice(&self.src_qpn.to_be_bytes());
        h[20..24].copy_from_slice(&self.flow_label.to_be_bytes());
        Some(h)
    }
}

/// Decodes arbitrary bytes and checks that whatever was understood is encoded again the same way:
/// the body of the fuzz target.
///
/// # Panics
/// If a decoded header does not survive encoding: a defect in this module.
pub fn fuzz_datagram(data: &[u8]) {
    let Ok((datagram, payload)) = Datagram::parse(data) else {
        return;
    };
    assert!(is_datagram(data));
    assert_eq!(payload.len() + HEADER_LEN, data.len());
    let again = datagram.emit();
    assert_eq!(
        again.as_ref().map(|h| &h[..]),
        data.get(..HEADER_LEN),
        "{datagram:?}"
    );
}
