//! Every limit of the control plane, by name. Both sides use the same numbers.

use std::time::Duration;

use causeway_identity::{PAGE, QPS_PER_SLOT};

/// Most bytes of one message, header included.
pub const MESSAGE_MAX: usize = 32 * 1024;
/// Most file descriptors that travel with one message.
pub const MESSAGE_FDS_MAX: usize = 4;
/// Most bytes of one string in a message.
pub const STRING_MAX: usize = 1024;

/// Most endpoints attached to one broker.
pub const ENDPOINTS_MAX: usize = 4096;
/// Most sessions (clients that are no endpoints) of one broker.
pub const MEMBERS_MAX: usize = 4096;
/// Most control connections to one broker that are neither: tools, and what launchers leave to the
/// programs they start.
pub const UNATTACHED_MAX: usize = ENDPOINTS_MAX + 256;
/// Of a tenant there may be as many of those as endpoints, and this many more.
pub const UNATTACHED_MORE: usize = 64;
/// How long a connection may last that has asked for nothing yet.
pub const ATTACH_PATIENCE: Duration = Duration::from_secs(5);
/// Places for each kind of client that tenants of sockets leave to the broker's own user and root.
pub const OWN_SHARE: usize = 64;
/// Most slots of one endpoint.
pub const SLOTS_PER_ENDPOINT_MAX: usize = 16;
/// Most connected QPs of one endpoint: every index of every slot.
pub const QPS_PER_ENDPOINT_MAX: usize = SLOTS_PER_ENDPOINT_MAX * QPS_PER_SLOT as usize;
/// Most segments of one endpoint.
pub const SEGMENTS_PER_ENDPOINT_MAX: usize = 1024;
/// Bytes of a segment: room for the pages of a whole address space, so that no offset need ever be
/// used twice. It is sparse: pages cost memory once they are written.
pub const SEGMENT_BYTES: u64 = causeway_identity::ADDRESSES_END;
/// Memory for segments is reserved at the broker in units of this many bytes, so that many small
/// registrations cost few calls.
pub const RESERVE_UNIT: u64 = 64 << 20;
/// Bytes of a page; a block is a whole number of them.
pub const PAGE_BYTES: u64 = PAGE as u64;
/// Bytes of a huge page.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Most bytes of a block.
pub const BLOCK_BYTES_MAX: u64 = 1 << 40;
/// Most blocks of a pool.
pub const POOL_BLOCKS_MAX: u32 = 65_536;
/// Longest name of a pool or a block, in bytes.
pub const POOL_NAME_MAX: usize = 63;
/// Most pools that a session has open.
pub const POOLS_OPEN_MAX: usize = 256;
/// Most pools of a tenant.
pub const POOLS_PER_TENANT_MAX: usize = 1024;
/// Most blocks of a session.
pub const BLOCKS_PER_SESSION_MAX: usize = 16_384;
/// Most blocks of a tenant: each is a descriptor of the broker's.
pub const BLOCKS_PER_TENANT_MAX: usize = 65_536;
/// Most grants of a block.
pub const GRANTS_PER_BLOCK_MAX: usize = 64;
/// Most synchronization objects of a block that status displays show.
pub const SYNCS_PER_BLOCK_MAX: usize = 64;
/// After a restart of the broker: most blocks that a session holds and whose owners have not
/// brought them yet.
pub const AWAITED_BLOCKS_MAX: usize = BLOCKS_PER_SESSION_MAX;
/// Sessions in one page of a pool's members.
pub const MEMBERS_PER_PAGE: usize = 256;
/// Blocks in one page of a pool's blocks.
pub const POOL_BLOCKS_PER_PAGE: usize = 128;
/// Members of a pool, and holders of a block, that a status page shows.
pub const MEMBERS_PER_STATUS_MAX: usize = 64;
/// Holders of a block that a status page shows.
pub const HOLDERS_PER_STATUS_MAX: usize = 64;
/// Processes inside of a synchronization object that a status page shows.
pub const ENTRIES_PER_SYNC_MAX: usize = 16;
/// Bytes of blocks beyond which a status page ends.
pub const POOL_STATUS_BYTES: usize = MESSAGE_MAX / 2;
/// Most traces that run at a time: each is a descriptor of the broker's.
pub const TRACES_MAX: usize = 64;
/// Most bytes that the broker keeps for a client that does not read its socket. Beyond, the
/// client is dropped. Room for an event about each of [`QPS_PER_ENDPOINT_MAX`] QPs.
pub const BACKLOG_BYTES_MAX: usize = 2 << 20;
/// Pending connections of the broker's listening socket.
pub const LISTEN_BACKLOG: i32 = 1024;

