//! What one daemon does for others at most.

use std::time::Duration;

/// Connections of all peers.
pub const CONNECTIONS_MAX: usize = 512;
/// Connections from one address: one for each process there that has connected to a node.
pub const CONNECTIONS_PER_ADDRESS_MAX: usize = 128;
/// Of them, those that are not open yet: a further one ends the oldest of them.
pub const UNPROVED_PER_ADDRESS_MAX: usize = 16;
/// Connections of all peers, with those that have been told to end and have not ended yet.
pub const CONNECTIONS_AND_ENDING_MAX: usize = 2 * CONNECTIONS_MAX;
/// How often the log says that connections are ended for others, at most.
pub const EVICTION_NOTE_INTERVAL: Duration = Duration::from_secs(10);
/// How often the daemons of the other nodes are asked whether they agree.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(30);
/// How long an address of a node has for a connection then.
pub const PROBE_PATIENCE: Duration = Duration::from_millis(500);
/// Addresses of which the log says again what is wrong only if that changes.
pub const REMEMBERED_MAX: usize = 1024;
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
/// Most entries of a directory: of ids, nodes, names and tenants together.
pub const ENTRIES_MAX: usize = 8192;
/// Most bytes of one answer of etcd's.
pub const ANSWER_BYTES_MAX: u64 = 32 << 20;
/// Most bytes of the value of an entry.
pub const VALUE_BYTES_MAX: usize = 8192;
/// Most tenants that a node says it serves.
pub const TENANTS_MAX: usize = 64;
/// Most bytes of a public key, as text.
pub const PUBLIC_KEY_BYTES_MAX: usize = 1024;
/// Most bytes of a password for etcd, and of a token that it gives.
pub const PASSWORD_BYTES_MAX: u64 = 1024;
/// See there.
pub const TOKEN_BYTES_MAX: usize = 8192;
/// How long a member of etcd may take for a login, at least: bcrypt is slow by design, and a tenth
/// of a second on a fast machine.
pub const LOGIN_PATIENCE: Duration = Duration::from_secs(10);
/// How often a host asks again for an id when others have taken theirs meanwhile. One of all who
/// ask gets one each time, so that many hosts may ask at once.
pub const ID_ATTEMPTS_MAX: usize = 256;
/// Processes of this host that are carried for at a time. Each has
/// [`causeway_fabric::services::relay::SEGMENT_BYTES_MAX`] of memory for transfers at most, and
/// [`causeway_fabric::services::relay::PIECES_MAX`] under way.
pub const RELAYED_MAX: usize = 128;
/// How often the relay asks for its number while the broker keeps that for another daemon.
pub const RELAY_NUMBER_INTERVAL: Duration = Duration::from_millis(500);
/// How long one address of a node has for a connection that is made for a process.
pub const CONNECT_PATIENCE: Duration = Duration::from_millis(500);
/// How long a process that connects to be lent a socket of AF_XDP may take to say so.
pub const XDP_ASK_PATIENCE: Duration = Duration::from_secs(2);
/// How long a process waits for a queue whose former process has ended: the kernel takes back what
/// that had in a moment.
pub const XDP_QUEUE_PATIENCE: Duration = Duration::from_secs(1);
/// How often it is looked whether the kernel has: nothing tells. The last close of the socket by
/// its former process frees the queue, in part by a kernel worker, later than the process's pidfd
/// tells of its end. Netlink lists sockets of AF_XDP (`NETLINK_SOCK_DIAG`), but announces the ends
/// of TCP's and UDP's alone. epoll watches a socket only as long as it is open here, and then its
/// queue is not free.
pub const XDP_QUEUE_LOOK: Duration = Duration::from_millis(20);
/// Connections of one user's processes that are lent such a socket, or are about to ask; and those
/// of all users together who are offered nothing.
pub const XDP_CONNECTIONS_PER_USER: usize = 8;
/// Connections of all users.
pub const XDP_CONNECTIONS_MAX: usize = 128;
/// Entries of the table that steers datagrams of an interface: one for each address and lease.
pub const XDP_STEERED_MAX: u32 = 4096;
/// Queues of an interface of which sockets are lent.
pub const XDP_QUEUES_MAX: u32 = 256;
