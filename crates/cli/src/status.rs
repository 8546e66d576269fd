//! `causeway status`: the endpoints of a broker, their queue pairs, wires and counters, and what
//! SISCI's processes have.

mod pools;
mod sisci;

use std::fmt::Write as _;
use std::net::Ipv6Addr;

use causeway_fabric::Address;
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
    let endpoints = match causeway_fabric::status::status(&address) {
        Ok(endpoints) => endpoints,
        Err(error) => {
            complain(&format!("{address}: {error}"));
            return 1;
        }
    };
    let sessions = match causeway_fabric::sisci::sessions(&address) {
        Ok(sessions) => sessions.unwrap_or_default(),
        Err(error) => {
            complain(&format!("{address}: {error}"));
            return 1;
        }
    };
    let pools = match causeway_fabric::pool::status(&address) {
        Ok(pools) => pools.unwrap_or_default(),
        Err(error) => {
            complain(&format!("{address}: {error}"));
            return 1;
        }
    };
    if options.json {
        let mut value = as_json(endpoints.as_deref(), &sessions);
        value["pools"] = pools::as_json(&pools);
        println!("{value:#}");
    } else if let Some(endpoints) = endpoints {
        let (sessions, pools) = (sisci::as_table(&sessions), pools::as_table(&pools));
        print!("{}{sessions}{pools}", as_table(&endpoints));
    } else {
        println!("no broker in {address}");
    }
    0
}

/// `{"version": 1, "broker": bool, "endpoints": [...], "sisci": [...]}`.
fn as_json(endpoints: Option<&[EndpointStatus]>, sessions: &[SisciSession]) -> Value {
    let list: Vec<Value> = endpoints
        .unwrap_or_default()
        .iter()
        .map(endpoint_json)
        .collect();
    let sisci: Vec<Value> = sessions.iter().map(sisci::session_json).collect();
    json!({
        "version": JSON_VERSION,
        "broker": endpoints.is_some(),
        "endpoints": list,
        "sisci": sisci,
    })
}

fn endpoint_json(endpoint: &EndpointStatus) -> Value {
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
        "qps": endpoint.qps.iter().map(qp_json).collect::<Vec<_>>(),
        "counters": counters.collect::<serde_json::Map<_, _>>(),
    })
}

fn qp_json(qp: &QpStatus) -> Value {
    json!({
        "qpn": qp.local_qpn,
        "remote_gid": qp.remote_gid.map(|gid| Ipv6Addr::from(gid).to_string()),
        "remote_qpn": qp.remote_qpn,
        "wire": wire_name(qp.wire),
        "joined": qp.joined,
        "trusted": qp.trusted,
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
fn as_table(endpoints: &[EndpointStatus]) -> String {
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
            let _ = writeln!(out, "{}", qp_line(qp));
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

fn qp_line(qp: &QpStatus) -> String {
    let place = match qp.remote_gid {
        None => "this host".to_owned(),
        Some(gid) => Ipv6Addr::from(gid).to_canonical().to_string(),
    };
    let waiting = if qp.wire == Wire::Ring && !qp.joined {
        ", peer not there yet"
    } else {
        ""
    };
    format!(
        "         QP {:#08x} -> {:#08x} on {place}, {}{waiting}",
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
        let table = as_table(&[endpoint()]);
        assert!(table.contains("QP 0x001001 -> 0x002001 on this host, shm, peer not there yet"));
        assert!(table.contains("    2    1.5GiB web        1,7"), "{table}");
        assert!(table.contains("sent 3"));
        assert!(!table.contains("lost"), "counters of zero are noise");
        assert!(
            !table.contains('\x1b'),
            "a name must not steer the terminal"
        );
        assert_eq!(as_table(&[]), "no endpoint is attached\n");
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
        let value = as_json(Some(&[endpoint()]), &[]);
        assert_eq!(value["broker"], true);
        assert_eq!(value["endpoints"][0]["qps"][0]["wire"], "shm");
        assert_eq!(value["endpoints"][0]["counters"]["lost"], 0);
        assert_eq!(value["endpoints"][0]["tenant"], "web");
        assert_eq!(value["endpoints"][0]["reserved_bytes"], 4096);
        assert_eq!(as_json(None, &[])["broker"], false);
    }
}
