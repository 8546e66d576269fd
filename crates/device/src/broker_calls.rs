//! What queue pairs need of the broker, asked for by the broker thread ([`crate::broker_thread`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use causeway_biased_lock::BiasedGuard;
use causeway_fabric::services::Leave;
use causeway_shm::NO_SEGMENT;

use crate::broker_request::BrokerRequest;
use crate::direct::Answer;
use crate::peer_process::PeerProcess;
use crate::peers::PeerEnd;
use crate::qp_entry::Link;
use crate::shared::Shared;
use crate::sharing::Sharing;
use crate::state::State;

/// How long a thread that posts waits for a segment: many times what a broker takes that is there.
const PATIENCE: Duration = Duration::from_millis(10);

impl Sharing {
    /// Runs the broker requests that wait, in the order in which they came. Called without any
    /// lock. Returns whether there were any.
    pub fn carry_out_requests(self: &Arc<Self>) -> bool {
        let shared = &*self.shared;
        if !shared.broker_thread.is_sent() {
            return false;
        }
        let mut broker_requests = Vec::new();
        shared
            .engines
            .each(|_, state| broker_requests.append(&mut state.broker_requests));
        let any = !broker_requests.is_empty();
        for broker_request in broker_requests {
            if shared.stop.load(Ordering::Acquire) {
                // The broker forgets the endpoint, and all that it had.
                break;
            }
            match broker_request {
                BrokerRequest::Fetch(qpn) => shared.fetch_segment(qpn),
                BrokerRequest::Withdraw(qpn) => self.withdraw(qpn),
                BrokerRequest::GiveUp(pd) => self.give_up_segments(&[pd]),
                BrokerRequest::Place(key) => self.place_used(key),
                BrokerRequest::Reclaim => shared.reclaim(),
                BrokerRequest::Ask(qpn) => shared.ask_about_peer(qpn),
                BrokerRequest::Secure(qpn) => shared.carry_out_handshake(qpn),
                BrokerRequest::Associate(qpn) => shared.carry_out_associations(qpn),
                BrokerRequest::Groups => shared.carry_out_group_asks(),
            }
        }
        any
    }

    /// The broker forgets the connection of a queue pair: nothing is handed out for it any more.
    /// Segments that its peer must not reach any longer are given up.
    fn withdraw(self: &Arc<Self>, qpn: u32) {
        self.leave(&Leave {
            local_qpn: qpn,
            ..Leave::default()
        });
    }

    /// As [`Sharing::withdraw`], of a queue pair that has given up its link.
    pub fn leave(self: &Arc<Self>, leave: &Leave) {
        causeway_fault::point("qp.withdraw");
        for segment in self.shared.control.leave(leave).unwrap_or_default() {
            self.renew(segment);
        }
    }
}

impl Shared {
    fn fetch_segment(&self, qpn: u32) {
        let wanted = self.engines.lock(qpn).1.wanted_by(qpn);
        let Some((segment, peer, generation)) = wanted else {
            return;
        };
        let answer = match segment {
            NO_SEGMENT => self.ask_for_process(qpn),
            segment => self.ask_for_segment(qpn, segment, &peer),
        };
        causeway_fault::point("fetch.answered");
        let (_, mut state) = self.engines.lock(qpn);
        let Some(mut entry) = state.qp(qpn) else {
            return;
        };
        let entry_now = &mut *entry;
        // It may have another peer by now, of whom this answer says nothing, and who may have been
        // asked about.
        if let Link::Ring(ring) = &mut entry_now.link
            && ring.generation() == generation
        {
            let answer = match answer {
                Answer::Process(found) => Answer::Process(peer.note_process(found)),
                answer => answer,
            };
            entry_now.wanting = false;
            entry_now.patient = match &answer {
                Answer::Granted(_) => true,
                // With or without the process there may be segments yet.
                Answer::Process(_) => entry_now.patient,
                Answer::Refused | Answer::NotNow => false,
            };
            ring.answer(answer);
        }
        drop(entry);
        drop(state);
        self.broker_thread.tell_answered();
    }

    fn ask_for_segment(&self, qpn: u32, segment: u64, peer: &PeerEnd) -> Answer {
        match self.control.map_segment(qpn, segment) {
            Ok((fd, writable)) => match peer.arena(segment, fd, writable) {
                Ok(arena) => Answer::Granted(arena),
                Err(_) => Answer::Refused,
            },
            Err(error) => match error.errno() {
                libc::EPERM | libc::EACCES | libc::ENOENT => Answer::Refused,
                _ => Answer::NotNow,
            },
        }
    }

    /// Asks for the peer's process, to read its memory where it is.
    fn ask_for_process(&self, qpn: u32) -> Answer {
        match self.control.peer_process(qpn) {
            Ok(pidfd) => Answer::Process(PeerProcess::of(&pidfd).map(Arc::new)),
            Err(error) if error.errno() == libc::ENOTCONN => Answer::NotNow,
            Err(causeway_fabric::Error::Refused { .. }) => Answer::Process(None),
            Err(_) => Answer::NotNow,
        }
    }

    /// Waits until the broker thread has fetched the segment that a queue pair wants. What was just
    /// posted could go by ring meanwhile, but a program that spins on the broker thread's processor
    /// would keep it from fetching for milliseconds, and a stream by ring costs its target's
    /// processor as well.
    #[cold]
    pub fn await_segment(&self, state: &mut BiasedGuard<'_, State>, qpn: u32) {
        let broker_request = state.qp(qpn).and_then(|mut entry| entry.broker_request());
        state.broker_requests.extend(broker_request);
        self.send_broker_requests();
        let until = Instant::now() + PATIENCE;
        while state.qp(qpn).is_some_and(|entry| entry.wanting) {
            if !self.await_answer(state, until) {
                break;
            }
        }
        if let Some(mut entry) = state.qp(qpn).filter(|entry| entry.wanting) {
            entry.patient = false;
        }
    }
}

impl State {
    /// What a queue pair wants of its peer, who that is, and by which ring it is connected.
    fn wanted_by(&mut self, qpn: u32) -> Option<(u64, Arc<PeerEnd>, u64)> {
        let mut entry = self.qp(qpn)?;
        let (_, ring) = entry.ring()?;
        let (segment, peer) = ring.wanted()?;
        Some((segment, Arc::clone(peer), ring.generation()))
    }
}
