//! What ICMP and this host report of datagrams that did not arrive.

use causeway_netio::{Report, Unreachable};
use causeway_proto::Instant;
use causeway_proto::trp::{Proof, Undelivered};

use super::UdpWire;
use crate::core::Core;
use crate::qp_entry::{Link, QpEntry, QueuePairs};

/// Passes reports of datagrams that did not arrive to the connections to where those went. Which of
/// them one is about is theirs to know.
pub(super) fn undelivered(
    wire: &mut UdpWire,
    qps: &mut QueuePairs,
    core: &mut Core,
    now: Instant,
    touched: &mut Vec<u32>,
) {
    let mut reports = Vec::new();
    wire.ports.take_errors(|report| reports.push(*report));
    if reports.is_empty() {
        return;
    }
    qps.each(|entry| {
        let QpEntry { qp, link, .. } = entry;
        let Link::Udp(udp) = link else { return };
        let (ip, port) = (udp.dst.ip(), udp.dst.port());
        for report in &reports {
            if (report.to.ip(), report.to.port()) == (ip, port) {
                let (what, proof) = judged(report);
                udp.conn.undelivered(now, what, proof, &mut qp.bind(core));
                touched.push(qp.qpn());
            }
        }
    });
}

/// A report as a connection takes it.
fn judged(report: &Report) -> (Undelivered, Proof<'_>) {
    let what = match report.why {
        Unreachable::Port => Undelivered::Port,
        Unreachable::Host => Undelivered::Route,
        Unreachable::TooBig { max_payload } => Undelivered::TooBig { max_payload },
    };
    let proof = if report.local {
        Proof::Local
    } else {
        Proof::Quote(report.quote())
    };
    (what, proof)
}
