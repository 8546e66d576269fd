//! Single behaviours of TRP, each in a world arranged for it.

use causeway_proto::trp::{
    Config, Connection, DropReason, Expecting, Reason, SendConfig, Transmit, reset_for,
};
use causeway_proto::ulp::Nak;
use causeway_proto::{Duration, Instant};
use causeway_sim::mock::{MockNode, MockUlp, Plan};
use causeway_sim::network::{Faults, Network};
use causeway_sim::rng::Rng;
use causeway_sim::world::World;

const SEC: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const US: u64 = 1_000;

fn plan(requests: &[u64], responses: &[u64]) -> Plan {
    Plan {
        key: 5,
        requests: requests.to_vec(),
        responses: responses.to_vec(),
        psn: 77,
    }
}

fn config(me: u32, psn: u32) -> Config {
    Config {
        max_datagram: 1472,
        ..Config::new(me, 3 - me, 0x1000 + u64::from(me), psn)
    }
}

fn node(me: u32, out: &Plan, inn: &Plan) -> MockNode {
    let mut link = Connection::new(config(me, inn.psn), Instant(0));
    link.start(SendConfig {
        sq_psn: out.psn,
        timeout: 14,
        retry_cnt: 7,
    });
    MockNode::new(link, MockUlp::new(out, inn, Rng::new(u64::from(me))))
}

fn pair(a: &Plan, b: &Plan, faults: Faults) -> World<MockNode> {
    let nodes = [node(1, a, b), node(2, b, a)];
    World::new(nodes, Network::new(faults, Rng::new(1)), Rng::new(2))
}

fn connected() -> World<MockNode> {
    let mut w = pair(&plan(&[1], &[]), &plan(&[1], &[]), Faults::none());
    assert!(w.run(Instant(SEC), |w| {
        w.nodes.iter().all(|n| n.ulp.is_complete())
    }));
    w
}

/// Runs until nothing is left to do or `limit` has passed.
fn settle(w: &mut World<MockNode>, limit: u64) {
    let end = Instant(w.now.0 + limit);
    w.run(end, |_| false);
    w.now = end;
}

fn dead(w: &mut World<MockNode>) {
    let from = w.now;
    w.network
        .faults
        .partitions
        .push((from, Instant(u64::MAX), 2));
}

#[test]
fn the_peer_may_start_later() {
    let (a, b) = (plan(&[3], &[]), plan(&[], &[]));
    let late = 7 * MS;
    let faults = Faults {
        partitions: vec![(Instant(0), Instant(late), 1)],
        ..Faults::none()
    };
    let mut w = pair(&a, &b, faults);
    // Only one side has anything to say.
    assert!(w.run(Instant(SEC), |w| {
        w.nodes.iter().all(|n| n.ulp.is_complete())
    }));
    assert!(w.now < Instant(late + 20 * MS), "{:?}", w.now);
}

#[test]
fn first_datagrams_that_are_all_lost_are_repeated_soon() {
    // Both sides begin at once. Their handshake passes, and nothing else for a while.
    let rtt = 40 * US;
    let faults = Faults {
        partitions: vec![(Instant(rtt), Instant(rtt + MS), 2)],
        ..Faults::none()
    };
    let mut w = pair(&plan(&[20], &[]), &plan(&[20], &[]), faults);
    let done = w.run(Instant(SEC), |w| {
        w.nodes.iter().all(|n| n.ulp.is_complete())
    });
    assert!(done && w.network.dropped > 0);
    // The round trip is known from the handshake: a probe, and not the first time-out of 50 ms.
    assert!(w.now < Instant(10 * MS), "{:?}", w.now);
}

#[test]
fn a_responder_answers_before_it_may_send() {
    let (a, b) = (plan(&[2], &[]), plan(&[], &[4]));
    let mut w = pair(&a, &b, Faults::none());
    w.nodes[1].link = Connection::new(config(2, a.psn), Instant(0));
    assert!(w.run(Instant(SEC), |w| {
        w.nodes.iter().all(|n| n.ulp.is_complete())
    }));
}

