//! The types of verbs, independent of their C layout. Values match `<infiniband/verbs.h>` where the
//! C ABI passes them through; see the man page named at each item.

use bitflags::bitflags;
pub use causeway_identity::Access;
use smallvec::SmallVec;

/// Most scatter/gather entries of one work request (`ibv_query_device(3)`, `max_sge`).
pub const MAX_SGE: usize = 32;
/// Most bytes of one inline send (`ibv_create_qp(3)`, `max_inline_data`).
pub const MAX_INLINE: usize = 1024;
/// Most bytes of one message (`ibv_query_port(3)`, `max_msg_sz`).
pub const MAX_MESSAGE: u32 = 1 << 31;
/// Most READs and atomics outstanding in either direction (`ibv_query_device(3)`,
/// `max_qp_rd_atom`).
pub const MAX_RD_ATOMIC: u8 = 128;
/// Highest rate that a queue pair may be limited to, kilobits each second
/// (`ibv_query_device_ex(3)`, `qp_rate_limit_max`).
pub const MAX_RATE_LIMIT: u32 = 400_000_000;
/// Most bytes of a datagram: the largest MTU (`ibv_query_port(3)`, `active_mtu`).
pub const MAX_DATAGRAM: u32 = 4096;
/// `rnr_retry` value that means for ever (`ibv_modify_qp(3)`).
pub const RNR_RETRY_INFINITE: u8 = 7;

bitflags! {
    /// `enum ibv_send_flags` (`ibv_post_send(3)`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// `IBV_SEND_FENCE`
        const FENCE = 1;
        /// `IBV_SEND_SIGNALED`
        const SIGNALED = 1 << 1;
        /// `IBV_SEND_SOLICITED`
        const SOLICITED = 1 << 2;
        /// `IBV_SEND_INLINE`
        const INLINE = 1 << 3;
    }

    /// `enum ibv_qp_attr_mask` (`ibv_modify_qp(3)`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpAttrMask: u32 {
        /// `IBV_QP_STATE`
        const STATE = 1;
        /// `IBV_QP_CUR_STATE`
        const CUR_STATE = 1 << 1;
        /// `IBV_QP_EN_SQD_ASYNC_NOTIFY`
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `IBV_QP_ACCESS_FLAGS`
        const ACCESS_FLAGS = 1 << 3;
        /// `IBV_QP_PKEY_INDEX`
        const PKEY_INDEX = 1 << 4;
        /// `IBV_QP_PORT`
        const PORT = 1 << 5;
        /// `IBV_QP_QKEY`
        const QKEY = 1 << 6;
        /// `IBV_QP_AV`
        const AV = 1 << 7;
        /// `IBV_QP_PATH_MTU`
        const PATH_MTU = 1 << 8;
        /// `IBV_QP_TIMEOUT`
        const TIMEOUT = 1 << 9;
        /// `IBV_QP_RETRY_CNT`
        const RETRY_CNT = 1 << 10;
        /// `IBV_QP_RNR_RETRY`
        const RNR_RETRY = 1 << 11;
        /// `IBV_QP_RQ_PSN`
        const RQ_PSN = 1 << 12;
        /// `IBV_QP_MAX_QP_RD_ATOMIC`
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `IBV_QP_ALT_PATH`
        const ALT_PATH = 1 << 14;
        /// `IBV_QP_MIN_RNR_TIMER`
        const MIN_RNR_TIMER = 1 << 15;
        /// `IBV_QP_SQ_PSN`
        const SQ_PSN = 1 << 16;
        /// `IBV_QP_MAX_DEST_RD_ATOMIC`
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `IBV_QP_PATH_MIG_STATE`
        const PATH_MIG_STATE = 1 << 18;
        /// `IBV_QP_CAP`
        const CAP = 1 << 19;
        /// `IBV_QP_DEST_QPN`
        const DEST_QPN = 1 << 20;
        /// `IBV_QP_RATE_LIMIT`
        const RATE_LIMIT = 1 << 25;
    }
}

/// The service of a queue pair (`enum ibv_qp_type`, `ibv_create_qp(3)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection, `IBV_QPT_RC`.
    #[default]
    Rc,
    /// Unreliable connection, `IBV_QPT_UC`: SEND and WRITE, and no word of how they ended.
    Uc,
    /// Unreliable datagrams, `IBV_QPT_UD`.
    Ud,
}

/// `enum ibv_qp_state` (`ibv_modify_qp(3)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub enum QpState {
    #[default]
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 4,
    Sqe = 5,
    Err = 6,
}

/// `enum ibv_wc_status` (`ibv_poll_cq(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub enum WcStatus {
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    FatalErr = 19,
    GeneralErr = 21,
}

