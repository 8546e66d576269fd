//! Connected sockets of a port, each for one peer.
//!
//! A connected socket knows its route, and names no addresses in either direction: some microsecond
//! less for each round trip. It is of the peer's family: one of both families looks the route of an
//! IPv4 peer up for each datagram. It has the port's number, and the kernel gives it what the peer
//! sends to that, in preference to the port's own socket. So receiving means to look at both.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use causeway_owned::Owned;
use socket2::{Domain, Protocol, Socket, Type};

/// Peers of each family that have a socket of their own, of a port that has such: a look at each is
/// a system call.
const CONNECTED_MAX: usize = 2;

/// A connected socket of a port ([`crate::UdpPort::open_connected`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected(pub(crate) usize);

impl Connected {
    /// Which of its port's it is, from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0
    }
}

/// The sockets for single peers of a port.
#[derive(Debug, Default)]
pub(crate) struct ConnectedSockets {
    list: Vec<ConnectedSocket>,
}

/// A socket for one peer.
#[derive(Debug)]
pub(crate) struct ConnectedSocket {
    pub socket: Owned<Socket>,
    v6: bool,
    /// The local address, once bound: for good.
    src: Option<IpAddr>,
    /// The peer it was connected to last.
    dst: Option<SocketAddr>,
    /// How many connections use it.
    users: u32,
}

impl ConnectedSockets {
    /// Sockets that are not bound yet: nothing comes. `dual`: of both families, else of IPv4.
    pub fn new(dual: bool) -> io::Result<ConnectedSockets> {
        let families: &[bool] = if dual { &[false, true] } else { &[false] };
        let list = families
            .iter()
            .flat_map(|v6| (0..CONNECTED_MAX).map(|_| ConnectedSocket::new(*v6)))
            .collect::<Result<_, _>>()?;
        Ok(ConnectedSockets { list })
    }

    pub fn iter(&self) -> impl Iterator<Item = &ConnectedSocket> {
        self.list.iter()
    }

    /// The one that leads from one address to the other.
    #[inline(always)]
    pub fn find(&self, src: Option<IpAddr>, dst: SocketAddr) -> Option<&ConnectedSocket> {
        self.list.iter().find(|peer| peer.leads(src, dst))
    }

    /// Its number.
    pub fn find_number(&self, src: Option<IpAddr>, dst: SocketAddr) -> Option<usize> {
        self.list.iter().position(|peer| peer.leads(src, dst))
    }

    #[inline]
    pub fn get(&self, at: usize) -> Option<&ConnectedSocket> {
        self.list.get(at)
    }

    /// Has one lead from an address, at the port of `main`, to another, for one more user. Returns
    /// which, if there is one. `set_up` is called on a socket before anything can come.
    pub fn open(
        &mut self,
        (main, port): (&Socket, u16),
        (src, dst): (IpAddr, SocketAddr),
        set_up: impl FnOnce(&Socket) -> io::Result<()>,
    ) -> Option<Connected> {
        let leads = self.position(|peer| peer.leads(Some(src), dst));
        let at = leads.or_else(|| self.position(|peer| peer.is_free(src)))?;
        if leads.is_none() {
            self.connect(at, (main, port), (src, dst), set_up).ok()?;
        }
        self.list[at].users += 1;
        Some(Connected(at))
    }

    fn position(&self, is: impl FnMut(&ConnectedSocket) -> bool) -> Option<usize> {
        self.list.iter().position(is)
    }

    /// Connects number `at`. To be bound beside the port's socket, and those that are bound there
    /// already, it shares the port's number with them, only meanwhile: nobody else gets it.
    fn connect(
        &mut self,
        at: usize,
        (main, port): (&Socket, u16),
        (src, dst): (IpAddr, SocketAddr),
        set_up: impl FnOnce(&Socket) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.list[at].src.is_none() {
            set_up(&self.list[at].socket)?;
            self.share(main, true)?;
            let bound = self.list[at].bind(SocketAddr::new(src, port));
            self.share(main, false)?;
            bound?;
        }
        self.list[at].connect(dst)
    }

    fn share(&self, main: &Socket, shared: bool) -> io::Result<()> {
        main.set_reuse_port(shared)?;
        let mut sockets = self.list.iter().map(|peer| &peer.socket);
        sockets.try_for_each(|socket| socket.set_reuse_port(shared))
    }

    /// Takes one [`ConnectedSockets::open`] back.
    pub fn close(&mut self, src: IpAddr, dst: SocketAddr) {
        if let Some(peer) = self.list.iter_mut().find(|peer| peer.leads(Some(src), dst)) {
            peer.users -= 1;
        }
    }
}

impl ConnectedSocket {
    fn new(v6: bool) -> io::Result<ConnectedSocket> {
        let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        if v6 {
            socket.set_only_v6(true)?;
        }
        Ok(ConnectedSocket {
            socket: Owned::new(socket, "a UDP port"),
            v6,
            src: None,
            dst: None,
            users: 0,
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether it is of IPv6.
    pub fn is_v6(&self) -> bool {
        self.v6
    }

    /// The local address, if it has one.
    pub fn src(&self) -> Option<IpAddr> {
        self.src
    }

    /// Whether somebody needs it. One that nobody does may have been left something all the same.
    pub fn is_used(&self) -> bool {
        self.users > 0
    }

    #[inline(always)]
    fn leads(&self, src: Option<IpAddr>, dst: SocketAddr) -> bool {
        self.users > 0 && self.dst == Some(dst) && self.src == src
    }

    fn is_free(&self, src: IpAddr) -> bool {
        self.users == 0 && self.v6 == src.is_ipv6() && self.src.is_none_or(|bound| bound == src)
    }

    fn bind(&mut self, src: SocketAddr) -> io::Result<()> {
        self.socket.bind(&src.into())?;
        self.src = Some(src.ip());
        Ok(())
    }

    fn connect(&mut self, dst: SocketAddr) -> io::Result<()> {
        self.dst = None;
        self.socket.connect(&dst.into())?;
        self.dst = Some(dst);
        Ok(())
    }
}
