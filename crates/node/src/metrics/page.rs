//! What the page says.

use causeway_fabric::Address;
use causeway_fabric::pool::PoolStatus;
use causeway_fabric::services::sisci::{ItemKind, SisciSession};
use causeway_fabric::status::{EndpointStatus, TenantTally, Wire};
use prometheus::{IntCounterVec, Registry, TextEncoder};

use super::families::{amount, counter, gauge};
use super::processes;

/// A limit that is no limit.
const NONE: u64 = u64::MAX;

/// A counter: name, label and its value, if one tells two apart, the endpoints' name, and what it
/// says, unless the one before it says that.
type CounterRow = (
    &'static str,
    Option<(&'static str, &'static str)>,
    &'static str,
    &'static str,
);

/// Counters of endpoints that are summed up by tenant.
const COUNTERS: &[CounterRow] = &[
    (
        "messages",
        Some(("direction", "sent")),
        "tx_messages",
        "Work requests completed with success: sends of all kinds, and receives.",
    ),
    (
        "messages",
        Some(("direction", "received")),
        "rx_messages",
        "",
    ),
    (
        "payload_bytes",
        Some(("direction", "sent")),
        "tx_bytes",
        "Payload bytes of these messages.",
    ),
    (
        "payload_bytes",
        Some(("direction", "received")),
        "rx_bytes",
        "",
    ),
    (
        "udp_messages",
        None,
        "udp_tx_messages",
        "Messages sent to peers that are reached by UDP.",
    ),
    (
        "udp_payload_bytes",
        None,
        "udp_tx_payload",
        "Payload bytes of messages sent to peers that are reached by UDP.",
    ),
    (
        "direct_accesses",
        None,
        "direct",
        "WRITEs, READs and atomics carried out in a peer's memory by the endpoint itself.",
    ),
    (
        "ring_records",
        Some(("direction", "sent")),
        "ring_tx_records",
        "Records put into rings and taken from them.",
    ),
    (
        "ring_records",
        Some(("direction", "received")),
        "ring_rx_records",
        "",
    ),
    (
        "udp_datagrams",
        Some(("direction", "sent")),
        "udp_tx_datagrams",
        "Datagrams.",
    ),
    (
        "udp_datagrams",
        Some(("direction", "received")),
        "udp_rx_datagrams",
        "",
    ),
    (
        "udp_bytes",
        Some(("direction", "sent")),
        "udp_tx_bytes",
        "Bytes of datagrams, without headers of UDP and below.",
    ),
    (
        "udp_bytes",
        Some(("direction", "received")),
        "udp_rx_bytes",
        "",
    ),
    (
        "retransmissions",
        None,
        "retransmits",
        "Segments sent again over UDP.",
    ),
    (
        "retransmission_timeouts",
        None,
        "timeouts",
        "Retransmission time-outs.",
    ),
    (
        "receiver_not_ready",
        Some(("direction", "sent")),
        "rnr_sent",
        "Refusals for want of a posted receive: sent to peers, and received from them.",
    ),
    (
        "receiver_not_ready",
        Some(("direction", "received")),
        "rnr_received",
        "",
    ),
    (
        "congestion_marks",
        Some(("direction", "received")),
        "marks_received",
        "Marks of congestion (ECN): datagrams received with one, and times peers told of such.",
    ),
    (
        "congestion_marks",
        Some(("direction", "reported")),
        "marks_reported",
        "",
    ),
    (
        "datagrams_dropped",
        None,
        "drops",
        "Datagrams dropped: malformed, for an unknown queue pair, or with a wrong cookie.",
    ),
    (
        "completion_errors",
        None,
        "errors",
        "Completions with an error other than a flush.",
    ),
    (
        "evictions",
        None,
        "evictions",
        "Peers that lost their access to an endpoint's memory, since they exceeded their lease.",
    ),
    (
        "doorbells",
        None,
        "doorbells_rung",
        "Doorbells of peers rung: sleeping peers that had to be woken.",
    ),
    (
        "wakeups",
        None,
        "wakeups",
        "Times that an endpoint was woken by its doorbell.",
    ),
];