/// `enum ibv_wc_opcode` (`ibv_poll_cq(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub enum WcOpcode {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Recv = 1 << 7,
    RecvRdmaWithImm = (1 << 7) + 1,
}

bitflags! {
    /// `enum ibv_wc_flags` (`ibv_poll_cq(3)`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WcFlags: u32 {
        /// `IBV_WC_GRH`
        const GRH = 1;
        /// `IBV_WC_WITH_IMM`
        const WITH_IMM = 1 << 1;
        /// `IBV_WC_WITH_INV`
        const WITH_INV = 1 << 3;
        /// The GRH holds an IPv4 header. None of verbs' flags: the service level says it.
        const GRH_IPV4 = 1 << 31;
    }
}

/// Vendor error of `RetryExcErr` where the peer speaks another version of TRP. The lower bytes are
/// its version (bits 8 to 15) and ours (0 to 7).
pub const VENDOR_ERR_VERSION: u32 = 0x7650_0000;

/// Vendor error of `RetryExcErr` where no secured connection can be made. The lowest byte says why
/// (docs/WIRE.md).
pub const VENDOR_ERR_SECURE: u32 = 0x7365_0000;

/// The vendor error that names the peer's version of TRP and our own.
#[must_use]
pub fn other_version(theirs: u8, ours: u8) -> u32 {
    VENDOR_ERR_VERSION | u32::from(theirs) << 8 | u32::from(ours)
}

/// A work completion (`struct ibv_wc`, `ibv_poll_cq(3)`), laid out as that is: to hand it over is
/// to copy it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Wc {
    /// The identifier given with the work request.
    pub wr_id: u64,
    /// Outcome; beside `wr_id` and `qp_num` nothing else is valid unless it is `Success`.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// Provider-specific cause of an error: [`VENDOR_ERR_VERSION`], [`VENDOR_ERR_SECURE`] or 0.
    pub vendor_err: u32,
    /// Bytes transferred (receives and READs).
    pub byte_len: u32,
    /// Immediate data as the bytes stood in the sender's `imm_data` (network order), or the
    /// invalidated rkey.
    pub imm: u32,
    /// Local queue pair.
    pub qp_num: u32,
    /// Remote queue pair (datagram receives; the peer for RC).
    pub src_qp: u32,
    /// Which fields are valid.
    pub flags: WcFlags,
}

/// One scatter/gather entry (`struct ibv_sge`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Virtual address, or offset in a zero-based MR.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Key of the local MR.
    pub lkey: u32,
}

/// Scatter/gather list; short ones stay off the heap.
pub type SgList = SmallVec<[Sge; 2]>;

/// What a send work request does (`enum ibv_wr_opcode`, `ibv_post_send(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// `IBV_WR_SEND`
    Send,
    /// `IBV_WR_SEND_WITH_IMM`; the 32 bits as they stand in memory
    SendImm(u32),
    /// `IBV_WR_SEND_WITH_INV`; the peer's rkey to invalidate
    SendInv(u32),
    /// `IBV_WR_RDMA_WRITE`
    Write {
        /// Address at the peer
        addr: u64,
        /// Key at the peer
        rkey: u32,
    },
    /// `IBV_WR_RDMA_WRITE_WITH_IMM`
    WriteImm {
        /// Address at the peer
        addr: u64,
        /// Key at the peer
        rkey: u32,
        /// The 32 bits as they stand in memory
        imm: u32,
    },
    /// `IBV_WR_RDMA_READ`
    Read {
        /// Address at the peer
        addr: u64,
        /// Key at the peer
        rkey: u32,
    },
    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`
    FetchAdd {
        /// Address at the peer, 8-byte aligned
        addr: u64,
        /// Key at the peer
        rkey: u32,
        /// Addend
        add: u64,
    },
    /// `IBV_WR_ATOMIC_CMP_AND_SWP`
    CmpSwap {
        /// Address at the peer, 8-byte aligned
        addr: u64,
        /// Key at the peer
        rkey: u32,
        /// Value to compare with
        compare: u64,
        /// Value to store if equal
        swap: u64,
    },
    /// `IBV_WR_LOCAL_INV`; the local rkey
    LocalInv(u32),
    /// `IBV_WR_BIND_MW`, `ibv_bind_mw(3)`; the window's key from then on. The rest is the payload
    /// ([`Payload::Window`])
    BindMw(u32),
    /// `IBV_WR_SEND` and `IBV_WR_SEND_WITH_IMM` of a UD queue pair
    Datagram {
        /// Address handle, by the number that the device gave it
        ah: u32,
        /// Queue pair addressed
        qpn: u32,
        /// Its Q_Key; with the high bit set, the sender's own stands for it
        qkey: u32,
        /// Immediate data; the 32 bits as they stand in memory
        imm: Option<u32>,
    },
}

/// Where the bytes of a send come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Registered memory, read when the segments are built.
    Sges(SgList),
    /// `IBV_SEND_INLINE`: copied when posted, the buffers may be used again at once.
    Inline(SmallVec<[u8; 64]>),
    /// Nothing is sent: this is what [`SendOp::BindMw`] binds.
    Window(Binding),
}

/// What a memory window is bound to (`struct ibv_mw_bind_info`, `ibv_bind_mw(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The window: any of the keys it has had.
    pub window: u32,
    /// Key of the memory region; `None` unbinds a window of type 1.
    pub region: Option<u32>,
    /// What peers may do; with [`Access::ZERO_BASED`] they name the first byte by 0.
    pub access: Access,
    /// Address of the first byte, as the region's are named.
    pub addr: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub len: u64,
}

