//! Counters.

use causeway_wire::secure::Why;
use causeway_wire::trp::{ParseError, VERSION};

use crate::time::Duration;

/// Why a datagram was dropped. The connection is unharmed by any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DropReason {
    /// Not TRP.
    #[error("malformed: {0}")]
    Malformed(ParseError),
    /// For another queue pair than this one, or not from its peer.
    #[error("wrong queue pair")]
    QueuePair,
    /// Wrong cookie: forged, or of another incarnation.
    #[error("wrong cookie")]
    Cookie,
    /// CRC missing or wrong.
    #[error("wrong CRC")]
    Crc,
    /// Data before the handshake had proved its sender.
    #[error("not connected yet")]
    NotConnected,
    /// A handshake with another first PSN than ours.
    #[error("first PSN mismatch")]
    Psn,
    /// A number too far ahead, or a message that begins after itself.
    #[error("outside the receive window")]
    Window,
    /// Of an attempt that was refused meanwhile.
    #[error("stale attempt")]
    Stale,
    /// Acknowledges what was never sent.
    #[error("acknowledges the future")]
    Ack,
    /// A request of another version of TRP, or an answer that says that the peer speaks it.
    #[error("the peer speaks version {0} of TRP, this build version {VERSION}")]
    Version(u8),
    /// Not encrypted on a connection that is to be, or the other way round.
    #[error("one side is secured, and the other is not")]
    NotSecured,
    /// Sealed by other keys than the connection's, or changed on the way.
    #[error("sealed by nobody who has the keys")]
    Forged,
    /// A copy of one that came already.
    #[error("came already")]
    Replayed,
    /// The peer will not make a secured connection.
    #[error("{0}")]
    Refused(Why),
    /// The connection is over.
    #[error("connection closed")]
    Closed,
}

/// Counters and estimates of a connection. Counters never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams sent.
    pub tx_packets: u64,
    /// Bytes of them.
    pub tx_bytes: u64,
    /// Datagrams accepted.
    pub rx_packets: u64,
    /// Bytes of them.
    pub rx_bytes: u64,
    /// Datagrams dropped, for whatever [`DropReason`].
    pub rx_dropped: u64,
    /// Of these, with a wrong CRC.
    pub rx_crc_errors: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Time-outs.
    pub timeouts: u64,
    /// Segments received in duplicate.
    pub duplicates: u64,
    /// Segments received ahead of their turn.
    pub out_of_order: u64,
    /// Refusals sent for want of a receive.
    pub rnr_sent: u64,
    /// Refusals received for want of a receive.
    pub rnr_received: u64,
    /// Pings sent.
    pub pings: u64,
    /// Datagrams received that a router had marked (CE).
    pub marks_received: u64,
    /// Headers of the peer's that told of such ones.
    pub marks_reported: u64,
    /// Probes sent for a path that carries more.
    pub probes: u64,
    /// Congestion window, bytes.
    pub congestion_window: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Smoothed round-trip time; zero before the first measurement.
    pub smoothed_rtt: Duration,
    /// Largest datagram for new segments.
    pub datagram: usize,
}
