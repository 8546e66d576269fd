//! A made-up transport with one sequence of packets, as RoCE v2's reliable connections have it,
//! under the queue pair: the same programs as over TRP, with the same faults. It lives here alone,
//! to show that a transport needs the seam (`proto::ulp`, `proto::unit`) and nothing else.
//!
//! A packet carries at most a path MTU. A READ takes as many numbers as its answer has packets, so
//! the request behind it has a number behind the answer. The responder takes packets in their order
//! and nothing else; the requester goes back to the first one that is not done.

mod node;
mod packet;
mod requester;
mod responder;

use causeway_proto::types::{QpState, WcStatus};
use causeway_proto::{Duration, Instant};
use causeway_sim::network::{Faults, Network};
use causeway_sim::program::{Setup, Shared, bad, setups};
use causeway_sim::refused;
use causeway_sim::rng::Rng;
use causeway_sim::seeds;
use causeway_sim::workload::{Area, MAX_OPS, may_end_without_source};
use causeway_sim::world::{Node, World};

use node::OneNode;
use packet::{MAX_MTU, OVERHEAD};

/// Seeds of the main tests.
const SEEDS: u64 = 1000;
/// Seeds within which a defect must be noticed.
const DEFECT_SEEDS: u64 = 100;
/// Longest a run may take, simulated.
const LIMIT: Instant = Instant(900_000_000_000);

/// What the transport does wrong, to show that somebody notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// The responder takes requests that are ahead of their turn.
    TakesAnyRequest,
    /// The requester takes answers that are ahead of their turn.
    TakesAnyAnswer,
    /// An atomic that comes again is carried out again.
    RepeatsAtomics,
    /// An answer that was lost is not sent again.
    KeepsNoAnswers,
    /// A packet more than was placed is acknowledged.
    AcknowledgesEarly,
    /// Nothing goes again.
    NeverGoesBack,
    /// What is left of a READ is asked for at the address where it began.
    AsksFromTheStart,
    /// What is left of an answer is sent from where it began.
    AnswersFromTheStart,
    /// An answer is built again though its memory has gone.
    RepeatsBlindly,
    /// A READ takes one number.
    KeepsNoNumbers,
}

type OneWorld = World<OneNode>;

fn world(rng: &mut Rng, faults: Faults, setups: [Setup; 2], defect: Option<Defect>) -> OneWorld {
    let shared = Shared::new();
    // Nobody looks for the path's MTU: it is agreed on.
    let longest = faults.mtu.min(faults.mtu_later).min(MAX_MTU + OVERHEAD) - OVERHEAD;
    let mtus: Vec<u32> = [256, 512, 1024, 2048, 4096]
        .into_iter()
        .filter(|mtu| *mtu <= longest as u32)
        .collect();
    let mtu = rng.pick(&mtus);
    let node =
        |side: usize, rng: &mut Rng| OneNode::new(side, setups[side], mtu, &shared, defect, rng);
    let nodes = [node(0, rng), node(1, rng)];
    let mut world = World::new(nodes, Network::new(faults, rng.fork()), rng.fork());
    world.stall = rng.pick(&[0.0, 0.0, 0.01]);
    world.max_stall = Duration::from_millis(20);
    world
}

fn random_world(seed: u64, defect: Option<Defect>) -> (OneWorld, Rng) {
    let mut rng = Rng::new(seed);
    let faults = Faults::random(&mut rng);
    let setups = setups(&mut rng, false);
    (world(&mut rng, faults, setups, defect), rng)
}

fn report(w: &OneWorld) -> String {
    let [a, b] = [0, 1].map(|i| {
        let node = &w.nodes[i];
        let (requester, responder) = (&node.requester, &node.responder);
        format!("{}\n{requester:?}\n{responder:?}", node.program.summary())
    });
    format!("at {:?}, {:?}\n{a}\n{b}", w.now, w.network.faults)
}

fn run_to_end(w: &mut OneWorld, mut done: impl FnMut(&mut OneWorld) -> bool) {
    let done = w.run(LIMIT, &mut done);
    assert!(done, "stuck {}", report(w));
}

fn all_done(w: &mut OneWorld) -> bool {
    w.nodes.iter().all(|n| n.program.is_done())
}

fn finish(w: &mut OneWorld) {
    let has_all = |n: &OneNode| n.program.is_done() && n.program.has_everything();
    run_to_end(w, |w| w.nodes.iter().all(has_all));
    for n in &w.nodes {
        n.program.check_end();
        assert_eq!(n.program.error, None, "{}", report(w));
        assert_eq!(n.program.events(), 0);
        assert_eq!(n.program.qp.state(), QpState::Rts);
    }
}

/// Completions in error do not stop the programs. Nor is it checked that the completion of a
/// request comes before the peer's answer to it: an acknowledgment is a packet of its own here, and
/// may be lost or overtaken where the message behind it is not.
fn let_fail(w: &mut OneWorld) {
    for n in &mut w.nodes {
        n.program.may_fail = true;
    }
}

#[test]
fn every_opcode_under_every_fault() {
    let counts = std::cell::Cell::new([0; 6]);
    seeds::run("one_psn::every_opcode_under_every_fault", SEEDS, |seed| {
        let mut w = random_world(seed, None).0;
        let_fail(&mut w);
        finish(&mut w);
        for n in &w.nodes {
            let (requester, responder) = (&n.requester, &n.responder);
            let [reads, atomics] = responder.answered_again;
            let done = [
                requester.repeated,
                requester.resumed,
                requester.refusals,
                responder.acknowledged_again,
                reads,
                atomics,
            ];
            counts.set(std::array::from_fn(|i| counts.get()[i] + done[i]));
        }
    });
    // Repeated, resumed, refused, acknowledged again, READs and atomics answered again.
    if seeds::are_all(SEEDS) {
        assert!(!counts.get().contains(&0), "{:?}", counts.get());
    }
}

