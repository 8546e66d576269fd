//! The SISCI service: nodes, shared segments, interrupts.
//!
//! Handles (`u32`) are the session's own; names (`u64`) are random, and known only to sessions that
//! share what they name: they prove it to the next broker. Refusals are errno values:
//!
//! | errno | meaning |
//! |---|---|
//! | `EHOSTUNREACH` | there is no such node on this host |
//! | `ENOENT` | the node has no such segment or interrupt, or none that others may see |
//! | `ECONNREFUSED` | the segment was available, and takes no connections now |
//! | `EEXIST` | segment id or interrupt number in use |
//! | `EBUSY` | in use: a segment mapped by others, an interrupt connected to |
//! | `EACCES` | not shared |
//! | `EPERM` | private; the caller may not name the directory's nodes |
//! | `ESRCH` | not prepared |
//! | `EBADF` | no such handle of the caller |
//! | `EINVAL` | a value outside its range |
//! | `EDQUOT`, `EMFILE`, `ENFILE`, `ENOSPC`, `ENOMEM` | a limit |
//! | `ENOTCONN` | the session is not open, or has not joined as a node |
//! | `EAGAIN` | a connect that waits has nothing to fetch yet; or the owner may yet come back |

use crate::remoting::{message, service};
use crate::services::directory::DirectoryRequest;
use crate::services::handshake::{ClusterReply, Proof, ProofCheck, Transcript};
use crate::services::session::LifeBody;

pub use crate::services::node_id::{NODE_DEFAULT, NODE_GROUP_ALL, NODE_MAX, is_node_id};
pub use crate::services::sisci_kinds::{
    AbsentKind, Backing, CellChange, ItemKind, LocalChange, RemoteChange, SegmentState,
};

/// Highest id of a reflective-memory group.
pub const GROUP_ID_MAX: u32 = 63;