#[test]
fn a_peer_with_another_first_psn_is_not_accepted() {
    let mut w = pair(&plan(&[2], &[]), &plan(&[], &[]), Faults::none());
    w.nodes[1].link = Connection::new(config(2, 78), Instant(0));
    settle(&mut w, 10 * SEC);
    assert!(w.nodes[0].ulp.lost && w.nodes[1].link.peer().is_none());
    assert!(w.nodes[1].link.stats().rx_dropped > 0);
}

#[test]
fn a_silent_peer_is_lost_when_the_budget_is_used_up() {
    let mut w = connected();
    dead(&mut w);
    let from = w.now;
    w.nodes[0].ulp.post(10);
    assert!(w.run(Instant(60 * SEC), |w| w.nodes[0].ulp.lost));
    let after = w.now.since(from);
    assert!(
        (Duration::from_secs(4)..Duration::from_millis(4100)).contains(&after),
        "{after:?}"
    );
    assert!(w.nodes[0].link.is_closed() && w.nodes[0].link.poll_timeout().is_none());
}

#[test]
fn a_timeout_code_of_zero_never_gives_up() {
    let mut w = pair(&plan(&[1], &[]), &plan(&[], &[]), Faults::none());
    w.nodes[0].link = Connection::new(config(1, 77), Instant(0));
    w.nodes[0].link.start(SendConfig {
        sq_psn: 77,
        timeout: 0,
        retry_cnt: 0,
    });
    w.run(Instant(SEC), |w| w.nodes[0].ulp.is_complete());
    w.network
        .faults
        .partitions
        .push((w.now, Instant(w.now.0 + 300 * SEC), 2));
    w.nodes[0].ulp.post(1);
    settle(&mut w, 299 * SEC);
    assert!(!w.nodes[0].ulp.lost);
    assert!(w.run(Instant(u64::MAX), |w| w.nodes[0].ulp.is_acked()));
}

#[test]
fn a_reset_must_prove_itself() {
    let mut w = connected();
    let now = w.now;
    let a = &mut w.nodes[0];
    let mut out = vec![0; 2000];
    a.ulp.post(1);
    let Transmit { len, .. } = a
        .link
        .poll_transmit(now, &mut a.ulp, &mut out)
        .expect("data");
    let mut reset = [0; 64];
    let n = reset_for(&out[..len], Reason::Unknown, &mut reset).expect("a reset");
    // Wrong cookie, right checksum: somebody guesses.
    let mut forged = out[..len].to_vec();
    forged[9] ^= 1;
    let mut guess = [0; 64];
    let g = reset_for(&forged, Reason::Unknown, &mut guess).expect("a reset");
    let result = a.link.on_datagram(now, &guess[..g], &mut a.ulp);
    assert_eq!(result, Err(DropReason::Cookie));
    assert!(!a.ulp.lost);
    assert_eq!(a.link.on_datagram(now, &reset[..n], &mut a.ulp), Ok(()));
    assert!(a.ulp.lost);
    // Nothing answers a reset, nor an acknowledgment.
    assert_eq!(reset_for(&reset[..n], Reason::Unknown, &mut guess), None);
}

