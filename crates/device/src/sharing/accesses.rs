//! Accesses by peers to this endpoint's memory: waiting for their end, and evicting a peer that
//! does not end one.

use std::sync::Arc;
use std::time::Duration;

use causeway_shm::Counter;

use super::Sharing;
use crate::broker_request::BrokerRequest;
use crate::clock;
use crate::limits::LEASE;
use crate::qp_entry::Link;
use crate::shared::Shared;
use crate::state::State;
use crate::watches::Accesses;

/// How long the end of an access is watched for without sleeping.
const WATCH: Duration = Duration::from_micros(100);
/// How long to sleep between looks after that.
const NAP: Duration = Duration::from_micros(50);

/// Waits for a moment, after waiting for so long.
fn pause(elapsed: Duration) {
    if elapsed >= WATCH {
        std::thread::sleep(NAP);
    } else {
        std::hint::spin_loop();
    }
}

impl Shared {
    /// Waits until the accesses that began before the region or the grant was withdrawn have ended.
    /// A peer that overruns the lease is evicted, and never waited for again: its queue pair fails.
    /// Returns the protection domains whose segments it may still store into, to be given up
    /// ([`Sharing::give_up_segments`]) by a caller that holds no region.
    #[must_use]
    pub fn await_accesses(&self, what: Accesses) -> Vec<u32> {
        let begun = clock::now();
        loop {
            let elapsed = clock::now().since(begun);
            let late = self.common.watches.in_flight(what);
            if late.is_empty() {
                return Vec::new();
            }
            if elapsed >= LEASE {
                return self.evict(&late);
            }
            pause(elapsed);
        }
    }

    /// Waits until such accesses have ended, for `patience` at most, and evicts nobody. Returns
    /// whether they have.
    pub fn are_accesses_over(&self, what: Accesses, patience: Duration) -> bool {
        let begun = clock::now();
        loop {
            let elapsed = clock::now().since(begun);
            if self.common.watches.in_flight(what).is_empty() {
                return true;
            }
            if elapsed >= patience {
                return false;
            }
            pause(elapsed);
        }
    }

    /// Evicts the peers of queue pairs: see [`State::evict`].
    fn evict(&self, late: &[u32]) -> Vec<u32> {
        let mut domains = Vec::new();
        for qpn in late {
            let (_, mut state) = self.engines.lock(*qpn);
            domains.extend(state.evict(&[*qpn]));
        }
        domains
    }

    /// As [`Sharing::give_up_segments`], by the broker thread.
    pub fn give_up_segments_later(&self, domains: &[u32]) {
        if !domains.is_empty() {
            let mut state = self.engines.first().state.lock();
            state
                .broker_requests
                .extend(domains.iter().copied().map(BrokerRequest::GiveUp));
            drop(state);
            self.send_broker_requests();
        }
    }
}

impl Sharing {
    /// The segments of these domains are given up for others.
    pub fn give_up_segments(self: &Arc<Self>, domains: &[u32]) {
        let segments = domains.iter().flat_map(|pd| self.segments(*pd));
        for segment in segments.collect::<Vec<_>>() {
            self.renew(segment);
        }
        self.shared.common.evicted_from.remove(domains);
    }
}

impl State {
    /// Queue pairs whose completion queue has overrun fail.
    #[cold]
    #[inline(never)]
    pub fn fail_users(&mut self) {
        while let Some(cq) = self.core.overrun.pop() {
            for qpn in self.core.users_of(cq) {
                if let Some(mut entry) = self.qps.lock(qpn) {
                    entry.break_off(&mut self.core);
                }
                self.touch(qpn);
            }
        }
    }

    /// Queue pairs whose peers were evicted by [`crate::core::Core`] fail, and the segments that
    /// those may yet store into are given up.
    #[cold]
    pub fn fail_late(&mut self) {
        let qps = &self.qps;
        let late = self.core.watches.take_late(|qpn| qps.has(qpn));
        let domains = self.evict(&late);
        self.broker_requests
            .extend(domains.into_iter().map(BrokerRequest::GiveUp));
    }

    /// Evicts the peers of queue pairs, and returns the protection domains concerned, each of which
    /// is to be given to [`Sharing::give_up_segments`] once.
    fn evict(&mut self, late: &[u32]) -> Vec<u32> {
        let mut domains = Vec::new();
        for &qpn in late {
            let Some(mut entry) = self.qps.lock(qpn) else {
                continue;
            };
            if let Link::Ring(ring) = &mut entry.link {
                ring.evict();
            }
            self.core.watches.set(qpn, None);
            self.core.stats.add(Counter::Evictions, 1);
            tracing::warn!(
                qpn,
                "the peer exceeds its lease, and loses its access to memory"
            );
            domains.push(entry.qp.config().pd);
            entry.break_off(&mut self.core);
            drop(entry);
            self.touch(qpn);
        }
        self.flush_pending(&clock::Now::default());
        domains.sort_unstable();
        domains.dedup();
        self.evicted_from.add(&domains);
        domains
    }
}
