//! The endpoints' service: what the RDMA device needs of the broker.

use super::secure::{
    AnswerRequest, AssociationRequest, BeginReply, BeginRequest, FinishRequest, GroupReply,
    GroupRequest, HandshakeReply, Sealed, SecuredReply, SecuredRequest, WireQuery, WireReply,
};
use crate::remoting::{Malformed, byte_enum, message, service};

/// Which wire an endpoint is willing to use (`CAUSEWAY_WIRE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum WirePref {
    /// Shared memory where the peer is on this host and introducible, else UDP.
    #[default]
    Auto = 0,
    /// Shared memory or nothing.
    Shm = 1,
    /// UDP always.
    Udp = 2,
}

impl WirePref {
    /// The preference of the environment variable `CAUSEWAY_WIRE`; `None` if it holds something
    /// other than `auto`, `shm` or `udp`. Unset means [`WirePref::Auto`].
    pub fn from_env() -> Option<WirePref> {
        match causeway_setting::setting("CAUSEWAY_WIRE") {
            None => Some(WirePref::Auto),
            Some(value) => value.to_str()?.parse().ok(),
        }
    }

    /// The name that [`WirePref::from_env`] understands.
    pub fn name(self) -> &'static str {
        match self {
            WirePref::Auto => "auto",
            WirePref::Shm => "shm",
            WirePref::Udp => "udp",
        }
    }
}

impl std::str::FromStr for WirePref {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        match text {
            "auto" | "" => Ok(WirePref::Auto),
            "shm" => Ok(WirePref::Shm),
            "udp" => Ok(WirePref::Udp),
            _ => Err(Malformed::Value("wire preference")),
        }
    }
}

byte_enum!(WirePref, "wire preference", Auto, Shm, Udp);
byte_enum!(Wire, "wire", None, Udp, Ring);
byte_enum!(PeerChange, "peer change", Dead, Left, Joined, Exited);

/// The wire of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Wire {
    /// No wire: the preference cannot be met.
    #[default]
    None = 0,
    /// UDP between the sockets of both slots.
    Udp = 1,
    /// A ring in shared memory.
    Ring = 2,
}

/// What happened to the peer of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum PeerChange {
    /// The peer's process was killed, or its connection to the broker was lost.
    #[default]
    Dead = 0,
    /// The peer's QP was disconnected (reset or destroyed) by its living endpoint.
    Left = 1,
    /// The peer's QP joined the ring that this side created.
    Joined = 2,
    /// The peer's process has exited of its own accord, without disconnecting its QP.
    Exited = 3,
}

