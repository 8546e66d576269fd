//! The sockets for single peers of the first port: those that were made with it, and further ones.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

use causeway_netio::{Connected, Room, UdpPort};
use rustix::event::epoll;
use rustix::process::{Resource, getrlimit};

use super::{Ports, event};
use crate::sleepers::PortSource;
use event::Source;

/// The part of the descriptors that this process may have (`RLIMIT_NOFILE`) that further sockets
/// are at most: the rest is the program's.
const DESCRIPTORS_SHARE: u64 = 16;

/// Further sockets of a process: its number, and how many ([`Count`]). A child made by fork(2)
/// begins with none.
static FURTHER: AtomicU64 = AtomicU64::new(0);

/// How many a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count {
    process: u32,
    further: u32,
}

impl Count {
    fn of(word: u64) -> Count {
        Count {
            process: (word >> 32) as u32,
            further: word as u32,
        }
    }

    fn word(self) -> u64 {
        u64::from(self.process) << 32 | u64::from(self.further)
    }

    /// What it is for a process: another's is not its own.
    fn seen_by(self, process: u32) -> Count {
        match self.process == process {
            true => self,
            false => Count {
                process,
                further: 0,
            },
        }
    }

    /// One more, unless there are as many as there may be.
    fn one_more(self, most: u64) -> Option<Count> {
        let further = self.further.checked_add(1)?;
        (u64::from(further) <= most).then_some(Count { further, ..self })
    }

    fn fewer(self, by: u32) -> Count {
        let further = self.further.saturating_sub(by);
        Count { further, ..self }
    }
}

/// How many of them there may be where so many descriptors may be open.
fn most(descriptors: Option<u64>) -> u64 {
    descriptors.map_or(u64::MAX, |most| most / DESCRIPTORS_SHARE)
}

/// Changes the count, if it may be.
fn count(change: impl Fn(Count) -> Option<Count>) -> bool {
    let process = std::process::id();
    let next = |word| change(Count::of(word).seen_by(process)).map(Count::word);
    let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
    FURTHER.fetch_update(set, fetch, next).is_ok()
}

/// Counts one more, unless there are too many.
fn take_descriptor() -> bool {
    let most = most(getrlimit(Resource::Nofile).current);
    count(|now| now.one_more(most))
}

