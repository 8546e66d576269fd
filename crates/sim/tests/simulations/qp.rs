//! Two queue pairs over TRP under faults: exactly-once placement, order, bytes, completions in
//! order, atomics, refusals for want of a receive, and no work request that never completes.

use std::cell::Cell;
use std::hash::Hasher;

use causeway_proto::types::{QpState, WcStatus};
use causeway_proto::{Duration, Instant};
use causeway_sim::network::{Faults, Network};
use causeway_sim::program::{Setup, Shared, bad, setups};
use causeway_sim::qp::{Crash, QpNode};
use causeway_sim::refused;
use causeway_sim::rng::Rng;
use causeway_sim::seeds;
use causeway_sim::workload::{Area, MAX_OPS, may_end_without_source};
use causeway_sim::world::{Node, World};

/// Seeds of the main test.
const SEEDS: u64 = 10_000;
/// Of the test of refusals, and of that of runs.
const RETRY_SEEDS: u64 = 500;
const RUN_SEEDS: u64 = 1000;
/// For how long what has not been acknowledged is sent again.
const REPEATS: Duration = Duration::from_secs(60);
/// Longest a run may take, simulated.
const LIMIT: Instant = Instant(900_000_000_000);

fn world(rng: &mut Rng, faults: Faults, setups: [Setup; 2]) -> World<QpNode> {
    let shared = Shared::new();
    let node = |side: usize, rng: &mut Rng| {
        QpNode::new(side, setups[side], std::rc::Rc::clone(&shared), rng)
    };
    let nodes = [node(0, rng), node(1, rng)];
    let mut world = World::new(nodes, Network::new(faults, rng.fork()), rng.fork());
    world.stall = rng.pick(&[0.0, 0.0, 0.01]);
    world.max_stall = Duration::from_millis(20);
    world
}

fn random_world(seed: u64) -> (World<QpNode>, Rng) {
    let mut rng = Rng::new(seed);
    let faults = Faults::random(&mut rng);
    let crc = faults.damages() || rng.chance(0.3);
    let setups = setups(&mut rng, crc);
    (world(&mut rng, faults, setups), rng)
}

fn report(w: &World<QpNode>) -> String {
    let [a, b] = [0, 1].map(|i| w.nodes[i].summary());
    format!("at {:?}, {:?}\n{a}\n{b}", w.now, w.network.faults)
}

fn finish(w: &mut World<QpNode>) {
    let done = w.run(LIMIT, |w| {
        w.nodes
            .iter()
            .all(|n| n.program.is_done() && n.program.has_everything())
    });
    assert!(done, "stuck {}", report(w));
    for n in &w.nodes {
        n.program.check_end();
        assert_eq!(n.program.events(), 0);
        assert_eq!(n.program.qp.state(), QpState::Rts);
    }
}

#[test]
fn every_opcode_under_every_fault() {
    let express = Cell::new(0);
    seeds::run("every_opcode_under_every_fault", SEEDS, |seed| {
        let mut w = random_world(seed).0;
        finish(&mut w);
        let sent: u64 = w.nodes.iter().map(|n| n.express).sum();
        express.set(express.get() + sent);
    });
    if seeds::are_all(SEEDS) {
        assert!(express.get() > 0, "nothing went the short way");
    }
}

/// As the test before, with sealed datagrams whose keys change again and again: what the network
/// damages, repeats or brings late is never taken for the peer's. Some handshakes are to come again
/// with a cookie.
#[test]
fn every_opcode_under_every_fault_sealed() {
    let (shaken, proved) = (Cell::new(0), Cell::new(0));
    seeds::run("every_opcode_under_every_fault_sealed", SEEDS, |seed| {
        let mut rng = Rng::new(seed);
        let faults = Faults::random(&mut rng);
        let mut setups = setups(&mut rng, false);
        for setup in &mut setups {
            setup.sealed = rng.pick(&[7, 50, 400, 1 << 20]);
        }
        let mut w = world(&mut rng, faults, setups);
        finish(&mut w);
        // Requests that concern the own side alone need no handshake.
        let secured = w.nodes.iter().all(|n| n.link.cipher().is_some());
        shaken.set(shaken.get() + u64::from(secured));
        let cookies: u64 = w.nodes.iter().map(|n| n.proved).sum();
        proved.set(proved.get() + cookies);
    });
    if seeds::are_all(SEEDS) {
        assert!(shaken.get() > 0, "there was no handshake");
        assert!(proved.get() > 0, "no cookie was shown");
    }
}

#[test]
fn on_an_idle_network_no_completion_waits_for_a_timer() {
    let faults = Faults::none();
    let most = 3 * faults.delay;
    seeds::run(
        "on_an_idle_network_no_completion_waits_for_a_timer",
        1000,
        |seed| {
            let mut rng = Rng::new(seed);
            let mut setups = setups(&mut rng, false);
            // Both sides talk, or one alone.
            setups[1].ops = rng.pick(&[0, MAX_OPS]);
            for setup in &mut setups {
                (setup.one_by_one, setup.starve) = (true, 0.0);
                // The longest message is no more than the first congestion window.
                setup.max_datagram = 9000;
            }
            let mut w = world(&mut rng, faults.clone(), setups);
            w.stall = 0.0;
            finish(&mut w);
            for n in &w.nodes {
                let slowest = n.program.slowest.get(&0).copied().unwrap_or_default();
                assert!(slowest <= most, "{slowest:?}: {}", report(&w));
            }
        },
    );
}

