//! What `causeway trace` is shown of the agent's messages: each datagram as it is on the wire.
//!
//! Whether there is a trace `libibverbs.so.1` knows, which the endpoint is part of. It is not asked
//! for more than to record: the agent's mutex is held here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;

use causeway_abi::{TraceMessage, TracedMessage};
use causeway_fabric::secure::gid_of;

use crate::ffi;

/// The function that records; `None` inside where the program's library is not ours.
static RECORD: OnceLock<Option<TraceMessage>> = OnceLock::new();

/// Looks for the function that records. Called without any lock, since the dynamic linker's may be
/// another thread's, which initialises a library that comes here too: two may look at once.
pub(super) fn prepare() {
    if RECORD.get().is_none() {
        let _ = RECORD.set(ffi::trace_message());
    }
}

/// This process has sent a datagram from a port of its own, or from the address given.
pub(super) fn sent((from, port): (Option<IpAddr>, u16), to: SocketAddr, bytes: &[u8]) {
    record(true, (from, port), to, bytes);
}

/// This process has received one.
pub(super) fn received(from: SocketAddr, (to, port): (Option<IpAddr>, u16), bytes: &[u8]) {
    record(false, (to, port), from, bytes);
}

fn record(outbound: bool, (own, port): (Option<IpAddr>, u16), peer: SocketAddr, bytes: &[u8]) {
    let Some(Some(record)) = RECORD.get() else {
        return;
    };
    // Where the kernel has chosen, the address is of the peer's family.
    let own = own.unwrap_or(match peer.ip().to_canonical() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    });
    let message = TracedMessage {
        outbound: outbound.into(),
        own_port: port,
        peer_port: peer.port(),
        own: gid_of(own),
        peer: gid_of(peer.ip()),
        bytes: bytes.as_ptr(),
        len: bytes.len(),
    };
    // SAFETY: the function is our own libibverbs.so.1's, which is never unloaded; the message and
    // its bytes are there until it returns.
    unsafe { record(&raw const message) };
}
