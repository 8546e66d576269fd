//! Messages of the remoting protocol over a byte stream: to another host, over TCP.
//!
//! Each message comes after its length in four bytes, little-endian. No descriptor can travel so,
//! and a message that announces one is malformed. What is not a message ends the stream, since
//! nothing says where the next one begins.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::limits::MESSAGE_MAX;
use crate::remoting::{HEADER_BYTES, Malformed, Received, assemble};

/// Bytes of the length before each message.
const PREFIX: usize = 4;
/// Bytes taken from the socket at a time.
const PORTION: usize = 4096;

/// A connected socket, non-blocking, and what of a message has not gone or not all come.
#[derive(Debug)]
pub struct Stream {
    socket: OwnedFd,
    outgoing: Mutex<Vec<u8>>,
    incoming: Mutex<Vec<u8>>,
}

impl Stream {
    /// Takes a connected socket, which must not block.
    pub fn new(socket: OwnedFd) -> Stream {
        Stream {
            socket,
            outgoing: Mutex::default(),
            incoming: Mutex::default(),
        }
    }

    /// Sends one encoded message without blocking. Its end may stay here; it goes with the next
    /// send or receive.
    ///
    /// # Errors
    /// `EAGAIN` if the end of an earlier one is still here, `EPIPE` if the peer is gone.
    pub fn send(&self, message: &[u8]) -> Result<(), Errno> {
        let mut outgoing = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        self.flush_into_socket(&mut outgoing)?;
        if !outgoing.is_empty() {
            return Err(Errno::AGAIN);
        }
        outgoing.extend_from_slice(&(message.len() as u32).to_le_bytes());
        outgoing.extend_from_slice(message);
        self.flush_into_socket(&mut outgoing)
    }

    fn flush_into_socket(&self, outgoing: &mut Vec<u8>) -> Result<(), Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while !outgoing.is_empty() {
            match send(&self.socket, outgoing, flags) {
                Ok(sent) => drop(outgoing.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Whether the end of a message is still to go.
    pub fn has_outgoing(&self) -> bool {
        let outgoing = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        !outgoing.is_empty()
    }

    /// Receives one message without blocking.
    ///
    /// # Errors
    /// `EAGAIN` if none has come whole. Others: the connection was broken, by the peer or by the
    /// network, and not closed.
    pub fn receive(&self) -> Result<Received, Errno> {
        let mut outgoing = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is gone shows below.
        let _ = self.flush_into_socket(&mut outgoing);
        drop(outgoing);
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(received) = take_message(&mut incoming) {
                return Ok(received);
            }
            let mut portion = [0; PORTION];
            let wanted = &mut portion[..room(&incoming)];
            match recv(&self.socket, wanted, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Ok(Received::Closed),
                Ok((came, _)) => incoming.extend_from_slice(&portion[..came]),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// How many bytes may be taken from the socket: those of the next message's length, then its own.
/// So what has come is never more than one message.
fn room(incoming: &[u8]) -> usize {
    let whole = match incoming.first_chunk() {
        None => PREFIX,
        Some(length) => PREFIX + u32::from_le_bytes(*length) as usize,
    };
    (whole - incoming.len()).min(PORTION)
}

/// The message that has come, if it has whole, or as soon as its length cannot be one.
pub(crate) fn take_message(incoming: &mut Vec<u8>) -> Option<Received> {
    let length = u32::from_le_bytes(*incoming.first_chunk()?) as usize;
    if !(HEADER_BYTES..=MESSAGE_MAX).contains(&length) {
        return Some(Received::Malformed(Malformed::Length));
    }
    let message = incoming.get(PREFIX..PREFIX + length)?;
    let received = assemble(message, Vec::new());
    incoming.clear();
    Some(received)
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> OwnedFd {
        stream.socket
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remoting::{Header, Kind};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (Stream, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        (Stream::new(ours), theirs)
    }

    fn message(body: &[u8], fds: u8) -> Vec<u8> {
        let header = Header {
            kind: Kind::Request,
            service: 3,
            method: 13,
            request: 1,
            status: 0,
            fds,
        };
        header.encode(body)
    }

    fn framed(message: &[u8]) -> Vec<u8> {
        [&(message.len() as u32).to_le_bytes(), message].concat()
    }

    fn write(socket: &OwnedFd, bytes: &[u8]) {
        assert_eq!(send(socket, bytes, SendFlags::NOSIGNAL), Ok(bytes.len()));
    }

    #[test]
    fn messages_come_whole_and_in_order_however_they_are_cut() {
        let (ours, theirs) = pair();
        let bodies = [vec![1; 5], Vec::new(), vec![2; 9000]];
        let sent: Vec<u8> = bodies.iter().flat_map(|b| framed(&message(b, 0))).collect();
        let mut came = Vec::new();
        for piece in sent.chunks(7) {
            write(&theirs, piece);
            match ours.receive() {
                Err(Errno::AGAIN) => {}
                Ok(Received::Message(header, body, fds)) => {
                    assert_eq!((header.method, fds.len()), (13, 0));
                    came.push(body);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(came, bodies);
        drop(theirs);
        assert!(matches!(ours.receive(), Ok(Received::Closed)));
    }

    #[test]
    fn what_is_no_message_is_called_that_before_its_end() {
        let short = framed(&[0; HEADER_BYTES - 1]);
        let long = (MESSAGE_MAX as u32 + 1).to_le_bytes().to_vec();
        let other = framed(&[b'x'; HEADER_BYTES]);
        let with_fds = framed(&message(b"", 1));
        let http = b"GET / HTTP/1.1\r\n\r\n".to_vec();
        for bytes in [short, long, other, with_fds, http] {
            let (ours, theirs) = pair();
            write(&theirs, &bytes);
            let received = ours.receive();
            assert!(matches!(received, Ok(Received::Malformed(_))), "{bytes:?}");
        }
    }

    #[test]
    fn a_peer_that_reads_nothing_holds_up_nobody() {
        let (ours, _theirs) = pair();
        let message = message(&[7; 30_000], 0);
        let sends = (0..10_000).find(|_| ours.send(&message) == Err(Errno::AGAIN));
        assert!(sends.is_some() && ours.has_outgoing());
    }
}
