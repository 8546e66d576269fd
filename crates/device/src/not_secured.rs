//! What people are told where there is no secured connection.

use std::net::{IpAddr, SocketAddr};

use causeway_fabric::secure::say;
use causeway_wire::secure::Why;

/// Says that the peer of a queue pair makes no secured connection, and why.
#[cold]
pub(crate) fn tell(qpn: u32, peer: SocketAddr, why: Why) {
    say(&format!(
        "queue pair {qpn:#08x} gets no secured connection to {peer}: {why}"
    ));
}

/// Says that a UD queue pair and another exchange no datagrams, and why.
#[cold]
pub(crate) fn tell_of_datagrams(qpn: u32, (peer, peer_qpn): (IpAddr, u32), why: Why) {
    say(&format!(
        "queue pair {qpn:#08x} gets no secured datagrams to {peer_qpn:#08x} at {peer}: {why}"
    ));
}

/// Says that a UD queue pair drops what comes in the clear.
#[cold]
pub(crate) fn tell_of_plain(qpn: u32, from: SocketAddr) {
    say(&format!(
        "queue pair {qpn:#08x} drops datagrams of {from}: a secured wire is required, and they are \
         not sealed"
    ));
}