/// With what no lossy network lets a transport promise: completions before answers.
#[test]
fn every_opcode_where_nothing_is_lost() {
    seeds::run("one_psn::where_nothing_is_lost", SEEDS, |seed| {
        let mut rng = Rng::new(seed);
        let delay = Duration::from_micros(rng.pick(&[5, 200, 30_000]));
        let faults = Faults {
            delay,
            ns_per_byte: rng.pick(&[0, 1, 8]),
            ..Faults::none()
        };
        let setups = setups(&mut rng, false);
        finish(&mut world(&mut rng, faults, setups, None));
    });
}

#[test]
fn a_bad_request_fails_alone_and_the_rest_is_flushed() {
    seeds::run("one_psn::a_bad_request_fails_alone", SEEDS, |seed| {
        let mut rng = Rng::new(seed);
        let faults = Faults::random(&mut rng);
        let mut setups = setups(&mut rng, false);
        setups[0].ops = rng.between(1, MAX_OPS);
        let at = rng.below(setups[0].ops);
        let (wr, status) = bad(&mut rng);
        let mut w = world(&mut rng, faults, setups, None);
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
    seeds::run("one_psn::memory_may_go", SEEDS, |seed| {
        let (mut w, mut rng) = random_world(seed, None);
        let_fail(&mut w);
        w.run(Instant(rng.below(3_000_000)), |_| false);
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

/// A READ that has long been answered comes once more, and its memory has gone meanwhile. Returns
/// whether that has left both queue pairs as they were; `None` where there was no such READ.
fn survives_late_duplicate(seed: u64, defect: Option<Defect>) -> Option<bool> {
    let area = Area::Source.key();
    let mut w = random_world(seed, defect).0;
    let_fail(&mut w);
    finish(&mut w);
    let node = &mut w.nodes[1];
    let last = node.responder.last_read(area);
    let header = last.filter(|header| header.args[0] > 0)?;
    node.program.with_host(|h| h.deregister(area));
    let mut packet = [0; OVERHEAD];
    header.emit(&[], &mut packet);
    node.on_datagram(w.now, &packet);
    w.run(LIMIT, |_| false);
    let is_up = |n: &OneNode| n.program.qp.state() == QpState::Rts && n.program.events() == 0;
    Some(w.nodes.iter().all(is_up))
}

#[test]
fn a_late_duplicate_of_a_read_does_no_harm_where_memory_has_gone() {
    let run = |defect| {
        let seeds = 0..DEFECT_SEEDS;
        let results = seeds.filter_map(|seed| survives_late_duplicate(seed, defect));
        results.collect::<Vec<bool>>()
    };
    let survived = run(None);
    assert!(!survived.is_empty(), "no READ to repeat");
    assert!(!survived.contains(&false), "{survived:?}");
    assert!(run(Some(Defect::RepeatsBlindly)).contains(&false));
}

#[test]
fn whoever_is_left_completes_everything() {
    seeds::run("one_psn::whoever_is_left", SEEDS, |seed| {
        let mut rng = Rng::new(seed);
        let faults = Faults::random(&mut rng);
        let mut setups = setups(&mut rng, false);
        (setups[0].ops, setups[0].timeout) = (MAX_OPS, 14);
        let mut w = world(&mut rng, faults, setups, None);
        let_fail(&mut w);
        w.run(Instant(rng.below(3_000_000)), |_| false);
        w.nodes[1].crashed = true;
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
    seeds::run("one_psn::refusals_end", 200, |seed| {
        let mut rng = Rng::new(seed);
        let faults = Faults::random(&mut rng);
        let mut setups = setups(&mut rng, false);
        refused::set_up(&mut setups, &mut rng);
        let mut w = world(&mut rng, faults, setups, None);
        refused::begin(w.nodes.each_mut().map(|n| &mut n.program));
        run_to_end(&mut w, |w| w.nodes[0].program.is_done());
        let refusals = w.nodes[0].requester.refusals;
        refused::check(&w.nodes[0].program, refusals);
    });
}

#[test]
fn every_defect_is_noticed() {
    for defect in [
        Defect::TakesAnyRequest,
        Defect::TakesAnyAnswer,
        Defect::RepeatsAtomics,
        Defect::KeepsNoAnswers,
        Defect::AcknowledgesEarly,
        Defect::NeverGoesBack,
        Defect::AsksFromTheStart,
        Defect::AnswersFromTheStart,
        Defect::KeepsNoNumbers,
    ] {
        let run = |seed| {
            let mut w = random_world(seed, Some(defect)).0;
            let_fail(&mut w);
            finish(&mut w);
        };
        let noticed = (0..DEFECT_SEEDS).any(|seed| std::panic::catch_unwind(|| run(seed)).is_err());
        assert!(noticed, "{defect:?} is not noticed");
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..20 {
        let [a, b] = [0, 1].map(|_| {
            let mut w = random_world(seed, None).0;
            let_fail(&mut w);
            finish(&mut w);
            report(&w)
        });
        assert_eq!(a, b);
    }
}
