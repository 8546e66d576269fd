//! Short datagrams by AF_XDP (`Documentation/networking/af_xdp.rst` of Linux), experimental.
//!
//! Sockets of that kind, the program that steers datagrams to them and its maps need privileges,
//! which [`bpf`], [`program`] and [`socket::make`] are for: `causeway-noded` makes them and lends
//! a process the socket and its packet memory ([`lease`]). The process needs no privilege for a
//! [`Bypass`], by which it sends and receives the short datagrams of one UDP port that it has
//! bound. All others, and all once the bypass is lost, travel by the port's UDP sockets.
//!
//! The kernel is trusted: the values in its rings are only bounded before memory is touched. The
//! bytes of frames are foreign: they are copied once, and then parsed by safe code ([`frame`]).

pub mod bpf;
mod bypass;
mod checksum;
pub mod frame;
pub mod lease;
pub mod program;
mod ring;
pub mod socket;
mod umem;

pub use bypass::{Bypass, Taken, look};

/// Longest payload of a datagram that travels so. Longer ones gain nothing: a socket of AF_XDP
/// copies, and the checksum of each is made here, which the kernel leaves to hardware. The streams
/// of long messages fill datagrams up to the path's MTU, so they stay with the kernel.
pub const PAYLOAD_MAX: usize = 256;

/// What tells the datagrams that were sent by AF_XDP: the identification of an IPv4 header, and the
/// lower 16 bits of the flow label of an IPv6 header. Neither has another meaning in a datagram
/// that may not be fragmented (RFC 6864 section 4.1, RFC 6437 section 2).
///
/// Only these are steered. A short datagram that the kernel has sent may be the end of a long
/// message, whose other datagrams are in the receiver's UDP socket. Steered, it would be taken
/// before them.
pub const MARK: [u8; 2] = *b"CX";
