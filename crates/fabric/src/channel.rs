//! The way to the broker: a socket on the host, the driver's device in a guest.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::guest;
use crate::remoting::{self, Received};

/// An open way to the broker. Messages go whole and in order; descriptors go beside them.
#[derive(Debug)]
pub enum Channel {
    /// A `SOCK_SEQPACKET` socket.
    Socket(OwnedFd),
    /// An open file of [`guest::DEVICE`].
    Device(OwnedFd),
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
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let (Channel::Socket(fd) | Channel::Device(fd)) = self;
        fd.as_fd()
    }
}

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Channel {
        Channel::Socket(socket)
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> OwnedFd {
        let (Channel::Socket(fd) | Channel::Device(fd)) = channel;
        fd
    }
}
