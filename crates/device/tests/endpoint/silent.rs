//! A broker that says nothing for seconds: whoever makes progress goes on, and what it does say
//! reaches who sleeps.

use std::sync::Arc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use causeway_cancel::Allowed;
use causeway_device::{AsyncEvent, CompChannel, EventType};
use causeway_fabric::limits::CALL_TIMEOUT;
use causeway_fabric::services::PeerChange;
use causeway_identity::Access;
use causeway_proto::types::{QpState, SendOp, WcStatus};

use crate::broker::{Broker, Manner, until};
use crate::memory::write_until_asked;
use crate::side::{MEMORY, Side, connect, connected, connected_first, exchange};

/// Longer than a thread takes that the machine lets run, and less than a call to the broker may.
const SOON: Duration = Duration::from_secs(4);
/// Long enough for a thread that blocks to fall asleep.
const ASLEEP: Duration = Duration::from_millis(50);

/// Attempts to come back to a broker that are not answered.
const UNANSWERED: [(&str, Manner); 4] = [("attach", Manner::Never); 4];

/// `b` sends to `a`, whose program makes no progress: what it has received is for another thread to
/// acknowledge.
fn send_to_who_does_not_poll(a: &Side, b: &Side) {
    let begun = Instant::now();
    a.post_recv(1, 8);
    b.post(1, SendOp::Send, 0).unwrap();
    b.complete(1);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

/// A thread that waits for the completions of a side, and takes one.
fn wait_for_completion<'a>(
    scope: &'a Scope<'a, '_>,
    side: &'a Side,
    channel: &'a Arc<CompChannel>,
) -> ScopedJoinHandle<'a, WcStatus> {
    side.cq.req_notify(false).unwrap();
    let waiting = scope.spawn(|| {
        channel.get_event(Allowed::NO).unwrap();
        side.cq.ack_events(1);
        side.wait().status
    });
    std::thread::sleep(ASLEEP);
    waiting
}

/// A thread that waits for what becomes of a queue pair.
fn wait_for_event<'a>(
    scope: &'a Scope<'a, '_>,
    side: &'a Side,
) -> ScopedJoinHandle<'a, AsyncEvent> {
    let waiting = scope.spawn(|| {
        let event = side.context.get_async_event(Allowed::NO).unwrap();
        side.context.ack_async_event(&event);
        event
    });
    std::thread::sleep(ASLEEP);
    waiting
}

#[test]
fn a_request_that_hangs_keeps_nobody_from_acknowledging() {
    let broker = Broker::start();
    let (a, b) = connected(&broker);
    broker.next("map_segment", Manner::Late);
    write_until_asked(&broker, &a, &b, 1);
    send_to_who_does_not_poll(&a, &b);
}

#[test]
fn a_broker_that_does_not_come_back_keeps_nobody_from_acknowledging() {
    let broker = Broker::start();
    let (a, b) = connected(&broker);
    let broker = broker.restart_with(&UNANSWERED);
    broker.await_calls("attach", 2);
    send_to_who_does_not_poll(&a, &b);
}

#[test]
fn a_broker_that_does_not_come_back_keeps_nobody_from_waking() {
    let broker = Broker::start();
    let ((a, channel), b) = (Side::with_channel(&broker), Side::new(&broker));
    connect(&a, &b);
    std::thread::scope(|scope| {
        let waiting = wait_for_completion(scope, &a, &channel);
        let broker = broker.restart_with(&UNANSWERED);
        broker.await_calls("attach", 2);
        send_to_who_does_not_poll(&a, &b);
        let begun = Instant::now();
        assert_eq!(waiting.join().unwrap(), WcStatus::Success);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    });
}

#[test]
fn who_sleeps_hears_of_the_death_of_its_peer() {
    let broker = Broker::start();
    let ((a, channel), b) = (Side::with_channel(&broker), Side::new(&broker));
    connect(&a, &b);
    a.post_recv(1, 8);
    std::thread::scope(|scope| {
        let completion = wait_for_completion(scope, &a, &channel);
        let event = wait_for_event(scope, &a);
        broker.tell(a.qp.qpn(), PeerChange::Dead);
        let begun = Instant::now();
        assert_eq!(completion.join().unwrap(), WcStatus::WrFlushErr);
        assert_eq!(event.join().unwrap().event_type, EventType::QpFatal);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    });
    drop(b);
}

#[test]
fn news_that_come_while_a_request_hangs_are_heard_after_it() {
    let broker = Broker::start();
    let (a, b) = connected(&broker);
    let (c, d) = (Side::of(a.context.clone()), Side::new(&broker));
    connect(&c, &d);
    broker.next("map_segment", Manner::Late);
    write_until_asked(&broker, &a, &b, 1);
    broker.tell(c.qp.qpn(), PeerChange::Dead);
    // Others of the same endpoint go on.
    send_to_who_does_not_poll(&a, &b);
    a.complete(1);
    broker.release();
    until("the end", || c.state() == QpState::Err);
    exchange(&a, &b, 2);
}

#[test]
fn a_segment_that_is_long_in_coming_keeps_nobody_from_registering() {
    let broker = Broker::start();
    let (a, b) = connected_first(&broker);
    broker.next("create_segment", Manner::Late);
    // Asked for once: its key is not told while the region is being moved.
    let op = a.write_to(&b, 64);
    until("a try", || {
        a.post(1, op, 64).unwrap();
        a.complete(1);
        broker.calls("create_segment") > 0
    });
    let begun = Instant::now();
    let (pd, memory) = (b.context.alloc_pd().unwrap(), b.memory.addr());
    let access = (Access::LOCAL_WRITE | Access::REMOTE).bits();
    let other = pd.reg_mr(memory, MEMORY, memory as u64, access).unwrap();
    other.dereg().unwrap();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(broker.calls("reserve"), 0, "it is waited for still");
    broker.release();
    write_until_asked(&broker, &a, &b, 1);
    assert_eq!(broker.calls("create_segment"), 1);
}

#[test]
fn a_segment_that_comes_too_late_is_given_back() {
    let broker = Broker::start();
    let (a, b) = connected_first(&broker);
    broker.next("create_segment", Manner::Late);
    let op = a.write_to(&b, 64);
    let turn = || {
        a.post(1, op, 64).unwrap();
        a.complete(1);
    };
    until("a try", || {
        turn();
        broker.calls("create_segment") > 0
    });
    // It is told, as soon as its region is not about to move any more.
    let _ = b.mr.rkey();
    broker.release();
    broker.await_calls("destroy_segment", 1);
    until("another try", || {
        turn();
        broker.calls("create_segment") > 1
    });
    write_until_asked(&broker, &a, &b, 1);
    assert_eq!(broker.with_tables(|tables| tables.segments.len()), 1);
}

#[test]
fn a_device_is_closed_while_a_request_hangs() {
    let broker = Broker::start();
    let (a, b) = connected(&broker);
    broker.next("map_segment", Manner::Never);
    write_until_asked(&broker, &a, &b, 1);
    let begun = Instant::now();
    drop(a);
    // That request is waited for, and no other.
    assert!(
        begun.elapsed() < CALL_TIMEOUT + SOON,
        "{:?}",
        begun.elapsed()
    );
    until("an end", || {
        broker.with_tables(|tables| tables.endpoints.len() == 1)
    });
}