/// A receive that is posted late costs the pauses that its side has asked for, and a round trip for
/// each refusal: the last try is no slower than any other message.
#[test]
fn on_an_idle_network_no_retry_waits_for_another_timer_than_its_own() {
    let faults = Faults::none();
    let refused = std::cell::Cell::new(0);
    seeds::run(
        "on_an_idle_network_no_retry_waits_for_another_timer_than_its_own",
        RETRY_SEEDS,
        |seed| {
            let mut rng = Rng::new(seed);
            let mut setups = setups(&mut rng, false);
            let timer = rng.pick(&[1, 5, 12, 16]);
            for setup in &mut setups {
                (setup.one_by_one, setup.starve) = (true, 0.5);
                (setup.max_datagram, setup.min_rnr_timer) = (9000, timer);
                (setup.ops, setup.srq) = (MAX_OPS, false);
            }
            let mut w = world(&mut rng, faults.clone(), setups);
            w.stall = 0.0;
            finish(&mut w);
            for n in &w.nodes {
                for (times, slowest) in &n.program.slowest {
                    let most = faults.delay * (3 + 2 * *times as u32);
                    assert!(*slowest <= most, "{times}: {slowest:?}: {}", report(&w));
                    refused.set(refused.get() + times);
                }
            }
        },
    );
    if seeds::are_all(RETRY_SEEDS) {
        assert!(refused.get() > 0, "nothing was refused");
    }
}

#[test]
fn a_bad_request_fails_alone_and_the_rest_is_flushed() {
    seeds::run(
        "a_bad_request_fails_alone_and_the_rest_is_flushed",
        1000,
        |seed| {
            let mut rng = Rng::new(seed);
            let faults = Faults::random(&mut rng);
            let crc = faults.damages();
            let mut setups = setups(&mut rng, crc);
            setups[0].ops = rng.between(1, MAX_OPS);
            let mut w = world(&mut rng, faults, setups);
            let at = rng.below(setups[0].ops);
            let (wr, status) = bad(&mut rng);
            w.nodes[0].program.bad = Some((at, wr, status));
            for n in &mut w.nodes {
                n.program.may_fail = true;
            }
            let done = w.run(LIMIT, |w| w.nodes.iter().all(|n| n.program.is_done()));
            assert!(done, "stuck {}", report(&w));
            let (failed, got) = w.nodes[0].program.error.expect("it failed");
            // Where both sides have work, the peer's failure after the refusal may not come first.
            assert_eq!((failed, got), (at, status), "{}", report(&w));
            assert_eq!(w.nodes[0].program.qp.state(), QpState::Err);
        },
    );
}

#[test]
fn memory_may_go_while_it_is_being_read() {
    seeds::run("memory_may_go_while_it_is_being_read", 1000, |seed| {
        let mut rng = Rng::new(seed);
        let faults = Faults::random(&mut rng);
        let crc = faults.damages();
        let mut setups = setups(&mut rng, crc);
        setups[0].ops = rng.between(1, MAX_OPS);
        let mut w = world(&mut rng, faults, setups);
        for n in &mut w.nodes {
            n.program.may_fail = true;
        }
        let when = Instant(rng.below(3_000_000));
        w.run(when, |_| false);
        w.nodes[1]
            .program
            .with_host(|h| h.deregister(Area::Source.key()));
        let done = w.run(LIMIT, |w| w.nodes.iter().all(|n| n.program.is_done()));
        assert!(done, "stuck {}", report(&w));
        for (side, n) in w.nodes.iter().enumerate() {
            let fine = n
                .program
                .error
                .is_none_or(|(_, status)| may_end_without_source(side, status));
            assert!(fine, "{}", report(&w));
        }
    });
}

/// A program that has its READs tells the peer so in a way of its own, and the peer takes the
/// memory back. The acknowledgments of the answers may have been lost, or be late.
#[test]
fn memory_may_go_once_it_has_been_read() {
    seeds::run("memory_may_go_once_it_has_been_read", 1000, |seed| {
        let mut rng = Rng::new(seed);
        let faults = Faults::random(&mut rng);
        let mut setups = setups(&mut rng, faults.damages());
        setups[1].ops = 0;
        let mut w = world(&mut rng, faults, setups);
        let done = w.run(LIMIT, |w| w.nodes[0].program.is_done());
        assert!(done, "stuck {}", report(&w));
        w.nodes[1]
            .program
            .with_host(|h| h.deregister(Area::Source.key()));
        let later = w.now + REPEATS;
        w.run(later, |_| false);
        for n in &w.nodes {
            assert_eq!(n.program.qp.state(), QpState::Rts, "{}", report(&w));
            assert_eq!(n.program.events(), 0, "{}", report(&w));
        }
    });
}

