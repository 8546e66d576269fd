//! What the broker tells clients of its own accord.

use std::collections::HashMap;
use std::time::Instant;

use causeway_fabric::remoting::encode_body;
use causeway_fabric::services::{
    EVENT_PEERS, EVENT_RINGS, EVENT_STALE, EVENT_TRACE, PEER_EVENTS_PER_MESSAGE, PeerEvent, SERVICE,
};
use rustix::event::epoll::{self, EventData};

use super::Server;
use crate::ids::{EndpointId, SessionId};

impl Server {
    /// Sends each client what the tables have for it.
    pub(super) fn deliver(&mut self) {
        self.tell_limits();
        self.tell_limits();
        // A client that ends here may cause events for others: hence the loop, which ends since
        // every turn but the last removes a session or empties the tables.
        loop {
            // Stale segments first: an endpoint that has heard of a peer's end has heard of what
            // follows.
            let mut stale: HashMap<EndpointId, Vec<u64>> = HashMap::new();
            for (to, segment) in self.hub.take_stale() {
                stale.entry(to).or_default().push(segment);
            }
            let mut peers: HashMap<EndpointId, Vec<PeerEvent>> = HashMap::new();
            for (to, event) in self.hub.take_news(Instant::now()) {
                peers.entry(to).or_default().push(event);
            }
            let mut rings: HashMap<EndpointId, Vec<u64>> = HashMap::new();
            for (to, ring) in self.hub.take_given_up() {
                rings.entry(to).or_default().push(ring);
            }
            let events = self.services.outbox.take();
            let traces = self.hub.traces.take_news();
            let quiet = events.is_empty() && traces.is_empty();
            if stale.is_empty() && peers.is_empty() && rings.is_empty() && quiet {
                break;
            }
            for (to, trace) in traces {
                self.deliver_to_endpoint(to, EVENT_TRACE, &[encode_body(&trace)]);
            }
            for event in events {
                self.deliver_to(event.to, (event.service, event.number), &[event.body]);
            }
            for (to, segments) in stale {
                self.deliver_to_endpoint(to, EVENT_STALE, &[encode_body(&segments)]);
            }
            for (to, rings) in rings {
                self.deliver_to_endpoint(to, EVENT_RINGS, &[encode_body(&rings)]);
            }
            for (to, events) in peers {
                let parts = events.chunks(PEER_EVENTS_PER_MESSAGE);
                let bodies: Vec<_> = parts.map(|part| encode_body(&part.to_vec())).collect();
                self.deliver_to_endpoint(to, EVENT_PEERS, &bodies);
            }
        }
    }

    fn deliver_to_endpoint(&mut self, to: EndpointId, event: u16, bodies: &[Vec<u8>]) {
        if let Some(&number) = self.session_of.get(&to) {
            self.deliver_to(number, (SERVICE, event), bodies);
        }
    }

    /// Sends events of one kind: the number of their service, and theirs.
    fn deliver_to(&mut self, number: SessionId, kind: (u16, u16), bodies: &[Vec<u8>]) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        for body in bodies {
            if session.event(kind.0, kind.1, body).is_err() {
                return self.end(number, "it does not read or is gone");
            }
        }
        self.watch_again(number);
    }

    /// Waits for room instead of requests while a client is congested, and for neither while a
    /// request of it waits for its reply.
    pub(super) fn watch_again(&mut self, number: u64) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        let flags = session.interest();
        if std::mem::replace(&mut session.watched, flags) == flags {
            return;
        }
        let token = EventData::new_u64(number * 2);
        if epoll::modify(&self.epoll, session.socket(), token, flags).is_err() {
            self.end(number, "cannot watch it");
        }
    }
}
