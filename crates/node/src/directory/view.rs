//! The directory as this host last saw it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use causeway_fabric::services::directory::{DirectoryNode, NODES_MAX};
use causeway_fabric::services::sisci::{NODE_DEFAULT, NODE_MAX, is_node_id};

use super::entry::{Key, NodeRecord, TenantRecord, parse_id};
use crate::limits::{ENTRIES_MAX, VALUE_BYTES_MAX};

/// Node ids that are given out are multiples of this, as those of adapters are.
const ID_STEP: usize = 4;

/// A node, and whether its lease holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    /// What it said last.
    pub record: NodeRecord,
    /// Its lease has expired, or it has left.
    pub suspect: bool,
}

/// The directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Ids by the hosts that have them.
    pub ids: BTreeMap<String, u32>,
    /// Nodes by id.
    pub nodes: BTreeMap<u32, Presence>,
    /// Ids by name.
    pub names: BTreeMap<String, u32>,
    /// Tenants by name.
    pub tenants: BTreeMap<String, TenantRecord>,
}

/// An entry as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The key, below the cluster's prefix.
    pub key: String,
    /// The value; `None` for a key that is gone.
    pub value: Option<Vec<u8>>,
}

impl View {
    /// A listing of everything, after this view. A node that is not listed is suspect as long as a
    /// host has its id, and forgotten then. Also returns what was left out, and why.
    pub fn relisted(&self, entries: &[Stored]) -> (View, Vec<String>) {
        let mut view = View::default();
        let odd: Vec<String> = entries
            .iter()
            .filter_map(|entry| view.apply(entry).err())
            .collect();
        for (id, presence) in &self.nodes {
            let known = view.ids.values().any(|own| own == id);
            if known && !view.nodes.contains_key(id) {
                let record = presence.record.clone();
                let suspect = true;
                view.nodes.insert(*id, Presence { record, suspect });
            }
        }
        (view, odd)
    }

    /// Takes a change.
    ///
    /// # Errors
    /// Why it is left out: then what the key named before is no longer there.
    pub fn apply(&mut self, entry: &Stored) -> Result<(), String> {
        let name = &entry.key;
        let odd = |why: &str| format!("{}: {why}", name.escape_default());
        let key = Key::parse(name).ok_or_else(|| odd("not a key of a directory"))?;
        let value = entry.value.as_deref();
        if value.is_some_and(|value| value.len() > VALUE_BYTES_MAX) {
            self.remove(&key);
            return Err(odd("too long"));
        }
        let Some(value) = value else {
            self.remove(&key);
            return Ok(());
        };
        if self.len() >= ENTRIES_MAX {
            return Err(odd("too many entries"));
        }
        let stored = self.store(&key, value);
        if stored.is_err() {
            self.remove(&key);
        }
        stored.map_err(|why| odd(&why))
    }

    fn len(&self) -> usize {
        self.ids.len() + self.nodes.len() + self.names.len() + self.tenants.len()
    }

    fn store(&mut self, key: &Key, value: &[u8]) -> Result<(), String> {
        let id = || parse_id(value).ok_or_else(|| "no node id".to_owned());
        match key {
            Key::Id(host) => drop(self.ids.insert(host.clone(), id()?)),
            Key::Name(name) => drop(self.names.insert(name.clone(), id()?)),
            Key::Node(id) => {
                let record = NodeRecord::parse(value)?;
                let suspect = false;
                self.nodes.insert(*id, Presence { record, suspect });
            }
            Key::Tenant(name) => {
                let record = TenantRecord::parse(value)?;
                self.tenants.insert(name.clone(), record);
            }
        }
        Ok(())
    }

    fn remove(&mut self, key: &Key) {
        match key {
            Key::Id(host) => {
                let id = self.ids.remove(host);
                // Nobody has it any more, so that nobody is awaited.
                self.nodes
                    .retain(|node, presence| Some(*node) != id || !presence.suspect);
            }
            Key::Name(name) => drop(self.names.remove(name)),
            Key::Tenant(name) => drop(self.tenants.remove(name)),
            Key::Node(id) => {
                let known = self.ids.values().any(|own| own == id);
                match self.nodes.get_mut(id) {
                    Some(presence) if known => presence.suspect = true,
                    _ => drop(self.nodes.remove(id)),
                }
            }
        }
    }

