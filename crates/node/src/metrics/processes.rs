//! Counters of single processes (`--metrics-processes`). Prometheus keeps a series for each process
//! that it has ever seen, so only those that have moved most are shown.

use std::cmp::Reverse;

use causeway_fabric::status::EndpointStatus;
use prometheus::Registry;

use super::families::{amount, counter, gauge};

/// What tells processes apart: a process id alone is used again.
const LABELS: [&str; 4] = ["tenant", "pid", "uid", "command"];
/// Counters: name, the endpoints' name, and what it says.
const COUNTERS: [(&str, &str, &str); 6] = [
    (
        "process_sent_bytes",
        "tx_bytes",
        "Payload bytes that a process has sent.",
    ),
    (
        "process_received_bytes",
        "rx_bytes",
        "Payload bytes that a process has received.",
    ),
    (
        "process_sent_messages",
        "tx_messages",
        "Messages that a process has sent.",
    ),
    (
        "process_received_messages",
        "rx_messages",
        "Messages that a process has received.",
    ),
    (
        "process_retransmissions",
        "retransmits",
        "Segments that a process has sent again over UDP.",
    ),
    (
        "process_completion_errors",
        "errors",
        "Completions of a process with an error other than a flush.",
    ),
];

fn value(endpoint: &EndpointStatus, name: &str) -> u64 {
    let found = endpoint.counters.iter().find(|found| found.name == name);
    found.map_or(0, |found| found.value)
}

/// How much it has moved, and when it came: of equals the first stays.
fn rank(endpoint: &&EndpointStatus) -> (Reverse<u64>, u64) {
    let moved = value(endpoint, "tx_bytes").saturating_add(value(endpoint, "rx_bytes"));
    (Reverse(moved), endpoint.endpoint)
}

/// Adds those of at most so many endpoints.
pub(super) fn add(
    registry: &Registry,
    endpoints: &[EndpointStatus],
    most: usize,
) -> prometheus::Result<()> {
    if most == 0 {
        return Ok(());
    }
    let mut shown: Vec<&EndpointStatus> = endpoints.iter().collect();
    shown.sort_by_key(rank);
    shown.truncate(most);
    let named = |endpoint: &EndpointStatus| {
        let (pid, uid) = (endpoint.pid.to_string(), endpoint.uid.to_string());
        [endpoint.tenant.clone(), pid, uid, endpoint.comm.clone()]
    };
    for (short, source, help) in COUNTERS {
        let family = counter(registry, short, help, &LABELS)?;
        for endpoint in &shown {
            // A process may have the device open several times.
            family
                .with_label_values(&named(endpoint))
                .inc_by(value(endpoint, source));
        }
    }
    let help = "Connected queue pairs of a process.";
    let pairs = gauge(registry, "process_queue_pairs", help, &LABELS)?;
    for endpoint in &shown {
        pairs
            .with_label_values(&named(endpoint))
            .add(amount(endpoint.qps.len() as u64));
    }
    Ok(())
}
