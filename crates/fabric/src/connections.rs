//! What an endpoint remembers of its connections, to present them to the next broker.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use crate::services::{PeerChange, PeerEvent, RestoreRequest, Wire};

/// One connection, and its ring while the peer has not joined.
#[derive(Debug)]
pub(crate) struct Connection {
    /// What to tell the next broker.
    pub(crate) request: RestoreRequest,
    /// Kept only until the peer has joined: afterwards nobody needs to be handed the ring, and
    /// thousands of QPs must not cost thousands of descriptors.
    pub(crate) ring: Option<OwnedFd>,
}

/// The connections of an endpoint, by local QP.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    by_qpn: BTreeMap<u32, Connection>,
}

impl Connections {
    pub(crate) fn insert(&mut self, connection: Connection) {
        self.by_qpn.insert(connection.request.local_qpn, connection);
    }

    pub(crate) fn remove(&mut self, local_qpn: u32) -> Option<Connection> {
        self.by_qpn.remove(&local_qpn)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.by_qpn.values()
    }

    /// Notes an event. False if it is about an earlier incarnation of the QP.
    pub(crate) fn note(&mut self, event: &PeerEvent) -> bool {
        let Some(connection) = self.by_qpn.get_mut(&event.local_qpn) else {
            return false;
        };
        let request = &connection.request;
        if request.wire != Wire::Ring || request.generation != event.generation {
            return false;
        }
        match event.change {
            PeerChange::Joined => connection.ring = None,
            PeerChange::Dead | PeerChange::Left => drop(self.by_qpn.remove(&event.local_qpn)),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(local_qpn: u32, generation: u64) -> Connection {
        let request = RestoreRequest {
            local_qpn,
            wire: Wire::Ring,
            generation,
            ..Default::default()
        };
        let ring = Some(std::fs::File::open("/dev/null").unwrap().into());
        Connection { request, ring }
    }

    #[test]
    fn events_of_an_earlier_incarnation_are_ignored() {
        let mut connections = Connections::default();
        connections.insert(ring(4096, 2));
        let event = |generation, change| PeerEvent {
            local_qpn: 4096,
            generation,
            change,
        };
        assert!(!connections.note(&event(1, PeerChange::Dead)));
        assert!(connections.note(&event(2, PeerChange::Joined)));
        assert!(connections.iter().all(|c| c.ring.is_none()));
        assert!(connections.note(&event(2, PeerChange::Dead)));
        assert_eq!(connections.iter().count(), 0);
        assert!(!connections.note(&event(2, PeerChange::Dead)));
    }
}
