//! Protection domains, parent domains, thread domains: `ibv_alloc_pd(3)`,
//! `ibv_alloc_parent_domain(3)`, `ibv_alloc_td(3)`.

use crate::abi::{IbvContext, IbvParentDomainInitAttr, IbvPd, IbvTd, IbvTdInitAttr};
use crate::objects::{self, PdObject, TdObject};
use crate::{errno, live};
use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT`
const PARENT_MASK: u32 = 3;

/// `ibv_alloc_pd(3)`
pub(crate) unsafe extern "C" fn alloc_pd(context: *mut IbvContext) -> *mut IbvPd {
    // SAFETY: the caller passes an open context.
    let owner = unsafe { objects::context(context) };
    let created = owner.dev.alloc_pd().map(|dev| PdObject {
        pd: IbvPd {
            context,
            handle: dev.handle(),
        },
        dev,
        users: AtomicU32::new(0),
        parent: ptr::null_mut(),
        td: ptr::null_mut(),
    });
    errno::pointer(created.map(|object| objects::publish(objects::allocate(), object).cast()))
}

/// Whether it is a parent domain.
///
/// # Safety
/// `pd` is null or live.
pub(crate) unsafe fn is_parent(pd: *mut IbvPd) -> bool {
    // SAFETY: the caller's promise.
    !pd.is_null() && !unsafe { objects::pd(pd) }.parent.is_null()
}

/// Counts an object created in a domain.
///
/// # Safety
/// `pd` is live.
pub(crate) unsafe fn add_user(pd: *mut IbvPd) {
    // SAFETY: the caller's promise.
    unsafe { objects::pd(pd) }
        .users
        .fetch_add(1, Ordering::Relaxed);
}

/// The counterpart of [`add_user`].
///
/// # Safety
/// `pd` is live.
pub(crate) unsafe fn drop_user(pd: *mut IbvPd) {
    // SAFETY: the caller's promise.
    unsafe { objects::pd(pd) }
        .users
        .fetch_sub(1, Ordering::Release);
}

/// `ibv_dealloc_pd(3)`: `EBUSY` while anything belongs to it
pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut IbvPd) -> c_int {
    if !live::is(pd.cast::<PdObject>()) {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the caller passes a PD it allocated, of a context still open.
    let (object, owner) = unsafe { (objects::pd(pd), objects::context((*pd).context)) };
    if owner.is_inherited() {
        return 0;
    }
    if object.users.load(Ordering::Acquire) != 0 {
        return errno::fail(libc::EBUSY);
    }
    let (parent, td) = (object.parent, object.td);
    let result = if parent.is_null() {
        object.dev.dealloc()
    } else {
        Ok(())
    };
    if result.is_ok() {
        // SAFETY: published by one of the functions here; the caller gives it up. What a parent
        // domain is made of is live as long as it is.
        unsafe {
            objects::reclaim(pd.cast::<PdObject>());
            if !parent.is_null() {
                drop_user(parent);
            }
            if !td.is_null() {
                objects::td(td).users.fetch_sub(1, Ordering::Release);
            }
        }
    }
    errno::code(result)
}

/// `ibv_alloc_parent_domain(3)`. The device's queues are its own memory, so that it has nothing to
/// ask a custom allocator for; a thread domain changes nothing, since all is thread-safe anyway.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut IbvContext,
    attr: *mut IbvParentDomainInitAttr,
) -> *mut IbvPd {
    // SAFETY: the caller passes a valid structure.
    let attr = unsafe { &*attr };
    if attr.pd.is_null() {
        return errno::null(libc::EINVAL);
    }
    if attr.comp_mask & !PARENT_MASK != 0 {
        return errno::null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller passes live objects.
    let dev = unsafe {
        add_user(attr.pd);
        if !attr.td.is_null() {
            objects::td(attr.td).users.fetch_add(1, Ordering::Relaxed);
        }
        Arc::clone(&objects::pd(attr.pd).dev)
    };
    let object = PdObject {
        pd: IbvPd {
            context,
            handle: dev.handle(),
        },
        dev,
        users: AtomicU32::new(0),
        parent: attr.pd,
        td: attr.td,
    };
    objects::publish(objects::allocate(), object).cast()
}

/// `ibv_alloc_td(3)`
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut IbvContext,
    attr: *mut IbvTdInitAttr,
) -> *mut IbvTd {
    // SAFETY: the caller passes a valid structure.
    if unsafe { (*attr).comp_mask } != 0 {
        return errno::null(libc::EOPNOTSUPP);
    }
    let object = TdObject {
        td: IbvTd { context },
        users: AtomicU32::new(0),
    };
    objects::publish(objects::allocate(), object).cast()
}

/// `ibv_dealloc_td(3)`: `EBUSY` while a parent domain uses it
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut IbvTd) -> c_int {
    if !live::is(td.cast::<TdObject>()) {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the caller passes a thread domain it allocated.
    if unsafe { objects::td(td) }.users.load(Ordering::Acquire) != 0 {
        return errno::fail(libc::EBUSY);
    }
    // SAFETY: published by alloc_td; the caller gives it up.
    unsafe { objects::retire(td.cast::<TdObject>()) };
    0
}
