//! UDP input and output with segmentation offload.
//!
//! An endpoint uses the network through [`UdpPort`]s alone: a non-blocking socket for both address
//! families on one port, connected sockets for single peers, sends and receives of many datagrams
//! per system call (UDP GSO and GRO, through quinn-udp), and the ICMP errors that report peers that
//! are gone or datagrams that are too big. [`path_mtu`] says how big datagrams may be.
//!
//! # Fragmentation
//! Datagrams normally carry "don't fragment", so that a path's limit is seen and respected. A
//! sender may allow fragmentation instead (`may_fragment`), which trades the loss of a whole
//! datagram with any of its fragments for fewer and larger datagrams. Linux has no such choice per
//! datagram for IPv4, only socket options; [`UdpPort`] switches them when the policy of a datagram
//! differs from that of the one before, except for datagrams so small that it does not matter.

mod alone;
mod bind;
mod bypass;
mod class;
mod connected;
mod errqueue;
mod message;
mod options;
mod pieces;
mod port;
mod received;
mod route;

pub use class::ECT;
pub use connected::{Connected, Further, Room};
pub use errqueue::{QUOTE_LEN, Report, Unreachable};
pub use pieces::Outside;
pub use port::UdpPort;
pub use received::{Received, Together};
pub use route::{MAX_PAYLOAD, MIN_PATH_PAYLOAD, path_mtu};

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

impl AsFd for UdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

/// The IPv4 form of an IPv4-mapped address; any other address as it is.
fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, addr.port()),
        // Keeps the scope of a link-local address.
        IpAddr::V6(_) => addr,
    }
}
