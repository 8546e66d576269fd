//! The lines of each view.

use std::cmp::Ordering;
use std::net::Ipv6Addr;

use causeway_fabric::pool::{PoolStatus, SyncKind, SyncStatus};
use causeway_fabric::services::sisci::{ItemKind, SegmentState, SisciSession};
use causeway_fabric::status::{EndpointStatus, QpStatus, Wire};

use super::model::{Model, Rates, counter};
use super::screen::Sort;
use crate::status::printable;

/// One line: what stands in each column.
pub(super) type Line = Vec<String>;

/// The endpoints, in an order.
pub(super) fn endpoints(model: &Model, sort: Sort, reversed: bool) -> Vec<Line> {
    let mut found = model.endpoints();
    found.sort_by(|a, b| {
        let order = compare(sort, a, b);
        if reversed { order.reverse() } else { order }
    });
    found.into_iter().map(endpoint_line).collect()
}

/// Rates the greatest first, numbers and names the smallest.
fn compare(sort: Sort, a: &(&EndpointStatus, Rates), b: &(&EndpointStatus, Rates)) -> Ordering {
    let (one, other) = (&a.1, &b.1);
    let order = match sort {
        Sort::Pid => Ordering::Equal,
        Sort::Command => a.0.comm.cmp(&b.0.comm),
        Sort::Tenant => a.0.tenant.cmp(&b.0.tenant),
        Sort::QueuePairs => b.0.qps.len().cmp(&a.0.qps.len()),
        Sort::Sent => other.sent.total_cmp(&one.sent),
        Sort::Received => other.received.total_cmp(&one.received),
        Sort::Messages => other.messages.total_cmp(&one.messages),
        Sort::Retransmits => counter(b.0, "retransmits").cmp(&counter(a.0, "retransmits")),
    };
    order.then(a.0.pid.cmp(&b.0.pid))
}

fn endpoint_line((endpoint, rates): (&EndpointStatus, Rates)) -> Line {
    let of = |wire| endpoint.qps.iter().filter(|qp| qp.wire == wire).count();
    vec![
        endpoint.pid.to_string(),
        printable(&endpoint.comm),
        printable(&endpoint.tenant),
        of(Wire::Ring).to_string(),
        of(Wire::Udp).to_string(),
        amount(rates.sent),
        amount(rates.received),
        amount(rates.messages),
        counter(endpoint, "retransmits").to_string(),
    ]
}

/// The queue pairs of all endpoints.
pub(super) fn queue_pairs(model: &Model) -> Vec<Line> {
    let of = |(endpoint, _): &(&EndpointStatus, Rates)| {
        let (pid, name) = (endpoint.pid.to_string(), printable(&endpoint.comm));
        let line = |qp: &QpStatus| {
            vec![
                pid.clone(),
                name.clone(),
                format!("{:#08x}", qp.local_qpn),
                format!("{:#08x}", qp.remote_qpn),
                place(qp),
                wire(qp.wire).to_owned(),
                state(qp).to_owned(),
            ]
        };
        endpoint.qps.iter().map(line).collect::<Vec<_>>()
    };
    model.endpoints().iter().flat_map(of).collect()
}

fn place(qp: &QpStatus) -> String {
    match qp.remote_gid {
        None => "this host".to_owned(),
        Some(gid) => Ipv6Addr::from(gid).to_canonical().to_string(),
    }
}

fn wire(wire: Wire) -> &'static str {
    match wire {
        Wire::None => "none",
        Wire::Udp => "udp",
        Wire::Ring => "shm",
    }
}

fn state(qp: &QpStatus) -> &'static str {
    match (qp.wire, qp.joined) {
        (Wire::Ring, false) => "peer not there yet",
        (Wire::None, _) => "-",
        _ => "connected",
    }
}

/// Who waits for what.
pub(super) fn waits(model: &Model) -> Vec<Line> {
    let Some(now) = model.now() else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    for (endpoint, rates) in model.endpoints() {
        let mut wait = |what: String| {
            lines.push(vec![
                endpoint.pid.to_string(),
                printable(&endpoint.comm),
                what,
            ]);
        };
        if rates.not_ready > 0.0 {
            wait("a peer to post receives".to_owned());
        }
        if rates.timeouts > 0.0 {
            wait("an answer of a peer: it is repeated".to_owned());
        }
        let away = |qp: &&QpStatus| qp.wire == Wire::Ring && !qp.joined;
        for qp in endpoint.qps.iter().filter(away) {
            wait(format!(
                "QP {:#08x} to come to QP {:#08x}",
                qp.remote_qpn, qp.local_qpn
            ));
        }
    }
    now.sessions
        .iter()
        .for_each(|session| of_sisci(session, &mut lines));
    now.pools.iter().for_each(|pool| of_pool(pool, &mut lines));
    lines
}

