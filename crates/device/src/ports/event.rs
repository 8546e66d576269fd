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

/// All sockets of a port.
pub(super) fn sources(
    rank: usize,
    port: &UdpPort,
) -> impl Iterator<Item = (BorrowedFd<'_>, Source)> {
    let single = port.connected_fds().enumerate();
    let single = single.map(move |(at, fd)| {
        let socket = Some(at);
        (fd, Source { rank, socket })
    });
    std::iter::once((port.fd(), Source::main(rank))).chain(single)
}

/// Watches a socket.
///
/// # Errors
/// What epoll_ctl(2) reports: ENOSPC beyond fs.epoll.max_user_watches, ENOMEM.
pub(super) fn watch(epoll: impl AsFd, fd: BorrowedFd<'_>, source: Source) -> io::Result<()> {
    epoll::add(epoll, fd, source.data(), epoll::EventFlags::IN)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
