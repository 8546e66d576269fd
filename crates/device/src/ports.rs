//! The UDP ports of the endpoint, one for each of its slots.
//!
//! The first is bound when the device is opened, and is all that most endpoints have: it has
//! sockets for single peers, and whoever sleeps watches each of those. The ports of further slots
//! are behind one epoll descriptor, which is there from the beginning: so a thread that sleeps
//! already when one is bound watches it too, and a look at all of them is one system call where
//! nothing has come.

use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use causeway_netio::{Received, Report, UdpPort};
use causeway_shm::LastWordsTable;
use rustix::event::epoll;

use crate::clock;
use crate::errno::Errno;
use crate::qps::{Numbering, SLOTS};

/// Takes a datagram: the rank of the slot it came to, where it came from and to, its bytes.
pub(crate) trait Take: FnMut(usize, SocketAddr, Option<IpAddr>, &[u8]) {}

impl<F: FnMut(usize, SocketAddr, Option<IpAddr>, &[u8])> Take for F {}

/// A slot's port.
pub(crate) struct SlotPort {
    pub port: UdpPort,
    /// What is to be said to peers should this process end.
    pub words: LastWordsTable,
}

/// The ports by the ranks of their slots ([`Numbering::rank`]).
pub(crate) struct Ports {
    numbering: Numbering,
    first: SlotPort,
    /// From rank 1 on.
    more: Vec<Option<SlotPort>>,
    /// Watches those.
    watch: OwnedFd,
}

impl Ports {
    /// # Errors
    /// What epoll_create1(2) reports.
    pub fn new(numbering: Numbering, first: SlotPort) -> Result<Self, Errno> {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        Ok(Ports {
            numbering,
            first,
            more: Vec::new(),
            watch,
        })
    }

    /// The rank of the slot that queue pair `qpn` is of.
    pub fn rank(&self, qpn: u32) -> usize {
        self.numbering.rank(qpn)
    }

    /// Adds the port of a further slot.
    ///
    /// # Errors
    /// What epoll_ctl(2) reports: ENOSPC beyond fs.epoll.max_user_watches, ENOMEM.
    pub fn add(&mut self, rank: usize, port: SlotPort) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(rank as u64);
        epoll::add(&self.watch, port.port.fd(), data, epoll::EventFlags::IN)
            .map_err(std::io::Error::from)?;
        if self.more.len() < rank {
            self.more.resize_with(rank, || None);
        }
        self.more[rank - 1] = Some(port);
        Ok(())
    }

    /// What is readable when there is something to look at: the sockets of the first port, and what
    /// watches those of all others.
    pub fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let first = &self.first.port;
        std::iter::once(first.fd())
            .chain(first.lane_fds())
            .chain([self.watch.as_fd()])
    }

    /// The first port.
    pub fn first(&mut self) -> &mut UdpPort {
        &mut self.first.port
    }

    /// The port of the slot with this rank.
    #[inline]
    pub fn get(&self, rank: usize) -> &UdpPort {
        match self.more.get(rank.wrapping_sub(1)) {
            Some(Some(more)) => &more.port,
            _ => &self.first.port,
        }
    }

    /// What is to be said from it.
    #[inline]
    pub fn words(&mut self, rank: usize) -> &mut LastWordsTable {
        match self.more.get_mut(rank.wrapping_sub(1)) {
            Some(Some(more)) => &mut more.words,
            _ => &mut self.first.words,
        }
    }

    /// Receives once from each port but the first that has something. Returns whether one polls as
    /// in error, too.
    pub fn receive_more(&mut self, f: &mut impl Take) -> (Received, bool) {
        let (mut all, mut errors) = (Received::default(), false);
        if self.more.is_empty() {
            return (all, errors);
        }
        let mut events = [const { MaybeUninit::uninit() }; SLOTS];
        let now = clock::timespec(std::time::Duration::ZERO);
        let Ok((events, _)) = epoll::wait(&self.watch, &mut events, Some(&now)) else {
            return (all, errors);
        };
        for event in events {
            let rank = event.data.u64() as usize;
            let Some(Some(slot)) = self.more.get_mut(rank.wrapping_sub(1)) else {
                continue;
            };
            let flags = event.flags;
            errors |= flags.contains(epoll::EventFlags::ERR);
            let received = slot.port.recv(|src, dst, bytes| f(rank, src, dst, bytes));
            all = all.and(received.unwrap_or_default());
        }
        (all, errors)
    }

    /// What has been reported of datagrams sent before, by any port.
    pub fn take_errors(&self, mut f: impl FnMut(&Report)) {
        for slot in std::iter::once(&self.first).chain(self.more.iter().flatten()) {
            let _ = slot.port.take_errors(&mut f);
        }
    }
}
