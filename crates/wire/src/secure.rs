//! Datagrams of secured connections (docs/WIRE.md, *A secured wire*).
//!
//! Two kinds exist. A *handshake* datagram carries a message that the brokers of both hosts have
//! made for each other, or says why there will be none. A *sealed* datagram carries one of TRP's,
//! encrypted. Both begin with the bytes that name the connection, as all datagrams do.

use causeway_identity::{QPN_MASK, QPS_PER_SLOT};

use crate::cm;
use crate::codec::{get, put, take};
use crate::quote::NAME_LEN;
use crate::trp::{ParseError, VERSION};

/// Opcode of a sealed datagram.
pub const OPCODE_SEALED: u8 = 13;
/// Opcode of a handshake datagram.
pub const OPCODE_HANDSHAKE: u8 = 14;
/// Bytes before what is encrypted.
pub const SEALED_HEADER_LEN: usize = 24;
/// Bytes of the tag behind it.
pub const TAG_LEN: usize = 16;
/// Bytes that sealing adds to a datagram.
pub const OVERHEAD: usize = SEALED_HEADER_LEN + TAG_LEN;
/// Bytes before a handshake's message.
pub const HANDSHAKE_HEADER_LEN: usize = 32;
/// Most bytes of a handshake's message.
pub const MESSAGE_MAX: usize = 400;
/// Bytes of a cookie: an HMAC-SHA256.
pub const COOKIE_LEN: usize = 32;
/// Most bytes of a handshake datagram.
pub const HANDSHAKE_MAX: usize = HANDSHAKE_HEADER_LEN + COOKIE_LEN + MESSAGE_MAX;

/// The part of a sealed datagram that is not encrypted. It is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedHeader {
    /// Phase of the key, modulo 256.
    pub phase: u8,
    /// Of a UD queue pair's datagram, the sending queue pair's place in its slot: the low
    /// 12 bits of its number. 0 in TRP's.
    pub src_index: u16,
    /// Queue pair addressed.
    pub dst_qpn: u32,
    /// The receiver's cookie.
    pub cookie: u64,
    /// Number of the datagram, which nothing else under its key has.
    pub number: u64,
}

/// What a handshake datagram is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Begins a handshake.
    Begin(&'a [u8]),
    /// Answers one that was begun, and completes it.
    Answer(&'a [u8]),
    /// There will be no answer.
    Refuse(Why),
    /// There is too much to do: what begins a handshake is to come again with this.
    Cookie([u8; COOKIE_LEN]),
    /// Begins a handshake, with the cookie that the peer has asked for.
    Proved([u8; COOKIE_LEN], &'a [u8]),
}

impl<'a> Step<'a> {
    /// The message that begins a handshake, with a cookie or without.
    #[must_use]
    pub fn begins(&self) -> Option<&'a [u8]> {
        match *self {
            Step::Begin(message) | Step::Proved(_, message) => Some(message),
            _ => None,
        }
    }

    /// Whether the sender has no cookie of a connection's, or does not tell it.
    fn is_nameless(&self) -> bool {
        matches!(self, Step::Refuse(_) | Step::Cookie(_))
    }
}

/// Why a handshake is refused. Nothing authenticates that: it is a hint for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Why {
    /// The message was made by a key that this side does not have.
    Key = 1,
    /// It is about other queue pairs, addresses or tenants.
    Binding = 2,
    /// The sides have no version, feature or cipher in common.
    Unsupported = 3,
    /// This side is not to be secured.
    NotSecured = 4,
    /// This side is to be secured, and the peer's request was not.
    Plain = 5,
    /// A UD queue pair's datagram was sealed by keys that this side does not have, or no longer.
    Forgotten = 6,
}

impl Why {
    /// All of them.
    pub const ALL: [Why; 6] = [
        Why::Key,
        Why::Binding,
        Why::Unsupported,
        Why::NotSecured,
        Why::Plain,
        Why::Forgotten,
    ];

    /// The reason with a number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Why> {
        Why::ALL.into_iter().find(|why| *why as u8 == number)
    }
}

