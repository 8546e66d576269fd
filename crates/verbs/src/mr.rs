//! Memory regions: `ibv_reg_mr(3)`, `ibv_rereg_mr(3)`.

use crate::abi::{IbvMr, IbvMrInitAttr, IbvPd};
use crate::objects::{self, MrObject};
use crate::{errno, live, pd};
use causeway_identity::Access;
use core::ffi::{c_int, c_uint, c_void};

/// `IBV_ACCESS_HUGETLB`: a hint about the pages; nothing here depends on it.
const ACCESS_HUGETLB: u32 = 1 << 7;

/// `IBV_REREG_MR_CHANGE_TRANSLATION`
const CHANGE_TRANSLATION: c_int = 1;
/// `IBV_REREG_MR_CHANGE_PD`
const CHANGE_PD: c_int = 1 << 1;
/// `IBV_REREG_MR_CHANGE_ACCESS`
const CHANGE_ACCESS: c_int = 1 << 2;
/// `IBV_REREG_MR_ERR_INPUT`: the region is as it was.
const REREG_ERR_INPUT: c_int = -1;

/// `IBV_REG_MR_MASK_IOVA`
const MASK_IOVA: u64 = 1;
/// `IBV_REG_MR_MASK_ADDR`
const MASK_ADDR: u64 = 1 << 1;

/// The flags that matter to the device.
fn access_flags(access: c_uint) -> u32 {
    // The one optional flag that the device honours stays.
    let ignored = Access::OPTIONAL_RANGE & !Access::RELAXED_ORDERING.bits();
    access & !ignored & !ACCESS_HUGETLB
}

/// Registers `length` bytes at `addr`, known to peers as starting at `iova`.
///
/// # Safety
/// `pd` is a live protection domain; the memory stays mapped until deregistration.
unsafe fn register(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut IbvMr {
    // SAFETY: the caller's promise.
    let (owner, context) = unsafe { (objects::pd(pd), (*pd).context) };
    let created = owner
        .dev
        .reg_mr(addr.addr(), length, iova, access_flags(access));
    let object = created.map(|dev| MrObject {
        mr: IbvMr {
            context,
            pd,
            addr,
            length,
            handle: dev.lkey(),
            lkey: dev.lkey(),
            rkey: dev.rkey(),
        },
        dev,
    });
    errno::pointer(object.map(|object| {
        // SAFETY: the caller's promise.
        unsafe { pd::add_user(pd) };
        objects::publish(objects::allocate(), object).cast()
    }))
}

/// `ibv_reg_mr(3)`
pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut IbvMr {
    // SAFETY: passed on.
    unsafe { register(pd, addr, length, addr.addr() as u64, access.cast_unsigned()) }
}

/// `ibv_reg_mr_iova(3)`
pub(crate) unsafe extern "C" fn reg_mr_iova(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut IbvMr {
    // SAFETY: passed on.
    unsafe { register(pd, addr, length, iova, access.cast_unsigned()) }
}

/// What `ibv_reg_mr(3)` becomes when its access flags are not constant.
pub(crate) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut IbvMr {
    // SAFETY: passed on.
    unsafe { register(pd, addr, length, iova, access) }
}

/// `ibv_reg_mr_ex(3)`: memory by address only; no dma-buf, no DMA handle
pub(crate) unsafe extern "C" fn reg_mr_ex(pd: *mut IbvPd, attr: *mut IbvMrInitAttr) -> *mut IbvMr {
    // SAFETY: the caller passes a valid structure.
    let attr = unsafe { &*attr };
    if attr.comp_mask & MASK_ADDR == 0 || attr.comp_mask & !(MASK_ADDR | MASK_IOVA) != 0 {
        return errno::null(libc::EOPNOTSUPP);
    }
    let iova = if attr.comp_mask & MASK_IOVA != 0 {
        attr.iova
    } else {
        attr.addr.addr() as u64
    };
    // SAFETY: passed on.
    unsafe {
        register(
            pd,
            attr.addr,
            attr.length,
            iova,
            attr.access.cast_unsigned(),
        )
    }
}

/// `ibv_dereg_mr(3)`
pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut IbvMr) -> c_int {
    if !live::is(mr.cast::<MrObject>()) {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the caller passes a region it registered, of a context still open.
    let (object, owner) = unsafe { (objects::mr(mr), objects::context((*mr).context)) };
    if owner.is_inherited() {
        return 0;
    }
    let result = object.dev.dereg();
    if result.is_ok() {
        // SAFETY: published by register(); the caller gives it up. Its PD outlives it.
        unsafe {
            pd::drop_user((*mr).pd);
            objects::reclaim(mr.cast::<MrObject>());
        }
    }
    errno::code(result)
}

/// `ibv_rereg_mr(3)`: 0, or a negative `enum ibv_rereg_mr_err_code` with `errno` set. The device
/// leaves the region as it was when it refuses.
pub(crate) unsafe extern "C" fn rereg_mr(
    mr: *mut IbvMr,
    flags: c_int,
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let translation = flags & CHANGE_TRANSLATION != 0;
    let nothing = flags == 0 || flags & !(CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS) != 0;
    if nothing || translation && (length == 0 || addr.is_null()) {
        errno::set(libc::EINVAL);
        return REREG_ERR_INPUT;
    }
    let result = {
        // SAFETY: the caller passes live objects, and a PD where the flags say so.
        let object = unsafe { objects::mr(mr) };
        // SAFETY: as above.
        let new_pd = (flags & CHANGE_PD != 0).then(|| unsafe { &objects::pd(pd).dev });
        let new_range = translation.then(|| (addr.addr(), length));
        let new_access = (flags & CHANGE_ACCESS != 0).then(|| access_flags(access.cast_unsigned()));
        object
            .dev
            .rereg(new_pd, new_range, new_access)
            .map(|()| (object.dev.lkey(), object.dev.rkey()))
    };
    match result {
        Ok((lkey, rkey)) => {
            // SAFETY: the caller has the region to itself during this call.
            let public = unsafe { &mut *mr };
            (public.lkey, public.rkey) = (lkey, rkey);
            if translation {
                (public.addr, public.length) = (addr, length);
            }
            if flags & CHANGE_PD != 0 {
                // SAFETY: both are live.
                unsafe {
                    pd::add_user(pd);
                    pd::drop_user(public.pd);
                }
                public.pd = pd;
            }
            0
        }
        Err(causeway_device::Errno(code)) => {
            errno::set(code);
            REREG_ERR_INPUT
        }
    }
}