    /// The id that a host without one takes: `wanted`, or the lowest that nobody has, from twice
    /// `ID_STEP` on. [`NODE_DEFAULT`] is left alone, since processes that find no address of
    /// theirs in the listing take it.
    ///
    /// # Errors
    /// Why there is none.
    pub fn free_id(&self, wanted: Option<u32>, taken: &BTreeSet<u32>) -> Result<u32, String> {
        let owner = |id: u32| self.ids.iter().find(|(_, own)| **own == id);
        if let Some(wanted) = wanted {
            return match owner(wanted) {
                Some((host, _)) => Err(format!("host {host} has node id {wanted} already")),
                None => Ok(wanted),
            };
        }
        let mut ids = (NODE_DEFAULT + ID_STEP as u32..=NODE_MAX).step_by(ID_STEP);
        let free = |id: &u32| is_node_id(*id) && owner(*id).is_none() && !taken.contains(id);
        ids.find(free)
            .ok_or_else(|| "all node ids are taken".to_owned())
    }

    /// What the broker is told for a tenant: its nodes, `own` first, and [`NODES_MAX`] at most.
    /// Also returns how many are left out for that.
    pub fn for_tenant(
        &self,
        tenant: &str,
        own: (u32, &NodeRecord),
        trusted: bool,
    ) -> (Vec<DirectoryNode>, usize) {
        let only = self.tenants.get(tenant).and_then(|t| t.nodes.as_ref());
        let serves = |id: u32| only.is_none_or(|only| only.contains(&id));
        let node = |id: u32, record: &NodeRecord, suspect| DirectoryNode {
            node: id,
            addresses: record.addresses.iter().copied().map(mapped).collect(),
            port: record.port,
            trusted,
            suspect,
        };
        let others = self.nodes.iter().filter(|(id, _)| **id != own.0);
        let others =
            others.filter(|(_, presence)| presence.record.tenants.iter().any(|t| t == tenant));
        let others = others.map(|(id, presence)| node(*id, &presence.record, presence.suspect));
        let all = std::iter::once(node(own.0, own.1, false)).chain(others);
        let mut nodes: Vec<DirectoryNode> = all.filter(|node| serves(node.node)).collect();
        let beyond = nodes.len().saturating_sub(NODES_MAX);
        nodes.truncate(NODES_MAX);
        (nodes, beyond)
    }

    /// How many connections of other hosts the operators allow a daemon of a tenant.
    pub fn connections(&self, tenant: &str) -> Option<u32> {
        self.tenants.get(tenant)?.connections
    }
}