impl core::fmt::Display for Why {
    /// As the side that is refused would say it.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Why::Key => "the peer's broker has another key",
            Why::Binding => "the peer's broker knows other addresses, queue pairs or tenants",
            Why::Unsupported => "the peer supports none of this side's ciphers",
            Why::NotSecured => "the peer's wire is not secured, and this side requires it",
            Why::Plain => "the peer requires a secured wire",
            Why::Forgotten => "the peer has forgotten the keys",
        })
    }
}

/// A handshake datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake<'a> {
    /// Queue pair addressed.
    pub dst_qpn: u32,
    /// Queue pair of the sender.
    pub src_qpn: u32,
    /// The receiver's cookie; 0 in what begins.
    pub receiver: u64,
    /// The sender's cookie; 0 in a refusal, and where a cookie is asked for.
    pub sender: u64,
    /// What it is for.
    pub step: Step<'a>,
}

fn is(datagram: &[u8], opcode: u8) -> bool {
    datagram.first() == Some(&(VERSION << 4 | opcode))
}

/// Whether a datagram is a sealed one, well-formed or not.
#[must_use]
#[inline]
pub fn is_sealed(datagram: &[u8]) -> bool {
    is(datagram, OPCODE_SEALED)
}

/// Whether a datagram is a handshake's, well-formed or not.
#[must_use]
#[inline]
pub fn is_handshake(datagram: &[u8]) -> bool {
    is(datagram, OPCODE_HANDSHAKE)
}

fn qpn(field: [u8; 4]) -> Result<u32, ParseError> {
    let qpn = u32::from_be_bytes(field);
    (qpn <= QPN_MASK).then_some(qpn).ok_or(ParseError::Field)
}

impl SealedHeader {
    /// Decodes the header of a sealed datagram, which is long enough to have a tag.
    ///
    /// # Errors
    /// [`ParseError`].
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<SealedHeader, ParseError> {
        if datagram.len() < OVERHEAD {
            return Err(ParseError::Truncated);
        }
        let mut rest = datagram;
        let head = take::<SEALED_HEADER_LEN>(&mut rest).ok_or(ParseError::Truncated)?;
        if !is_sealed(head) {
            return Err(ParseError::Opcode);
        }
        let src_index = u16::from_be_bytes(get::<2, 2, SEALED_HEADER_LEN>(head));
        if u32::from(src_index) >= QPS_PER_SLOT {
            return Err(ParseError::Field);
        }
        Ok(SealedHeader {
            phase: head[1],
            src_index,
            dst_qpn: qpn(get::<4, 4, SEALED_HEADER_LEN>(head))?,
            cookie: u64::from_be_bytes(get::<8, 8, SEALED_HEADER_LEN>(head)),
            number: u64::from_be_bytes(get::<16, 8, SEALED_HEADER_LEN>(head)),
        })
    }

    /// Writes it.
    #[inline]
    pub fn emit(&self, head: &mut [u8; SEALED_HEADER_LEN]) {
        let first = [VERSION << 4 | OPCODE_SEALED, self.phase];
        put::<0, 2, SEALED_HEADER_LEN>(head, first);
        put::<2, 2, SEALED_HEADER_LEN>(head, self.src_index.to_be_bytes());
        put::<4, 4, SEALED_HEADER_LEN>(head, (self.dst_qpn & QPN_MASK).to_be_bytes());
        put::<8, 8, SEALED_HEADER_LEN>(head, self.cookie.to_be_bytes());
        put::<16, 8, SEALED_HEADER_LEN>(head, self.number.to_be_bytes());
    }
}

/// What a handshake datagram is for that has these bytes for step and reason, and such a rest.
fn step(kind: (u8, u8), has_receiver: bool, rest: &[u8]) -> Option<Step<'_>> {
    let is_message = (1..=MESSAGE_MAX).contains(&rest.len());
    Some(match kind {
        (1, 0) if is_message && !has_receiver => Step::Begin(rest),
        (2, 0) if is_message && has_receiver => Step::Answer(rest),
        (3, why) if rest.is_empty() && has_receiver => Step::Refuse(Why::from_number(why)?),
        (4, 0) if has_receiver => Step::Cookie(rest.try_into().ok()?),
        (5, 0) if !has_receiver => {
            let (cookie, message) = rest.split_first_chunk()?;
            (!message.is_empty()).then_some(Step::Proved(*cookie, message))?
        }
        _ => return None,
    })
}

