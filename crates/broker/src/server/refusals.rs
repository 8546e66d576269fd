//! Connections that are not admitted, and how many are.

use std::os::fd::OwnedFd;

use causeway_fabric::limits::UNATTACHED_MAX;
use causeway_fabric::remoting::{Header, Kind, send};
use rustix::io::Errno;

use super::TO_CONNECTION;
use crate::sys;

/// This part of the broker's descriptors is for connections that are not attached.
const UNATTACHED_PART: u64 = 4;

/// Tells a client why it is refused, which it reads before it sees the end.
pub(super) fn turn_away(socket: OwnedFd, why: Errno) {
    let reply = Header {
        kind: Kind::Reply,
        status: why.raw_os_error(),
        ..TO_CONNECTION
    };
    let _ = send(&socket, &reply.encode(&[]), &[]);
}

/// How many connections there may be that are not attached, as far as descriptors go.
pub(super) fn unattached_most() -> usize {
    let files = sys::files_max();
    usize::try_from(files / UNATTACHED_PART).map_or(UNATTACHED_MAX, |part| part.min(UNATTACHED_MAX))
}
