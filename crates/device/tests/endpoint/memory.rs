//! Memory that peers access themselves: segments that come late, accesses that do not end. Needs
//! root, or else memory is not moved.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use causeway_identity::Access;
use causeway_proto::types::{QpState, WcStatus};
use rustix::io::Errno;

use crate::broker::{Broker, Manner, PATIENCE, until};
use crate::peer::Peer;
use crate::side::{ALL, Memory, Side, connect, connected, connected_first, exchange, register};

/// Regions that are moved as the first queue pair of their domain is connected, and domains, at
/// most (`device::sharing::at_connect`).
const MOVES_AT_CONNECT: usize = 16;
const DOMAINS_AT_CONNECT: usize = 16;
/// How long an access may last before its peer is evicted (`docs/GLOSSARY.md`, lease).
const LEASE: Duration = Duration::from_millis(500);

/// Writes a word of `b`'s memory, and looks.
fn write(a: &Side, b: &Side, value: u64) {
    a.memory.word(64).store(value, Ordering::Relaxed);
    a.post(value, a.write_to(b, 64), 64).unwrap();
    a.complete(value);
    assert_eq!(b.memory.word(64).load(Ordering::Acquire), value);
}

/// Writes until the broker has been asked for `b`'s memory so often.
pub fn write_until_asked(broker: &Broker, a: &Side, b: &Side, times: u32) {
    let mut value = 1000;
    until("a wish for a segment", || {
        value += 1;
        write(a, b, value);
        broker.calls("map_segment") >= times
    });
}

#[test]
fn a_segment_that_comes_late_goes_to_nobody() {
    let broker = Broker::start();
    let (a, b) = connected(&broker);
    let (c, d) = (Side::of(a.context.clone()), Side::of(b.context.clone()));
    connect(&c, &d);
    broker.next("map_segment", Manner::Late);
    write_until_asked(&broker, &a, &b, 1);
    // While the broker is silent, neither this queue pair nor another is held up, as long as their
    // program polls.
    (1..100).for_each(|value| exchange(&a, &b, value));
    (1..100).for_each(|value| exchange(&c, &d, value));
    std::thread::scope(|scope| {
        // Whoever leaves has to tell the broker, and so waits for the answer before.
        let ends = scope.spawn(|| a.qp.destroy());
        until("an end", || a.qp.state() == QpState::Reset);
        (100..200).for_each(|value| exchange(&c, &d, value));
        broker.release();
        ends.join().unwrap().unwrap();
    });
    // The next one asks, and gets it.
    let (e, f) = (Side::of(a.context.clone()), Side::of(b.context.clone()));
    connect(&e, &f);
    write_until_asked(&broker, &e, &f, 2);
    (1..10).for_each(|value| write(&e, &f, value));
    (200..300).for_each(|value| exchange(&c, &d, value));
}

#[test]
fn a_segment_that_is_refused_is_done_without() {
    for manner in [
        Manner::Refuse(Errno::PERM),
        Manner::Refuse(Errno::NOTCONN),
        Manner::WithoutDescriptors,
    ] {
        let broker = Broker::start();
        let (a, b) = connected(&broker);
        broker.next("map_segment", manner);
        write_until_asked(&broker, &a, &b, 1);
        (1..100).for_each(|value| write(&a, &b, value));
        if manner == Manner::Refuse(Errno::PERM) {
            // Refused for good, it is not asked for again.
            assert_eq!(broker.calls("map_segment"), 1);
        } else {
            write_until_asked(&broker, &a, &b, 2);
        }
    }
}

#[test]
fn memory_that_may_not_be_moved_goes_by_ring() {
    let broker = Broker::start();
    let (a, b) = connected_first(&broker);
    broker.next("create_segment", Manner::Refuse(Errno::DQUOT));
    let mut value = 0;
    until("a try", || {
        value += 1;
        write(&a, &b, value);
        broker.calls("create_segment") > 0
    });
    (1..100).for_each(|value| write(&a, &b, value));
}

#[test]
fn what_was_registered_before_the_connection_is_in_place_with_it() {
    let broker = Broker::start();
    let (a, b) = connected(&broker);
    assert_eq!(broker.calls("create_segment"), 2, "one of each side");
    write_until_asked(&broker, &a, &b, 1);
}

#[test]
fn of_many_domains_some_are_moved_at_their_connections() {
    let broker = Broker::start();
    let first = Side::new(&broker);
    drop(Peer::of(&broker, &first));
    // Their memory stays, or it would be the same each time.
    let others: Vec<Side> = (0..DOMAINS_AT_CONNECT)
        .map(|_| Side::of(first.context.clone()))
        .collect();
    others.iter().for_each(|side| drop(Peer::of(&broker, side)));
    assert_eq!(broker.calls("create_segment"), DOMAINS_AT_CONNECT as u32);
}