#[test]
fn a_restarted_peer_is_told_apart() {
    let mut w = connected();
    // Datagrams of the old connection are still on their way when the peer comes up again.
    w.nodes[0].ulp.post(3);
    let end = Instant(w.now.0 + 10 * US);
    w.run(end, |_| false);
    let (a, b) = (plan(&[1], &[]), plan(&[], &[]));
    w.nodes[1] = node(2, &b, &a);
    w.nodes[1].link = Connection::new(
        Config {
            cookie: 0xFEED,
            ..config(2, 77)
        },
        w.now,
    );
    settle(&mut w, SEC);
    assert_eq!(
        w.nodes[1].ulp.received(),
        0,
        "what is old is not taken for new"
    );
    let dropped = w.nodes[1].link.stats().rx_dropped;
    assert!(dropped > 0 && w.nodes[1].link.peer().is_none());
    // The old connection learns it from the first answer, and the next one finds its peer.
    let now = w.now;
    let n = &mut w.nodes[0];
    let mut out = vec![0; 2000];
    n.link.flush_acks();
    n.ulp.post(1);
    let mut reset = [0; 64];
    let at = n.link.poll_timeout().expect("it tries again");
    n.link.on_timeout(at, &mut n.ulp);
    let len = n
        .link
        .poll_transmit(at, &mut n.ulp, &mut out)
        .expect("data")
        .len;
    let answer =
        w.nodes[1]
            .link
            .on_datagram(now, &out[..len], &mut MockUlp::new(&b, &a, Rng::new(0)));
    assert_eq!(answer, Err(DropReason::Cookie));
    let len = reset_for(&out[..len], Reason::Unknown, &mut reset).expect("a reset");
    let n = &mut w.nodes[0];
    assert_eq!(n.link.on_datagram(at, &reset[..len], &mut n.ulp), Ok(()));
    assert!(n.ulp.lost);
    w.nodes[0] = node(1, &a, &b);
    w.nodes[0].link = Connection::new(
        Config {
            cookie: 0xBEEF,
            ..config(1, 77)
        },
        w.now,
    );
    w.nodes[0].link.start(SendConfig {
        sq_psn: 77,
        timeout: 14,
        retry_cnt: 7,
    });
    let end = Instant(w.now.0 + SEC);
    assert!(w.run(end, |w| w.nodes[1].ulp.received() == 1));
}

#[test]
fn an_orderly_end_hurts_only_who_still_wants_something() {
    for (expecting, lost) in [
        (Expecting::Nothing, false),
        (Expecting::Requests, false),
        (Expecting::Answers, true),
    ] {
        let mut w = connected();
        w.nodes[0].link.set_expecting(w.now, expecting);
        w.nodes[1].link.shutdown(Reason::Closed);
        settle(&mut w, 2 * SEC);
        assert_eq!(w.nodes[0].ulp.lost, lost, "{expecting:?}");
        if !lost {
            // The next request finds out.
            w.nodes[0].ulp.post(1);
            settle(&mut w, 2 * SEC);
            assert!(w.nodes[0].ulp.lost);
        }
    }
}

#[test]
fn a_peer_that_dies_in_silence_is_missed_only_by_who_expects_something() {
    for (expecting, lost) in [(false, false), (true, true)] {
        let mut w = connected();
        w.nodes[0].link.set_expecting(w.now, expecting);
        dead(&mut w);
        settle(&mut w, 20 * SEC);
        assert_eq!(w.nodes[0].ulp.lost, lost);
        assert_eq!(w.nodes[0].link.stats().pings > 0, lost);
    }
}

#[test]
fn signs_of_life_become_rare() {
    let mut w = connected();
    w.nodes[0].link.set_expecting(w.now, true);
    settle(&mut w, 600 * SEC);
    let pings = w.nodes[0].link.stats().pings;
    // After 1, 3, 7, 15, 31, 63 seconds, then once a minute.
    assert!((14..=17).contains(&pings), "{pings}");
    assert!(!w.nodes[0].ulp.lost);
}

#[test]
fn a_refusal_for_good_reaches_the_requester() {
    for seed in 0..50 {
        let faults = Faults {
            loss: 0.2,
            ..Faults::none()
        };
        let mut w = pair(&plan(&[5, 5, 5], &[]), &plan(&[], &[]), faults);
        w.network = Network::new(w.network.faults.clone(), Rng::new(seed));
        w.nodes[1].ulp.refuse = Some(77 + 7);
        assert!(w.run(Instant(20 * SEC), |w| w.nodes[0].ulp.refused.is_some()));
        assert_eq!(w.nodes[0].ulp.refused, Some((77 + 7, Nak::RemoteAccess)));
    }
}

