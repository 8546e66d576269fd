//! Two queue pairs over TRP under faults: exactly-once placement, order, bytes, completions in
//! order, atomics, refusals for want of a receive, and no work request that never completes.

use causeway_proto::types::{
    Payload, QpState, RNR_RETRY_INFINITE, SendFlags, SendOp, SendWr, SgList, Sge, WcStatus,
};
use causeway_proto::{Duration, Instant};
use causeway_sim::network::{Faults, Network};
use causeway_sim::qp::{Crash, QpNode, Setup, Shared};
use causeway_sim::rng::Rng;
use causeway_sim::seeds;
use causeway_sim::workload::{Area, MAX_LEN, MAX_OPS};
use causeway_sim::world::{Node, World};

/// Seeds of the main test.
const SEEDS: u64 = 10_000;
/// Code that grants 34 s: at 20 % loss even that many retries may fail in a row otherwise.
const PATIENT: u8 = 20;
/// Longest a run may take, simulated.
const LIMIT: Instant = Instant(900_000_000_000);

fn setups(rng: &mut Rng, crc: bool) -> [Setup; 2] {
    let psns = [0; 2].map(|_| {
        if rng.chance(0.3) {
            0xFF_FFF0
        } else {
            rng.below(1 << 24) as u32
        }
    });
    let depths = [0; 2].map(|_| rng.pick(&[1, 2, 4, 16]));
    let mut one = |me: usize| Setup {
        psns: [psns[me], psns[1 - me]],
        // Each side keeps to what the other one takes.
        rd_atomic: [depths[1 - me], depths[me]],
        timeout: PATIENT,
        rnr_retry: RNR_RETRY_INFINITE,
        min_rnr_timer: rng.pick(&[1, 5, 12]),
        max_datagram: rng.pick(&[600, 1200, 1472, 4000, 9000]),
        crc,
        srq: rng.chance(0.2),
        ops: rng.below(MAX_OPS + 1),
        starve: rng.pick(&[0.0, 0.0, 0.1, 0.5]),
        receive_len: MAX_LEN,
        one_by_one: false,
    };
    [one(0), one(1)]
}

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
        w.nodes.iter().all(|n| n.is_done() && n.has_everything())
    });
    assert!(done, "stuck {}", report(w));
    for n in &w.nodes {
        n.check_end();
        assert_eq!(n.events(), 0);
        assert_eq!(n.qp.state(), QpState::Rts);
    }
}

#[test]
fn every_opcode_under_every_fault() {
    seeds::run("every_opcode_under_every_fault", SEEDS, |seed| {
        finish(&mut random_world(seed).0)
    });
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
                let slowest = n.slowest.get(&0).copied().unwrap_or_default();
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
        500,
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
                for (times, slowest) in &n.slowest {
                    let most = faults.delay * (3 + 2 * *times as u32);
                    assert!(*slowest <= most, "{times}: {slowest:?}: {}", report(&w));
                    refused.set(refused.get() + times);
                }
            }
        },
    );
    assert!(refused.get() > 0, "nothing was refused");
}

