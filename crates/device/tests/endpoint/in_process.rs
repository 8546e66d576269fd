//! READs of memory that is in no segment: made where it is in the owner's process.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use causeway_proto::types::{SendOp, WcStatus};
use causeway_shm::NO_SEGMENT;
use rustix::io::Errno;

use crate::broker::{Broker, Manner, PATIENCE};
use crate::peer::Peer;
use crate::side::{ALL, Memory, Side, connected, connected_first, register};

/// How long an access may last before its peer is evicted (`docs/GLOSSARY.md`, lease).
const LEASE: Duration = Duration::from_millis(500);

/// READs before the first one that goes by ring (`device::direct::in_process`).
const INTERVAL_FIRST: u64 = 8;

/// A READ of `b`'s word into `a`'s. Returns what it was.
fn read(a: &Side, b: &Side, at: usize) -> u64 {
    a.post(at as u64, read_from(b, at), at).unwrap();
    a.complete(at as u64);
    a.memory.word(at).load(Ordering::Acquire)
}

fn read_from(peer: &Side, at: usize) -> SendOp {
    SendOp::Read {
        addr: (peer.memory.addr() + at) as u64,
        rkey: peer.mr.rkey(),
    }
}

/// Whether a READ is complete when it has been posted, though nobody has looked for anything.
fn is_done_at_once(a: &Side, b: &Side, at: usize) -> bool {
    a.post(7, read_from(b, at), at).unwrap();
    let done = a.poll().is_some_and(|wc| wc.status == WcStatus::Success);
    if !done {
        a.complete(7);
    }
    done
}

#[test]
fn memory_that_waits_to_be_moved_is_read_in_its_process() {
    let broker = Broker::start();
    let (a, b) = connected_first(&broker);
    for value in 1..INTERVAL_FIRST {
        b.memory.word(64).store(value, Ordering::Relaxed);
        assert_eq!(read(&a, &b, 64), value);
    }
    assert_eq!(broker.calls("peer_process"), 1);
    assert_eq!(broker.calls("create_segment"), 0, "nothing has moved");
    assert!(is_done_at_once(&a, &b, 128));
    // Its owner hears of one that goes by ring now and then, and moves what is used.
    assert!(!is_done_at_once(&a, &b, 128));
}

#[test]
fn what_is_not_registered_any_more_is_not_read() {
    let broker = Broker::start();
    let (a, mut b) = connected_first(&broker);
    assert_eq!(read(&a, &b, 64), 0);
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
    b.mr = register(
        &b.pd,
        &b.memory,
        ALL.difference(causeway_identity::Access::REMOTE_READ),
    );
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
        for value in 1..4 {
            b.memory.word(64).store(value, Ordering::Relaxed);
            assert_eq!(read(&a, &b, 64), value);
        }
        assert_eq!(broker.calls("peer_process"), 1, "asked once");
    }
}

#[test]
fn a_read_under_way_is_waited_for() {
    let broker = Broker::start();
    let side = Side::new(&broker);
    let peer = Peer::of(&broker, &side);
    let memory = Memory::new();
    let region = register(&side.pd, &memory, ALL);
    let key = region.rkey();
    let entry = peer.theirs.get(key).expect("shown");
    assert_eq!(entry.segment, NO_SEGMENT);
    assert_eq!(
        entry.locate(memory.addr() as u64, 8),
        Some(memory.addr() as u64)
    );
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
    assert_eq!(broker.calls("map_segment"), 1);
    assert_eq!(broker.calls("peer_process"), 0);
}