/// Everything that one page is made of.
#[derive(Default)]
pub(super) struct Found {
    pub tenants: Vec<TenantTally>,
    pub endpoints: Vec<EndpointStatus>,
    pub sessions: Vec<SisciSession>,
    pub pools: Vec<PoolStatus>,
    /// Most processes that are shown by themselves.
    pub processes: usize,
}

/// The page of the broker at `broker`, with so many processes by themselves.
///
/// # Errors
/// Text for the reader.
pub fn page(broker: &Address, processes: usize) -> Result<String, String> {
    let said = |error: causeway_fabric::Error| format!("{broker}: {error}");
    let gone = || format!("no broker in {broker}");
    let found = Found {
        tenants: causeway_fabric::status::tally(broker)
            .map_err(said)?
            .ok_or_else(gone)?,
        endpoints: causeway_fabric::status::status(broker)
            .map_err(said)?
            .ok_or_else(gone)?,
        sessions: causeway_fabric::sisci::sessions(broker)
            .map_err(said)?
            .unwrap_or_default(),
        pools: causeway_fabric::pool::status(broker)
            .map_err(said)?
            .unwrap_or_default(),
        processes,
    };
    render(&found).map_err(|error| error.to_string())
}

/// The page as text.
pub(super) fn render(found: &Found) -> prometheus::Result<String> {
    let registry = Registry::new();
    let version = gauge(&registry, "build_info", "The node daemon.", &["version"])?;
    version
        .with_label_values(&[env!("CARGO_PKG_VERSION")])
        .set(1);
    counters(&registry, &found.tenants)?;
    limits(&registry, &found.tenants)?;
    queue_pairs(&registry, found)?;
    sisci(&registry, &found.sessions)?;
    pools(&registry, &found.pools)?;
    processes::add(&registry, &found.endpoints, found.processes)?;
    TextEncoder::new().encode_to_string(&registry.gather())
}

fn value(tenant: &TenantTally, counter: &str) -> u64 {
    let found = tenant.counters.iter().find(|found| found.name == counter);
    found.map_or(0, |found| found.value)
}

fn counters(registry: &Registry, tenants: &[TenantTally]) -> prometheus::Result<()> {
    let mut last: Option<IntCounterVec> = None;
    for (short, label, source, help) in COUNTERS {
        let family = match last.take().filter(|_| help.is_empty()) {
            Some(family) => family,
            None => {
                let mut labels = vec!["tenant"];
                labels.extend(label.map(|(key, _)| key));
                counter(registry, short, help, &labels)?
            }
        };
        for tenant in tenants {
            let mut labels = vec![tenant.name.as_str()];
            labels.extend(label.map(|(_, value)| value));
            family
                .with_label_values(&labels)
                .inc_by(value(tenant, source));
        }
        last = Some(family);
    }
    Ok(())
}

fn limits(registry: &Registry, tenants: &[TenantTally]) -> prometheus::Result<()> {
    type Get = fn(&TenantTally) -> u64;
    let gauges: [(&str, &str, Get); 8] = [
        (
            "endpoints",
            "Endpoints: processes that have the device open.",
            |t| t.endpoints,
        ),
        ("endpoints_limit", "Most endpoints of the tenant.", |t| {
            t.endpoints_max
        }),
        ("segments", "Segments of shared memory.", |t| t.segments),
        (
            "endpoint_segments_limit",
            "Most segments of an endpoint.",
            |t| t.segments_max,
        ),
        (
            "endpoint_queue_pairs_limit",
            "Most connected queue pairs of an endpoint.",
            |t| t.qps_max,
        ),
        (
            "reserved_bytes",
            "Bytes reserved for memory moved into segments.",
            |t| t.reserved,
        ),
        (
            "resident_bytes",
            "Bytes of memory that segments take up.",
            |t| t.resident,
        ),
        (
            "endpoint_bytes_limit",
            "Most bytes that an endpoint moves into segments.",
            |t| t.bytes_max,
        ),
    ];
    for (short, help, get) in gauges {
        let family = gauge(registry, short, help, &["tenant"])?;
        for tenant in tenants.iter().filter(|tenant| get(tenant) != NONE) {
            family
                .with_label_values(&[tenant.name.as_str()])
                .set(amount(get(tenant)));
        }
    }
    let counts: [(&str, &str, Get); 3] = [
        ("endpoints_ended", "Endpoints that have ended.", |t| t.ended),
        (
            "endpoints_refused",
            "Endpoints refused for want of a place.",
            |t| t.refused,
        ),
        (
            "limits_met",
            "Limits that endpoints have met, each of an endpoint's once.",
            |t| t.limits_met,
        ),
    ];
    for (short, help, get) in counts {
        let family = counter(registry, short, help, &["tenant"])?;
        for tenant in tenants {
            family
                .with_label_values(&[tenant.name.as_str()])
                .inc_by(get(tenant));
        }
    }
    Ok(())
}

