//! Lifelines: a TCP connection to the agent of each process that has an established connection with
//! this one. The end of one hints that the process is gone. The kernel of a process that ends
//! closes it, and so hints at its death at once, and at no cost before. It is a hint only: the peer
//! is then asked by a datagram.
//!
//! The side that made one says first which connection it stands for, by both names. Nobody else
//! knows them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use causeway_proto::{Duration, Instant};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, accept_with, connect, recv, send,
    socket_with, sockopt,
};

use super::now;
use crate::forks::Unforked;

/// Lifelines of others of which nobody knows what they stand for. The oldest goes first.
const UNPROVED_MAX: usize = 64;
/// How long they have to say it.
const PROOF_TIME: Duration = Duration::from_secs(2);
/// Lifelines that the kernel keeps for the agent's thread to take; it cuts this to its own limit.
const BACKLOG: i32 = 4096;
/// Lifelines taken at once: others wait too.
const ACCEPTS_MAX: usize = 64;
/// How long none is taken where there is no descriptor for it.
const PAUSE: Duration = Duration::from_secs(1);
/// After this a lifeline that ended is made again, at doubling intervals up to the longest.
const AGAIN_FIRST: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(64);
/// Silence after which the kernel asks whether the peer's host is still there, how often it asks,
/// and how many answers may be missing.
const KEEPALIVE: std::time::Duration = std::time::Duration::from_secs(60);
const KEEPALIVE_INTERVAL: std::time::Duration = std::time::Duration::from_secs(30);
const KEEPALIVE_PROBES: u32 = 8;
/// Bytes by which the side that makes a lifeline says what it stands for: the other's name of a
/// connection, and its own, in network byte order.
const PROOF_LEN: usize = 16;

type Socket = Unforked<OwnedFd>;

/// What is known of a process that we have established connections with.
struct Peer {
    /// Connections.
    users: usize,
    /// The lifeline that we made.
    ours: Option<Ours>,
    /// The one that it made.
    theirs: Option<u64>,
    /// When ours is made again.
    again: Option<Instant>,
    interval: Duration,
}

struct Ours {
    token: u64,
    socket: Socket,
    /// When it was made; `None` while the peer has not taken it.
    since: Option<Instant>,
    proof: [u8; PROOF_LEN],
}

/// A lifeline that somebody else made.
struct Theirs {
    socket: Socket,
    since: Instant,
    said: [u8; PROOF_LEN],
    len: usize,
    /// The process that it stands for.
    peer: Option<SocketAddr>,
}

/// An address of ours that connections use.
struct Address {
    listener: Socket,
    token: u64,
    users: usize,
}

/// The lifelines of this process.
pub(super) struct Lifelines {
    epoll: Arc<OwnedFd>,
    /// Keeps the port: nobody else gets it, on any address. It does not listen.
    _reserved: Socket,
    port: u16,
    addresses: HashMap<IpAddr, Address>,
    listeners: HashMap<u64, IpAddr>,
    /// Until when nothing is accepted.
    paused: Option<Instant>,
    peers: HashMap<SocketAddr, Peer>,
    /// The peer whose lifeline of ours has this token.
    dialed: HashMap<u64, SocketAddr>,
    /// When lifelines are made again.
    again: BTreeSet<(Instant, SocketAddr)>,
    theirs: HashMap<u64, Theirs>,
    /// Those not proved, oldest first.
    unproved: VecDeque<u64>,
}

/// What an event of a lifeline means.
pub(super) enum Told {
    /// Nothing to be done.
    Nothing,
    /// The process whose agent has this address may be gone.
    Ended(SocketAddr),
    /// The lifeline of this token claims to stand for the connection that has these names here and
    /// there. [`Lifelines::prove`] or [`Lifelines::drop_theirs`] answers.
    Claims(u64, u64, u64),
}

/// What a lifeline of ours says first.
pub(super) fn proof(theirs: u64, ours: u64) -> [u8; PROOF_LEN] {
    let mut proof = [0; PROOF_LEN];
    proof[..8].copy_from_slice(&theirs.to_be_bytes());
    proof[8..].copy_from_slice(&ours.to_be_bytes());
    proof
}

