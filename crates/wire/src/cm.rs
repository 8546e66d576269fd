//! Connection manager datagrams: what `rdma_cm(7)` says between two programs (docs/WIRE.md).
//!
//! The messages are those of USIW's table 1 that manage connections (request, accept, reject,
//! shutdown), with private data, and an acknowledgment; and two of our own, a probe and a retry.
//! They go to UDP ports of their own, never to a slot's. Multi-byte fields are big-endian. Nothing
//! here checks whether a message fits a connection's state.

use causeway_identity::QPN_MASK;

use crate::codec::{get, put, room, take};
use crate::trp::Opcode;

/// Version of these messages. The first 24 bytes of a message and the position of its CRC are the
/// same in all versions.
pub const VERSION: u8 = 2;
/// Length of the part that every message has.
pub const HEADER_LEN: usize = 64;
/// Most private data of one message.
pub const PRIVATE_MAX: usize = 196;
/// Longest message. A request always has this length, so that what answers it before its sender's
/// address is proved can stay below three times of it (RFC 9000 section 8.1).
pub const MESSAGE_MAX: usize = HEADER_LEN + PRIVATE_MAX;
/// Opcode of a probe; TRP's opcodes are below.
const PROBE: u8 = 12;
/// Opcode of a retry.
const RETRY: u8 = 13;
/// Opcode of an acknowledgment.
const ACK: u8 = Opcode::Ack as u8;
/// Flag: the sender's queue pair takes its receives from a shared receive queue.
pub const FLAG_SRQ: u8 = 1;
/// Flag of every message: the CRC is valid (as TRP's).
pub const FLAG_CRC: u8 = crate::trp::FLAG_CRC;

/// Reject reason: another version (InfiniBand's "invalid class version").
pub const REASON_VERSION: u16 = 31;

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Asks for a connection, or for the address of a datagram service.
    Request,
    /// Grants it.
    Accept,
    /// Refuses it, or gives it up before it is established.
    Reject,
    /// Ends an established connection.
    Shutdown,
    /// Says that the message of the kind named was received. For a request: the program has not
    /// answered yet. For an accept: the connection is established. For a probe: it still is.
    Ack(Acked),
    /// Asks whether the receiver still has the connection.
    Probe,
    /// Answers a request of which nothing is kept: it may come again with the sender's name here, a
    /// token, as its receiver (RFC 9000 section 8.1.2).
    Retry,
}

/// Kinds of messages that are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Acked {
    /// A request.
    Request = Opcode::Request as u8,
    /// An accept.
    Accept = Opcode::Accept as u8,
    /// A shutdown.
    Shutdown = Opcode::Shutdown as u8,
    /// A probe.
    Probe = PROBE,
}

/// Port spaces (`rdma_create_id(3)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PortSpace {
    /// `RDMA_PS_TCP`: connections.
    #[default]
    Tcp = 0,
    /// `RDMA_PS_UDP`: datagrams.
    Udp = 1,
    /// `RDMA_PS_IB`: any queue pair type.
    Ib = 2,
}

/// What both ends of a connection tell each other of their queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// GID of the sender's port.
    pub gid: [u8; 16],
    /// The sender's queue pair.
    pub qpn: u32,
    /// First PSN that it sends.
    pub psn: u32,
    /// Q_Key of its datagrams.
    pub qkey: u32,
    /// READs and atomics that it answers at once.
    pub responder_resources: u8,
    /// READs and atomics that it has outstanding at most.
    pub initiator_depth: u8,
    /// Retries it makes when nothing is heard.
    pub retry_count: u8,
    /// Retries it makes when no receive is posted.
    pub rnr_retry_count: u8,
    /// Whether its receives come from a shared receive queue.
    pub srq: bool,
}

/// Private data of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Private {
    len: u8,
    bytes: [u8; PRIVATE_MAX],
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it says.
    pub kind: Kind,
    /// Port space of the connection.
    pub space: PortSpace,
    /// The receiver's name for the connection; in a request 0, or a token, until it is known.
    pub receiver: u64,
    /// The sender's name for it: random, never 0, and the secret by which answers are known.
    pub sender: u64,
    /// Port of the sender's address.
    pub port: u16,
    /// Why, in a reject: InfiniBand's reject reasons.
    pub reason: u16,
    /// Of the sender's queue pair; all zero where it has no meaning.
    pub terms: Terms,
    /// The program's own.
    pub private: Private,
}

