//! Replies of the broker that a guest can't have.

use std::os::fd::OwnedFd;

use causeway_fabric::remoting::{Header, Kind, send};
use causeway_fabric::take_back;
use rustix::io::Errno;

/// What a session is told instead of a message whose descriptors it can't have. The broker, at the
/// other end of the session's socket, is not to keep for it what that has granted.
pub(super) fn refuse(socket: &OwnedFd, (header, body): (Header, &[u8]), errno: Errno) -> Vec<u8> {
    tracing::warn!(%errno, "a guest cannot be given what the broker granted");
    if let Some(undo) = take_back(&header, body) {
        // What can't be said to it stays until the session ends.
        let _ = send(socket, &undo, &[]);
    }
    let status = match header.kind {
        Kind::Reply => errno.raw_os_error(),
        _ => 0,
    };
    let header = Header {
        status,
        fds: 0,
        ..header
    };
    header.encode(&[])
}

#[cfg(test)]
mod tests {
    use causeway_fabric::remoting::{ONE_WAY, Received, encode_body, receive};
    use causeway_fabric::services::broker::{METHODS, SERVICE, SegmentReply, SegmentRequest};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn what_a_guest_cannot_have_is_taken_back_from_the_broker() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, broker) = pair.unwrap();
        let number = |name| {
            let mut methods = METHODS.iter();
            methods.find(|known| known.name == name).unwrap().number
        };
        let header = Header {
            kind: Kind::Reply,
            service: SERVICE,
            method: number("create_segment"),
            request: 3,
            status: 0,
            fds: 1,
        };
        let body = encode_body(&SegmentReply { segment: 77 });
        let message = refuse(&ours, (header, &body), Errno::MFILE);
        let (told, rest) = Header::decode(&message).unwrap();
        let errno = Errno::MFILE.raw_os_error();
        assert_eq!((told.request, told.status, told.fds), (3, errno, 0));
        assert!(rest.is_empty());
        let Ok(Received::Message(undo, body, _)) = receive(&broker) else {
            panic!("the broker is told nothing");
        };
        let undone = (undo.kind, undo.method, undo.request);
        let expected = (Kind::Request, number("destroy_segment"), ONE_WAY);
        assert_eq!(undone, expected);
        assert_eq!(body, encode_body(&SegmentRequest { segment: 77 }));
    }
}
