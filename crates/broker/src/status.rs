//! Pages of the status, for `causeway status`.

use causeway_fabric::limits::STATUS_QPS_PER_PAGE;
use causeway_fabric::services::{EndpointStatus, QpStatus, StatusCursor, StatusPage, Wire};

use crate::config::Tenant;
use crate::hub::{Hub, totals};
use crate::ids::TenantId;
use crate::pairing::{Link, PeerWire};

/// The page after `cursor`.
pub(crate) fn status_page(
    hub: &Hub,
    tenants: &[Tenant],
    cursor: &StatusCursor,
    seen: Option<TenantId>,
) -> StatusPage {
    let (after, inclusive) = (cursor.endpoint, cursor.qpn.is_some());
    let Some((id, endpoint)) = hub.next_endpoint(after, inclusive, seen) else {
        return StatusPage::default();
    };
    // The endpoint whose next page was asked for may have died since.
    let after = cursor.qpn.filter(|_| id == cursor.endpoint);
    let from = after.map_or(0, |qpn| qpn.saturating_add(1));
    let mut links = endpoint.links.range(from..);
    let qps: Vec<QpStatus> = links
        .by_ref()
        .take(STATUS_QPS_PER_PAGE)
        .map(|(&qpn, link)| qp_status(hub, qpn, link))
        .collect();
    let entry = EndpointStatus {
        endpoint: id,
        pid: endpoint.pid,
        uid: endpoint.uid,
        comm: endpoint.comm.clone(),
        wire: endpoint.wire,
        slots: endpoint.slots.keys().map(|slot| slot.number()).collect(),
        netns: endpoint.slots.values().next().copied().unwrap_or(0),
        qps,
        counters: totals::read(endpoint).map_or_else(Vec::new, |read| totals::named(&read)),
        tenant: tenants[endpoint.tenant].name.clone(),
        segments: u32::try_from(endpoint.segments.len()).unwrap_or(u32::MAX),
        reserved: endpoint.reserved,
        resident: endpoint
            .segments
            .values()
            .map(|segment| segment.fd.resident())
            .sum(),
    };
    StatusPage {
        entry: Some(entry),
        partial: links.next().is_some(),
    }
}

fn qp_status(hub: &Hub, local_qpn: u32, link: &Link) -> QpStatus {
    let (wire, joined) = match link.wire {
        PeerWire::Udp => (Wire::Udp, false),
        PeerWire::Ring(generation) => (Wire::Ring, hub.is_joined(generation)),
    };
    let trusted = wire == Wire::Ring && link.trusted;
    let Link {
        remote_gid,
        remote_qpn,
        ..
    } = *link;
    QpStatus {
        local_qpn,
        remote_gid,
        remote_qpn,
        wire,
        joined,
        trusted,
    }
}
