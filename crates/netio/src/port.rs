//! The UDP port of an endpoint: its sockets, and how datagrams are sent by them.

mod receive;
mod single;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use causeway_cancel::off;
use causeway_owned::Owned;
use quinn_udp::{Transmit, UdpSockRef, UdpSocketState};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};

use crate::bind::{bind_v4, bind_v6, no_ipv6};
use crate::bypass::PortBypass;
use crate::class::ECT;
use crate::connected::{ConnectedSocket, ConnectedSockets};
use crate::errqueue::{self, Report};
use crate::message::Marked;
use crate::options::DontFragment;
use crate::pieces::{self, Outside, Pieces};
use crate::route::{MAX_PAYLOAD, MIN_PATH_PAYLOAD};
use crate::{message, options};

/// Receive buffers offered to one system call. Each takes one datagram, or several that the kernel
/// has coalesced, so few are enough; more would only spread the data over more cache.
const RECV_BATCH: usize = 8;
/// Size of a receive buffer: the kernel coalesces to less than 64 KiB.
const RECV_SIZE: usize = 1 << 16;
/// Bytes beyond which what was received counts as part of a stream.
const STREAM: usize = 4096;
/// Bytes beyond which there may well be more. To look in vain delays what has come by half a
/// microsecond, and a message of some kilobytes is most often all there is.
const MORE: usize = 32 << 10;
/// How often a send is tried that fails: an error may be that of an earlier datagram, to another
/// destination (`ip(7)`), and each failing call takes one such error away.
const SEND_TRIES: usize = 4;
/// Entries of the error queue taken by one call, so that a flood of reports can't hold a caller;
/// the descriptor goes on polling as in error while there are more.
const ERRORS_PER_CALL: usize = 256;

/// A UDP port on all addresses of this host, of both families.
///
/// `Send`, not `Sync`: callers serialize sends and receives, as an engine's lock does.
#[derive(Debug)]
pub struct UdpPort {
    socket: Owned<Socket>,
    /// Replaced when it has drawn a wrong conclusion ([`UdpPort::send_each`]).
    state: RefCell<UdpSocketState>,
    port: u16,
    /// Whether the socket speaks IPv6 (and IPv4 by mapped addresses), or IPv4 only.
    dual: bool,
    dont_fragment: Cell<DontFragment>,
    /// Marks of congestion are heeded.
    ecn: bool,
    connected: ConnectedSockets,
    /// Whether a datagram proves how long it is, if that can be told.
    proves_length: Option<fn(&[u8]) -> bool>,
    /// The short datagrams of the peers of those, if they have a way of their own.
    bypass: Option<Box<PortBypass>>,
    buffers: Box<[u8]>,
    /// How many buffers the next receive offers.
    offer: usize,
    /// Receives in a row that filled all they offered.
    filled: u32,
}

impl UdpPort {
    /// Binds `port` (0: any free one) on all addresses, IPv6 and IPv4; on IPv4 alone where the host
    /// has no IPv6. The port is exclusive: nobody else gets it while this one lives.
    ///
    /// # Errors
    /// `AddrInUse` if the port is taken, `PermissionDenied` below 1024 for ordinary users, and
    /// whatever `socket(2)` and `bind(2)` report.
    pub fn bind(port: u16) -> io::Result<UdpPort> {
        match bind_v6((Ipv6Addr::UNSPECIFIED, port).into(), false) {
            Ok(socket) => UdpPort::set_up(socket, true),
            Err(e) if no_ipv6(&e) => UdpPort::bind_at((Ipv4Addr::UNSPECIFIED, port).into()),
            Err(e) => Err(e),
        }
    }

    /// Binds an address of this host, or all of its family (the unspecified one), and nothing of
    /// the other family. Port 0: any free one.
    ///
    /// # Errors
    /// As [`UdpPort::bind`]; `AddrNotAvailable` for an address that is not of this host.
    pub fn bind_at(address: SocketAddr) -> io::Result<UdpPort> {
        match address {
            SocketAddr::V4(_) => UdpPort::set_up(bind_v4(address)?, false),
            SocketAddr::V6(_) => UdpPort::set_up(bind_v6(address, true)?, true),
        }
    }

