//! The objects that calls create: PD, MR, AH, channel, CQ, SRQ, QP and their extended forms.

use super::{IbvContext, IbvDataBuf, IbvPollCqAttr, IbvSge, IbvWcTmInfo, layout};
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicI32, AtomicU32};

/// `struct ibv_pd`
#[repr(C)]
pub(crate) struct IbvPd {
    pub(crate) context: *mut IbvContext,
    pub(crate) handle: u32,
}
layout!(IbvPd, 16, handle @ 8);

/// `struct ibv_td`
#[repr(C)]
pub(crate) struct IbvTd {
    pub(crate) context: *mut IbvContext,
}

/// `struct ibv_mr`
#[repr(C)]
pub(crate) struct IbvMr {
    pub(crate) context: *mut IbvContext,
    pub(crate) pd: *mut IbvPd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}
layout!(IbvMr, 48, addr @ 16, length @ 24, handle @ 32, lkey @ 36, rkey @ 40);

/// `struct ibv_ah`
#[repr(C)]
pub(crate) struct IbvAh {
    pub(crate) context: *mut IbvContext,
    pub(crate) pd: *mut IbvPd,
    pub(crate) handle: u32,
}
layout!(IbvAh, 24, pd @ 8, handle @ 16);

/// `struct ibv_comp_channel`
#[repr(C)]
pub(crate) struct IbvCompChannel {
    pub(crate) context: *mut IbvContext,
    pub(crate) fd: c_int,
    /// Number of CQs that report to the channel.
    pub(crate) refcnt: AtomicI32,
}
layout!(IbvCompChannel, 16, fd @ 8, refcnt @ 12);

/// `struct ibv_cq`
#[repr(C)]
pub(crate) struct IbvCq {
    pub(crate) context: *mut IbvContext,
    pub(crate) channel: *mut IbvCompChannel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: AtomicI32,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) comp_events_completed: AtomicU32,
    pub(crate) async_events_completed: AtomicU32,
}
layout!(IbvCq, 128, cq_context @ 16, handle @ 24, cqe @ 28, mutex @ 32, cond @ 72,
    comp_events_completed @ 120, async_events_completed @ 124);

/// A field reader of `struct ibv_cq_ex`.
pub(crate) type CqRead<T> = Option<unsafe extern "C" fn(*mut IbvCqEx) -> T>;

/// `struct ibv_cq_ex`, whose beginning is a `struct ibv_cq`.
#[repr(C)]
pub(crate) struct IbvCqEx {
    pub(crate) base: IbvCq,
    pub(crate) comp_mask: u32,
    pub(crate) status: c_int,
    pub(crate) wr_id: u64,
    pub(crate) start_poll: Option<unsafe extern "C" fn(*mut IbvCqEx, *mut IbvPollCqAttr) -> c_int>,
    pub(crate) next_poll: CqRead<c_int>,
    pub(crate) end_poll: CqRead<()>,
    pub(crate) read_opcode: CqRead<c_int>,
    pub(crate) read_vendor_err: CqRead<u32>,
    pub(crate) read_byte_len: CqRead<u32>,
    pub(crate) read_imm_data: CqRead<u32>,
    pub(crate) read_qp_num: CqRead<u32>,
    pub(crate) read_src_qp: CqRead<u32>,
    pub(crate) read_wc_flags: CqRead<c_uint>,
    pub(crate) read_slid: CqRead<u32>,
    pub(crate) read_sl: CqRead<u8>,
    pub(crate) read_dlid_path_bits: CqRead<u8>,
    pub(crate) read_completion_ts: CqRead<u64>,
    pub(crate) read_cvlan: CqRead<u16>,
    pub(crate) read_flow_tag: CqRead<u32>,
    pub(crate) read_tm_info: Option<unsafe extern "C" fn(*mut IbvCqEx, *mut IbvWcTmInfo)>,
    pub(crate) read_completion_wallclock_ns: CqRead<u64>,
}
layout!(IbvCqEx, 288, comp_mask @ 128, status @ 132, wr_id @ 136, start_poll @ 144,
    read_completion_wallclock_ns @ 280);

/// `struct ibv_srq`
#[repr(C)]
pub(crate) struct IbvSrq {
    pub(crate) context: *mut IbvContext,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut IbvPd,
    pub(crate) handle: u32,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: AtomicU32,
}
layout!(IbvSrq, 128, handle @ 24, mutex @ 32, cond @ 72, events_completed @ 120);

/// `struct ibv_qp`
#[repr(C)]
pub(crate) struct IbvQp {
    pub(crate) context: *mut IbvContext,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut IbvPd,
    pub(crate) send_cq: *mut IbvCq,
    pub(crate) recv_cq: *mut IbvCq,
    pub(crate) srq: *mut IbvSrq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: AtomicU32,
    pub(crate) qp_type: u32,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: AtomicU32,
}
layout!(IbvQp, 160, handle @ 48, qp_num @ 52, state @ 56, qp_type @ 60, mutex @ 64,
    events_completed @ 152);

/// `struct ibv_qp_ex` in its newest layout (`wr_flush` was appended).
#[repr(C)]
pub(crate) struct IbvQpEx {
    pub(crate) base: IbvQp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    pub(crate) wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u64, u64)>,
    pub(crate) wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u64)>,
    pub(crate) wr_bind_mw:
        Option<unsafe extern "C" fn(*mut IbvQpEx, *mut c_void, u32, *const c_void)>,
    pub(crate) wr_local_inv: Option<unsafe extern "C" fn(*mut IbvQpEx, u32)>,
    pub(crate) wr_rdma_read: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64)>,
    pub(crate) wr_rdma_write: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64)>,
    pub(crate) wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u32)>,
    pub(crate) wr_send: Option<unsafe extern "C" fn(*mut IbvQpEx)>,
    pub(crate) wr_send_imm: Option<unsafe extern "C" fn(*mut IbvQpEx, u32)>,
    pub(crate) wr_send_inv: Option<unsafe extern "C" fn(*mut IbvQpEx, u32)>,
    pub(crate) wr_send_tso: Option<unsafe extern "C" fn(*mut IbvQpEx, *mut c_void, u16, u16)>,
    pub(crate) wr_set_ud_addr: Option<unsafe extern "C" fn(*mut IbvQpEx, *mut IbvAh, u32, u32)>,
    pub(crate) wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut IbvQpEx, u32)>,
    pub(crate) wr_set_inline_data: Option<unsafe extern "C" fn(*mut IbvQpEx, *mut c_void, usize)>,
    pub(crate) wr_set_inline_data_list:
        Option<unsafe extern "C" fn(*mut IbvQpEx, usize, *const IbvDataBuf)>,
    pub(crate) wr_set_sge: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u32)>,
    pub(crate) wr_set_sge_list: Option<unsafe extern "C" fn(*mut IbvQpEx, usize, *const IbvSge)>,
    pub(crate) wr_start: Option<unsafe extern "C" fn(*mut IbvQpEx)>,
    pub(crate) wr_complete: Option<unsafe extern "C" fn(*mut IbvQpEx) -> c_int>,
    pub(crate) wr_abort: Option<unsafe extern "C" fn(*mut IbvQpEx)>,
    pub(crate) wr_atomic_write: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, *const c_void)>,
    pub(crate) wr_flush: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, usize, u8, u8)>,
}
layout!(IbvQpEx, 360, comp_mask @ 160, wr_id @ 168, wr_flags @ 176, wr_atomic_cmp_swp @ 184,
    wr_send @ 240, wr_start @ 320, wr_complete @ 328, wr_abort @ 336, wr_atomic_write @ 344);
