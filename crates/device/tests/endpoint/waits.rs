//! Waits for completion events that have a time limit, and those of a channel that does not block.

use std::time::{Duration, Instant};

use causeway_cancel::Allowed;
use causeway_device::Errno;
use causeway_proto::types::{SendOp, WcStatus};

use crate::broker::Broker;
use crate::side::{Side, connect};

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
