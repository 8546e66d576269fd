//! The UDP ports of an engine, one for each of its slots.
//!
//! The first is all that most have: it has sockets for single peers, and a thread that sleeps
//! watches each of those that were made with it. The ports of further slots, and what sockets for
//! single peers are made later, are behind one epoll descriptor, which is there from the beginning:
//! so a thread that sleeps already when one is bound watches it too, and a look at all of them is
//! one system call where nothing has come. Where there are many peers, all of the first port's
//! sockets are behind it ([`Ports::is_crowded`]).

mod event;
mod peers;

use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use causeway_netio::{Connected, Received, Report, Together, UdpPort};
use causeway_proto::trp::Senders;
use causeway_shm::FinalAckTable;
use rustix::event::epoll;
use rustix::net::sockopt::socket_recv_buffer_size;

use crate::clock;
use crate::closed_fds::Descriptors;
use crate::errno::Errno;
use crate::qps::Numbering;
use crate::sleepers::{PortSource, Sleepers};
use event::Source;
pub(crate) use event::watch_all;

/// Takes datagrams that came together: the rank of the slot they came to, where they came from and
/// to, their bytes.
pub(crate) trait Take: FnMut(usize, SocketAddr, Option<IpAddr>, Together<'_>) {}

impl<F: FnMut(usize, SocketAddr, Option<IpAddr>, Together<'_>)> Take for F {}

/// The kernel charges a socket's buffer for its own structures too: datagrams that fill one part of
/// so many surely fit.
pub(crate) const KERNEL_SHARE: usize = 2;

/// Watched sockets that one call names.
const EVENTS_MAX: usize = 32;

/// A slot's port.
pub(crate) struct SlotPort {
    pub port: UdpPort,
    /// What is to be said to peers should this process end.
    pub words: FinalAckTable,
    /// Who sends to its own socket, and to each that it has for a single peer: made when somebody
    /// does.
    senders: Vec<Option<Senders>>,
}

impl SlotPort {
    pub fn new(port: UdpPort, words: FinalAckTable) -> Self {
        SlotPort {
            port,
            words,
            senders: Vec::new(),
        }
    }

    fn senders(&mut self, socket: Option<Connected>) -> &mut Senders {
        let socket = socket.filter(|socket| self.port.is_open(*socket));
        let at = socket.map_or(0, |socket| 1 + socket.index());
        if self.senders.len() <= at {
            self.senders.resize(at + 1, None);
        }
        let fd = self.port.fd();
        self.senders[at].get_or_insert_with(|| {
            // All of a port's sockets have buffers of one size.
            let buffer = socket_recv_buffer_size(fd).unwrap_or(0);
            Senders::new(buffer / KERNEL_SHARE)
        })
    }
}

/// The ports by the ranks of their slots ([`Numbering::rank`]).
pub(crate) struct Ports {
    numbering: Numbering,
    slots: Vec<Option<SlotPort>>,
    /// The rank of the first one.
    first: Option<usize>,
    /// How many others there are.
    more: usize,
    /// Watches those.
    watch: OwnedFd,
    /// It watches the sockets of the first one, too.
    watches_first: bool,
    /// So many of its sockets for single peers are in use that they are looked at by that.
    crowded: bool,
    /// The first one has a bypass.
    bypass: bool,
    /// The endpoint's.
    descriptors: Arc<Descriptors>,
    /// How many of those count among this process's ([`peers`]).
    further: u32,
    /// Who sleeps on the sources, if this is the first engine's.
    sleepers: Option<Arc<Sleepers>>,
}

impl Ports {
    /// None yet.
    ///
    /// # Errors
    /// What epoll_create1(2) reports.
    pub fn new(numbering: Numbering, descriptors: &Arc<Descriptors>) -> Result<Self, Errno> {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        Ok(Ports {
            numbering,
            slots: Vec::new(),
            first: None,
            more: 0,
            watch,
            watches_first: false,
            crowded: false,
            bypass: false,
            descriptors: Arc::clone(descriptors),
            further: 0,
            sleepers: None,
        })
    }

    /// Wakes who sleeps on the sources when something may come to another of them.
    pub fn set_sleepers(&mut self, sleepers: &Arc<Sleepers>) {
        self.sleepers = Some(Arc::clone(sleepers));
    }

    fn enliven(&self, source: PortSource) {
        if let Some(sleepers) = &self.sleepers {
            sleepers.enliven(source);
        }
    }

    /// The rank of the slot that queue pair `qpn` is of.
    pub fn rank(&self, qpn: u32) -> usize {
        self.numbering.rank(qpn)
    }

    /// Whether the first port is that of the slot with this rank.
    pub fn is_first(&self, rank: usize) -> bool {
        self.first == Some(rank)
    }

    /// Adds the port of a slot. The first one is not watched here, but by whoever sleeps
    /// ([`Ports::sources`]).
    ///
    /// # Errors
    /// What epoll_ctl(2) reports: ENOSPC beyond fs.epoll.max_user_watches, ENOMEM.
    pub fn add(&mut self, rank: usize, port: SlotPort) -> Result<(), Errno> {
        if self.first.is_some() {
            event::watch(&self.watch, port.port.fd(), Source::main(rank))?;
            self.more += 1;
            self.enliven(PortSource::Watch);
        } else {
            self.first = Some(rank);
            self.bypass = port.port.bypass_fd().is_some();
        }
        self.put(rank, port);
        Ok(())
    }

    fn put(&mut self, rank: usize, port: SlotPort) {
        if self.slots.len() <= rank {
            self.slots.resize_with(rank + 1, || None);
        }
        self.slots[rank] = Some(port);
    }

    /// Takes all ports of another engine of the same endpoint. What has sockets for single peers
    /// keeps them; what has a bypass, at which only the first port is looked at, does not.
    ///
    /// # Errors
    /// As [`Ports::add`]; then nothing has changed.
    pub fn absorb(&mut self, other: &mut Ports) -> Result<(), Errno> {
        let slots = other.slots.iter().enumerate();
        let slots = slots.filter_map(|(rank, slot)| Some((rank, slot.as_ref()?)));
        let sources = slots.flat_map(|(rank, slot)| event::sources(rank, &slot.port));
        watch_all(&self.watch, sources)?;
        self.more += other.slots.iter().flatten().count();
        self.enliven(PortSource::Watch);
        for (rank, slot) in std::mem::take(&mut other.slots).into_iter().enumerate() {
            let Some(mut slot) = slot else { continue };
            slot.port
                .end_bypass("queue pairs were joined under another port");
            for (fd, _) in event::sources(rank, &slot.port) {
                // Some were not watched.
                let _ = epoll::delete(&other.watch, fd);
            }
            self.put(rank, slot);
        }
        (other.first, other.more) = (None, 0);
        (other.watches_first, other.crowded, other.bypass) = (false, false, false);
        self.further += std::mem::take(&mut other.further);
        Ok(())
    }

    /// What is readable when there is something to look at: the sockets of the first port, and what
    /// watches those of all others.
    pub fn sources(&self) -> impl Iterator<Item = (PortSource, BorrowedFd<'_>)> {
        let first = self.first.and_then(|rank| self.slots.get(rank)?.as_ref());
        let own = |fd| (PortSource::Own, fd);
        let main = first.map(|slot| own(slot.port.fd()));
        let single = first.into_iter().flat_map(|slot| slot.port.connected_fds());
        let single = single.enumerate();
        main.into_iter()
            .chain(single.map(|(index, fd)| (PortSource::Single(index), fd)))
            .chain(first.and_then(|slot| slot.port.bypass_fd()).map(own))
            .chain([(PortSource::Watch, self.watch.as_fd())])
    }

    /// Whether that port has a bypass to be looked at.
    #[inline]
    pub fn has_bypass(&self) -> bool {
        self.bypass
    }

    /// The first port, and its rank.
    pub fn first(&mut self) -> Option<(usize, &mut UdpPort)> {
        let rank = self.first?;
        let slot = self.slots.get_mut(rank)?.as_mut()?;
        Some((rank, &mut slot.port))
    }

    /// The port of the slot with this rank.
    #[inline]
    pub fn get(&self, rank: usize) -> Option<&UdpPort> {
        Some(&self.slots.get(rank)?.as_ref()?.port)
    }

    /// Who sends to its own socket, or to one that it has for a single peer.
    #[inline]
    pub fn senders(&mut self, rank: usize, socket: Option<Connected>) -> Option<&mut Senders> {
        Some(self.slots.get_mut(rank)?.as_mut()?.senders(socket))
    }

    /// What is to be said from it.
    #[inline]
    pub fn words(&mut self, rank: usize) -> Option<&mut FinalAckTable> {
        Some(&mut self.slots.get_mut(rank)?.as_mut()?.words)
    }

    /// Receives once from each watched socket that has something. Returns whether one polls as in
    /// error, too.
    pub fn receive_watched(&mut self, f: &mut impl Take) -> (Received, bool) {
        let (mut all, mut errors) = (Received::default(), false);
        if self.more == 0 && !self.watches_first {
            return (all, errors);
        }
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let now = clock::timespec(std::time::Duration::ZERO);
        let Ok((events, _)) = epoll::wait(&self.watch, &mut events, Some(&now)) else {
            return (all, errors);
        };
        // There may be more than were asked for: the next call begins with those.
        all.more = events.len() == EVENTS_MAX;
        all.stream = all.more;
        for event in events {
            let Source { rank, socket } = Source::of(event.data);
            let Some(Some(slot)) = self.slots.get_mut(rank) else {
                continue;
            };
            let flags = event.flags;
            if flags.contains(epoll::EventFlags::ERR) {
                errors = true;
                socket.into_iter().for_each(|at| slot.port.note_errors(at));
            }
            let mut take = |src, dst, all: Together<'_>| f(rank, src, dst, all);
            let received = match socket {
                None => slot.port.recv_together(take),
                Some(at) => slot.port.recv_from(at, &mut take),
            };
            all = all.and(received.unwrap_or_default());
        }
        (all, errors)
    }

    /// What has been reported of datagrams sent before, by any port.
    pub fn take_errors(&self, mut f: impl FnMut(&Report)) {
        for slot in self.slots.iter().flatten() {
            let _ = slot.port.take_errors(&mut f);
        }
    }
}
