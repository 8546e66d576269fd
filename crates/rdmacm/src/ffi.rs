//! The verbs that the connection manager calls: those of the `libibverbs.so.1` that the program
//! itself uses.

use causeway_abi::{
    IbvCompChannel, IbvContext, IbvCq, IbvDevice, IbvDeviceAttr, IbvGidEntry, IbvMr, IbvPd,
    IbvPortAttr, IbvQp, IbvQpAttr, IbvQpInitAttr, IbvSrq, IbvSrqInitAttr, TRACE_MESSAGE,
    TraceMessage,
};
use core::ffi::{CStr, c_int, c_uint, c_void};

/// The library that the functions here are of.
const LIBRARY: &CStr = c"libibverbs.so.1";

/// The function of our own `libibverbs.so.1` that records messages. It is looked up, and not linked
/// to: a process that has loaded the distribution's library first could not load this one then
/// (`causeway doctor` loads both).
pub(crate) fn trace_message() -> Option<TraceMessage> {
    // SAFETY: dlopen(3) loads nothing here, and its handle is kept, so that the function stays. The
    // name is our own, of a function of this type.
    unsafe {
        let library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        let function = libc::dlsym(library, TRACE_MESSAGE.as_ptr());
        core::mem::transmute::<*mut c_void, Option<TraceMessage>>(function)
    }
}

unsafe extern "C" {
    pub(crate) fn ibv_get_device_list(count: *mut c_int) -> *mut *mut IbvDevice;
    pub(crate) fn ibv_free_device_list(list: *mut *mut IbvDevice);
    pub(crate) fn ibv_open_device(device: *mut IbvDevice) -> *mut IbvContext;
    pub(crate) fn ibv_query_device(context: *mut IbvContext, attr: *mut IbvDeviceAttr) -> c_int;
    pub(crate) fn ibv_query_port(
        context: *mut IbvContext,
        port: u8,
        attr: *mut IbvPortAttr,
    ) -> c_int;
    pub(crate) fn _ibv_query_gid_table(
        context: *mut IbvContext,
        entries: *mut IbvGidEntry,
        max: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize;
    pub(crate) fn ibv_alloc_pd(context: *mut IbvContext) -> *mut IbvPd;
    pub(crate) fn ibv_reg_mr(
        pd: *mut IbvPd,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut IbvMr;
    pub(crate) fn ibv_dereg_mr(mr: *mut IbvMr) -> c_int;
    pub(crate) fn ibv_create_comp_channel(context: *mut IbvContext) -> *mut IbvCompChannel;
    pub(crate) fn ibv_destroy_comp_channel(channel: *mut IbvCompChannel) -> c_int;
    pub(crate) fn ibv_create_cq(
        context: *mut IbvContext,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut IbvCompChannel,
        vector: c_int,
    ) -> *mut IbvCq;
    pub(crate) fn ibv_destroy_cq(cq: *mut IbvCq) -> c_int;
    pub(crate) fn ibv_get_cq_event(
        channel: *mut IbvCompChannel,
        cq: *mut *mut IbvCq,
        cq_context: *mut *mut c_void,
    ) -> c_int;
    pub(crate) fn ibv_ack_cq_events(cq: *mut IbvCq, count: c_uint);
    pub(crate) fn ibv_create_srq(pd: *mut IbvPd, attr: *mut IbvSrqInitAttr) -> *mut IbvSrq;
    pub(crate) fn ibv_destroy_srq(srq: *mut IbvSrq) -> c_int;
    pub(crate) fn ibv_create_qp(pd: *mut IbvPd, attr: *mut IbvQpInitAttr) -> *mut IbvQp;
    pub(crate) fn ibv_destroy_qp(qp: *mut IbvQp) -> c_int;
    pub(crate) fn ibv_attach_mcast(qp: *mut IbvQp, gid: *const [u8; 16], lid: u16) -> c_int;
    pub(crate) fn ibv_detach_mcast(qp: *mut IbvQp, gid: *const [u8; 16], lid: u16) -> c_int;
    pub(crate) fn ibv_modify_qp(qp: *mut IbvQp, attr: *mut IbvQpAttr, mask: c_int) -> c_int;
}
