//! The connected sockets of a port, each for a single peer.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use causeway_xdp::Bypass;
use socket2::Socket;

use super::{UdpPort, own_class, prepare_socket};
use crate::bypass::PortBypass;
use crate::connected::{Connected, ConnectedSocket, ConnectedSockets, Further, Room};
use crate::message::{self, Marked};
use crate::options;
use crate::received::{Received, Together};

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
    /// stay, and others may follow or be replaced ([`UdpPort::open_further`]).
    pub fn connected_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.connected.iter().map(ConnectedSocket::fd)
    }

    /// Which of them have an address of this host: to the others nothing has come.
    pub fn bound_connected(&self) -> impl Iterator<Item = usize> {
        let all = self.connected.iter().enumerate();
        all.filter_map(|(index, peer)| peer.src().map(|_| index))
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
        let opened = self.connected.open(main, (src, dst), set_up);
        self.tell_bypass(opened, (src, dst))
    }

    /// As [`UdpPort::open_connected`], by a socket that is made now: one more, up to a limit, or in
    /// place of another. `watch` is told of it before anything can come, and may refuse.
    pub fn open_further(
        &mut self,
        src: IpAddr,
        dst: SocketAddr,
        room: Room,
        watch: impl FnOnce(Further<'_>) -> io::Result<()>,
    ) -> Option<Connected> {
        let set_up = set_up(src, self.ecn);
        let main = (&*self.socket, self.port);
        let connected = &mut self.connected;
        let opened = connected.open_further(main, (src, dst), room, set_up, watch);
        self.tell_bypass(opened, (src, dst))
    }

    /// As [`UdpPort::open_connected`], by the socket of the peer that has been silent for longest
    /// while others were not: its users have none from now on, and need not close it.
    pub fn take_over(&mut self, src: IpAddr, dst: SocketAddr) -> Option<Connected> {
        let main = (&*self.socket, self.port);
        let opened = self.connected.take_over(main, (src, dst));
        self.tell_bypass(opened, (src, dst))
    }

    /// Whether a socket still leads where it did when it was opened.
    #[inline]
    #[must_use]
    pub fn is_open(&self, socket: Connected) -> bool {
        self.connected.get(socket).is_some()
    }

    /// Whether [`UdpPort::recv_connected`] may find something in those that are open, or were.
    #[must_use]
    pub fn may_have_connected(&self) -> bool {
        self.connected.may_hold_something()
    }

    /// Takes back what opened a socket. What its peer sends from now on comes to the port's own.
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
        if self.bypass.is_some() && self.send_by_bypass(socket.index(), class, contents) {
            return Ok(());
        }
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

    /// Has short datagrams to and from the peers of those sockets travel by AF_XDP, as long as
    /// `causeway-noded` lends a socket for that.
    ///
    /// # Errors
    /// Why it lends none, in words. The port is as it was.
    pub fn add_bypass(&mut self) -> Result<(), String> {
        let bypass = Bypass::borrow(self.socket.as_fd(), self.port)?;
        self.bypass = Some(Box::new(PortBypass::new(bypass)));
        Ok(())
    }

    /// What becomes readable when something has come by the bypass, if the port has been given one.
    /// It stays. What comes so may be of peers without a socket of their own, too.
    #[inline]
    pub fn bypass_fd(&self) -> Option<BorrowedFd<'_>> {
        self.bypass.as_ref().map(|bypass| bypass.fd())
    }

    /// Gives the bypass up, if there is one: all travels by the sockets from now on.
    pub fn end_bypass(&mut self, reason: &str) {
        if let Some(mut bypass) = self.bypass.take() {
            bypass.end(reason);
        }
    }

    /// The bypass has another peer under the name of a socket.
    fn tell_bypass(
        &mut self,
        opened: Option<Connected>,
        (src, dst): (IpAddr, SocketAddr),
    ) -> Option<Connected> {
        if let (Some(bypass), Some(opened)) = (&mut self.bypass, opened) {
            bypass.set_peer(opened.index(), src, dst);
        }
        opened
    }

    /// Sends a datagram to the peer of a connected socket by the bypass, if it may go that way.
    /// Apart, so that ports without one have no more to do for it than to look whether it is there.
    #[cold]
    #[inline(never)]
    pub(super) fn send_by_bypass(&self, at: usize, class: u8, contents: &[u8]) -> bool {
        let bypass = self.bypass.as_ref();
        bypass.is_some_and(|bypass| bypass.send(at, class, contents))
    }

    /// Receives what has come by the bypass. `waits`: the caller has waited, or is about to.
    /// Returns also whether the sockets for single peers are to be looked at now: where little
    /// comes to them, they are looked at seldom.
    #[cold]
    #[inline(never)]
    pub fn recv_by_bypass(
        &mut self,
        waits: bool,
        mut f: impl FnMut(SocketAddr, Option<IpAddr>, Together<'_>),
    ) -> (Received, bool) {
        let Some(bypass) = &mut self.bypass else {
            return (Received::default(), true);
        };
        let due = waits || bypass.are_sockets_due();
        let connected = &mut self.connected;
        let mut f = |from, to: Option<IpAddr>, all: Together<'_>| {
            // Its socket is in use, though little comes by that.
            if let Some(to) = to {
                connected.note_receive_of(to, from);
            }
            f(from, to, all);
        };
        (bypass.receive(waits, &mut f), due)
    }

    /// Something has come to a socket for a single peer.
    pub fn note_sockets(&mut self) {
        if let Some(bypass) = &mut self.bypass {
            bypass.sockets_are_used();
        }
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
