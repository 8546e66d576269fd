//! Device and context: `struct ibv_device`, `ibv_context`, `verbs_context`.

use super::{
    IbvCq, IbvCqEx, IbvCqInitAttrEx, IbvDeviceAttr, IbvDeviceAttrEx, IbvMw, IbvMwBind,
    IbvParentDomainInitAttr, IbvPd, IbvPortAttr, IbvQp, IbvQpInitAttrEx, IbvQpRateLimitAttr,
    IbvRecvWr, IbvSendWr, IbvSrq, IbvSrqInitAttrEx, IbvTd, IbvTdInitAttr, IbvValuesEx, IbvWc,
    MUTEX_MORE, layout,
};
use core::ffi::{c_char, c_int, c_void};

/// `IBV_SYSFS_NAME_MAX`
pub const SYSFS_NAME_MAX: usize = 64;
/// `IBV_SYSFS_PATH_MAX`
pub const SYSFS_PATH_MAX: usize = 256;
/// `IBV_NODE_CA`
pub const NODE_CA: c_int = 1;
/// `IBV_TRANSPORT_IB`
pub const TRANSPORT_IB: c_int = 0;
/// `__VERBS_ABI_IS_EXTENDED`: tells inline functions that a `verbs_context` precedes the context.
pub const ABI_IS_EXTENDED: usize = usize::MAX;

/// A slot of an operation table that nothing here fills.
pub type Unused = usize;

/// `struct ibv_device`
#[repr(C)]
pub struct IbvDevice {
    pub ops: [Unused; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; SYSFS_NAME_MAX],
    pub dev_name: [c_char; SYSFS_NAME_MAX],
    pub dev_path: [c_char; SYSFS_PATH_MAX],
    pub ibdev_path: [c_char; SYSFS_PATH_MAX],
}
layout!(IbvDevice, 664, node_type @ 16, name @ 24, dev_name @ 88, dev_path @ 152, ibdev_path @ 408);

/// `ibv_poll_cq(3)` as an operation.
pub type PollCq = unsafe extern "C" fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int;
/// `ibv_req_notify_cq(3)` as an operation.
pub type ReqNotifyCq = unsafe extern "C" fn(*mut IbvCq, c_int) -> c_int;
/// `ibv_post_srq_recv(3)` as an operation.
pub type PostSrqRecv =
    unsafe extern "C" fn(*mut IbvSrq, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int;
/// `ibv_post_send(3)` as an operation.
pub type PostSend = unsafe extern "C" fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int;
/// `ibv_post_recv(3)` as an operation.
pub type PostRecv = unsafe extern "C" fn(*mut IbvQp, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int;

/// `struct ibv_context_ops`; the `compat` slots belong to functions long since exported by name.
#[repr(C)]
#[derive(Default)]
pub struct IbvContextOps {
    pub compat_query_device:
        Option<unsafe extern "C" fn(*mut IbvContext, *mut IbvDeviceAttr) -> c_int>,
    pub compat_query_port:
        Option<unsafe extern "C" fn(*mut IbvContext, u8, *mut IbvPortAttr) -> c_int>,
    pub compat_pd_mr: [Unused; 5],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut IbvPd, c_int) -> *mut IbvMw>,
    pub bind_mw: Option<unsafe extern "C" fn(*mut IbvQp, *mut IbvMw, *mut IbvMwBind) -> c_int>,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut IbvMw) -> c_int>,
    pub compat_create_cq: Unused,
    pub poll_cq: Option<PollCq>,
    pub req_notify_cq: Option<ReqNotifyCq>,
    pub compat_cq_srq: [Unused; 7],
    pub post_srq_recv: Option<PostSrqRecv>,
    pub compat_qp: [Unused; 4],
    pub post_send: Option<PostSend>,
    pub post_recv: Option<PostRecv>,
    pub compat_ah_event: [Unused; 5],
}
layout!(IbvContextOps, 256, alloc_mw @ 56, bind_mw @ 64, dealloc_mw @ 72, poll_cq @ 88,
    req_notify_cq @ 96, post_srq_recv @ 160, post_send @ 200, post_recv @ 208);

/// `struct ibv_context`
#[repr(C)]
pub struct IbvContext {
    pub device: *mut IbvDevice,
    pub ops: IbvContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub abi_compat: usize,
}
layout!(IbvContext, 328 + MUTEX_MORE, ops @ 8, cmd_fd @ 264, async_fd @ 268,
    num_comp_vectors @ 272, mutex @ 280, abi_compat @ 320 + MUTEX_MORE);

/// `struct verbs_context` in its newest layout. It grows at the front: what an older program knows
/// lies at fixed distances back from `context`. An operation left `None` makes the inline function
/// of the header report `EOPNOTSUPP`.
#[repr(C)]
pub struct VerbsContext {
    /// `free_buf`, `alloc_buf`, `dm_export_dmabuf_fd`, `reg_mr_ex`, `dealloc_dmah`, `alloc_dmah`
    pub memory_ops: [Unused; 6],
    pub query_port:
        Option<unsafe extern "C" fn(*mut IbvContext, u8, *mut IbvPortAttr, usize) -> c_int>,
    /// `advise_mr` to `create_flow_action_esp`
    pub memory_and_flow: [Unused; 12],
    pub modify_qp_rate_limit:
        Option<unsafe extern "C" fn(*mut IbvQp, *mut IbvQpRateLimitAttr) -> c_int>,
    pub alloc_parent_domain:
        Option<unsafe extern "C" fn(*mut IbvContext, *mut IbvParentDomainInitAttr) -> *mut IbvPd>,
    pub dealloc_td: Option<unsafe extern "C" fn(*mut IbvTd) -> c_int>,
    pub alloc_td: Option<unsafe extern "C" fn(*mut IbvContext, *mut IbvTdInitAttr) -> *mut IbvTd>,
    /// `modify_cq` to `create_wq`
    pub queues: [Unused; 7],
    pub query_rt_values: Option<unsafe extern "C" fn(*mut IbvContext, *mut IbvValuesEx) -> c_int>,
    pub create_cq_ex:
        Option<unsafe extern "C" fn(*mut IbvContext, *mut IbvCqInitAttrEx) -> *mut IbvCqEx>,
    pub private: Unused,
    pub query_device_ex: Option<
        unsafe extern "C" fn(*mut IbvContext, *const c_void, *mut IbvDeviceAttrEx, usize) -> c_int,
    >,
    /// `ibv_destroy_flow`, a placeholder, `ibv_create_flow`, a placeholder, `open_qp`
    pub flow_and_open: [Unused; 5],
    pub create_qp_ex:
        Option<unsafe extern "C" fn(*mut IbvContext, *mut IbvQpInitAttrEx) -> *mut IbvQp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut IbvSrq, *mut u32) -> c_int>,
    pub create_srq_ex:
        Option<unsafe extern "C" fn(*mut IbvContext, *mut IbvSrqInitAttrEx) -> *mut IbvSrq>,
    /// `open_xrcd`, `close_xrcd`, a placeholder
    pub xrcd: [Unused; 3],
    pub sz: usize,
    pub context: IbvContext,
}
layout!(VerbsContext, 696 + MUTEX_MORE, query_port @ 48, sz @ 360, context @ 368);
