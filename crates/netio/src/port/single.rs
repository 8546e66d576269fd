//! A port's sockets for single peers.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use socket2::Socket;

use super::{UdpPort, own_class, prepare_socket};
use crate::connected::{Connected, ConnectedSocket, ConnectedSockets};
use crate::message::{self, Marked};
use crate::options;

impl UdpPort {
    /// Lets the port have sockets of their own for single peers ([`UdpPort::open_connected`]).
    ///
    /// # Errors
    /// What `socket(2)` reports.
    pub fn with_connected(mut self) -> io::Result<UdpPort> {
        self.connected = ConnectedSockets::new(self.dual)?;
        Ok(self)
    }

    /// The descriptors of those sockets, in the order of [`Connected::index`], for waiting: what
    /// comes to them is received by [`UdpPort::recv_connected`]. Those there are from the beginning
    /// stay, and others may follow ([`UdpPort::open_further`]).
    pub fn connected_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.connected.iter().map(ConnectedSocket::fd)
    }

    /// Whether more of them are in use than are best looked at one after the other: one look at an
    /// epoll descriptor that watches all costs less.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.connected.is_crowded()
    }

    /// How many times they are open.
    #[must_use]
    pub fn connected_users(&self) -> u32 {
        self.connected.users()
    }

    /// Takes the short way, a connected socket, for what is sent from `src` to `dst`, if there is
    /// one already or one is free, and returns its name. [`UdpPort::close_connected`] takes it
    /// back. What comes from there is received by [`UdpPort::recv_connected`] from now on, and
    /// maybe afterwards.
    pub fn open_connected(&mut self, src: IpAddr, dst: SocketAddr) -> Option<Connected> {
        let set_up = set_up(src, self.ecn);
        let main = (&*self.socket, self.port);
        self.connected.open(main, (src, dst), set_up)
    }

    /// As [`UdpPort::open_connected`], by a socket more, up to a limit. `watch` is told of its
    /// descriptor and its index before anything can come, and may refuse.
    pub fn open_further(
        &mut self,
        src: IpAddr,
        dst: SocketAddr,
        watch: impl FnOnce(BorrowedFd<'_>, usize) -> io::Result<()>,
    ) -> Option<Connected> {
        let set_up = set_up(src, self.ecn);
        let main = (&*self.socket, self.port);
        self.connected.open_further(main, (src, dst), set_up, watch)
    }

    /// As [`UdpPort::open_connected`], by the socket of the peer that has been silent for longest
    /// while others were not: its users have none from now on, and need not close it.
    pub fn take_over(&mut self, src: IpAddr, dst: SocketAddr) -> Option<Connected> {
        let main = (&*self.socket, self.port);
        self.connected.take_over(main, (src, dst))
    }

    /// Whether a socket still leads where it did when it was opened.
    #[inline]
    #[must_use]
    pub fn is_open(&self, socket: Connected) -> bool {
        self.connected.get(socket).is_some()
    }

    /// Takes back what opened a socket.
    pub fn close_connected(&mut self, socket: Connected) {
        self.connected.close(socket);
    }

    /// The socket with this index has polled as in error: [`UdpPort::take_errors`] is to look at
    /// it.
    pub fn note_errors(&self, index: usize) {
        self.connected.note_errors(index);
    }

    /// Sends one datagram of a class to the peer of a connected socket that is open, unfragmented
    /// or not at all. Of one class, [`ECT`] where the port heeds marks, and else 0, it is the
    /// shortest call that there is.
    ///
    /// [`ECT`]: crate::ECT
    ///
    /// # Errors
    /// `WouldBlock` if the socket's buffer is full; `NotConnected` if it is another peer's by now.
    /// Any other may be that of an earlier datagram, and this one has not gone: [`UdpPort::send`]
    /// says what is wrong.
    #[inline]
    pub fn send_connected(&self, socket: Connected, class: u8, contents: &[u8]) -> io::Result<()> {
        let Some(peer) = self.connected.get(socket) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        if class == own_class(self.ecn) {
            return message::send_datagram(peer.fd(), contents);
        }
        let piece = libc::iovec {
            iov_base: contents.as_ptr().cast_mut().cast(),
            iov_len: contents.len(),
        };
        let mark = Marked {
            class,
            v6: peer.is_v6(),
        };
        // SAFETY: the contents are borrowed.
        unsafe { message::send(peer.fd(), None, &[piece], (None, Some(mark))) }
    }
}

/// Sets up a socket for what is sent from `src`.
fn set_up(src: IpAddr, ecn: bool) -> impl FnOnce(&Socket) -> io::Result<()> {
    let v6 = src.is_ipv6();
    move |socket| {
        prepare_socket(socket, (v6, ecn))?;
        options::class(socket, v6, own_class(ecn))?;
        options::no_packet_info(socket, v6)
    }
}
