//! Descriptors that clients sent and that may be slow to close, and those by which processes are
//! watched.

use std::os::fd::OwnedFd;

use causeway_fabric::remoting::{Header, Malformed};
use causeway_fabric::sys::peer_pidfd;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Server, TOKEN_PIDFD};
use crate::closers;
use crate::session::Session;

impl Server {
    /// Descriptors came that may be slow to close: others do that. Returns whether the connection
    /// goes on; if its user has too many of them, all of its connections end.
    pub(super) fn set_aside(
        &mut self,
        number: u64,
        header: Option<&Header>,
        fds: Vec<OwnedFd>,
    ) -> bool {
        let Some(session) = self.sessions.get_mut(&number) else {
            return false;
        };
        let holder = session.peer.holder();
        if closers::close(holder, fds) {
            let Some(header) = header else {
                self.refuse(number, Malformed::Descriptors);
                return false;
            };
            if session.reply(header, Err(Errno::INVAL)).is_ok() {
                return true;
            }
            self.end(number, "it does not read or is gone");
            return false;
        }
        let of_it = |(_, session): &(&u64, &Session)| session.peer.holder() == holder;
        let numbers: Vec<u64> = self.sessions.iter().filter(of_it).map(|s| *s.0).collect();
        for number in numbers {
            self.end(number, "its user has too many files that cannot be closed");
        }
        false
    }
}

impl Server {
    /// A request came without its descriptors, since this process has as many as it may. Returns
    /// whether the connection goes on.
    pub(super) fn lacks_descriptors(&mut self, number: u64, header: &Header) -> bool {
        let Some(session) = self.sessions.get_mut(&number) else {
            return false;
        };
        if session.reply(header, Err(Errno::MFILE)).is_err() {
            self.end(number, "it does not read or is gone");
            return false;
        }
        true
    }
}

/// Watches the process of a new endpoint or member. Not that of other clients: a launcher leaves
/// its connection to the programs it launched, and that connection counts as long as one of them
/// lives. None if the process can't be watched: then its socket alone tells of its death.
pub(super) fn watch_process(epoll: &OwnedFd, session: &Session, number: u64) -> Option<OwnedFd> {
    let pidfd = peer_pidfd(session.socket())
        .ok()
        .or_else(|| open_pidfd(session.peer.pid))?;
    let token = EventData::new_u64(number * 2 + TOKEN_PIDFD);
    epoll::add(epoll, &pidfd, token, EventFlags::IN).ok()?;
    Some(pidfd)
}

/// Before Linux 6.5. If the process died and its number was taken since the connection was made,
/// this watches a stranger: no harm, since the socket's end is noticed too.
fn open_pidfd(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}
