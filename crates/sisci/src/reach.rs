//! Ways to another host's node daemon, and what it means to programs and to people that there is
//! none.

use std::io::Write as _;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Once;
use std::time::Duration;

use causeway_fabric::handshake::Refusal;
use causeway_fabric::node::NodeClient;
use causeway_fabric::remoting::VERSION;
use causeway_fabric::services::handshake::DaemonState;
use causeway_fabric::services::node::NODE_PORT;
use causeway_fabric::services::sisci::NodeInfo;
use causeway_fabric::sisci::Sisci;
use causeway_fabric::{Error as FabricError, guest};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// How long one address of a node has for a connection.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// A host whose broker cannot have a node daemon has no part in the cluster.
pub(crate) fn check_daemon(sisci: &Sisci) -> Result<()> {
    let cluster = sisci.cluster().map_err(|_| Error::SYSTEM)?;
    if cluster.daemon != DaemonState::PortTaken {
        return Ok(());
    }
    tell(&format!(
        "another process has TCP port {NODE_PORT}, which this host's node daemon needs: \
         `causeway doctor` names it"
    ));
    Err(Error::NO_LINK_ACCESS)
}

/// Connects to a node's daemon at the first of its addresses that answers.
pub(crate) fn reach(sisci: &Sisci, wanted: &NodeInfo) -> Result<NodeClient> {
    let mut outcome = Err(Error::NO_SUCH_NODEID);
    for address in addresses(wanted) {
        let at = (wanted.node, (address, wanted.port).into());
        match NodeClient::connect(sisci, at, PATIENCE) {
            Ok(client) => return Ok(client),
            Err(FabricError::Unsecured(why)) if why.is_passing() => {
                tell(&format!("no connection to {address}: {why}"));
                outcome = Err(Error::NO_REMOTE_LINK_ACCESS);
            }
            Err(FabricError::Unsecured(why)) => {
                return Err(not_agreed(Refusal::Disagreement(why.to_string()), address));
            }
            Err(error) => outcome = Err(unreachable(&error)),
        }
    }
    outcome
}

/// Connects by the daemon of this host, for a process that has no way of its own.
pub(crate) fn reach_by_relay(sisci: &Sisci, node: u32) -> Result<NodeClient> {
    match NodeClient::by_relay(sisci, node) {
        Ok(Some((client, None))) => Ok(client),
        Ok(Some((client, Some(why)))) => Err(not_agreed(Refusal::Disagreement(why), client.peer())),
        Ok(None) => {
            explain(node, sisci.node());
            Err(Error::NO_LINK_ACCESS)
        }
        Err(FabricError::Unsecured(why)) => {
            tell(&format!("no connection to node {node}: {why}"));
            Err(Error::CONNECTION_REFUSED)
        }
        Err(error) => Err(unreachable(&error)),
    }
}

pub(crate) fn addresses(node: &NodeInfo) -> Vec<IpAddr> {
    let canonical = |address: &[u8; 16]| IpAddr::V6(Ipv6Addr::from(*address)).to_canonical();
    node.addresses.iter().map(canonical).collect()
}

/// Tells people what no error code can say. Once in a process, since some try again in a loop.
pub(crate) fn tell(what: &str) {
    static TOLD: Once = Once::new();
    // A standard error that can't be written to is nobody's to read.
    TOLD.call_once(|| {
        let _ = writeln!(std::io::stderr(), "causeway: SISCI of another host: {what}");
    });
}

/// Says what to do where a guest has no way to a node.
fn explain(node: u32, own: u32) {
    if guest::is_used() {
        tell(&format!(
            "there is no route from this virtual machine to node {node}, and no node daemon on its \
             host that leads there for node {own}: start causeway-noded there, or give the virtual \
             machine an address in a network that leads there, and name it among those of node \
             {own}"
        ));
    }
}

/// What it means that a host was not reached.
pub(crate) fn unreachable(error: &FabricError) -> Error {
    match error {
        FabricError::System {
            errno: Errno::NETUNREACH | Errno::NETDOWN,
            ..
        } => Error::NO_LINK_ACCESS,
        FabricError::System {
            errno: Errno::ACCESS,
            ..
        } => Error::CONNECTION_REFUSED,
        FabricError::Version { .. } | FabricError::Protocol(_) => Error::INCONSISTENT_VERSIONS,
        _ => Error::NO_REMOTE_LINK_ACCESS,
    }
}

/// What it means that this process and a daemon do not agree on who they are.
pub(crate) fn not_agreed(refusal: Refusal, address: IpAddr) -> Error {
    match refusal {
        Refusal::Disagreement(why) => {
            tell(&format!(
                "nothing to do with the daemon at {address}: {why}"
            ));
            Error::CONNECTION_REFUSED
        }
        Refusal::Call(error @ FabricError::Version { broker }) => {
            tell(&format!(
                "the daemon at {address} speaks version {broker} of the remoting protocol, \
                 this process version {VERSION}"
            ));
            unreachable(&error)
        }
        Refusal::Call(FabricError::Unsecured(why)) => {
            not_agreed(Refusal::Disagreement(why.to_string()), address)
        }
        Refusal::Call(error) => unreachable(&error),
        _ => Error::CONNECTION_REFUSED,
    }
}

/// What it means that a daemon would not have this process.
pub(crate) fn not_believed(error: &FabricError, address: IpAddr, node: u32) -> Error {
    match error {
        FabricError::Refused { errno, .. } => {
            let why = match *errno {
                Errno::ACCESS => "it does not believe that this is node",
                Errno::MFILE => "it has no room for node",
                _ => "it could not serve node",
            };
            tell(&format!("the daemon at {address} refused: {why} {node}"));
            Error::CONNECTION_REFUSED
        }
        error => unreachable(error),
    }
}
