//! Marks of a congested path (ECN): heeded, told, and given up where a path does not take them.

use std::rc::Rc;

use causeway_proto::trp::{Config, Connection, SendConfig, Stats};
use causeway_proto::{Duration, Instant};
use causeway_sim::mock::{MockNode, MockUlp, Plan};
use causeway_sim::network::{Faults, Network};
use causeway_sim::program::{Shared, setups};
use causeway_sim::qp::QpNode;
use causeway_sim::rng::Rng;
use causeway_sim::seeds;
use causeway_sim::world::World;

const SEC: u64 = 1_000_000_000;
/// Longest that a random run may take, simulated.
const LIMIT: Instant = Instant(900 * SEC);
/// Grants 34 s: random faults may last.
const PATIENT: u8 = 20;
/// Segments of a message that fill the queue of a slow link many times.
const LONG: u64 = 20_000;

fn node(me: u32, plans: [&Plan; 2], ecn: bool, rng: &mut Rng) -> MockNode {
    let [out, inn] = plans;
    let config = Config {
        max_datagram: 1472,
        crc: true,
        ecn,
        ..Config::new(me, 3 - me, rng.next_u64() | 1, inn.psn)
    };
    let mut link = Connection::new(config, Instant(0));
    link.start(SendConfig {
        sq_psn: out.psn,
        timeout: PATIENT,
        retry_cnt: 7,
    });
    MockNode::new(link, MockUlp::new(out, inn, rng.fork()))
}

/// Host 0 sends messages to host 1; `ecn`: who heeds marks.
fn world(requests: &[u64], ecn: [bool; 2], faults: Faults) -> World<MockNode> {
    let mut rng = Rng::new(1);
    let plan = |requests: &[u64]| Plan {
        key: 5,
        requests: requests.to_vec(),
        responses: Vec::new(),
        psn: 77,
    };
    let (a, b) = (plan(requests), plan(&[1]));
    let nodes = [
        node(1, [&a, &b], ecn[0], &mut rng),
        node(2, [&b, &a], ecn[1], &mut rng),
    ];
    World::new(nodes, Network::new(faults, rng.fork()), rng.fork())
}

/// Runs until all has arrived, and what the sender and the receiver have counted.
fn complete(w: &mut World<MockNode>) -> [Stats; 2] {
    let done = w.run(LIMIT, |w| w.nodes.iter().all(|n| n.ulp.is_acked()));
    let stats = [0, 1].map(|i| w.nodes[i].link.stats());
    assert!(!w.nodes.iter().any(|n| n.ulp.lost), "lost: {stats:?}");
    assert!(done, "stuck: {stats:?}");
    stats
}

/// A link of 1 Gbit/s with a queue for 200,000 bytes.
fn slow() -> Faults {
    Faults {
        ns_per_byte: 8,
        queue: 200_000,
        ..Faults::none()
    }
}

#[test]
fn a_queue_that_marks_loses_nothing() {
    let marking = Faults {
        marking_queue: 50_000,
        ..slow()
    };
    let mut w = world(&[LONG], [true; 2], marking);
    let [sender, receiver] = complete(&mut w);
    assert_eq!(
        (w.network.dropped, sender.retransmits),
        (0, 0),
        "{sender:?}"
    );
    assert_eq!(receiver.marks_received, w.network.marked);
    assert!(receiver.marks_received > 0 && sender.marks_reported > 0);
    let with_marks = w.now;
    // The same link without them overflows, and is no faster.
    let mut w = world(&[LONG], [false; 2], slow());
    let [sender, receiver] = complete(&mut w);
    assert!(w.network.dropped > 0 && sender.retransmits > 0);
    assert_eq!((receiver.marks_received, sender.marks_reported), (0, 0));
    assert!(with_marks < w.now + Duration::from_millis(20));
}

#[test]
fn a_mark_reduces_the_window_once_in_a_round_trip() {
    let mut w = world(&[1, 100, 100], [true; 2], Faults::none());
    complete(&mut w);
    let before = w.nodes[0].link.stats();
    w.network.faults.mark = 1.0;
    w.nodes[0].ulp.post(10);
    let [after, receiver] = complete(&mut w);
    assert_eq!(receiver.marks_received, w.network.marked);
    assert!(w.network.marked > 0);
    let reduced = before.congestion_window * 7 / 10;
    assert_eq!(after.congestion_window, reduced, "{after:?}");
    assert_eq!(after.retransmits, 0);
}

#[test]
fn nothing_is_ect_unless_both_sides_heed_marks() {
    for ecn in [[true, false], [false, true], [false, false]] {
        let marking = Faults {
            mark: 1.0,
            ..Faults::none()
        };
        let mut w = world(&[100], ecn, marking);
        let [sender, receiver] = complete(&mut w);
        assert_eq!(w.network.marked, 0, "{ecn:?}");
        assert_eq!((receiver.marks_received, sender.marks_reported), (0, 0));
    }
}

