//! The short way over TRP: what it sends is what the long way would send, and where it declines
//! nothing has changed.

use std::rc::Rc;

use causeway_proto::express;
use causeway_proto::qp::{Content, Express, Target};
use causeway_proto::trp::Transmit;
use causeway_proto::types::{Payload, SendFlags, SendOp, SendWr, Sge};
use causeway_proto::{Duration, Instant};
use causeway_sim::network::{Faults, Network};
use causeway_sim::program::{Shared, setups};
use causeway_sim::qp::QpNode;
use causeway_sim::rng::Rng;
use causeway_sim::workload::Area;
use causeway_sim::world::{Node, World};

/// Longest that a handshake may take, simulated.
const LIMIT: Instant = Instant(1_000_000_000);
/// Room for any datagram.
const ROOM: usize = 65_536;

/// Two queue pairs that are connected, and whose programs do nothing. Two of one seed are equal.
fn connected(seed: u64) -> World<QpNode> {
    let mut rng = Rng::new(seed);
    let mut setups = setups(&mut rng, seed.is_multiple_of(2));
    for setup in &mut setups {
        (setup.ops, setup.max_datagram) = (0, 1400);
    }
    let shared = Shared::new();
    let nodes = [0, 1].map(|side| QpNode::new(side, setups[side], Rc::clone(&shared), &mut rng));
    let network = Network::new(Faults::none(), rng.fork());
    let mut world = World::new(nodes, network, rng.fork());
    let done = world.run(LIMIT, |w| w.nodes.iter().all(|n| n.link.is_confirmed()));
    assert!(done);
    world.run(world.now + Duration::from_millis(1), |_| false);
    world
}

fn sge(length: u32) -> Sge {
    Sge {
        addr: Area::Source.base(),
        length,
        lkey: Area::Source.key(),
    }
}

/// A request as both ways take it.
fn both<'a>(n: u64, bytes: &'a [u8], write: bool, inline: bool) -> (SendWr, Express<'a>) {
    let length = u32::try_from(bytes.len()).unwrap();
    let to = write.then(|| Target {
        addr: Area::Target.base(),
        rkey: Area::Target.key(),
    });
    let op = to.map_or(SendOp::Send, |to| SendOp::Write {
        addr: to.addr,
        rkey: to.rkey,
    });
    let (payload, content) = match inline {
        true => (
            Payload::Inline(bytes.iter().copied().collect()),
            Content::Inline(bytes),
        ),
        false => (
            Payload::Sges([sge(length)].into_iter().collect()),
            Content::Range(sge(length)),
        ),
    };
    let flags = SendFlags::SIGNALED;
    let wr = SendWr {
        wr_id: n,
        op,
        flags,
        payload,
    };
    let request = Express {
        wr_id: n,
        flags,
        content,
        to,
    };
    (wr, request)
}

/// Posts a request the short way, if that takes it, and returns its datagram.
fn short(node: &mut QpNode, now: Instant, request: &Express<'_>) -> Option<Vec<u8>> {
    let link = &mut node.link;
    node.program.with(|qp, host| {
        let mut out = vec![0; ROOM];
        let sent = express::post((link, qp, host), now, request, &mut out)?;
        Some(cut(out, sent))
    })
}

/// Posts a request the long way, and returns its datagram.
fn long(node: &mut QpNode, now: Instant, wr: SendWr) -> Vec<u8> {
    node.program
        .with(|qp, host| qp.post_send(wr, host))
        .unwrap();
    next(node, now).expect("a datagram")
}

fn next(node: &mut QpNode, now: Instant) -> Option<Vec<u8>> {
    let mut out = vec![0; ROOM];
    let sent = node.poll_transmit(now, &mut out)?;
    Some(cut(out, sent))
}

fn cut(mut out: Vec<u8>, sent: Transmit) -> Vec<u8> {
    assert!(!sent.may_fragment);
    out.truncate(sent.len);
    out
}