message! {
    /// One node.
    pub struct NodeInfo {
        /// Its id.
        node: u32,
        /// Addresses that the configuration gives it; IPv4 ones mapped.
        addresses: Vec<[u8; 16]>,
        /// Whether it is on this host.
        here: bool,
        /// How many sessions of the caller's tenant have joined as it.
        sessions: u32,
        /// Whether a client of another host that has one of its addresses is believed to be it.
        trusted: bool,
        /// TCP port of its node daemon.
        port: u16,
        /// Whether the directory names it, and the configuration does not.
        from_directory: bool,
        /// Whether the directory takes it for gone. Nothing is cut for that.
        suspect: bool,
    }

    /// Says which node the session is part of.
    pub struct JoinRequest {
        /// Its id: one of the configuration, or [`NODE_DEFAULT`]. `None` lets the broker choose:
        /// for a process of a virtual machine its host's node, for others [`NODE_DEFAULT`].
        node: Option<u32>,
        /// Nodes of the configuration one of whose addresses the session's network namespace has.
        here: Vec<u32>,
        /// Whether the session acts for a process of another host, where the node is.
        for_other_host: bool,
        /// How long what such a session was connected to is kept when it ends, for another that
        /// presents it ([`RestoreConnectionRequest`]); in milliseconds.
        linger_ms: u32,
    }

    /// The node that the session is part of now.
    pub struct JoinReply {
        /// Its id.
        node: u32,
    }

    /// Names a node.
    pub struct NodeRequest {
        /// Its id.
        node: u32,
    }

    /// Creates a segment.
    pub struct CreateSegmentRequest {
        /// Its id; `None` lets the broker choose one.
        id: Option<u32>,
        /// Bytes; rounded up to pages.
        size: u64,
        /// What is behind it. Of a group, all members name the same size.
        backing: Backing,
        /// Whether it can never be made available.
        private: bool,
    }

    /// A local segment. Descriptor, unless it is empty: its memory, for reading and writing.
    pub struct LocalSegmentReply {
        /// The caller's handle.
        segment: u32,
        /// Its id.
        id: u32,
        /// Its name.
        name: u64,
        /// Bytes.
        size: u64,
        /// Where it begins in its memory.
        offset: u64,
        /// How far it has come.
        state: SegmentState,
        /// Connected sessions watch it.
        life: LifeBody,
    }

    /// Names a local segment of the caller.
    pub struct SegmentHandle {
        /// The segment.
        segment: u32,
    }

    /// Asks for memory in which a program's pages are to be: a page's offset is its address.
    pub struct RegisterRequest {
        /// An empty segment.
        segment: u32,
        /// Address of the first page.
        offset: u64,
        /// Bytes, whole pages.
        size: u64,
    }

    /// Takes a segment out of others' sight.
    pub struct UnavailableRequest {
        /// The segment.
        segment: u32,
        /// Whether its connections are cut.
        force: bool,
        /// Whether connected sessions are asked to disconnect.
        notify: bool,
    }

    /// Removes a local segment, or the caller's share of it.
    pub struct RemoveRequest {
        /// The segment or interrupt.
        handle: u32,
        /// Whether what others have mapped is no hindrance; otherwise it is (`EBUSY`).
        force: bool,
    }

    /// Attaches to a shared segment of the caller's node.
    pub struct AttachSegmentRequest {
        /// Its id.
        id: u32,
    }

    /// Connects to a segment.
    pub struct ConnectSegmentRequest {
        /// Its node. Of a group: a member's, or [`NODE_GROUP_ALL`].
        node: u32,
        /// Its id.
        id: u32,
        /// Whether a group is meant.
        group: bool,
        /// Whether to wait for a segment that is not there or not available: the connection is
        /// pending then, until [`RemoteChange::Connected`].
        wait: bool,
    }

    /// A connection.
    pub struct ConnectSegmentReply {
        /// The caller's handle.
        connection: u32,
        /// False if it is pending.
        ready: bool,
    }

    /// Names a connection of the caller.
    pub struct ConnectionHandle {
        /// The connection.
        connection: u32,
    }

    /// Says whether the memory of a connection's segment is mapped.
    pub struct MappedRequest {
        /// The connection.
        connection: u32,
        /// Whether it is; while so, the segment is removed by force alone.
        mapped: bool,
    }

    /// What a connection leads to. Descriptor: the memory, for reading and writing.
    pub struct GrantReply {
        /// Names the connection, at both ends.
        name: u64,
        /// Names the segment.
        segment_name: u64,
        /// Bytes.
        size: u64,
        /// Where it begins in its memory.
        offset: u64,
        /// Ends when the connection is lost or cut.
        life: LifeBody,
        /// Whether it leads to all replicas of a group (`crate::sisci::replicas`). The one at
        /// `offset` is the caller's own, or any if it has none.
        replicas: bool,
    }

    /// Creates an interrupt.
    pub struct CreateInterruptRequest {
        /// Its number; `None` lets the broker choose one.
        number: Option<u32>,
        /// Whether it carries data: such ones have numbers of their own.
        data: bool,
        /// Whether others of the node may create it too, if they all say so: each is triggered.
        shared: bool,
    }

    /// A local interrupt.
    pub struct InterruptReply {
        /// The caller's handle.
        interrupt: u32,
        /// Its number.
        number: u32,
    }

    /// Connects to an interrupt.
    pub struct ConnectInterruptRequest {
        /// Its node.
        node: u32,
        /// Its number.
        number: u32,
        /// Whether it carries data.
        data: bool,
        /// Whether to wait until it is there.
        wait: bool,
    }

    /// Asks for the next cell that the caller has not taken.
    pub struct TakeCellRequest {
        /// The interrupt, or the connection to one.
        handle: u32,
        /// Whether it is an interrupt.
        local: bool,
    }

    /// A cell: `causeway_shm::interrupt`. Descriptors, if there is one: its memory, for reading
    /// and writing, and the eventfd that wakes the owner.
    pub struct TakeCellReply {
        /// Names it at both ends; `None` if there is none to be taken.
        cell: Option<u64>,
        /// Node of the other end.
        node: u32,
        /// Life of the other end's session.
        life: LifeBody,
    }

    /// A name that the other end knows, and the other end's node.
    pub struct Bond {
        /// The name.
        name: u64,
        /// The node.
        node: u32,
    }

    /// Presents a local segment made by an earlier broker. Descriptor, unless it is empty: its
    /// memory.
    pub struct RestoreSegmentRequest {
        /// As it was.
        segment: LocalSegmentReply,
        /// What is behind it: [`Backing::Empty`] also of registered memory.
        backing: Backing,
        /// As it was created.
        private: bool,
        /// Whether others may attach.
        shared: bool,
        /// Its connections.
        connections: Vec<Bond>,
    }

    /// Presents a connection made under an earlier broker.
    pub struct RestoreConnectionRequest {
        /// As it was asked for.
        request: ConnectSegmentRequest,
        /// As it was.
        connection: u32,
        /// Of the grant.
        name: u64,
        /// Of the grant.
        segment_name: u64,
        /// Of the grant.
        life: LifeBody,
    }

    /// Presents an interrupt made under an earlier broker.
    pub struct RestoreInterruptRequest {
        /// As it was.
        interrupt: InterruptReply,
        /// As it was created.
        data: bool,
        /// As it was created.
        shared: bool,
        /// Cells taken.
        cells: Vec<Bond>,
    }

    /// Presents a connection to an interrupt made under an earlier broker.
    pub struct RestoreInterruptConnectionRequest {
        /// As it was asked for.
        request: ConnectInterruptRequest,
        /// As it was.
        connection: u32,
        /// Cells taken.
        cells: Vec<Bond>,
    }

    /// Lends the descriptors of a cell that its interrupt's owner may not have taken.
    pub struct LendCellRequest {
        /// The connection, presented again before.
        connection: u32,
        /// One of its cells.
        cell: u64,
    }

    /// Gives up a cell.
    pub struct DropCellRequest {
        /// The cell.
        cell: u64,
    }

    /// Asks to be told when an owner for which a request was refused (`EAGAIN`) is back, or given
    /// up.
    pub struct AwaitReturnRequest {
        /// Names this wait in [`ReturnEvent`]; the caller's choice.
        ticket: u64,
        /// What was asked for.
        kind: AbsentKind,
        /// Its node; of a shared segment the caller's, whatever this says.
        node: u32,
        /// Id of the segment or group, or the interrupt's number.
        id: u32,
    }

    /// An owner that was waited for is back, or given up: what was asked for may be asked for anew.
    pub struct ReturnEvent {
        /// As it was chosen.
        ticket: u64,
    }

    /// Whether the other end is there already.
    pub struct RestoredReply {
        /// False: it may yet come.
        operational: bool,
    }

    /// Asks for a page of a listing, after this place; the default is the first.
    pub struct ItemCursor {
        /// Session of the last page; 0 is before all.
        session: u64,
        /// Items of that session seen; 0 means the session is done.
        items: u32,
    }

    /// Something that a session has.
    pub struct Item {
        /// What it is.
        kind: ItemKind,
        /// Segment id or interrupt number.
        id: u32,
        /// Its node: the session's own, or the one connected to.
        node: u32,
        /// Bytes of a segment.
        size: u64,
        /// Of a segment: how far it has come. Of a connection: available if it is made.
        state: SegmentState,
        /// Connections, or cells.
        peers: u32,
    }

    /// A session, with a page of what it has.
    pub struct SisciSession {
        /// Its number.
        session: u64,
        /// Process, as the broker's PID namespace knows it; 0 if it does not.
        pid: i32,
        /// User of the process.
        uid: u32,
        /// Name of the process.
        comm: String,
        /// Its tenant.
        tenant: String,
        /// Its node.
        node: u32,
        /// What it has.
        items: Vec<Item>,
    }

    /// A page of the listing.
    pub struct ItemPage {
        /// The next session, or more of the same one; `None` at the end.
        entry: Option<SisciSession>,
        /// Whether more of the same session follows.
        partial: bool,
    }

    /// A change of a local segment.
    pub struct LocalEvent {
        /// The segment.
        segment: u32,
        /// What happened.
        change: LocalChange,
        /// Node of the session that is or was connected.
        node: u32,
        /// Names the connection.
        connection: u64,
    }

    /// A change of a connection to a segment.
    pub struct RemoteEvent {
        /// The connection.
        connection: u32,
        /// What happened.
        change: RemoteChange,
    }

    /// A change of an interrupt's cells, or those of a connection to one.
    pub struct CellEvent {
        /// The interrupt, or the connection.
        handle: u32,
        /// Whether it is an interrupt.
        local: bool,
        /// What happened.
        change: CellChange,
        /// The cell.
        cell: u64,
    }
}

