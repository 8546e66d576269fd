//! `causeway status`: the endpoints of a broker, their queue pairs, wires and counters, and what
//! SISCI's processes have.

mod pools;
mod sisci;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::Ipv6Addr;

use causeway_fabric::Address;
use causeway_fabric::pool::PoolStatus;
use causeway_fabric::services::sisci::SisciSession;
use causeway_fabric::status::{EndpointStatus, QpStatus, Wire};
use serde_json::{Value, json};

use crate::args::StatusOptions;
use crate::complain;

/// Version of the form of `--json`, which docs/status.schema.json describes. A key more, less or of
/// another sense makes a new one.
const JSON_VERSION: u32 = 1;

/// Prints the state of this user's broker. It is not started: without one there is nothing to
/// show, which is no failure.
pub fn status(options: &StatusOptions) -> u8 {
    let address = Address::from_env();
    match read(&address) {
        Ok(state) => crate::say(&state.text(options, &address)),
        Err(error) => {
            complain(&format!("{address}: {error}"));
            1
        }
    }
}

/// What a broker tells.
struct State {
    /// `None` if there is no broker.
    endpoints: Option<Vec<EndpointStatus>>,
    secured: Secured,
    sessions: Vec<SisciSession>,
    pools: Vec<PoolStatus>,
}

/// Queue pairs whose datagrams are sealed, by endpoint and number.
type Secured = BTreeSet<(u64, u32)>;

fn read(address: &Address) -> causeway_fabric::Result<State> {
    let endpoints = causeway_fabric::status::status(address)?;
    let known = endpoints.as_deref().unwrap_or_default();
    Ok(State {
        secured: causeway_fabric::status::secured(address, known)?,
        sessions: causeway_fabric::sisci::sessions(address)?.unwrap_or_default(),
        pools: causeway_fabric::pool::status(address)?.unwrap_or_default(),
        endpoints,
    })
}

impl State {
    fn text(&self, options: &StatusOptions, address: &Address) -> String {
        if options.json {
            let endpoints = self.endpoints.as_deref();
            let mut value = as_json(endpoints, &self.secured, &self.sessions);
            value["pools"] = pools::as_json(&self.pools);
            format!("{value:#}\n")
        } else if let Some(endpoints) = &self.endpoints {
            let sessions = sisci::as_table(&self.sessions);
            let pools = pools::as_table(&self.pools);
            format!("{}{sessions}{pools}", as_table(endpoints, &self.secured))
        } else {
            format!("no broker in {address}\n")
        }
    }
}

/// `{"version": 1, "broker": bool, "endpoints": [...], "sisci": [...]}`.
fn as_json(
    endpoints: Option<&[EndpointStatus]>,
    secured: &Secured,
    sessions: &[SisciSession],
) -> Value {
    let list: Vec<Value> = endpoints
        .unwrap_or_default()
        .iter()
        .map(|endpoint| endpoint_json(endpoint, secured))
        .collect();
    let sisci: Vec<Value> = sessions.iter().map(sisci::session_json).collect();
    json!({
        "version": JSON_VERSION,
        "broker": endpoints.is_some(),
        "endpoints": list,
        "sisci": sisci,
    })
}

fn endpoint_json(endpoint: &EndpointStatus, secured: &Secured) -> Value {
    let is_secured = |qp: &QpStatus| secured.contains(&(endpoint.endpoint, qp.local_qpn));
    let qps = endpoint.qps.iter().map(|qp| qp_json(qp, is_secured(qp)));
    let counters = endpoint
        .counters
        .iter()
        .map(|c| (c.name.clone(), json!(c.value)));
    json!({
        "endpoint": format!("{:016x}", endpoint.endpoint),
        "pid": endpoint.pid,
        "uid": endpoint.uid,
        "command": endpoint.comm,
        "wire": endpoint.wire.name(),
        "slots": endpoint.slots,
        "netns": endpoint.netns,
        "tenant": endpoint.tenant,
        "segments": endpoint.segments,
        "reserved_bytes": endpoint.reserved,
        "resident_bytes": endpoint.resident,
        "qps": qps.collect::<Vec<_>>(),
        "counters": counters.collect::<serde_json::Map<_, _>>(),
    })
}

fn qp_json(qp: &QpStatus, secured: bool) -> Value {
    json!({
        "qpn": qp.local_qpn,
        "remote_gid": qp.remote_gid.map(|gid| Ipv6Addr::from(gid).to_string()),
        "remote_qpn": qp.remote_qpn,
        "wire": wire_name(qp.wire),
        "joined": qp.joined,
        "trusted": qp.trusted,
        "secured": secured,
    })
}

fn wire_name(wire: Wire) -> &'static str {
    match wire {
        Wire::None => "none",
        Wire::Udp => "udp",
        Wire::Ring => "shm",
    }
}

