//! Whether two hosts agree on who they are, and whether one has the key of the other's tenant.
//!
//! Each end of a connection to a node daemon says who it is ([`Hello`]) and judges what the other
//! says ([`judge`]). Then, where both have a key of the tenant, the process proves it, and the
//! daemon too. What is proved is that somebody of the tenant is at the other end of this TCP
//! connection. It does not encrypt what follows. In a secured session ([`crate::sealing`]) the two
//! brokers have proved that, and which nodes the ends are.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixDatagram;

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::limits::{HELLO_NODES_MAX, MESSAGE_MAX, STRING_MAX};
use crate::node::NodeClient;
use crate::services::handshake::{
    ClusterReply, Hello, PROOF_BYTES, Proof, Role, TcpEnd, Transcript, Verdict,
};
use crate::services::sisci::NodeInfo;
use crate::sisci::{Sisci, is_address_here, nodes_here};
use crate::sys::netns_cookie;

/// The kernel's name of this run of it (`proc_sys_kernel(5)`).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Three strings and the nodes; what else there is of a hello is less than a string.
const HELLO_BYTES_MAX: usize = 4 * STRING_MAX + HELLO_NODES_MAX * size_of::<u32>();
const _: () = assert!(2 * HELLO_BYTES_MAX < MESSAGE_MAX / 2);

/// Why a process and a daemon have nothing to do with each other.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// A call failed, of the broker's or the daemon's.
    Call(Error),
    /// They do not agree. Text for people.
    Disagreement(String),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Call(error)
    }
}

/// What is told of this end.
///
/// # Errors
/// `EIO` without random numbers.
pub fn hello(role: Role, nodes: Vec<u32>, cluster: &ClusterReply) -> Result<Hello> {
    let mut nonce = [0; PROOF_BYTES];
    let random = getrandom::fill(&mut nonce).map_err(|_| Errno::IO);
    random.map_err(Error::system("take a random number"))?;
    Ok(Hello {
        role,
        nodes,
        host: cluster.host,
        cluster: cluster.cluster.clone(),
        configuration: cluster.configuration,
        tenant: cluster.tenant.clone(),
        keyed: cluster.keyed,
        release: env!("CARGO_PKG_VERSION").to_owned(),
        nonce,
    })
}

/// The nodes that a daemon of this network namespace stands for: its own first, then those whose
/// addresses the namespace has.
pub fn daemon_nodes(own: u32, nodes: &[NodeInfo]) -> Vec<u32> {
    let mut all = vec![own];
    all.extend(nodes_here(nodes).into_iter().filter(|node| *node != own));
    all
}

/// The addresses of nodes that this network namespace has not, with their nodes, and the ports of
/// the daemons: where another host's daemon is to be found.
pub fn other_hosts(nodes: &[NodeInfo]) -> Vec<(u32, SocketAddr)> {
    let canonical = |address: &[u8; 16]| IpAddr::V6(Ipv6Addr::from(*address)).to_canonical();
    let elsewhere = |info: &NodeInfo| {
        let all = info.addresses.iter();
        let others = all.filter(|address| !is_address_here(address));
        others
            .map(|address| (info.node, (canonical(address), info.port).into()))
            .collect()
    };
    nodes
        .iter()
        .flat_map(|info| -> Vec<_> { elsewhere(info) })
        .collect()
}

/// Tells a host from others: a hash of what the kernel calls this run of it, and of the network
/// namespace. 0 where the kernel does not say.
///
/// A broker asks this once, for everybody whom it serves. A container with a network namespace of
/// its own and a guest with its own kernel are of the broker's host, whose node they have.
pub fn host_id() -> u64 {
    let boot = std::fs::read(BOOT_ID);
    let socket = UnixDatagram::unbound();
    let cookie = socket.ok().and_then(|socket| netns_cookie(&socket).ok());
    let (Ok(boot), Some(cookie)) = (boot, cookie) else {
        return 0;
    };
    let mut hasher = DefaultHasher::new();
    (boot, cookie).hash(&mut hasher);
    hasher.finish()
}

/// An address as messages have it.
pub fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// An end of a connection as messages have it.
pub fn tcp_end(at: SocketAddr) -> TcpEnd {
    TcpEnd {
        address: mapped(at.ip().to_canonical()),
        port: at.port(),
    }
}

/// What `own` thinks of what an end at the address `from` says of itself. The nodes are those of
/// this host's configuration, which is the other's too if it gets so far, and of its directory.
pub fn judge(own: &Hello, theirs: &Hello, from: IpAddr, nodes: &[NodeInfo]) -> Verdict {
    if theirs.cluster != own.cluster {
        return Verdict::Cluster;
    }
    if theirs.configuration != own.configuration {
        return Verdict::Configuration;
    }
    if theirs.role == Role::Observer {
        return Verdict::Agreed;
    }
    if theirs.tenant != own.tenant {
        return Verdict::Tenant;
    }
    // What both say is to fit into a message to the broker.
    if theirs.nodes.len() > HELLO_NODES_MAX
        || theirs.role == Role::Process && theirs.nodes.len() > 1
    {
        return Verdict::UnknownNode;
    }
    let is_other_host = theirs.host != own.host;
    if is_other_host && theirs.nodes.iter().any(|node| own.nodes.contains(node)) {
        return Verdict::SameNode;
    }
    let from = mapped(from);
    let find = |id: &u32| nodes.iter().find(|known| known.node == *id);
    let mut known = theirs.nodes.iter().filter_map(find).peekable();
    if theirs.nodes.is_empty() || known.peek().is_none() {
        return Verdict::UnknownNode;
    }
    if !known.any(|node| node.addresses.contains(&from)) {
        return Verdict::Address;
    }
    Verdict::Agreed
}