/// A work request that must fail, and the status it must fail with.
fn bad(rng: &mut Rng) -> (SendWr, WcStatus) {
    let sge = |area: Area, length| {
        let sge = Sge {
            addr: area.base(),
            length,
            lkey: area.key(),
        };
        Payload::Sges(SgList::from_slice(&[sge]))
    };
    let write = |area: Area, skew: u64| SendOp::Write {
        addr: area.base() + skew,
        rkey: area.key(),
    };
    let read = |area: Area, skew: u64| SendOp::Read {
        addr: area.base() + skew,
        rkey: area.key(),
    };
    let counters = Area::Counters.base();
    let access = WcStatus::RemAccessErr;
    let (op, payload, status) = match rng.below(9) {
        0 => (
            SendOp::Write {
                addr: 0,
                rkey: 0xBAD,
            },
            sge(Area::Source, 3000),
            access,
        ),
        1 => (write(Area::Hot, 10), sge(Area::Source, 7), access),
        2 => (write(Area::Source, 0), sge(Area::Source, 7), access),
        3 => (write(Area::Foreign, 0), sge(Area::Source, 7), access),
        4 => (read(Area::Target, 0), sge(Area::Sink, 5000), access),
        5 => (read(Area::Hot, 1), sge(Area::Sink, 16), access),
        6 => {
            let op = SendOp::FetchAdd {
                addr: counters + 4,
                rkey: Area::Counters.key(),
                add: 1,
            };
            (op, sge(Area::Sink, 8), WcStatus::RemInvReqErr)
        }
        // One byte more than any receive has.
        7 => (
            SendOp::Send,
            sge(Area::Target, MAX_LEN as u32 + 1),
            WcStatus::RemInvReqErr,
        ),
        _ => (SendOp::Send, sge(Area::Foreign, 7), WcStatus::LocProtErr),
    };
    (
        SendWr {
            wr_id: 0,
            op,
            flags: SendFlags::SIGNALED,
            payload,
        },
        status,
    )
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
            w.nodes[0].bad = Some((at, wr, status));
            for n in &mut w.nodes {
                n.may_fail = true;
            }
            let done = w.run(LIMIT, |w| w.nodes.iter().all(QpNode::is_done));
            assert!(done, "stuck {}", report(&w));
            let (failed, got) = w.nodes[0].error.expect("it failed");
            // Where both sides have work, the peer's failure after the refusal may not come first.
            assert_eq!((failed, got), (at, status), "{}", report(&w));
            assert_eq!(w.nodes[0].qp.state(), QpState::Err);
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
            n.may_fail = true;
        }
        let when = Instant(rng.below(3_000_000));
        w.run(when, |_| false);
        w.nodes[1].with_host(|h| h.deregister(Area::Source.key()));
        let done = w.run(LIMIT, |w| w.nodes.iter().all(QpNode::is_done));
        assert!(done, "stuck {}", report(&w));
        // A READ meets its end at the peer; the peer's own sends find their memory gone. Either
        // takes the other side with it, by a refusal or by silence.
        let allowed = |side: usize, status: WcStatus| match status {
            WcStatus::RemAccessErr => side == 0,
            WcStatus::LocProtErr => side == 1,
            WcStatus::RetryExcErr | WcStatus::WrFlushErr => true,
            _ => false,
        };
        for (side, n) in w.nodes.iter().enumerate() {
            let fine = n.error.is_none_or(|(_, status)| allowed(side, status));
            assert!(fine, "{}", report(&w));
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
                n.may_fail = true;
            }
            let when = Instant(rng.below(3_000_000));
            w.run(when, |_| false);
            let how = rng.pick(&[Crash::Silent, Crash::Resets, Crash::Port]);
            let connected = w.nodes[0].link.is_confirmed();
            w.nodes[1].crashed = Some(how);
            w.now = w.now.max(when);
            let crashed_at = w.now;
            let done = w.run(LIMIT, |w| w.nodes[0].is_done());
            assert!(done, "stuck {}", report(&w));
            let Some((_, status)) = w.nodes[0].error else {
                return;
            };
            // What is posted after the failure is flushed, and all may have been done before it.
            let expected = matches!(status, WcStatus::RetryExcErr | WcStatus::WrFlushErr);
            assert!(expected, "{}", report(&w));
            let after = w.nodes[0].error_at.expect("an error").since(crashed_at);
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
        setups[0].ops = 4;
        setups[0].rnr_retry = rng.below(4) as u8;
        setups[1].ops = 0;
        setups[1].starve = 0.0;
        setups[1].srq = true;
        let mut w = world(&mut rng, faults, setups);
        w.nodes[0].may_fail = true;
        let sge = Sge {
            addr: Area::Source.base(),
            length: 2000,
            lkey: Area::Source.key(),
        };
        let payload = Payload::Sges(SgList::from_slice(&[sge]));
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload,
        };
        w.nodes[0].bad = Some((0, wr, WcStatus::RnrRetryExcErr));
        // Nobody ever posts a receive.
        w.nodes[1].starve_for_ever();
        let done = w.run(LIMIT, |w| w.nodes[0].is_done());
        assert!(done, "stuck {}", report(&w));
        assert_eq!(
            w.nodes[0].error,
            Some((0, WcStatus::RnrRetryExcErr)),
            "{}",
            report(&w)
        );
        let refusals = w.nodes[0].link.stats().rnr_received;
        assert_eq!(
            refusals,
            u64::from(setups[0].rnr_retry) + 1,
            "one per attempt"
        );
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
