//! `causeway nodes`: the configured nodes, who answers there, and what does not agree.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use causeway_fabric::handshake::{daemon_nodes, explain, hello, judge};
use causeway_fabric::node::NodeClient;
use causeway_fabric::remoting::VERSION;
use causeway_fabric::services::handshake::{DaemonState, Hello, Role, Verdict};
use causeway_fabric::services::node::NODE_PORT;
use causeway_fabric::services::sisci::{NODE_DEFAULT, NodeInfo};
use causeway_fabric::sisci::Sisci;
use causeway_fabric::{Address, Error};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::args::NodesOptions;
use crate::status::printable;
use crate::{complain, say};

/// How long one address of a node has for a connection.
const PATIENCE: Duration = Duration::from_millis(500);

/// A node, and what was found at its addresses.
struct Node {
    id: u32,
    name: String,
    here: bool,
    from_directory: bool,
    /// The directory takes it for gone.
    suspect: bool,
    found: Vec<Found>,
}

/// What was found at an address.
struct Found {
    address: IpAddr,
    /// What the daemon says of itself, if one answers.
    daemon: Option<Hello>,
    /// What is said to it and by it is encrypted.
    secured: bool,
    /// Why there is nothing.
    silence: String,
    /// What does not agree.
    conflict: Option<String>,
}

/// Prints the nodes of this user's broker's configuration. Exit status 1 if something does not
/// agree, or there is no broker to ask.
pub fn nodes(options: &NodesOptions) -> u8 {
    let (own, state, nodes) = match ask() {
        Ok(found) => found,
        Err(error) => {
            complain(&format!("{}: {error}", Address::from_env()));
            return 1;
        }
    };
    let nodes: Vec<Node> = nodes;
    let mut text = if options.json {
        format!("{:#}\n", as_json(&own, &nodes))
    } else {
        as_table(&own, &nodes)
    };
    if !options.json && state == DaemonState::PortTaken {
        text += &format!("TCP port {NODE_PORT} is another process's: see causeway doctor\n");
    }
    let mut found = nodes.iter().flat_map(|node| &node.found);
    say(&text).max(u8::from(found.any(|found| found.conflict.is_some())))
}

fn ask() -> Result<(Hello, DaemonState, Vec<Node>), Error> {
    let sisci = Sisci::open(None)?;
    let cluster = sisci.cluster()?;
    let infos = sisci.nodes()?;
    let own = daemon_nodes(sisci.node(), &infos);
    let own = hello(Role::Observer, own, &cluster)?;
    let name = |node| {
        let named = cluster.names.iter().find(|named| named.node == node);
        named.map_or_else(String::new, |named| named.name.clone())
    };
    let mut nodes: Vec<Node> = infos
        .iter()
        .map(|info| Node {
            id: info.node,
            name: name(info.node),
            here: own.nodes.contains(&info.node),
            from_directory: info.from_directory,
            suspect: info.suspect,
            found: addresses(info)
                .map(|address| {
                    let at = (info.node, (address, info.port).into());
                    look(&sisci, &own, at, &infos)
                })
                .collect(),
        })
        .collect();
    nodes.iter_mut().for_each(compare_hosts);
    Ok((own, cluster.daemon, nodes))
}

fn addresses(info: &NodeInfo) -> impl Iterator<Item = IpAddr> {
    let canonical = |address: &[u8; 16]| IpAddr::V6(Ipv6Addr::from(*address)).to_canonical();
    info.addresses.iter().map(canonical)
}

