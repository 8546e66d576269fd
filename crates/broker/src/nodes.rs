//! The nodes that the configuration names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, UdpSocket};

use causeway_fabric::services::sisci::{NODE_DEFAULT, NODE_GROUP_ALL, NODE_MAX};

/// Most nodes of a configuration.
pub const NODES_MAX: usize = 128;
/// Most addresses of a node.
pub const NODE_ADDRESSES_MAX: usize = 8;

/// A node as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its id.
    pub id: u32,
    /// Its addresses: a process in whose network namespace one of them is belongs to the node.
    pub addresses: Vec<IpAddr>,
    /// Whether who comes from one of them is believed to be part of the node.
    pub trusted: bool,
}

/// The configured nodes. Without any there is one, [`NODE_DEFAULT`].
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    configured: BTreeMap<u32, Vec<IpAddr>>,
    trusted: BTreeSet<u32>,
}

impl Nodes {
    /// These nodes.
    pub fn new(specs: &[NodeSpec]) -> Nodes {
        let configured = |spec: &NodeSpec| (spec.id, spec.addresses.clone());
        Nodes {
            configured: specs.iter().map(configured).collect(),
            trusted: specs.iter().filter(|s| s.trusted).map(|s| s.id).collect(),
        }
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

    #[test]
    fn the_hosts_node_has_an_address_of_the_broker() {
        let of = |id, address: &str| NodeSpec {
            id,
            addresses: vec![address.parse().unwrap()],
            trusted: false,
        };
        // 192.0.2.0/24 is nobody's (RFC 5737).
        let nodes = [of(8, "192.0.2.1"), of(12, "127.0.0.1"), of(16, "127.0.0.2")];
        assert_eq!(Nodes::new(&nodes).of_this_host(), Some(12));
        assert_eq!(Nodes::new(&nodes[..1]).of_this_host(), None);
        assert_eq!(Nodes::default().of_this_host(), None);
    }
}
