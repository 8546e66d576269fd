//! What one daemon does for others at most.

use std::time::Duration;

/// Connections of all peers.
pub const CONNECTIONS_MAX: usize = 512;
/// Connections from one address: one for each process there that has connected to a node.
pub const CONNECTIONS_PER_ADDRESS_MAX: usize = 128;
/// How long a connection may last before it has presented itself.
pub const PRESENT_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of segments that are mapped and registered for one connection.
pub const BYTES_PER_CONNECTION_MAX: u64 = 1 << 40;
/// Events that wait for a peer that does not read. Beyond, the connection ends.
pub const EVENTS_MAX: usize = 4096;
/// Triggers that have come and are not delivered yet.
pub const TRIGGERS_MAX: u32 = 256;
/// How long nothing is accepted where descriptors or memory are used up, unless a connection ends.
pub const SCARCITY: Duration = Duration::from_secs(1);
