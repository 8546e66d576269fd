//! Shared receive queues: `ibv_create_srq(3)`, `ibv_create_srq_ex(3)`.

use crate::abi::{
    IbvContext, IbvPd, IbvSrq, IbvSrqAttr, IbvSrqInitAttr, IbvSrqInitAttrEx, IbvSrqInitAttrHead,
};
use crate::objects::{self, SrqObject};
use crate::{errno, live, pd};
use causeway_device::Errno;
use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicU32;

/// `IBV_SRQ_MAX_WR`
const ATTR_MAX_WR: c_int = 1;
/// `IBV_SRQ_LIMIT`
const ATTR_LIMIT: c_int = 1 << 1;
/// `IBV_SRQ_INIT_ATTR_TYPE`
const MASK_TYPE: u32 = 1;
/// `IBV_SRQ_INIT_ATTR_PD`
const MASK_PD: u32 = 1 << 1;
/// `IBV_SRQT_BASIC`
const TYPE_BASIC: u32 = 0;

/// Creates an SRQ and updates `attr` to what was granted.
///
/// # Safety
/// `pd` is a live protection domain.
unsafe fn create(
    pd: *mut IbvPd,
    srq_context: *mut c_void,
    attr: &mut IbvSrqAttr,
) -> Result<*mut IbvSrq, Errno> {
    // SAFETY: the caller's promise; a PD's context is open.
    let (owner, context) = unsafe { (objects::pd(pd), (*pd).context) };
    let memory = objects::allocate::<SrqObject>();
    let cookie = objects::cookie(&memory);
    // srq_limit is not an argument of creation (ibv_create_srq(3)): it starts disarmed.
    let dev = owner.dev.create_srq(attr.max_wr, attr.max_sge, 0, cookie)?;
    let (max_wr, max_sge, _) = dev.query();
    (attr.max_wr, attr.max_sge) = (max_wr, max_sge);
    let srq = IbvSrq {
        context,
        srq_context,
        pd,
        handle: dev.number(),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: AtomicU32::new(0),
    };
    // SAFETY: the caller's promise.
    unsafe { pd::add_user(pd) };
    Ok(objects::publish(memory, SrqObject { srq, dev }).cast())
}

/// `ibv_create_srq(3)`
pub(crate) unsafe extern "C" fn create_srq(
    pd: *mut IbvPd,
    init: *mut IbvSrqInitAttr,
) -> *mut IbvSrq {
    // SAFETY: the caller passes a valid structure and a live PD.
    errno::pointer(unsafe { create(pd, (*init).srq_context, &mut (*init).attr) })
}

/// `ibv_create_srq_ex(3)`: basic SRQs only; neither XRC nor tag matching is offered
pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut IbvContext,
    init: *mut IbvSrqInitAttrEx,
) -> *mut IbvSrq {
    // SAFETY: the caller passes a valid structure.
    let init = unsafe { &mut *init };
    let basic = init.comp_mask & MASK_TYPE == 0 || init.srq_type == TYPE_BASIC;
    if !basic || init.comp_mask & !(MASK_TYPE | MASK_PD) != 0 {
        return errno::null(libc::EOPNOTSUPP);
    }
    if init.comp_mask & MASK_PD == 0 || init.pd.is_null() {
        return errno::null(libc::EINVAL);
    }
    let IbvSrqInitAttrHead {
        srq_context,
        mut attr,
    } = init.base;
    // SAFETY: the caller passes a live PD.
    let created = unsafe { create(init.pd, srq_context, &mut attr) };
    init.base.attr = attr;
    errno::pointer(created)
}

/// `ibv_get_srq_num(3)`: for XRC SRQs only
pub(crate) extern "C" fn get_srq_num(_srq: *mut IbvSrq, _number: *mut u32) -> c_int {
    errno::fail(libc::EOPNOTSUPP)
}

/// `ibv_modify_srq(3)`
pub(crate) unsafe extern "C" fn modify_srq(
    srq: *mut IbvSrq,
    attr: *mut IbvSrqAttr,
    mask: c_int,
) -> c_int {
    if mask & !(ATTR_MAX_WR | ATTR_LIMIT) != 0 {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the caller passes a valid structure and a live SRQ.
    let (attr, object) = unsafe { (&*attr, objects::srq(srq)) };
    let max_wr = (mask & ATTR_MAX_WR != 0).then_some(attr.max_wr);
    let limit = (mask & ATTR_LIMIT != 0).then_some(attr.srq_limit);
    errno::code(object.dev.modify(max_wr, limit))
}

/// `ibv_query_srq(3)`
pub(crate) unsafe extern "C" fn query_srq(srq: *mut IbvSrq, attr: *mut IbvSrqAttr) -> c_int {
    // SAFETY: the caller passes a live SRQ and memory for the structure.
    unsafe {
        let (max_wr, max_sge, srq_limit) = objects::srq(srq).dev.query();
        attr.write(IbvSrqAttr {
            max_wr,
            max_sge,
            srq_limit,
        });
    }
    0
}

/// `ibv_destroy_srq(3)`: `EBUSY` while a QP uses it; waits until its events are acknowledged
pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut IbvSrq) -> c_int {
    if !live::is(srq.cast::<SrqObject>()) {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the caller passes a live SRQ of an open context.
    let (object, owner) = unsafe { (objects::srq(srq), objects::context((*srq).context)) };
    if owner.is_inherited() {
        return 0;
    }
    let result = object.dev.destroy();
    if result.is_ok() {
        // SAFETY: published by create(); the caller gives it up. Its PD outlives it.
        unsafe {
            pd::drop_user((*srq).pd);
            objects::reclaim(srq.cast::<SrqObject>());
        }
    }
    errno::code(result)
}
