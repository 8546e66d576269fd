//! A process that is at its limit of descriptors. Alone in its program: the limit is the process's.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use causeway_fabric::remoting::{Header, Kind, Malformed, Received, receive, send};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A reply that says it has so many descriptors, and has `fds`.
fn reply(says: u8, fds: &[BorrowedFd<'_>]) -> Received {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let header = Header {
        kind: Kind::Reply,
        service: 1,
        method: 4,
        request: 7,
        status: 0,
        fds: says,
    };
    send(&theirs, &header.encode(b"body"), fds).unwrap();
    let limit = at_the_limit(says.min(1));
    let received = receive(&ours).unwrap();
    setrlimit(Resource::Nofile, limit).unwrap();
    received
}

/// Leaves room for so many more descriptors. Returns the limit there was.
fn at_the_limit(room: u8) -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    // The lowest free number, since descriptors may lie in any order.
    let free: OwnedFd = File::open("/dev/null").unwrap().into();
    let lowest = std::os::fd::AsRawFd::as_raw_fd(&free) as u64;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(lowest + u64::from(room)),
            ..before
        },
    )
    .unwrap();
    before
}

#[test]
fn descriptors_that_do_not_fit_are_no_breach_of_the_protocol() {
    let file = File::open("/dev/null").unwrap();
    let three = [file.as_fd(); 3];
    match reply(3, &three) {
        Received::Incomplete(header, _) => assert_eq!((header.request, header.fds), (7, 3)),
        other => panic!("{other:?}"),
    }
    // More than the header says is one.
    match reply(0, &three) {
        Received::Malformed(Malformed::Descriptors) => {}
        other => panic!("{other:?}"),
    }
    match reply(1, &three[..1]) {
        Received::Message(_, body, fds) => assert_eq!((&body[..], fds.len()), (&b"body"[..], 1)),
        other => panic!("{other:?}"),
    }
}
