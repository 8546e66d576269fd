//! A peer that is the test itself: it has an inbox, a doorbell and a table, and one end of a ring.

use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use causeway_fabric::services::PeerChange;
use causeway_identity::Slot;
use causeway_shm::layout::{MR_TABLE_BYTES, RING_CAPACITY, ring_len};
use causeway_shm::{
    Doorbell, Inbox, MrTable, NO_SEGMENT, PeerMrs, Ring, Segment, Side as RingSide,
};

use crate::broker::Broker;
use crate::side::Side;
use crate::tables::{Endpoint, fresh_name};

/// The test's end of a connection.
pub struct Peer {
    pub ring: Ring,
    /// What the other end publishes.
    pub theirs: PeerMrs,
    /// Nobody else is to have its slot.
    _port: UdpSocket,
}

fn owned(fd: impl AsFd) -> OwnedFd {
    fd.as_fd().try_clone_to_owned().unwrap()
}

impl Peer {
    /// Presents itself to the broker, and has a side connect to it.
    pub fn of(broker: &Broker, side: &Side) -> Peer {
        let free = |slot: &Slot| UdpSocket::bind(("0.0.0.0", slot.port())).ok();
        let slots = (0..Slot::COUNT).rev().map(Slot::wrapping);
        let (slot, port) = slots
            .filter_map(|slot| Some((slot, free(&slot)?)))
            .next()
            .unwrap();
        let qpn = slot.qpn(0).unwrap().number();
        let inbox = Inbox::create().unwrap();
        let doorbell = Doorbell::create().unwrap();
        let table = Segment::create("made-up-peer", MR_TABLE_BYTES).unwrap();
        let table = Arc::new(table);
        MrTable::format(Arc::clone(&table)).unwrap();
        let fds = [owned(inbox.fd()), owned(doorbell.fd()), owned(table.fd())];
        let slots = vec![slot];
        broker.with_tables(|tables| {
            tables
                .endpoints
                .insert(fresh_name(), Endpoint { fds, slots });
        });
        side.to_init();
        side.to_rtr(qpn).unwrap();
        let [ring, theirs] = broker.with_tables(|tables| tables.join(qpn));
        broker.tell(side.qp.qpn(), PeerChange::Joined);
        side.to_rts();
        let ring = Segment::map(ring, ring_len(RING_CAPACITY)).unwrap();
        let theirs = Segment::map(theirs, MR_TABLE_BYTES).unwrap();
        Peer {
            ring: Ring::attach(Arc::new(ring), RingSide::B).unwrap(),
            theirs: PeerMrs::open(Arc::new(theirs)).unwrap(),
            _port: port,
        }
    }

    /// Whether it finds a region in a segment.
    pub fn finds_in_segment(&self, key: u32) -> bool {
        let found = self.theirs.get(key);
        found.is_some_and(|entry| entry.segment != NO_SEGMENT)
    }
}