impl Lifelines {
    /// Reserves a port of the kernel's choice.
    pub fn new(epoll: Arc<OwnedFd>) -> io::Result<Lifelines> {
        let any = |ip: IpAddr| Unforked::new(|| bound((ip, 0).into()));
        let reserved =
            any(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| any(Ipv4Addr::UNSPECIFIED.into()))?;
        let address = SocketAddr::try_from(rustix::net::getsockname(&reserved)?)?;
        Ok(Lifelines {
            epoll,
            _reserved: reserved,
            port: address.port(),
            addresses: HashMap::new(),
            listeners: HashMap::new(),
            paused: None,
            peers: HashMap::new(),
            dialed: HashMap::new(),
            again: BTreeSet::new(),
            theirs: HashMap::new(),
            unproved: VecDeque::new(),
        })
    }

    /// The port, which the agent's UDP port must have too.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// One more connection uses this address of ours, with a peer at the other: its agent may make
    /// a lifeline. `token` is for a new listener. False if there can't be one.
    pub fn listen(&mut self, at: IpAddr, peer: SocketAddr, token: u64) -> bool {
        if let Some(address) = self.addresses.get_mut(&at) {
            address.users += 1;
            return true;
        }
        let mut own = SocketAddr::new(at, self.port);
        if let (SocketAddr::V6(own), SocketAddr::V6(peer)) = (&mut own, peer) {
            // An address of one link needs to be said of which.
            own.set_scope_id(peer.scope_id());
        }
        let made = Unforked::new(|| {
            let socket = bound(own)?;
            rustix::net::listen(&socket, BACKLOG)?;
            Ok(socket)
        });
        let Ok(listener) = made else { return false };
        let data = EventData::new_u64(token);
        if epoll::add(&self.epoll, &listener, data, EventFlags::IN).is_err() {
            return false;
        }
        self.listeners.insert(token, at);
        let users = 1;
        self.addresses.insert(
            at,
            Address {
                listener,
                token,
                users,
            },
        );
        true
    }

    /// One connection less uses the address.
    pub fn unlisten(&mut self, at: IpAddr) {
        let Some(address) = self.addresses.get_mut(&at) else {
            return;
        };
        address.users -= 1;
        if address.users == 0
            && let Some(address) = self.addresses.remove(&at)
        {
            self.listeners.remove(&address.token);
            let _ = epoll::delete(&self.epoll, &address.listener);
        }
    }

    /// One more established connection with the process whose agent is at `peer`. True if
    /// [`Lifelines::dial`] is to make the lifeline.
    pub fn hold(&mut self, peer: SocketAddr) -> bool {
        let known = self.peers.entry(peer).or_insert(Peer {
            users: 0,
            ours: None,
            theirs: None,
            again: None,
            interval: AGAIN_FIRST,
        });
        known.users += 1;
        known.users == 1
    }

    /// One connection less.
    pub fn release(&mut self, at: SocketAddr) {
        let Some(peer) = self.peers.get_mut(&at) else {
            return;
        };
        peer.users -= 1;
        if peer.users > 0 {
            return;
        }
        let (theirs, again) = (peer.theirs, peer.again);
        self.drop_ours(at);
        self.peers.remove(&at);
        if let Some(again) = again {
            self.again.remove(&(again, at));
        }
        if let Some(token) = theirs {
            self.drop_theirs(token);
        }
    }

    /// Begins a lifeline to a held peer. If it can't be made it is tried again later.
    pub fn dial(
        &mut self,
        at: SocketAddr,
        from: Option<IpAddr>,
        proof: [u8; PROOF_LEN],
        token: u64,
    ) {
        let Some(peer) = self.peers.get_mut(&at).filter(|p| p.ours.is_none()) else {
            return;
        };
        let made = Unforked::new(|| dial(at, from)).and_then(|socket| {
            let flags = EventFlags::OUT | EventFlags::IN | EventFlags::RDHUP;
            epoll::add(&self.epoll, &socket, EventData::new_u64(token), flags)?;
            Ok(socket)
        });
        match made {
            Ok(socket) => {
                self.dialed.insert(token, at);
                peer.ours = Some(Ours {
                    token,
                    socket,
                    since: None,
                    proof,
                });
            }
            Err(_) => self.plan(at),
        }
    }

    /// Has the lifeline of a peer made again, later each time it fails soon.
    fn plan(&mut self, at: SocketAddr) {
        let Some(peer) = self.peers.get_mut(&at).filter(|p| p.again.is_none()) else {
            return;
        };
        let when = now() + peer.interval;
        peer.interval = (peer.interval * 2).min(AGAIN_MAX);
        peer.again = Some(when);
        self.again.insert((when, at));
    }

