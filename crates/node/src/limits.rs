//! What one daemon does for others at most.

use std::time::Duration;

/// Connections of all peers.
pub const CONNECTIONS_MAX: usize = 512;
/// Connections from one address: one for each process there that has connected to a node.
pub const CONNECTIONS_PER_ADDRESS_MAX: usize = 128;
/// How long a connection may last before it has presented itself.
pub const PRESENT_PATIENCE: Duration = Duration::from_secs(5);
/// How long the broker keeps what a process was connected to, for it to come back, unless the
/// command line says otherwise. It keeps nothing for longer than
/// [`causeway_fabric::limits::RESTORE_GRACE`].
pub const LINGER: Duration = Duration::from_secs(10);
/// How long a process whose connection was reset has to come back before it is taken for ended:
/// one that has broken its connection itself comes at once, and the kernel resets that of a process
/// that ends without having read all.
pub const RESET_PATIENCE: Duration = Duration::from_secs(1);
/// How long a process that comes back waits for the end of its earlier connection.
pub const END_PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of segments that are mapped and registered for one connection.
pub const BYTES_PER_CONNECTION_MAX: u64 = 1 << 40;
/// Events that wait for a peer that does not read. Beyond, the connection ends.
pub const EVENTS_MAX: usize = 4096;
/// Triggers that have come and are not delivered yet.
pub const TRIGGERS_MAX: u32 = 256;
/// How long nothing is accepted where descriptors or memory are used up, unless a connection ends.
pub const SCARCITY: Duration = Duration::from_secs(1);
