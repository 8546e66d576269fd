//! Completion queues: `ibv_create_cq(3)`, `ibv_poll_cq(3)`, `ibv_req_notify_cq(3)`.

use crate::abi::{IbvCompChannel, IbvContext, IbvCq, IbvCqEx, IbvPd};
use crate::objects::{self, CqObject};
use crate::{errno, live, pd};
use causeway_device::{Errno, LIMITS};
use causeway_proto::types::{Wc, WcFlags, WcOpcode, WcStatus};
use core::ffi::{c_int, c_void};
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;

/// What the two ways of creating a CQ have in common.
pub(crate) struct CqInit {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut IbvCompChannel,
    pub(crate) comp_vector: u32,
    pub(crate) single_threaded: bool,
    /// A parent domain, which then outlives the CQ, or null.
    pub(crate) parent_domain: *mut IbvPd,
}

/// Creates a CQ; the functions of an extended one are the caller's to fill in.
///
/// # Safety
/// `context` is open, the channel is null or one of its own, and the parent domain null or live.
pub(crate) unsafe fn create(
    context: *mut IbvContext,
    init: &CqInit,
) -> Result<*mut CqObject, Errno> {
    // SAFETY: the caller's promise.
    let (owner, vectors) = unsafe { (objects::context(context), (*context).num_comp_vectors) };
    let in_range = (1..=LIMITS.max_cqe).contains(&init.cqe);
    if !in_range || init.comp_vector >= vectors.cast_unsigned() {
        return Err(Errno(libc::EINVAL));
    }
    let memory = objects::allocate::<CqObject>();
    // SAFETY: the caller's promise.
    let channel = (!init.channel.is_null()).then(|| unsafe { objects::channel(init.channel) });
    let cookie = objects::cookie(&memory);
    let parent_domain = init.parent_domain;
    let dev = owner
        .dev
        .create_cq(init.cqe, channel.map(|c| &c.dev), cookie)?;
    if let Some(channel) = channel {
        channel.channel.refcnt.fetch_add(1, Ordering::Relaxed);
    }
    if !parent_domain.is_null() {
        // SAFETY: the caller's promise.
        unsafe { pd::add_user(parent_domain) };
    }
    let cq = IbvCq {
        context,
        channel: init.channel,
        cq_context: init.cq_context,
        handle: owner.handle(),
        cqe: AtomicI32::new(dev.cqe().cast_signed()),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: AtomicU32::new(0),
        async_events_completed: AtomicU32::new(0),
    };
    // SAFETY: zero is a valid value of every field: integers and absent functions.
    let blank: IbvCqEx = unsafe { mem::zeroed() };
    let object = CqObject {
        cq: IbvCqEx { base: cq, ..blank },
        dev,
        polling: RawMutex::INIT,
        single_threaded: init.single_threaded,
        parent_domain,
        current: NO_COMPLETION,
        timestamp: 0,
    };
    Ok(objects::publish(memory, object))
}

/// What the readers find before the first `start_poll`.
const NO_COMPLETION: Wc = Wc {
    wr_id: 0,
    status: WcStatus::GeneralErr,
    opcode: WcOpcode::Send,
    vendor_err: 0,
    byte_len: 0,
    imm: 0,
    qp_num: 0,
    src_qp: 0,
    flags: WcFlags::empty(),
};

/// `ibv_create_cq(3)`
pub(crate) unsafe extern "C" fn create_cq(
    context: *mut IbvContext,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut IbvCompChannel,
    comp_vector: c_int,
) -> *mut IbvCq {
    let (Ok(cqe), Ok(comp_vector)) = (u32::try_from(cqe), u32::try_from(comp_vector)) else {
        return errno::null(libc::EINVAL);
    };
    let init = CqInit {
        cqe,
        cq_context,
        channel,
        comp_vector,
        single_threaded: false,
        parent_domain: ptr::null_mut(),
    };
    // SAFETY: the caller passes an open context and a channel of it, or none.
    errno::pointer(unsafe { create(context, &init) }.map(<*mut CqObject>::cast))
}

/// `ibv_resize_cq(3)`
pub(crate) unsafe extern "C" fn resize_cq(cq: *mut IbvCq, cqe: c_int) -> c_int {
    // SAFETY: the caller passes a live CQ.
    let object = unsafe { objects::cq(cq) };
    let result = match u32::try_from(cqe) {
        Ok(cqe) if (1..=LIMITS.max_cqe).contains(&cqe) => object.dev.resize(cqe),
        _ => Err(Errno(libc::EINVAL)),
    };
    object
        .cq
        .base
        .cqe
        .store(object.dev.cqe().cast_signed(), Ordering::Relaxed);
    errno::code(result)
}

/// `ibv_destroy_cq(3)`: `EBUSY` while a QP uses it; waits until its events are acknowledged
pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut IbvCq) -> c_int {
    if !live::is(cq.cast::<CqObject>()) {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the caller passes a live CQ of an open context.
    let (object, owner) = unsafe { (objects::cq(cq), objects::context((*cq).context)) };
    if owner.is_inherited() {
        return 0;
    }
    let (channel, parent_domain) = (object.cq.base.channel, object.parent_domain);
    let result = object.dev.destroy();
    if result.is_ok() {
        // SAFETY: published by create(); the caller gives it up.
        unsafe { objects::reclaim(cq.cast::<CqObject>()) };
        if !channel.is_null() {
            // SAFETY: a channel outlives the CQs that use it (ibv_destroy_comp_channel(3)).
            unsafe { (*channel).refcnt.fetch_sub(1, Ordering::Relaxed) };
        }
        if !parent_domain.is_null() {
            // SAFETY: it has outlived the CQ: as long as it has users, it is not freed.
            unsafe { pd::drop_user(parent_domain) };
        }
    }
    errno::code(result)
}

/// `ibv_req_notify_cq(3)`
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut IbvCq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller passes a live CQ.
    errno::code(
        unsafe { objects::cq(cq) }
            .dev
            .req_notify(solicited_only != 0),
    )
}

/// The C pointer that an event's cookie stands for.
pub(crate) fn from_cookie(cookie: usize) -> *mut IbvCq {
    ptr::with_exposed_provenance_mut(cookie)
}