/// Why a datagram is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than the header, or another length than the header says.
    Length,
    /// Another version.
    Version,
    /// A field has a value that it can't have.
    Field,
}

impl Private {
    /// None at all.
    pub const NONE: Private = Private {
        len: 0,
        bytes: [0; PRIVATE_MAX],
    };

    /// A copy of `data`; `None` if it is longer than [`PRIVATE_MAX`].
    #[must_use]
    pub fn new(data: &[u8]) -> Option<Private> {
        let mut private = Private::NONE;
        private.bytes.get_mut(..data.len())?.copy_from_slice(data);
        private.len = data.len() as u8;
        Some(private)
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Default for Private {
    fn default() -> Self {
        Private::NONE
    }
}

impl core::fmt::Debug for Private {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.as_slice().fmt(f)
    }
}

impl Kind {
    fn bits(self) -> (u8, u8) {
        match self {
            Kind::Request => (Opcode::Request as u8, 0),
            Kind::Accept => (Opcode::Accept as u8, 0),
            Kind::Reject => (Opcode::Reject as u8, 0),
            Kind::Shutdown => (Opcode::Shutdown as u8, 0),
            Kind::Ack(acked) => (ACK, acked as u8),
            Kind::Probe => (PROBE, 0),
            Kind::Retry => (RETRY, 0),
        }
    }

    fn from_bits(opcode: u8, acked: u8) -> Option<Kind> {
        const KINDS: [Kind; 10] = [
            Kind::Request,
            Kind::Accept,
            Kind::Reject,
            Kind::Shutdown,
            Kind::Ack(Acked::Request),
            Kind::Ack(Acked::Accept),
            Kind::Ack(Acked::Shutdown),
            Kind::Ack(Acked::Probe),
            Kind::Probe,
            Kind::Retry,
        ];
        let wanted = (opcode, acked);
        KINDS.into_iter().find(|kind| kind.bits() == wanted)
    }
}

impl Message {
    /// Bytes that the message takes.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        match self.kind {
            Kind::Request => MESSAGE_MAX,
            _ => HEADER_LEN + self.private.as_slice().len(),
        }
    }

    /// Writes the message, its CRC zero, and returns its length, at most [`MESSAGE_MAX`]; `None` if
    /// `out` is too short.
    #[must_use]
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        let data = self.private.as_slice();
        let len = self.wire_len();
        let datagram = out.get_mut(..len)?;
        let mut rest = &mut *datagram;
        let head = room::<HEADER_LEN>(&mut rest)?;
        let (private, padding) = rest.split_at_mut_checked(data.len())?;
        private.copy_from_slice(data);
        padding.fill(0);
        *head = [0; HEADER_LEN];
        let (opcode, acked) = self.kind.bits();
        let Terms {
            gid,
            qpn,
            psn,
            qkey,
            responder_resources,
            initiator_depth,
            retry_count,
            rnr_retry_count,
            srq,
        } = self.terms;
        put::<0, 1, _>(head, [VERSION << 4 | opcode]);
        put::<1, 1, _>(head, [FLAG_CRC | if srq { FLAG_SRQ } else { 0 }]);
        put::<2, 1, _>(head, [self.space as u8]);
        put::<3, 1, _>(head, [data.len() as u8]);
        put::<4, 2, _>(head, self.reason.to_be_bytes());
        put::<6, 2, _>(head, self.port.to_be_bytes());
        put::<8, 8, _>(head, self.receiver.to_be_bytes());
        put::<16, 8, _>(head, self.sender.to_be_bytes());
        put::<24, 4, _>(head, qpn.to_be_bytes());
        put::<28, 4, _>(head, psn.to_be_bytes());
        put::<36, 4, _>(head, qkey.to_be_bytes());
        let depths = [
            responder_resources,
            initiator_depth,
            retry_count,
            rnr_retry_count,
        ];
        put::<40, 4, _>(head, depths);
        put::<44, 1, _>(head, [acked]);
        put::<48, 16, _>(head, gid);
        Some(len)
    }

    /// Reads a message. What [`Message::emit`] would not have written is refused, the CRC apart.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn parse(datagram: &[u8]) -> Result<Message, Malformed> {
        let mut rest = datagram;
        let head = take::<HEADER_LEN>(&mut rest).ok_or(Malformed::Length)?;
        let [first, flags, space, length] = get::<0, 4, _>(head);
        if first >> 4 != VERSION {
            return Err(Malformed::Version);
        }
        let private = rest.get(..length.into()).ok_or(Malformed::Length)?;
        let padding = rest.get(length.into()..).unwrap_or_default();
        let [acked, zeros @ ..] = get::<44, 4, _>(head);
        let qpn = u32::from_be_bytes(get::<24, 4, _>(head));
        let known = FLAG_CRC | FLAG_SRQ;
        if flags & FLAG_CRC == 0 || flags & !known != 0 || zeros != [0; 3] || qpn > QPN_MASK {
            return Err(Malformed::Field);
        }
        let sender = u64::from_be_bytes(get::<16, 8, _>(head));
        if sender == 0 {
            return Err(Malformed::Field);
        }
        let [responder, initiator, retry, rnr_retry] = get::<40, 4, _>(head);
        if padding.iter().any(|byte| *byte != 0) {
            return Err(Malformed::Field);
        }
        let message = Message {
            kind: Kind::from_bits(first & 0xF, acked).ok_or(Malformed::Field)?,
            space: match space {
                0 => PortSpace::Tcp,
                1 => PortSpace::Udp,
                2 => PortSpace::Ib,
                _ => return Err(Malformed::Field),
            },
            receiver: u64::from_be_bytes(get::<8, 8, _>(head)),
            sender,
            port: u16::from_be_bytes(get::<6, 2, _>(head)),
            reason: u16::from_be_bytes(get::<4, 2, _>(head)),
            terms: Terms {
                gid: get::<48, 16, _>(head),
                qpn,
                psn: u32::from_be_bytes(get::<28, 4, _>(head)),
                qkey: u32::from_be_bytes(get::<36, 4, _>(head)),
                responder_resources: responder,
                initiator_depth: initiator,
                retry_count: retry,
                rnr_retry_count: rnr_retry,
                srq: flags & FLAG_SRQ != 0,
            },
            private: Private::new(private).ok_or(Malformed::Length)?,
        };
        match message.wire_len() == datagram.len() {
            true => Ok(message),
            false => Err(Malformed::Length),
        }
    }
}

