//! The table `[sisci]`: the cluster and its nodes.

use std::net::IpAddr;
use std::path::PathBuf;

use causeway_directory::DirectoryTable;
use causeway_fabric::services::sisci::{NODE_GROUP_ALL, NODE_MAX};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::keys::Key;
use crate::nodes::{NODE_ADDRESSES_MAX, NODES_MAX, NodeSpec, is_node_id};

/// Longest name of a cluster or a node, in bytes.
pub const NAME_MAX: usize = 63;

/// The table.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table: [sisci]")]
pub(super) struct SisciTable {
    cluster: Option<String>,
    key: Option<PathBuf>,
    pub node_daemon: Option<bool>,
    #[serde(default, deserialize_with = "super::values::tables")]
    node: Vec<NodeTable>,
    /// The node daemon's, which reads the same file: the broker has no network, and checks it only.
    directory: Option<DirectoryTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of a node")]
struct NodeTable {
    #[serde(deserialize_with = "node_id")]
    id: u32,
    name: Option<String>,
    #[serde(default)]
    addresses: Vec<HostAddress>,
    trust: Option<Trust>,
}

fn node_id<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let id = i64::deserialize(from)?;
    let known = u32::try_from(id).ok().filter(|id| is_node_id(*id));
    known.ok_or_else(|| {
        D::Error::custom(format!(
            "no SISCI node can have the id {id}: ids are 1 to {NODE_MAX} without {NODE_GROUP_ALL}"
        ))
    })
}

/// An address that a host can have. One of IPv4 may be written as an IPv6 one.
struct HostAddress(IpAddr);

impl<'de> Deserialize<'de> for HostAddress {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let address = IpAddr::deserialize(from)?.to_canonical();
        if is_of_one_host(&address) {
            return Ok(HostAddress(address));
        }
        let why = format!("a node has the address {address}, which no host can have");
        Err(D::Error::custom(why))
    }
}

/// By what a process of another host shows which node it is part of.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Trust {
    /// By the address that it comes from.
    Address,
}

impl SisciTable {
    /// The key of the tenant of the runtime directory.
    pub fn load_key(&self) -> Result<Option<Key>, String> {
        self.key.as_deref().map(Key::load).transpose()
    }

    /// The tenant whose nodes a directory names, if there is one.
    pub fn directory_tenant(&mut self) -> Result<Option<String>, String> {
        let settings = self.directory.take().map(DirectoryTable::resolve);
        let settings = settings.transpose();
        let settings = settings.map_err(|why| format!("[sisci.directory]: {why}"))?;
        Ok(settings.map(|settings| settings.tenant))
    }

    /// The cluster's name.
    pub fn name(&self) -> Result<String, String> {
        match &self.cluster {
            None => Ok(String::new()),
            Some(name) => checked("the cluster", name),
        }
    }

    /// The nodes.
    pub fn nodes(self) -> Result<Vec<NodeSpec>, String> {
        if self.node.len() > NODES_MAX {
            return Err(format!("there are more than {NODES_MAX} SISCI nodes"));
        }
        let mut nodes: Vec<NodeSpec> = Vec::new();
        for table in self.node {
            let spec = table.resolve()?;
            let NodeSpec { id, addresses, .. } = &spec;
            for other in &nodes {
                if other.id == *id {
                    return Err(format!("SISCI node {id} is configured twice"));
                }
                if other.addresses.iter().any(|one| addresses.contains(one)) {
                    return Err(format!(
                        "SISCI node {id} has an address of node {}",
                        other.id
                    ));
                }
                if spec.name.is_some() && other.name == spec.name {
                    return Err(format!("SISCI node {id} has the name of node {}", other.id));
                }
            }
            nodes.push(spec);
        }
        Ok(nodes)
    }
}

impl NodeTable {
    fn resolve(self) -> Result<NodeSpec, String> {
        let NodeTable {
            id,
            name,
            addresses,
            trust,
        } = self;
        if addresses.len() > NODE_ADDRESSES_MAX {
            return Err(format!(
                "SISCI node {id} has more than {NODE_ADDRESSES_MAX} addresses"
            ));
        }
        let name = name.map(|name| checked(&format!("SISCI node {id}"), &name));
        Ok(NodeSpec {
            id,
            name: name.transpose()?,
            addresses: addresses.into_iter().map(|address| address.0).collect(),
            trusted: matches!(trust, Some(Trust::Address)),
        })
    }
}

/// Whether an address may be a host's. A loopback address may: nodes of one host have such.
fn is_of_one_host(address: &IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(four) if four.is_broadcast());
    !address.is_unspecified() && !address.is_multicast() && !is_broadcast
}

/// A name, if it can be one.
fn checked(whose: &str, name: &str) -> Result<String, String> {
    let printable = name.chars().all(|c| !c.is_control());
    if name.is_empty() || name.len() > NAME_MAX || !printable {
        return Err(format!(
            "the name of {whose} must have 1 to {NAME_MAX} bytes and no control characters"
        ));
    }
    Ok(name.to_owned())
}
