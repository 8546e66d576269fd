//! TRP under faults: every segment is placed exactly once, in order where order is due, with its
//! bytes, and everything is acknowledged.

use causeway_proto::trp::{Config, Connection, SendConfig};
use causeway_proto::{Duration, Instant};
use causeway_sim::mock::{MockNode, MockUlp, Plan};
use causeway_sim::network::{Faults, Network};
use causeway_sim::rng::Rng;
use causeway_sim::seeds;
use causeway_sim::world::World;

/// Code that grants 34 s: at 20 % loss even that many retries may fail in a row otherwise.
const PATIENT: u8 = 20;

fn node(me: u32, plans: [&Plan; 2], crc: bool, rng: &mut Rng) -> MockNode {
    let [out, inn] = plans;
    let mut config = Config::new(me, 3 - me, rng.next_u64() | 1, inn.psn);
    config.max_datagram = rng.pick(&[600, 1200, 1472, 4000, 9000]);
    config.window = rng.pick(&[64, 256, 1024]);
    config.max_held_bytes = rng.pick(&[20_000, 1 << 20]);
    config.crc = crc;
    let mut link = Connection::new(config, Instant(0));
    link.start(SendConfig {
        sq_psn: out.psn,
        timeout: PATIENT,
        retry_cnt: 7,
    });
    MockNode::new(link, MockUlp::new(out, inn, rng.fork()))
}

fn world(seed: u64, faults: Option<Faults>) -> World<MockNode> {
    let mut rng = Rng::new(seed);
    let faults = faults.unwrap_or_else(|| Faults::random(&mut rng));
    let (a, b) = (
        Plan::random(&mut rng, 20, 40),
        Plan::random(&mut rng, 20, 40),
    );
    let crc = faults.damages() || rng.chance(0.3);
    let mut nodes = [
        node(1, [&a, &b], crc, &mut rng),
        node(2, [&b, &a], crc, &mut rng),
    ];
    for n in &mut nodes {
        n.ulp.not_ready = rng.pick(&[0.0, 0.0, 0.2, 0.5]);
        n.ulp.later = rng.pick(&[0.0, 0.3]);
    }
    let mut world = World::new(nodes, Network::new(faults, rng.fork()), rng.fork());
    world.stall = rng.pick(&[0.0, 0.0, 0.01]);
    world.max_stall = Duration::from_millis(20);
    world
}

fn complete(world: &mut World<MockNode>) {
    let limit = Instant(600_000_000_000);
    let done = world.run(limit, |w| w.nodes.iter().all(|n| n.ulp.is_complete()));
    let state = |n: &MockNode| format!("{}\n{:?}", n.ulp.summary(), n.link.stats());
    let report = || {
        let [a, b] = [&world.nodes[0], &world.nodes[1]].map(state);
        format!("at {:?}, {:?}\n{a}\n{b}", world.now, world.network.faults)
    };
    assert!(world.nodes.iter().all(|n| !n.ulp.lost), "lost {}", report());
    assert!(done, "stuck {}", report());
}

#[test]
fn perfect_network() {
    seeds::run("perfect_network", 200, |seed| {
        let mut w = world(seed, Some(Faults::none()));
        for n in &mut w.nodes {
            n.ulp.not_ready = 0.0;
        }
        w.stall = 0.0;
        complete(&mut w);
        for n in &w.nodes {
            assert_eq!(n.link.stats().retransmits, 0, "{:?}", n.link.stats());
        }
    });
}

#[test]
fn every_fault() {
    seeds::run("every_fault", 2000, |seed| complete(&mut world(seed, None)));
}
