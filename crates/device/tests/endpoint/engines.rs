//! Queue pairs that have nothing to do with each other, and such that come to have.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use causeway_device::{Context, QPT_RC, Qp};
use causeway_identity::{Access, Slot};
use causeway_proto::types::SendOp;

use crate::broker::{Broker, until};
use crate::denied::denied;
use crate::side::{Side, connect, exchange, smallest};

/// Rounds of each thread.
const ROUNDS: u64 = 2000;

/// Two sides on one endpoint, each connected to one of two on another.
fn two_pairs(broker: &Broker) -> [(Side, Side); 2] {
    let contexts = [broker.open().unwrap(), broker.open().unwrap()];
    let pair = || {
        let [one, other] = [0, 1].map(|at| Side::of(Arc::clone(&contexts[at])));
        connect(&one, &other);
        (one, other)
    };
    [pair(), pair()]
}

/// Whether an endpoint of this process has several engines, if queue pairs ask for them.
fn has_several() -> bool {
    std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1)
}

fn slot(side: &Side) -> Option<Slot> {
    Slot::of_qpn(side.qp.qpn())
}

/// A queue pair that sends to the queue of one side, and receives to that of another.
fn join(context: &Arc<Context>, send: &Side, recv: &Side) -> Arc<Qp> {
    let init = smallest(QPT_RC, &send.cq, &recv.cq);
    context.alloc_pd().unwrap().create_qp(init, 0).unwrap()
}

#[test]
fn queue_pairs_without_common_queues_have_locks_of_their_own() {
    let broker = Broker::start();
    let pairs = two_pairs(&broker);
    let [(a, _), (b, _)] = &pairs;
    assert_eq!(slot(a) != slot(b), has_several());
    for value in 1..100 {
        for (one, other) in &pairs {
            exchange(one, other, value);
        }
    }
}

#[test]
fn threads_with_queues_of_their_own_do_not_disturb_each_other() {
    let broker = Broker::start();
    let pairs = two_pairs(&broker);
    std::thread::scope(|scope| {
        for (one, other) in &pairs {
            scope.spawn(|| (1..ROUNDS).for_each(|value| exchange(one, other, value)));
        }
    });
}

#[test]
fn a_queue_pair_that_completes_to_queues_of_both_makes_them_one() {
    let broker = Broker::start();
    let pairs = two_pairs(&broker);
    let [(a, a_peer), (b, b_peer)] = &pairs;
    let (stop, rounds) = (AtomicBool::new(false), [const { AtomicU64::new(1) }; 2]);
    std::thread::scope(|scope| {
        for ((one, other), round) in pairs.iter().zip(&rounds) {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    exchange(one, other, round.load(Ordering::Relaxed));
                    round.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let have_done = |least: u64| rounds.iter().all(|n| n.load(Ordering::Relaxed) >= least);
        until("both under way", || have_done(10));
        // In the middle of what they do.
        let both = join(&a.context, b, a);
        let now = rounds.each_ref().map(|n| n.load(Ordering::Relaxed));
        until("both go on", || {
            let rounds = rounds.iter().zip(now);
            rounds
                .into_iter()
                .all(|(n, before)| n.load(Ordering::Relaxed) > before + 10)
        });
        stop.store(true, Ordering::Relaxed);
        both.destroy().unwrap();
    });
    for value in 1..100 {
        exchange(a, a_peer, value);
        exchange(b, b_peer, value);
    }
    // What is created later is on its own again, or with the others: it works either way.
    let late = two_pairs(&broker);
    for (one, other) in &late {
        exchange(one, other, 1);
    }
}

/// The slots of a side's endpoint.
fn slots(broker: &Broker, side: &Side) -> Vec<Slot> {
    let own = slot(side).unwrap();
    broker.with_tables(|tables| {
        let mut endpoints = tables.endpoints.values();
        let endpoint = endpoints.find(|known| known.slots.contains(&own));
        endpoint.unwrap().slots.clone()
    })
}

#[test]
fn a_slot_whose_port_cannot_be_watched_is_given_back() {
    let broker = Broker::start();
    let [(a, _a_peer), (b, _b_peer)] = two_pairs(&broker);
    // Leaves an engine without a slot, which the next queue pair that is on its own gets one for.
    let both = join(&a.context, &a, &b);
    let before = slots(&broker, &a);
    let beside = || Side::of(Arc::clone(&a.context));
    let first = denied(&[libc::SYS_epoll_ctl], libc::ENOSPC, beside);
    assert!(before.contains(&slot(&first).unwrap()), "it is not alone");
    assert_eq!(broker.calls("remove_slot"), u32::from(has_several()));
    assert_eq!(slots(&broker, &a), before);
    let second = beside();
    assert_eq!(!before.contains(&slot(&second).unwrap()), has_several());
    both.destroy().unwrap();
}

#[test]
fn one_who_polls_one_queue_serves_the_others() {
    let broker = Broker::start();
    let pairs = two_pairs(&broker);
    let [(a, _), (b, b_peer)] = &pairs;
    // A READ of memory that nobody can map is answered by whoever makes progress for `b`, of
    // which nobody polls the queue.
    for value in 1..50 {
        b.memory.word(16).store(value, Ordering::Relaxed);
        let read = SendOp::Read {
            addr: (b.memory.addr() + 16) as u64,
            rkey: b.mr.rkey(),
        };
        b_peer.post(value, read, 24).unwrap();
        until("the answer", || {
            let mut done = false;
            a.cq.poll(1, |_, _| panic!("nothing of this queue's"))
                .unwrap();
            b_peer.cq.poll(1, |wc, _| done = wc.wr_id == value).unwrap();
            done
        });
        assert_eq!(b_peer.memory.word(24).load(Ordering::Relaxed), value);
    }
}

#[test]
fn memory_is_not_used_once_its_registration_has_ended() {
    let broker = Broker::start();
    let pairs = two_pairs(&broker);
    std::thread::scope(|scope| {
        for (one, other) in &pairs {
            scope.spawn(move || {
                for value in 1..ROUNDS / 10 {
                    // Regions come and go in one thread, while the other one's are in use.
                    let access = (Access::LOCAL_WRITE | Access::REMOTE).bits();
                    let pd = one.context.alloc_pd().unwrap();
                    let at = one.memory.addr();
                    let region = pd.reg_mr(at, 64, at as u64, access).unwrap();
                    exchange(one, other, value);
                    region.dereg().unwrap();
                    pd.dealloc().unwrap();
                }
            });
        }
    });
}
