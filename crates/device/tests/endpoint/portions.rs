//! What a program that waits for events gets in portions: none of its peers waits for ever for its
//! turn.

use std::sync::Arc;

use causeway_device::CompChannel;
use causeway_proto::types::{SendOp, WcStatus};

use crate::broker::{Broker, until};
use crate::side::{DEPTH, Side, connect, exchange};

/// Rings that are polled on every progress (`HOT_RINGS` of `device::progress`).
const HOT_RINGS: usize = 16;
/// Completions that are enough for a program that waits for events.
const PORTION: usize = 16;

/// A side of an endpoint that completes all to one queue with a channel, and its peer.
type Pair = (Side, Side);

/// So many of them, in the order in which they were connected.
fn many(broker: &Broker, count: usize) -> (Vec<Pair>, Arc<CompChannel>) {
    let (first, channel) = Side::with_channel(broker);
    let peers = broker.open().unwrap();
    let mut sides = vec![first];
    (1..count).for_each(|_| sides.push(Side::beside(&sides[0])));
    let pair = |side: Side| {
        let peer = Side::of(Arc::clone(&peers));
        connect(&side, &peer);
        (side, peer)
    };
    (sides.into_iter().map(pair).collect(), channel)
}

/// Has peers send so many messages each while nobody looks, and waits until all have been received,
/// by the helper: the program takes none. Returns the queue pairs that it then finds completions
/// of, in their order.
fn receive(sends: &[(&Pair, SendOp, u32)]) -> Vec<u32> {
    let mut left = 0;
    for ((side, _), _, count) in sends {
        (0..*count).for_each(|id| side.post_recv(id.into(), 8));
        left += *count as usize;
    }
    let total = left;
    let cq = &sends[0].0.0.cq;
    until("the lock of who is sent to", || {
        let Some(_held) = cq.hurry() else {
            cq.poll(1, |wc, _| panic!("{wc:?}")).unwrap();
            return false;
        };
        for ((_, peer), op, count) in sends {
            (0..*count).for_each(|id| peer.post(id.into(), *op, 0).unwrap());
        }
        true
    });
    until("acknowledgments of all", || {
        for ((_, peer), ..) in sends {
            let acked = |status| assert_eq!(status, WcStatus::Success);
            left -= peer.cq.poll(total, |wc, _| acked(wc.status)).unwrap();
        }
        left == 0
    });
    let mut found = Vec::new();
    until("all messages", || {
        cq.poll(total, |wc, _| found.push(wc.qp_num)).unwrap();
        found.len() == total
    });
    found
}

/// Where the first completion of a pair is.
fn turn(found: &[u32], (side, _): &Pair) -> usize {
    let own = side.qp.qpn();
    found.iter().position(|qpn| *qpn == own).unwrap()
}

#[test]
fn who_announces_itself_has_its_turn_while_another_sends_on() {
    let broker = Broker::start();
    let (pairs, _channel) = many(&broker, HOT_RINGS + 2);
    let (quiet, busy) = (&pairs[0], &pairs[HOT_RINGS + 1]);
    // What was connected first is polled no more after that.
    exchange(&busy.0, &busy.1, 1);
    let found = receive(&[(busy, SendOp::Send, DEPTH), (quiet, SendOp::Send, 1)]);
    assert!(turn(&found, quiet) <= 2 * PORTION, "{found:?}");
}

#[test]
fn who_sends_on_takes_turns_with_another_that_does() {
    let broker = Broker::start();
    let (pairs, _channel) = many(&broker, 2);
    // Not the short way.
    let op = SendOp::SendImm(1);
    let [one, other] = [0, 1].map(|at| &pairs[at]);
    let found = receive(&[(one, op, DEPTH), (other, op, DEPTH)]);
    for pair in [one, other] {
        assert!(turn(&found, pair) <= 2 * PORTION, "{found:?}");
    }
}
