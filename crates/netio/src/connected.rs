//! Connected sockets of a port, each for one peer.
//!
//! A connected socket knows its route, and names no addresses in either direction: some microsecond
//! less for each round trip. It is of the peer's family: one of both families looks the route of an
//! IPv4 peer up for each datagram. It has the port's number, and the kernel gives it what the peer
//! sends to that, in preference to the port's own socket. So receiving means to look at both.
//!
//! A look at one of them is a system call, so while more than [`FEW`] are in use their owner
//! watches them through one epoll descriptor instead ([`ConnectedSockets::is_crowded`]).
//!
//! One that nobody uses is *parked*: connected to a port from which nothing comes. What its former
//! peer and strangers send goes to the port's own socket, as if it were not there. What it was sent
//! before is received all the same.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use causeway_owned::Owned;
use socket2::{Domain, Protocol, Socket, Type};

use crate::alone::Alone;

/// Sockets of each family that are there from the beginning.
const FIRST: usize = 2;
/// Sockets in use that are looked at one after the other. A look at one in vain takes the kernel
/// some 0.4 us, and a look at an epoll descriptor 0.15 us.
const FEW: usize = 2;
/// Most sockets for single peers of a port. Linux before 6.13 looks for the one that a datagram is
/// for among all of one local address, some nanoseconds for each.
const CONNECTED_MAX: usize = 64;
/// Receives of a port since a socket's last one after which its peer is not among those that the
/// port talks to now.
const UNUSED_AFTER: u64 = 1024;
/// The port that a parked socket is connected to, at its own address: that of discard (RFC 863),
/// from which nothing of Causeway's comes. A port's own number will not do: datagrams of UD may be
/// sent from a port to itself.
const PARKED_AT: u16 = 9;

/// A connected socket of a port ([`crate::UdpPort::open_connected`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    at: usize,
    /// Which of its peers it was opened for.
    turn: u64,
}

impl Connected {
    /// Which of its port's it is, from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.at
    }
}

/// A socket that is about to be one of a port's ([`crate::UdpPort::open_further`]).
#[derive(Clone, Copy, Debug)]
pub struct Further<'a> {
    /// Its descriptor.
    pub fd: BorrowedFd<'a>,
    /// Which of the port's it will be.
    pub index: usize,
    /// The one whose place it takes, which is about to be closed.
    pub replaced: Option<BorrowedFd<'a>>,
}

/// What a further socket may take the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There may be one more.
    Another,
    /// One of another local address that nobody uses.
    Unused,
    /// The same, or one whose peer has been silent for long. Its users have none from then on, and
    /// need not close it.
    Silent,
}

/// The sockets for single peers of a port.
#[derive(Debug, Default)]
pub(crate) struct ConnectedSockets {
    list: Vec<ConnectedSocket>,
    /// How many of them were there from the beginning.
    first: usize,
    /// Those that lead somewhere.
    in_use: Vec<usize>,
    /// Those that lead nowhere and may hold what came before.
    left: Vec<usize>,
    /// The same by both ends' addresses.
    by_ends: HashMap<(IpAddr, SocketAddr), usize>,
    /// Receives of the port that found something.
    receives: u64,
    /// The process that made them. A child made by fork(2) shares them, and leaves them alone.
    process: u32,
}

/// A socket for one peer.
#[derive(Debug)]
pub(crate) struct ConnectedSocket {
    pub socket: Owned<Socket>,
    v6: bool,
    /// The local address, once bound: for good.
    src: Option<IpAddr>,
    /// The peer it is connected to, unless it is parked.
    dst: Option<SocketAddr>,
    /// How many it was connected to before.
    turn: u64,
    /// How many connections use it.
    users: u32,
    /// When something was last received, in receives of the port.
    used: u64,
    /// It polled as in error.
    has_errors: Cell<bool>,
    /// Whether what it receives comes one datagram at a time.
    pub alone: Alone,
}