fn of_sisci(session: &SisciSession, lines: &mut Vec<Line>) {
    let open = |kind| {
        use ItemKind::{Connection, DataInterruptConnection, InterruptConnection};
        matches!(
            kind,
            Connection | InterruptConnection | DataInterruptConnection
        )
    };
    for item in &session.items {
        if open(item.kind) && item.state != SegmentState::Available {
            lines.push(vec![
                session.pid.to_string(),
                printable(&session.comm),
                format!("SISCI {} of node {}", item.id, item.node),
            ]);
        }
    }
}

fn of_pool(pool: &PoolStatus, lines: &mut Vec<Line>) {
    let name = printable(&pool.name);
    let unknown = || "-".to_owned();
    if pool.waiting > 0 {
        let what = format!("names in pool {name}, threads: {}", pool.waiting);
        lines.push(vec![unknown(), unknown(), what]);
    }
    for block in &pool.blocks {
        for lock in block.syncs.iter().filter(|lock| lock.awaited) {
            let what = format!(
                "{} at {} of block {} in pool {name}: {}",
                kind(lock.kind),
                lock.offset,
                block.number,
                holder(lock)
            );
            lines.push(vec![unknown(), unknown(), what]);
        }
    }
}

fn kind(kind: SyncKind) -> &'static str {
    match kind {
        SyncKind::None => "nothing",
        SyncKind::Mutex => "mutex",
        SyncKind::RwLock => "rwlock",
        SyncKind::Condvar => "condition",
        SyncKind::Semaphore => "semaphore",
        SyncKind::Barrier => "barrier",
    }
}

fn holder(lock: &SyncStatus) -> String {
    match (lock.kind, lock.owner_pid) {
        (SyncKind::Barrier, _) => format!("{} of {} are there", lock.count, lock.parties),
        (_, 0) => "nobody holds it".to_owned(),
        (_, pid) => format!("held by {pid}, thread {}", lock.owner_thread),
    }
}

/// A number in at most six columns, with the unit that leaves the fewest digits before the point.
pub(super) fn amount(value: f64) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
    let (mut value, mut unit) = (value, 0);
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}{}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::model::tests::sample;
    use super::*;

    fn model() -> Model {
        let (start, mut model) = (Instant::now(), Model::default());
        model.add(sample(start, &[0, 0]));
        model.add(sample(start + Duration::from_secs(1), &[1500, 4_000_000]));
        model
    }

    #[test]
    fn the_busiest_endpoint_comes_first_unless_told_otherwise() {
        let pids = |sort, reversed| -> Vec<String> {
            let lines = endpoints(&model(), sort, reversed);
            lines.into_iter().map(|mut line| line.remove(0)).collect()
        };
        assert_eq!(pids(Sort::Sent, false), ["42", "41"]);
        assert_eq!(pids(Sort::Sent, true), ["41", "42"]);
        assert_eq!(pids(Sort::Pid, false), ["41", "42"]);
        let lines = endpoints(&model(), Sort::Sent, false);
        assert_eq!(lines[0][5], "4.0M");
        assert_eq!(lines[1][1], "prog?1", "a name must not steer the terminal");
    }

    #[test]
    fn a_queue_pair_waits_for_its_peer() {
        assert_eq!(queue_pairs(&model())[0][6], "peer not there yet");
        assert_eq!(waits(&model())[0][2], "QP 0x002001 to come to QP 0x001001");
    }

    #[test]
    fn amounts_fit() {
        for (value, text) in [
            (0.0, "0"),
            (999.0, "999"),
            (999.96, "1.0k"),
            (1500.0, "1.5k"),
            (999_960.0, "1.0M"),
            (12.5e9, "12.5G"),
            (1e15, "1000.0T"),
        ] {
            assert_eq!(amount(value), text);
        }
    }
}
