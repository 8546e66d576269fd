//! Waits for completion events that have a time limit, those of a channel that does not block, and
//! handlers.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use causeway_cancel::Allowed;
use causeway_device::{CompChannel, Errno, EventType};
use causeway_fabric::services::PeerChange;
use causeway_proto::types::{SendOp, WcStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::broker::{Broker, until};
use crate::side::{Side, connect, connected};

/// Long enough for a thread to fall asleep.
const BRIEF: Duration = Duration::from_millis(50);
/// Reached only by a failing test.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_wait_ends_with_its_event_or_in_time() {
    let broker = Broker::start();
    let ((a, channel), b) = (Side::with_channel(&broker), Side::new(&broker));
    connect(&a, &b);
    a.cq.req_notify(false).unwrap();
    let begun = Instant::now();
    let none = channel.get_event_within(BRIEF, Allowed::NO);
    assert_eq!(none, Err(Errno(libc::ETIMEDOUT)));
    assert!(begun.elapsed() >= BRIEF);
    a.post_recv(1, 8);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| channel.get_event_within(LONG, Allowed::NO));
        std::thread::sleep(BRIEF);
        b.post(1, SendOp::Send, 0).unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert!(begun.elapsed() < LONG, "the event ends the wait");
    a.cq.ack_events(1);
    assert_eq!(a.wait().status, WcStatus::Success);
}

/// What the kernel says of a thread of this process (proc_pid_status(5)).
fn status(thread: i32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap().trim().to_owned()
}

/// How often a thread has gone to sleep, once it sleeps.
fn sleeps(thread: i32) -> u64 {
    until("it sleeps", || status(thread, "State").starts_with('S'));
    status(thread, "voluntary_ctxt_switches").parse().unwrap()
}

/// Programs keep a thread for asynchronous events for ever.
#[test]
fn who_waits_for_asynchronous_events_is_not_woken_by_messages() {
    let broker = Broker::start();
    let (a, b) = connected(&broker);
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get())
                .unwrap();
            let event = a.context.get_async_event(Allowed::NO).unwrap();
            a.context.ack_async_event(&event);
            event
        });
        let thread = told.recv().unwrap();
        let before = sleeps(thread);
        for id in 1..=32 {
            a.post_recv(id, 8);
            b.post(id, SendOp::Send, 0).unwrap();
            a.complete(id);
            b.complete(id);
            // Were it woken, it would sleep again now.
            sleeps(thread);
        }
        let woken = sleeps(thread) - before;
        broker.tell(a.qp.qpn(), PeerChange::Dead);
        assert_eq!(waiting.join().unwrap().event_type, EventType::QpFatal);
        assert_eq!(woken, 0);
    });
}

#[test]
fn a_channel_made_non_blocking_does_not_wait() {
    let broker = Broker::start();
    let (a, channel) = Side::with_channel(&broker);
    channel.set_nonblocking().unwrap();
    a.cq.req_notify(false).unwrap();
    assert_eq!(channel.get_event(Allowed::NO), Err(Errno(libc::EAGAIN)));
    let none = channel.get_event_within(LONG, Allowed::NO);
    assert_eq!(none, Err(Errno(libc::EAGAIN)));
}

/// Whether a thread that sleeps on a channel's descriptor would wake by then.
fn is_readable_within(channel: &CompChannel, most: Duration) -> bool {
    // SAFETY: the channel keeps its descriptor.
    let fd = unsafe { BorrowedFd::borrow_raw(channel.fd()) };
    let most = Timespec::try_from(most).unwrap();
    poll(
        &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
        Some(&most),
    )
    .unwrap()
        == 1
}

#[test]
fn the_helper_calls_the_handler_of_a_channel_and_the_descriptor_tells_of_what_that_leaves() {
    let broker = Broker::start();
    let ((a, channel), b) = (Side::with_channel(&broker), Side::new(&broker));
    connect(&a, &b);
    channel.set_nonblocking().unwrap();
    a.cq.req_notify(false).unwrap();
    for id in 1..=3 {
        a.post_recv(id, 8);
    }
    let (ends, ended) = mpsc::channel();
    let (cq, events) = (Arc::clone(&a.cq), Arc::clone(&channel));
    channel.set_handler(Some(Box::new(move || {
        let mut taken = Vec::new();
        events.get_event(Allowed::NO).unwrap();
        cq.ack_events(1);
        cq.req_notify(false).unwrap();
        cq.poll(8, |wc, _| taken.push(wc.wr_id)).unwrap();
        let thread = std::thread::current().name().map(str::to_owned);
        ends.send((taken, thread)).unwrap();
        Ok(())
    })));
    b.post(1, SendOp::Send, 0).unwrap();
    let helper = Some("causeway".to_owned());
    assert_eq!(ended.recv_timeout(LONG), Ok((vec![1], helper)));
    assert!(!is_readable_within(&channel, Duration::ZERO));
    channel.set_handler(Some(Box::new(|| Ok(()))));
    b.post(2, SendOp::Send, 0).unwrap();
    assert!(
        is_readable_within(&channel, LONG),
        "the handler has left it"
    );
    channel.get_event(Allowed::NO).unwrap();
    a.cq.ack_events(1);
    a.cq.req_notify(false).unwrap();
    channel.set_handler(None);
    b.post(3, SendOp::Send, 0).unwrap();
    assert!(is_readable_within(&channel, LONG), "there is no handler");
    channel.get_event(Allowed::NO).unwrap();
    a.cq.ack_events(1);
}