impl ConnectedSockets {
    /// Sockets that are not bound yet: nothing comes. `dual`: of both families, else of IPv4.
    pub fn new(dual: bool) -> io::Result<ConnectedSockets> {
        let families: &[bool] = if dual { &[false, true] } else { &[false] };
        let list: Vec<_> = families
            .iter()
            .flat_map(|v6| (0..FIRST).map(|_| ConnectedSocket::new(*v6)))
            .collect::<Result<_, _>>()?;
        Ok(ConnectedSockets {
            first: list.len(),
            list,
            process: std::process::id(),
            ..ConnectedSockets::default()
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = &ConnectedSocket> {
        self.list.iter()
    }

    /// Whether so many lead somewhere that one look at what watches them all costs less than one
    /// at each.
    pub fn is_crowded(&self) -> bool {
        self.in_use.len() > FEW
    }

    /// How many connections use one.
    pub fn users(&self) -> u32 {
        self.in_use.iter().map(|at| self.list[*at].users).sum()
    }

    /// The number of the `nth` of those to look at: those that lead somewhere, or `all`.
    #[inline]
    pub fn nth(&self, nth: usize, all: bool) -> Option<usize> {
        match all {
            true => (nth < self.list.len()).then_some(nth),
            false => self.in_use.get(nth).copied(),
        }
    }

    /// The port has received something, by one of these or by its own socket.
    #[inline]
    pub fn note_receive(&mut self, at: Option<usize>) {
        self.receives += 1;
        if let Some(peer) = at.and_then(|at| self.list.get_mut(at)) {
            peer.used = self.receives;
        }
    }

    /// The same, by a way beside the sockets, of a peer that may have one.
    pub fn note_receive_of(&mut self, src: IpAddr, dst: SocketAddr) {
        let at = self.by_ends.get(&(src, dst)).copied();
        self.note_receive(at);
    }

    /// The one that leads from one address to the other.
    #[inline(always)]
    pub fn find(&self, src: Option<IpAddr>, dst: SocketAddr) -> Option<&ConnectedSocket> {
        if !self.is_crowded() {
            let mut in_use = self.in_use.iter().map(|at| &self.list[*at]);
            return in_use.find(|peer| peer.leads(src, dst));
        }
        self.list.get(*self.by_ends.get(&(src?, dst))?)
    }

    /// Its number.
    pub fn find_number(&self, src: Option<IpAddr>, dst: SocketAddr) -> Option<usize> {
        self.list.iter().position(|peer| peer.leads(src, dst))
    }

    #[inline]
    pub fn at(&mut self, at: usize) -> Option<&mut ConnectedSocket> {
        self.list.get_mut(at)
    }

    /// One that was opened, unless it has been given to another peer since.
    #[inline]
    pub fn get(&self, Connected { at, turn }: Connected) -> Option<&ConnectedSocket> {
        self.list.get(at).filter(|peer| peer.turn == turn)
    }

    /// Has one of those there are lead from an address, at the port of `main`, to another, for one
    /// more user. Returns which, if one does already or is free. `set_up` is called on a socket
    /// before anything can come.
    pub fn open(
        &mut self,
        main: (&Socket, u16),
        (src, dst): (IpAddr, SocketAddr),
        set_up: impl FnOnce(&Socket) -> io::Result<()>,
    ) -> Option<Connected> {
        if let Some(&at) = self.by_ends.get(&(src, dst)) {
            self.list[at].users += 1;
            return Some(self.name(at));
        }
        // One that could not be parked still takes what comes from there.
        let leads = |peer: &ConnectedSocket| !peer.is_used() && peer.leads(Some(src), dst);
        let at = self.list.iter().position(leads);
        let at = at.or_else(|| self.list.iter().position(|peer| peer.is_free(src)))?;
        self.lead(at, main, (src, dst), set_up)
    }

    /// As [`ConnectedSockets::open`], by a socket that is made now. Of that `watch` is told before
    /// anything can come, and may refuse.
    pub fn open_further(
        &mut self,
        main: (&Socket, u16),
        (src, dst): (IpAddr, SocketAddr),
        room: Room,
        set_up: impl FnOnce(&Socket) -> io::Result<()>,
        watch: impl FnOnce(Further<'_>) -> io::Result<()>,
    ) -> Option<Connected> {
        // Where one that is free could not be had, another could not either.
        if self.first == 0 || self.list.iter().any(|peer| peer.is_free(src)) {
            return None;
        }
        let at = self.place(src, room)?;
        let mut further = ConnectedSocket::new(src.is_ipv6()).ok()?;
        watch(Further {
            fd: further.fd(),
            index: at,
            replaced: self.list.get(at).map(ConnectedSocket::fd),
        })
        .ok()?;
        if at < self.list.len() {
            self.release(at);
            self.left.retain(|left| *left != at);
            // Names of the former one do not become names of this one, also if it leads nowhere.
            further.turn = self.list[at].turn + 1;
            self.list[at] = further;
        } else {
            self.list.push(further);
        }
        self.lead(at, main, (src, dst), set_up)
    }

    /// Where a further socket may be put.
    fn place(&self, src: IpAddr, room: Room) -> Option<usize> {
        if room == Room::Another && self.list.len() < CONNECTED_MAX {
            return Some(self.list.len());
        }
        let silent = |peer: &ConnectedSocket| {
            room == Room::Silent && self.receives - peer.used >= UNUSED_AFTER
        };
        // What an address that is gone has left is in nobody's way but that of others.
        let others = |peer: &ConnectedSocket| peer.src.is_some_and(|bound| bound != src);
        let all = self.list.iter().enumerate().skip(self.first);
        let candidates = all.filter(|(_, peer)| others(peer) && (!peer.is_used() || silent(peer)));
        let empty = candidates.filter(|(_, peer)| peer.is_empty());
        let (at, _) = empty.min_by_key(|(_, peer)| (peer.is_used(), peer.used))?;
        Some(at)
    }

    /// As [`ConnectedSockets::open`], by that whose peer has been silent for longest, if that is
    /// long. Its former users have none any more.
    pub fn take_over(
        &mut self,
        main: (&Socket, u16),
        (src, dst): (IpAddr, SocketAddr),
    ) -> Option<Connected> {
        let of_src = |at: &&usize| self.list[**at].src == Some(src);
        let candidates = self.in_use.iter().filter(of_src);
        let at = *candidates.min_by_key(|at| self.list[**at].used)?;
        if self.receives - self.list[at].used < UNUSED_AFTER {
            return None;
        }
        self.release(at);
        self.lead(at, main, (src, dst), |_| Ok(()))
    }

    fn name(&self, at: usize) -> Connected {
        let turn = self.list[at].turn;
        Connected { at, turn }
    }

    /// Has number `at`, which is free, lead somewhere for its first user.
    fn lead(
        &mut self,
        at: usize,
        main: (&Socket, u16),
        (src, dst): (IpAddr, SocketAddr),
        set_up: impl FnOnce(&Socket) -> io::Result<()>,
    ) -> Option<Connected> {
        if self.connect(at, main, (src, dst), set_up).is_err() {
            self.park(at);
            return None;
        }
        self.left.retain(|left| *left != at);
        let receives = self.receives;
        let peer = &mut self.list[at];
        (peer.users, peer.used) = (1, receives);
        self.in_use.push(at);
        self.by_ends.insert((src, dst), at);
        Some(self.name(at))
    }

    /// Number `at` is to take nothing from now on. What it holds is received.
    fn park(&mut self, at: usize) {
        if self.process != std::process::id() {
            return;
        }
        self.list[at].park();
        if self.list[at].src.is_some() && !self.left.contains(&at) {
            self.left.push(at);
        }
    }

    /// Those that lead nowhere and may hold something; each is named once.
    pub fn take_left(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.left)
    }

    /// One of those held something, so it may hold more.
    pub fn keep_left(&mut self, at: usize) {
        self.left.push(at);
    }

    /// Whether there are any.
    #[inline]
    pub fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Whether one leads somewhere, or may hold something.
    pub fn may_hold_something(&self) -> bool {
        !self.in_use.is_empty() || self.has_left()
    }

    /// Number `at` leads nowhere any more.
    fn release(&mut self, at: usize) {
        let peer = &mut self.list[at];
        peer.users = 0;
        if let (Some(src), Some(dst)) = (peer.src, peer.dst) {
            self.by_ends.remove(&(src, dst));
        }
        self.in_use.retain(|one| *one != at);
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

    /// Of all each time: if some shared the number for longer, another process of the user could
    /// bind to it meanwhile and take what comes. Sockets that are bound ahead, so as to ask once,
    /// would take descriptors of the program that it may never need. For all of
    /// [`CONNECTED_MAX`] that makes 4,200 system calls in a port's life, 1.7 ms together.
    fn share(&self, main: &Socket, shared: bool) -> io::Result<()> {
        main.set_reuse_port(shared)?;
        let mut sockets = self.list.iter().map(|peer| &peer.socket);
        sockets.try_for_each(|socket| socket.set_reuse_port(shared))
    }

    /// Takes what opened one back. Of one that was given to another peer since nothing changes.
    pub fn close(&mut self, Connected { at, turn }: Connected) {
        let Some(peer) = self.list.get_mut(at).filter(|peer| peer.turn == turn) else {
            return;
        };
        peer.users = peer.users.saturating_sub(1);
        if peer.users == 0 {
            self.release(at);
            self.park(at);
        }
    }

    /// Number `at` has polled as in error.
    pub fn note_errors(&self, at: usize) {
        if let Some(peer) = self.list.get(at) {
            peer.has_errors.set(true);
        }
    }

    /// Those that may have errors to take: of many, those that polled so, as far as who watches
    /// them has said.
    pub fn with_errors(&self) -> impl Iterator<Item = &ConnectedSocket> {
        let crowded = self.is_crowded();
        let all = self.list.iter().enumerate();
        let with = all.filter(move |(at, peer)| {
            let asked = *at < self.first || (!crowded && peer.is_used());
            peer.has_errors.take() || asked
        });
        with.map(|(_, peer)| peer)
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
            turn: 0,
            users: 0,
            used: 0,
            has_errors: Cell::default(),
            alone: Alone::default(),
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

    /// The peer it is connected to, if it leads somewhere.
    #[inline(always)]
    pub fn dst(&self) -> Option<SocketAddr> {
        self.dst
    }

    /// Whether somebody needs it. One that nobody does may hold something all the same.
    pub fn is_used(&self) -> bool {
        self.users > 0
    }

    #[inline(always)]
    fn leads(&self, src: Option<IpAddr>, dst: SocketAddr) -> bool {
        self.dst == Some(dst) && self.src == src
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
        self.turn += 1;
        self.socket.check()?;
        self.alone.forget(self.socket.as_fd());
        self.socket.connect(&dst.into())?;
        self.dst = Some(dst);
        Ok(())
    }

    /// Leads it nowhere, if it is bound. That fails if its address is gone, and then nothing comes;
    /// should the address return, it leads where it did.
    fn park(&mut self) {
        let Some(src) = self.src else { return };
        let nowhere = SocketAddr::new(src, PARKED_AT);
        if self.socket.check().is_err() {
            return;
        }
        self.alone.forget(self.socket.as_fd());
        if self.socket.connect(&nowhere.into()).is_ok() {
            self.dst = None;
        }
    }

    /// Whether nothing waits to be received.
    fn is_empty(&self) -> bool {
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        let look = || self.socket.recv_with_flags(&mut [], flags);
        self.socket.check().is_ok()
            && look().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}