message! {
    /// Presents an endpoint. Descriptors: inbox memfd, doorbell eventfd, the caller's PID namespace
    /// if it shows it, and the MR table that an earlier broker made, if one did.
    pub struct AttachRequest {
        /// Wires the endpoint is willing to use.
        wire: WirePref,
        /// Name of the process, for status displays.
        comm: String,
        /// Bytes reserved under an earlier broker.
        reserved: u64,
        /// Whether the PID namespace is among the descriptors. Without it the caller trusts nobody,
        /// unless it is in a virtual machine, or its tenant is one trust boundary.
        pid_namespace: bool,
    }

    /// The endpoint exists. Descriptor, unless it brought one: its MR table, read-write.
    pub struct AttachReply {
        /// Names the endpoint to its peers; unique among all that ever lived on this host with
        /// overwhelming probability.
        endpoint: u64,
        /// The traffic class of datagrams by their service level, where a program names none. Of
        /// levels beyond it is 0.
        classes: Vec<u8>,
    }

    /// Takes or gives up a slot. Descriptors, when taking: the UDP socket bound to its port, and
    /// the segment of final acknowledgments, if there is one; none from a virtual machine, whose
    /// ports the broker can't see.
    pub struct SlotRequest {
        /// The slot.
        slot: u16,
    }

    /// Addresses of the caller.
    pub struct AddressesRequest {
        /// As GIDs.
        addresses: Vec<[u8; 16]>,
    }

    /// Asks for the wire between a QP of the caller and a remote QP.
    pub struct ConnectBody {
        /// QP of the caller; its slot must be the caller's.
        local_qpn: u32,
        /// GID of the remote QP's port; `None` means this host.
        remote_gid: Option<[u8; 16]>,
        /// Whether the caller found `remote_gid` among the addresses of its own network
        /// namespace. Peers in one namespace have the same addresses, so this and a slot bound
        /// in that namespace name one endpoint of this host.
        gid_is_local: bool,
        /// The remote QP.
        remote_qpn: u32,
        /// Reserved for introductions across network namespaces: zero.
        nonce: u64,
        /// Protection domain of the local QP.
        pd: u32,
        /// What the local QP lets its peer do: bits of
        /// [`causeway_identity::Access::REMOTE`]; others are ignored.
        access: u32,
        /// The endpoint whose inbox, doorbell and MR table the caller has from an earlier reply:
        /// they are not sent again, nor are the rings that it has kept. 0: none; it has kept none.
        known: u64,
    }

    /// The wire. Descriptors with [`Wire::Ring`]: ring memfd, unless the caller is side 1 and has
    /// it mapped from an earlier connection; and, unless the peer is the one that the caller knows,
    /// the peer's inbox, its doorbell, its MR table (read-only).
    pub struct ConnectReply {
        /// Wire to use.
        wire: Wire,
        /// Side of the ring that the caller is: 0 or 1.
        side: u8,
        /// Names the ring; the secret by which both ends claim it after a broker's restart.
        generation: u64,
        /// Names the peer's endpoint: equal values mean the same inbox and doorbell.
        peer: u64,
        /// Whether the peer is inside one trust boundary with the caller: a process of its user in
        /// its PID namespace, or of a tenant that is one boundary.
        trusted: bool,
        /// Names the ring's memory, if it may serve other connections of the same two endpoints
        /// later; 0 if it will not.
        ring: u64,
        /// Where the peer looks the caller's memory regions up, if not in the caller's MR table:
        /// a guest table of it, for [`GuestTableRequest`]. 0: in the table.
        guest_table: u64,
    }

    /// Asks for a guest table of the caller's MR table, which the caller is to keep.
    pub struct GuestTableRequest {
        /// Its name, as connect gave it.
        guest_table: u64,
    }

    /// Descriptor: the guest table, read-write, formatted as a table.
    pub struct GuestTableReply {
        /// The guest tables of the caller's table that somebody may read.
        live: Vec<u64>,
    }

    /// Forgets the connection of one QP.
    pub struct DisconnectRequest {
        /// QP of the caller.
        local_qpn: u32,
    }

    /// Forgets the connection of one QP, and gives back its ring.
    pub struct Leave {
        /// QP of the caller.
        local_qpn: u32,
        /// The ring that it uses no more, by the name that connect gave it; 0: none.
        ring: u64,
        /// Whether the caller keeps it mapped, for another connection to the same endpoint.
        kept: bool,
        /// Whether it is as new: the caller was the last to use it, and has wiped it.
        wiped: bool,
    }

    /// Presents a connection made by an earlier broker. Descriptor: the ring memfd, needed only
    /// while the peer has not joined it.
    pub struct RestoreRequest {
        /// QP of the caller.
        local_qpn: u32,
        /// GID of the remote port as given to connect.
        remote_gid: Option<[u8; 16]>,
        /// The remote QP.
        remote_qpn: u32,
        /// Wire that the connection uses.
        wire: Wire,
        /// Side of the ring.
        side: u8,
        /// Names the ring.
        generation: u64,
        /// Protection domain of the local QP.
        pd: u32,
        /// What the local QP lets its peer do, as in connect.
        access: u32,
        /// Whether the peer is inside one trust boundary with the caller, as connect said. Matters
        /// to the caller's own segments only.
        trusted: bool,
    }

    /// Changes what the peer of a QP may do.
    pub struct AccessRequest {
        /// QP of the caller.
        local_qpn: u32,
        /// What it lets its peer do from now on, as in connect.
        access: u32,
    }

    /// Segments of the caller that became stale by its request.
    pub struct StaleReply {
        /// Their names.
        segments: Vec<u64>,
    }

    /// Asks for a segment.
    pub struct CreateSegmentRequest {
        /// Protection domain whose QPs' peers may map it.
        pd: u32,
        /// Whether they may write to it.
        writable: bool,
        /// Whether only processes inside the caller's trust boundary may.
        inside: bool,
    }

    /// The segment exists. Descriptor: the segment, read-write.
    pub struct SegmentReply {
        /// Its name.
        segment: u64,
    }

    /// Names a segment of the caller.
    pub struct SegmentRequest {
        /// The segment.
        segment: u64,
    }

    /// Presents a segment made by an earlier broker. Descriptor: the segment, read-write.
    pub struct RestoreSegmentRequest {
        /// Its name.
        segment: u64,
        /// As it was created.
        pd: u32,
        /// As it was created.
        writable: bool,
        /// As it was created.
        inside: bool,
    }

    /// Asks for a segment of the peer of a QP.
    pub struct MapRequest {
        /// QP of the caller.
        local_qpn: u32,
        /// The peer's segment.
        segment: u64,
    }

    /// What was granted. Descriptor: the segment, read-write or read-only.
    pub struct MapReply {
        /// Whether the descriptor may be written through.
        writable: bool,
    }

    /// Names the peer of a QP.
    pub struct PeerRequest {
        /// QP of the caller.
        local_qpn: u32,
    }

    /// Says how much memory the caller has moved into segments, or is about to.
    pub struct ReserveRequest {
        /// Bytes, all together.
        bytes: u64,
    }

    /// Asks for the status page after this place; the default is the first.
    pub struct StatusCursor {
        /// Endpoint of the last page; 0 is before all.
        endpoint: u64,
        /// Last QP seen of that endpoint; `None` means the endpoint is done.
        qpn: Option<u32>,
    }

    /// One connected QP.
    pub struct QpStatus {
        /// The QP.
        local_qpn: u32,
        /// GID of the remote port; `None` is this host.
        remote_gid: Option<[u8; 16]>,
        /// The remote QP.
        remote_qpn: u32,
        /// Its wire.
        wire: Wire,
        /// Whether the remote QP has joined (rings only).
        joined: bool,
        /// Whether the peer is inside one trust boundary with the endpoint (rings only).
        trusted: bool,
    }

    /// One endpoint, with a page of its QPs.
    pub struct EndpointStatus {
        /// Names the endpoint.
        endpoint: u64,
        /// Process, as the broker's PID namespace knows it; 0 if it does not.
        pid: i32,
        /// User of the process.
        uid: u32,
        /// Name of the process.
        comm: String,
        /// Wires it is willing to use.
        wire: WirePref,
        /// Slots it owns.
        slots: Vec<u16>,
        /// Cookie of the network namespace of its first slot; 0 without slots.
        netns: u64,
        /// Connected QPs, by number.
        qps: Vec<QpStatus>,
        /// Counters of its statistics page.
        counters: Vec<Counter>,
        /// Its tenant.
        tenant: String,
        /// How many segments it has.
        segments: u32,
        /// Bytes that it reserved for memory moved into them.
        reserved: u64,
        /// Bytes of memory that they take up.
        resident: u64,
    }

    /// One counter of an endpoint.
    pub struct Counter {
        /// What it counts.
        name: String,
        /// How many.
        value: u64,
    }

    /// A page of the status.
    pub struct StatusPage {
        /// The next endpoint, or more QPs of the same one; `None` at the end.
        entry: Option<EndpointStatus>,
        /// Whether more QPs of the same endpoint follow.
        partial: bool,
    }

    /// Asks for the sums of the first tenant that is not before this place.
    pub struct TallyCursor {
        /// Place in the broker's list.
        tenant: u32,
    }

    /// The sums of a tenant, endpoints that have ended included where it says so.
    pub struct TenantTally {
        /// Its name.
        name: String,
        /// Endpoints now.
        endpoints: u64,
        /// Most of them.
        endpoints_max: u64,
        /// Most connected queue pairs of an endpoint.
        qps_max: u64,
        /// Most segments of an endpoint.
        segments_max: u64,
        /// Most bytes that an endpoint moves into segments.
        bytes_max: u64,
        /// Connected queue pairs now.
        connected: u64,
        /// Segments now.
        segments: u64,
        /// Bytes that are reserved for memory moved into them.
        reserved: u64,
        /// Bytes of memory that they take up.
        resident: u64,
        /// Endpoints that have ended.
        ended: u64,
        /// Endpoints that were refused for want of a place.
        refused: u64,
        /// Limits that endpoints have met, each counted once, of ended ones too.
        limits_met: u64,
        /// Sums of the endpoints' counters, of ended ones too.
        counters: Vec<Counter>,
    }

    /// A tenant's sums, and the place for the next.
    pub struct TallyPage {
        /// The tenant; `None` at the end.
        entry: Option<TenantTally>,
        /// Where to go on.
        next: u32,
    }

    /// A GID and the interface whose address it is.
    pub struct SysfsGid {
        /// The GID.
        gid: [u8; 16],
        /// Its interface.
        ifname: String,
    }

    /// Describes the device as the caller's network namespace sees it. Descriptor: any socket of
    /// that namespace.
    pub struct SysfsRequest {
        /// Node GUID, in the byte order it is printed in.
        node_guid: [u8; 8],
        /// The GID table, in order.
        gids: Vec<SysfsGid>,
    }

    /// Where the view is.
    pub struct SysfsReply {
        /// Absolute path of the directory that stands for `/`.
        root: String,
    }

    /// Asks for a trace of processes of the caller's user, or of all where the caller is root.
    /// Descriptors: the ring of records, and the caller's PID namespace if it shows it.
    pub struct TraceRequest {
        /// The only queue pair to be traced.
        qpn: Option<u32>,
        /// Whether keys are recorded as they are.
        keys: bool,
        /// Most bytes of payload that are recorded of a datagram.
        payload: u32,
        /// Whether the PID namespace is among the descriptors. Without it there is nothing to
        /// trace, unless the caller is of a tenant that is one trust boundary.
        pid_namespace: bool,
    }

    /// The trace has begun. It ends with the connection.
    pub struct TraceReply {
        /// How many endpoints were told.
        endpoints: u32,
    }

    /// The trace of the caller. Descriptor: the ring of records.
    pub struct TraceRingReply {
        /// Names the trace, as the event did.
        trace: u64,
        /// The only queue pair to be traced.
        qpn: Option<u32>,
        /// Whether keys are recorded as they are.
        keys: bool,
        /// Most bytes of payload that are recorded of a datagram.
        payload: u32,
    }

    /// One change of one peer.
    pub struct PeerEvent {
        /// QP of the endpoint that is told.
        local_qpn: u32,
        /// Generation of the ring concerned.
        generation: u64,
        /// What happened.
        change: PeerChange,
    }
}

