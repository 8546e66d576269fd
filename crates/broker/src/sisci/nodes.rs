//! The nodes that the configuration names.

use std::collections::BTreeMap;
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
}

/// The configured nodes. Without any there is one, [`NODE_DEFAULT`].
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    configured: BTreeMap<u32, Configured>,
}

#[derive(Clone, Debug)]
struct Configured {
    addresses: Vec<IpAddr>,
    /// Whether it is on this host: one of its addresses is, or it has none.
    here: bool,
}

impl Nodes {
    /// These nodes. Which of them are here is found out now.
    pub fn new(specs: &[NodeSpec]) -> Nodes {
        let configured = |spec: &NodeSpec| {
            let addresses = spec.addresses.clone();
            // Only an address of this host can be bound to.
            let own = |address: &IpAddr| UdpSocket::bind((*address, 0)).is_ok();
            let here = addresses.is_empty() || addresses.iter().any(own);
            (spec.id, Configured { addresses, here })
        };
        Nodes {
            configured: specs.iter().map(configured).collect(),
        }
    }

    /// Ids, addresses, and whether they are here.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[IpAddr], bool)> {
        self.configured
            .iter()
            .map(|(id, node)| (*id, node.addresses.as_slice(), node.here))
    }

    /// Whether a session may be part of a node.
    pub fn is_member_of(&self, node: u32) -> bool {
        node == NODE_DEFAULT || self.configured.contains_key(&node)
    }

    /// Whether a node is on this host, even if nobody has joined as it.
    pub fn is_here(&self, node: u32) -> bool {
        match self.configured.get(&node) {
            Some(configured) => configured.here,
            None => node == NODE_DEFAULT,
        }
    }
}

/// Whether a node may have this id.
pub fn is_node_id(id: u32) -> bool {
    (1..=NODE_MAX).contains(&id) && id != NODE_GROUP_ALL
}