/// There are so many fewer.
fn give_descriptors(further: u32) {
    count(|now| Some(now.fewer(further)));
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
    /// or one can be made.
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
        let opened = opened.or_else(|| {
            let port = &mut self.slots.get_mut(self.first?)?.as_mut()?.port;
            port.take_over(src, dst)
        });
        // The peers of another address of this host may all be silent, since it is gone.
        let opened = opened.or_else(|| self.open_in_room(src, dst, Room::Silent));
        self.note_peers();
        opened
    }

    /// Whether a look at the sockets for single peers of the first port may find something.
    pub fn may_have_connected(&self) -> bool {
        let first = self.first.and_then(|rank| self.get(rank));
        first.is_some_and(UdpPort::may_have_connected)
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
        let before = self.further;
        if take_descriptor() {
            let opened = self.open_in_room(src, dst, Room::Another);
            // It may have been replaced, or not made.
            if self.further == before {
                give_descriptors(1);
            }
            return opened;
        }
        self.open_in_room(src, dst, Room::Unused)
    }

    /// By a further socket, which has been counted already if it is one more.
    fn open_in_room(&mut self, src: IpAddr, dst: SocketAddr, room: Room) -> Option<Connected> {
        let rank = self.first?;
        self.watch_first().ok()?;
        let port = &mut self.slots.get_mut(rank)?.as_mut()?.port;
        let (epoll, descriptors, further) = (&self.watch, &self.descriptors, &mut self.further);
        port.open_further(src, dst, room, |made| {
            let socket = Some(made.index);
            event::watch(epoll, made.fd, Source { rank, socket })?;
            match made.replaced {
                Some(former) => {
                    // A child made by fork(2) may keep it open.
                    let _ = epoll::delete(epoll, former);
                    descriptors.forget_one_of_many(former);
                }
                None => *further += 1,
            }
            descriptors.add_one_of_many(made.fd);
            Ok(())
        })
    }

    /// The first port's sockets are looked at as befits how many are in use.
    fn note_peers(&mut self) {
        let first = self.first.and_then(|rank| self.get(rank));
        for index in first.into_iter().flat_map(UdpPort::bound_connected) {
            self.enliven(PortSource::Single(index));
        }
        let crowded = first.is_some_and(UdpPort::is_crowded);
        self.crowded = crowded && self.watch_first().is_ok();
    }

    /// Has them watched, for good.
    fn watch_first(&mut self) -> io::Result<()> {
        if self.watches_first {
            return Ok(());
        }
        let rank = self.first.ok_or(io::ErrorKind::NotFound)?;
        let port = self.get(rank).ok_or(io::ErrorKind::NotFound)?;
        event::watch_all(&self.watch, event::sources(rank, port))?;
        self.watches_first = true;
        self.enliven(PortSource::Watch);
        Ok(())
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        give_descriptors(self.further);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use causeway_identity::Slot;
    use causeway_netio::{Received, Together};
    use causeway_shm::{Doorbell, FinalAckTable};
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::closed_fds::{Descriptors, Failure};
    use crate::port_state::News;
    use crate::ports::SlotPort;
    use crate::qps::Numbering;
    use crate::sleepers::Sleepers;

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

    /// What has come to the sockets that are looked at one after the other.
    fn alone(ports: &mut Ports) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut found = Vec::new();
        let (_, port) = ports.first().unwrap();
        let take = |from: SocketAddr, _: Option<IpAddr>, all: Together<'_>| {
            found.extend(all.datagrams.map(|one| (from, one.to_vec())));
        };
        port.recv_connected(false, take).unwrap();
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
    fn a_socket_that_gets_a_peer_wakes_who_sleeps() {
        let (mut ports, _) = with_first();
        let sleepers = Arc::new(Sleepers::new(
            Doorbell::create().unwrap(),
            &ports.descriptors,
        ));
        ports.set_sleepers(&sleepers);
        let live = |ports: &Ports| {
            let live = ports.sources().map(|(source, _)| source);
            live.filter(|source| sleepers.is_live(*source))
                .collect::<Vec<_>>()
        };
        assert_eq!(live(&ports), [PortSource::Own]);
        sleepers.add();
        let socket = ports.open_connected(IP, SocketAddr::new(IP, 9)).unwrap();
        let single = PortSource::Single(socket.index());
        assert_eq!(live(&ports), [PortSource::Own, single]);
        assert!(sleepers.doorbell.drain().unwrap());
        ports.close_connected(0, socket);
        assert_eq!(
            live(&ports),
            [PortSource::Own, single],
            "what came before is there"
        );
        let mut next = 10..;
        while !ports.watches_first() {
            let peer = SocketAddr::new(IP, next.next().unwrap());
            ports.open_connected(IP, peer).unwrap();
        }
        assert!(live(&ports).contains(&PortSource::Watch));
        assert!(sleepers.doorbell.drain().unwrap());
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
    fn an_address_that_is_gone_leaves_its_sockets_to_another() {
        let (mut ports, own) = with_first();
        let [gone, ip] = [2, 1].map(|n| IpAddr::from([127, 0, 0, n]));
        let peers: Vec<_> = (0..64).map(|_| UdpPort::bind(0).unwrap()).collect();
        let at = |ip, peer: &UdpPort| SocketAddr::new(ip, peer.port());
        let open = |peer| ports.open_connected(gone, at(gone, peer));
        let sockets: Vec<_> = peers.iter().map_while(open).collect();
        let (further, known) = (ports.further, ports.descriptors.count_of_many());
        assert!(further > 0 && known == further as usize);
        sockets
            .iter()
            .for_each(|socket| ports.close_connected(0, *socket));
        for (n, peer) in (0..further as u8).zip(&peers) {
            assert!(ports.open_connected(ip, at(ip, peer)).is_some());
            peer.send(own, Some(IP), &[n], None, false).unwrap();
            let found = if ports.is_crowded() {
                watched(&mut ports)
            } else {
                alone(&mut ports)
            };
            assert_eq!(found, [(at(ip, peer), vec![n])]);
        }
        assert_eq!(ports.descriptors.count_of_many(), known);
        assert!(ports.further == further && ports.descriptors.are_intact());
    }

    #[test]
    fn a_child_counts_its_own() {
        let mut parents = Count::of(0).seen_by(7);
        for _ in 0..3 {
            parents = Count::of(parents.word()).one_more(3).unwrap();
        }
        assert_eq!(parents.one_more(3), None);
        assert_eq!(Count::of(parents.word()).seen_by(7).further, 3);
        let childs = Count::of(parents.word()).seen_by(8);
        assert_eq!(childs.one_more(3).map(|count| count.further), Some(1));
        assert_eq!(childs.fewer(3).further, 0);
    }

    #[test]
    fn most_descriptors_are_the_programs() {
        assert_eq!((most(Some(256)), most(Some(1024))), (16, 64));
        assert_eq!((most(Some(0)), most(None)), (0, u64::MAX));
    }
}