fn look(sisci: &Sisci, own: &Hello, (node, at): (u32, SocketAddr), nodes: &[NodeInfo]) -> Found {
    let address = at.ip();
    let mut found = Found {
        address,
        daemon: None,
        secured: false,
        silence: String::new(),
        conflict: None,
    };
    let client = NodeClient::connect(sisci, (node, at), PATIENCE);
    let is_secured = |client: &NodeClient| client.attested().is_some();
    match client.and_then(|client| Ok((client.hello(own)?, is_secured(&client)))) {
        Ok((reply, secured)) => {
            found.secured = secured;
            let mut verdict = judge(own, &reply.hello, address, nodes);
            if verdict == Verdict::Agreed && !reply.hello.nodes.contains(&node) {
                verdict = Verdict::OtherNode;
            }
            let why = || explain(verdict, own, &reply.hello, address);
            found.conflict = (verdict != Verdict::Agreed).then(why);
            found.daemon = Some(reply.hello);
        }
        Err(Error::Version { broker }) => {
            found.conflict = Some(format!(
                "other version: the daemon at {address} speaks version {broker} of the remoting \
                 protocol, this program version {VERSION}"
            ));
        }
        Err(Error::Unsecured(why)) => found.conflict = Some(why.to_string()),
        Err(error) => found.silence = silence(&error),
    }
    found
}

fn silence(error: &Error) -> String {
    match error {
        Error::System { errno, .. } if *errno == Errno::CONNREFUSED => "no daemon".into(),
        Error::System { errno, .. } if *errno == Errno::TIMEDOUT => "silent".into(),
        Error::System { errno, .. } => errno.to_string(),
        Error::Timeout => "silent".into(),
        error => error.to_string(),
    }
}

/// Two hosts that answer at the addresses of one node are a conflict.
fn compare_hosts(node: &mut Node) {
    let host = |found: &Found| found.daemon.as_ref().map(|daemon| daemon.host);
    let mut hosts: Vec<u64> = node.found.iter().filter_map(host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    if hosts.len() < 2 {
        return;
    }
    let id = node.id;
    for found in node
        .found
        .iter_mut()
        .filter(|found| found.conflict.is_none())
    {
        let text = || {
            format!(
                "two hosts are node {id}: its addresses are of {}",
                hosts.len()
            )
        };
        found.conflict = found.daemon.is_some().then(text);
    }
}

impl Node {
    /// Who names it: the configuration, unless it is the node of a host without one.
    fn source(&self) -> &'static str {
        match self.from_directory {
            true => "directory",
            false if self.id == NODE_DEFAULT && self.found.is_empty() => "-",
            false => "configured",
        }
    }

    fn state(&self) -> &'static str {
        let answers = self.found.iter().any(|found| found.daemon.is_some());
        match (self.here, answers) {
            (true, true) => "here",
            (true, false) => "here, no daemon",
            (false, true) => "reachable",
            (false, false) => "not reachable",
        }
    }
}

/// For people: the cluster, and a line for each address of each node.
fn as_table(own: &Hello, nodes: &[Node]) -> String {
    let mut out = String::new();
    let cluster = match own.cluster.as_str() {
        "" => "a cluster without a name".to_owned(),
        name => format!("cluster {}", printable(name)),
    };
    let (hash, tenant) = (own.configuration, printable(&own.tenant));
    let key = if own.keyed { "a key" } else { "no key" };
    let _ = writeln!(
        out,
        "{cluster}, configuration {hash:016x}, tenant {tenant} with {key}"
    );
    let _ = writeln!(
        out,
        "{:>5} {:<16} {:<16} {:<8} {:<16} {:<18} ADDRESS",
        "NODE", "NAME", "STATE", "RELEASE", "CLUSTER", "SOURCE"
    );
    for node in nodes {
        let (id, name, state) = (node.id, printable(&node.name), node.state());
        let source = match (node.source(), node.suspect) {
            (source, true) => format!("{source}, suspect"),
            (source, false) => source.to_owned(),
        };
        if node.found.is_empty() {
            let _ = writeln!(
                out,
                "{id:>5} {name:<16} {state:<16} {:<8} {:<16} {source:<18} -",
                "-", "-"
            );
        }
        for found in &node.found {
            let (release, cluster) = match &found.daemon {
                Some(daemon) => (printable(&daemon.release), printable(&daemon.cluster)),
                None => ("-".into(), "-".into()),
            };
            let reason = match found.silence.as_str() {
                "" => String::new(),
                why => format!(" ({why})"),
            };
            let secured = if found.secured { " (secured)" } else { "" };
            let address = format!("{}{secured}{reason}", found.address);
            let _ = writeln!(
                out,
                "{id:>5} {name:<16} {state:<16} {release:<8} {cluster:<16} {source:<18} {address}"
            );
            if let Some(conflict) = &found.conflict {
                let _ = writeln!(out, "      CONFLICT: {}", printable(conflict));
            }
        }
    }
    out
}