/// A number below 100, in decimal.
fn digits(number: u8) -> [u8; 2] {
    [b'0' + number / 10, b'0' + number % 10]
}

/// Answers a request of another version: writes a reject of that version, its CRC zero, which says
/// in words which version is spoken here, and returns its length. `None` if `datagram` is no such
/// request.
#[must_use]
pub fn refuse_version(datagram: &[u8], out: &mut [u8; MESSAGE_MAX]) -> Option<usize> {
    let head = datagram.first_chunk::<HEADER_LEN>()?;
    let [first, flags, space] = get::<0, 3, _>(head);
    let theirs = first >> 4;
    if theirs == VERSION || first & 0xF != Opcode::Request as u8 || flags & FLAG_CRC == 0 {
        return None;
    }
    let mut words = *b"rdma_cm: version 00 is spoken here, not version 00";
    let at = words.len() - 2;
    words[17..19].copy_from_slice(&digits(VERSION));
    words[at..].copy_from_slice(&digits(theirs));
    let refusal = Message {
        kind: Kind::Reject,
        space: PortSpace::Tcp,
        receiver: u64::from_be_bytes(get::<16, 8, _>(head)),
        sender: 1,
        port: 0,
        reason: REASON_VERSION,
        terms: Terms::default(),
        private: Private::new(&words)?,
    };
    let len = refusal.emit(out)?;
    out[0] = theirs << 4 | Opcode::Reject as u8;
    out[2] = space;
    Some(len)
}

/// Decodes `data`; what is understood must be what would be written. For fuzzing.
#[doc(hidden)]
pub fn fuzz_cm(data: &[u8]) {
    let Ok(message) = Message::parse(data) else {
        return;
    };
    let mut out = [0; MESSAGE_MAX];
    let len = message.emit(&mut out).expect("room for the longest");
    assert_eq!(len, data.len());
    assert_eq!(Message::parse(&out[..len]), Ok(message));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_has_a_limit() {
        assert!(Private::new(&[1; PRIVATE_MAX]).is_some());
        assert!(Private::new(&[1; PRIVATE_MAX + 1]).is_none());
    }
}
