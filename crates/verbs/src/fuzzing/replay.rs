//! Replays the corpus on each wire.

#[path = "../../../../fuzz/harness/apart.rs"]
mod apart;

use std::sync::atomic::Ordering;

/// Requests that succeed in a replay, at least: what it shows, it shows of queues in use.
const SUCCEED_MIN: u64 = 1000;

#[test]
fn replay_verbs_by_shared_memory() {
    apart::replay("fuzzing::replay::here", "shm");
}

#[test]
fn replay_verbs_over_udp() {
    apart::replay("fuzzing::replay::here", "udp");
}

#[test]
#[ignore = "run by the others, with a broker of its own"]
fn here() {
    super::corpus::replay("verbs", super::run);
    let succeeded = super::ledger::SUCCEEDED.load(Ordering::Relaxed);
    assert!(succeeded >= SUCCEED_MIN, "{succeeded} requests succeeded");
}
