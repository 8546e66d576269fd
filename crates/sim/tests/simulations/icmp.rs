//! What a connection makes of reports of datagrams that did not arrive, true ones and forged ones.

use causeway_proto::trp::{Expecting, Proof, Undelivered};
use causeway_proto::{Duration, Instant};
use causeway_sim::mock::MockNode;
use causeway_sim::network::{Faults, Icmp, Network};
use causeway_sim::rng::Rng;
use causeway_sim::world::World;

const SEC: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const DATAGRAM: usize = 1472;
/// 67 ms.
const TIMEOUT: u8 = 14;

fn connected() -> World<MockNode> {
    let nodes = [
        MockNode::of_two(1, DATAGRAM, TIMEOUT, 0),
        MockNode::of_two(2, DATAGRAM, TIMEOUT, 0),
    ];
    let network = Network::new(Faults::none(), Rng::new(1));
    let mut w = World::new(nodes, network, Rng::new(2));
    assert!(w.run(Instant(SEC), |w| {
        w.nodes.iter().all(|n| n.ulp.is_complete())
    }));
    w
}

/// The beginning of the next datagram that host 0 sends, which gets lost.
fn sent(w: &mut World<MockNode>) -> Vec<u8> {
    let now = w.now;
    let n = &mut w.nodes[0];
    n.ulp.post(1);
    let mut out = vec![0; 2000];
    let sent = n.link.poll_transmit(now, &mut n.ulp, &mut out);
    out.truncate(sent.expect("data").len.min(24));
    out
}

fn report(w: &mut World<MockNode>, what: Undelivered, quote: &[u8]) {
    let now = w.now;
    let n = &mut w.nodes[0];
    n.link
        .undelivered(now, what, Proof::Quote(quote), &mut n.ulp);
}

/// Runs for a while.
fn pass(w: &mut World<MockNode>, time: u64) {
    let end = Instant(w.now.0 + time);
    w.run(end, |_| false);
    w.now = end;
}

#[test]
fn an_unreachable_port_is_believed_the_second_time() {
    let mut w = connected();
    let quote = sent(&mut w);
    report(&mut w, Undelivered::Port, &quote);
    report(&mut w, Undelivered::Port, &quote);
    assert!(!w.nodes[0].ulp.lost, "one burst is one report");
    let n = &mut w.nodes[0];
    let mut out = vec![0; 2000];
    let now = n.link.poll_timeout().expect("it asks again");
    n.link.on_timeout(now, &mut n.ulp);
    assert!(n.link.poll_transmit(now, &mut n.ulp, &mut out).is_some());
    w.now = Instant(now.0 + 5 * MS);
    report(&mut w, Undelivered::Port, &quote);
    assert!(w.nodes[0].ulp.lost);
}

#[test]
fn before_the_handshake_an_unreachable_port_means_nothing() {
    let mut n = MockNode::of_two(1, DATAGRAM, TIMEOUT, 0);
    for ms in 1..100 {
        let now = Instant(ms * 10 * MS);
        n.link
            .undelivered(now, Undelivered::Port, Proof::Local, &mut n.ulp);
    }
    assert!(!n.ulp.lost);
}

#[test]
fn a_report_that_quotes_no_cookie_costs_a_probe_a_round_trip_and_nothing_else() {
    let mut w = connected();
    w.nodes[0].link.set_expecting(w.now, Expecting::Requests);
    let before = w.nodes[0].link.stats();
    let mut guess = [0xA5; 24];
    let rounds = 400;
    for n in 0..rounds {
        guess[15] = n as u8;
        let quotes: [&[u8]; 3] = [&[], &guess[..23], &guess];
        for quote in quotes {
            report(&mut w, Undelivered::Port, quote);
            let too_big = Undelivered::TooBig { max_payload: 600 };
            report(&mut w, too_big, quote);
            report(&mut w, Undelivered::Route, quote);
        }
        pass(&mut w, MS / 4);
    }
    let after = w.nodes[0].link.stats();
    assert!(!w.nodes[0].ulp.lost && !w.nodes[1].ulp.lost);
    assert_eq!(after.datagram, before.datagram);
    let (probes, ms) = (after.pings - before.pings, rounds / 4);
    assert!((ms / 2..=ms + 1).contains(&probes), "{probes} in {ms} ms");
    w.nodes[0].ulp.post(1);
    assert!(w.run(Instant(100 * SEC), |w| w.nodes[0].ulp.is_acked()));
}