    /// Binds a port of one family for multicast, as others on this host may do too. It receives
    /// only what groups it has joined are sent.
    ///
    /// # Errors
    /// As [`UdpPort::bind_at`].
    pub fn bind_shared(address: SocketAddr) -> io::Result<UdpPort> {
        let v6 = address.is_ipv6();
        let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        if v6 {
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_address(true)?;
        options::only_joined_groups(&socket, v6)?;
        socket.bind(&address.into())?;
        UdpPort::set_up(socket, v6)
    }

    /// Joins a multicast group of the port's family on an interface.
    ///
    /// # Errors
    /// What `setsockopt(2)` reports: `AddrInUse` where it was joined, ENOBUFS beyond the system's
    /// limit, ENODEV for no such interface.
    pub fn join(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        let interface = InterfaceIndexOrAddress::Index(ifindex);
        match group {
            IpAddr::V4(group) => self.socket.join_multicast_v4_n(&group, &interface),
            IpAddr::V6(group) => self.socket.join_multicast_v6(&group, ifindex),
        }
    }

    /// Leaves it.
    ///
    /// # Errors
    /// What `setsockopt(2)` reports: `AddrNotAvailable` where it was not joined.
    pub fn leave(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        let interface = InterfaceIndexOrAddress::Index(ifindex);
        match group {
            IpAddr::V4(group) => self.socket.leave_multicast_v4_n(&group, &interface),
            IpAddr::V6(group) => self.socket.leave_multicast_v6(&group, ifindex),
        }
    }

    fn set_up(socket: Socket, dual: bool) -> io::Result<UdpPort> {
        let state = prepare_socket(&socket, (dual, false))?;
        let port = socket.local_addr()?.as_socket().map_or(0, |a| a.port());
        Ok(UdpPort {
            state: RefCell::new(state),
            socket: Owned::new(socket, "a UDP port"),
            port,
            dual,
            dont_fragment: Cell::new(DontFragment::ON),
            ecn: false,
            connected: ConnectedSockets::default(),
            proves_length: None,
            bypass: None,
            buffers: vec![0; RECV_BATCH * RECV_SIZE].into_boxed_slice(),
            offer: 1,
            filled: 0,
        })
    }

    /// The descriptor, for waiting. It polls as in error (`POLLERR`) while [`UdpPort::take_errors`]
    /// has something to take.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Looks whether the sockets in use are what they were: the program may have closed them.
    ///
    /// # Errors
    /// `EBADF`, of which standard error is told once.
    pub fn check(&self) -> io::Result<()> {
        self.socket.check()?;
        let mut connected = self.connected.iter().filter(|peer| peer.is_used());
        connected.try_for_each(|peer| peer.socket.check().map(drop))?;
        self.bypass.as_ref().map_or(Ok(()), |bypass| bypass.check())
    }

    /// The port number.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Has the port look for marks of congestion ([`Together::marked`]). What its sockets for
    /// single peers send is ECT then, where nothing else is said.
    ///
    /// [`Together::marked`]: crate::Together::marked
    ///
    /// # Errors
    /// What `setsockopt(2)` reports.
    pub fn with_ecn(mut self) -> io::Result<UdpPort> {
        options::receive_class(&*self.socket, self.dual, true)?;
        self.ecn = true;
        Ok(self)
    }

    /// Lets the sockets for single peers receive by a shorter call where datagrams come one at a
    /// time. It may give several as one that is too long, so only datagrams travel so of which
    /// `proves_length` says that a checksum or a seal covers the whole: who reads them is to drop
    /// what does not match. One of which it does not say so may be dropped. Marks of congestion may
    /// be heard some datagrams late.
    #[must_use]
    pub fn with_short_receives(mut self, proves_length: fn(&[u8]) -> bool) -> UdpPort {
        self.proves_length = Some(proves_length);
        self
    }

    /// Most datagrams worth passing to one [`UdpPort::send`]; 1 if the kernel can't cut them up.
    #[must_use]
    pub fn max_gso_segments(&self) -> usize {
        self.state.borrow().max_gso_segments()
    }

    /// Sends `contents` to `dst`, from `src_ip` (else as the route prefers): as one datagram, or,
    /// with `segment`, as datagrams of that many bytes each, the last one maybe shorter.
    ///
    /// They go unfragmented or not at all, unless `may_fragment`. That is for datagrams known to
    /// exceed the path's MTU: it rules out offload. Datagrams of up to [`MIN_PATH_PAYLOAD`] bytes
    /// fit every path: unless `may_fragment`, they go either way.
    ///
    /// # Errors
    /// `WouldBlock` if the socket's buffer is full; the whole is to be sent again, though some of
    /// the datagrams may have gone already. `InvalidInput` for port 0 or a segment of 0. EMSGSIZE
    /// if a datagram exceeds the interface's MTU, ENETUNREACH and the like if there is no route. A
    /// datagram dropped by the local queue (ENOBUFS) is lost like one dropped on the way: no error.
    pub fn send(
        &self,
        dst: SocketAddr,
        src_ip: Option<IpAddr>,
        contents: &[u8],
        segment: Option<usize>,
        may_fragment: bool,
    ) -> io::Result<()> {
        self.send_as(0, dst, src_ip, contents, segment, may_fragment)
    }

    /// As [`UdpPort::send`], with a traffic class: DSCP in the upper six bits, of which the network
    /// takes what it treats datagrams by (RFC 2474), and maybe [`ECT`](crate::ECT).
    ///
    /// # Errors
    /// As [`UdpPort::send`].
    pub fn send_as(
        &self,
        class: u8,
        dst: SocketAddr,
        src_ip: Option<IpAddr>,
        contents: &[u8],
        segment: Option<usize>,
        may_fragment: bool,
    ) -> io::Result<()> {
        let segment = self.prepare(dst, contents.len(), segment, may_fragment)?;
        let transmit = |contents, segment_size| Transmit {
            destination: dst,
            ecn: None,
            contents,
            segment_size,
            src_ip,
        };
        if segment == contents.len() {
            return self.send_one(class, &transmit(contents, None));
        }
        let most = self.most_at_once(segment, may_fragment);
        for batch in contents.chunks(segment * most) {
            if batch.len() <= segment {
                self.send_one(class, &transmit(batch, None))?;
                continue;
            }
            match self.send_one(class, &transmit(batch, Some(segment))) {
                Err(e) if offload_failed(&e) => {
                    let each = batch.chunks(segment).map(|c| transmit(c, None));
                    self.send_each(class, each)?;
                }
                result => result?,
            }
        }
        Ok(())
    }

    /// As [`UdpPort::send_as`], but the parts `outside` of `contents`, in order, are elsewhere in
    /// memory: the kernel takes them from there, and nothing here reads them, where it can send all
    /// in one call. Else they are copied first.
    ///
    /// # Errors
    /// As [`UdpPort::send`]. EFAULT where a part is not mapped.
    ///
    /// # Safety
    /// What is mapped of each part may be read. Others may write it meanwhile.
    pub unsafe fn send_gathered(
        &self,
        class: u8,
        dst: SocketAddr,
        src_ip: Option<IpAddr>,
        (contents, outside): (&[u8], &[Outside]),
        segment: Option<usize>,
        may_fragment: bool,
    ) -> io::Result<()> {
        let len = self.prepare(dst, contents.len(), segment, may_fragment)?;
        let whole = len == contents.len();
        if (whole || contents.len() <= len * self.most_at_once(len, may_fragment))
            && let Some(pieces) = Pieces::new(contents, outside)
        {
            let cut = u16::try_from(len).ok().filter(|_| !whole);
            // SAFETY: the contents are borrowed, and the parts are as the caller promises.
            let sent = unsafe { self.send_message(class, (dst, src_ip), pieces.as_slice(), cut) };
            if !sent.as_ref().is_err_and(offload_failed) {
                return sent;
            }
        }
        // SAFETY: the caller's promise.
        let whole = unsafe { pieces::gathered(contents, outside) }?;
        self.send_as(class, dst, src_ip, &whole, segment, may_fragment)
    }

    /// Takes what ICMP or this host has reported of datagrams sent before, and shows `f` each
    /// report. Cheap when there is nothing, but a system call: for when the descriptor polls as in
    /// error, or a peer is silent.
    ///
    /// # Errors
    /// Whatever `recvmsg(2)` reports, except that there is nothing.
    pub fn take_errors(&self, mut f: impl FnMut(&Report)) -> io::Result<()> {
        let connected = self.connected.with_errors().map(ConnectedSocket::fd);
        for fd in std::iter::once(self.socket.as_fd()).chain(connected) {
            for _ in 0..ERRORS_PER_CALL {
                match errqueue::take(fd)? {
                    None => break,
                    Some(None) => {}
                    Some(Some(report)) => f(&report),
                }
            }
        }
        Ok(())
    }

    /// Checks what is to be sent, and sets the socket up for it. Returns the length of a segment.
    fn prepare(
        &self,
        dst: SocketAddr,
        len: usize,
        segment: Option<usize>,
        may_fragment: bool,
    ) -> io::Result<usize> {
        if dst.port() == 0 || segment == Some(0) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let segment = segment.unwrap_or(usize::MAX).min(len);
        self.set_fragmentation(dst, segment, may_fragment)?;
        Ok(segment)
    }

    /// Most segments for one system call.
    fn most_at_once(&self, segment: usize, may_fragment: bool) -> usize {
        // The kernel refuses to cut into segments that would be fragmented after that.
        let offload = !may_fragment || segment <= MIN_PATH_PAYLOAD;
        let most = self.max_gso_segments().min(MAX_PAYLOAD / segment.max(1));
        if offload { most.max(1) } else { 1 }
    }

    /// One system call's worth of sending.
    fn send_one(&self, class: u8, transmit: &Transmit<'_>) -> io::Result<()> {
        let piece = libc::iovec {
            iov_base: transmit.contents.as_ptr().cast_mut().cast(),
            iov_len: transmit.contents.len(),
        };
        let cut = transmit
            .segment_size
            .and_then(|len| u16::try_from(len).ok());
        let ends = (transmit.destination, transmit.src_ip);
        if self.bypass.is_some() && cut.is_none() {
            let peer = self.connected.find_number(ends.1, ends.0);
            if peer.is_some_and(|at| self.send_by_bypass(at, class, transmit.contents)) {
                return Ok(());
            }
        }
        // SAFETY: the contents are borrowed.
        match unsafe { self.send_message(class, ends, &[piece], cut) } {
            // quinn-udp draws its conclusions from that.
            Err(e) if offload_failed(&e) => {
                let socket = UdpSockRef::from(&self.socket);
                off(|| self.state.borrow().try_send(socket, transmit))
            }
            result => result,
        }
    }

    /// One system call, as often as errors of other datagrams get in the way.
    ///
    /// # Safety
    /// Each piece names memory of this process that may be read.
    unsafe fn send_message(
        &self,
        class: u8,
        (dst, src): (SocketAddr, Option<IpAddr>),
        pieces: &[libc::iovec],
        segment: Option<u16>,
    ) -> io::Result<()> {
        let whole = self.dont_fragment.get();
        let unfragmented = if dst.is_ipv4() { whole.v4 } else { whole.v6 };
        // The others never fragment.
        let peer = self.connected.find(src, dst).filter(|_| unfragmented);
        let (fd, to, own) = match peer.map(ConnectedSocket::fd) {
            Some(fd) => (fd, None, own_class(self.ecn)),
            None => (self.socket.as_fd(), Some((dst, src)), 0),
        };
        // A connected socket is used by all that has this peer: none inherits another's class.
        let mark = (class != own).then(|| Marked {
            class,
            v6: dst.ip().to_canonical().is_ipv6(),
        });
        if let Some(bypass) = &self.bypass {
            bypass.note_sent(pieces.iter().map(|piece| piece.iov_len).sum());
        }
        let mut result = Ok(());
        for _ in 0..SEND_TRIES {
            // SAFETY: the caller's promise.
            match unsafe { message::send(fd, to, pieces, (segment, mark)) } {
                Ok(()) => return Ok(()),
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock || offload_failed(&e) => {
                    return Err(e);
                }
                Err(e) => result = Err(e),
            }
        }
        result
    }

    /// Sends datagrams singly after offload was refused. If they are refused too, offload was not
    /// the cause, and quinn-udp must not give it up for good.
    fn send_each<'a>(&self, class: u8, each: impl Iterator<Item = Transmit<'a>>) -> io::Result<()> {
        for transmit in each {
            if let Err(e) = self.send_one(class, &transmit) {
                if e.kind() != io::ErrorKind::WouldBlock {
                    self.state.replace(probe(&self.socket, self.ecn)?);
                    self.dont_fragment.set(DontFragment::ON);
                }
                return Err(e);
            }
        }
        Ok(())
    }

