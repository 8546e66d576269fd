//! Clients that say what they should not: they come to grief alone.

mod common;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use causeway_fabric::WirePref;
use causeway_fabric::fds::{private_memfd, sealed_memfd};
use causeway_fabric::remoting::{HEADER_BYTES, Header, Kind, Received, encode_body, receive, send};
use causeway_fabric::services::{
    AttachRequest, ConnectBody, METHODS, SERVICE, SlotRequest, StatusCursor,
};
use common::{Host, PATIENCE, Peer, readable, ring};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{SendFlags, send as send_bytes};

/// Bytes of an inbox (`causeway_shm::layout`).
const INBOX_BYTES: u64 = causeway_shm::layout::INBOX_LEN as u64;

fn method(name: &str) -> u16 {
    METHODS
        .iter()
        .find(|method| method.name == name)
        .unwrap()
        .number
}

fn request(name: &str, body: &[u8], fds: usize) -> Vec<u8> {
    let header = Header {
        kind: Kind::Request,
        service: SERVICE,
        method: method(name),
        request: 1,
        status: 0,
        fds: fds as u8,
    };
    header.encode(body)
}

fn await_message(socket: &OwnedFd) -> Received {
    assert!(readable(socket, PATIENCE), "the broker is silent");
    receive(socket).unwrap()
}

/// The status of the reply to a request.
fn status_of(socket: &OwnedFd, message: &[u8], fds: &[BorrowedFd<'_>]) -> i32 {
    send(socket, message, fds).unwrap();
    match await_message(socket) {
        Received::Message(header, _, _) => header.status,
        other => panic!("{other:?}"),
    }
}

fn refused(socket: &OwnedFd, message: &[u8], fds: &[BorrowedFd<'_>], errno: Errno) {
    assert_eq!(status_of(socket, message, fds), errno.raw_os_error());
}

fn is_closed(socket: &OwnedFd) -> bool {
    matches!(await_message(socket), Received::Closed)
}

/// Two connected endpoints that must not notice anything.
struct Bystanders(Peer, Peer);

impl Bystanders {
    fn new(host: &Host) -> Bystanders {
        let (a, b) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Auto));
        ring(a.connect(1, &b, 1));
        ring(b.connect(1, &a, 1));
        assert_eq!(a.events().len(), 1);
        Bystanders(a, b)
    }
}

impl Drop for Bystanders {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        assert_eq!(self.0.events_so_far(), []);
        assert_eq!(self.1.events_so_far(), []);
        ring(self.0.connect(2, &self.1, 2));
    }
}

