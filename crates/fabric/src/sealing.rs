//! Secured sessions over TCP: the frames of their handshake, and the records that follow it
//! (docs/WIRE.md, *Secured sessions*).
//!
//! A record is one message of the remoting protocol, encrypted and authenticated. Its number is
//! nowhere: TCP keeps the order, so both ends count. What comes twice, is left out or was changed
//! does not open, and ends the session.

use causeway_aead::{Cipher, Opener, Sealer, Secret, Stamp, TAG_LEN};

use crate::limits::MESSAGE_MAX;
use crate::remoting::{HEADER_BYTES, Malformed};
use crate::services::channel::ChannelReply;
use crate::services::secure::MESSAGE_MAX as HANDSHAKE_MAX;

pub use crate::unsecured::Unsecured;

/// What a frame begins with. As the length of a message it would be too long by far.
pub const MAGIC: [u8; 4] = *b"CwSe";
/// Bytes of a frame before its message: magic, step, reason, length.
pub const FRAME_HEADER: usize = 8;
/// Bytes of a record before its text: three of the length, little-endian, one of the key's phase.
pub const RECORD_HEADER: usize = 4;
/// Bits of the length.
const LENGTH_BITS: u32 = 24;
/// Bytes of text and tag of the longest record.
const RECORD_MAX: usize = MESSAGE_MAX + TAG_LEN;
const _: () = assert!(RECORD_MAX < 1 << LENGTH_BITS);
const _: () = assert!(u32::from_le_bytes(MAGIC) as usize > MESSAGE_MAX);

/// Steps of the handshake, as frames have them.
const BEGIN: u8 = 1;
const ANSWER: u8 = 2;
const REFUSAL: u8 = 3;

/// A message of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Of who has connected.
    Begin(Vec<u8>),
    /// Of the daemon.
    Answer(Vec<u8>),
    /// Of the daemon, in the place of an answer. It is authenticated by nothing.
    Refusal(Unsecured),
}

impl Frame {
    /// How many bytes the frame has that begins with these; [`FRAME_HEADER`] while that is not
    /// known.
    #[must_use]
    pub fn whole(bytes: &[u8]) -> usize {
        match bytes.get(6..FRAME_HEADER) {
            Some(&[low, high]) => FRAME_HEADER + usize::from(u16::from_le_bytes([low, high])),
            _ => FRAME_HEADER,
        }
    }

    /// Decodes a frame from bytes that begin with [`MAGIC`]; `None` until it has come whole.
    ///
    /// # Errors
    /// [`Malformed`], as soon as the bytes cannot be one.
    pub fn take(bytes: &[u8]) -> Result<Option<Frame>, Malformed> {
        let Some(header) = bytes.first_chunk::<FRAME_HEADER>() else {
            return Ok(None);
        };
        let whole = Frame::whole(header);
        let length = whole - FRAME_HEADER;
        let [.., step, reason, _, _] = *header;
        let frame = match (step, reason, length) {
            _ if !header.starts_with(&MAGIC) => return Err(Malformed::Magic),
            (BEGIN | ANSWER, 0, 1..=HANDSHAKE_MAX) => {
                let Some(message) = bytes.get(FRAME_HEADER..whole) else {
                    return Ok(None);
                };
                match step {
                    BEGIN => Frame::Begin(message.to_vec()),
                    _ => Frame::Answer(message.to_vec()),
                }
            }
            (REFUSAL, number, 0) => {
                let why = Unsecured::from_number(number);
                Frame::Refusal(why.ok_or(Malformed::Value("reason"))?)
            }
            (BEGIN | ANSWER | REFUSAL, _, _) => return Err(Malformed::Length),
            _ => return Err(Malformed::Value("step")),
        };
        Ok(Some(frame))
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (step, reason, message): (u8, u8, &[u8]) = match self {
            Frame::Begin(message) => (BEGIN, 0, message),
            Frame::Answer(message) => (ANSWER, 0, message),
            Frame::Refusal(why) => (REFUSAL, *why as u8, &[]),
        };
        let [low, high] = (message.len() as u16).to_le_bytes();
        [&MAGIC[..], &[step, reason, low, high], message].concat()
    }
}

