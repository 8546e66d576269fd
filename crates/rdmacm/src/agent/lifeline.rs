//! Who is still there: a TCP connection to the agent of each process that has a connection with
//! this one. Nothing is ever sent on it; the kernel of a process that ends closes it, and so tells
//! of its death at once, and at no cost before.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, accept_with, connect, socket_with, sockopt,
};

/// Lifelines of others that are kept; further ones are closed, and those peers look in vain.
const HELD_MAX: usize = 4096;
/// Lifelines that the kernel keeps for the agent's thread to take; it cuts this to its own limit.
const BACKLOG: i32 = 4096;
/// Silence after which the kernel asks whether the peer's host is still there.
const KEEPALIVE: std::time::Duration = std::time::Duration::from_secs(60);

/// A lifeline of ours.
struct Ours {
    token: u64,
    socket: OwnedFd,
    /// Connections that it stands for.
    users: usize,
}

/// A connection's share of a lifeline: the peer, and the lifeline's token.
#[derive(Clone, Copy)]
pub(super) struct Hold(SocketAddr, u64);

/// The lifelines of this process.
pub(super) struct Lifelines {
    epoll: Arc<OwnedFd>,
    listener: OwnedFd,
    ours: HashMap<SocketAddr, Ours>,
    peers: HashMap<u64, SocketAddr>,
    /// Those that others have made, by token.
    theirs: HashMap<u64, OwnedFd>,
}

/// What an event of a lifeline means.
pub(super) enum Told {
    /// Nothing to be done.
    Nothing,
    /// The process whose agent has this address is gone.
    Gone(SocketAddr),
}

impl Lifelines {
    /// Listens at a port of the kernel's choice, for which `token` is reported.
    pub fn new(epoll: Arc<OwnedFd>, token: u64) -> io::Result<Lifelines> {
        let listener = listen(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)))
            .or_else(|_| listen(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))))?;
        epoll::add(&epoll, &listener, EventData::new_u64(token), EventFlags::IN)?;
        Ok(Lifelines {
            epoll,
            listener,
            ours: HashMap::new(),
            peers: HashMap::new(),
            theirs: HashMap::new(),
        })
    }

    /// The port, which the agent's UDP port must have too.
    pub fn port(&self) -> io::Result<u16> {
        let address = SocketAddr::try_from(rustix::net::getsockname(&self.listener)?)?;
        Ok(address.port())
    }

    /// One more connection with the process whose agent is at `peer`; `token` is for a new
    /// lifeline. `None` if there can't be one: then the queue pair alone tells of the peer's end.
    pub fn hold(&mut self, peer: SocketAddr, from: Option<IpAddr>, token: u64) -> Option<Hold> {
        if let Some(ours) = self.ours.get_mut(&peer) {
            ours.users += 1;
            return Some(Hold(peer, ours.token));
        }
        let socket = dial(peer, from).ok()?;
        let flags = EventFlags::IN | EventFlags::RDHUP;
        epoll::add(&self.epoll, &socket, EventData::new_u64(token), flags).ok()?;
        self.peers.insert(token, peer);
        let users = 1;
        self.ours.insert(
            peer,
            Ours {
                token,
                socket,
                users,
            },
        );
        Some(Hold(peer, token))
    }

    /// One connection less.
    pub fn release(&mut self, Hold(peer, token): Hold) {
        let Some(ours) = self.ours.get_mut(&peer).filter(|o| o.token == token) else {
            return;
        };
        ours.users -= 1;
        if ours.users == 0 {
            self.drop_ours(peer);
        }
    }

    fn drop_ours(&mut self, peer: SocketAddr) {
        if let Some(ours) = self.ours.remove(&peer) {
            self.peers.remove(&ours.token);
            let _ = epoll::delete(&self.epoll, &ours.socket);
        }
    }

    /// Takes the lifelines of others; `token` makes a token for each.
    pub fn accept(&mut self, mut token: impl FnMut() -> u64) {
        while let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC) {
            let token = token();
            let data = EventData::new_u64(token);
            let flags = EventFlags::IN | EventFlags::RDHUP;
            if self.theirs.len() < HELD_MAX && epoll::add(&self.epoll, &socket, data, flags).is_ok()
            {
                self.theirs.insert(token, socket);
            }
        }
    }

    /// Something happened to the lifeline of this token.
    pub fn serve(&mut self, token: u64) -> Told {
        if let Some(socket) = self.theirs.remove(&token) {
            // It ended, or somebody sends what nobody should: either way it is of no use.
            let _ = epoll::delete(&self.epoll, &socket);
            return Told::Nothing;
        }
        let Some(&peer) = self.peers.get(&token) else {
            return Told::Nothing;
        };
        let gone = self.ours.get(&peer).is_some_and(|ours| ended(&ours.socket));
        self.drop_ours(peer);
        match gone {
            true => Told::Gone(peer),
            false => Told::Nothing,
        }
    }
}

/// Whether a lifeline's other end closed it or refused it: not so if the network failed.
fn ended(socket: &OwnedFd) -> bool {
    match sockopt::socket_error(socket) {
        Ok(Ok(())) | Ok(Err(Errno::CONNREFUSED | Errno::CONNRESET)) => true,
        Ok(Err(_)) | Err(_) => false,
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

/// Listens at a port of the kernel's choice.
fn listen(at: SocketAddr) -> io::Result<OwnedFd> {
    let socket = stream_socket(at)?;
    rustix::net::bind(socket.as_fd(), &at)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Begins a connection.
fn dial(peer: SocketAddr, from: Option<IpAddr>) -> io::Result<OwnedFd> {
    let socket = stream_socket(peer)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, KEEPALIVE)?;
    if let Some(ip) = from.filter(|ip| ip.is_ipv4() == peer.is_ipv4() && peer.is_ipv4()) {
        rustix::net::bind(socket.as_fd(), &SocketAddr::new(ip, 0))?;
    }
    match connect(&socket, &peer) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}