#[test]
fn garbage_ends_only_the_connection_it_came_by() {
    let host = Host::with_broker("0");
    let _bystanders = Bystanders::new(&host);
    let good = request("status", &encode_body(&StatusCursor::default()), 0);
    let mut samples: Vec<Vec<u8>> = vec![vec![0], vec![0xFF; 100], vec![0x55; 60_000]];
    for at in [0, 2, 16, 20, 21, 22] {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        samples.push(bad);
    }
    samples.push(good[..HEADER_BYTES - 1].to_vec());
    for sample in samples {
        let socket = host.socket();
        send_bytes(&socket, &sample, SendFlags::NOSIGNAL).unwrap();
        match await_message(&socket) {
            Received::Closed => {}
            // A client of another version is told so first.
            Received::Message(header, _, _) => {
                assert_eq!(header.status, Errno::PROTONOSUPPORT.raw_os_error());
                assert!(is_closed(&socket));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn replies_and_events_are_not_for_clients_to_send() {
    let host = Host::with_broker("0");
    let _bystanders = Bystanders::new(&host);
    for kind in [Kind::Reply, Kind::Event] {
        let header = Header {
            kind,
            service: SERVICE,
            method: 1,
            request: 0,
            status: 0,
            fds: 0,
        };
        let socket = host.socket();
        send(&socket, &header.encode(&[]), &[]).unwrap();
        assert!(is_closed(&socket));
    }
}

#[test]
fn wrong_requests_are_refused_and_the_connection_lives() {
    let host = Host::with_broker("0");
    let _bystanders = Bystanders::new(&host);
    let socket = host.socket();
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let bell = bell.as_fd();
    let slot = encode_body(&SlotRequest { slot: 9 });
    // A body that does not decode; too few descriptors, too many.
    refused(
        &socket,
        &request("status", &[1, 2, 3], 0),
        &[],
        Errno::BADMSG,
    );
    refused(&socket, &request("add_slot", &slot, 0), &[], Errno::BADMSG);
    let cursor = encode_body(&StatusCursor::default());
    refused(
        &socket,
        &request("status", &cursor, 1),
        &[bell],
        Errno::BADMSG,
    );
    // No endpoint yet.
    refused(
        &socket,
        &request("add_slot", &slot, 1),
        &[bell],
        Errno::NOTCONN,
    );
    let connect = encode_body(&ConnectBody::default());
    refused(
        &socket,
        &request("connect", &connect, 0),
        &[],
        Errno::NOTCONN,
    );
    // Methods and services that do not exist.
    let mut unknown = request("status", &cursor, 0);
    unknown[6] = 0xEE;
    refused(&socket, &unknown, &[], Errno::NOSYS);
    let mut unknown = request("status", &cursor, 0);
    unknown[4] = 0xEE;
    refused(&socket, &unknown, &[], Errno::NOSYS);
    assert_eq!(status_of(&socket, &request("status", &cursor, 0), &[]), 0);
}

#[test]
fn only_proper_descriptors_make_an_endpoint() {
    let host = Host::with_broker("0");
    let _bystanders = Bystanders::new(&host);
    let socket = host.socket();
    let body = encode_body(&AttachRequest::default());
    let attach = request("attach", &body, 2);
    let inbox = sealed_memfd("inbox", INBOX_BYTES).unwrap();
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let unsealed = memfd_create("inbox", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, INBOX_BYTES).unwrap();
    let short = sealed_memfd("inbox", INBOX_BYTES - 1).unwrap();
    let file = std::fs::File::open("/dev/zero").unwrap();
    let bad: [[BorrowedFd<'_>; 2]; 6] = [
        [unsealed.as_fd(), bell.as_fd()],
        [short.as_fd(), bell.as_fd()],
        [file.as_fd(), bell.as_fd()],
        [inbox.as_fd(), inbox.as_fd()],
        [inbox.as_fd(), file.as_fd()],
        [bell.as_fd(), inbox.as_fd()],
    ];
    for fds in bad {
        refused(&socket, &attach, &fds, Errno::INVAL);
    }
    // Tables of memory regions that no broker made.
    let size = causeway_shm::layout::MR_TABLE_BYTES as u64;
    let open_to_all = sealed_memfd("table", size).unwrap();
    let short = private_memfd("table", size / 2).unwrap();
    for table in [&open_to_all, &short] {
        let fds = [inbox.as_fd(), bell.as_fd(), table.as_fd()];
        refused(&socket, &request("attach", &body, 3), &fds, Errno::INVAL);
    }
    // PID namespaces that are none: of another kind, and a file of such a name.
    let body = encode_body(&AttachRequest {
        pid_namespace: true,
        ..AttachRequest::default()
    });
    let network = std::fs::File::open("/proc/self/ns/net").unwrap();
    let named = memfd_create("pid:[1]", MemfdFlags::CLOEXEC).unwrap();
    for shown in [network.as_fd(), named.as_fd(), file.as_fd()] {
        let fds = [inbox.as_fd(), bell.as_fd(), shown];
        refused(&socket, &request("attach", &body, 3), &fds, Errno::INVAL);
    }
    let without = [inbox.as_fd(), bell.as_fd()];
    refused(
        &socket,
        &request("attach", &body, 2),
        &without,
        Errno::BADMSG,
    );
    let good = [inbox.as_fd(), bell.as_fd()];
    assert_eq!(status_of(&socket, &attach, &good), 0);
    refused(&socket, &attach, &good, Errno::ISCONN);
}

#[test]
fn a_client_that_does_not_read_delays_nobody() {
    let host = Host::with_broker("0");
    let _bystanders = Bystanders::new(&host);
    let deaf = host.socket();
    let message = request("status", &encode_body(&StatusCursor::default()), 0);
    // Until neither side's buffer has room: then the broker has stopped reading it.
    let mut sent = 0;
    loop {
        match send(&deaf, &message, &[]) {
            Ok(()) => sent += 1,
            Err(Errno::AGAIN) => {
                let endpoint = host.endpoint(WirePref::Auto);
                drop(endpoint);
                if send(&deaf, &message, &[]) == Err(Errno::AGAIN) {
                    break;
                }
                sent += 1;
            }
            Err(errno) => panic!("{errno}"),
        }
        assert!(sent < 100_000);
    }
    // Once it reads, it gets every reply.
    let mut received = 0;
    let deadline = Instant::now() + PATIENCE;
    while received < sent {
        assert!(Instant::now() < deadline, "{received} of {sent}");
        match await_message(&deaf) {
            Received::Message(header, _, _) => assert_eq!(header.status, 0),
            other => panic!("{other:?}"),
        }
        received += 1;
    }
}

#[test]
fn too_many_descriptors_end_the_connection() {
    let host = Host::with_broker("0");
    let _bystanders = Bystanders::new(&host);
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
    let socket = host.socket();
    let null = std::fs::File::open("/dev/null").unwrap();
    let fds = [null.as_fd(); 64];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let message = request("status", &encode_body(&StatusCursor::default()), 0);
    let iov = [std::io::IoSlice::new(&message)];
    sendmsg(&socket, &iov, &mut control, SendFlags::NOSIGNAL).unwrap();
    assert!(is_closed(&socket));
    // Descriptors that the header does not announce.
    let socket = host.socket();
    send(&socket, &message, &[null.as_fd()]).unwrap();
    assert!(is_closed(&socket));
}
