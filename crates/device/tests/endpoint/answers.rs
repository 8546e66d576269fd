//! Calls that are refused, answered late, wrongly or never.

use causeway_identity::Slot;
use causeway_proto::types::{QpState, SendOp, WcStatus};
use rustix::io::Errno;

use crate::broker::{Broker, Manner, until};
use crate::side::{Side, connect, connected, exchange};

fn errno(outcome: Result<(), causeway_device::Errno>) -> i32 {
    outcome.expect_err("a failure").0
}

#[test]
fn two_endpoints_of_one_process_talk() {
    let broker = Broker::start();
    let (a, b) = connected(&broker);
    assert_ne!(Slot::of_qpn(a.qp.qpn()), Slot::of_qpn(b.qp.qpn()));
    (1..100).for_each(|value| exchange(&a, &b, value));
}

#[test]
fn a_slot_that_is_refused_is_named_and_given_back() {
    let broker = Broker::start();
    broker.next("add_slot", Manner::Refuse(Errno::MFILE));
    let refused = broker.open().err().expect("no endpoint");
    assert_eq!(refused.errno.0, libc::EMFILE);
    assert!(refused.to_string().contains("add_slot"), "{refused}");
    // Its connection has ended with it, and so has its port.
    until("an end", || {
        broker.with_tables(|tables| tables.endpoints.is_empty())
    });
    let (a, b) = connected(&broker);
    exchange(&a, &b, 1);
}

#[test]
fn an_attachment_that_is_never_answered_fails_in_time() {
    let broker = Broker::start();
    broker.next("attach", Manner::Never);
    let refused = broker.open().err().expect("no endpoint");
    assert_eq!(refused.errno.0, libc::ETIMEDOUT, "{refused}");
}

#[test]
fn an_introduction_that_is_refused_can_be_asked_for_again() {
    let broker = Broker::start();
    let (a, b) = (Side::new(&broker), Side::new(&broker));
    a.to_init();
    broker.next("connect", Manner::Refuse(Errno::DQUOT));
    assert_eq!(errno(a.to_rtr(b.qp.qpn())), libc::EDQUOT);
    assert_eq!(a.state(), QpState::Init);
    connect(&a, &b);
    exchange(&a, &b, 1);
}

#[test]
fn an_introduction_that_means_nothing_is_refused() {
    for manner in [Manner::WithoutDescriptors, Manner::Garbled] {
        let broker = Broker::start();
        let (a, b) = (Side::new(&broker), Side::new(&broker));
        a.to_init();
        broker.next("connect", manner);
        assert_eq!(errno(a.to_rtr(b.qp.qpn())), libc::EPROTO, "{manner:?}");
        assert_eq!(a.state(), QpState::Init, "{manner:?}");
        // Other connections go on.
        let (c, d) = connected(&broker);
        exchange(&c, &d, 1);
    }
}

#[test]
fn an_introduction_that_never_comes_holds_up_nobody_else() {
    let broker = Broker::start();
    let (a, b) = connected(&broker);
    let (c, d) = (Side::of(a.context.clone()), Side::new(&broker));
    c.to_init();
    broker.next("connect", Manner::Late);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| c.to_rtr(d.qp.qpn()));
        broker.await_calls("connect", 3);
        // On the endpoint that waits for its answer.
        (1..100).for_each(|value| exchange(&a, &b, value));
        assert!(!waiting.is_finished());
        assert_eq!(errno(waiting.join().unwrap()), libc::ETIMEDOUT);
    });
    assert_eq!(c.state(), QpState::Init);
    // What comes now is nobody's answer, and the next call gets its own.
    broker.release();
    exchange(&a, &b, 100);
    let (e, f) = (Side::of(c.context.clone()), Side::new(&broker));
    connect(&e, &f);
    exchange(&e, &f, 101);
}

#[test]
fn a_broker_that_hangs_up_is_asked_again() {
    let broker = Broker::start();
    let (a, b) = (Side::new(&broker), Side::new(&broker));
    [&a, &b].into_iter().for_each(Side::to_init);
    broker.next("connect", Manner::HangUp);
    a.to_rtr(b.qp.qpn()).unwrap();
    assert_eq!(broker.calls("attach"), 3);
    b.to_rtr(a.qp.qpn()).unwrap();
    [&a, &b].into_iter().for_each(Side::to_rts);
    exchange(&a, &b, 1);
}

#[test]
fn a_broker_restarts_between_rtr_and_rts() {
    let broker = Broker::start();
    let (a, b) = (Side::new(&broker), Side::new(&broker));
    [&a, &b].into_iter().for_each(Side::to_init);
    a.to_rtr(b.qp.qpn()).unwrap();
    b.to_rtr(a.qp.qpn()).unwrap();
    let broker = broker.restart();
    [&a, &b].into_iter().for_each(Side::to_rts);
    // Without a broker yet, or with one that does not know them.
    exchange(&a, &b, 1);
    broker.await_calls("restore", 2);
    exchange(&a, &b, 2);
    let restored = broker.with_tables(|tables| std::mem::take(&mut tables.restored));
    let mut numbers = [restored[0].local_qpn, restored[1].local_qpn];
    let mut both = [a.qp.qpn(), b.qp.qpn()];
    numbers.sort_unstable();
    both.sort_unstable();
    assert_eq!(numbers, both);
    assert_eq!(restored[0].generation, restored[1].generation);
    assert_eq!(broker.calls("add_slot"), 2);
    // A side that is connected now is known to the new broker.
    let (c, d) = (Side::of(a.context.clone()), Side::of(b.context.clone()));
    connect(&c, &d);
    exchange(&c, &d, 3);
}

#[test]
fn a_connection_that_the_next_broker_refuses_has_ended() {
    let broker = Broker::start();
    let (a, b) = connected(&broker);
    exchange(&a, &b, 1);
    let broker = broker.restart_with(&[("restore", Manner::Refuse(Errno::NOENT)); 2]);
    broker.await_calls("restore", 2);
    for side in [&a, &b] {
        until("an end", || {
            let _ = side.cq.poll(1, |_, _| {});
            side.state() == QpState::Err
        });
    }
    assert!(a.post(2, SendOp::Send, 0).is_ok());
    assert_ne!(a.wait().status, WcStatus::Success);
}