impl<'a> Handshake<'a> {
    /// Decodes a handshake datagram.
    ///
    /// # Errors
    /// [`ParseError`].
    pub fn parse(datagram: &'a [u8]) -> Result<Handshake<'a>, ParseError> {
        let mut message = datagram;
        let head = take::<HANDSHAKE_HEADER_LEN>(&mut message).ok_or(ParseError::Truncated)?;
        if !is_handshake(head) {
            return Err(ParseError::Opcode);
        }
        let length = usize::from(u16::from_be_bytes(get::<28, 2, HANDSHAKE_HEADER_LEN>(head)));
        if message.len() != length || length > COOKIE_LEN + MESSAGE_MAX {
            return Err(ParseError::Length);
        }
        let (receiver, sender) = (
            u64::from_be_bytes(get::<8, 8, HANDSHAKE_HEADER_LEN>(head)),
            u64::from_be_bytes(get::<16, 8, HANDSHAKE_HEADER_LEN>(head)),
        );
        let step = step((head[1], head[2]), receiver != 0, message).ok_or(ParseError::Field)?;
        let named = step.is_nameless() == (sender == 0);
        if head[3] != 0 || head[30..32] != [0, 0] || !named {
            return Err(ParseError::Field);
        }
        Ok(Handshake {
            dst_qpn: qpn(get::<4, 4, HANDSHAKE_HEADER_LEN>(head))?,
            src_qpn: qpn(get::<24, 4, HANDSHAKE_HEADER_LEN>(head))?,
            receiver,
            sender,
            step,
        })
    }

    /// Writes it to `out`, and returns its length; `None` where it does not fit, or a decoder would
    /// refuse it.
    #[must_use]
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        let (step, why, cookie, message) = match &self.step {
            Step::Begin(message) => (1, 0, &[][..], *message),
            Step::Answer(message) => (2, 0, &[][..], *message),
            Step::Refuse(why) => (3, *why as u8, &[][..], &[][..]),
            Step::Cookie(cookie) => (4, 0, &cookie[..], &[][..]),
            Step::Proved(cookie, message) => (5, 0, &cookie[..], *message),
        };
        let length = HANDSHAKE_HEADER_LEN + cookie.len() + message.len();
        let out = out.get_mut(..length)?;
        let (head, rest) = out.split_first_chunk_mut::<HANDSHAKE_HEADER_LEN>()?;
        let count = u16::try_from(rest.len()).ok()?;
        let first = [VERSION << 4 | OPCODE_HANDSHAKE, step, why, 0];
        put::<0, 4, HANDSHAKE_HEADER_LEN>(head, first);
        put::<4, 4, HANDSHAKE_HEADER_LEN>(head, self.dst_qpn.to_be_bytes());
        put::<8, 8, HANDSHAKE_HEADER_LEN>(head, self.receiver.to_be_bytes());
        put::<16, 8, HANDSHAKE_HEADER_LEN>(head, self.sender.to_be_bytes());
        put::<24, 4, HANDSHAKE_HEADER_LEN>(head, self.src_qpn.to_be_bytes());
        put::<28, 2, HANDSHAKE_HEADER_LEN>(head, count.to_be_bytes());
        put::<30, 2, HANDSHAKE_HEADER_LEN>(head, [0, 0]);
        rest[..cookie.len()].copy_from_slice(cookie);
        rest[cookie.len()..].copy_from_slice(message);
        Handshake::parse(out).ok()?;
        Some(length)
    }
}

/// First byte of a sealed message of the connection manager's.
pub const SEALED_MESSAGE: u8 = cm::VERSION << 4 | 14;
/// Bytes of the random number that a sealed message's key is derived with.
pub const SALT_LEN: usize = 32;
/// Bytes before what is encrypted of a sealed message: the names, and the random number.
pub const MESSAGE_HEADER_LEN: usize = NAME_LEN + SALT_LEN;
/// Longest sealed message.
pub const SEALED_MESSAGE_MAX: usize = MESSAGE_HEADER_LEN + cm::MESSAGE_MAX + TAG_LEN;

