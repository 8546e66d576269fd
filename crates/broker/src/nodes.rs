//! The nodes that the configuration names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, UdpSocket};

use causeway_fabric::handshake::mapped;
use causeway_fabric::services::sisci::{NODE_DEFAULT, NODE_GROUP_ALL, NODE_MAX};
use sha2::{Digest, Sha256};

use crate::node_daemon::NodeDaemon;

/// Most nodes of a configuration.
pub const NODES_MAX: usize = 128;
/// Most addresses of a node.
pub const NODE_ADDRESSES_MAX: usize = 8;

/// A node as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its id.
    pub id: u32,
    /// Its name, for people.
    pub name: Option<String>,
    /// Its addresses: a process in whose network namespace one of them is belongs to the node.
    pub addresses: Vec<IpAddr>,
    /// Whether who comes from one of them is believed to be part of the node.
    pub trusted: bool,
}

/// The configured nodes. Without any there is one, [`NODE_DEFAULT`].
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    configured: BTreeMap<u32, Vec<IpAddr>>,
    names: BTreeMap<u32, String>,
    trusted: BTreeSet<u32>,
    /// Name of the cluster that they are.
    pub cluster: String,
    /// This host's daemon, if the broker starts it.
    pub daemon: NodeDaemon,
}

impl Nodes {
    /// These nodes.
    pub fn new(specs: &[NodeSpec]) -> Nodes {
        let configured = |spec: &NodeSpec| (spec.id, spec.addresses.clone());
        Nodes {
            configured: specs.iter().map(configured).collect(),
            names: specs
                .iter()
                .filter_map(|spec| Some((spec.id, spec.name.clone()?)))
                .collect(),
            trusted: specs.iter().filter(|s| s.trusted).map(|s| s.id).collect(),
            cluster: String::new(),
            daemon: NodeDaemon::default(),
        }
    }

    /// Names of those that have one.
    pub fn names(&self) -> impl Iterator<Item = (u32, &str)> {
        self.names.iter().map(|(id, name)| (*id, name.as_str()))
    }

    /// A hash of what all hosts of a cluster must have configured alike: ids and addresses,
    /// whatever their order. Names and trust are each host's own affair.
    pub fn hash(&self) -> u64 {
        let mut sha = Sha256::new();
        for (id, addresses) in self.iter() {
            let mut addresses: Vec<[u8; 16]> = addresses.iter().copied().map(mapped).collect();
            addresses.sort_unstable();
            sha.update(id.to_le_bytes());
            sha.update((addresses.len() as u32).to_le_bytes());
            addresses.iter().for_each(|address| sha.update(address));
        }
        let digest = sha.finalize();
        digest
            .iter()
            .take(8)
            .fold(0, |hash, byte| hash << 8 | u64::from(*byte))
    }

    /// Ids and addresses.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[IpAddr])> {
        self.configured
            .iter()
            .map(|(id, addresses)| (*id, addresses.as_slice()))
    }

    /// Whether who comes from an address of a node is believed to be part of it.
    pub fn is_trusted(&self, node: u32) -> bool {
        self.trusted.contains(&node)
    }

    /// Whether a session may be part of a node.
    pub fn is_member_of(&self, node: u32) -> bool {
        node == NODE_DEFAULT || self.configured.contains_key(&node)
    }

    /// Whether a node is on this host, whatever sessions say of their addresses: it has none. The
    /// broker cannot look for addresses itself, since its network namespace is not the sessions'.
    pub fn is_always_here(&self, node: u32) -> bool {
        match self.configured.get(&node) {
            Some(addresses) => addresses.is_empty(),
            None => node == NODE_DEFAULT,
        }
    }

    /// The first node one of whose addresses the broker's own network namespace has: that of the
    /// virtual machines here that have no address of a node. Looked for anew each time, since
    /// addresses come and go.
    pub fn of_this_host(&self) -> Option<u32> {
        // Only an address that is there can be bound to.
        let own = |address: &IpAddr| UdpSocket::bind((*address, 0)).is_ok();
        let mut nodes = self.configured.iter();
        let found = nodes.find(|(_, addresses)| addresses.iter().any(own));
        found.map(|(id, _)| *id)
    }

    /// Those of a session's nodes that are configured.
    pub fn known(&self, nodes: &[u32]) -> BTreeSet<u32> {
        let known = |node: &u32| self.configured.contains_key(node);
        nodes.iter().copied().filter(known).collect()
    }
}

/// Whether a node may have this id.
pub fn is_node_id(id: u32) -> bool {
    (1..=NODE_MAX).contains(&id) && id != NODE_GROUP_ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(id: u32, addresses: &[&str]) -> NodeSpec {
        NodeSpec {
            id,
            name: None,
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            trusted: false,
        }
    }

    #[test]
    fn the_hash_is_of_ids_and_addresses_in_any_order() {
        let hash = |specs: &[NodeSpec]| Nodes::new(specs).hash();
        let (a, b) = (of(4, &["10.0.0.1", "fd00::1"]), of(8, &["10.0.0.2"]));
        let whole = hash(&[a.clone(), b.clone()]);
        assert_eq!(whole, hash(&[b.clone(), a.clone()]));
        assert_eq!(whole, hash(&[of(4, &["fd00::1", "10.0.0.1"]), b.clone()]));
        let named = NodeSpec {
            name: Some("b".into()),
            trusted: true,
            ..b.clone()
        };
        assert_eq!(whole, hash(&[a.clone(), named]));
        for other in [
            vec![a.clone()],
            vec![of(4, &["10.0.0.1"]), b.clone()],
            vec![of(4, &["10.0.0.1"]), of(8, &["fd00::1", "10.0.0.2"])],
            vec![of(4, &["10.0.0.1", "fd00::2"]), b],
            Vec::new(),
        ] {
            assert_ne!(whole, hash(&other), "{other:?}");
        }
    }

    #[test]
    fn the_hosts_node_has_an_address_of_the_broker() {
        // 192.0.2.0/24 is nobody's (RFC 5737).
        let nodes = [
            of(8, &["192.0.2.1"]),
            of(12, &["127.0.0.1"]),
            of(16, &["127.0.0.2"]),
        ];
        assert_eq!(Nodes::new(&nodes).of_this_host(), Some(12));
        assert_eq!(Nodes::new(&nodes[..1]).of_this_host(), None);
        assert_eq!(Nodes::default().of_this_host(), None);
    }
}
