//! The nodes that the configuration names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

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
