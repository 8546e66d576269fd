//! The remoting protocol: requests, replies and events between an endpoint and the broker.
//!
//! One message is one datagram of a `SOCK_SEQPACKET` socket (`unix(7)`): a [`Header`] of
//! [`HEADER_BYTES`] bytes, then a body. File descriptors travel beside it as `SCM_RIGHTS`; their
//! number is in the header, and a message whose descriptors differ from that number is malformed.
//! All integers are little-endian. Nothing here trusts the other side: decoding is pure, bounded
//! and never panics.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | magic, [`MAGIC`] |
//! | 2..4 | version, [`VERSION`] |
//! | 4..6 | service |
//! | 6..8 | method |
//! | 8..12 | request id, chosen by the caller, not 0; 0 in events and to refuse a connection |
//! | 12..16 | status of a reply: 0 or an errno value; 0 otherwise |
//! | 16..20 | body length in bytes |
//! | 20 | kind: 0 request, 1 reply, 2 event |
//! | 21 | number of file descriptors |
//! | 22..24 | zero |

mod codec;
mod fuzz;
mod service;
mod socket;

pub(crate) use codec::byte_enum;
pub use codec::{Field, Malformed, Reader, decode_body, encode_body};
pub use fuzz::fuzz_message;
pub use service::{Answer, Call, Method};
pub(crate) use service::{message, service};
pub(crate) use socket::assemble;
pub use socket::{Received, receive, receive_from_client, send};

use crate::limits::{MESSAGE_FDS_MAX, MESSAGE_MAX};

/// First two bytes of every message.
pub const MAGIC: u16 = 0x5743;
/// Version of the header and of every service table; both sides must agree exactly.
pub const VERSION: u16 = 12;
/// In place of a request's id: the reply is to the connection itself, which is refused.
pub const CONNECTION: u32 = 0;
/// Number of a request that is not answered.
pub const ONE_WAY: u32 = CONNECTION;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 24;
/// Most bytes of a body.
pub const BODY_MAX: usize = MESSAGE_MAX - HEADER_BYTES;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Expects a reply with the same request id.
    Request = 0,
    /// Answers a request.
    Reply = 1,
    /// Sent by the broker on its own account.
    Event = 2,
}

/// The fixed part of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// Service the method belongs to.
    pub service: u16,
    /// Method within the service; in events, the event's number.
    pub method: u16,
    /// Matches replies with requests.
    pub request: u32,
    /// Errno value of a failed call, else 0.
    pub status: i32,
    /// Number of file descriptors beside the message.
    pub fds: u8,
}

impl Header {
    /// Encodes the header and `body` as one message.
    ///
    /// # Panics
    /// If `body` is longer than [`BODY_MAX`] or `fds` above [`MESSAGE_FDS_MAX`]: the caller's
    /// bug, never the peer's.
    pub fn encode(&self, body: &[u8]) -> Vec<u8> {
        assert!(body.len() <= BODY_MAX, "body of {} bytes", body.len());
        assert!(usize::from(self.fds) <= MESSAGE_FDS_MAX);
        let mut out = Vec::with_capacity(HEADER_BYTES + body.len());
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.service.to_le_bytes());
        out.extend_from_slice(&self.method.to_le_bytes());
        out.extend_from_slice(&self.request.to_le_bytes());
        out.extend_from_slice(&self.status.to_le_bytes());
        out.extend_from_slice(&(body.len() as u32).to_le_bytes());
        out.extend_from_slice(&[self.kind as u8, self.fds, 0, 0]);
        out.extend_from_slice(body);
        out
    }

    /// Decodes one whole message into its header and body.
    ///
    /// # Errors
    /// [`Malformed`] unless magic, version, kind, lengths and reserved bytes are all right.
    pub fn decode(message: &[u8]) -> Result<(Header, &[u8]), Malformed> {
        if message.len() > MESSAGE_MAX {
            return Err(Malformed::Length);
        }
        let mut reader = Reader::new(message);
        if u16::take(&mut reader)? != MAGIC {
            return Err(Malformed::Magic);
        }
        let version = u16::take(&mut reader)?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let service = u16::take(&mut reader)?;
        let method = u16::take(&mut reader)?;
        let request = u32::take(&mut reader)?;
        let status = i32::take(&mut reader)?;
        let length = u32::take(&mut reader)?;
        let kind = match u8::take(&mut reader)? {
            0 => Kind::Request,
            1 => Kind::Reply,
            2 => Kind::Event,
            _ => return Err(Malformed::Value("kind")),
        };
        let fds = u8::take(&mut reader)?;
        if u16::take(&mut reader)? != 0 {
            return Err(Malformed::Value("reserved"));
        }
        let body = reader.rest();
        if u32::try_from(body.len()) != Ok(length) {
            return Err(Malformed::Length);
        }
        let header = Header {
            kind,
            service,
            method,
            request,
            status,
            fds,
        };
        header.check()?;
        Ok((header, body))
    }

    fn check(&self) -> Result<(), Malformed> {
        if usize::from(self.fds) > MESSAGE_FDS_MAX {
            return Err(Malformed::Descriptors);
        }
        if self.kind != Kind::Reply && self.status != 0 {
            return Err(Malformed::Value("status"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
