//! Messages and descriptors over a `SOCK_SEQPACKET` socket.

use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::{Header, Malformed};
use crate::fds::closes_at_once;
use crate::limits::{MESSAGE_FDS_MAX, MESSAGE_MAX};

/// Outcome of [`receive`].
#[derive(Debug)]
pub enum Received {
    /// One well-formed message: header, body, descriptors.
    Message(Header, Vec<u8>, Vec<OwnedFd>),
    /// Something that is not a message of this protocol. Its descriptors are closed already.
    Malformed(Malformed),
    /// To [`receive_from_client`]: descriptors of which one at least is nothing that clients have
    /// to send. To close them may take as long as some file system likes, which must not hold up
    /// the caller. With the header of their message, if it is one.
    Foreign(Option<Header>, Vec<OwnedFd>),
    /// A message that lost descriptors: this process, or the system, has as many open as it may
    /// (`RLIMIT_NOFILE`, `fs.file-max`). Those that still came are closed already. Header and body.
    Incomplete(Header, Vec<u8>),
    /// The other side closed the socket.
    Closed,
}

/// Sends one encoded message without blocking; never raises SIGPIPE.
///
/// # Errors
/// `EAGAIN` if the socket's buffer is full, `EPIPE` or `ECONNRESET` if the peer is gone.
pub fn send(socket: impl AsFd, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    assert!(fds.len() <= MESSAGE_FDS_MAX);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let pushed = control.push(SendAncillaryMessage::ScmRights(fds));
        debug_assert!(
            pushed,
            "the buffer has room for MESSAGE_FDS_MAX descriptors"
        );
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match sendmsg(&socket, &[IoSlice::new(message)], &mut control, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Receives one message without blocking.
///
/// # Errors
/// `EAGAIN` if none is there.
pub fn receive(socket: impl AsFd) -> Result<Received, Errno> {
    receive_by(socket, |_| true)
}

/// As [`receive`], from one that is not trusted to send descriptors that close at once.
///
/// # Errors
/// As [`receive`].
pub fn receive_from_client(socket: impl AsFd) -> Result<Received, Errno> {
    receive_by(socket, closes_at_once)
}

fn receive_by(socket: impl AsFd, is_known: fn(&OwnedFd) -> bool) -> Result<Received, Errno> {
    thread_local! {
        /// To clear a new one for each message would take longer than to receive it.
        static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    // At the end of a thread there is none.
    let mut bytes = BYTES.try_with(RefCell::take).unwrap_or_default();
    bytes.resize(MESSAGE_MAX, 0);
    let received = receive_into(socket, &mut bytes, is_known);
    let _ = BYTES.try_with(|kept| kept.replace(bytes));
    received
}

fn receive_into(
    socket: impl AsFd,
    bytes: &mut [u8],
    is_known: fn(&OwnedFd) -> bool,
) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let outcome = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
            // Reset: the other side closed before it had read all. That is told once, and before
            // what it had sent, such as why it closed.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if !fds.iter().all(is_known) {
        let header = Header::decode(&bytes[..outcome.bytes]).ok();
        let header = header.map(|(header, _)| header);
        let header = header.filter(|header| usize::from(header.fds) == fds.len());
        return Ok(Received::Foreign(header, fds));
    }
    // A datagram of no bytes reads like the end of the stream; both end the conversation.
    if outcome.bytes == 0 {
        return Ok(Received::Closed);
    }
    if outcome.flags.contains(ReturnFlags::TRUNC) {
        return Ok(Received::Malformed(Malformed::Length));
    }
    let bytes = &bytes[..outcome.bytes];
    if outcome.flags.contains(ReturnFlags::CTRUNC) {
        return Ok(incomplete(bytes, fds.len()));
    }
    Ok(assemble(bytes, fds))
}

/// What a message is whose descriptors the kernel did not all deliver. There was room for as many
/// as a message has, so that either it had more, or this process could not take them.
fn incomplete(bytes: &[u8], came: usize) -> Received {
    match Header::decode(bytes) {
        Err(why) => Received::Malformed(why),
        Ok((header, _)) if usize::from(header.fds) <= came => {
            Received::Malformed(Malformed::Descriptors)
        }
        Ok((header, body)) => Received::Incomplete(header, body.to_vec()),
    }
}

/// The message in what was received.
pub(crate) fn assemble(bytes: &[u8], fds: Vec<OwnedFd>) -> Received {
    match Header::decode(bytes) {
        Err(why) => Received::Malformed(why),
        Ok((header, _)) if usize::from(header.fds) != fds.len() => {
            Received::Malformed(Malformed::Descriptors)
        }
        Ok((header, body)) => Received::Message(header, body.to_vec(), fds),
    }
}
