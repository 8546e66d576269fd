//! The process's side: short datagrams of one port.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use causeway_owned::Owned;
use rustix::event::epoll;
use rustix::net::{RecvFlags, SendFlags, Shutdown, connect, shutdown, sockopt};
use rustix::time::{ClockId, clock_gettime};

use crate::PAYLOAD_MAX;
use crate::frame::{self, HEADERS_MAX, Headers};
use crate::lease::{self, Macs, Message, Way};
use crate::socket::{FRAME, RECEIVES, Rings, SENDS};

/// How long the daemon may take to lend: it loads no program then.
const LEND_PATIENCE: Duration = Duration::from_secs(5);
/// How often a peer's way is asked for again, in ms. What is sent then goes by the kernel, which
/// so goes on checking that its neighbour is there.
const RESOLVE_EVERY: u64 = 1000;
/// A way that the daemon has not confirmed for so long is not taken, in ms.
const WAY_LASTS: u64 = 5000;
/// For how long after a long datagram, which went by the kernel, all go by it, in ms: two ticks of
/// the clock.
const HOLD: u64 = 8;
/// Looks that find nothing between two looks whether the daemon lives.
const HEAR_EVERY: u32 = 64;
/// Datagrams that one look takes.
const TAKE_MAX: usize = 64;
/// The two bits of a traffic class that say "congestion experienced" (RFC 3168).
const CE: u8 = 3;

/// A peer that datagrams are sent to.
#[derive(Debug)]
struct Peer {
    src: IpAddr,
    dst: SocketAddr,
    headers: Option<Headers>,
    /// When the daemon was asked and has answered last, in ms of the clock.
    asked: Option<u64>,
    answered: u64,
}

/// What is lent, as long as it is.
#[derive(Debug)]
struct Open {
    rings: Rings,
    /// Frames to send that are free.
    free: Vec<u64>,
    socket: Owned,
    lease: Owned,
}

/// A lent socket of AF_XDP, for one UDP port's short datagrams; or one that was lost, which sends
/// and receives nothing.
///
/// `Send`, not `Sync`: callers serialize, as with the port.
#[derive(Debug)]
pub struct Bypass {
    open: Option<Open>,
    /// Becomes readable when something has come or the daemon has ended. It stays when the rest is
    /// lost, so that those who wait for it need not know.
    watch: Arc<Owned>,
    port: u16,
    ifindex: u32,
    peers: Vec<Option<Peer>>,
    /// The clock at the last look for answers; how many are expected.
    heard: u64,
    unanswered: u32,
    /// When that clock shows this, datagrams may travel this way again.
    held_until: u64,
    /// Looks in a row that have found nothing.
    quiet: u32,
    sent: u64,
    received: u64,
}

/// What one look has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Datagrams shown.
    pub datagrams: usize,
    /// There may be more.
    pub more: bool,
}

