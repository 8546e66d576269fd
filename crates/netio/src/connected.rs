//! Connected sockets of a port, each for one peer.
//!
//! A connected socket knows its route, and names no addresses in either direction: some microsecond
//! less for each round trip. It has the port's number, and the kernel gives it what the peer sends
//! to that, in preference to the port's own socket. So receiving means to look at both.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use causeway_owned::Owned;
use socket2::{Domain, Protocol, Socket, Type};

/// Peers that have a socket of their own, of a port that has such: a look at each is a system call.
const CONNECTED_MAX: usize = 2;

/// The sockets for single peers of a port.
#[derive(Debug, Default)]
pub(crate) struct ConnectedSockets {
    list: Vec<ConnectedSocket>,
}

/// A socket for one peer.
#[derive(Debug)]
pub(crate) struct ConnectedSocket {
    pub socket: Owned<Socket>,
    dual: bool,
    /// The local address, once bound: for good.
    src: Option<IpAddr>,
    /// The peer it was connected to last.
    dst: Option<SocketAddr>,
    /// How many connections use it.
    users: u32,
}

impl ConnectedSockets {
    /// Sockets that are not bound yet: nothing comes. `dual`: for both families.
    pub fn new(dual: bool) -> io::Result<ConnectedSockets> {
        let list = (0..CONNECTED_MAX)
            .map(|_| ConnectedSocket::new(dual))
            .collect::<Result<_, _>>()?;
        Ok(ConnectedSockets { list })
    }

    pub fn iter(&self) -> impl Iterator<Item = &ConnectedSocket> {
        self.list.iter()
    }

    /// The one that leads from one address to the other.
    #[inline]
    pub fn find(&self, src: Option<IpAddr>, dst: SocketAddr) -> Option<&ConnectedSocket> {
        self.list.iter().find(|peer| peer.leads(src, dst))
    }

    /// Has one lead from an address, at the port of `main`, to another, for one more user. Returns
    /// whether there is one. `set_up` is called on a socket before anything can come.
    pub fn open(
        &mut self,
        (main, port): (&Socket, u16),
        (src, dst): (IpAddr, SocketAddr),
        set_up: impl FnOnce(&Socket) -> io::Result<()>,
    ) -> bool {
        let list = &mut self.list;
        let leads = list.iter().position(|peer| peer.leads(Some(src), dst));
        let found = leads.or_else(|| list.iter().position(|peer| peer.is_free(src)));
        let Some(peer) = found.and_then(|at| list.get_mut(at)) else {
            return false;
        };
        let there = leads.is_some() || peer.connect((main, port), (src, dst), set_up).is_ok();
        peer.users += u32::from(there);
        there
    }

    /// Takes one [`ConnectedSockets::open`] back.
    pub fn close(&mut self, src: IpAddr, dst: SocketAddr) {
        if let Some(peer) = self.list.iter_mut().find(|peer| peer.leads(Some(src), dst)) {
            peer.users -= 1;
        }
    }
}

impl ConnectedSocket {
    fn new(dual: bool) -> io::Result<ConnectedSocket> {
        let domain = if dual { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        if dual {
            socket.set_only_v6(false)?;
        }
        Ok(ConnectedSocket {
            socket: Owned::new(socket, "a UDP port"),
            dual,
            src: None,
            dst: None,
            users: 0,
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The local address, if it has one.
    pub fn src(&self) -> Option<IpAddr> {
        self.src
    }

    /// Whether somebody needs it. One that nobody does may have been left something all the same.
    pub fn is_used(&self) -> bool {
        self.users > 0
    }

    #[inline]
    fn leads(&self, src: Option<IpAddr>, dst: SocketAddr) -> bool {
        self.users > 0 && self.dst == Some(dst) && self.src == src
    }

    fn is_free(&self, src: IpAddr) -> bool {
        self.users == 0 && self.src.is_none_or(|bound| bound == src)
    }

    fn connect(
        &mut self,
        (main, port): (&Socket, u16),
        (src, dst): (IpAddr, SocketAddr),
        set_up: impl FnOnce(&Socket) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.src.is_none() {
            set_up(&self.socket)?;
            self.bind((main, port), src)?;
            self.src = Some(src);
        }
        self.dst = None;
        self.socket.connect(&self.address(dst).into())?;
        self.dst = Some(dst);
        Ok(())
    }

    /// Binds beside the port's socket, which shares its number only meanwhile: nobody else gets it.
    fn bind(&self, (main, port): (&Socket, u16), src: IpAddr) -> io::Result<()> {
        self.socket.set_reuse_port(true)?;
        main.set_reuse_port(true)?;
        let address = self.address(SocketAddr::new(src, port));
        let bound = self.socket.bind(&address.into());
        main.set_reuse_port(false)?;
        bound
    }

    /// An address as the socket's family has it.
    fn address(&self, address: SocketAddr) -> SocketAddr {
        match address.ip() {
            IpAddr::V4(v4) if self.dual => {
                SocketAddr::new(v4.to_ipv6_mapped().into(), address.port())
            }
            _ => address,
        }
    }
}
