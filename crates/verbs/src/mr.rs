//! Memory regions: `ibv_reg_mr(3)`, `ibv_rereg_mr(3)`.

use crate::abi::{IbvMr, IbvMrInitAttr, IbvPd};
use crate::buf::{self, Buf, MASK_ADDR};
use crate::objects::{self, MrObject};
use crate::{errno, live, pd};
use causeway_identity::Access;
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;

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
/// `IBV_REG_MR_MASK_BUF`
const MASK_BUF: u64 = 1 << 5;

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

/// `ibv_reg_mr_ex(3)`: memory by address, of a buffer or not; no dma-buf, no DMA handle
pub(crate) unsafe extern "C" fn reg_mr_ex(pd: *mut IbvPd, attr: *mut IbvMrInitAttr) -> *mut IbvMr {
    // SAFETY: the caller passes a structure that is valid up to `buf`, which older headers do not
    // have, and with that if the mask says so; the rest is passed on.
    unsafe {
        let comp_mask = (*attr).comp_mask;
        let known = IbvMrInitAttr {
            length: (*attr).length,
            access: (*attr).access,
            comp_mask,
            iova: (*attr).iova,
            addr: (*attr).addr,
            fd: (*attr).fd,
            fd_offset: (*attr).fd_offset,
            dmah: (*attr).dmah,
            buf: match comp_mask & MASK_BUF {
                0 => ptr::null_mut(),
                _ => (*attr).buf,
            },
        };
        register_by(pd, &known)
    }
}

/// `ibv_reg_buf_mr(3)`
pub(crate) unsafe extern "C" fn reg_buf_mr(
    pd: *mut IbvPd,
    buf: *mut Buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut IbvMr {
    let attr = IbvMrInitAttr {
        length,
        access,
        comp_mask: MASK_BUF | MASK_ADDR,
        iova: 0,
        addr,
        fd: -1,
        fd_offset: 0,
        dmah: ptr::null_mut(),
        buf: buf.cast(),
    };
    // SAFETY: passed on.
    unsafe { register_by(pd, &attr) }
}

/// Registers memory as a structure says.
///
/// # Safety
/// As [`register`]; a buffer that is named is not freed meanwhile.
unsafe fn register_by(pd: *mut IbvPd, attr: &IbvMrInitAttr) -> *mut IbvMr {
    let mask = attr.comp_mask;
    if mask & MASK_BUF != 0 && !buf::holds(pd, attr) {
        return errno::null(libc::EINVAL);
    }
    if mask & MASK_ADDR == 0 || mask & !(MASK_ADDR | MASK_IOVA | MASK_BUF) != 0 {
        return errno::null(libc::EOPNOTSUPP);
    }
    let iova = match mask & MASK_IOVA {
        0 => attr.addr.addr() as u64,
        _ => attr.iova,
    };
    let access = attr.access.cast_unsigned();
    // SAFETY: passed on.
    unsafe { register(pd, attr.addr, attr.length, iova, access) }
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