impl Bypass {
    /// Asks the daemon of this network namespace for one, for the port that `udp` has on all
    /// addresses.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn borrow(udp: BorrowedFd<'_>, port: u16) -> Result<Bypass, String> {
        let lease = call(&Message::Borrow, &[udp])?;
        let answer = lease::receive(&lease, RecvFlags::empty()).map_err(unclear)?;
        let (ifindex, queue, lent) = match answer {
            Some((Message::Lend { ifindex, queue }, lent)) => (ifindex, queue, lent),
            Some((Message::Refuse(reason), _)) => return Err(reason),
            _ => return Err("causeway-noded has ended, or is of another version".to_owned()),
        };
        let Ok([socket, memory]) = <[OwnedFd; 2]>::try_from(lent) else {
            return Err("causeway-noded has lent no descriptors".to_owned());
        };
        let bypass = Bypass::open((socket, memory), lease, (port, ifindex));
        let bypass = bypass.map_err(|error| format!("what was lent is of no use: {error}"))?;
        tracing::info!(port, ifindex, queue, "short datagrams travel by AF_XDP");
        Ok(bypass)
    }

    fn open(
        (socket, memory): (OwnedFd, OwnedFd),
        lease: OwnedFd,
        (port, ifindex): (u16, u32),
    ) -> io::Result<Bypass> {
        let rings = Rings::map(socket.as_fd(), memory.as_fd())?;
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&watch, &socket, data, epoll::EventFlags::IN)?;
        // Not its answers, which wait until there is something to send.
        epoll::add(&watch, &lease, data, epoll::EventFlags::RDHUP)?;
        let first = u64::from(RECEIVES);
        let free = (first..first + u64::from(SENDS)).map(|frame| frame * FRAME as u64);
        Ok(Bypass {
            open: Some(Open {
                rings,
                free: free.collect(),
                socket: Owned::new(socket, "a socket of AF_XDP"),
                lease: Owned::new(lease, "the connection to causeway-noded"),
            }),
            watch: Arc::new(Owned::new(watch, "the watch of a socket of AF_XDP")),
            port,
            ifindex,
            peers: Vec::new(),
            heard: 0,
            unanswered: 0,
            held_until: 0,
            quiet: 0,
            sent: 0,
            received: 0,
        })
    }

    /// The descriptor, for waiting, the same as long as the bypass lives.
    #[must_use]
    pub fn watch(&self) -> Arc<Owned> {
        Arc::clone(&self.watch)
    }

    /// Whether it still carries anything.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Looks whether its descriptors are what they were: the program may have closed them.
    ///
    /// # Errors
    /// `EBADF`
    pub fn check(&self) -> io::Result<()> {
        self.watch.check()?;
        if let Some(open) = &self.open {
            open.socket.check()?;
            open.lease.check()?;
        }
        Ok(())
    }

    /// From now on peer number `at` is this one. What is sent to addresses of one link alone does
    /// not travel so: which link that is, the daemon is not told.
    pub fn set_peer(&mut self, at: usize, src: IpAddr, dst: SocketAddr) {
        if self.peers.len() <= at {
            self.peers.resize_with(at + 1, || None);
        }
        if is_of_one_link(dst.ip()) {
            self.peers[at] = None;
            return;
        }
        let same = |peer: &Peer| (peer.src, peer.dst) == (src, dst);
        if !self.peers[at].as_ref().is_some_and(same) {
            self.peers[at] = Some(Peer {
                src,
                dst,
                headers: None,
                asked: None,
                answered: 0,
            });
        }
    }

    /// So many bytes are sent by the kernel: if they are many, nothing travels this way for 8 ms.
    #[inline]
    pub fn note_sent(&mut self, len: usize) {
        if len > PAYLOAD_MAX {
            self.held_until = now() + HOLD;
        }
    }

    /// Sends a datagram to a peer. Returns false, with nothing sent, where it is to go another way:
    /// it is long or follows a long one, the peer's way is not known, or the bypass has no room.
    #[inline]
    pub fn send(&mut self, at: usize, class: u8, payload: &[u8]) -> bool {
        self.note_sent(payload.len());
        if self.open.is_none() || now() < self.held_until || !self.knows_way(at) {
            return false;
        }
        let (Some(open), Some(Some(peer))) = (&mut self.open, self.peers.get(at)) else {
            return false;
        };
        let Some(headers) = &peer.headers else {
            return false;
        };
        let queued = open.queue(headers, class, payload);
        if !queued {
            // What waits is sent before there is room.
            let _ = open.kick();
            return false;
        }
        match open.kick() {
            Ok(()) => {
                self.sent += 1;
                true
            }
            Err(error) => {
                self.lose(&format!("the interface takes nothing: {error}"));
                false
            }
        }
    }

    /// Whether a peer's way is known. Asks for it from time to time.
    fn knows_way(&mut self, at: usize) -> bool {
        let now = now();
        let Some(Some(peer)) = self.peers.get_mut(at) else {
            return false;
        };
        if peer.asked.is_none_or(|asked| now - asked >= RESOLVE_EVERY) {
            peer.asked = Some(now);
            let (src, dst) = (peer.src, peer.dst.ip());
            self.ask(Way { src, dst });
            return false;
        }
        if self.unanswered > 0 && self.heard != now {
            self.heard = now;
            self.hear();
        }
        let peer = self.peers.get(at).and_then(Option::as_ref);
        peer.is_some_and(|peer| peer.headers.is_some() && now - peer.answered < WAY_LASTS)
    }

    fn ask(&mut self, way: Way) {
        self.hear();
        let Some(open) = &self.open else {
            return;
        };
        let flags = SendFlags::DONTWAIT;
        match lease::send(open.lease.as_fd(), &Message::Resolve(way), &[], flags) {
            Ok(()) => self.unanswered += 1,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => self.lose(&ended(&error)),
        }
    }

    /// Takes what the daemon has said.
    fn hear(&mut self) {
        while let Some(open) = &self.open {
            match lease::receive(open.lease.as_fd(), RecvFlags::DONTWAIT) {
                Ok(Some((Message::Resolved(way, macs), _))) => self.resolved(way, macs),
                Ok(Some(_)) => {}
                Ok(None) => self.lose("causeway-noded has ended"),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => self.lose(&ended(&error)),
            }
        }
    }

    fn resolved(&mut self, way: Way, macs: Option<Macs>) {
        self.unanswered = self.unanswered.saturating_sub(1);
        let (port, now) = (self.port, now());
        for peer in self.peers.iter_mut().flatten() {
            if (peer.src, peer.dst.ip()) != (way.src, way.dst) {
                continue;
            }
            let src = SocketAddr::new(peer.src, port);
            let headers = |macs: Macs| Headers::new((src, macs.src), (peer.dst, macs.dst));
            peer.headers = macs.and_then(headers);
            peer.answered = now;
        }
    }

    /// Takes what has come, up to some datagrams, and shows each with where it comes from and goes
    /// to, and whether the network has marked it. `waits`: the caller has waited, or is about to.
    pub fn receive(
        &mut self,
        waits: bool,
        mut f: impl FnMut(SocketAddr, IpAddr, &[u8], bool),
    ) -> Taken {
        let Some(open) = &mut self.open else {
            return Taken::default();
        };
        let mut taken = Taken::default();
        let mut frame = [0; FRAME];
        for _ in 0..TAKE_MAX {
            let Some(bytes) = open.take(&mut frame) else {
                break;
            };
            if let Some(found) = frame::parse(bytes, self.port, self.ifindex) {
                taken.datagrams += 1;
                f(found.src, found.dst, found.payload, found.class & CE == CE);
            }
        }
        taken.more = !open.rings.receive.is_empty();
        self.received += taken.datagrams as u64;
        self.quiet = if taken.datagrams > 0 {
            0
        } else {
            self.quiet + 1
        };
        if waits || self.quiet >= HEAR_EVERY {
            self.quiet = 0;
            self.hear();
        }
        taken
    }

    /// Gives it up for good.
    #[cold]
    pub fn lose(&mut self, reason: &str) {
        let Some(open) = self.open.take() else {
            return;
        };
        // A child made by fork(2) may keep both open: the daemon hears of the end all the same.
        let _ = shutdown(open.lease.as_fd(), Shutdown::Both);
        let _ = epoll::delete(&*self.watch, open.socket.as_fd());
        let _ = epoll::delete(&*self.watch, open.lease.as_fd());
        let (port, sent, received) = (self.port, self.sent, self.received);
        tracing::warn!(
            port,
            sent,
            received,
            reason,
            "AF_XDP is lost: all travels by UDP"
        );
    }
}

