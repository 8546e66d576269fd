//! The objects that calls create: PD, MR, AH, channel, CQ, SRQ, QP and their extended forms.

use super::{IbvContext, IbvDataBuf, IbvPollCqAttr, IbvSge, IbvWcTmInfo, MUTEX_MORE, layout};
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicI32, AtomicU32};

/// `struct ibv_pd`
#[repr(C)]
pub struct IbvPd {
    pub context: *mut IbvContext,
    pub handle: u32,
}
layout!(IbvPd, 16, handle @ 8);

/// `struct ibv_td`
#[repr(C)]
pub struct IbvTd {
    pub context: *mut IbvContext,
}

/// `struct ibv_mr`
#[repr(C)]
pub struct IbvMr {
    pub context: *mut IbvContext,
    pub pd: *mut IbvPd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
layout!(IbvMr, 48, addr @ 16, length @ 24, handle @ 32, lkey @ 36, rkey @ 40);

/// `struct ibv_mw`
#[repr(C)]
pub struct IbvMw {
    pub context: *mut IbvContext,
    pub pd: *mut IbvPd,
    pub rkey: u32,
    pub handle: u32,
    pub mw_type: u32,
}
layout!(IbvMw, 32, pd @ 8, rkey @ 16, handle @ 20, mw_type @ 24);

/// `enum ibv_mw_type`
pub mod mw_type {
    pub const ONE: u32 = 1;
    pub const TWO: u32 = 2;
}

/// `struct ibv_mw_bind_info`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvMwBindInfo {
    pub mr: *mut IbvMr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}
layout!(IbvMwBindInfo, 32, addr @ 8, length @ 16, mw_access_flags @ 24);

/// `struct ibv_mw_bind`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvMwBind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub bind_info: IbvMwBindInfo,
}
layout!(IbvMwBind, 48, send_flags @ 8, bind_info @ 16);

/// `struct ibv_ah`
#[repr(C)]
pub struct IbvAh {
    pub context: *mut IbvContext,
    pub pd: *mut IbvPd,
    pub handle: u32,
}
layout!(IbvAh, 24, pd @ 8, handle @ 16);

/// `struct ibv_comp_channel`
#[repr(C)]
pub struct IbvCompChannel {
    pub context: *mut IbvContext,
    pub fd: c_int,
    /// Number of CQs that report to the channel.
    pub refcnt: AtomicI32,
}
layout!(IbvCompChannel, 16, fd @ 8, refcnt @ 12);

/// `struct ibv_cq`
#[repr(C)]
pub struct IbvCq {
    pub context: *mut IbvContext,
    pub channel: *mut IbvCompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: AtomicI32,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: AtomicU32,
    pub async_events_completed: AtomicU32,
}
layout!(IbvCq, 128 + MUTEX_MORE, cq_context @ 16, handle @ 24, cqe @ 28, mutex @ 32,
    cond @ 72 + MUTEX_MORE, comp_events_completed @ 120 + MUTEX_MORE,
    async_events_completed @ 124 + MUTEX_MORE);

/// A field reader of `struct ibv_cq_ex`.
pub type CqRead<T> = Option<unsafe extern "C" fn(*mut IbvCqEx) -> T>;

/// `struct ibv_cq_ex`, whose beginning is a `struct ibv_cq`.
#[repr(C)]
pub struct IbvCqEx {
    pub base: IbvCq,
    pub comp_mask: u32,
    pub status: c_int,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut IbvCqEx, *mut IbvPollCqAttr) -> c_int>,
    pub next_poll: CqRead<c_int>,
    pub end_poll: CqRead<()>,
    pub read_opcode: CqRead<c_int>,
    pub read_vendor_err: CqRead<u32>,
    pub read_byte_len: CqRead<u32>,
    pub read_imm_data: CqRead<u32>,
    pub read_qp_num: CqRead<u32>,
    pub read_src_qp: CqRead<u32>,
    pub read_wc_flags: CqRead<c_uint>,
    pub read_slid: CqRead<u32>,
    pub read_sl: CqRead<u8>,
    pub read_dlid_path_bits: CqRead<u8>,
    pub read_completion_ts: CqRead<u64>,
    pub read_cvlan: CqRead<u16>,
    pub read_flow_tag: CqRead<u32>,
    pub read_tm_info: Option<unsafe extern "C" fn(*mut IbvCqEx, *mut IbvWcTmInfo)>,
    pub read_completion_wallclock_ns: CqRead<u64>,
}
layout!(IbvCqEx, 288 + MUTEX_MORE, comp_mask @ 128 + MUTEX_MORE, status @ 132 + MUTEX_MORE,
    wr_id @ 136 + MUTEX_MORE, start_poll @ 144 + MUTEX_MORE,
    read_completion_wallclock_ns @ 280 + MUTEX_MORE);

