//! What queue pairs need of the broker, asked for by the envoy ([`crate::envoy`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use causeway_fabric::services::Leave;
use causeway_favour::FavouredGuard;

use crate::direct::Answer;
use crate::endpoint::Shared;
use crate::errand::Errand;
use crate::peers::PeerEnd;
use crate::qp_entry::{Link, QpEntry};
use crate::state::State;

/// How long who posts waits for a segment: many times what a broker takes that is there.
const PATIENCE: Duration = Duration::from_millis(10);

impl Shared {
    /// Runs the errands there are, in the order in which they came. Called without any lock.
    /// Returns whether there were any.
    pub fn run_errands(&self) -> bool {
        if !self.envoy.is_sent() {
            return false;
        }
        let mut errands = Vec::new();
        self.engines
            .each(|_, state| errands.append(&mut state.errands));
        let any = !errands.is_empty();
        for errand in errands {
            if self.stop.load(Ordering::Acquire) {
                // The broker forgets the endpoint, and all that it had.
                break;
            }
            match errand {
                Errand::Fetch(qpn) => self.fetch_segment(qpn),
                Errand::Withdraw(qpn) => self.withdraw(qpn),
                Errand::GiveUp(pd) => self.give_up_segments(&[pd]),
                Errand::Place(key) => self.place_used(key),
                Errand::Reclaim => self.reclaim(),
                Errand::Ask(qpn) => self.ask_about_peer(qpn),
            }
        }
        any
    }

    fn fetch_segment(&self, qpn: u32) {
        let wanted = self.engines.lock(qpn).1.wanted_by(qpn);
        let Some((segment, peer)) = wanted else {
            return;
        };
        let mut granted = false;
        let answer = match self.control.map_segment(qpn, segment) {
            Ok((fd, writable)) => match peer.arena(segment, fd, writable) {
                Ok(arena) => {
                    granted = true;
                    Answer::Granted(arena)
                }
                Err(_) => Answer::Refused,
            },
            Err(error) => match error.errno() {
                libc::EPERM | libc::EACCES | libc::ENOENT => Answer::Refused,
                _ => Answer::NotNow,
            },
        };
        causeway_fault::point("fetch.answered");
        let (_, mut state) = self.engines.lock(qpn);
        let Some(entry) = state.qp(qpn) else {
            return;
        };
        (entry.wanting, entry.patient) = (false, granted);
        if let Link::Ring(ring) = &mut entry.link {
            ring.answer(answer);
        }
        drop(state);
        self.envoy.tell_answered();
    }

    /// Waits until the envoy has fetched the segment that a queue pair wants. What was just posted
    /// could go by ring meanwhile, but a program that spins on the envoy's processor would keep it
    /// from fetching for milliseconds, and a stream by ring costs its target's processor as well.
    #[cold]
    pub fn await_segment(&self, state: &mut FavouredGuard<'_, State>, qpn: u32) {
        let errand = state.qp(qpn).and_then(QpEntry::errand);
        state.errands.extend(errand);
        self.send_envoy();
        let until = Instant::now() + PATIENCE;
        while state.qp(qpn).is_some_and(|entry| entry.wanting) {
            if !self.await_answer(state, until) {
                break;
            }
        }
        if let Some(entry) = state.qp(qpn).filter(|entry| entry.wanting) {
            entry.patient = false;
        }
    }

    /// The broker forgets the connection of a queue pair: nothing is handed out for it any more.
    /// Segments that its peer must not reach any longer are given up.
    pub fn withdraw(&self, qpn: u32) {
        self.leave(&Leave {
            local_qpn: qpn,
            ..Leave::default()
        });
    }

    /// As [`Shared::withdraw`], of a queue pair that has given up its link.
    pub fn leave(&self, leave: &Leave) {
        causeway_fault::point("qp.withdraw");
        for segment in self.control.leave(leave).unwrap_or_default() {
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