fn queue_pairs(registry: &Registry, found: &Found) -> prometheus::Result<()> {
    let help = "Connected queue pairs, by what carries them.";
    let connected = gauge(registry, "queue_pairs", help, &["tenant", "wire"])?;
    let help = "Connected queue pairs whose peer has not come to the ring yet.";
    let waiting = gauge(registry, "queue_pairs_waiting", help, &["tenant"])?;
    for tenant in &found.tenants {
        for wire in ["shm", "udp"] {
            connected.with_label_values(&[tenant.name.as_str(), wire]);
        }
        waiting.with_label_values(&[tenant.name.as_str()]);
    }
    for endpoint in &found.endpoints {
        let tenant = endpoint.tenant.as_str();
        for qp in &endpoint.qps {
            let wire = match qp.wire {
                Wire::Ring => "shm",
                Wire::Udp => "udp",
                Wire::None => continue,
            };
            connected.with_label_values(&[tenant, wire]).inc();
            if qp.wire == Wire::Ring && !qp.joined {
                waiting.with_label_values(&[tenant]).inc();
            }
        }
    }
    let help = "Memory regions.";
    let regions = gauge(registry, "memory_regions", help, &["tenant"])?;
    for tenant in &found.tenants {
        regions
            .with_label_values(&[tenant.name.as_str()])
            .set(amount(value(tenant, "memory_regions")));
    }
    Ok(())
}

fn sisci(registry: &Registry, sessions: &[SisciSession]) -> prometheus::Result<()> {
    let help = "Processes that use SISCI.";
    let processes = gauge(registry, "sisci_processes", help, &["tenant", "node"])?;
    let help = "What processes that use SISCI have.";
    let items = gauge(registry, "sisci_items", help, &["tenant", "node", "kind"])?;
    for session in sessions {
        let (tenant, node) = (session.tenant.as_str(), session.node.to_string());
        processes.with_label_values(&[tenant, &node]).inc();
        for item in &session.items {
            let kind = match item.kind {
                ItemKind::Segment => "segment",
                ItemKind::Connection => "connection",
                ItemKind::Interrupt => "interrupt",
                ItemKind::DataInterrupt => "data_interrupt",
                ItemKind::InterruptConnection => "interrupt_connection",
                ItemKind::DataInterruptConnection => "data_interrupt_connection",
            };
            items.with_label_values(&[tenant, &node, kind]).inc();
        }
    }
    Ok(())
}

fn pools(registry: &Registry, pools: &[PoolStatus]) -> prometheus::Result<()> {
    type Get = fn(&PoolStatus) -> u64;
    let awaited = |pool: &PoolStatus| {
        let locks = pool.blocks.iter().flat_map(|block| &block.syncs);
        locks.filter(|lock| lock.awaited).count() as u64
    };
    let gauges: [(&str, &str, Get); 5] = [
        ("pool_blocks", "Blocks of a pool.", |pool| pool.used.into()),
        ("pool_blocks_limit", "Most blocks of a pool.", |pool| {
            pool.capacity.into()
        }),
        ("pool_sessions", "Sessions that have a pool open.", |pool| {
            pool.members.len() as u64
        }),
        (
            "pool_threads_waiting",
            "Threads that wait for a block by its name.",
            |pool| pool.waiting.into(),
        ),
        (
            "pool_locks_awaited",
            "Locks of a pool that a thread waits for.",
            awaited,
        ),
    ];
    for (short, help, get) in gauges {
        let family = gauge(registry, short, help, &["tenant", "pool"])?;
        for pool in pools {
            family
                .with_label_values(&[pool.tenant.as_str(), pool.name.as_str()])
                .add(amount(get(pool)));
        }
    }
    Ok(())
}