#[test]
fn a_late_refusal_survives_loss() {
    let mut w = connected();
    // The refusal itself is lost; the next sign of life brings it again.
    w.network
        .faults
        .partitions
        .push((w.now, Instant(w.now.0 + MS), 2));
    w.nodes[0].link.set_expecting(w.now, Expecting::Answers);
    w.nodes[1].link.refuse(77, Nak::RemoteAccess);
    assert!(w.run(Instant(5 * SEC), |w| w.nodes[0].ulp.refused.is_some()));
}

#[test]
fn garbage_and_strangers_leave_the_connection_unharmed() {
    let mut w = connected();
    let mut rng = Rng::new(9);
    let now = w.now;
    let mut out = vec![0; 2000];
    w.nodes[1].ulp.post(1);
    let n = &mut w.nodes[1];
    let len = n
        .link
        .poll_transmit(now, &mut n.ulp, &mut out)
        .expect("data")
        .len;
    let n = &mut w.nodes[0];
    let before = n.link.stats();
    for _ in 0..20_000 {
        let mut d = out[..len].to_vec();
        for _ in 0..rng.below(6) {
            let at = rng.below(d.len() as u64) as usize;
            d[at] = rng.next_u64() as u8;
        }
        // A wrong cookie, else it might be taken for the real thing.
        let right = out[8..16].first_chunk().expect("8 bytes");
        let wrong = u64::from_be_bytes(*right) ^ (1 << rng.below(64));
        d[8..16].copy_from_slice(&wrong.to_be_bytes());
        d.truncate(rng.below(d.len() as u64 + 1) as usize);
        let _ = n.link.on_datagram(now, &d, &mut n.ulp);
    }
    let after = n.link.stats();
    assert_eq!(after.rx_packets, before.rx_packets, "{after:?}");
    assert_eq!(n.link.on_datagram(now, &out[..len], &mut n.ulp), Ok(()));
    assert!(!n.ulp.lost);
}

#[test]
fn a_shrunken_path_is_noticed() {
    let mut w = connected();
    w.network.faults.mtu_later = 1300;
    w.network.faults.mtu_changes_at = w.now;
    w.nodes[0].ulp.post(500);
    assert!(w.run(Instant(60 * SEC), |w| w.nodes[0].ulp.is_acked()));
    let datagram = w.nodes[0].link.stats().datagram;
    assert!((1200..=1300).contains(&datagram), "{datagram}");
    assert!(w.now < Instant(SEC), "{:?}", w.now);
}

#[test]
fn a_path_that_has_recovered_is_used_again() {
    let mut w = connected();
    let full = w.nodes[0].link.stats().datagram;
    w.network.faults.mtu_later = 1300;
    w.network.faults.mtu_changes_at = w.now;
    // A first try while it is still narrow, and a second when it is wide again.
    for (wait, mtu, least) in [(0, 1300, 1200), (21, 1300, 1200), (21, usize::MAX, full)] {
        w.network.faults.mtu_later = mtu;
        w.now = Instant(w.now.0 + wait * SEC);
        for _ in 0..20 {
            w.nodes[0].ulp.post(50);
            let end = Instant(w.now.0 + 60 * SEC);
            assert!(w.run(end, |w| w.nodes[0].ulp.is_acked()));
        }
        let datagram = w.nodes[0].link.stats().datagram;
        assert!((least..=mtu.min(full)).contains(&datagram), "{datagram}");
    }
    assert!(full > 1200);
}

#[test]
fn a_host_that_stalls_costs_no_window() {
    let mut w = connected();
    for _ in 0..20 {
        w.nodes[0].ulp.post(100);
        let now = w.now;
        // The peer's process loses its CPU for longer than the time-out.
        w.pause(1, Instant(now.0 + 30 * MS));
        assert!(w.run(Instant(100 * SEC), |w| w.nodes[0].ulp.is_acked()));
    }
    let stats = w.nodes[0].link.stats();
    assert!(
        stats.timeouts > 0 && stats.congestion_window > 30_000,
        "{stats:?}"
    );
}