/// The keys of a session.
#[derive(Debug)]
pub struct Keys {
    cipher: Cipher,
    send: Secret,
    receive: Secret,
}

impl Keys {
    /// Those that a broker has handed out; `None` if the cipher is none.
    #[must_use]
    pub fn of(reply: &ChannelReply) -> Option<Keys> {
        Some(Keys {
            cipher: Cipher::from_number(reply.cipher)?,
            send: Secret(reply.send.0),
            receive: Secret(reply.receive.0),
        })
    }

    /// What seals and what opens. Keys change after so many records, and sooner than a cipher's
    /// limit without a number.
    #[must_use]
    pub fn split(self, phase_records: Option<u64>) -> (Sealing, Opening) {
        let mut sealer = Sealer::new(self.cipher, self.send);
        if let Some(records) = phase_records {
            sealer = sealer.with_phase_packets(records);
        }
        let opening = Opening {
            opener: Opener::new(self.cipher, &self.receive),
            next: 0,
        };
        (Sealing(sealer), opening)
    }
}

/// Seals the records of one direction.
#[derive(Debug)]
pub struct Sealing(Sealer);

impl Sealing {
    /// The record of a message; `None` where no number is left, and in a child of the process
    /// whose session it is.
    #[must_use]
    pub fn seal(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let length = message.len() + TAG_LEN;
        if length > RECORD_MAX {
            return None;
        }
        let mut record = Vec::with_capacity(RECORD_HEADER + length);
        record.extend_from_slice(&[0; RECORD_HEADER]);
        record.extend_from_slice(message);
        record.extend_from_slice(&[0; TAG_LEN]);
        let sealed = self.0.seal(&mut record, RECORD_HEADER, |head, stamp| {
            let word = length as u32 | u32::from(stamp.phase) << LENGTH_BITS;
            head.copy_from_slice(&word.to_le_bytes());
        });
        sealed.then_some(record)
    }
}

/// Opens the records of one direction.
#[derive(Debug)]
pub struct Opening {
    opener: Opener,
    /// Number of the next record.
    next: u64,
}

impl Opening {
    /// How many bytes the record has that begins with these; [`RECORD_HEADER`] while that is not
    /// known.
    #[must_use]
    pub fn whole(bytes: &[u8]) -> usize {
        match bytes.first_chunk() {
            None => RECORD_HEADER,
            Some(head) => RECORD_HEADER + length_of(*head),
        }
    }

    /// Takes the record that has come out of `bytes`; `None` until it has whole.
    ///
    /// # Errors
    /// [`Malformed`] if it was not sealed by the peer as the next one, or as soon as its length
    /// cannot be one. The session is of no use any more.
    pub fn take(&mut self, bytes: &mut Vec<u8>) -> Result<Option<Vec<u8>>, Malformed> {
        let Some(head) = bytes.first_chunk::<RECORD_HEADER>() else {
            return Ok(None);
        };
        let (length, [.., phase]) = (length_of(*head), *head);
        if !(HEADER_BYTES + TAG_LEN..=RECORD_MAX).contains(&length) {
            return Err(Malformed::Length);
        }
        let whole = RECORD_HEADER + length;
        let Some(record) = bytes.get_mut(..whole) else {
            return Ok(None);
        };
        let stamp = Stamp {
            number: self.next,
            phase,
        };
        let opened = self.opener.open(record, RECORD_HEADER, stamp);
        let text = opened.map_err(|_| Malformed::Value("seal"))?.to_vec();
        self.next += 1;
        bytes.drain(..whole);
        Ok(Some(text))
    }
}

fn length_of(head: [u8; RECORD_HEADER]) -> usize {
    (u32::from_le_bytes(head) & ((1 << LENGTH_BITS) - 1)) as usize
}

#[cfg(test)]
mod tests;
