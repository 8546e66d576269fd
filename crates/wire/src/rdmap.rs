//! RDMAP messages and the DDP segments that carry them (RFC 5040, RFC 5041, RFC 7306).

/// Largest header any segment has: DDP untagged (18) and an atomic request (52), rounded up.
pub const MAX_HEADER: usize = 72;

/// An atomic operation (RFC 7306 section 5.1). Masks are always all ones here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// FetchAdd
    FetchAdd {
        /// Add data
        add: u64,
    },
    /// CmpSwap
    CmpSwap {
        /// Compare data
        compare: u64,
        /// Swap data
        swap: u64,
    },
}

/// What one DDP segment says, apart from its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// RDMA Write (tagged).
    Write {
        /// Data sink STag: the rkey.
        stag: u32,
        /// Tagged offset: the address.
        to: u64,
    },
    /// RDMA Read Request (untagged, queue 1).
    ReadRequest {
        /// Message sequence number in queue 1.
        msn: u32,
        /// Data sink STag: names the request, not an MR (USIW section 2.4).
        sink_stag: u32,
        /// Data sink tagged offset.
        sink_to: u64,
        /// RDMA read message size in bytes.
        len: u32,
        /// Data source STag: the rkey.
        src_stag: u32,
        /// Data source tagged offset: the address.
        src_to: u64,
    },
    /// RDMA Read Response (tagged).
    ReadResponse {
        /// Data sink STag of the request.
        stag: u32,
        /// Tagged offset: offset of the payload in the data sink.
        to: u64,
    },
    /// Send in all its variants (untagged, queue 0).
    Send {
        /// Message sequence number in queue 0.
        msn: u32,
        /// Message offset of the payload.
        mo: u32,
        /// With Solicited Event.
        solicited: bool,
        /// With Invalidate: the STag. Excludes `imm`.
        invalidate: Option<u32>,
        /// With immediate data (a Causeway opcode): 32 bits in the order they stood in memory.
        imm: Option<u32>,
    },
    /// Immediate Data (RFC 7306 section 6; untagged, queue 0): ends a WRITE_WITH_IMM.
    Immediate {
        /// Message sequence number in queue 0.
        msn: u32,
        /// With Solicited Event.
        solicited: bool,
        /// 32 bits in the order they stood in memory: first half of the immediate data.
        imm: u32,
        /// Bytes written by the RDMA Write before it: second half of the immediate data.
        written: u32,
    },
    /// Atomic Request (RFC 7306 section 5.1; untagged, queue 1).
    AtomicRequest {
        /// Message sequence number in queue 1.
        msn: u32,
        /// Echoed in the response.
        request_id: u32,
        /// Remote STag: the rkey.
        stag: u32,
        /// Remote tagged offset: the address.
        to: u64,
        /// Operation and operands.
        op: Atomic,
    },
    /// Atomic Response (RFC 7306 section 5.2; untagged, queue 3).
    AtomicResponse {
        /// Message sequence number in queue 3.
        msn: u32,
        /// That of the request.
        request_id: u32,
        /// Value before the operation.
        original: u64,
    },
}

/// The header of a DDP segment; the payload follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// What it carries.
    pub message: Message,
    /// DDP's L flag: last segment of its message.
    pub last: bool,
}