service! {
    /// Number of the SISCI service in message headers.
    service 3, handler SisciService, stub SisciStub {
        /// Lists nodes: the configured ones, those of the tenant's directory, and those that
        /// somebody of the tenant has joined as.
        1 => nodes((); fds 0..=0) -> Vec<NodeInfo>;
        /// Makes the session part of a node. Once, before all that follows but 3 and 4.
        2 => join(JoinRequest; fds 0..=0) -> JoinReply;
        /// Whether a node is on this host.
        3 => probe(NodeRequest; fds 0..=0) -> bool;
        /// Lists sessions and what they have: of the tenant; of all, in the runtime directory.
        4 => items(ItemCursor; fds 0..=0) -> ItemPage;
        /// Creates a segment.
        5 => create_segment(CreateSegmentRequest; fds 0..=0) -> LocalSegmentReply;
        /// Gives an empty segment memory to move pages into: a sparse memfd of its own.
        6 => register_memory(RegisterRequest; fds 0..=0) -> ();
        /// Makes a segment ready to be made available.
        7 => prepare_segment(SegmentHandle; fds 0..=0) -> ();
        /// Lets others connect to a segment.
        8 => set_available(SegmentHandle; fds 0..=0) -> ();
        /// Lets nobody else connect to a segment. Cutting its connections gives it another life.
        9 => set_unavailable(UnavailableRequest; fds 0..=0) -> LifeBody;
        /// Removes a local segment; one that others are attached to goes on without the caller.
        10 => remove_segment(RemoveRequest; fds 0..=0) -> ();
        /// Lets other processes of the node attach to a segment.
        11 => share_segment(SegmentHandle; fds 0..=0) -> ();
        /// Attaches to a shared segment.
        12 => attach_segment(AttachSegmentRequest; fds 0..=0) -> LocalSegmentReply;
        /// Connects to a segment.
        13 => connect_segment(ConnectSegmentRequest; fds 0..=0) -> ConnectSegmentReply;
        /// What a connection leads to.
        14 => fetch_connection(ConnectionHandle; fds 0..=0) -> GrantReply;
        /// Gives up a connection, made or pending.
        15 => disconnect_segment(ConnectionHandle; fds 0..=0) -> ();
        /// Creates an interrupt.
        16 => create_interrupt(CreateInterruptRequest; fds 0..=0) -> InterruptReply;
        /// Removes an interrupt.
        17 => remove_interrupt(RemoveRequest; fds 0..=0) -> ();
        /// Connects to an interrupt: to each of those that share its number.
        18 => connect_interrupt(ConnectInterruptRequest; fds 0..=0) -> ConnectSegmentReply;
        /// Gives up a connection to an interrupt, made or pending.
        19 => disconnect_interrupt(ConnectionHandle; fds 0..=0) -> ();
        /// Takes a cell of an interrupt or of a connection to one.
        20 => take_cell(TakeCellRequest; fds 0..=0) -> TakeCellReply;
        /// Presents a segment again after the broker was restarted.
        21 => restore_segment(RestoreSegmentRequest; fds 0..=1) -> LifeBody;
        /// Presents a connection again after the broker was restarted.
        22 => restore_connection(RestoreConnectionRequest; fds 0..=0) -> RestoredReply;
        /// Presents an interrupt again after the broker was restarted.
        23 => restore_interrupt(RestoreInterruptRequest; fds 0..=0) -> ();
        /// Presents a connection to an interrupt again after the broker was restarted.
        24 => restore_interrupt_connection(
            RestoreInterruptConnectionRequest; fds 0..=0
        ) -> ();
        /// Asks to be told when the owner of a connection's segment is stopped, and goes on.
        25 => watch_connection(ConnectionHandle; fds 0..=0) -> ();
        /// Says that a connection's segment was mapped, or is mapped no more.
        26 => note_mapped(MappedRequest; fds 0..=0) -> ();
        /// Lends the descriptors of a cell of a connection that was presented again, for an owner
        /// that has not taken its end: memory and eventfd.
        27 => lend_cell(LendCellRequest; fds 2..=2) -> ();
        /// Asks to be told, once, when an absent owner is back or given up. True if there is
        /// nothing to wait for: then nothing will be told. `EMFILE` for too many waits; each ends
        /// with the time in which owners may come back, if not before.
        28 => await_return(AwaitReturnRequest; fds 0..=0) -> bool;
        /// Gives up a cell of the caller's that was given, and whose descriptors have not arrived:
        /// it is removed at both ends.
        29 => drop_cell(DropCellRequest; fds 0..=0) -> ();
        /// What the configuration says of the cluster and of the caller's tenant.
        40 => cluster((); fds 0..=0) -> ClusterReply;
        /// Proves the tenant's key, for the process or the daemon that the caller is: `ENOKEY` if
        /// it has none, `EINVAL` if the transcript is not the caller's to prove.
        41 => prove(Transcript; fds 0..=0) -> Proof;
        /// Checks the other end's proof: `EACCES` if it is wrong.
        42 => check_proof(ProofCheck; fds 0..=0) -> ();
        /// Names the nodes of the tenant's directory, until it is asked again: `EPERM` but for root
        /// and the broker's own user, `EINVAL` for what no node can be, `EMFILE` for too many.
        43 => set_directory(DirectoryRequest; fds 0..=0) -> ();
    }
}

/// Number of the event about a local segment: [`LocalEvent`].
pub const EVENT_LOCAL: u16 = 1;
/// Number of the event about a connection to a segment: [`RemoteEvent`].
pub const EVENT_REMOTE: u16 = 2;
/// Number of the event about cells: [`CellEvent`].
pub const EVENT_CELL: u16 = 3;
/// Number of the event about an owner that was waited for: [`ReturnEvent`].
pub const EVENT_RETURN: u16 = 4;