/// Whether a datagram is a sealed message of the connection manager's.
#[must_use]
pub fn is_sealed_message(datagram: &[u8]) -> bool {
    datagram.first() == Some(&SEALED_MESSAGE)
}

/// The header of a sealed message: the names of the connection, as the message within has them,
/// and a random number. `None` where what is sealed is no message.
#[must_use]
pub fn message_header(message: &[u8], salt: &[u8; SALT_LEN]) -> Option<[u8; MESSAGE_HEADER_LEN]> {
    let names = message.first_chunk::<NAME_LEN>()?;
    let mut header = [0; MESSAGE_HEADER_LEN];
    header[0] = SEALED_MESSAGE;
    header[8..NAME_LEN].copy_from_slice(&names[8..]);
    header[NAME_LEN..].copy_from_slice(salt);
    Some(header)
}

/// The random number of a sealed message that is well-formed.
///
/// # Errors
/// [`ParseError`].
pub fn message_salt(datagram: &[u8]) -> Result<[u8; SALT_LEN], ParseError> {
    if datagram.len() < MESSAGE_HEADER_LEN + TAG_LEN {
        return Err(ParseError::Truncated);
    }
    if datagram.len() > SEALED_MESSAGE_MAX {
        return Err(ParseError::Length);
    }
    if !is_sealed_message(datagram) {
        return Err(ParseError::Opcode);
    }
    if datagram[1..8] != [0; 7] {
        return Err(ParseError::Field);
    }
    let mut rest = &datagram[NAME_LEN..];
    take::<SALT_LEN>(&mut rest)
        .copied()
        .ok_or(ParseError::Truncated)
}

/// Whether the header of a sealed message names the connection that the message within does.
#[must_use]
pub fn names_agree(datagram: &[u8], message: &[u8]) -> bool {
    datagram.len() >= NAME_LEN && datagram.get(8..NAME_LEN) == message.get(8..NAME_LEN)
}

/// First byte of a refusal of the connection manager's, which nothing seals.
pub const REFUSED_REQUEST: u8 = cm::VERSION << 4 | 15;

/// Says that no connection will come of a request, since the two sides protect their messages
/// otherwise. Nothing authenticates that: whoever has read the request can say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedRequest {
    /// The name that the request's sender has for the connection; not 0.
    pub receiver: u64,
    /// Why.
    pub why: Why,
}

impl RefusedRequest {
    /// Decodes a datagram; `None` if it is no refusal.
    #[must_use]
    pub fn parse(datagram: &[u8]) -> Option<RefusedRequest> {
        let head: &[u8; NAME_LEN] = datagram.try_into().ok()?;
        let refusal = RefusedRequest {
            receiver: u64::from_be_bytes(get::<8, 8, NAME_LEN>(head)),
            why: Why::from_number(head[1])?,
        };
        (refusal.receiver != 0 && refusal.emit() == *head).then_some(refusal)
    }

    /// The datagram.
    #[must_use]
    pub fn emit(&self) -> [u8; NAME_LEN] {
        let mut head = [0; NAME_LEN];
        put::<0, 2, NAME_LEN>(&mut head, [REFUSED_REQUEST, self.why as u8]);
        put::<8, 8, NAME_LEN>(&mut head, self.receiver.to_be_bytes());
        head
    }
}

/// Asks the sender of a request to come again with a token, as [`Step::Cookie`] does in a
/// handshake: the listener has too much to do for what anybody may have sent, and keeps nothing of
/// it. Nothing authenticates that: whoever has read the request can say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComeAgain {
    /// The name that the request's sender has for the connection; not 0.
    pub receiver: u64,
    /// What the request is to bear as its receiver; not 0.
    pub token: u64,
}

impl ComeAgain {
    /// Decodes a datagram; `None` if it is no such answer.
    #[must_use]
    pub fn parse(datagram: &[u8]) -> Option<ComeAgain> {
        let head: &[u8; NAME_LEN] = datagram.try_into().ok()?;
        let again = ComeAgain {
            receiver: u64::from_be_bytes(get::<8, 8, NAME_LEN>(head)),
            token: u64::from_be_bytes(get::<16, 8, NAME_LEN>(head)),
        };
        let named = again.receiver != 0 && again.token != 0;
        (named && again.emit() == *head).then_some(again)
    }