/// For people: a line per endpoint, and below it a line per queue pair and one of counters.
fn as_table(endpoints: &[EndpointStatus], secured: &Secured) -> String {
    if endpoints.is_empty() {
        return "no endpoint is attached\n".into();
    }
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:>8} {:>6} {:<16} {:<5} {:>5} {:>5} {:>9} {:<10} SLOTS",
        "PID", "UID", "COMMAND", "WIRE", "QPS", "SEGS", "SHARED", "TENANT"
    );
    for endpoint in endpoints {
        let slots: Vec<String> = endpoint.slots.iter().map(u16::to_string).collect();
        let _ = writeln!(
            out,
            "{:>8} {:>6} {:<16} {:<5} {:>5} {:>5} {:>9} {:<10} {}",
            endpoint.pid,
            endpoint.uid,
            printable(&endpoint.comm),
            endpoint.wire.name(),
            endpoint.qps.len(),
            endpoint.segments,
            amount(endpoint.resident),
            printable(&endpoint.tenant),
            slots.join(",")
        );
        for qp in &endpoint.qps {
            let is_secured = secured.contains(&(endpoint.endpoint, qp.local_qpn));
            let _ = writeln!(out, "{}", qp_line(qp, is_secured));
        }
        let counted = endpoint.counters.iter().filter(|counter| counter.value > 0);
        let counters: Vec<String> = counted
            .map(|c| format!("{} {}", printable(&c.name), c.value))
            .collect();
        if !counters.is_empty() {
            let _ = writeln!(out, "         {}", counters.join(", "));
        }
    }
    out
}

/// Bytes, in the unit that leaves the fewest digits before the point.
fn amount(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes == 0 {
        return "0".into();
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1}{}", UNITS[unit])
}

fn qp_line(qp: &QpStatus, secured: bool) -> String {
    let place = match qp.remote_gid {
        None => "this host".to_owned(),
        Some(gid) => Ipv6Addr::from(gid).to_canonical().to_string(),
    };
    let waiting = if qp.wire == Wire::Ring && !qp.joined {
        ", peer not there yet"
    } else {
        ""
    };
    let secured = if secured { ", secured" } else { "" };
    format!(
        "         QP {:#08x} -> {:#08x} on {place}, {}{secured}{waiting}",
        qp.local_qpn,
        qp.remote_qpn,
        wire_name(qp.wire)
    )
}

/// A process chooses its own name, which must not steer the terminal.
pub(crate) fn printable(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use causeway_fabric::WirePref;
    use causeway_fabric::status::Counter;

    fn endpoint() -> EndpointStatus {
        EndpointStatus {
            endpoint: 0xabc,
            pid: 42,
            uid: 1000,
            comm: "ib_\x1b[2Jlat".into(),
            wire: WirePref::Auto,
            slots: vec![1, 7],
            netns: 1,
            tenant: "web".into(),
            segments: 2,
            reserved: 4096,
            resident: 3 << 29,
            qps: vec![QpStatus {
                local_qpn: 0x1001,
                remote_gid: None,
                remote_qpn: 0x2001,
                wire: Wire::Ring,
                joined: false,
                trusted: false,
            }],
            counters: vec![
                Counter {
                    name: "sent".into(),
                    value: 3,
                },
                Counter {
                    name: "lost".into(),
                    value: 0,
                },
            ],
        }
    }

    #[test]
    fn the_table_shows_what_there_is() {
        let table = as_table(&[endpoint()], &Secured::new());
        assert!(table.contains("QP 0x001001 -> 0x002001 on this host, shm, peer not there yet"));
        assert!(table.contains("    2    1.5GiB web        1,7"), "{table}");
        assert!(table.contains("sent 3"));
        assert!(!table.contains("lost"), "counters of zero are noise");
        assert!(
            !table.contains('\x1b'),
            "a name must not steer the terminal"
        );
        assert_eq!(as_table(&[], &Secured::new()), "no endpoint is attached\n");
    }

    #[test]
    fn a_secured_queue_pair_is_shown_as_such() {
        let secured = Secured::from([(0xabc, 0x1001)]);
        let table = as_table(&[endpoint()], &secured);
        assert!(table.contains("shm, secured, peer"), "{table}");
        let value = as_json(Some(&[endpoint()]), &secured, &[]);
        assert_eq!(value["endpoints"][0]["qps"][0]["secured"], true);
    }

    #[test]
    fn amounts_are_short() {
        assert_eq!(amount(0), "0");
        assert_eq!(amount(512), "0.5KiB");
        assert_eq!(amount(1 << 20), "1.0MiB");
        assert_eq!(amount(u64::MAX), "16384.0PiB");
    }

    #[test]
    fn json_keeps_everything() {
        let value = as_json(Some(&[endpoint()]), &Secured::new(), &[]);
        assert_eq!(value["broker"], true);
        assert_eq!(value["endpoints"][0]["qps"][0]["wire"], "shm");
        assert_eq!(value["endpoints"][0]["counters"]["lost"], 0);
        assert_eq!(value["endpoints"][0]["tenant"], "web");
        assert_eq!(value["endpoints"][0]["reserved_bytes"], 4096);
        assert_eq!(as_json(None, &Secured::new(), &[])["broker"], false);
    }
}