impl Open {
    /// Puts a datagram into the ring, if there is room.
    #[inline]
    fn queue(&mut self, headers: &Headers, class: u8, payload: &[u8]) -> bool {
        while let Some(frame) = self.rings.completion.pop() {
            self.free.push(frame);
        }
        let Some(frame) = self.free.pop() else {
            return false;
        };
        let room = HEADERS_MAX + PAYLOAD_MAX;
        let Some(at) = self.rings.memory.range(frame as usize, room) else {
            return false;
        };
        // SAFETY: it is inside the mapping. A frame that is free is nobody else's: the kernel reads
        // what was queued and not completed, and the daemon keeps no mapping.
        let out = unsafe { slice::from_raw_parts_mut(at, room) };
        let len = headers.write(class, payload, out);
        let entry = len.map(|len| libc::xdp_desc {
            addr: frame,
            len: len as u32,
            options: 0,
        });
        let queued = entry.is_some_and(|entry| self.rings.send.push(entry));
        if !queued {
            self.free.push(frame);
        }
        queued
    }

    /// Has the kernel send what is in the ring. What it does not send now goes with the next.
    #[inline]
    fn kick(&self) -> io::Result<()> {
        // SAFETY: no data and no address are given.
        let done = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                self.socket.as_fd().as_raw_fd(),
                std::ptr::null::<u8>(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null::<libc::sockaddr>(),
                0usize,
            )
        };
        if done >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => Ok(()),
            _ => Err(error),
        }
    }

    /// Copies a frame that has come, and gives its room back to the kernel.
    #[inline]
    fn take<'a>(&mut self, out: &'a mut [u8; FRAME]) -> Option<&'a [u8]> {
        let entry = self.rings.receive.pop()?;
        let (at, len) = (entry.addr as usize, entry.len as usize);
        let out = out.get_mut(..len).unwrap_or_default();
        if let Some(from) = self.rings.memory.range(at, out.len()) {
            // SAFETY: both are of that length, and apart. The kernel writes no frame before it is
            // given back.
            unsafe { from.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
            self.rings.fill.push((at - at % FRAME) as u64);
        }
        Some(out)
    }
}

