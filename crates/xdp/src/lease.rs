//! What a process and the daemon say to each other. The daemon listens at a Unix socket of the
//! network namespace (`SOCK_SEQPACKET`), a process connects, shows the UDP socket that it has bound
//! its port with, and is lent a socket of AF_XDP or told why not. The connection is the lease: it
//! ends with either side.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
    socket_with,
};

use crate::frame::Mac;

/// Name of the daemon's socket, in the abstract names of the network namespace (unix(7)).
pub const NAME: &[u8] = b"causeway-xdp";
/// Raised when what is said changes its meaning.
pub const VERSION: u8 = 1;
/// Longest reason of a refusal, in bytes.
pub const REASON_MAX: usize = 400;
/// Longest message.
pub const MESSAGE_MAX: usize = 2 + REASON_MAX;
/// Most descriptors that come with one.
pub const DESCRIPTORS_MAX: usize = 2;

/// A message of either side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A process asks to be lent a socket. With it comes the UDP socket.
    Borrow,
    /// `causeway doctor` asks whether it would be, and for what reason not.
    Look,
    /// It is lent; socket and packet memory come with it. To [`Message::Look`]: it would be.
    Lend {
        /// The interface.
        ifindex: u32,
        /// The queue of it.
        queue: u32,
    },
    /// It is not.
    Refuse(String),
    /// Which way leads from one address to the other?
    Resolve(Way),
    /// This one, by the interface that was lent, or none that is known.
    Resolved(Way, Option<Macs>),
}

/// From which address to which other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The own one.
    pub src: IpAddr,
    /// The peer's.
    pub dst: IpAddr,
}

/// Hardware addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Macs {
    /// The interface's.
    pub src: Mac,
    /// The peer's, or that of the router towards it.
    pub dst: Mac,
}

impl Message {
    /// Its bytes: the version, the kind, the fields, integers in the machine's order.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        match self {
            Message::Borrow => bytes.push(1),
            Message::Look => bytes.push(2),
            Message::Lend { ifindex, queue } => {
                bytes.push(3);
                bytes.extend(ifindex.to_ne_bytes());
                bytes.extend(queue.to_ne_bytes());
            }
            Message::Refuse(reason) => {
                bytes.push(4);
                let boundary = |end: &usize| reason.is_char_boundary(*end);
                let end = (0..=reason.len().min(REASON_MAX)).rev().find(boundary);
                bytes.extend(&reason.as_bytes()[..end.unwrap_or(0)]);
            }
            Message::Resolve(way) => {
                bytes.push(5);
                way.encode(&mut bytes);
            }
            Message::Resolved(way, macs) => {
                bytes.push(6);
                way.encode(&mut bytes);
                if let Some(macs) = macs {
                    bytes.extend(macs.src);
                    bytes.extend(macs.dst);
                }
            }
        }
        bytes
    }

    /// `None` for what is no message of this version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let [VERSION, kind, fields @ ..] = bytes else {
            return None;
        };
        match (kind, fields) {
            (1, []) => Some(Message::Borrow),
            (2, []) => Some(Message::Look),
            (3, fields) => {
                let [ifindex, queue] = [fields.get(..4)?, fields.get(4..)?];
                let word = |bytes: &[u8]| Some(u32::from_ne_bytes(bytes.try_into().ok()?));
                let (ifindex, queue) = (word(ifindex)?, word(queue)?);
                Some(Message::Lend { ifindex, queue })
            }
            (4, reason) if reason.len() <= REASON_MAX => {
                Some(Message::Refuse(String::from_utf8(reason.to_vec()).ok()?))
            }
            (5, way) => Some(Message::Resolve(Way::decode(way)?)),
            (6, fields) => {
                let (way, macs) = fields.split_at_checked(Way::LEN)?;
                let macs = match macs {
                    [] => None,
                    macs => {
                        let macs: [u8; 12] = macs.try_into().ok()?;
                        let (src, dst) = (*macs.first_chunk()?, *macs.last_chunk()?);
                        Some(Macs { src, dst })
                    }
                };
                Some(Message::Resolved(Way::decode(way)?, macs))
            }
            _ => None,
        }
    }
}

impl Way {
    const LEN: usize = 32;

