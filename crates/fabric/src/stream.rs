//! Messages of the remoting protocol over a byte stream: to another host, over TCP.
//!
//! Each message comes after its length in four bytes, little-endian. No descriptor can travel so,
//! and a message that announces one is malformed. What is not a message ends the stream, since
//! nothing says where the next one begins.
//!
//! Where the session is secured ([`crate::sealing`]), frames come first, and then each message is
//! in a record.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::limits::MESSAGE_MAX;
use crate::remoting::{HEADER_BYTES, Malformed, Received, assemble};
use crate::sealing::{Frame, Keys, MAGIC, Opening, Sealing};

/// Bytes of the length before each message.
const PREFIX: usize = 4;
/// Bytes taken from the socket at a time.
const PORTION: usize = 4096;

/// A connected socket, non-blocking, and what of a message has not gone or not all come.
#[derive(Debug)]
pub struct Stream {
    socket: OwnedFd,
    outgoing: Mutex<Outgoing>,
    incoming: Mutex<Incoming>,
}

#[derive(Debug, Default)]
struct Outgoing {
    bytes: Vec<u8>,
    /// Once the session is secured.
    sealing: Option<Sealing>,
}

#[derive(Debug, Default)]
struct Incoming {
    bytes: Vec<u8>,
    opening: Option<Opening>,
}

/// What a connection begins with.
#[derive(Debug)]
pub enum First {
    /// A message of the handshake that secures it.
    Frame(Frame),
    /// Something else, which [`Stream::receive`] takes.
    Plain,
    /// What begins as such a message, or as another, and can be neither.
    Malformed(Malformed),
    /// The other side has closed it.
    Closed,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Seals what is sent from now on, and takes nothing else than what the peer has sealed. Keys
    /// change after so many records, and sooner than a cipher's limit without a number.
    pub fn secure(&self, keys: Keys, phase_records: Option<u64>) {
        let (sealing, opening) = keys.split(phase_records);
        locked(&self.outgoing).sealing = Some(sealing);
        locked(&self.incoming).opening = Some(opening);
    }

    /// Sends one encoded message without blocking. Its end may stay here; it goes with the next
    /// send or receive.
    ///
    /// # Errors
    /// `EAGAIN` if the end of an earlier one is still here, `EPIPE` if the peer is gone, or the
    /// session is secured and is another process's.
    pub fn send(&self, message: &[u8]) -> Result<(), Errno> {
        let mut outgoing = self.room_for_one()?;
        match &mut outgoing.sealing {
            Some(sealing) => {
                let record = sealing.seal(message).ok_or(Errno::PIPE)?;
                outgoing.bytes.extend_from_slice(&record);
            }
            None => {
                let length = (message.len() as u32).to_le_bytes();
                outgoing.bytes.extend_from_slice(&length);
                outgoing.bytes.extend_from_slice(message);
            }
        }
        self.flush_into_socket(&mut outgoing.bytes)
    }

    /// Sends a message of the handshake, as [`Stream::send`].
    ///
    /// # Errors
    /// As there.
    pub fn send_frame(&self, frame: &Frame) -> Result<(), Errno> {
        let mut outgoing = self.room_for_one()?;
        outgoing.bytes.extend_from_slice(&frame.encode());
        self.flush_into_socket(&mut outgoing.bytes)
    }

