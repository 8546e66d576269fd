//! The size of datagrams follows what the path carries, with routers that say so and without.

use causeway_proto::{Duration, Instant};
use causeway_sim::mock::MockNode;
use causeway_sim::network::{Faults, Icmp, Network};
use causeway_sim::rng::Rng;
use causeway_sim::seeds;
use causeway_sim::world::World;

const SEC: u64 = 1_000_000_000;
/// What an interface with an MTU of 9000 takes.
const WHOLE: usize = 8972;
/// How near a search comes to what the path carries (RFC 8899 leaves that open).
const PRECISION: usize = 32;
/// Messages that are enough for a search, which sends one probe in a round trip, and the segments
/// of each.
const MANY: u64 = 60;
const LONG: u64 = 100;
/// Bytes of a short segment, of which some fit a datagram.
const SHORT: usize = 1000;
/// Longer than it takes until it is looked whether a path carries more.
const WHILE: u64 = 25 * SEC;
/// Grants 34 s, as programs that expect a long silence do.
const PATIENT: u8 = 20;
/// Said by routers of all that they drop.
const TOLD: Icmp = Icmp {
    reported: 1.0,
    quoted: 24,
    forged: 0.0,
};

/// Two hosts that have exchanged a message.
fn connected(seed: u64) -> World<MockNode> {
    let mut faults = Faults::none();
    faults.ns_per_byte = 1;
    let nodes = [
        MockNode::of_two(1, WHOLE, PATIENT, seed),
        MockNode::of_two(2, WHOLE, PATIENT, seed),
    ];
    let mut w = World::new(nodes, Network::new(faults, Rng::new(seed)), Rng::new(seed));
    assert!(w.run(Instant(SEC), |w| {
        w.nodes.iter().all(|n| n.ulp.is_complete())
    }));
    w
}

/// The path carries so much from now on.
fn change(w: &mut World<MockNode>, mtu: usize) {
    w.network.faults.mtu = mtu;
}

/// Sends a message of so many segments, to the end of it.
fn send(w: &mut World<MockNode>, segments: u64) {
    w.nodes[0].ulp.post(segments);
    let limit = Instant(w.now.0 + 30 * SEC);
    let arrived = w.run(limit, |w| w.nodes[0].ulp.is_acked());
    assert!(!w.nodes.iter().any(|n| n.ulp.lost), "lost: {}", state(w));
    assert!(arrived, "stuck: {}", state(w));
}

/// Sends many messages, one after the other.
fn send_many(w: &mut World<MockNode>) {
    for _ in 0..MANY {
        send(w, LONG);
    }
}

fn state(w: &World<MockNode>) -> String {
    format!(
        "{:?}\n{}",
        w.nodes[0].link.stats(),
        w.nodes[0].ulp.summary()
    )
}

/// Nothing is sent for so long.
fn pass(w: &mut World<MockNode>, time: u64) {
    let end = Instant(w.now.0 + time);
    w.run(end, |_| false);
    w.now = end;
}

fn size(w: &World<MockNode>) -> usize {
    w.nodes[0].link.stats().datagram
}

fn probes(w: &World<MockNode>) -> u64 {
    w.nodes[0].link.stats().probes
}

fn assert_follows(w: &World<MockNode>, mtu: usize) {
    let found = (mtu.min(WHOLE) - PRECISION..=mtu.min(WHOLE)).contains(&size(w));
    assert!(found, "{mtu}: {}", state(w));
}

#[test]
fn the_size_follows_the_path_down_and_up() {
    for icmp in [Icmp::NONE, TOLD] {
        let mut w = connected(1);
        w.network.faults.icmp = icmp;
        send_many(&mut w);
        assert_eq!((size(&w), probes(&w)), (WHOLE, 0), "nothing to search for");
        for mtu in [1252, 3972, WHOLE, 1472, 4000, 1232, WHOLE] {
            change(&mut w, mtu);
            send_many(&mut w);
            if size(&w) < mtu {
                pass(&mut w, WHILE);
                send_many(&mut w);
            }
            assert_follows(&w, mtu);
        }
        assert_eq!(size(&w), WHOLE, "the whole of it, not nearly");
    }
}

/// A router that drops without a word drops datagrams in which many short messages go together,
/// too, and what of them is sent again goes alone, and passes.
#[test]
fn short_messages_that_vanish_together_are_noticed() {
    let mut w = connected(5);
    w.nodes[0].ulp.longest = SHORT;
    change(&mut w, 1472);
    for _ in 0..MANY {
        (1..LONG).for_each(|_| w.nodes[0].ulp.post(1));
        send(&mut w, 1);
    }
    assert!(size(&w) <= 1472, "{}", state(&w));
}