    /// The datagram: a refusal's, whose reason is none.
    #[must_use]
    pub fn emit(&self) -> [u8; NAME_LEN] {
        let mut head = [0; NAME_LEN];
        put::<0, 1, NAME_LEN>(&mut head, [REFUSED_REQUEST]);
        put::<8, 8, NAME_LEN>(&mut head, self.receiver.to_be_bytes());
        put::<16, 8, NAME_LEN>(&mut head, self.token.to_be_bytes());
        head
    }
}

/// What the fuzz target `secure` does with a datagram.
///
/// # Panics
/// If a decoded header does not survive encoding: a defect in this module.
pub fn fuzz_secure(data: &[u8]) {
    if let Ok(header) = SealedHeader::parse(data) {
        let mut head = [0; SEALED_HEADER_LEN];
        header.emit(&mut head);
        assert_eq!(data.get(..SEALED_HEADER_LEN), Some(&head[..]));
    }
    if let Ok(handshake) = Handshake::parse(data) {
        let mut out = [0; HANDSHAKE_MAX];
        let len = handshake.emit(&mut out);
        assert_eq!(len.and_then(|len| out.get(..len)), Some(data));
    }
    if let Some(refusal) = RefusedRequest::parse(data) {
        assert_eq!(data, refusal.emit());
    }
    if let Some(again) = ComeAgain::parse(data) {
        assert_eq!(data, again.emit());
    }
    if let Ok(salt) = message_salt(data) {
        let header = message_header(data, &salt);
        assert_eq!(
            header.as_ref().map(|h| &h[..]),
            data.get(..MESSAGE_HEADER_LEN)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quote::{Names, names};
    use crate::trp::destination;

    #[test]
    fn handshakes_come_back_as_they_were() {
        let begin = Handshake {
            dst_qpn: 0x12_3456,
            src_qpn: 0x65_4321,
            receiver: 0,
            sender: 0xB,
            step: Step::Begin(b"message"),
        };
        let answer = Handshake {
            receiver: 0xA,
            step: Step::Answer(&[9; MESSAGE_MAX]),
            ..begin
        };
        let mut out = [0; HANDSHAKE_MAX];
        let refusals = Why::ALL.map(|why| Handshake {
            receiver: 0xA,
            sender: 0,
            step: Step::Refuse(why),
            ..begin
        });
        let cookie = Handshake {
            receiver: 0xA,
            sender: 0,
            step: Step::Cookie([3; COOKIE_LEN]),
            ..begin
        };
        let proved = Handshake {
            step: Step::Proved([3; COOKIE_LEN], &[9; MESSAGE_MAX]),
            ..begin
        };
        let all = [begin, answer, cookie, proved].into_iter();
        for handshake in all.chain(refusals) {
            let len = handshake.emit(&mut out).unwrap();
            assert_eq!(Handshake::parse(&out[..len]), Ok(handshake));
            assert!(Handshake::parse(&out[..len - 1]).is_err());
            assert_eq!(destination(&out), Some(begin.dst_qpn));
            assert!(is_handshake(&out) && !is_sealed(&out));
            let (receiver, sender) = (handshake.receiver, handshake.sender);
            assert_eq!(names(&out[..len]), Some(Names { receiver, sender }));
        }
        let nobody = Handshake { sender: 0, ..begin };
        assert_eq!(nobody.emit(&mut out), None);
        let long = Handshake {
            step: Step::Begin(&[0; MESSAGE_MAX + 1]),
            ..begin
        };
        assert_eq!(long.emit(&mut [0; 600]), None);
        let empty = Handshake {
            step: Step::Proved([3; COOKIE_LEN], b""),
            ..begin
        };
        assert_eq!(empty.emit(&mut out), None);
        assert_eq!(begin.emit(&mut out[..38]), None);
    }

    #[test]
    fn a_sealed_message_names_its_connection() {
        let mut message = [7; 64];
        message[8..16].fill(1);
        message[16..24].fill(2);
        let header = message_header(&message, &[5; SALT_LEN]).unwrap();
        let datagram = [&header[..], &[0; TAG_LEN]].concat();
        assert_eq!(message_salt(&datagram), Ok([5; SALT_LEN]));
        assert_eq!(names(&datagram), names(&message));
        assert!(is_sealed_message(&datagram) && names_agree(&datagram, &message));
        assert!(!names_agree(&datagram, &[7; 64]) && !names_agree(&datagram, &[]));
        let short = &datagram[..datagram.len() - 1];
        assert_eq!(message_salt(short), Err(ParseError::Truncated));
        let long = [&datagram[..], &[0; cm::MESSAGE_MAX + 1]].concat();
        assert_eq!(message_salt(&long), Err(ParseError::Length));
        let mut wrong = datagram;
        wrong[3] = 1;
        assert_eq!(message_salt(&wrong), Err(ParseError::Field));
        assert_eq!(message_header(&message[..23], &[0; SALT_LEN]), None);
    }

    #[test]
    fn a_refusal_names_the_request_that_it_is_about() {
        for why in Why::ALL {
            let refusal = RefusedRequest { receiver: 7, why };
            let datagram = refusal.emit();
            assert_eq!(RefusedRequest::parse(&datagram), Some(refusal));
            assert_eq!(names(&datagram).unwrap().receiver, refusal.receiver);
            assert!(cm::Message::parse(&datagram).is_err() && !is_sealed_message(&datagram));
            assert_eq!(RefusedRequest::parse(&datagram[1..]), None);
            for at in (0..NAME_LEN).filter(|at| !(8..16).contains(at)) {
                let mut changed = datagram;
                changed[at] ^= 0x80;
                assert_eq!(RefusedRequest::parse(&changed), None, "{at}");
            }
        }
        let nobody = RefusedRequest {
            receiver: 0,
            why: Why::Key,
        };
        assert_eq!(RefusedRequest::parse(&nobody.emit()), None);
    }

    #[test]
    fn who_is_to_come_again_is_told_a_token_and_is_not_refused() {
        let (receiver, token) = (7, u64::MAX - 1);
        let datagram = ComeAgain { receiver, token }.emit();
        assert_eq!(
            ComeAgain::parse(&datagram),
            Some(ComeAgain { receiver, token })
        );
        assert_eq!(names(&datagram).unwrap().receiver, receiver);
        // Nor is it anything to who does not know of it.
        assert_eq!(RefusedRequest::parse(&datagram), None);
        assert!(cm::Message::parse(&datagram).is_err() && !is_sealed_message(&datagram));
        for at in 0..8 {
            let mut changed = datagram;
            changed[at] ^= 0x80;
            assert_eq!(ComeAgain::parse(&changed), None, "{at}");
        }
        for (receiver, token) in [(0, 1), (1, 0)] {
            let nobody = ComeAgain { receiver, token };
            assert_eq!(ComeAgain::parse(&nobody.emit()), None);
        }
        assert_eq!(ComeAgain::parse(&datagram[1..]), None);
    }

    #[test]
    fn a_sealed_datagram_names_connection_and_number() {
        let header = SealedHeader {
            phase: 255,
            src_index: 0xFFF,
            dst_qpn: 0x12_3456,
            cookie: 0x0102_0304_0506_0708,
            number: u64::MAX,
        };
        let mut datagram = [0; OVERHEAD];
        header.emit(datagram.first_chunk_mut().unwrap());
        assert_eq!(SealedHeader::parse(&datagram), Ok(header));
        assert_eq!(destination(&datagram), Some(header.dst_qpn));
        assert_eq!(names(&datagram).unwrap().receiver, header.cookie);
        let short = SealedHeader::parse(&datagram[..OVERHEAD - 1]);
        assert_eq!(short, Err(ParseError::Truncated));
        for (reserved, value) in [(2, 0x10), (2, 0x80), (4, 1)] {
            let mut wrong = datagram;
            wrong[reserved] = value;
            assert_eq!(SealedHeader::parse(&wrong), Err(ParseError::Field));
        }
    }
}
