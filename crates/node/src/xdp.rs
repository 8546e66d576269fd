//! Lends processes of this network namespace sockets of AF_XDP ([`causeway_xdp`]).
//!
//! Each is of one queue, and has packet memory of its own: who has it sees what was steered to it,
//! and nothing else. What is steered are the short datagrams of the port that the process has shown
//! to be its own, and which stays bound as long as the lease lasts: nobody else can get it
//! meanwhile. Everything that is made here goes with this process, however that ends.

mod lender;
mod steering;
mod udp;
mod ways;

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use causeway_xdp::lease::{self, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, accept_with, bind, listen, sockopt};

use self::lender::Lender;
use crate::limits::{SCARCITY, XDP_ASK_PATIENCE, XDP_CONNECTIONS_MAX, XDP_CONNECTIONS_PER_USER};

/// Name of the thread that takes processes, and of those that serve one each.
const THREAD: &str = "causeway-xdp";
/// Connections that wait to be accepted.
const BACKLOG: i32 = 32;
/// How often it is looked whether the process still has its port as it was shown, of which nothing
/// tells: netlink announces the end of a UDP socket, but neither that it is bound to an interface
/// nor that it is connected. Programs of BPF at the process's cgroup would see both, but that
/// cgroup is not the daemon's.
const LOOK_EVERY: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// A queue that is for processes of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Name of the interface.
    pub interface: String,
    /// The queue of it.
    pub queue: u32,
    /// The user.
    pub uid: u32,
}

impl FromStr for Offer {
    type Err = String;

    fn from_str(text: &str) -> Result<Offer, String> {
        let (place, uid) = text.rsplit_once('=').ok_or("no =UID")?;
        let (interface, queue) = place.split_once(':').unwrap_or((place, "0"));
        let number = |text: &str, what| text.parse().map_err(|e| format!("{what} {text}: {e}"));
        if interface.is_empty() {
            return Err("no interface".to_owned());
        }
        Ok(Offer {
            interface: interface.to_owned(),
            queue: number(queue, "queue")?,
            uid: number(uid, "user")?,
        })
    }
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {} of {}", self.queue, self.interface)
    }
}

/// Begins to lend, in threads of its own, if anything is offered.
///
/// # Errors
/// What keeps it from that.
pub fn begin(offers: &[Offer]) -> Result<(), String> {
    if offers.is_empty() {
        return Ok(());
    }
    let listener = match listen_for_processes() {
        Ok(listener) => listener,
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            // Anybody may take the name, and is to keep nobody from being served.
            let who = who_listens();
            tracing::error!("no socket of AF_XDP is lent: {who} has the daemon's name");
            return Ok(());
        }
        Err(error) => return Err(format!("cannot listen for processes that ask: {error}")),
    };
    let lender = Arc::new(Lender::new(offers)?);
    let thread = std::thread::Builder::new().name(THREAD.into());
    let spawned = thread.spawn(move || accept_all(&lender, &listener));
    spawned.map(drop).map_err(|error| error.to_string())
}

fn listen_for_processes() -> std::io::Result<OwnedFd> {
    let listener = lease::socket()?;
    bind(&listener, &lease::address()?)?;
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Who has the name, in words.
fn who_listens() -> String {
    let ask = || -> std::io::Result<_> {
        let socket = lease::socket()?;
        // Whoever has the name may take nobody in, and is not waited for.
        rustix::io::ioctl_fionbio(&socket, true)?;
        rustix::net::connect(&socket, &lease::address()?)?;
        Ok(sockopt::socket_peercred(&socket)?)
    };
    ask().map_or("another process".to_owned(), |process| {
        let (pid, uid) = (process.pid.as_raw_pid(), process.uid.as_raw());
        format!("process {pid} of user {uid}")
    })
}

/// How many connections each user has; `None` stands for all those who are offered nothing.
#[derive(Default)]
struct Connections(Mutex<HashMap<Option<u32>, usize>>);

impl Connections {
    /// Counts another one, if there may be one.
    fn enter(&self, uid: Option<u32>) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = counts.values().sum();
        let own = counts.get(&uid).copied().unwrap_or(0);
        if all >= XDP_CONNECTIONS_MAX || own >= XDP_CONNECTIONS_PER_USER {
            return false;
        }
        counts.insert(uid, own + 1);
        true
    }

    fn leave(&self, uid: Option<u32>) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&uid) {
            *count -= 1;
        }
        counts.retain(|_, count| *count > 0);
    }
}

