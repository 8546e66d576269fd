//! Two queue pairs on a ring: the same programs as over TRP, and the ring's own faults.

use causeway_proto::types::{QpState, WcStatus};
use causeway_proto::{Duration, Instant};
use causeway_sim::pair::{Ending, RingWorld};
use causeway_sim::program::{bad, setups};
use causeway_sim::refused;
use causeway_sim::ring::{Defect, Faults, Written};
use causeway_sim::rng::Rng;
use causeway_sim::seeds;
use causeway_sim::workload::{Area, MAX_OPS, may_end_without_source};

/// Seeds of the main test.
const SEEDS: u64 = 10_000;
/// Seeds within which a defect of the memory must be noticed.
const DEFECT_SEEDS: u64 = 200;
/// Longest a run may take, simulated.
const LIMIT: Instant = Instant(900_000_000_000);

fn random_world(seed: u64, defect: Option<Defect>) -> (RingWorld, Rng) {
    let mut rng = Rng::new(seed);
    let faults = Faults::random(&mut rng);
    let setups = setups(&mut rng, false);
    (RingWorld::new(faults, setups, defect, &mut rng), rng)
}

fn report(w: &RingWorld) -> String {
    let [a, b] = [0, 1].map(|i| {
        let node = &w.nodes[i];
        format!("{}\n{:?}", node.program.summary(), node.link)
    });
    format!("at {:?}, {:?}\n{a}\n{b}", w.now, w.faults)
}

