//! Work requests and completions: `ibv_sge`, `ibv_send_wr`, `ibv_recv_wr`, `ibv_wc`.

use super::{IbvAh, layout};
use core::ffi::{c_int, c_uint, c_void};

/// `enum ibv_wr_opcode` (`ibv_post_send(3)`).
pub(crate) mod wr_opcode {
    pub(crate) const RDMA_WRITE: u32 = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(crate) const SEND: u32 = 2;
    pub(crate) const SEND_WITH_IMM: u32 = 3;
    pub(crate) const RDMA_READ: u32 = 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub(crate) const LOCAL_INV: u32 = 7;
    pub(crate) const SEND_WITH_INV: u32 = 9;
}

/// `struct ibv_sge`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvSge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}
layout!(IbvSge, 16, length @ 8, lkey @ 12);

/// `struct ibv_data_buf`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvDataBuf {
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
}
layout!(IbvDataBuf, 16, length @ 8);

/// Target of an atomic (`wr.atomic`); its first word is `wr.rdma.remote_addr` too.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct WrAtomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// Target of a WRITE or READ (`wr.rdma`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct WrRdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// Target of a datagram (`wr.ud`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct WrUd {
    pub(crate) ah: *mut IbvAh,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// The union `wr` of `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union WrTarget {
    pub(crate) rdma: WrRdma,
    pub(crate) atomic: WrAtomic,
    pub(crate) ud: WrUd,
}

/// `struct ibv_send_wr`
#[repr(C)]
pub(crate) struct IbvSendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut IbvSendWr,
    pub(crate) sg_list: *mut IbvSge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: u32,
    pub(crate) send_flags: c_uint,
    /// `imm_data` in network order, or `invalidate_rkey`
    pub(crate) imm_or_rkey: u32,
    pub(crate) wr: WrTarget,
    pub(crate) remote_srqn: u32,
    /// `bind_mw` or `tso`
    pub(crate) window_or_tso: [u64; 6],
}
layout!(IbvSendWr, 128, num_sge @ 24, opcode @ 28, send_flags @ 32, imm_or_rkey @ 36, wr @ 40,
    remote_srqn @ 72, window_or_tso @ 80);

/// `struct ibv_recv_wr`
#[repr(C)]
pub(crate) struct IbvRecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut IbvRecvWr,
    pub(crate) sg_list: *mut IbvSge,
    pub(crate) num_sge: c_int,
}
layout!(IbvRecvWr, 32, next @ 8, sg_list @ 16, num_sge @ 24);

/// `struct ibv_wc`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvWc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// `imm_data` in network order, or `invalidated_rkey`
    pub(crate) imm_or_rkey: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}
layout!(IbvWc, 48, status @ 8, opcode @ 12, vendor_err @ 16, byte_len @ 20, imm_or_rkey @ 24,
    qp_num @ 28, src_qp @ 32, wc_flags @ 36, pkey_index @ 40, slid @ 42, sl @ 44,
    dlid_path_bits @ 45);

/// `struct ibv_poll_cq_attr`
#[repr(C)]
pub(crate) struct IbvPollCqAttr {
    pub(crate) comp_mask: u32,
}

/// `struct ibv_wc_tm_info`
#[repr(C)]
pub(crate) struct IbvWcTmInfo {
    pub(crate) tag: u64,
    pub(crate) private: u32,
}
layout!(IbvWcTmInfo, 16, private @ 8);
