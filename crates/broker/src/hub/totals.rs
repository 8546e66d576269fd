//! What endpoints have counted, those that have ended included: for metrics, and for the counters
//! of the device's port in sysfs, which never go back.
//!
//! Endpoints count in their inboxes, which they and their peers can write to: what is here informs
//! people, and nothing is decided by it.

use std::collections::BTreeMap;
use std::sync::Arc;

use causeway_fabric::services::{Counter, TenantTally};
use causeway_shm::layout::INBOX_LEN;
use causeway_shm::{Segment, Snapshot, Stats};

use super::{Endpoint, Hub};
use crate::config::Tenant;
use crate::ids::TenantId;

/// Network namespaces of which is known what their ended endpoints have counted. Of the oldest only
/// the tenant's sum is kept beyond.
const NAMESPACES_MAX: usize = 1024;

/// What is kept of endpoints that have ended, and of what was refused.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    tenants: BTreeMap<TenantId, Ended>,
    namespaces: BTreeMap<(TenantId, u64), Snapshot>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ended {
    endpoints: u64,
    refused: u64,
    limits_met: u64,
    counted: Snapshot,
}

impl Totals {
    /// An endpoint has ended.
    pub fn ended(&mut self, endpoint: &Endpoint) {
        let counted = snapshot(endpoint).without_present();
        let tenant = self.tenants.entry(endpoint.tenant).or_default();
        tenant.endpoints += 1;
        tenant.limits_met += endpoint.met.len() as u64;
        tenant.counted.add(&counted);
        if let Some(netns) = endpoint.netns {
            let namespace = self.namespaces.entry((endpoint.tenant, netns));
            namespace.or_default().add(&counted);
        }
        if self.namespaces.len() > NAMESPACES_MAX {
            // The kernel numbers them upwards.
            let oldest = self
                .namespaces
                .keys()
                .copied()
                .min_by_key(|&(_, netns)| netns);
            oldest.map(|oldest| self.namespaces.remove(&oldest));
        }
    }

    /// A process was refused an endpoint.
    pub fn refused(&mut self, tenant: TenantId) {
        self.tenants.entry(tenant).or_default().refused += 1;
    }
}

impl Hub {
    /// What the endpoints of a tenant have counted in a network namespace.
    pub fn counted_in(&self, tenant: TenantId, netns: u64) -> Snapshot {
        let ended = self.totals.namespaces.get(&(tenant, netns));
        let mut sum = ended.copied().unwrap_or_default();
        for endpoint in self.endpoints_of(tenant) {
            if endpoint.netns == Some(netns) {
                sum.add(&snapshot(endpoint));
            }
        }
        sum
    }

    /// The sums of a tenant.
    pub fn tally(&self, id: TenantId, tenant: &Tenant) -> TenantTally {
        let ended = self.totals.tenants.get(&id).copied().unwrap_or_default();
        let mut sum = ended.counted;
        let (mut endpoints, mut limits_met) = (0, ended.limits_met);
        let (mut segments, mut reserved, mut resident, mut links) = (0, 0, 0, 0);
        for endpoint in self.endpoints_of(id) {
            endpoints += 1;
            limits_met += endpoint.met.len() as u64;
            segments += endpoint.segments.len() as u64;
            links += endpoint.links.len() as u64;
            reserved += endpoint.reserved;
            let held = endpoint.segments.values();
            resident += held.map(|segment| segment.fd.resident()).sum::<u64>();
            sum.add(&snapshot(endpoint));
        }
        TenantTally {
            name: tenant.name.clone(),
            endpoints,
            endpoints_max: tenant.limits.endpoints as u64,
            qps_max: tenant.limits.qps as u64,
            segments_max: tenant.limits.segments as u64,
            bytes_max: tenant.limits.bytes,
            connected: links,
            segments,
            reserved,
            resident,
            ended: ended.endpoints,
            refused: ended.refused,
            limits_met,
            counters: named(&sum),
        }
    }
}

/// The counters of an endpoint; zeroes if they can't be read.
fn snapshot(endpoint: &Endpoint) -> Snapshot {
    read(endpoint).unwrap_or_default()
}