fn finish(w: &mut RingWorld) {
    let done = w.run(LIMIT, |w| {
        let done =
            |n: &causeway_sim::pair::RingNode| n.program.is_done() && n.program.has_everything();
        w.nodes.iter().all(done)
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
    seeds::run("ring::every_opcode_under_every_fault", SEEDS, |seed| {
        finish(&mut random_world(seed, None).0);
    });
}

#[test]
fn a_peer_that_is_stopped_for_a_while_is_waited_for() {
    seeds::run("a_peer_that_is_stopped", 500, |seed| {
        let (mut w, mut rng) = random_world(seed, None);
        let when = Instant(rng.below(3_000_000));
        w.run(when, |_| false);
        w.stop(Duration::from_secs(rng.between(1, 60)));
        finish(&mut w);
    });
}

#[test]
fn a_bad_request_fails_alone_and_the_rest_is_flushed() {
    seeds::run("ring::a_bad_request_fails_alone", 1000, |seed| {
        let mut rng = Rng::new(seed);
        let faults = Faults::random(&mut rng);
        let mut setups = setups(&mut rng, false);
        setups[0].ops = rng.between(1, MAX_OPS);
        let at = rng.below(setups[0].ops);
        let (wr, status) = bad(&mut rng);
        let mut w = RingWorld::new(faults, setups, None, &mut rng);
        w.nodes[0].program.bad = Some((at, wr, status));
        for n in &mut w.nodes {
            n.program.may_fail = true;
        }
        let done = w.run(LIMIT, |w| w.nodes.iter().all(|n| n.program.is_done()));
        assert!(done, "stuck {}", report(&w));
        assert_eq!(
            w.nodes[0].program.error,
            Some((at, status)),
            "{}",
            report(&w)
        );
        assert_eq!(w.nodes[0].program.qp.state(), QpState::Err);
    });
}

#[test]
fn memory_may_go_while_it_is_being_read() {
    seeds::run("ring::memory_may_go_while_it_is_being_read", 1000, |seed| {
        let (mut w, mut rng) = random_world(seed, None);
        for n in &mut w.nodes {
            n.program.may_fail = true;
        }
        let when = Instant(rng.below(300_000));
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

#[test]
fn whoever_is_left_completes_everything() {
    seeds::run("whoever_is_left_completes_everything", 1000, |seed| {
        let mut rng = Rng::new(seed);
        let faults = Faults::random(&mut rng);
        let mut setups = setups(&mut rng, false);
        setups[0].ops = MAX_OPS;
        let mut w = RingWorld::new(faults, setups, None, &mut rng);
        for n in &mut w.nodes {
            n.program.may_fail = true;
        }
        let when = Instant(rng.below(300_000));
        w.run(when, |_| false);
        w.end(rng.pick(&[Ending::Killed, Ending::Exited, Ending::Closed]));
        let ended_at = w.now;
        let done = w.run(LIMIT, |w| w.nodes[0].program.is_done());
        assert!(done, "stuck {}", report(&w));
        let program = &w.nodes[0].program;
        if let Some((_, status)) = program.error {
            let expected = matches!(status, WcStatus::RetryExcErr | WcStatus::WrFlushErr);
            assert!(expected, "{}", report(&w));
            // A second, and as long as it may be without its processor; what is posted while it
            // starves comes late.
            let after = program.error_at.expect("an error").since(ended_at);
            assert!(after < Duration::from_secs(12), "{after:?}: {}", report(&w));
        }
    });
}

#[test]
fn refusals_for_want_of_a_receive_end() {
    seeds::run("ring::refusals_for_want_of_a_receive_end", 200, |seed| {
        let mut rng = Rng::new(seed);
        let faults = Faults::random(&mut rng);
        let mut setups = setups(&mut rng, false);
        refused::set_up(&mut setups, &mut rng);
        let mut w = RingWorld::new(faults, setups, None, &mut rng);
        refused::begin(w.nodes.each_mut().map(|n| &mut n.program));
        let done = w.run(LIMIT, |w| w.nodes[0].program.is_done());
        assert!(done, "stuck {}", report(&w));
        let refusals = w.nodes[0].link.done()[3];
        refused::check(&w.nodes[0].program, refusals);
    });
}

/// Whatever the peer writes, each work request completes once, in order; once the peer is gone, all
/// have.
#[test]
fn a_record_that_nobody_should_write_breaks_one_queue_pair_at_most() {
    seeds::run("a_record_that_nobody_should_write", 1000, |seed| {
        let (mut w, mut rng) = random_world(seed, None);
        for n in &mut w.nodes {
            n.program.may_fail = true;
            n.program.lied_to = true;
        }
        w.run(Instant(rng.below(300_000)), |_| false);
        w.nodes[1].ended = true;
        for _ in 0..rng.between(1, 4) {
            let expected = w.nodes[0].link.done()[2];
            let near = expected.wrapping_add(rng.below(4)).wrapping_sub(1);
            let len = rng.pick(&[0, 14, 18, 30, 72, 500]);
            let random: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
            w.forge(Written {
                kind: rng.pick(&[0, 1, 1, 2, 3, 4, 5, 255]),
                flags: rng.pick(&[0, 1, 2, 3, 255]),
                seq: rng.pick(&[near, near, 0, u64::MAX]),
                ack: rng.pick(&[0, near, u64::MAX]),
                body: random,
            });
            let pause = Duration::from_micros(rng.below(10));
            w.run(w.now + pause, |_| false);
        }
        w.end(Ending::Killed);
        let done = w.run(LIMIT, |w| w.nodes[0].program.is_done());
        assert!(done, "stuck {}", report(&w));
    });
}

/// Whether a run notices what is wrong with the memory.
fn is_noticed(defect: Defect) -> bool {
    (0..DEFECT_SEEDS).any(|seed| {
        std::panic::catch_unwind(|| finish(&mut random_world(seed, Some(defect)).0)).is_err()
    })
}

#[test]
fn every_defect_of_the_memory_is_noticed() {
    for defect in [
        Defect::LosesRecords,
        Defect::SwapsRecords,
        Defect::TearsBodies,
        Defect::AcknowledgesEarly,
        Defect::HidesAcknowledgments,
        Defect::KeepsRoom,
        Defect::LosesEveryWakeUp,
    ] {
        assert!(is_noticed(defect), "{defect:?} is not noticed");
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..20 {
        let [a, b] = [0, 1].map(|_| {
            let mut w = random_world(seed, None).0;
            finish(&mut w);
            report(&w)
        });
        assert_eq!(a, b);
    }
}
