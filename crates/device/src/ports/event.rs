//! What an epoll descriptor names the sockets of ports by.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use causeway_netio::UdpPort;
use rustix::event::epoll;

/// Bits of the rank.
const RANK_BITS: u32 = 32;

/// A socket of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// That of the port's slot.
    pub rank: usize,
    /// Which of those for single peers; `None`: the port's own.
    pub socket: Option<usize>,
}

impl Source {
    /// A port's own socket.
    pub fn main(rank: usize) -> Source {
        Source { rank, socket: None }
    }

    fn data(self) -> epoll::EventData {
        let socket = self.socket.map_or(0, |at| 1 + at as u64);
        epoll::EventData::new_u64(socket << RANK_BITS | self.rank as u64)
    }

    pub fn of(data: epoll::EventData) -> Source {
        let data = data.u64();
        Source {
            rank: (data & ((1 << RANK_BITS) - 1)) as usize,
            socket: ((data >> RANK_BITS) as usize).checked_sub(1),
        }
    }
}

/// All sockets of a port, and what names them.
pub(super) fn sources(
    rank: usize,
    port: &UdpPort,
) -> impl Iterator<Item = (BorrowedFd<'_>, epoll::EventData)> {
    let single = port.connected_fds().enumerate();
    let single = single.map(move |(at, fd)| {
        let socket = Some(at);
        (fd, Source { rank, socket }.data())
    });
    std::iter::once((port.fd(), Source::main(rank).data())).chain(single)
}

/// Watches a socket.
///
/// # Errors
/// What epoll_ctl(2) reports: ENOSPC beyond fs.epoll.max_user_watches, ENOMEM.
pub(super) fn watch(epoll: impl AsFd, fd: BorrowedFd<'_>, source: Source) -> io::Result<()> {
    epoll::add(epoll, fd, source.data(), epoll::EventFlags::IN)?;
    Ok(())
}

/// Watches all of some sockets, or none if one cannot be. It would not do to close them: others,
/// the broker or a child made by fork(2), may keep them open.
///
/// # Errors
/// As [`watch`].
pub(crate) fn watch_all<'a>(
    epoll: impl AsFd,
    sources: impl IntoIterator<Item = (BorrowedFd<'a>, epoll::EventData)>,
) -> io::Result<()> {
    let mut watched = Vec::new();
    for (fd, data) in sources {
        if let Err(error) = epoll::add(&epoll, fd, data, epoll::EventFlags::IN) {
            for fd in watched {
                let _ = epoll::delete(&epoll, fd);
            }
            return Err(error.into());
        }
        watched.push(fd);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn if_one_cannot_be_watched_none_is() {
        let ready = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        // epoll watches no such files.
        let file = memfd_create("a test's", MemfdFlags::CLOEXEC).unwrap();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let watches_something = || {
            let mut fds = [PollFd::new(&epoll, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
        };
        let sources = [&ready, &file].map(|fd| (fd.as_fd(), Source::main(0).data()));
        let refused = watch_all(&epoll, sources).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(!watches_something());
        watch_all(&epoll, [sources[0]]).unwrap();
        assert!(watches_something());
    }

    #[test]
    fn a_source_is_what_its_event_says() {
        for socket in [None, Some(0), Some(63)] {
            for rank in [0, 15, 255] {
                let source = Source { rank, socket };
                assert_eq!(Source::of(source.data()), source);
            }
        }
    }
}