/// Time in which `segments` of one request cross a path, and the sender's figures.
fn transfer(faults: Faults, segments: u64) -> (Duration, causeway_proto::trp::Stats) {
    let mut w = connected();
    w.network.faults = faults;
    let from = w.now;
    w.nodes[0].ulp.post(segments);
    assert!(w.run(Instant(1000 * SEC), |w| w.nodes[0].ulp.is_acked()));
    (w.now.since(from), w.nodes[0].link.stats())
}

#[test]
fn a_clean_path_is_filled_without_a_single_retransmission() {
    // 1 Gbit/s, 100 µs: 8 ns per byte.
    let faults = Faults {
        ns_per_byte: 8,
        delay: Duration::from_micros(50),
        ..Faults::none()
    };
    let (time, stats) = transfer(faults, 10_000);
    let least = Duration::from_nanos(stats.tx_bytes * 8);
    assert_eq!(stats.retransmits, 0, "{stats:?}");
    assert!(time < least.mul_f64(1.1), "{time:?} for {least:?}");
}

#[test]
fn a_short_queue_is_shared_not_flooded() {
    let faults = Faults {
        ns_per_byte: 8,
        queue: 60_000,
        delay: Duration::from_micros(100),
        ..Faults::none()
    };
    let (time, stats) = transfer(faults, 20_000);
    let least = Duration::from_nanos(stats.tx_bytes * 8);
    assert!(
        time < least.mul_f64(1.4),
        "{time:?} for {least:?}: {stats:?}"
    );
    assert!(stats.retransmits < 1000, "{stats:?}");
}

#[test]
fn throughput_declines_gently_with_loss() {
    let mut last = Duration::ZERO;
    for (loss, most) in [
        (0.0, 40),
        (0.001, 60),
        (0.01, 250),
        (0.05, 900),
        (0.2, 8000),
    ] {
        let faults = Faults {
            loss,
            ns_per_byte: 1,
            ..Faults::none()
        };
        let (time, stats) = transfer(faults, 10_000);
        assert!(
            time < Duration::from_millis(most),
            "{loss}: {time:?} {stats:?}"
        );
        assert!(
            stats.retransmits < (10_000.0 * loss * 2.5) as u64 + 10,
            "{loss}: {stats:?}"
        );
        last = last.max(time);
    }
    assert!(last > Duration::ZERO);
}

#[test]
fn a_ping_pong_takes_one_datagram_each_way() {
    let mut w = connected();
    let before = w.nodes[0].link.stats().tx_packets;
    let mut turn = 0;
    let mut left = 200;
    w.nodes[0].ulp.post(1);
    // A program that answers 2 µs after it got the message, and has polled meanwhile.
    for n in &mut w.nodes {
        n.patience = 3;
    }
    let mut got = [w.nodes[0].ulp.received(), w.nodes[1].ulp.received()];
    while left > 0 {
        let other = 1 - turn;
        let end = Instant(w.now.0 + SEC);
        assert!(w.run(end, |w| w.nodes[other].ulp.received() > got[other]));
        got[other] = w.nodes[other].ulp.received();
        w.now = Instant(w.now.0 + 2 * US);
        w.nodes[other].ulp.post(1);
        turn = other;
        left -= 1;
    }
    settle(&mut w, SEC);
    let packets = w.nodes[0].link.stats().tx_packets - before;
    assert!(packets <= 110, "{packets} for 100 messages");
}

#[test]
fn a_lone_message_is_acknowledged_within_a_round_trip() {
    let mut w = connected();
    let mut worst = Duration::ZERO;
    for i in 0..100 {
        let from = w.now;
        w.nodes[0].ulp.post(1);
        let end = Instant(w.now.0 + SEC);
        assert!(w.run(end, |w| w.nodes[0].ulp.is_acked()));
        if i >= 10 {
            worst = worst.max(w.now.since(from));
        }
        w.now = Instant(w.now.0 + 100 * US);
    }
    assert!(
        worst <= Duration::from_micros(41),
        "{worst:?} on a path of 40 µs"
    );
}
