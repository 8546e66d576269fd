//! Files that are never closed, of a file system that a client has made: nobody else waits for
//! them. Needs root.

mod common;
#[path = "../../pins/tests/common/mod.rs"]
mod held;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use causeway_broker::closers::WAITING_MAX;
use causeway_fabric::fds::sealed_memfd;
use causeway_fabric::remoting::{Header, Kind, Received, encode_body, receive, send};
use causeway_fabric::services::{
    AttachRequest, METHODS, RestoreSegmentRequest, SERVICE, SlotRequest, StatusCursor,
};
use causeway_fabric::sysfs::SysfsRequest;
use causeway_fabric::{Address, WirePref, launch};
use common::{CONFIG_NAME, Host, PATIENCE, Peer, as_user, readable, ring};
use held::StuckFile;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Users that have no other meaning, and a group.
const ALICE: u32 = 4001;
const BOB: u32 = 4002;
const OTHER: u32 = 4101;
/// Bytes of an inbox.
const INBOX_BYTES: u64 = causeway_shm::layout::INBOX_LEN as u64;

/// A broker that admits Alice and Bob by sockets of their own.
fn start() -> (Host, PathBuf) {
    let host = Host::new();
    let dir = host.dir.with_extension("tenants");
    let config = format!(
        "[[tenant]]\nname = 'alice'\nsocket = '{0}/alice.sock'\nusers = [{ALICE}]\n\
         userfaultfd = [{ALICE}]\n\
         [[tenant]]\nname = 'bob'\nsocket = '{0}/bob.sock'\nusers = [{BOB}]\n",
        dir.display()
    );
    std::fs::write(host.dir.join(CONFIG_NAME), config).unwrap();
    host.start_broker("0");
    (host, dir)
}

fn connect(dir: &std::path::Path) -> OwnedFd {
    let address = Address::Socket(dir.join("alice.sock"));
    let connect = || launch::connect_existing(&address).unwrap();
    as_user(ALICE, OTHER, connect).expect("a broker").into()
}

/// What the broker says to a request with descriptors; `None` if it ends the connection.
fn ask(
    socket: &OwnedFd,
    name: &str,
    body: &[u8],
    fds: &[BorrowedFd<'_>],
    announced: usize,
) -> Option<i32> {
    let method = METHODS.iter().find(|method| method.name == name).unwrap();
    let header = Header {
        kind: Kind::Request,
        service: SERVICE,
        method: method.number,
        request: 1,
        status: 0,
        fds: announced as u8,
    };
    if send(socket, &header.encode(body), fds).is_err() {
        return None;
    }
    assert!(readable(socket, PATIENCE), "{name}: the broker is silent");
    match receive(socket) {
        Ok(Received::Message(header, _, _)) => Some(header.status),
        _ => None,
    }
}

/// Others attach, and are introduced to each other.
fn others_go_on(dir: &std::path::Path) {
    let address = Address::Socket(dir.join("bob.sock"));
    let attach = || Peer::attach(&address, WirePref::Auto);
    let (one, two) = (as_user(BOB, OTHER, attach), as_user(BOB, OTHER, attach));
    ring(one.connect(1, &two, 1));
    ring(two.connect(1, &one, 1));
}

#[test]
fn a_file_that_cannot_be_closed_holds_up_nobody_else() {
    // Before there is the file: a process that is started would wait to close it.
    let (_host, dir) = start();
    let stuck = StuckFile::mount().expect("this test needs root and FUSE");
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let inbox = sealed_memfd("inbox", INBOX_BYTES).unwrap();
    let (bell, inbox, stuck_fd) = (bell.as_fd(), inbox.as_fd(), stuck.file());
    let attach = encode_body(&AttachRequest::default());
    let refused = Some(Errno::INVAL.raw_os_error());
    let socket = connect(&dir);
    let restore = encode_body(&RestoreSegmentRequest::default());
    let sysfs = encode_body(&SysfsRequest::default());
    let slot = encode_body(&SlotRequest { slot: 9 });
    let ways: [(&str, &[u8], &[BorrowedFd<'_>]); 6] = [
        ("attach", &attach, &[inbox, stuck_fd]),
        ("attach", &attach, &[stuck_fd, bell]),
        ("attach", &attach, &[inbox, bell, stuck_fd]),
        ("restore_segment", &restore, &[stuck_fd]),
        ("sysfs_view", &sysfs, &[stuck_fd]),
        ("add_slot", &slot, &[stuck_fd, stuck_fd]),
    ];
    for (name, body, fds) in ways {
        assert_eq!(ask(&socket, name, body, fds, fds.len()), refused, "{name}");
        others_go_on(&dir);
    }
    let cursor = encode_body(&StatusCursor::default());
    // Descriptors that the header does not announce, and no message at all.
    assert_eq!(ask(&socket, "status", &cursor, &[stuck_fd], 0), None);
    others_go_on(&dir);
    let socket = connect(&dir);
    send(&socket, &[0x55; 9], &[stuck_fd]).unwrap();
    assert!(readable(&socket, PATIENCE));
    others_go_on(&dir);
    // Beyond what may wait, who sends such files has no connections.
    let good = connect(&dir);
    let mut sent = 0;
    let mut socket = connect(&dir);
    while ask(&socket, "sysfs_view", &sysfs, &[stuck_fd], 1) == refused {
        sent += 1;
        assert!(sent <= WAITING_MAX, "there is no bound");
        if sent % 4 == 0 {
            socket = connect(&dir);
        }
    }
    assert!(sent > 0);
    assert_eq!(ask(&good, "status", &cursor, &[], 0), None);
    let turned_away = ask(&connect(&dir), "status", &cursor, &[], 0);
    assert_ne!(turned_away, Some(0));
    others_go_on(&dir);
    // The file system answers, in a way: all of them are closed.
    drop(stuck);
    let deadline = Instant::now() + PATIENCE;
    while ask(&connect(&dir), "status", &cursor, &[], 0) != Some(0) {
        assert!(Instant::now() < deadline, "refused for ever");
        std::thread::yield_now();
    }
    others_go_on(&dir);
}
