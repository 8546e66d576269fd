//! Protection domains: `ibv_alloc_pd(3)`.

use crate::abi::{IbvContext, IbvPd};
use crate::errno;
use crate::objects::{self, PdObject};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

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
        handles: AtomicU32::new(0),
    });
    errno::pointer(created.map(|object| objects::publish(objects::allocate(), object).cast()))
}

/// `ibv_dealloc_pd(3)`: `EBUSY` while anything belongs to it
pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut IbvPd) -> c_int {
    // SAFETY: the caller passes a PD it allocated, of a context still open.
    let (object, owner) = unsafe { (objects::pd(pd), objects::context((*pd).context)) };
    if owner.is_inherited() {
        return 0;
    }
    if object.handles.load(Ordering::Acquire) != 0 {
        return errno::fail(libc::EBUSY);
    }
    let result = object.dev.dealloc();
    if result.is_ok() {
        // SAFETY: published by alloc_pd; the caller gives it up.
        unsafe { objects::reclaim(pd.cast::<PdObject>()) };
    }
    errno::code(result)
}
