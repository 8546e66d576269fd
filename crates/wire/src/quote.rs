//! Which connection a quoted datagram belonged to.
//!
//! A report of the network's (ICMP) quotes the beginning of the datagram that it is about. The
//! first [`NAME_LEN`] bytes of every datagram of a connection name it, in this version of the wire
//! and in all later ones: by a random number of 64 bits which nobody can know who has not read what
//! the connection sends. Who quotes it has seen the datagram (RFC 9000 section 14.2.1, RFC 5927
//! section 4.1); who does not may be anybody.

use crate::codec::get;

/// Bytes at the beginning of a datagram that name its connection.
pub const NAME_LEN: usize = 24;

/// The two fields that name a connection, TRP's and the connection manager's alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// The receiver's cookie, or its name of the connection; 0 where it was not known.
    pub receiver: u64,
    /// The sender's, in what begins a connection, and in all that the connection manager sends;
    /// anything else in other datagrams.
    pub sender: u64,
}

/// The names in the beginning of a datagram; `None` where it is too short to have them.
#[must_use]
pub fn names(quote: &[u8]) -> Option<Names> {
    let head = quote.first_chunk::<NAME_LEN>()?;
    Some(Names {
        receiver: u64::from_be_bytes(get::<8, 8, NAME_LEN>(head)),
        sender: u64::from_be_bytes(get::<16, 8, NAME_LEN>(head)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::{Kind, Message, PortSpace, Private, Terms};
    use crate::trp::{Body, Common, Hello, Packet};

    #[test]
    fn every_datagram_of_a_connection_names_it() {
        let (receiver, sender) = (0x0102_0304_0506_0708, 0x1112_1314_1516_1718);
        let hello = Hello {
            echo: receiver,
            cookie: sender,
            max_datagram: 1200,
            window: 64,
            ..Hello::default()
        };
        let common = Common {
            cookie: receiver,
            ..Common::default()
        };
        let mut out = [0; 512];
        Packet::Hello(hello).emit(&mut out).unwrap();
        assert_eq!(names(&out), Some(Names { receiver, sender }));
        assert_eq!(names(&out[..NAME_LEN - 1]), None);
        out.fill(0);
        Packet::Segment(common, Body::Ack).emit(&mut out).unwrap();
        assert_eq!(names(&out[..NAME_LEN]).unwrap().receiver, receiver);
        out.fill(0);
        let message = Message {
            kind: Kind::Shutdown,
            space: PortSpace::Tcp,
            receiver,
            sender,
            port: 0,
            reason: 0,
            terms: Terms::default(),
            private: Private::NONE,
        };
        message.emit(&mut out).unwrap();
        assert_eq!(names(&out), Some(Names { receiver, sender }));
    }
}