/// Whether an end that was judged can be believed: both have a key, which is still to be proved, or
/// its node's configuration takes its address for a proof.
pub fn can_believe(own: &Hello, theirs: &Hello, nodes: &[NodeInfo]) -> bool {
    own.keyed && theirs.keyed || is_trusted(theirs, nodes)
}

/// Whether the configuration or the directory takes the address of an end's node for a proof.
pub fn is_trusted(theirs: &Hello, nodes: &[NodeInfo]) -> bool {
    let node = theirs.nodes.first();
    let known = nodes.iter().find(|known| Some(&known.node) == node);
    known.is_some_and(|known| known.trusted)
}

/// A verdict in words, for either end's log. `judged` is who was judged, by `judge`; `address` is
/// that of the first.
pub fn explain(verdict: Verdict, judge: &Hello, judged: &Hello, address: IpAddr) -> String {
    let node = judged.nodes.first().copied().unwrap_or(0);
    let asked = judge.nodes.first().copied().unwrap_or(0);
    match verdict {
        Verdict::Agreed => "they agree".into(),
        Verdict::Cluster => format!(
            "other cluster: {address} is of {:?}, the other end of {:?}",
            judged.cluster, judge.cluster
        ),
        Verdict::Configuration => format!(
            "other configuration: the [[sisci.node]] tables of {address} have the hash {:016x}, \
             those of the other end {:016x}",
            judged.configuration, judge.configuration
        ),
        Verdict::Tenant => format!(
            "other tenant: {address} is of {:?}, the other end of {:?}",
            judged.tenant, judge.tenant
        ),
        Verdict::SameNode => {
            let same = judged.nodes.iter().find(|node| judge.nodes.contains(node));
            let same = same.copied().unwrap_or(node);
            format!("two hosts are node {same}: {address} and the other end")
        }
        Verdict::UnknownNode => format!("node {node} of {address} is not in the configuration"),
        Verdict::Address => {
            format!("node {node} has two addresses: {address}, and those that are configured")
        }
        Verdict::Unproved => format!(
            "node {node} at {address} is not believed: there is no key of the tenant at both ends, \
             and the node's configuration does not say trust = \"address\""
        ),
        Verdict::OtherNode => {
            format!("the daemon at {address} is node {node}'s, not that asked for")
        }
        Verdict::TwoHosts => format!(
            "two hosts are node {node}: {address}, and one that is connected to node {asked}"
        ),
    }
}

/// Says to a daemon who this process is, and hears who the daemon is: `node`, as it must be. Where
/// both have a key, each proves it to the other. Returns what tells the daemon's host from others
/// ([`host_id`]), 0 if it does not know that.
///
/// # Errors
/// [`Refusal`]
pub fn introduce(
    client: &NodeClient,
    sisci: &Sisci,
    node: u32,
    nodes: &[NodeInfo],
) -> std::result::Result<u64, Refusal> {
    let cluster = sisci.cluster()?;
    let own = hello(Role::Process, vec![sisci.node()], &cluster)?;
    let reply = client.hello(&own)?;
    let (theirs, daemon) = (&reply.hello, client.peer());
    let refused = |verdict, address, judge, judged| {
        let text = explain(verdict, judge, judged, address);
        Err(Refusal::Disagreement(text))
    };
    let verdict = match judge(&own, theirs, daemon, nodes) {
        Verdict::Agreed if !theirs.nodes.contains(&node) => Verdict::OtherNode,
        Verdict::Agreed if theirs.role != Role::Daemon => Verdict::OtherNode,
        verdict => verdict,
    };
    if verdict != Verdict::Agreed {
        return refused(verdict, daemon, &own, theirs);
    }
    if reply.verdict != Verdict::Agreed {
        return refused(reply.verdict, client.local(), theirs, &own);
    }
    if let Some(attested) = client.attested() {
        // The two brokers have proved that to each other already.
        return match theirs.nodes.first() == Some(&attested) {
            true => Ok(theirs.host),
            false => refused(Verdict::OtherNode, daemon, &own, theirs),
        };
    }
    if !own.keyed || !theirs.keyed {
        return match nodes.iter().any(|info| info.node == node && info.trusted) {
            true => Ok(theirs.host),
            false => refused(Verdict::Unproved, daemon, &own, theirs),
        };
    }
    prove(client, sisci, (&own, theirs)).map(|()| theirs.host)
}

