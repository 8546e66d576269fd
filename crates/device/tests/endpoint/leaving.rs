//! Peers that leave, die or exit while something is posted to them.

use std::collections::BTreeSet;

use causeway_fabric::services::PeerChange;
use causeway_proto::types::{QpState, SendOp, WcStatus};

use crate::broker::{Broker, until};
use crate::peer::Peer;
use crate::side::{DEPTH, Side, connected, exchange};

/// What has been posted, and has not completed.
#[derive(Default)]
struct Posted {
    open: BTreeSet<u64>,
    failed: u64,
    done: u64,
}

impl Posted {
    /// Posts sends as long as there is room, and takes what has completed.
    fn turn(&mut self, side: &Side) {
        let next = self.done + self.failed + self.open.len() as u64;
        if (self.open.len() as u32) < DEPTH && side.post(next, SendOp::Send, 0).is_ok() {
            self.open.insert(next);
        }
        self.take(side);
    }

    fn take(&mut self, side: &Side) {
        let taken = side.cq.poll(DEPTH as usize, |wc, _| {
            assert!(self.open.remove(&wc.wr_id), "{} twice", wc.wr_id);
            match wc.status {
                // Nothing succeeds after something has failed.
                WcStatus::Success => assert_eq!(self.failed, 0),
                _ => self.failed += 1,
            }
            self.done += u64::from(wc.status == WcStatus::Success);
        });
        taken.unwrap();
    }

    /// All that was posted completes, and what is posted now fails.
    fn close(mut self, side: &Side) {
        self.drain(side);
        self.turn(side);
        self.drain(side);
        assert!(self.failed > 0);
        assert_eq!(side.state(), QpState::Err);
    }

    fn drain(&mut self, side: &Side) {
        until("completions", || {
            self.take(side);
            self.open.is_empty()
        });
    }
}

/// Takes messages and posts receives again.
fn serve(side: &Side) {
    let mut taken = 0;
    side.cq
        .poll(DEPTH as usize, |wc, _| {
            taken += u64::from(wc.status == WcStatus::Success);
        })
        .unwrap();
    (0..taken).for_each(|_| side.post_recv(0, 8));
}

/// Has `a` post while `b` takes, until `b` has gone by `leave`.
fn while_posting(leave: impl FnOnce(&Broker, &Side, Side) + Send) {
    let broker = Broker::start();
    let (a, b) = connected(&broker);
    (0..DEPTH / 2).for_each(|_| b.post_recv(0, 8));
    let mut posted = Posted::default();
    std::thread::scope(|scope| {
        let (broker, a) = (&broker, &a);
        let leaves = scope.spawn(move || {
            (0..1000).for_each(|_| serve(&b));
            leave(broker, a, b);
        });
        while a.state() == QpState::Rts {
            posted.turn(a);
        }
        leaves.join().unwrap();
    });
    posted.close(&a);
}

#[test]
fn a_peer_destroys_its_queue_pair() {
    while_posting(|_, _, b| b.qp.destroy().unwrap());
}

#[test]
fn a_peer_closes_its_device() {
    while_posting(|_, _, b| drop(b));
}

#[test]
fn a_peer_is_said_to_be_dead() {
    while_posting(|broker, a, b| {
        broker.tell(a.qp.qpn(), PeerChange::Dead);
        until("the end", || a.state() == QpState::Err);
        drop(b);
    });
}

#[test]
fn a_peer_that_has_exited_is_noticed_by_a_request() {
    let broker = Broker::start();
    let (a, b) = connected(&broker);
    exchange(&a, &b, 1);
    broker.tell(a.qp.qpn(), PeerChange::Exited);
    let (c, d) = connected(&broker);
    exchange(&c, &d, 1);
    assert_eq!(a.state(), QpState::Rts);
    a.post(2, SendOp::Send, 0).unwrap();
    assert_eq!(a.wait().status, WcStatus::RetryExcErr);
    assert_eq!(a.state(), QpState::Err);
}

#[test]
fn a_death_of_an_earlier_peer_is_none_of_the_next_ones() {
    let broker = Broker::start();
    let (a, b) = connected(&broker);
    let stale = broker.with_tables(|tables| tables.news_of(a.qp.qpn(), PeerChange::Dead));
    exchange(&a, &b, 1);
    [&a, &b].into_iter().for_each(Side::to_reset);
    crate::side::connect(&a, &b);
    broker.with_tables(|tables| tables.news.extend(stale));
    broker.tell(a.qp.qpn(), PeerChange::Joined);
    (2..100).for_each(|value| exchange(&a, &b, value));
    assert_eq!(a.state(), QpState::Rts);
}

#[test]
fn a_peer_that_says_nothing_is_given_up() {
    let broker = Broker::start();
    let side = Side::new(&broker);
    let _peer = Peer::of(&broker, &side);
    side.post(1, SendOp::Send, 0).unwrap();
    assert_eq!(side.wait().status, WcStatus::RetryExcErr);
    assert_eq!(side.state(), QpState::Err);
}
