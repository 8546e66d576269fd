//! The sockets for single peers of the first port: those that were made with it, and further ones.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use causeway_netio::Connected;
use rustix::event::epoll;
use rustix::process::{Resource, getrlimit};

use super::{Ports, event};
use event::Source;

/// The part of the descriptors that this process may have (`RLIMIT_NOFILE`) that further sockets
/// are at most: the rest is the program's.
const DESCRIPTORS_SHARE: u64 = 16;

/// Further sockets of this process.
static FURTHER: AtomicUsize = AtomicUsize::new(0);

/// How many of them there may be where so many descriptors may be open.
fn most(descriptors: Option<u64>) -> usize {
    descriptors.map_or(usize::MAX, |most| {
        usize::try_from(most / DESCRIPTORS_SHARE).unwrap_or(usize::MAX)
    })
}

/// Counts one more, unless there are too many.
fn take_descriptor() -> io::Result<()> {
    let most = most(getrlimit(Resource::Nofile).current);
    let another = |count: usize| (count < most).then_some(count + 1);
    let taken = FURTHER.fetch_update(Ordering::Relaxed, Ordering::Relaxed, another);
    taken
        .map(drop)
        .map_err(|_| io::ErrorKind::QuotaExceeded.into())
}

impl Ports {
    /// Whether the sockets of the first port are looked at by what watches them.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// Whether that watches all of them.
    #[inline]
    pub fn watches_first(&self) -> bool {
        self.watches_first
    }

    /// A socket of the first port's for what is sent from one address to another, if there is one,
    /// or one more can be made.
    pub fn open_connected(&mut self, src: IpAddr, dst: SocketAddr) -> Option<Connected> {
        let port = &mut self.slots.get_mut(self.first?)?.as_mut()?.port;
        let opened = port.open_connected(src, dst);
        let opened = opened.or_else(|| self.open_further(src, dst));
        self.note_peers();
        opened
    }

    /// The same, or else that of the peer that has been silent for longest.
    pub fn claim_connected(&mut self, src: IpAddr, dst: SocketAddr) -> Option<Connected> {
        let opened = self.open_connected(src, dst);
        opened.or_else(|| {
            self.slots
                .get_mut(self.first?)?
                .as_mut()?
                .port
                .take_over(src, dst)
        })
    }

    /// Takes it back; of any port.
    pub fn close_connected(&mut self, rank: usize, socket: Connected) {
        if let Some(Some(slot)) = self.slots.get_mut(rank) {
            slot.port.close_connected(socket);
        }
        self.note_peers();
    }

    /// Whether a socket of a port's still leads where it did.
    #[inline]
    pub fn is_open(&self, rank: usize, socket: Connected) -> bool {
        self.get(rank).is_some_and(|port| port.is_open(socket))
    }

    /// How many connections have sockets of the first port's.
    pub fn connected_users(&self) -> u32 {
        let first = self.first.and_then(|rank| self.get(rank));
        first.map_or(0, |port| port.connected_users())
    }

    fn open_further(&mut self, src: IpAddr, dst: SocketAddr) -> Option<Connected> {
        let rank = self.first?;
        self.watch_first().ok()?;
        let port = &mut self.slots.get_mut(rank)?.as_mut()?.port;
        let (epoll, descriptors, further) = (&self.watch, &self.descriptors, &mut self.further);
        port.open_further(src, dst, |fd, at| {
            take_descriptor()?;
            *further += 1;
            descriptors.add_one_of_many(fd);
            let socket = Some(at);
            event::watch(epoll, fd, Source { rank, socket })
        })
    }

    /// The first port's sockets are looked at as befits how many are in use.
    fn note_peers(&mut self) {
        let first = self.first.and_then(|rank| self.get(rank));
        let crowded = first.is_some_and(causeway_netio::UdpPort::is_crowded);
        self.crowded = crowded && self.watch_first().is_ok();
    }

