//! What queue pairs need of the broker, asked for by the helper thread: a call to the broker must
//! not hold up what posts and polls.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::direct::Answer;
use crate::endpoint::{Shared, State};
use crate::peers::PeerEnd;
use crate::qp_entry::Link;

/// Something to ask of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// The segment that this queue pair wants to reach.
    Fetch(u32),
    /// This queue pair has failed: its peer has no right to anything any more.
    Withdraw(u32),
}

impl Shared {
    /// Runs the errands there are. Called without any lock.
    pub fn run_errands(&self) {
        if !self.has_errands.swap(false, Ordering::SeqCst) {
            return;
        }
        let errands = std::mem::take(&mut self.state.lock().errands);
        for errand in errands {
            match errand {
                Errand::Fetch(qpn) => self.fetch_segment(qpn),
                Errand::Withdraw(qpn) => self.withdraw(qpn),
            }
        }
    }

    fn fetch_segment(&self, qpn: u32) {
        let Some((segment, peer)) = self.state.lock().wanted_by(qpn) else {
            return;
        };
        let answer = match self.control.map_segment(qpn, segment) {
            Ok((fd, writable)) => match peer.arena(segment, fd, writable) {
                Ok(arena) => Answer::Granted(arena),
                Err(_) => Answer::Refused,
            },
            Err(error) => match error.errno() {
                libc::EPERM | libc::EACCES | libc::ENOENT => Answer::Refused,
                _ => Answer::NotNow,
            },
        };
        causeway_fault::point("fetch.answered");
        let mut state = self.state.lock();
        if let Some(entry) = state.qp(qpn) {
            entry.wanting = false;
            if let Link::Ring(ring) = &mut entry.link {
                ring.answer(answer);
            }
        }
    }

    /// The broker forgets the connection of a queue pair: nothing is handed out for it any more.
    /// Segments that its peer must not reach any longer are given up.
    pub fn withdraw(&self, qpn: u32) {
        causeway_fault::point("qp.withdraw");
        for segment in self.control.disconnect(qpn).unwrap_or_default() {
            self.sharing.renew(self, segment);
        }
    }
}

impl State {
    fn wanted_by(&mut self, qpn: u32) -> Option<(u64, Arc<PeerEnd>)> {
        let (_, ring) = self.qp(qpn)?.ring()?;
        let (segment, peer) = ring.wanted()?;
        Some((segment, Arc::clone(peer)))
    }
}