#[test]
fn the_survivor_of_a_crash_completes_everything() {
    seeds::run(
        "the_survivor_of_a_crash_completes_everything",
        500,
        |seed| {
            let mut rng = Rng::new(seed);
            let mut faults = Faults::random(&mut rng);
            faults.partitions.clear();
            let crc = faults.damages();
            let mut setups = setups(&mut rng, crc);
            setups[0].ops = MAX_OPS;
            setups[0].timeout = 14;
            let mut w = world(&mut rng, faults, setups);
            for n in &mut w.nodes {
                n.program.may_fail = true;
            }
            let when = Instant(rng.below(3_000_000));
            w.run(when, |_| false);
            let how = rng.pick(&[Crash::Silent, Crash::Resets, Crash::Port]);
            let connected = w.nodes[0].link.is_confirmed();
            w.nodes[1].crashed = Some(how);
            w.now = w.now.max(when);
            let crashed_at = w.now;
            let done = w.run(LIMIT, |w| w.nodes[0].program.is_done());
            assert!(done, "stuck {}", report(&w));
            let Some((_, status)) = w.nodes[0].program.error else {
                return;
            };
            // What is posted after the failure is flushed, and all may have been done before it.
            let expected = matches!(status, WcStatus::RetryExcErr | WcStatus::WrFlushErr);
            assert!(expected, "{}", report(&w));
            let after = w.nodes[0]
                .program
                .error_at
                .expect("an error")
                .since(crashed_at);
            assert!(
                after < Duration::from_secs(8),
                "noticed after {after:?}: {}",
                report(&w)
            );
            // Connection requests are not answered by resets.
            let told = match how {
                Crash::Silent => false,
                Crash::Resets => true,
                Crash::Port => w.network.faults.icmp.quoted > 0,
            };
            if told && connected && w.network.faults.loss < 0.01 {
                assert!(after < Duration::from_secs(3), "{after:?}: {}", report(&w));
            }
        },
    );
}

#[test]
fn refusals_for_want_of_a_receive_end() {
    seeds::run("refusals_for_want_of_a_receive_end", 200, |seed| {
        let mut rng = Rng::new(seed);
        let faults = Faults::random(&mut rng);
        let mut setups = setups(&mut rng, faults.damages());
        refused::set_up(&mut setups, &mut rng);
        let mut w = world(&mut rng, faults, setups);
        refused::begin(w.nodes.each_mut().map(|n| &mut n.program));
        let done = w.run(LIMIT, |w| w.nodes[0].program.is_done());
        assert!(done, "stuck {}", report(&w));
        let refusals = w.nodes[0].link.stats().rnr_received;
        refused::check(&w.nodes[0].program, refusals);
    });
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..20 {
        let [a, b] = [0, 1].map(|_| {
            let mut w = random_world(seed).0;
            finish(&mut w);
            report(&w)
        });
        assert_eq!(a, b);
    }
}

/// Datagrams that are written and taken in runs are the same, at the same times, as one by one.
#[test]
fn runs_change_nothing_that_is_sent() {
    let in_runs = Cell::new([0; 2]);
    seeds::run("runs_change_nothing_that_is_sent", RUN_SEEDS, |seed| {
        let [alone, together] = [false, true].map(|runs| {
            let mut w = random_world(seed).0;
            w.runs = runs;
            finish(&mut w);
            for [sent, taken] in w.nodes.iter().map(|n| n.in_runs) {
                let [a, b] = in_runs.get();
                in_runs.set([a + sent, b + taken]);
            }
            (w.sent.finish(), report(&w))
        });
        assert_eq!(alone, together);
    });
    if seeds::are_all(RUN_SEEDS) {
        let [sent, taken] = in_runs.get();
        assert!(sent > 1000 && taken > 1000, "{sent} sent, {taken} taken");
    }
}

#[test]
fn nothing_happens_on_an_idle_connection() {
    let mut rng = Rng::new(1);
    let mut setups = setups(&mut rng, false);
    for s in &mut setups {
        s.ops = 4;
        s.starve = 0.0;
    }
    let mut w = world(&mut rng, Faults::none(), setups);
    finish(&mut w);
    for n in &mut w.nodes {
        n.link.set_expecting(w.now, false);
    }
    // Let delayed acknowledgments out without giving the programs a turn.
    for _ in 0..10 {
        for i in 0..2 {
            if let Some(at) = w.nodes[i].link.poll_timeout() {
                w.now = w.now.max(at);
                w.nodes[i].on_timeout(w.now);
            }
            let mut out = vec![0; 65_536];
            while let Some(t) = w.nodes[i].poll_transmit(w.now, &mut out) {
                w.nodes[1 - i].on_datagram(w.now, &out[..t.len]);
            }
        }
    }
    for n in &w.nodes {
        assert_eq!(n.link.poll_timeout(), None, "{}", report(&w));
    }
}