#[test]
fn what_goes_the_short_way_is_what_the_long_one_would_send() {
    let bytes = [7; 100];
    for seed in 0..100 {
        let (mut a, mut b) = (connected(seed), connected(seed));
        assert_eq!(a.now, b.now);
        let mut rng = Rng::new(seed);
        for n in 0..10 {
            let len = rng.pick(&[0, 1, 8, 40, 41, 64]);
            let (wr, request) = both(n, &bytes[..len], rng.chance(0.5), rng.chance(0.5));
            let now = a.now;
            let sent = short(&mut a.nodes[0], now, &request).expect("it is taken");
            assert_eq!(sent, long(&mut b.nodes[0], now, wr), "request {n}");
            assert_eq!(next(&mut a.nodes[0], now), None);
            assert_eq!(next(&mut b.nodes[0], now), None);
            let deadlines = [&a, &b].map(|w| w.nodes[0].poll_timeout());
            assert_eq!(deadlines[0], deadlines[1], "request {n}");
            assert_eq!(a.nodes[0].link.stats(), b.nodes[0].link.stats());
        }
    }
}

#[test]
fn one_that_is_lost_is_sent_again() {
    let bytes = [7; 60];
    for write in [false, true] {
        let mut w = connected(1);
        let (_, request) = both(1, &bytes, write, true);
        let first = short(&mut w.nodes[0], w.now, &request).expect("it is taken");
        let at = w.nodes[0].link.poll_timeout().expect("a time-out");
        w.nodes[0].on_timeout(at);
        let again = next(&mut w.nodes[0], at).expect("a probe");
        // The probe asks for an acknowledgment, so the headers differ.
        assert_eq!(again.len(), first.len());
        assert!(again.ends_with(&bytes));
    }
}

#[test]
fn where_it_declines_nothing_has_changed() {
    let long_one = [7; 4000];
    let cases: [(&str, &[u8], SendFlags, bool); 4] = [
        (
            "more than one datagram",
            &long_one,
            SendFlags::SIGNALED,
            false,
        ),
        (
            "more than fits inline",
            &long_one,
            SendFlags::SIGNALED,
            true,
        ),
        ("a fence", &long_one[..8], SendFlags::FENCE, false),
        ("solicited", &long_one[..8], SendFlags::SOLICITED, false),
    ];
    for (why, bytes, flags, inline) in cases {
        let mut w = connected(2);
        let (_, mut request) = both(1, bytes, false, inline);
        request.flags = flags;
        let before = w.nodes[0].summary();
        assert_eq!(short(&mut w.nodes[0], w.now, &request), None, "{why}");
        assert_eq!(w.nodes[0].summary(), before, "{why}");
        w.nodes[0]
            .program
            .with(|qp, _| assert!(!qp.has_sends(), "{why}"));
    }
}

#[test]
fn it_waits_for_those_before_it_and_for_what_else_is_to_be_said() {
    let bytes = [7; 8];
    let mut w = connected(3);
    let now = w.now;
    let (wr, request) = both(1, &bytes, false, false);
    let node = &mut w.nodes[0];
    node.program
        .with(|qp, host| qp.post_send(wr, host))
        .unwrap();
    assert_eq!(short(node, now, &request), None, "one is not sent yet");
    assert!(next(node, now).is_some());
    assert!(short(node, now, &request).is_some(), "it is sent");
    node.link.hold_new_requests(true);
    assert_eq!(short(node, now, &request), None, "requests are held");
    node.link.hold_new_requests(false);
    let bad = Sge {
        lkey: Area::Foreign.key(),
        ..sge(8)
    };
    let foreign = Express {
        content: Content::Range(bad),
        ..request
    };
    assert_eq!(
        short(node, now, &foreign),
        None,
        "the memory is not its own"
    );
    assert!(short(node, now, &request).is_some());
}