    /// Has them watched, for good.
    fn watch_first(&mut self) -> io::Result<()> {
        if self.watches_first {
            return Ok(());
        }
        let rank = self.first.ok_or(io::ErrorKind::NotFound)?;
        let port = self.get(rank).ok_or(io::ErrorKind::NotFound)?;
        let mut watched = Vec::new();
        for (fd, source) in event::sources(rank, port) {
            if let Err(error) = event::watch(&self.watch, fd, source) {
                for fd in watched {
                    let _ = epoll::delete(&self.watch, fd);
                }
                return Err(error);
            }
            watched.push(fd);
        }
        self.watches_first = true;
        Ok(())
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        FURTHER.fetch_sub(self.further, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use causeway_identity::Slot;
    use causeway_netio::{Received, Together, UdpPort};
    use causeway_shm::FinalAckTable;
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::closed_fds::{Descriptors, Failure};
    use crate::port_state::News;
    use crate::ports::SlotPort;
    use crate::qps::Numbering;

    const IP: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn ports() -> Ports {
        let event = crate::shared::new_eventfd().unwrap();
        let failure = Failure::new(Arc::new(News::new(event.as_fd()).unwrap()));
        let descriptors = Arc::new(Descriptors::new(Arc::new(failure)));
        Ports::new(Numbering::new(Slot::MIN), &descriptors).unwrap()
    }

    fn with_first() -> (Ports, SocketAddr) {
        let port = UdpPort::bind(0).unwrap().with_connected().unwrap();
        let at = SocketAddr::new(IP, port.port());
        let (words, _) = FinalAckTable::create().unwrap();
        let mut ports = ports();
        ports.add(0, SlotPort::new(port, words)).unwrap();
        (ports, at)
    }

    /// What has come to the sockets that are watched: how many sockets' worth.
    fn watched(ports: &mut Ports) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut fds = [PollFd::from_borrowed_fd(ports.watch.as_fd(), PollFlags::IN)];
        assert_eq!(poll(&mut fds, None).unwrap(), 1);
        let mut found = Vec::new();
        let take = &mut |_: usize, from: SocketAddr, _: Option<IpAddr>, all: Together<'_>| {
            found.extend(all.datagrams.map(|one| (from, one.to_vec())));
        };
        let (received, _) = ports.receive_watched(take);
        assert!(received != Received::default());
        found
    }

    #[test]
    fn many_peers_are_watched_together_and_keep_their_sockets_in_another_engine() {
        let (mut ports, own) = with_first();
        let peers: Vec<_> = (0..8).map(|_| UdpPort::bind(0).unwrap()).collect();
        let at = |peer: &UdpPort| SocketAddr::new(IP, peer.port());
        let mut sockets = Vec::new();
        for (n, peer) in peers.iter().enumerate() {
            assert_eq!(ports.is_crowded(), n > 2);
            sockets.extend(ports.open_connected(IP, at(peer)));
        }
        assert_eq!((sockets.len(), ports.connected_users()), (8, 8));
        let mut other = self::ports();
        for (n, peer) in (0..).zip(&peers) {
            peer.send(own, Some(IP), &[n], None, false).unwrap();
            assert_eq!(watched(&mut ports), [(at(peer), vec![n])]);
        }
        let stranger = UdpPort::bind(0).unwrap();
        stranger.send(own, Some(IP), b"who", None, false).unwrap();
        assert_eq!(watched(&mut ports), [(at(&stranger), b"who".to_vec())]);

        other.absorb(&mut ports).unwrap();
        assert!(!ports.is_crowded() && ports.further == 0 && other.further > 0);
        for (n, peer) in (0..).zip(&peers) {
            peer.send(own, Some(IP), &[n], None, false).unwrap();
            assert_eq!(watched(&mut other), [(at(peer), vec![n])]);
            let socket = sockets[usize::from(n)];
            assert!(other.is_open(0, socket));
            other.close_connected(0, socket);
            assert!(other.get(0).is_some_and(|port| port.connected_users() < 8));
        }
    }

    #[test]
    fn few_are_looked_at_singly_again() {
        let (mut ports, _) = with_first();
        let peer = |n: u16| SocketAddr::new(IP, 9 + n);
        let open = |n| ports.open_connected(IP, peer(n)).expect("there are enough");
        let sockets: Vec<_> = (0..5).map(open).collect();
        assert!(ports.is_crowded() && ports.watches_first());
        for socket in &sockets[..3] {
            assert!(ports.is_crowded());
            ports.close_connected(0, *socket);
        }
        assert!(!ports.is_crowded());
        assert_eq!(ports.connected_users(), 2);
    }

    #[test]
    fn most_descriptors_are_the_programs() {
        assert_eq!((most(Some(256)), most(Some(1024))), (16, 64));
        assert_eq!((most(Some(0)), most(None)), (0, usize::MAX));
    }
}