#[test]
fn a_route_that_is_gone_for_a_while_ends_nothing() {
    for quoted in [0, 548] {
        let mut w = connected();
        w.network.faults.icmp = Icmp {
            reported: 1.0,
            quoted,
            ..Icmp::NONE
        };
        // A link that flaps, and one that is down for most of the budget.
        let mut at = w.now.0;
        for down in [MS, 20 * MS, 5 * MS, 3500 * MS] {
            let cut = (Instant(at), Instant(at + down), 2);
            w.network.faults.partitions.push(cut);
            at += down + 300 * MS;
        }
        w.nodes[0].ulp.post(200);
        let up = at - 300 * MS;
        let wait = up - w.now.0 - 100 * MS;
        pass(&mut w, wait);
        w.nodes[0].ulp.post(3);
        assert!(w.run(Instant(up + 2 * SEC), |w| w.nodes[0].ulp.is_acked()));
        assert!(w.nodes.iter().all(|n| !n.ulp.lost));
    }
}

/// How long a message takes whose path has just become narrow, and the size of datagrams then.
fn narrowed(mtu: usize, quoted: usize) -> (Duration, usize) {
    let mut w = connected();
    w.network.faults.mtu_later = mtu;
    w.network.faults.mtu_changes_at = w.now;
    w.network.faults.icmp = Icmp {
        reported: 1.0,
        quoted,
        ..Icmp::NONE
    };
    let from = w.now;
    w.nodes[0].ulp.post(5);
    assert!(w.run(Instant(60 * SEC), |w| w.nodes[0].ulp.is_acked()));
    (w.now.since(from), w.nodes[0].link.stats().datagram)
}

#[test]
fn a_narrower_path_that_says_so_costs_a_round_trip() {
    let (time, datagram) = narrowed(1300, 24);
    assert_eq!(datagram, 1300);
    // To the router and back, and there and back.
    assert!(time <= Duration::from_micros(100), "{time:?}");
}

#[test]
fn a_narrower_path_without_proof_is_found_out_by_trying() {
    let (time, datagram) = narrowed(1300, 0);
    assert_eq!(datagram, 1200);
    assert!(time > Duration::from_millis(1), "{time:?}");
}

#[test]
fn no_report_makes_datagrams_smaller_than_every_path_takes() {
    let mut w = connected();
    let quote = sent(&mut w);
    for max_payload in [1199, 100, 0] {
        report(&mut w, Undelivered::TooBig { max_payload }, &quote);
        assert_eq!(w.nodes[0].link.stats().datagram, 1200);
    }
    // It says what was true of an earlier size.
    report(&mut w, Undelivered::TooBig { max_payload: 1400 }, &quote);
    assert_eq!(w.nodes[0].link.stats().datagram, 1200);
}

#[test]
fn a_change_of_the_route_is_survived() {
    for (before, after) in [(20, 30_000), (30_000, 20), (20, 21)] {
        let mut w = connected();
        w.network.faults.delay = Duration::from_micros(before);
        let (from, change) = (w.now, Instant(w.now.0 + 2 * MS));
        w.network.faults.routes = vec![(change, Duration::from_micros(after))];
        w.nodes[0].ulp.post(2000);
        assert!(w.run(Instant(60 * SEC), |w| w.nodes[0].ulp.is_acked()));
        let slow = Duration::from_micros(before.max(after));
        assert!(w.now.since(from) < 40 * slow + Duration::from_millis(50));
        assert!(!w.nodes[0].ulp.lost);
    }
}