    fn drop_ours(&mut self, at: SocketAddr) {
        if let Some(ours) = self.peers.get_mut(&at).and_then(|peer| peer.ours.take()) {
            self.dialed.remove(&ours.token);
            let _ = epoll::delete(&self.epoll, &ours.socket);
        }
    }

    /// Ends a lifeline that somebody made.
    pub fn drop_theirs(&mut self, token: u64) {
        if let Some(theirs) = self.theirs.remove(&token) {
            self.unproved.retain(|one| *one != token);
            let _ = epoll::delete(&self.epoll, &theirs.socket);
            let peer = theirs.peer.and_then(|peer| self.peers.get_mut(&peer));
            if let Some(peer) = peer.filter(|peer| peer.theirs == Some(token)) {
                peer.theirs = None;
            }
        }
    }

    /// A lifeline is that of a held peer; one that it made before is of no more use.
    pub fn prove(&mut self, token: u64, at: SocketAddr) {
        let Some(peer) = self.peers.get_mut(&at) else {
            return self.drop_theirs(token);
        };
        if let Some(theirs) = self.theirs.get_mut(&token) {
            theirs.peer = Some(at);
            self.unproved.retain(|one| *one != token);
            if let Some(before) = peer.theirs.replace(token) {
                self.drop_theirs(before);
            }
        }
    }

    /// Something happened to the socket of this token; `fresh` makes tokens.
    pub fn serve(&mut self, token: u64, fresh: impl FnMut() -> u64) -> Told {
        if let Some(at) = self.listeners.get(&token).copied() {
            self.accept(at, fresh);
            return Told::Nothing;
        }
        if self.theirs.contains_key(&token) {
            return self.hear(token);
        }
        let Some(&at) = self.dialed.get(&token) else {
            return Told::Nothing;
        };
        let Some(peer) = self.peers.get_mut(&at) else {
            return Told::Nothing;
        };
        if peer
            .ours
            .as_mut()
            .is_some_and(|ours| ours.stands(&self.epoll))
        {
            return Told::Nothing;
        }
        let since = peer.ours.as_ref().and_then(|ours| ours.since);
        if since.is_some_and(|since| now().since(since) > AGAIN_MAX) {
            peer.interval = AGAIN_FIRST;
        }
        self.drop_ours(at);
        self.plan(at);
        Told::Ended(at)
    }

    /// Takes the lifelines of others.
    fn accept(&mut self, at: IpAddr, mut fresh: impl FnMut() -> u64) {
        for _ in 0..ACCEPTS_MAX {
            let Some(address) = self.addresses.get(&at) else {
                return;
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = Unforked::new(|| Ok(accept_with(&address.listener, flags)?));
            let socket = match socket.map_err(|error| Errno::from_io_error(&error)) {
                Ok(socket) => socket,
                Err(Some(Errno::AGAIN)) => return,
                Err(Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    return self.make_room();
                }
                // That of one which ended meanwhile.
                Err(_) => continue,
            };
            let token = fresh();
            let data = EventData::new_u64(token);
            let wanted = EventFlags::IN | EventFlags::RDHUP;
            if keep_alive(&socket).is_err()
                || epoll::add(&self.epoll, &socket, data, wanted).is_err()
            {
                continue;
            }
            self.theirs.insert(
                token,
                Theirs {
                    socket,
                    since: now(),
                    said: [0; PROOF_LEN],
                    len: 0,
                    peer: None,
                },
            );
            self.unproved.push_back(token);
            if self.unproved.len() > UNPROVED_MAX
                && let Some(oldest) = self.unproved.pop_front()
            {
                self.drop_theirs(oldest);
            }
        }
    }

    /// There is no descriptor for one more: the oldest unproved one goes, or, where all are proved,
    /// nothing is accepted for a while.
    fn make_room(&mut self) {
        if let Some(oldest) = self.unproved.pop_front() {
            return self.drop_theirs(oldest);
        }
        self.paused = Some(now() + PAUSE);
        self.watch_listeners(EventFlags::empty());
    }

    fn watch_listeners(&self, flags: EventFlags) {
        for address in self.addresses.values() {
            let data = EventData::new_u64(address.token);
            let _ = epoll::modify(&self.epoll, &address.listener, data, flags);
        }
    }

    /// Hears one of others: what it stands for, or its end.
    fn hear(&mut self, token: u64) -> Told {
        let Some(theirs) = self.theirs.get_mut(&token) else {
            return Told::Nothing;
        };
        // Proved, it has nothing more to say: a byte is as good as the end.
        let room = theirs.said.get_mut(theirs.len..).unwrap_or_default();
        let mut end = [0];
        let into = if room.is_empty() { &mut end[..] } else { room };
        match recv(&theirs.socket, into, RecvFlags::empty()) {
            Ok((len, _)) if len > 0 && theirs.len < PROOF_LEN => {
                theirs.len += len;
                if theirs.len < PROOF_LEN {
                    return Told::Nothing;
                }
                let [here, there] = theirs.names();
                Told::Claims(token, here, there)
            }
            Err(Errno::AGAIN | Errno::INTR) => Told::Nothing,
            _ => {
                let peer = theirs.peer;
                self.drop_theirs(token);
                peer.map_or(Told::Nothing, Told::Ended)
            }
        }
    }

    /// When [`Lifelines::run_timers`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let oldest = self
            .unproved
            .front()
            .and_then(|token| self.theirs.get(token));
        let unproved = oldest.map(|theirs| theirs.since + PROOF_TIME);
        let again = self.again.first().map(|(when, _)| *when);
        [unproved, again, self.paused].into_iter().flatten().min()
    }