/// Most GIDs shown in one view of sysfs.
pub const SYSFS_GIDS_MAX: usize = 256;
/// Longest interface name (`IFNAMSIZ - 1`).
pub const IFNAME_MAX: usize = 15;
/// Longest process name (`TASK_COMM_LEN - 1`).
pub const COMM_MAX: usize = 15;
/// QPs listed in one page of a status reply.
pub const STATUS_QPS_PER_PAGE: usize = 512;
/// Numbers of secured QPs in one reply.
pub const SECURED_PER_PAGE: usize = 512;

/// How long a client waits for the reply to one call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client waits for a broker that it started to become ready.
pub const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a client meets a broker that is just exiting before it gives up.
pub const ATTACH_ATTEMPTS: usize = 16;
/// How long after a failure to attach again an endpoint is reminded to try once more.
pub const REATTACH_INTERVAL: Duration = Duration::from_secs(1);
/// How long a broker without endpoints stays (setting: `CAUSEWAY_IDLE_SECONDS`).
pub const IDLE_SECONDS_DEFAULT: u64 = 10;
/// After a broker's restart: how long one half of an established connection waits for the other
/// half to present itself before its peer is declared dead.
pub const RESTORE_GRACE: Duration = Duration::from_secs(10);

/// After the first endpoint of an earlier broker has come back: how long the new broker makes no
/// ring for QPs that name each other, since the other may be about to present half of one. The
/// caller waits for the reply meanwhile.
pub const RETURN_GRACE: Duration = Duration::from_millis(500);

/// How long news of peers that do not press (all but deaths) may wait at the broker for more, and
/// how many do not: where connections come and go by the thousand, a message for each would cost
/// both ends as much as the connections.
pub const NEWS_DELAY: Duration = Duration::from_millis(2);
/// See [`NEWS_DELAY`].
pub const NEWS_HELD_MAX: usize = 64;

/// How long a session that grants exclusive access waits for others to let go.
pub const GRANT_PATIENCE: Duration = Duration::from_millis(500);
/// Most waits of a session at a time ([`crate::pool::PoolSession::wait_for_name`]).
pub const WAITS_PER_SESSION_MAX: usize = 1024;

/// Most nodes that an end of a connection to a node daemon may say that it is.
pub const HELLO_NODES_MAX: usize = 128;

/// Most addresses that an endpoint may report.
pub const ADDRESSES_MAX: usize = 256;

const _: () = assert!(CALL_TIMEOUT.as_millis() > 4 * RETURN_GRACE.as_millis());
const _: () = assert!(POOL_BLOCKS_PER_PAGE * (POOL_NAME_MAX + 64) < MESSAGE_MAX);
const _: () = assert!(MEMBERS_PER_PAGE * (COMM_MAX * 4 + 32) < MESSAGE_MAX);
const _: () = assert!(SYNCS_PER_BLOCK_MAX * (ENTRIES_PER_SYNC_MAX * 8 + 64) < POOL_STATUS_BYTES);
const _: () = assert!(SEGMENTS_PER_ENDPOINT_MAX * size_of::<u64>() < MESSAGE_MAX / 2);
/// Service levels that datagrams' traffic classes are told by: as many as four bits name
/// (`ibv_create_ah(3)`, `sl`).
pub const SERVICE_LEVELS: usize = 16;