#[test]
fn a_path_that_drops_what_is_ect_costs_two_time_outs() {
    let dropping = Faults {
        drops_ect: true,
        ..Faults::none()
    };
    let mut w = world(&[10, 100], [true; 2], dropping);
    let [sender, _] = complete(&mut w);
    assert!((2..=3).contains(&sender.timeouts), "{sender:?}");
    assert!(w.now < Instant(SEC / 5), "{:?}", w.now);
    let (dropped, timeouts) = (w.network.dropped, sender.timeouts);
    w.nodes[0].ulp.post(1000);
    let [sender, _] = complete(&mut w);
    assert_eq!((w.network.dropped, sender.timeouts), (dropped, timeouts));
}

#[test]
fn a_route_that_comes_to_drop_what_is_ect_is_survived() {
    let mut w = world(&[100], [true; 2], Faults::none());
    complete(&mut w);
    w.network.faults.drops_ect = true;
    w.nodes[0].ulp.post(1000);
    let [sender, _] = complete(&mut w);
    assert!(sender.timeouts >= 4, "{sender:?}");
    assert!(w.now < Instant(SEC), "{:?}", w.now);
}

#[test]
fn a_time_without_an_answer_is_no_reason_to_give_marks_up() {
    let mut w = world(&[100], [true; 2], Faults::none());
    let cut = (Instant(0), Instant(SEC / 2), 2);
    w.network.faults.partitions.push(cut);
    complete(&mut w);
    w.network.faults.mark = 1.0;
    w.nodes[0].ulp.post(10);
    let [_, receiver] = complete(&mut w);
    assert!(receiver.marks_received > 0, "it is still ECT");
}

#[test]
fn a_peer_that_is_slow_at_first_is_no_reason_either() {
    let mut w = world(&[10], [true; 2], Faults::none());
    let known = |w: &mut World<MockNode>| w.nodes.iter().all(|n| n.link.is_confirmed());
    assert!(w.run(Instant(SEC), known));
    let until = Instant(w.now.0 + SEC / 10);
    w.pause(1, until);
    // It has what comes meanwhile, and says so later.
    w.network.faults.routes = vec![(w.now, Duration::from_millis(50))];
    complete(&mut w);
    w.network.faults.routes.clear();
    w.network.faults.mark = 1.0;
    w.nodes[0].ulp.post(100);
    complete(&mut w);
    w.nodes[0].ulp.post(100);
    let [_, receiver] = complete(&mut w);
    assert!(receiver.marks_received > 0, "it is still ECT");
}

#[test]
fn marks_under_every_fault() {
    seeds::run("marks_under_every_fault", 500, |seed| {
        let mut rng = Rng::new(seed);
        let faults = Faults {
            mark: rng.pick(&[0.001, 0.1, 1.0]),
            marking_queue: rng.pick(&[10_000, u64::MAX]),
            drops_ect: rng.chance(0.1),
            ..Faults::random(&mut rng)
        };
        let plans = [(); 2].map(|()| Plan::random(&mut rng, 20, 40));
        let nodes = [
            node(1, [&plans[0], &plans[1]], true, &mut rng),
            node(2, [&plans[1], &plans[0]], true, &mut rng),
        ];
        let mut w = World::new(nodes, Network::new(faults, rng.fork()), rng.fork());
        let stats = complete(&mut w);
        // Copies, and what is dropped as late or damaged, aside.
        let received: u64 = stats.iter().map(|s| s.marks_received).sum();
        assert!(received <= 2 * w.network.marked, "{stats:?}");
        let told: u64 = stats.iter().map(|s| s.marks_reported).sum();
        assert!(told == 0 || received > 0, "{stats:?}");
    });
}

/// Of whole queue pairs, with sealed datagrams and without, in runs and alone.
#[test]
fn what_is_marked_arrives_as_anything_else() {
    let mut reported = 0;
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let faults = Faults {
            mark: rng.pick(&[0.01, 0.3]),
            ..Faults::random(&mut rng)
        };
        let sealed = seed % 2 == 0;
        let mut setups = setups(&mut rng, faults.damages() && !sealed);
        for setup in &mut setups {
            setup.sealed = if sealed { 1 << 20 } else { 0 };
        }
        let shared = Shared::new();
        let nodes =
            [0, 1].map(|side| QpNode::new(side, setups[side], Rc::clone(&shared), &mut rng));
        let mut w = World::new(nodes, Network::new(faults, rng.fork()), rng.fork());
        let done = w.run(LIMIT, |w| {
            w.nodes
                .iter()
                .all(|n| n.program.is_done() && n.program.has_everything())
        });
        assert!(done, "seed {seed}: {}", w.nodes[0].summary());
        for n in &w.nodes {
            n.program.check_end();
            reported += n.link.stats().marks_reported;
        }
    }
    assert!(reported > 0, "nothing was told");
}