/// `struct ibv_srq`
#[repr(C)]
pub struct IbvSrq {
    pub context: *mut IbvContext,
    pub srq_context: *mut c_void,
    pub pd: *mut IbvPd,
    pub handle: u32,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: AtomicU32,
}
layout!(IbvSrq, 128 + MUTEX_MORE, handle @ 24, mutex @ 32, cond @ 72 + MUTEX_MORE,
    events_completed @ 120 + MUTEX_MORE);

/// `struct ibv_qp`
#[repr(C)]
pub struct IbvQp {
    pub context: *mut IbvContext,
    pub qp_context: *mut c_void,
    pub pd: *mut IbvPd,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: AtomicU32,
    pub qp_type: u32,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: AtomicU32,
}
layout!(IbvQp, 160 + MUTEX_MORE, handle @ 48, qp_num @ 52, state @ 56, qp_type @ 60, mutex @ 64,
    events_completed @ 152 + MUTEX_MORE);

/// `struct ibv_qp_ex` in its newest layout (`wr_flush` was appended).
#[repr(C)]
pub struct IbvQpEx {
    pub base: IbvQp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u64, u64)>,
    pub wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u64)>,
    pub wr_bind_mw:
        Option<unsafe extern "C" fn(*mut IbvQpEx, *mut IbvMw, u32, *const IbvMwBindInfo)>,
    pub wr_local_inv: Option<unsafe extern "C" fn(*mut IbvQpEx, u32)>,
    pub wr_rdma_read: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64)>,
    pub wr_rdma_write: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64)>,
    pub wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u32)>,
    pub wr_send: Option<unsafe extern "C" fn(*mut IbvQpEx)>,
    pub wr_send_imm: Option<unsafe extern "C" fn(*mut IbvQpEx, u32)>,
    pub wr_send_inv: Option<unsafe extern "C" fn(*mut IbvQpEx, u32)>,
    pub wr_send_tso: Option<unsafe extern "C" fn(*mut IbvQpEx, *mut c_void, u16, u16)>,
    pub wr_set_ud_addr: Option<unsafe extern "C" fn(*mut IbvQpEx, *mut IbvAh, u32, u32)>,
    pub wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut IbvQpEx, u32)>,
    pub wr_set_inline_data: Option<unsafe extern "C" fn(*mut IbvQpEx, *mut c_void, usize)>,
    pub wr_set_inline_data_list:
        Option<unsafe extern "C" fn(*mut IbvQpEx, usize, *const IbvDataBuf)>,
    pub wr_set_sge: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u32)>,
    pub wr_set_sge_list: Option<unsafe extern "C" fn(*mut IbvQpEx, usize, *const IbvSge)>,
    pub wr_start: Option<unsafe extern "C" fn(*mut IbvQpEx)>,
    pub wr_complete: Option<unsafe extern "C" fn(*mut IbvQpEx) -> c_int>,
    pub wr_abort: Option<unsafe extern "C" fn(*mut IbvQpEx)>,
    pub wr_atomic_write: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, *const c_void)>,
    pub wr_flush: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, usize, u8, u8)>,
}
layout!(IbvQpEx, 360 + MUTEX_MORE, comp_mask @ 160 + MUTEX_MORE, wr_id @ 168 + MUTEX_MORE,
    wr_flags @ 176 + MUTEX_MORE, wr_atomic_cmp_swp @ 184 + MUTEX_MORE,
    wr_send @ 240 + MUTEX_MORE, wr_start @ 320 + MUTEX_MORE, wr_complete @ 328 + MUTEX_MORE,
    wr_abort @ 336 + MUTEX_MORE, wr_atomic_write @ 344 + MUTEX_MORE);