    /// Ends lifelines that did not say what they stand for, and accepts again; returns the peers
    /// whose lifelines are to be made again.
    pub fn run_timers(&mut self) -> Vec<SocketAddr> {
        let now = now();
        if self.paused.is_some_and(|until| until <= now) {
            self.paused = None;
            self.watch_listeners(EventFlags::IN);
        }
        while let Some(&token) = self.unproved.front()
            && self
                .theirs
                .get(&token)
                .is_none_or(|theirs| theirs.since + PROOF_TIME <= now)
        {
            self.unproved.pop_front();
            self.drop_theirs(token);
        }
        let mut due = Vec::new();
        while let Some(&(when, at)) = self.again.first()
            && when <= now
        {
            self.again.pop_first();
            if let Some(peer) = self.peers.get_mut(&at) {
                peer.again = None;
                due.push(at);
            }
        }
        due
    }
}

impl Theirs {
    fn names(&self) -> [u64; 2] {
        let mut names = [0; 2];
        for (name, bytes) in names.iter_mut().zip(self.said.as_chunks().0) {
            *name = u64::from_be_bytes(*bytes);
        }
        names
    }
}

impl Ours {
    /// Whether it has not ended. Says what it stands for as soon as the peer has taken it.
    fn stands(&mut self, epoll: &OwnedFd) -> bool {
        if !matches!(sockopt::socket_error(&self.socket), Ok(Ok(()))) {
            return false;
        }
        if self.since.is_none() {
            let said = send(&self.socket, &self.proof, SendFlags::NOSIGNAL);
            let data = EventData::new_u64(self.token);
            let flags = EventFlags::IN | EventFlags::RDHUP;
            self.since = Some(now());
            return said == Ok(PROOF_LEN)
                && epoll::modify(epoll, &self.socket, data, flags).is_ok();
        }
        let mut byte = [0];
        let heard = recv(&self.socket, &mut byte[..], RecvFlags::empty());
        matches!(heard, Err(Errno::AGAIN | Errno::INTR))
    }
}

/// A socket, made by a plain system call: under rdma-core's librspreload.so the C library's
/// `socket` makes an rsocket, which would need us.
fn stream_socket(family_of: SocketAddr) -> io::Result<OwnedFd> {
    let family = match family_of {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::STREAM, flags, None)?)
}

/// A socket bound to an address. Others of this user may bind the port too, as we do for each
/// address; nobody else may.
fn bound(at: SocketAddr) -> io::Result<OwnedFd> {
    let socket = stream_socket(at)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::bind(socket.as_fd(), &at)?;
    Ok(socket)
}

fn keep_alive(socket: &impl AsFd) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)
}

/// Begins a connection.
fn dial(peer: SocketAddr, from: Option<IpAddr>) -> io::Result<OwnedFd> {
    let socket = stream_socket(peer)?;
    keep_alive(&socket)?;
    if let Some(ip) = from.filter(|ip| ip.is_ipv4() == peer.is_ipv4() && peer.is_ipv4()) {
        rustix::net::bind(socket.as_fd(), &SocketAddr::new(ip, 0))?;
    }
    match connect(&socket, &peer) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(any(test, fuzzing))]
mod checks;
#[cfg(test)]
mod tests;