/// An address in 16 bytes.
fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn stored(key: &str, value: &str) -> Stored {
        Stored {
            key: key.to_owned(),
            value: Some(value.as_bytes().to_vec()),
        }
    }

    fn record(last: u8) -> NodeRecord {
        NodeRecord {
            addresses: vec![IpAddr::from([10, 0, 0, last])],
            port: 20480,
            version: "0.1.0".into(),
            protocol: 11,
            tenants: vec!["web".into()],
            connections: 512,
            public_key: String::new(),
        }
    }

    fn two_hosts() -> View {
        let entries = [
            stored("ids/a", "8"),
            stored("ids/b", "12"),
            stored("nodes/8", &record(1).text()),
            stored("nodes/12", &record(2).text()),
            stored("names/front", "12"),
        ];
        let (view, odd) = View::default().relisted(&entries);
        assert_eq!(odd, [""; 0]);
        view
    }

    fn gone(key: &str) -> Stored {
        Stored {
            key: key.to_owned(),
            value: None,
        }
    }

    #[test]
    fn an_expired_lease_makes_a_node_suspect_and_a_lost_id_forgets_it() {
        let mut view = two_hosts();
        view.apply(&gone("nodes/12")).unwrap();
        assert!(view.nodes[&12].suspect && !view.nodes[&8].suspect);
        let (listed, _) = view.for_tenant("web", (8, &record(1)), true);
        let seen: Vec<_> = listed.iter().map(|n| (n.node, n.suspect)).collect();
        assert_eq!(seen, [(8, false), (12, true)]);
        view.apply(&stored("nodes/12", &record(3).text())).unwrap();
        assert!(!view.nodes[&12].suspect && view.nodes[&12].record == record(3));
        view.apply(&gone("nodes/12")).unwrap();
        view.apply(&gone("ids/b")).unwrap();
        assert!(!view.nodes.contains_key(&12));
    }

    #[test]
    fn a_listing_keeps_what_is_known_of_nodes_that_are_not_in_it() {
        let view = two_hosts();
        let ids = [stored("ids/a", "8"), stored("ids/b", "12")];
        let (after, _) = view.relisted(&ids);
        assert!(after.nodes[&8].suspect && after.nodes[&12].suspect);
        assert_eq!(after.nodes[&12].record, record(2));
        assert!(after.names.is_empty());
        let (after, _) = view.relisted(&ids[..1]);
        assert_eq!(after.nodes.keys().collect::<Vec<_>>(), [&8]);
    }

    #[test]
    fn what_cannot_be_is_left_out_and_takes_the_place_of_nothing() {
        let mut view = two_hosts();
        for (key, value) in [
            ("nodes/8", "{}"),
            ("ids/b", "252"),
            ("names/front", "twelve"),
            ("segments/1", "x"),
            ("ids/", "8"),
        ] {
            let why = view.apply(&stored(key, value)).unwrap_err();
            assert!(why.starts_with(key), "{why}");
        }
        assert!(view.nodes[&8].suspect, "what it says cannot be read");
        assert_eq!(view.ids.len(), 1);
        assert!(view.names.is_empty());
    }

    #[test]
    fn too_many_entries_are_left_out() {
        let entries: Vec<_> = (0..=ENTRIES_MAX)
            .map(|n| stored(&format!("names/n{n}"), "8"))
            .collect();
        let (view, odd) = View::default().relisted(&entries);
        assert_eq!((view.names.len(), odd.len()), (ENTRIES_MAX, 1));
    }

    #[test]
    fn ids_are_given_out_once() {
        let mut view = two_hosts();
        let none = BTreeSet::new();
        assert_eq!(view.free_id(None, &none), Ok(16));
        assert_eq!(view.free_id(None, &BTreeSet::from([16])), Ok(20));
        assert_eq!(view.free_id(Some(7), &none), Ok(7));
        let taken = view.free_id(Some(12), &none).unwrap_err();
        assert_eq!(taken, "host b has node id 12 already");
        view.ids = (2..63).map(|n| (format!("h{n}"), n * 4)).collect();
        assert_eq!(view.free_id(None, &none), Ok(256), "252 is none");
    }

    #[test]
    fn a_tenant_sees_its_nodes_and_not_too_many() {
        let mut view = two_hosts();
        let own = record(1);
        view.apply(&stored("tenants/web", r#"{"nodes":[8],"connections":3}"#))
            .unwrap();
        assert_eq!(view.for_tenant("web", (8, &own), true).0.len(), 1);
        assert_eq!(view.connections("web"), Some(3));
        assert_eq!(view.for_tenant("web", (12, &own), true).0[0].node, 8);
        // A node that does not serve the tenant is not among its nodes.
        assert_eq!(view.for_tenant("other", (8, &own), true).0.len(), 1);
        for n in 0..NODES_MAX as u32 {
            let key = format!("nodes/{}", 300 + n);
            view.apply(&stored(&key, &record(9).text())).unwrap();
        }
        view.tenants.clear();
        let (nodes, beyond) = view.for_tenant("web", (400, &own), true);
        assert_eq!((nodes.len(), beyond, nodes[0].node), (NODES_MAX, 2, 400));
    }
}
