//! What people are told where there is no secured connection.

use std::net::SocketAddr;

use causeway_fabric::secure::say;
use causeway_wire::secure::Why;

/// Says that the peer of a queue pair makes no secured connection, and why.
#[cold]
pub(crate) fn tell(qpn: u32, peer: SocketAddr, why: Why) {
    say(&format!(
        "queue pair {qpn:#08x} gets no secured connection to {peer}: {why}"
    ));
}
