//! What an endpoint remembers of its connections, to present them to the next broker.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use crate::services::{PeerChange, PeerEvent, RestoreRequest, Wire};

/// Most rings kept for a broker's restart. A program that connects thousands of QPs before its
/// peers connect theirs must not run out of descriptors for it; should the broker be killed in
/// just that time, the connections beyond these are reported dead.
const RINGS_KEPT_MAX: usize = 64;

/// The connections of an endpoint, by local QP.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    requests: BTreeMap<u32, RestoreRequest>,
    /// Rings whose peer has not joined: afterwards nobody needs to be handed the ring.
    rings: BTreeMap<u32, OwnedFd>,
    /// QPs that have got keys.
    secured: BTreeSet<u32>,
}

impl Connections {
    /// Remembers a connection; its ring, if the peer has not joined it, only if few others are
    /// kept.
    pub(crate) fn insert(&mut self, request: RestoreRequest, ring: Option<OwnedFd>) {
        if let Some(ring) = ring.filter(|_| self.keeps_more_rings()) {
            self.rings.insert(request.local_qpn, ring);
        }
        self.requests.insert(request.local_qpn, request);
    }

    /// Whether the next ring would be kept.
    pub(crate) fn keeps_more_rings(&self) -> bool {
        self.rings.len() < RINGS_KEPT_MAX
    }

    /// Forgets a connection and returns it.
    pub(crate) fn remove(&mut self, local_qpn: u32) -> Option<RestoreRequest> {
        self.rings.remove(&local_qpn);
        self.secured.remove(&local_qpn);
        self.requests.remove(&local_qpn)
    }

    /// The connection of a QP.
    pub(crate) fn get(&self, local_qpn: u32) -> Option<&RestoreRequest> {
        self.requests.get(&local_qpn)
    }

    /// Notes that a QP has got keys.
    pub(crate) fn note_secured(&mut self, local_qpn: u32) {
        if self.requests.contains_key(&local_qpn) {
            self.secured.insert(local_qpn);
        }
    }

    /// Whether a QP has got keys.
    pub(crate) fn is_secured(&self, local_qpn: u32) -> bool {
        self.secured.contains(&local_qpn)
    }

    /// Notes what the peer of a QP may do from now on.
    pub(crate) fn set_access(&mut self, local_qpn: u32, access: u32) {
        if let Some(request) = self.requests.get_mut(&local_qpn) {
            request.access = access;
        }
    }

    /// All connections, with their rings as far as they are kept.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&RestoreRequest, Option<&OwnedFd>)> {
        self.requests
            .iter()
            .map(|(qpn, request)| (request, self.rings.get(qpn)))
    }

    /// Notes an event. False if it is about an earlier incarnation of the QP.
    pub(crate) fn note(&mut self, event: &PeerEvent) -> bool {
        let Some(request) = self.requests.get(&event.local_qpn) else {
            return false;
        };
        if request.wire != Wire::Ring || request.generation != event.generation {
            return false;
        }
        match event.change {
            PeerChange::Joined => {
                self.rings.remove(&event.local_qpn);
            }
            PeerChange::Dead | PeerChange::Exited | PeerChange::Left => {
                self.remove(event.local_qpn);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(connections: &mut Connections, local_qpn: u32, generation: u64) {
        let request = RestoreRequest {
            local_qpn,
            wire: Wire::Ring,
            generation,
            ..Default::default()
        };
        let ring = std::fs::File::open("/dev/null").unwrap().into();
        connections.insert(request, Some(ring));
    }

    #[test]
    fn only_so_many_rings_are_kept() {
        let mut connections = Connections::default();
        for qpn in 0..RINGS_KEPT_MAX as u32 + 5 {
            insert(&mut connections, qpn, 1);
        }
        assert_eq!(connections.iter().count(), RINGS_KEPT_MAX + 5);
        assert_eq!(connections.rings.len(), RINGS_KEPT_MAX);
        assert!(connections.remove(0).is_some());
        insert(&mut connections, 0, 1);
        assert_eq!(connections.rings.len(), RINGS_KEPT_MAX);
    }

    #[test]
    fn events_of_an_earlier_incarnation_are_ignored() {
        let mut connections = Connections::default();
        insert(&mut connections, 4096, 2);
        let event = |generation, change| PeerEvent {
            local_qpn: 4096,
            generation,
            change,
        };
        assert!(!connections.note(&event(1, PeerChange::Dead)));
        assert!(connections.note(&event(2, PeerChange::Joined)));
        assert!(connections.iter().all(|(_, ring)| ring.is_none()));
        assert!(connections.note(&event(2, PeerChange::Dead)));
        assert_eq!(connections.iter().count(), 0);
        assert!(!connections.note(&event(2, PeerChange::Dead)));
    }
}