/// Milliseconds of a clock that costs little to read, and ticks every few.
fn now() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

fn is_of_one_link(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn ended(error: &io::Error) -> String {
    format!("causeway-noded has ended: {error}")
}

fn unclear(error: io::Error) -> String {
    format!("causeway-noded gives no clear answer: {error}")
}

/// Connects to the daemon and says something.
fn call(message: &Message, descriptors: &[BorrowedFd<'_>]) -> Result<OwnedFd, String> {
    let socket = lease::socket().map_err(|error| format!("no Unix socket: {error}"))?;
    let called = lease::address().and_then(|address| {
        for way in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&socket, way, Some(LEND_PATIENCE))?;
        }
        Ok(connect(&socket, &address)?)
    });
    called.map_err(|error| {
        format!("no causeway-noded lends sockets here (causeway-noded --xdp): {error}")
    })?;
    let credentials = sockopt::socket_peercred(&socket).map_err(|e| unclear(e.into()))?;
    // Anybody may take the name.
    if !credentials.uid.is_root() && credentials.uid != rustix::process::geteuid() {
        let pid = credentials.pid;
        return Err(format!(
            "process {pid} lends sockets here and is not root's"
        ));
    }
    let sent = lease::send(socket.as_fd(), message, descriptors, SendFlags::empty());
    sent.map_err(unclear)?;
    Ok(socket)
}

/// Whether the daemon of this network namespace would lend this user a socket now: which interface
/// and queue, by numbers.
///
/// # Errors
/// Why it would not, in words.
pub fn look() -> Result<(u32, u32), String> {
    let socket = call(&Message::Look, &[])?;
    match lease::receive(&socket, RecvFlags::empty()).map_err(unclear)? {
        Some((Message::Lend { ifindex, queue }, _)) => Ok((ifindex, queue)),
        Some((Message::Refuse(reason), _)) => Err(reason),
        _ => Err("causeway-noded has ended, or is of another version".to_owned()),
    }
}