/// A send work request (`struct ibv_send_wr`, `ibv_post_send(3)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// Echoed in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// Local memory.
    pub payload: Payload,
}

impl SendWr {
    /// Moves it out, and leaves one that sends nothing.
    #[inline]
    #[must_use]
    pub fn take(&mut self) -> SendWr {
        let nothing = SendWr {
            wr_id: 0,
            op: SendOp::Send,
            flags: SendFlags::empty(),
            payload: Payload::Sges(SgList::new()),
        };
        core::mem::replace(self, nothing)
    }
}

/// A receive work request (`struct ibv_recv_wr`, `ibv_post_recv(3)`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecvWr {
    /// Echoed in the completion.
    pub wr_id: u64,
    /// Where to put the message.
    pub sges: SgList,
}

impl RecvWr {
    /// Bytes it has room for.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.sges.iter().map(|s| u64::from(s.length)).sum()
    }
}

/// Capabilities of a QP (`struct ibv_qp_cap`, `ibv_create_qp(3)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Send work requests outstanding.
    pub max_send_wr: u32,
    /// Receive work requests outstanding.
    pub max_recv_wr: u32,
    /// Entries of a send's gather list.
    pub max_send_sge: u32,
    /// Entries of a receive's scatter list.
    pub max_recv_sge: u32,
    /// Bytes of an inline send.
    pub max_inline_data: u32,
}

/// Attributes of a QP (`struct ibv_qp_attr`, `ibv_modify_qp(3)`), less the address vector, which
/// belongs to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    /// State to move to, or the state a query found.
    pub state: QpState,
    /// State the caller believes it is in.
    pub cur_state: QpState,
    /// `enum ibv_mtu`: 1 to 5 for 256 to 4096 bytes.
    pub path_mtu: u32,
    /// First PSN expected, 24 bits.
    pub rq_psn: u32,
    /// First PSN sent, 24 bits.
    pub sq_psn: u32,
    /// Peer's queue pair, 24 bits.
    pub dest_qpn: u32,
    /// What the peer may do.
    pub access: Access,
    /// Q_Key (datagrams).
    pub qkey: u32,
    /// READs and atomics this side may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Code of the time a requester waits after a refusal, 0 to 31.
    pub min_rnr_timer: u8,
    /// Code of the acknowledgment time-out, 0 (none) to 31: 4.096 µs × 2^timeout.
    pub timeout: u8,
    /// Retransmissions before giving up, 0 to 7.
    pub retry_cnt: u8,
    /// Refusals for want of a receive before giving up, 0 to 7; 7 means no limit.
    pub rnr_retry: u8,
    /// Physical port, 1.
    pub port: u8,
    /// Index of the partition key, 0.
    pub pkey_index: u16,
    /// Ask for `IBV_EVENT_SQ_DRAINED`.
    pub en_sqd_async_notify: bool,
    /// In SQD, something of the send queue is still under way. Of queries alone.
    pub sq_draining: bool,
    /// Rate that its sends are limited to, kilobits each second; 0 is none.
    pub rate_limit: u32,
    /// Bytes that it may send at once within that rate; 0 is what is usual. It is set with the
    /// rate (`ibv_modify_qp_rate_limit(3)`).
    pub rate_burst: u32,
}

/// Asynchronous events of a QP (`ibv_get_async_event(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// `IBV_EVENT_QP_FATAL`
    Fatal,
    /// `IBV_EVENT_QP_REQ_ERR`
    RequestError,
    /// `IBV_EVENT_QP_ACCESS_ERR`
    AccessError,
    /// `IBV_EVENT_COMM_EST`
    CommEstablished,
    /// `IBV_EVENT_SQ_DRAINED`
    SqDrained,
    /// `IBV_EVENT_QP_LAST_WQE_REACHED`
    LastWqeReached,
}
