//! What another host says to a node daemon, as the daemon takes it: a stream of bytes that comes in
//! pieces, messages in it, requests in those.

use causeway_fabric::Stream;
use causeway_fabric::remoting::{Answer, Field, Kind, Received, encode_body};
use causeway_fabric::services::handshake::{Hello, HelloReply, Proof};
use causeway_fabric::services::node::{
    DataRequest, IdentifyRequest, NodeService, OpenReply, OpenRequest, SERVICE, WindowReply,
    dispatch,
};
use causeway_fabric::services::sisci::{
    AwaitReturnRequest, ConnectInterruptRequest, ConnectSegmentReply, ConnectSegmentRequest,
    ConnectionHandle, MappedRequest, NodeRequest, RestoreConnectionRequest,
    RestoreInterruptConnectionRequest, RestoredReply, TakeCellReply, TakeCellRequest,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair,
};
use std::os::fd::OwnedFd;

/// Most bytes of a piece.
const PIECE_MAX: usize = 64;

/// Hands `data` to a stream: a byte says how long the piece is that follows it. Each request is
/// dispatched; what was decoded must encode to the bytes that came.
pub fn run(data: &[u8]) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (ours, theirs) = pair.expect("two sockets");
    let stream = Stream::new(ours);
    let mut rest = data;
    while let Some((length, after)) = rest.split_first() {
        let length = (usize::from(*length) % PIECE_MAX + 1).min(after.len());
        let (piece, after) = after.split_at(length);
        rest = after;
        if !piece.is_empty() {
            let sent = send(&theirs, piece, SendFlags::NOSIGNAL);
            assert_eq!(sent, Ok(piece.len()), "what came is taken at once");
        }
        if !take_all(&stream) {
            return;
        }
    }
    shutdown(&theirs, Shutdown::Both).expect("an end");
    assert!(!take_all(&stream), "it goes on after its end");
}

/// Takes what has come. Returns whether the stream goes on.
fn take_all(stream: &Stream) -> bool {
    loop {
        match stream.receive() {
            Ok(Received::Message(header, body, fds)) => {
                assert!(fds.is_empty(), "no descriptor comes over TCP");
                if header.kind != Kind::Request || header.service != SERVICE {
                    return false;
                }
                let mut service = Echo::default();
                if dispatch(&mut service, header.method, &body, fds).is_ok() {
                    assert_eq!(service.0.as_deref(), Some(body.as_slice()));
                }
            }
            Ok(Received::Malformed(_) | Received::Closed) => return false,
            Ok(other) => panic!("over TCP: {other:?}"),
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                return true;
            }
        }
    }
}

/// Keeps what it is asked, encoded again.
#[derive(Default)]
struct Echo(Option<Vec<u8>>);

type Fds = Vec<OwnedFd>;

impl Echo {
    fn keep<T: Default>(&mut self, request: &impl Field) -> Result<Answer<T>, Errno> {
        self.0 = Some(encode_body(request));
        Ok(T::default().into())
    }
}

impl NodeService for Echo {
    fn by_relay(&mut self, request: (), _: Fds) -> Result<Answer<()>, Errno> {
        self.keep(&request)
    }

    fn leave(&mut self, request: (), _: Fds) -> Result<Answer<()>, Errno> {
        self.keep(&request)
    }

    fn probe(&mut self, request: NodeRequest, _: Fds) -> Result<Answer<bool>, Errno> {
        self.keep(&request)
    }

    fn connect_segment(
        &mut self,
        request: ConnectSegmentRequest,
        _: Fds,
    ) -> Result<Answer<ConnectSegmentReply>, Errno> {
        self.keep(&request)
    }

    fn fetch_connection(
        &mut self,
        request: ConnectionHandle,
        _: Fds,
    ) -> Result<Answer<WindowReply>, Errno> {
        self.keep(&request)
    }

    fn disconnect_segment(
        &mut self,
        request: ConnectionHandle,
        _: Fds,
    ) -> Result<Answer<()>, Errno> {
        self.keep(&request)
    }

    fn connect_interrupt(
        &mut self,
        request: ConnectInterruptRequest,
        _: Fds,
    ) -> Result<Answer<ConnectSegmentReply>, Errno> {
        self.keep(&request)
    }

    fn disconnect_interrupt(
        &mut self,
        request: ConnectionHandle,
        _: Fds,
    ) -> Result<Answer<()>, Errno> {
        self.keep(&request)
    }

    fn take_cell(
        &mut self,
        request: TakeCellRequest,
        _: Fds,
    ) -> Result<Answer<TakeCellReply>, Errno> {
        self.keep(&request)
    }

    fn watch_connection(&mut self, request: ConnectionHandle, _: Fds) -> Result<Answer<()>, Errno> {
        self.keep(&request)
    }

    fn note_mapped(&mut self, request: MappedRequest, _: Fds) -> Result<Answer<()>, Errno> {
        self.keep(&request)
    }

    fn await_return(&mut self, request: AwaitReturnRequest, _: Fds) -> Result<Answer<bool>, Errno> {
        self.keep(&request)
    }

    fn restore_connection(
        &mut self,
        request: RestoreConnectionRequest,
        _: Fds,
    ) -> Result<Answer<RestoredReply>, Errno> {
        self.keep(&request)
    }

    fn restore_interrupt_connection(
        &mut self,
        request: RestoreInterruptConnectionRequest,
        _: Fds,
    ) -> Result<Answer<()>, Errno> {
        self.keep(&request)
    }

    fn identify(&mut self, request: IdentifyRequest, _: Fds) -> Result<Answer<()>, Errno> {
        self.keep(&request)
    }

    fn open(&mut self, request: OpenRequest, _: Fds) -> Result<Answer<OpenReply>, Errno> {
        self.keep(&request)
    }

    fn trigger_data(&mut self, request: DataRequest, _: Fds) -> Result<Answer<()>, Errno> {
        self.keep(&request)
    }

    fn hello(&mut self, request: Hello, _: Fds) -> Result<Answer<HelloReply>, Errno> {
        self.keep(&request)
    }

    fn prove(&mut self, request: Proof, _: Fds) -> Result<Answer<Proof>, Errno> {
        self.keep(&request)
    }
}