#[test]
fn the_size_follows_in_the_middle_of_a_message() {
    for icmp in [Icmp::NONE, TOLD] {
        let mut w = connected(2);
        w.network.faults.icmp = icmp;
        (w.network.faults.mtu, w.network.faults.mtu_later) = (usize::MAX, 1252);
        w.network.faults.mtu_changes_at = Instant(w.now.0 + 2_000_000);
        send(&mut w, MANY * LONG);
        assert!(w.now > w.network.faults.mtu_changes_at);
        send_many(&mut w);
        assert_follows(&w, 1252);
    }
}

#[test]
fn a_search_ends_and_another_begins_after_a_while_only() {
    let mut w = connected(3);
    change(&mut w, 4000);
    send_many(&mut w);
    assert_follows(&w, 4000);
    let searched = probes(&w);
    send_many(&mut w);
    assert_eq!(probes(&w), searched, "the search has ended");
    pass(&mut w, WHILE);
    assert_eq!(probes(&w), searched, "no probe without a message");
    send_many(&mut w);
    assert_eq!(probes(&w), searched + 3, "three to see that it is the same");
    assert_follows(&w, 4000);
    assert_eq!(w.nodes[0].link.poll_timeout(), None, "no timer of its own");
}

#[test]
fn messages_that_fill_no_datagram_bring_no_probes() {
    let mut w = connected(4);
    change(&mut w, 4000);
    w.network.faults.icmp = TOLD;
    send_many(&mut w);
    let searched = probes(&w);
    pass(&mut w, WHILE);
    // The upper layer makes them shorter than their room at random: those that are not are few.
    for _ in 0..50 {
        send(&mut w, 1);
    }
    assert!(probes(&w) <= searched + 3, "{}", state(&w));
}

#[test]
fn a_lost_probe_says_nothing_of_congestion() {
    let mut w = connected(5);
    change(&mut w, 4000);
    send_many(&mut w);
    let before = w.nodes[0].link.stats();
    pass(&mut w, WHILE);
    send_many(&mut w);
    let after = w.nodes[0].link.stats();
    assert_eq!(after.probes, before.probes + 3, "{after:?}");
    assert!(after.congestion_window >= before.congestion_window);
}

#[test]
fn a_pause_of_the_peer_costs_no_size_for_long() {
    let mut w = connected(6);
    w.nodes[0].ulp.post(LONG);
    let until = Instant(w.now.0 + 2 * SEC);
    w.pause(1, until);
    let cut = (w.now, until, 2);
    w.network.faults.partitions.push(cut);
    send(&mut w, LONG);
    assert_eq!(size(&w), WHOLE);
    assert!(w.now.since(until) < Duration::from_secs(2));
}

#[test]
fn a_search_goes_on_whatever_interrupts_it() {
    seeds::run("a_search_goes_on_whatever_interrupts_it", 50, |seed| {
        let mut w = connected(seed);
        let mut rng = Rng::new(seed);
        w.network.faults.icmp = rng.pick(&[Icmp::NONE, TOLD]);
        w.network.faults.loss = rng.pick(&[0.0, 0.001, 0.02]);
        w.network.faults.reorder = rng.pick(&[0.0, 0.02]);
        w.network.faults.jitter = Duration::from_micros(50);
        w.nodes[1].ulp.not_ready = rng.pick(&[0.0, 0.3]);
        for _ in 0..4 {
            change(&mut w, rng.between(1232, 9200) as usize);
            let cut = Instant(w.now.0 + rng.below(5_000_000));
            let up = Instant(cut.0 + rng.below(100_000_000));
            w.network.faults.partitions = vec![(cut, up, rng.below(3) as usize)];
            for _ in 0..20 {
                send(&mut w, rng.between(1, 200));
            }
        }
        // And when all is quiet it comes to the right end.
        let mtu = rng.between(1232, 9200) as usize;
        change(&mut w, mtu);
        (w.network.faults.loss, w.network.faults.reorder) = (0.0, 0.0);
        for _ in 0..2 {
            send_many(&mut w);
            pass(&mut w, WHILE);
        }
        send_many(&mut w);
        assert_follows(&w, mtu);
    });
}

#[test]
fn a_path_that_drops_the_long_ones_only_is_found_out_while_short_ones_pass() {
    let mut w = connected(7);
    // The peer's own requests pass all the time, and acknowledge.
    change(&mut w, 1252);
    for _ in 0..MANY * LONG {
        w.nodes[1].ulp.post(1);
    }
    send_many(&mut w);
    assert_follows(&w, 1252);
}