fn accept_all(lender: &Arc<Lender>, listener: &OwnedFd) {
    let connections = Arc::new(Connections::default());
    loop {
        let socket = match accept_with(listener, rustix::net::SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                tracing::error!("out of descriptors or memory: who asks for AF_XDP waits");
                std::thread::sleep(SCARCITY);
                continue;
            }
            Err(error) => {
                tracing::error!(%error, "no more sockets of AF_XDP are lent");
                return;
            }
        };
        let Ok(process) = sockopt::socket_peercred(&socket) else {
            continue;
        };
        let (uid, pid) = (process.uid.as_raw(), process.pid.as_raw_pid());
        let user = Some(uid).filter(|uid| lender.offers_to(*uid));
        if !connections.enter(user) {
            continue;
        }
        let (lender, ours) = (Arc::clone(lender), Arc::clone(&connections));
        let thread = std::thread::Builder::new().name(THREAD.into());
        let spawned = thread.spawn(move || {
            serve(&lender, &socket, (uid, pid));
            ours.leave(user);
        });
        if spawned.is_err() {
            connections.leave(user);
        }
    }
}

/// Serves one process to its end.
fn serve(lender: &Lender, socket: &OwnedFd, (uid, pid): (u32, i32)) {
    let patience = Some(XDP_ASK_PATIENCE);
    if sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, patience).is_err() {
        return;
    }
    let say = |message: &Message, descriptors: &[_]| {
        lease::send(socket.as_fd(), message, descriptors, SendFlags::DONTWAIT)
    };
    match lease::receive(socket, RecvFlags::empty()) {
        Ok(Some((Message::Look, _))) => {
            let _ = say(&lender.look(uid), &[]);
        }
        Ok(Some((Message::Borrow, shown))) => match lender.lend(uid, pid, shown) {
            Ok((mut lease, lent)) => {
                let descriptors = [lent.socket.as_fd(), lent.memory.as_fd()];
                if say(&lease.message(), &descriptors).is_ok() {
                    drop(lent);
                    resolve_all(&mut lease, socket);
                }
            }
            Err(reason) => {
                tracing::info!(uid, pid, reason, "no socket of AF_XDP is lent");
                let _ = say(&Message::Refuse(reason), &[]);
            }
        },
        // Of another version, or nothing in time.
        _ => {}
    }
}

/// Answers what the process asks, until it ends, and steers what is for new addresses.
fn resolve_all(lease: &mut lender::Lease<'_>, socket: &OwnedFd) {
    loop {
        let news = lease.address_news();
        let mut fds = [socket.as_fd(), news].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut fds, Some(&LOOK_EVERY)) {
            Ok(0) => {
                lease.follow_addresses();
                continue;
            }
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return,
        }
        let [asked, changed] = fds.map(|fd| !fd.revents().is_empty());
        if changed {
            lease.follow_addresses();
        }
        if asked && !resolve_next(lease, socket) {
            return;
        }
    }
}

/// Answers one question; false if the process has ended.
fn resolve_next(lease: &mut lender::Lease<'_>, socket: &OwnedFd) -> bool {
    let Ok(Some((Message::Resolve(way), _))) = lease::receive(socket, RecvFlags::DONTWAIT) else {
        return false;
    };
    let answer = Message::Resolved(way, lease.resolve(way));
    match lease::send(socket.as_fd(), &answer, &[], SendFlags::DONTWAIT) {
        Ok(()) => true,
        // One that does not listen learns nothing.
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_understood() {
        let offer = |text: &str| text.parse::<Offer>();
        let expected = |queue| Offer {
            interface: "eth0".to_owned(),
            queue,
            uid: 1000,
        };
        assert_eq!(offer("eth0=1000"), Ok(expected(0)));
        assert_eq!(offer("eth0:3=1000"), Ok(expected(3)));
        for wrong in [
            "",
            "eth0",
            "=1000",
            "eth0=",
            "eth0=me",
            "eth0:x=1",
            "eth0:-1=1",
        ] {
            assert!(offer(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_user_gets_so_many_connections_and_no_more() {
        let connections = Connections::default();
        let entered = (0..20).filter(|_| connections.enter(Some(1))).count();
        assert_eq!(entered, XDP_CONNECTIONS_PER_USER);
        assert!(connections.enter(Some(2)));
        connections.leave(Some(1));
        assert!(connections.enter(Some(1)));
        assert!(!connections.enter(Some(1)));
        // All those who are offered nothing count as one.
        let nobodys = (0..20).filter(|_| connections.enter(None)).count();
        assert_eq!(nobodys, XDP_CONNECTIONS_PER_USER);
        let others = (3..200).filter(|uid| connections.enter(Some(*uid))).count();
        let before = 2 * XDP_CONNECTIONS_PER_USER + 1;
        assert_eq!(others, XDP_CONNECTIONS_MAX - before);
    }
}