    /// Has the socket treat datagrams of `len` bytes as `may_fragment` says.
    fn set_fragmentation(&self, dst: SocketAddr, len: usize, may_fragment: bool) -> io::Result<()> {
        if len <= MIN_PATH_PAYLOAD && !may_fragment {
            return Ok(());
        }
        let v4 = dst.ip().to_canonical().is_ipv4();
        let mut now = self.dont_fragment.get();
        let flag = if v4 { &mut now.v4 } else { &mut now.v6 };
        if *flag != may_fragment || (!v4 && !self.dual) {
            return Ok(());
        }
        let change = if v4 {
            options::dont_fragment_v4
        } else {
            options::dont_fragment_v6
        };
        change(&self.socket, !may_fragment)?;
        *flag = !may_fragment;
        self.dont_fragment.set(now);
        Ok(())
    }
}

/// The class of what a port's connected sockets send where none is named.
#[inline]
fn own_class(ecn: bool) -> u8 {
    if ecn { ECT } else { 0 }
}

/// Sets up a socket of a port's, of IPv6 or both families, or of IPv4, which heeds marks or does
/// not.
fn prepare_socket(socket: &Socket, (v6, ecn): (bool, bool)) -> io::Result<UdpSocketState> {
    options::enlarge_buffers(socket);
    options::set(socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
    if v6 {
        options::set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
    }
    probe(socket, ecn)
}

/// Sets the socket up for quinn-udp and finds what the kernel can do.
fn probe(socket: &Socket, ecn: bool) -> io::Result<UdpSocketState> {
    let state = UdpSocketState::new(UdpSockRef::from(socket))?;
    // It asks for the time stamp of every datagram, which nothing here reads, and for its class.
    options::set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 0)?;
    options::receive_class(socket, socket.domain()? == Domain::IPV6, ecn)?;
    Ok(state)
}

/// Whether an error may mean that this kernel or network device can't cut datagrams up, or that the
/// pieces do not fit the interface.
fn offload_failed(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EIO))
}