    fn room_for_one(&self) -> Result<MutexGuard<'_, Outgoing>, Errno> {
        let mut outgoing = locked(&self.outgoing);
        self.flush_into_socket(&mut outgoing.bytes)?;
        match outgoing.bytes.is_empty() {
            true => Ok(outgoing),
            false => Err(Errno::AGAIN),
        }
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
        !locked(&self.outgoing).bytes.is_empty()
    }

    /// Receives one message without blocking.
    ///
    /// # Errors
    /// `EAGAIN` if none has come whole. Others: the connection was broken, by the peer or by the
    /// network, and not closed.
    pub fn receive(&self) -> Result<Received, Errno> {
        // One that is gone shows below.
        let _ = self.flush_into_socket(&mut locked(&self.outgoing).bytes);
        let mut incoming = locked(&self.incoming);
        loop {
            if let Some(received) = incoming.take() {
                return Ok(received);
            }
            let whole = incoming.whole();
            if !self.take_up_to(&mut incoming.bytes, whole)? {
                return Ok(Received::Closed);
            }
        }
    }

    /// Receives what a connection begins with, without blocking.
    ///
    /// # Errors
    /// As [`Stream::receive`].
    pub fn receive_first(&self) -> Result<First, Errno> {
        let _ = self.flush_into_socket(&mut locked(&self.outgoing).bytes);
        let mut incoming = locked(&self.incoming);
        loop {
            let bytes = &mut incoming.bytes;
            let whole = match bytes.first_chunk() {
                None => PREFIX,
                // Who waits for more of what cannot be a message would wait for nothing.
                Some(first) if *first != MAGIC => {
                    return Ok(match take_message(bytes) {
                        Some(Received::Malformed(why)) => First::Malformed(why),
                        _ => First::Plain,
                    });
                }
                Some(_) => match Frame::take(bytes) {
                    Err(why) => return Ok(First::Malformed(why)),
                    Ok(Some(frame)) => {
                        bytes.clear();
                        return Ok(First::Frame(frame));
                    }
                    Ok(None) => Frame::whole(bytes),
                },
            };
            if !self.take_up_to(bytes, whole)? {
                return Ok(First::Closed);
            }
        }
    }

    /// Takes bytes from the socket, until there are as many as `whole` at most: so what has come is
    /// never more than one message. False at the stream's end. What it takes of the stack is not to
    /// be taken where the broker is asked by a socket, by threads whose stacks are small.
    #[inline(never)]
    fn take_up_to(&self, bytes: &mut Vec<u8>, whole: usize) -> Result<bool, Errno> {
        let mut portion = [0; PORTION];
        let room = whole.saturating_sub(bytes.len()).min(PORTION);
        loop {
            match recv(&self.socket, &mut portion[..room], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Ok(false),
                Ok((came, _)) => {
                    bytes.extend_from_slice(&portion[..came]);
                    return Ok(true);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl Incoming {
    fn take(&mut self) -> Option<Received> {
        let Some(opening) = &mut self.opening else {
            return take_message(&mut self.bytes);
        };
        match opening.take(&mut self.bytes) {
            Ok(text) => text.map(|text| assemble(&text, Vec::new())),
            Err(why) => Some(Received::Malformed(why)),
        }
    }

    /// How many bytes the next message has, with what says so; no more than that while it is not
    /// known.
    fn whole(&self) -> usize {
        if self.opening.is_some() {
            return Opening::whole(&self.bytes);
        }
        match self.bytes.first_chunk() {
            None => PREFIX,
            Some(length) => PREFIX + u32::from_le_bytes(*length) as usize,
        }
    }
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
    fn a_connection_begins_with_a_frame_or_a_message_or_with_neither() {
        let frame = Frame::Begin(vec![1; 50]);
        let (ours, theirs) = pair();
        let bytes = frame.encode();
        write(&theirs, &bytes[..20]);
        assert!(matches!(ours.receive_first(), Err(Errno::AGAIN)));
        write(&theirs, &bytes[20..]);
        assert!(matches!(ours.receive_first(), Ok(First::Frame(came)) if came == frame));
        let (ours, theirs) = pair();
        write(&theirs, &framed(&message(b"body", 0)));
        assert!(matches!(ours.receive_first(), Ok(First::Plain)));
        assert!(matches!(ours.receive(), Ok(Received::Message(..))));
        for rubbish in [&(1u32 << 30).to_le_bytes()[..], b"CwSe\x09\0\0\0"] {
            let (ours, theirs) = pair();
            write(&theirs, rubbish);
            assert!(matches!(ours.receive_first(), Ok(First::Malformed(_))));
        }
        let (ours, theirs) = pair();
        drop(theirs);
        assert!(matches!(ours.receive_first(), Ok(First::Closed)));
    }

    #[test]
    fn a_peer_that_reads_nothing_holds_up_nobody() {
        let (ours, _theirs) = pair();
        let message = message(&[7; 30_000], 0);
        let sends = (0..10_000).find(|_| ours.send(&message) == Err(Errno::AGAIN));
        assert!(sends.is_some() && ours.has_outgoing());
    }
}
