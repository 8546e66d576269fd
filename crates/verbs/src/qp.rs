//! Queue pairs: `ibv_create_qp(3)`, `ibv_modify_qp(3)`, `ibv_query_qp(3)`.

use crate::abi::{IbvEce, IbvPd, IbvQp, IbvQpAttr, IbvQpEx, IbvQpInitAttr, IbvQpRateLimitAttr};
use crate::objects::{self, QpObject};
use crate::qp_ex::Batch;
use crate::{errno, live, pd, qp_attr};
use causeway_device::{Errno, QpInit};
use causeway_proto::types::QpAttrMask;
use core::ffi::c_int;
use core::mem;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// Creates a QP and writes back into `init.cap` what was granted.
///
/// # Safety
/// `pd` and the objects that `init` names are live.
pub(crate) unsafe fn create(
    pd: *mut IbvPd,
    init: &mut IbvQpInitAttr,
    extended: bool,
) -> Result<*mut QpObject, Errno> {
    if pd.is_null() || init.send_cq.is_null() || init.recv_cq.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    let memory = objects::allocate::<QpObject>();
    // SAFETY: the caller's promise.
    let dev = unsafe {
        let request = QpInit {
            qp_type: init.qp_type,
            send_cq: Arc::clone(&objects::cq(init.send_cq).dev),
            recv_cq: Arc::clone(&objects::cq(init.recv_cq).dev),
            srq: (!init.srq.is_null()).then(|| Arc::clone(&objects::srq(init.srq).dev)),
            cap: qp_attr::cap_from_c(init.cap),
            sq_sig_all: init.sq_sig_all != 0,
        };
        objects::pd(pd)
            .dev
            .create_qp(request, objects::cookie(&memory))?
    };
    let cap = dev.cap();
    init.cap = qp_attr::cap_to_c(cap);
    let qp = IbvQp {
        // SAFETY: the caller's promise.
        context: unsafe { (*pd).context },
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: dev.qpn(),
        qp_num: dev.qpn(),
        state: AtomicU32::new(dev.state() as u32),
        qp_type: init.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: AtomicU32::new(0),
    };
    // SAFETY: zero is a valid value of every field: integers and absent functions.
    let blank: IbvQpEx = unsafe { mem::zeroed() };
    let object = QpObject {
        qp: IbvQpEx { base: qp, ..blank },
        dev,
        extended,
        sq_sig_all: init.sq_sig_all != 0,
        max_inline_data: cap.max_inline_data as usize,
        batch: Batch::default(),
    };
    // SAFETY: the caller's promise.
    unsafe { pd::add_user(pd) };
    Ok(objects::publish(memory, object))
}

/// `ibv_create_qp(3)`
pub(crate) unsafe extern "C" fn create_qp(pd: *mut IbvPd, init: *mut IbvQpInitAttr) -> *mut IbvQp {
    // SAFETY: the caller passes live objects and a valid structure. The inline ibv_create_qp_ex may
    // hand us the longer structure; only the common part is touched.
    errno::pointer(unsafe { create(pd, &mut *init, false) }.map(<*mut QpObject>::cast))
}

/// `ibv_modify_qp(3)`
pub(crate) unsafe extern "C" fn modify_qp(
    qp: *mut IbvQp,
    attr: *mut IbvQpAttr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller passes a live QP and a valid structure.
    let (object, attr) = unsafe { (objects::qp(qp), &*attr) };
    let Some(mask) = QpAttrMask::from_bits(mask.cast_unsigned()) else {
        return errno::fail(libc::EINVAL);
    };
    let Some(wanted) = qp_attr::from_c(attr, mask) else {
        return errno::fail(libc::EINVAL);
    };
    let av = mask
        .contains(QpAttrMask::AV)
        .then(|| qp_attr::av_from_c(&attr.ah_attr));
    let result = object.dev.modify(&wanted, av.as_ref(), mask);
    object
        .qp
        .base
        .state
        .store(object.dev.state() as u32, Ordering::Relaxed);
    errno::code(result)
}

/// `ibv_modify_qp_rate_limit(3)`
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut IbvQp,
    attr: *mut IbvQpRateLimitAttr,
) -> c_int {
    // SAFETY: the caller passes a live QP and a valid structure.
    let (object, attr) = unsafe { (objects::qp(qp), &*attr) };
    if attr.comp_mask != 0 {
        return errno::fail(libc::EINVAL);
    }
    errno::code(object.dev.limit_rate(attr.rate_limit, attr.max_burst_sz))
}

/// `ibv_query_qp(3)`
pub(crate) unsafe extern "C" fn query_qp(
    qp: *mut IbvQp,
    attr: *mut IbvQpAttr,
    _mask: c_int,
    init: *mut IbvQpInitAttr,
) -> c_int {
    // SAFETY: the caller passes a live QP.
    let object = unsafe { objects::qp(qp) };
    let (current, av) = object.dev.query();
    let current = qp_attr::to_c(&current, &av, object.dev.cap());
    let public = &object.qp.base;
    public.state.store(current.qp_state, Ordering::Relaxed);
    let created = IbvQpInitAttr {
        qp_context: public.qp_context,
        send_cq: public.send_cq,
        recv_cq: public.recv_cq,
        srq: public.srq,
        cap: current.cap,
        qp_type: public.qp_type,
        sq_sig_all: object.sq_sig_all.into(),
    };
    // SAFETY: the caller passes memory for both structures.
    unsafe {
        attr.write(current);
        init.write(created);
    }
    0
}

/// `ibv_destroy_qp(3)`; waits until its events are acknowledged
pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut IbvQp) -> c_int {
    if !live::is(qp.cast::<QpObject>()) {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the caller passes a live QP of an open context.
    let (object, owner) = unsafe { (objects::qp(qp), objects::context((*qp).context)) };
    if owner.is_inherited() {
        return 0;
    }
    let result = object.dev.destroy();
    if result.is_ok() {
        // SAFETY: published by create(); the caller gives it up. Its PD outlives it.
        unsafe {
            pd::drop_user((*qp).pd);
            objects::reclaim(qp.cast::<QpObject>());
        }
    }
    errno::code(result)
}

/// `ibv_query_qp_data_in_order(3)`: 0, no promise beyond the specification's
pub(crate) extern "C" fn query_data_in_order(_qp: *mut IbvQp, _op: c_int, _flags: u32) -> c_int {
    0
}

/// `ibv_query_ece(3)`: there are no enhanced-connection options.
pub(crate) unsafe extern "C" fn query_ece(_qp: *mut IbvQp, ece: *mut IbvEce) -> c_int {
    // SAFETY: the caller passes memory for the structure.
    unsafe {
        ece.write(IbvEce {
            vendor_id: 0,
            options: 0,
            comp_mask: 0,
        })
    };
    errno::fail(libc::EOPNOTSUPP)
}

/// `ibv_set_ece(3)`
pub(crate) extern "C" fn set_ece(_qp: *mut IbvQp, _ece: *mut IbvEce) -> c_int {
    errno::fail(libc::EOPNOTSUPP)
}
