//! A made-up carrier, a byte stream, under the queue pair: the same programs as over TRP and on a
//! ring. It lives here alone, to show that a carrier needs the seam (`proto::ulp`, `proto::unit`)
//! and nothing else.

mod carrier;
mod socket;
mod world;

use causeway_proto::Instant;
use causeway_proto::types::{QpState, WcStatus};
use causeway_sim::program::{bad, setups};
use causeway_sim::refused;
use causeway_sim::rng::Rng;
use causeway_sim::seeds;
use causeway_sim::workload::{Area, MAX_OPS, may_end_without_source};

use carrier::Defect;
use socket::Faults;
use world::{StreamNode, StreamWorld};

/// Seeds of the main test.
const SEEDS: u64 = 1000;
/// Seeds within which a defect must be noticed.
const DEFECT_SEEDS: u64 = 100;
/// Longest a run may take, simulated.
const LIMIT: Instant = Instant(900_000_000_000);

fn random_world(seed: u64, defect: Option<Defect>) -> (StreamWorld, Rng) {
    let mut rng = Rng::new(seed);
    let faults = Faults::random(&mut rng);
    let setups = setups(&mut rng, false);
    (StreamWorld::new(faults, setups, defect, &mut rng), rng)
}

fn report(w: &StreamWorld) -> String {
    let [a, b] = [0, 1].map(|i| {
        let node = &w.nodes[i];
        format!("{}\n{:?}", node.program.summary(), node.carrier)
    });
    format!("at {:?}, {:?}\n{a}\n{b}", w.now, w.faults)
}

fn run_to_end(w: &mut StreamWorld, done: impl Fn(&StreamWorld) -> bool) {
    let done = w.run(LIMIT, done);
    assert!(done, "stuck {}", report(w));
}

fn all_done(w: &StreamWorld) -> bool {
    w.nodes.iter().all(|n| n.program.is_done())
}

fn finish(w: &mut StreamWorld) {
    let has_all = |n: &StreamNode| n.program.is_done() && n.program.has_everything();
    run_to_end(w, |w| w.nodes.iter().all(has_all));
    for n in &w.nodes {
        n.program.check_end();
        assert_eq!(n.program.events(), 0);
        assert_eq!(n.program.qp.state(), QpState::Rts);
    }
}

fn let_fail(w: &mut StreamWorld) {
    for n in &mut w.nodes {
        n.program.may_fail = true;
    }
}

#[test]
fn every_opcode_under_every_fault() {
    seeds::run("stream::every_opcode_under_every_fault", SEEDS, |seed| {
        finish(&mut random_world(seed, None).0);
    });
}

#[test]
fn a_bad_request_fails_alone_and_the_rest_is_flushed() {
    seeds::run("stream::a_bad_request_fails_alone", SEEDS, |seed| {
        let mut rng = Rng::new(seed);
        let faults = Faults::random(&mut rng);
        let mut setups = setups(&mut rng, false);
        setups[0].ops = rng.between(1, MAX_OPS);
        let at = rng.below(setups[0].ops);
        let (wr, status) = bad(&mut rng);
        let mut w = StreamWorld::new(faults, setups, None, &mut rng);
        w.nodes[0].program.bad = Some((at, wr, status));
        let_fail(&mut w);
        run_to_end(&mut w, all_done);
        let program = &w.nodes[0].program;
        assert_eq!(program.error, Some((at, status)), "{}", report(&w));
        assert_eq!(program.qp.state(), QpState::Err);
    });
}

#[test]
fn memory_may_go_while_it_is_being_read() {
    seeds::run("stream::memory_may_go", SEEDS, |seed| {
        let (mut w, mut rng) = random_world(seed, None);
        let_fail(&mut w);
        w.run(Instant(rng.below(300_000)), |_| false);
        w.nodes[1]
            .program
            .with_host(|h| h.deregister(Area::Source.key()));
        run_to_end(&mut w, all_done);
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
    seeds::run("stream::whoever_is_left", SEEDS, |seed| {
        let mut rng = Rng::new(seed);
        let faults = Faults::random(&mut rng);
        let mut setups = setups(&mut rng, false);
        setups[0].ops = MAX_OPS;
        let mut w = StreamWorld::new(faults, setups, None, &mut rng);
        let_fail(&mut w);
        w.run(Instant(rng.below(3_000_000)), |_| false);
        w.end();
        run_to_end(&mut w, |w| w.nodes[0].program.is_done());
        let status = w.nodes[0].program.error.map(|(_, status)| status);
        let fine = matches!(
            status,
            None | Some(WcStatus::RetryExcErr | WcStatus::WrFlushErr)
        );
        assert!(fine, "{}", report(&w));
    });
}

#[test]
fn refusals_for_want_of_a_receive_end() {
    seeds::run("stream::refusals_end", 200, |seed| {
        let mut rng = Rng::new(seed);
        let faults = Faults::random(&mut rng);
        let mut setups = setups(&mut rng, false);
        refused::set_up(&mut setups, &mut rng);
        let mut w = StreamWorld::new(faults, setups, None, &mut rng);
        refused::begin(w.nodes.each_mut().map(|n| &mut n.program));
        run_to_end(&mut w, |w| w.nodes[0].program.is_done());
        let refusals = w.nodes[0].carrier.refusals;
        refused::check(&w.nodes[0].program, refusals);
    });
}

#[test]
fn every_defect_is_noticed() {
    for defect in [
        Defect::LosesBytes,
        Defect::ChangesBytes,
        Defect::RepeatsBytes,
        Defect::ForgetsParts,
        Defect::LosesRests,
        Defect::AcknowledgesEarly,
        Defect::NeverAcknowledges,
        Defect::NeverGoesBack,
    ] {
        let run = |seed| finish(&mut random_world(seed, Some(defect)).0);
        let noticed = (0..DEFECT_SEEDS).any(|seed| std::panic::catch_unwind(|| run(seed)).is_err());
        assert!(noticed, "{defect:?} is not noticed");
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