/// Proves the tenant's key to a daemon, and has its proof checked.
fn prove(
    client: &NodeClient,
    sisci: &Sisci,
    (own, theirs): (&Hello, &Hello),
) -> std::result::Result<(), Refusal> {
    let (at, daemon_at) = client.ends();
    let transcript = |prover| Transcript {
        prover,
        process: own.clone(),
        daemon: theirs.clone(),
        process_at: tcp_end(at),
        daemon_at: tcp_end(daemon_at),
    };
    let wrong = |whose: &str| {
        let (tenant, daemon) = (&own.tenant, daemon_at.ip());
        let text = format!("{whose} of tenant {tenant:?} is wrong at {daemon}: their keys differ");
        Refusal::Disagreement(text)
    };
    let proof = sisci.prove(&transcript(Role::Process))?;
    let answer = client.prove(&Proof { proof });
    let answer = answer.map_err(|error| match error {
        Error::Refused {
            errno: Errno::ACCESS,
            ..
        } => wrong("this process's proof"),
        error => Refusal::Call(error),
    })?;
    let checked = sisci.check_proof(transcript(Role::Daemon), answer.proof);
    checked.map_err(|error| match error {
        Error::Refused {
            errno: Errno::ACCESS,
            ..
        } => wrong("the daemon's proof"),
        error => Refusal::Call(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(role: Role, nodes: &[u32], host: u64) -> Hello {
        Hello {
            role,
            nodes: nodes.to_vec(),
            host,
            cluster: "alpha".into(),
            configuration: 7,
            tenant: "web".into(),
            ..Hello::default()
        }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn nodes(trusted: bool) -> Vec<NodeInfo> {
        let of = |node, text| NodeInfo {
            node,
            addresses: vec![mapped(address(text))],
            trusted,
            ..NodeInfo::default()
        };
        vec![of(4, "10.0.0.1"), of(8, "10.0.0.2")]
    }

    #[test]
    fn each_disagreement_is_named() {
        let own = end(Role::Daemon, &[4], 1);
        let peer = end(Role::Process, &[8], 2);
        let from = address("10.0.0.2");
        let check = |theirs: &Hello, from| judge(&own, theirs, from, &nodes(true));
        assert_eq!(check(&peer, from), Verdict::Agreed);
        assert_eq!(check(&peer, address("::ffff:10.0.0.2")), Verdict::Agreed);
        let mut other = peer.clone();
        other.cluster = "beta".into();
        assert_eq!(check(&other, from), Verdict::Cluster);
        let text = explain(Verdict::Cluster, &own, &other, from);
        assert_eq!(
            text,
            "other cluster: 10.0.0.2 is of \"beta\", the other end of \"alpha\""
        );
        let mut other = peer.clone();
        other.configuration = 8;
        assert_eq!(check(&other, from), Verdict::Configuration);
        let mut other = peer.clone();
        other.tenant = "mail".into();
        assert_eq!(check(&other, from), Verdict::Tenant);
        other.role = Role::Observer;
        assert_eq!(check(&other, from), Verdict::Agreed, "it asks for nothing");
        assert_eq!(check(&end(Role::Process, &[4], 2), from), Verdict::SameNode);
        let here = end(Role::Process, &[4], 1);
        assert_eq!(check(&here, address("10.0.0.1")), Verdict::Agreed);
        assert_eq!(
            check(&end(Role::Process, &[12], 2), from),
            Verdict::UnknownNode
        );
        assert_eq!(
            check(&end(Role::Process, &[], 2), from),
            Verdict::UnknownNode
        );
        assert_eq!(
            check(&end(Role::Process, &[8, 12], 2), from),
            Verdict::UnknownNode
        );
        let many = [8; HELLO_NODES_MAX + 1];
        assert_eq!(
            check(&end(Role::Daemon, &many, 2), from),
            Verdict::UnknownNode
        );
        assert_eq!(
            check(&end(Role::Daemon, &many[1..], 2), from),
            Verdict::Agreed
        );
        assert_eq!(check(&peer, address("10.0.0.3")), Verdict::Address);
        assert_eq!(check(&peer, address("10.0.0.1")), Verdict::Address);
    }

    #[test]
    fn without_two_keys_or_trust_nobody_is_believed() {
        let mut own = end(Role::Daemon, &[4], 1);
        let mut peer = end(Role::Process, &[8], 2);
        assert!(can_believe(&own, &peer, &nodes(true)));
        assert!(!can_believe(&own, &peer, &nodes(false)));
        own.keyed = true;
        assert!(!can_believe(&own, &peer, &nodes(false)));
        peer.keyed = true;
        assert!(can_believe(&own, &peer, &nodes(false)));
        let text = explain(Verdict::Unproved, &own, &peer, address("10.0.0.2"));
        assert!(
            text.contains("node 8 at 10.0.0.2 is not believed"),
            "{text}"
        );
    }

    #[test]
    fn a_host_is_that_of_its_broker() {
        assert_eq!(host_id(), host_id());
        let cluster = ClusterReply {
            host: 7,
            ..ClusterReply::default()
        };
        let hello = || hello(Role::Daemon, vec![4], &cluster).unwrap();
        assert_eq!(hello().host, 7);
        assert_ne!(hello().nonce, hello().nonce);
    }
}
