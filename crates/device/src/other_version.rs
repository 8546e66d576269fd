//! Reports of peers that speak another version of the wire.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use causeway_wire::trp::VERSION;

/// Lines that one process writes at most: a host that knows the numbers of two queue pairs can
/// forge what draws one for each.
const MOST_LINES: u32 = 16;

/// Says on standard error that the peer at `peer` speaks another version: what fails is not the
/// network.
#[cold]
pub(crate) fn tell(qpn: u32, peer: SocketAddr, theirs: u8) {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    if TOLD.fetch_add(1, Ordering::Relaxed) >= MOST_LINES {
        return;
    }
    // A standard error that can't be written to is nobody's to read.
    let _ = writeln!(
        std::io::stderr(),
        "causeway: the peer of queue pair {qpn:#08x} at {peer} speaks version {theirs} of the \
         wire, this build version {VERSION}: use one release of Causeway on both hosts"
    );
}
