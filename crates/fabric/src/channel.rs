//! The way to the broker: a socket on the host, the driver's device in a guest. To the node daemon
//! of another host: TCP, or a relay.

use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::guest;
use crate::remoting::{self, Received};
use crate::stream::Stream;

/// An open way to the broker. Messages go whole and in order; descriptors go beside them.
#[derive(Debug)]
pub enum Channel {
    /// A `SOCK_SEQPACKET` socket.
    Socket(OwnedFd),
    /// An open file of [`guest::DEVICE`].
    Device(OwnedFd),
    /// A TCP connection, by which no descriptors go.
    Stream(Box<Stream>),
    /// Another way, by which no descriptors go either.
    Other(Arc<dyn Carrier>),
}

/// What carries messages, but no descriptors. Both functions are those of [`Channel`].
pub trait Carrier: Debug + Send + Sync {
    /// Sends one encoded message.
    ///
    /// # Errors
    /// `EPIPE` if the other end is gone.
    fn send(&self, message: &[u8]) -> Result<(), Errno>;

    /// Receives one message without blocking.
    ///
    /// # Errors
    /// `EAGAIN` if none is there.
    fn receive(&self) -> Result<Received, Errno>;

    /// Readable when there may be something to receive.
    fn fd(&self) -> BorrowedFd<'_>;
}

impl Channel {
    /// Whether the broker is on the host, and this in a guest.
    pub fn is_device(&self) -> bool {
        matches!(self, Channel::Device(_))
    }

    /// Sends one encoded message without blocking.
    ///
    /// # Errors
    /// `EAGAIN` if there is no room, `EPIPE` if the broker is gone.
    pub fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        match self {
            Channel::Socket(socket) => remoting::send(socket, message, fds),
            Channel::Device(device) => guest::send(device, message, fds),
            Channel::Stream(_) | Channel::Other(_) if !fds.is_empty() => Err(Errno::OPNOTSUPP),
            Channel::Stream(stream) => stream.send(message),
            Channel::Other(carrier) => carrier.send(message),
        }
    }

    /// Receives one message without blocking.
    ///
    /// # Errors
    /// `EAGAIN` if none is there.
    pub fn receive(&self) -> Result<Received, Errno> {
        match self {
            Channel::Socket(socket) => remoting::receive(socket),
            Channel::Device(device) => guest::receive(device),
            Channel::Stream(stream) => stream.receive(),
            Channel::Other(carrier) => carrier.receive(),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Channel::Socket(fd) | Channel::Device(fd) => fd.as_fd(),
            Channel::Stream(stream) => stream.as_fd(),
            Channel::Other(carrier) => carrier.fd(),
        }
    }
}

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Channel {
        Channel::Socket(socket)
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> OwnedFd {
        match channel {
            Channel::Socket(fd) | Channel::Device(fd) => fd,
            Channel::Stream(stream) => (*stream).into(),
            // Only sockets are given away: see `launch`.
            Channel::Other(_) => unreachable!("a pipe is no descriptor"),
        }
    }
}