service! {
    /// Number of the broker's service in message headers.
    service 1, handler BrokerService, stub BrokerStub {
        /// Makes the connection an endpoint.
        1 => attach(AttachRequest; fds 2..=4) -> AttachReply;
        /// Adds a slot, proved by the socket bound to its port.
        2 => add_slot(SlotRequest; fds 0..=2) -> ();
        /// Gives up a slot.
        3 => remove_slot(SlotRequest; fds 0..=0) -> ();
        /// Asks for the wire to a remote QP.
        4 => connect(ConnectBody; fds 0..=0) -> ConnectReply;
        /// Forgets a connection.
        5 => disconnect(DisconnectRequest; fds 0..=0) -> StaleReply;
        /// Presents a connection again after the broker was restarted.
        6 => restore(RestoreRequest; fds 0..=1) -> ();
        /// Lists endpoints.
        7 => status(StatusCursor; fds 0..=0) -> StatusPage;
        /// Creates the caller's view of sysfs and `/dev`.
        8 => sysfs_view(SysfsRequest; fds 1..=1) -> SysfsReply;
        /// Changes what the peer of a QP may do.
        9 => set_access(AccessRequest; fds 0..=0) -> StaleReply;
        /// Creates a segment.
        10 => create_segment(CreateSegmentRequest; fds 0..=0) -> SegmentReply;
        /// Forgets a segment.
        11 => destroy_segment(SegmentRequest; fds 0..=0) -> ();
        /// Presents a segment again after the broker was restarted.
        12 => restore_segment(RestoreSegmentRequest; fds 1..=1) -> ();
        /// Grants a segment of a connected peer.
        13 => map_segment(MapRequest; fds 0..=0) -> MapReply;
        /// Grants `/dev/userfaultfd`, open: one descriptor, or none if it can't be.
        14 => userfaultfd((); fds 0..=0) -> ();
        /// Reserves memory for segments, in place of what was reserved before.
        15 => reserve(ReserveRequest; fds 0..=0) -> ();
        /// Says which addresses peers in virtual machines, or of one, know the caller by.
        17 => report_addresses(AddressesRequest; fds 0..=0) -> ();
        /// Forgets a connection, as disconnect, but segments that become stale by it are told as
        /// events. Sent as request [`ONE_WAY`](crate::remoting::ONE_WAY), it is not answered.
        16 => leave(Leave; fds 0..=0) -> ();
        /// Grants a guest table of the caller's MR table.
        18 => guest_table(GuestTableRequest; fds 0..=0) -> GuestTableReply;
        /// Grants a socket by which the broker can be asked whether anybody refers to pages of the
        /// caller's segments (crate `causeway-pins`): one descriptor, or none if it can't tell.
        19 => asker((); fds 0..=0) -> ();
        /// Whether the peer of a QP, over whatever wire, is inside the caller's trust boundary and
        /// held up: stopped by a signal or a debugger, or frozen.
        20 => is_suspended(PeerRequest; fds 0..=0) -> bool;
        /// Says whether the wire to a peer is to be secured.
        21 => wire(WireQuery; fds 0..=0) -> WireReply;
        /// Begins a handshake for a secured connection.
        22 => begin_handshake(BeginRequest; fds 0..=0) -> BeginReply;
        /// Answers one that the peer has begun.
        23 => answer_handshake(AnswerRequest; fds 0..=0) -> HandshakeReply;
        /// Completes one.
        24 => finish_handshake(FinishRequest; fds 0..=0) -> HandshakeReply;
        /// Says which QPs of an endpoint are secured.
        25 => secured(SecuredRequest; fds 0..=0) -> SecuredReply;
        /// Seals a message of the connection manager's by the cluster's key.
        26 => seal_message(Sealed; fds 0..=0) -> Sealed;
        /// Opens one.
        27 => open_message(Sealed; fds 0..=0) -> Sealed;
        /// Says that a restored QP has got keys, under an earlier broker.
        28 => restore_secured(PeerRequest; fds 0..=0) -> ();
        /// Sums up tenants.
        30 => tally(TallyCursor; fds 0..=0) -> TallyPage;
        /// Begins a trace.
        31 => trace(TraceRequest; fds 1..=2) -> TraceReply;
        /// Grants the ring of the trace that the caller has been told of.
        32 => trace_ring((); fds 0..=0) -> TraceRingReply;
        /// Makes or understands a message between two UD QPs.
        33 => associate(AssociationRequest; fds 0..=0) -> HandshakeReply;
        /// Derives the secrets of a multicast group.
        34 => group_secrets(GroupRequest; fds 0..=0) -> GroupReply;
        /// Grants a pidfd of the process of the endpoint that a QP is connected to by a ring, if
        /// that is inside the caller's trust boundary.
        35 => peer_process(PeerRequest; fds 0..=0) -> ();
    }
}

/// Number of the event about peers: a list of [`PeerEvent`].
pub const EVENT_PEERS: u16 = 1;
/// Number of the event about segments of the endpoint that became stale: a list of their names.
pub const EVENT_STALE: u16 = 2;
/// Number of the event about rings that will not be used again: a list of their names. An endpoint
/// that has kept one mapped need not any longer.
pub const EVENT_RINGS: u16 = 3;
/// Number of the event about traces: the name of the one that is to have what the endpoint sends
/// and receives from now on; 0: none is.
pub const EVENT_TRACE: u16 = 4;
/// Most [`PeerEvent`]s in one message.
pub const PEER_EVENTS_PER_MESSAGE: usize = 1024;
