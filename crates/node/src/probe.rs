//! Asks the daemons of the other nodes, now and then, whether they agree with this one, so that two
//! hosts with one id, or with different configurations, show before a program runs into it.

use std::net::SocketAddr;
use std::sync::Arc;

use causeway_fabric::Error;
use causeway_fabric::handshake::{explain, judge, other_hosts};
use causeway_fabric::node::NodeClient;
use causeway_fabric::remoting::VERSION;
use causeway_fabric::services::handshake::{Hello, Verdict};
use causeway_fabric::services::sisci::NodeInfo;

use crate::handshake::own_hello;
use crate::limits::{PROBE_INTERVAL, PROBE_PATIENCE};
use crate::shared::{Opinion, Shared};

/// Name of the thread.
const THREAD: &str = "causeway-probe";

/// Begins to ask, in a thread of its own.
pub fn begin(shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name(THREAD.into());
    let spawned = thread.spawn(move || {
        loop {
            if let Err(error) = all(&shared) {
                tracing::debug!(%error, "cannot ask the other nodes' daemons");
            }
            std::thread::sleep(PROBE_INTERVAL);
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "no thread: other nodes' daemons are not asked");
    }
}

/// Asks at each address of a node that this namespace has not: also of a node that this daemon
/// takes for its own.
fn all(shared: &Shared) -> causeway_fabric::Result<()> {
    let nodes = shared.own.nodes()?;
    for (node, at) in other_hosts(&nodes) {
        one(shared, node, at, &nodes);
    }
    Ok(())
}

fn one(shared: &Shared, node: u32, at: SocketAddr, nodes: &[NodeInfo]) {
    let address = at.ip();
    match ask(shared, (node, at)) {
        Ok((own, theirs, said)) => {
            let mut verdict = judge(&own, &theirs, address, nodes);
            if verdict == Verdict::Agreed && !theirs.nodes.contains(&node) {
                verdict = Verdict::OtherNode;
            }
            let mut why = explain(verdict, &own, &theirs, address);
            if verdict == Verdict::Agreed && said != Verdict::Agreed {
                verdict = said;
                why = format!("it finds that {}", explain(said, &theirs, &own, address));
            }
            if !shared.is_news(address, Opinion::Judged(verdict)) {
                return;
            }
            match verdict {
                Verdict::Agreed => tracing::info!(%address, node, "the daemon there agrees again"),
                _ => tracing::warn!(%address, node, why, "the daemon there does not agree"),
            }
        }
        Err(Error::Version { broker }) if shared.is_news(address, Opinion::Version(broker)) => {
            tracing::warn!(
                %address, node,
                "the daemon there speaks version {broker} of the remoting protocol, \
                 this one version {VERSION}"
            );
        }
        Err(why @ Error::Version { .. }) => tracing::debug!(%address, node, %why, "as before"),
        Err(Error::Unsecured(why)) if shared.is_news(address, Opinion::Unsecured(why)) => {
            tracing::warn!(%address, node, %why, "no secured session with the daemon there");
        }
        Err(why) => tracing::debug!(%address, node, %why, "no daemon answers"),
    }
}

/// Connects for one question: what this daemon said, what the other says of itself and of this one.
fn ask(shared: &Shared, to: (u32, SocketAddr)) -> causeway_fabric::Result<(Hello, Hello, Verdict)> {
    let client = NodeClient::connect(&shared.own, to, PROBE_PATIENCE)?;
    // A nonce of this connection's own.
    let (own, _) = own_hello(shared)?;
    let reply = client.hello(&own)?;
    client.close();
    Ok((own, reply.hello, reply.verdict))
}
