//! Work requests and completions: `ibv_sge`, `ibv_send_wr`, `ibv_recv_wr`, `ibv_wc`.

use super::{IbvAh, IbvMw, IbvMwBindInfo, layout};
use core::ffi::{c_int, c_uint, c_void};

/// `enum ibv_wr_opcode` (`ibv_post_send(3)`).
pub mod wr_opcode {
    pub const RDMA_WRITE: u32 = 0;
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const SEND: u32 = 2;
    pub const SEND_WITH_IMM: u32 = 3;
    pub const RDMA_READ: u32 = 4;
    pub const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub const LOCAL_INV: u32 = 7;
    pub const BIND_MW: u32 = 8;
    pub const SEND_WITH_INV: u32 = 9;
}

/// `struct ibv_sge`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvSge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}
layout!(IbvSge, 16, length @ 8, lkey @ 12);

/// `struct ibv_data_buf`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvDataBuf {
    pub addr: *mut c_void,
    pub length: usize,
}
layout!(IbvDataBuf, 16, length @ 8);

/// Target of an atomic (`wr.atomic`); its first word is `wr.rdma.remote_addr` too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrAtomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// Target of a WRITE or READ (`wr.rdma`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrRdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// Target of a datagram (`wr.ud`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrUd {
    pub ah: *mut IbvAh,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// The union `wr` of `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union WrTarget {
    pub rdma: WrRdma,
    pub atomic: WrAtomic,
    pub ud: WrUd,
}

/// What a window is bound to (`bind_mw`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrBindMw {
    pub mw: *mut IbvMw,
    pub rkey: u32,
    pub bind_info: IbvMwBindInfo,
}
layout!(WrBindMw, 48, rkey @ 8, bind_info @ 16);

/// The union of `bind_mw` and `tso` of `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union WrExtra {
    pub bind_mw: WrBindMw,
    pub tso: [u64; 2],
}

/// `struct ibv_send_wr`
#[repr(C)]
pub struct IbvSendWr {
    pub wr_id: u64,
    pub next: *mut IbvSendWr,
    pub sg_list: *mut IbvSge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: c_uint,
    /// `imm_data` in network order, or `invalidate_rkey`
    pub imm_or_rkey: u32,
    pub wr: WrTarget,
    pub remote_srqn: u32,
    pub extra: WrExtra,
}
layout!(IbvSendWr, 128, num_sge @ 24, opcode @ 28, send_flags @ 32, imm_or_rkey @ 36, wr @ 40,
    remote_srqn @ 72, extra @ 80);

/// `struct ibv_recv_wr`
#[repr(C)]
pub struct IbvRecvWr {
    pub wr_id: u64,
    pub next: *mut IbvRecvWr,
    pub sg_list: *mut IbvSge,
    pub num_sge: c_int,
}
layout!(IbvRecvWr, 32, next @ 8, sg_list @ 16, num_sge @ 24);

/// `struct ibv_wc`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvWc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// `imm_data` in network order, or `invalidated_rkey`
    pub imm_or_rkey: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}
layout!(IbvWc, 48, status @ 8, opcode @ 12, vendor_err @ 16, byte_len @ 20, imm_or_rkey @ 24,
    qp_num @ 28, src_qp @ 32, wc_flags @ 36, pkey_index @ 40, slid @ 42, sl @ 44,
    dlid_path_bits @ 45);

/// `struct ibv_poll_cq_attr`
#[repr(C)]
pub struct IbvPollCqAttr {
    pub comp_mask: u32,
}

/// `struct ibv_wc_tm_info`
#[repr(C)]
pub struct IbvWcTmInfo {
    pub tag: u64,
    pub private: u32,
}
layout!(IbvWcTmInfo, 16, private @ 8);