    fn encode(self, bytes: &mut Vec<u8>) {
        for ip in [self.src, self.dst] {
            let ip = match ip {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            bytes.extend(ip.octets());
        }
    }

    fn decode(bytes: &[u8]) -> Option<Way> {
        let bytes: &[u8; Way::LEN] = bytes.try_into().ok()?;
        let (src, dst) = (*bytes.first_chunk::<16>()?, *bytes.last_chunk::<16>()?);
        let ip = |octets| Ipv6Addr::from(octets).to_canonical();
        let (src, dst) = (ip(src), ip(dst));
        (src.is_ipv4() == dst.is_ipv4()).then_some(Way { src, dst })
    }
}

/// The address of the daemon's socket.
///
/// # Errors
/// None: the name is short enough.
pub fn address() -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(NAME)?)
}

/// A socket of the kind that both sides have.
///
/// # Errors
/// What socket(2) reports.
pub fn socket() -> io::Result<OwnedFd> {
    let kind = SocketType::SEQPACKET;
    Ok(socket_with(
        AddressFamily::UNIX,
        kind,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Sends a message, with descriptors.
///
/// # Errors
/// What sendmsg(2) reports: EPIPE or ECONNRESET if the other side has ended, `WouldBlock` if it
/// takes nothing.
pub fn send(
    to: BorrowedFd<'_>,
    message: &Message,
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let bytes = message.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = flags | SendFlags::NOSIGNAL;
    sendmsg(to, &[IoSlice::new(&bytes)], &mut control, flags)?;
    Ok(())
}

/// Receives a message, and its descriptors. `None` once the other side has ended.
///
/// # Errors
/// `InvalidData` for what is no message; what recvmsg(2) reports: `WouldBlock` where there is none.
pub fn receive(from: impl AsFd, flags: RecvFlags) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
    let mut bytes = [0; MESSAGE_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let got = loop {
        match recvmsg(
            &from,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            flags,
        ) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            got => break got?,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if got.bytes == 0 {
        return Ok(None);
    }
    let message = Message::decode(&bytes[..got.bytes]).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((message, descriptors)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all() -> Vec<Message> {
        let way = |src: &str, dst: &str| Way {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
        };
        let (v4, v6) = (way("10.0.0.1", "10.0.0.2"), way("fd83::1", "fd83::2"));
        let macs = Macs {
            src: [1, 2, 3, 4, 5, 6],
            dst: [7, 8, 9, 10, 11, 12],
        };
        vec![
            Message::Borrow,
            Message::Look,
            Message::Lend {
                ifindex: 7,
                queue: 3,
            },
            Message::Refuse("busy".to_owned()),
            Message::Refuse("é".repeat(REASON_MAX / 2)),
            Message::Resolve(v4),
            Message::Resolve(v6),
            Message::Resolved(v4, Some(macs)),
            Message::Resolved(v6, None),
        ]
    }

    #[test]
    fn messages_are_understood_whole_and_not_cut() {
        for message in all() {
            let bytes = message.encode();
            assert!(bytes.len() <= MESSAGE_MAX);
            assert_eq!(Message::decode(&bytes), Some(message.clone()));
            if !matches!(message, Message::Refuse(_)) {
                let cut = Message::decode(&bytes[..bytes.len() - 1]);
                assert_ne!(cut, Some(message));
            }
        }
    }

    #[test]
    fn long_reasons_are_cut_between_characters() {
        let bytes = Message::Refuse(format!("x{}", "é".repeat(REASON_MAX))).encode();
        let Some(Message::Refuse(reason)) = Message::decode(&bytes) else {
            panic!("it is a message");
        };
        assert_eq!(reason.len(), REASON_MAX - 1);
    }

    proptest! {
        #[test]
        fn no_bytes_lead_astray(
            kind in 0..8_u8,
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let bytes = [&[VERSION, kind][..], &bytes].concat();
            if let Some(message) = Message::decode(&bytes) {
                prop_assert_eq!(Message::decode(&message.encode()), Some(message));
            }
        }
    }

    #[test]
    fn descriptors_travel_with_a_message() {
        let (a, b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let none = receive(&b, RecvFlags::DONTWAIT).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        send(
            a.as_fd(),
            &Message::Borrow,
            &[a.as_fd()],
            SendFlags::empty(),
        )
        .unwrap();
        let (message, descriptors) = receive(&b, RecvFlags::empty()).unwrap().unwrap();
        assert_eq!((message, descriptors.len()), (Message::Borrow, 1));
        drop((a, descriptors));
        assert!(receive(&b, RecvFlags::empty()).unwrap().is_none());
    }
}