#[test]
fn nothing_is_moved_for_a_peer_that_may_not_access_it() {
    let broker = Broker::start();
    let (a, b) = (Side::new(&broker), Side::new(&broker));
    for side in [&a, &b] {
        side.to_init_with(Access::empty());
    }
    a.to_rtr(b.qp.qpn()).unwrap();
    b.to_rtr(a.qp.qpn()).unwrap();
    assert_eq!(broker.calls("create_segment"), 0);
}

#[test]
fn of_many_regions_some_are_moved_at_the_connection() {
    let broker = Broker::start();
    let side = Side::new(&broker);
    let memory: Vec<Memory> = (0..2 * MOVES_AT_CONNECT).map(|_| Memory::new()).collect();
    let (before, after) = memory.split_at(MOVES_AT_CONNECT);
    let register = |memory| register(&side.pd, memory, ALL);
    let mut regions: Vec<_> = before.iter().map(register).collect();
    let peer = Peer::of(&broker, &side);
    // Later ones wait to be used.
    regions.extend(after.iter().map(register));
    let keys = regions.iter().chain([&side.mr]).map(|mr| mr.rkey());
    let moved = keys.filter(|key| peer.finds_in_segment(*key)).count();
    // A few may be in use by the kernel just then.
    assert!((1..=MOVES_AT_CONNECT).contains(&moved), "{moved}");
    for mr in regions {
        mr.dereg().unwrap();
    }
}

#[test]
fn a_broker_that_refuses_a_segment_is_not_asked_for_each_region() {
    let broker = Broker::start();
    let side = Side::new(&broker);
    let memory = [Memory::new(), Memory::new()];
    let regions = memory
        .each_ref()
        .map(|memory| register(&side.pd, memory, ALL));
    broker.next("create_segment", Manner::Refuse(Errno::DQUOT));
    let peer = Peer::of(&broker, &side);
    assert_eq!(broker.calls("create_segment"), 1);
    assert!(!peer.finds_in_segment(side.mr.rkey()));
    for mr in regions {
        mr.dereg().unwrap();
    }
}

/// Two sides of which one has memory in a segment, and a third one on the same endpoint, whose peer
/// is the test.
fn with_a_slow_peer(broker: &Broker) -> (Side, Side, Side, Peer) {
    let (a, b) = connected(broker);
    write_until_asked(broker, &a, &b, 1);
    let third = Side::of(b.context.clone());
    let peer = Peer::of(broker, &third);
    (a, b, third, peer)
}

#[test]
fn an_access_that_does_not_end_is_evicted() {
    let broker = Broker::start();
    let (a, b, third, peer) = with_a_slow_peer(&broker);
    assert!(peer.finds_in_segment(b.mr.rkey()));
    let _ = peer.ring.enter(b.mr.rkey());
    let begun = Instant::now();
    b.mr.dereg().unwrap();
    let took = begun.elapsed();
    assert!((LEASE..PATIENCE).contains(&took), "{took:?}");
    // It is told that nobody has waited for it, and its queue pair has failed; no other has.
    assert!(!peer.ring.leave());
    assert_eq!(third.state(), QpState::Err);
    assert_eq!(b.state(), QpState::Rts);
    a.post(1, a.write_to(&b, 64), 64).unwrap();
    assert_eq!(a.wait().status, WcStatus::RemAccessErr);
}

#[test]
fn an_access_that_ends_in_time_is_waited_for() {
    let broker = Broker::start();
    let (_a, b, third, peer) = with_a_slow_peer(&broker);
    let key = b.mr.rkey();
    assert!(peer.finds_in_segment(key));
    let _ = peer.ring.enter(key);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let ends = scope.spawn(|| b.mr.dereg());
        // It is not found any more, and what is under way is waited for.
        until("a withdrawal", || peer.theirs.get(key).is_none());
        let waited = !ends.is_finished();
        // Unless this thread had to wait for a processor for as long as the lease.
        let late = begun.elapsed() >= LEASE;
        assert!(waited || late);
        assert!(peer.ring.leave() || late || begun.elapsed() >= LEASE);
        ends.join().unwrap().unwrap();
    });
    let evicted = third.state() == QpState::Err;
    assert!(!evicted || begun.elapsed() >= LEASE);
}

#[test]
fn a_queue_pair_that_ends_does_not_wait_for_ever() {
    let broker = Broker::start();
    let side = Side::new(&broker);
    let peer = Peer::of(&broker, &side);
    let _ = peer.ring.enter(side.mr.rkey());
    let begun = Instant::now();
    side.qp.destroy().unwrap();
    let took = begun.elapsed();
    assert!((LEASE..PATIENCE).contains(&took), "{took:?}");
    assert!(!peer.ring.leave());
}
