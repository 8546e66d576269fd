//! The SISCI nodes: those of the configuration, and those of each tenant's directory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, UdpSocket};

use causeway_fabric::handshake::{host_id, mapped};
use causeway_fabric::services::directory::DirectoryNode;
pub use causeway_fabric::services::directory::{NODE_ADDRESSES_MAX, NODES_MAX};
use causeway_fabric::services::node::NODE_PORT;
use causeway_fabric::services::sisci::NODE_DEFAULT;
pub use causeway_fabric::services::sisci::is_node_id;
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::node_daemon::NodeDaemon;

use crate::ids::TenantId;

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

/// What is known of a node, whoever names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether who comes from one of them is believed to be part of the node.
    pub trusted: bool,
    /// TCP port of its daemon.
    pub port: u16,
    /// Whether the directory names it.
    pub from_directory: bool,
    /// Whether its lease there has expired.
    pub suspect: bool,
}

/// All nodes. Without any there is one, [`NODE_DEFAULT`].
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    configured: BTreeMap<u32, Known>,
    names: BTreeMap<u32, String>,
    directories: BTreeMap<TenantId, BTreeMap<u32, Known>>,
    /// Conflicts that have been told, by tenant: those that stay are not told again.
    told: BTreeMap<TenantId, BTreeSet<String>>,
    /// Name of the cluster that they are.
    pub cluster: String,
    /// This host, as other hosts tell it from theirs.
    pub host: u64,
    /// This host's daemon, if the broker starts it.
    pub daemon: NodeDaemon,
}

impl Nodes {
    /// These nodes.
    pub fn new(specs: &[NodeSpec]) -> Nodes {
        let configured = |spec: &NodeSpec| {
            let known = Known {
                addresses: spec.addresses.clone(),
                trusted: spec.trusted,
                port: NODE_PORT,
                from_directory: false,
                suspect: false,
            };
            (spec.id, known)
        };
        Nodes {
            configured: specs.iter().map(configured).collect(),
            names: specs
                .iter()
                .filter_map(|spec| Some((spec.id, spec.name.clone()?)))
                .collect(),
            host: host_id(),
            ..Nodes::default()
        }
    }

    /// Names of those configured that have one.
    pub fn names(&self) -> impl Iterator<Item = (u32, &str)> {
        self.names.iter().map(|(id, name)| (*id, name.as_str()))
    }