/// The counters that an endpoint keeps in its inbox; `None` if they can't be read. The inbox stays
/// mapped: it is looked at again and again while the endpoint is there.
pub fn read(endpoint: &Endpoint) -> Option<Snapshot> {
    let map = || {
        let inbox = endpoint.inbox.try_clone().ok()?;
        let segment = Segment::map(inbox, INBOX_LEN).ok()?;
        Stats::open(Arc::new(segment), 0).ok()
    };
    Some(endpoint.stats.get_or_init(map).as_ref()?.snapshot())
}

/// Counters by name, as they are listed.
pub fn named(snapshot: &Snapshot) -> Vec<Counter> {
    let counter = |(name, value): (&str, u64)| Counter {
        name: name.to_owned(),
        value,
    };
    snapshot.fields().into_iter().map(counter).collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use causeway_fabric::services::PeerChange;
    use causeway_shm::{Counter, Inbox};

    use super::*;
    use crate::config::Config;
    use crate::ids::EndpointId;
    use crate::testing::{NETNS, endpoint};

    /// An endpoint that has counted.
    fn counting(hub: &mut Hub, slot: u16, netns: u64, bytes: u64) -> (EndpointId, Stats) {
        let inbox = Inbox::create().unwrap();
        let stats = Stats::open(Arc::clone(&inbox), 0).unwrap();
        stats.add(Counter::TxBytes, bytes);
        stats.set(Counter::MemoryRegions, 1);
        let id = endpoint(hub, slot, 4001, netns);
        let found = hub.endpoints.get_mut(&id).unwrap();
        found.inbox = inbox.fd().as_fd().try_clone_to_owned().unwrap();
        (id, stats)
    }

    fn counted(tally: &TenantTally, name: &str) -> u64 {
        let found = tally.counters.iter().find(|found| found.name == name);
        found.unwrap().value
    }

    #[test]
    fn what_an_endpoint_has_counted_stays_when_it_ends() {
        let (mut hub, config) = (Hub::new(), Config::without_file());
        let (first, stats) = counting(&mut hub, 1, NETNS, 1000);
        counting(&mut hub, 2, NETNS + 1, 5);
        stats.add(Counter::TxBytes, 234);
        hub.detach(first, PeerChange::Exited);
        let tally = hub.tally(0, &config.tenants[0]);
        assert_eq!((tally.endpoints, tally.ended), (1, 1));
        assert_eq!(counted(&tally, "tx_bytes"), 1239);
        assert_eq!(counted(&tally, "memory_regions"), 1, "its own are gone");
        assert_eq!(hub.counted_in(0, NETNS).tx_bytes, 1234);
        assert_eq!(hub.counted_in(0, NETNS + 1).tx_bytes, 5);
        assert_eq!(hub.counted_in(1, NETNS).tx_bytes, 0, "another tenant's");
    }

    #[test]
    fn an_endpoint_that_has_given_up_its_slot_counts_where_it_was() {
        let mut hub = Hub::new();
        let (id, _) = counting(&mut hub, 1, NETNS, 7);
        let slot = *hub.endpoints[&id].slots.keys().next().unwrap();
        hub.remove_slot(id, slot).unwrap();
        hub.detach(id, PeerChange::Exited);
        assert_eq!(hub.counted_in(0, NETNS).tx_bytes, 7);
    }

    #[test]
    fn only_the_newest_namespaces_are_kept() {
        let mut hub = Hub::new();
        for netns in 1..=NAMESPACES_MAX as u64 + 1 {
            let (id, _) = counting(&mut hub, 1, netns, 1);
            hub.detach(id, PeerChange::Dead);
        }
        assert_eq!(hub.totals.namespaces.len(), NAMESPACES_MAX);
        assert_eq!(hub.counted_in(0, 1).tx_bytes, 0);
        assert_eq!(hub.counted_in(0, 2).tx_bytes, 1);
        let tally = hub.tally(0, &Config::without_file().tenants[0]);
        assert_eq!(counted(&tally, "tx_bytes"), NAMESPACES_MAX as u64 + 1);
    }
}
