//! What Causeway's own libraries tell each other: of no header, and under a version of its own.

use core::ffi::{CStr, c_int};

/// The function of `libibverbs.so.1` that takes a [`TracedMessage`]. `librdmacm.so.1` looks for it
/// at run time, since the distribution's library of that name has none.
pub const TRACE_MESSAGE: &CStr = c"causeway_trace_cm";

/// A datagram of the connection manager, as it is on the wire.
#[repr(C)]
pub struct TracedMessage {
    /// This process has sent it (1), or received it (0).
    pub outbound: c_int,
    /// UDP port of this process.
    pub own_port: u16,
    /// UDP port of the peer.
    pub peer_port: u16,
    /// Address of this process, as IPv6.
    pub own: [u8; 16],
    /// Address of the peer.
    pub peer: [u8; 16],
    /// The bytes, of which there are `len`.
    pub bytes: *const u8,
    pub len: usize,
}

/// The type of [`TRACE_MESSAGE`]. It reads the message before it returns, keeps nothing of it,
/// calls nobody and never waits.
pub type TraceMessage = unsafe extern "C" fn(message: *const TracedMessage);

crate::layout!(TracedMessage, 56, own @ 8, peer @ 24, bytes @ 40, len @ 48);
