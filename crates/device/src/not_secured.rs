//! What people are told where there is no secured connection.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use causeway_wire::secure::Why;

/// Lines that one process writes at most: anybody on the path can forge what draws one.
const MOST_LINES: u32 = 16;

/// Says something on standard error, unless it was told enough.
#[cold]
pub(crate) fn say(text: &str) {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    if TOLD.fetch_add(1, Ordering::Relaxed) < MOST_LINES {
        // A standard error that can't be written to is nobody's to read.
        let _ = writeln!(std::io::stderr(), "causeway: {text}");
    }
}

/// Says that the peer of a queue pair makes no secured connection, and why.
#[cold]
pub(crate) fn tell(qpn: u32, peer: SocketAddr, why: Why) {
    say(&format!(
        "queue pair {qpn:#08x} gets no secured connection to {peer}: {why}"
    ));
}