    /// A hash of what all hosts of a cluster must have configured alike: ids and addresses,
    /// whatever their order. Names and trust are each host's own affair; what a directory names
    /// is left out, since hosts see it at different moments.
    pub fn hash(&self) -> u64 {
        let mut sha = Sha256::new();
        for (id, known) in &self.configured {
            let addresses = known.addresses.iter().copied();
            let mut addresses: Vec<[u8; 16]> = addresses.map(mapped).collect();
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

    /// Those that a tenant sees, by id.
    pub fn iter(&self, tenant: TenantId) -> impl Iterator<Item = (u32, &Known)> {
        let listed = self.directories.get(&tenant).into_iter().flatten();
        self.configured
            .iter()
            .chain(listed)
            .map(|(id, known)| (*id, known))
    }

    fn get(&self, tenant: TenantId, node: u32) -> Option<&Known> {
        let listed = || self.directories.get(&tenant)?.get(&node);
        self.configured.get(&node).or_else(listed)
    }

    /// Whether a session may be part of a node.
    pub fn is_member_of(&self, tenant: TenantId, node: u32) -> bool {
        node == NODE_DEFAULT || self.get(tenant, node).is_some()
    }

    /// Whether a node is on this host, whatever sessions say of their addresses: it has none. The
    /// broker cannot look for addresses itself, since its network namespace is not the sessions'.
    pub fn is_always_here(&self, tenant: TenantId, node: u32) -> bool {
        match self.get(tenant, node) {
            Some(known) => known.addresses.is_empty(),
            None => node == NODE_DEFAULT,
        }
    }

    /// Whether a node has addresses, by which sessions tell where it is.
    pub fn has_addresses(&self, tenant: TenantId, node: u32) -> bool {
        let known = self.get(tenant, node);
        known.is_some_and(|known| !known.addresses.is_empty())
    }

    /// The first node one of whose addresses the broker's own network namespace has: that of the
    /// virtual machines here that have no address of a node. Looked for anew each time, since
    /// addresses come and go.
    pub fn of_this_host(&self, tenant: TenantId) -> Option<u32> {
        // Only an address that is there can be bound to.
        let own = |address: &IpAddr| UdpSocket::bind((*address, 0)).is_ok();
        let mut nodes = self.iter(tenant);
        let found = nodes.find(|(_, known)| known.addresses.iter().any(own));
        found.map(|(id, _)| id)
    }

    /// Somebody of the tenant that this host's daemon serves uses SISCI. If other hosts can be
    /// nodes and reach this one, by an address of the broker's own network namespace, the daemon
    /// is started, unless it was or is not to be.
    pub fn need_daemon(&mut self) {
        if self.daemon.is_planned() && self.has_others() {
            self.daemon.start_planned();
        }
    }

    /// Whether one configured node is here, at an address that others reach, and one elsewhere.
    fn has_others(&self) -> bool {
        let remote = |known: &&Known| known.addresses.iter().any(|a| !a.is_loopback());
        let own = |a: &IpAddr| !a.is_loopback() && UdpSocket::bind((*a, 0)).is_ok();
        let nodes = self.configured.values().filter(remote);
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            nodes.partition(|known| known.addresses.iter().any(own));
        !here.is_empty() && !elsewhere.is_empty()
    }

    /// Those of a session's nodes that its tenant knows.
    pub fn known(&self, tenant: TenantId, nodes: &[u32]) -> BTreeSet<u32> {
        let known = |node: &u32| self.get(tenant, *node).is_some();
        nodes.iter().copied().filter(known).collect()
    }

    /// Takes the nodes of a tenant's directory in the place of those that it named before. The
    /// configuration wins. Returns what could not be taken for a conflict, each once as long as it
    /// lasts.
    ///
    /// # Errors
    /// `EINVAL` for what no node can be, `EMFILE` beyond [`NODES_MAX`]: nothing has changed then.
    pub fn set_directory(
        &mut self,
        tenant: TenantId,
        nodes: &[DirectoryNode],
    ) -> Result<Vec<String>, Errno> {
        if nodes.len() > NODES_MAX {
            return Err(Errno::MFILE);
        }
        let mut taken: BTreeMap<u32, Known> = BTreeMap::new();
        let mut conflicts = BTreeSet::new();
        for node in nodes {
            let known = of_directory(node)?;
            match self.conflict(&taken, node.node, &known) {
                Some(why) => drop(conflicts.insert(why)),
                None if self.configured.contains_key(&node.node) => {}
                None => drop(taken.insert(node.node, known)),
            }
        }
        if self.configured.len() + taken.len() > NODES_MAX {
            return Err(Errno::MFILE);
        }
        self.directories.insert(tenant, taken);
        let told = self.told.insert(tenant, conflicts.clone());
        let told = told.unwrap_or_default();
        Ok(conflicts.difference(&told).cloned().collect())
    }

    /// Why a node of the directory cannot be taken beside those that are configured or taken.
    fn conflict(&self, taken: &BTreeMap<u32, Known>, node: u32, known: &Known) -> Option<String> {
        if let Some(own) = self.configured.get(&node) {
            let same = own.addresses.iter().any(|a| known.addresses.contains(a));
            let same = same || own.addresses.is_empty();
            return (!same).then(|| format!("node {node} is configured with other addresses"));
        }
        let others = self.configured.iter().chain(taken);
        for (other, theirs) in others.filter(|(other, _)| **other != node) {
            let shared = known
                .addresses
                .iter()
                .find(|a| theirs.addresses.contains(a));
            if let Some(address) = shared {
                return Some(format!(
                    "node {node} has the address {address} of node {other}"
                ));
            }
        }
        taken
            .contains_key(&node)
            .then(|| format!("node {node} is there twice"))
    }
}

/// A node as a client says that the directory has it, validated.
fn of_directory(node: &DirectoryNode) -> Result<Known, Errno> {
    let addresses = node.addresses.iter();
    let addresses = addresses.map(|octets| Ipv6Addr::from(*octets).to_canonical());
    let addresses: Vec<IpAddr> = addresses.collect();
    let odd = |a: &IpAddr| a.is_unspecified() || a.is_multicast() || a.is_loopback();
    let count = (1..=NODE_ADDRESSES_MAX).contains(&addresses.len());
    if !is_node_id(node.node) || !count || addresses.iter().any(odd) || node.port == 0 {
        return Err(Errno::INVAL);
    }
    Ok(Known {
        addresses,
        trusted: node.trusted,
        port: node.port,
        from_directory: true,
        suspect: node.suspect,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(node: u32, address: &str) -> DirectoryNode {
        let address: IpAddr = address.parse().unwrap();
        let octets = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        DirectoryNode {
            node,
            addresses: vec![octets],
            port: NODE_PORT,
            trusted: true,
            suspect: false,
        }
    }

    #[test]
    fn the_configuration_wins_over_the_directory() {
        let mut nodes = Nodes::new(&[of(8, &["10.0.0.1"]), of(12, &["10.0.0.2"])]);
        let listed = [
            node(8, "10.0.0.9"),
            node(12, "10.0.0.2"),
            node(16, "10.0.0.1"),
            node(20, "10.0.0.3"),
            node(20, "10.0.0.4"),
            node(24, "10.0.0.3"),
        ];
        let told = nodes.set_directory(0, &listed).unwrap();
        assert_eq!(
            told,
            [
                "node 16 has the address 10.0.0.1 of node 8",
                "node 20 is there twice",
                "node 24 has the address 10.0.0.3 of node 20",
                "node 8 is configured with other addresses",
            ]
        );
        let seen: Vec<_> = nodes
            .iter(0)
            .map(|(id, k)| (id, k.from_directory))
            .collect();
        assert_eq!(seen, [(8, false), (12, false), (20, true)]);
        assert!(!nodes.get(0, 12).unwrap().trusted && nodes.get(0, 20).unwrap().trusted);
        assert_eq!(nodes.set_directory(0, &listed), Ok(Vec::new()), "told once");
        assert_eq!(nodes.iter(1).count(), 2, "another tenant sees none of it");
        assert!(nodes.is_member_of(0, 20) && !nodes.is_member_of(1, 20));
        assert_eq!(nodes.set_directory(0, &[]), Ok(Vec::new()));
        assert!(!nodes.is_member_of(0, 20));
    }

    #[test]
    fn what_no_node_can_be_is_refused_and_changes_nothing() {
        let mut nodes = Nodes::new(&[]);
        nodes.set_directory(0, &[node(20, "10.0.0.3")]).unwrap();
        for address in ["0.0.0.0", "::", "127.0.0.1", "::1", "224.0.0.1", "ff02::1"] {
            let odd = [node(8, address)];
            assert_eq!(nodes.set_directory(0, &odd), Err(Errno::INVAL), "{address}");
        }
        for id in [0, 252, 65536] {
            let odd = [node(id, "10.0.0.4")];
            assert_eq!(nodes.set_directory(0, &odd), Err(Errno::INVAL), "{id}");
        }
        let mut odd = [
            node(8, "10.0.0.4"),
            node(8, "10.0.0.4"),
            node(8, "10.0.0.4"),
        ];
        odd[0].port = 0;
        odd[1].addresses.clear();
        odd[2].addresses = vec![[1; 16]; NODE_ADDRESSES_MAX + 1];
        for odd in odd {
            assert_eq!(nodes.set_directory(0, &[odd]), Err(Errno::INVAL));
        }
        let many: Vec<_> = (0..=NODES_MAX as u32)
            .map(|n| node(300 + n, &format!("10.1.{}.{}", n / 200, n % 200)))
            .collect();
        assert_eq!(nodes.set_directory(0, &many), Err(Errno::MFILE));
        assert_eq!(nodes.iter(0).count(), 1);
        assert_eq!(nodes.set_directory(0, &many[1..]), Ok(Vec::new()));
    }

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
        assert_eq!(Nodes::new(&nodes).of_this_host(0), Some(12));
        assert!(!Nodes::new(&nodes).has_others(), "nobody else reaches that");
        assert_eq!(Nodes::new(&nodes[..1]).of_this_host(0), None);
        let mut listed = Nodes::default();
        assert_eq!(listed.of_this_host(0), None);
        let unlisted = listed.hash();
        listed.set_directory(0, &[node(8, "192.0.2.1")]).unwrap();
        assert_eq!(listed.of_this_host(0), None);
        assert_eq!(
            unlisted,
            listed.hash(),
            "the hash is of the configured nodes"
        );
    }
}
