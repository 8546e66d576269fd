//! READs of memory that is in no segment: made where it is in the owner's process.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use causeway_identity::Access;
use causeway_proto::types::{SendOp, WcStatus};
use causeway_shm::layout::INBOX_LEN;
use causeway_shm::{NO_SEGMENT, Segment, Stats};
use rustix::io::Errno;

use crate::broker::{Broker, Manner, PATIENCE, until};
use crate::peer::Peer;
use crate::side::{ALL, Memory, Side, connected, connected_first, register};

/// How long an access may last before its peer is evicted (`docs/GLOSSARY.md`, lease).
const LEASE: Duration = Duration::from_millis(500);

fn read_from(peer: &Side, at: usize) -> SendOp {
    SendOp::Read {
        addr: (peer.memory.addr() + at) as u64,
        rkey: peer.mr.rkey(),
    }
}

/// A READ of `b`'s word into `a`'s. Returns what it was.
fn read(a: &Side, b: &Side, at: usize) -> u64 {
    a.post(at as u64, read_from(b, at), at).unwrap();
    a.complete(at as u64);
    a.memory.word(at).load(Ordering::Acquire)
}

/// How many accesses the first endpoint of a broker has made directly.
fn direct(broker: &Broker) -> u64 {
    let inbox = broker.with_tables(|tables| {
        let first = tables.endpoints.values().next().unwrap();
        first.fds[0].try_clone().unwrap()
    });
    let inbox = Arc::new(Segment::map(inbox, INBOX_LEN).unwrap());
    Stats::open(inbox, 0).unwrap().snapshot().direct
}

/// Reads until a READ has been made in the owner's process.
fn read_until_direct(broker: &Broker, a: &Side, b: &Side) {
    let before = direct(broker);
    until("a READ in the process", || {
        read(a, b, 64);
        direct(broker) > before
    });
}

#[test]
fn memory_that_waits_to_be_moved_is_read_in_its_process_and_moves_when_it_is_used() {
    let broker = Broker::start();
    let (a, b) = connected_first(&broker);
    read_until_direct(&broker, &a, &b);
    assert_eq!(broker.calls("create_segment"), 0, "nothing has moved");
    b.memory.word(128).store(9, Ordering::Relaxed);
    assert_eq!(read(&a, &b, 128), 9);
    assert_eq!(broker.calls("peer_process"), 1);
    // READs go by ring now and then, so its owner hears of them.
    let mut value = 0;
    until("a move", || {
        value += 1;
        b.memory.word(128).store(value, Ordering::Relaxed);
        assert_eq!(read(&a, &b, 128), value);
        broker.calls("create_segment") > 0
    });
}

#[test]
fn what_is_not_registered_any_more_is_not_read() {
    let broker = Broker::start();
    let (a, mut b) = connected_first(&broker);
    read_until_direct(&broker, &a, &b);
    let gone = read_from(&b, 64);
    b.mr.dereg().unwrap();
    b.mr = register(&b.pd, &b.memory, ALL);
    b.memory.word(64).store(9, Ordering::Relaxed);
    assert_eq!(read(&a, &b, 64), 9);
    a.post(3, gone, 64).unwrap();
    assert_eq!(a.wait().status, WcStatus::RemAccessErr);
}

#[test]
fn a_region_that_may_not_be_read_is_not_read() {
    let broker = Broker::start();
    let (a, mut b) = connected_first(&broker);
    b.mr.dereg().unwrap();
    b.mr = register(&b.pd, &b.memory, ALL.difference(Access::REMOTE_READ));
    a.post(3, read_from(&b, 64), 64).unwrap();
    assert_eq!(a.wait().status, WcStatus::RemAccessErr);
    assert_eq!(broker.calls("peer_process"), 0);
}

#[test]
fn without_the_process_reads_go_by_ring() {
    for errno in [Errno::PERM, Errno::NOSYS] {
        let broker = Broker::start();
        broker.next("peer_process", Manner::Refuse(errno));
        let (a, b) = connected_first(&broker);
        assert_eq!(read(&a, &b, 64), 0);
        broker.await_calls("peer_process", 1);
        for value in 1..4 {
            b.memory.word(64).store(value, Ordering::Relaxed);
            assert_eq!(read(&a, &b, 64), value);
        }
        assert_eq!(broker.calls("peer_process"), 1, "asked once");
    }
}

#[test]
fn a_broker_that_did_not_answer_is_asked_again() {
    let broker = Broker::start();
    broker.next("peer_process", Manner::WithoutDescriptors);
    let (a, b) = connected_first(&broker);
    read_until_direct(&broker, &a, &b);
    assert_eq!(broker.calls("peer_process"), 2);
}

#[test]
fn a_read_under_way_is_waited_for() {
    let broker = Broker::start();
    let side = Side::new(&broker);
    let peer = Peer::of(&broker, &side);
    let memory = Memory::new();
    let region = register(&side.pd, &memory, ALL);
    let (key, start) = (region.rkey(), memory.addr() as u64);
    let entry = peer.theirs.get(key).expect("shown");
    assert_eq!(entry.segment, NO_SEGMENT);
    assert_eq!(entry.locate(start, 8), Some(start));
    let _ = peer.ring.enter(key);
    let begun = Instant::now();
    region.dereg().unwrap();
    let took = begun.elapsed();
    assert!((LEASE..PATIENCE).contains(&took), "{took:?}");
    assert!(!peer.ring.leave(), "nothing may be made of what was read");
    assert!(peer.theirs.get(key).is_none());
}

#[test]
fn what_is_in_a_segment_is_not_read_otherwise() {
    let broker = Broker::start();
    let (a, b) = connected(&broker);
    assert_eq!(read(&a, &b, 64), 0);
    broker.await_calls("map_segment", 1);
    assert_eq!(broker.calls("peer_process"), 0);
}