/// `{"cluster", "configuration", "tenant", "keyed", "nodes": [...]}`.
fn as_json(own: &Hello, nodes: &[Node]) -> Value {
    json!({
        "cluster": own.cluster,
        "configuration": format!("{:016x}", own.configuration),
        "tenant": own.tenant,
        "keyed": own.keyed,
        "nodes": nodes.iter().map(node_json).collect::<Vec<_>>(),
    })
}

fn node_json(node: &Node) -> Value {
    let found = node.found.iter().map(|found| {
        let daemon = found.daemon.as_ref();
        json!({
            "address": found.address.to_string(),
            "answers": daemon.is_some(),
            "release": daemon.map(|daemon| daemon.release.clone()),
            "cluster": daemon.map(|daemon| daemon.cluster.clone()),
            "nodes": daemon.map(|daemon| daemon.nodes.clone()),
            "secured": found.secured,
            "reason": found.silence,
            "conflict": found.conflict,
        })
    });
    json!({
        "node": node.id,
        "name": node.name,
        "here": node.here,
        "source": node.source(),
        "suspect": node.suspect,
        "reachable": node.found.iter().any(|found| found.daemon.is_some()),
        "addresses": found.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(last: u8, host: u64) -> Found {
        let daemon = Hello {
            host,
            nodes: vec![8],
            release: "0.1\x1b".into(),
            cluster: "alpha".into(),
            ..Hello::default()
        };
        Found {
            address: IpAddr::from([10, 0, 0, last]),
            daemon: (host != 0).then_some(daemon),
            secured: host == 3,
            silence: if host == 0 {
                "silent".into()
            } else {
                String::new()
            },
            conflict: None,
        }
    }

    fn node(found: Vec<Found>) -> Node {
        Node {
            id: 8,
            name: "left".into(),
            here: false,
            from_directory: true,
            suspect: true,
            found,
        }
    }

    #[test]
    fn the_table_has_a_line_for_each_address() {
        let nodes = [
            node(vec![found(1, 3), found(2, 0)]),
            node(vec![found(3, 0)]),
        ];
        let table = as_table(&Hello::default(), &nodes);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].starts_with("a cluster without a name, configuration 0000000000000000"));
        assert!(
            lines[2].contains("8 left             reachable        0.1?     alpha"),
            "{table}"
        );
        assert!(lines[2].ends_with(" 10.0.0.1 (secured)"), "{table}");
        assert!(
            lines[3].ends_with(" directory, suspect 10.0.0.2 (silent)"),
            "{table}"
        );
        assert!(lines[4].contains("not reachable"), "{table}");
    }

    #[test]
    fn two_hosts_at_one_node_are_a_conflict() {
        let mut one = node(vec![found(1, 3), found(2, 3), found(3, 0)]);
        compare_hosts(&mut one);
        assert!(one.found.iter().all(|found| found.conflict.is_none()));
        let mut two = node(vec![found(1, 3), found(2, 4), found(3, 0)]);
        compare_hosts(&mut two);
        let conflicts: Vec<bool> = two.found.iter().map(|f| f.conflict.is_some()).collect();
        assert_eq!(conflicts, [true, true, false]);
        let value = node_json(&two);
        assert_eq!(value["addresses"][0]["release"], "0.1\x1b");
        assert_eq!(value["addresses"][2]["answers"], false);
        let table = as_table(&Hello::default(), &[two]);
        assert_eq!(table.matches("CONFLICT: two hosts are node 8").count(), 2);
    }
}
