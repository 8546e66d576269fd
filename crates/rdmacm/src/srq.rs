//! Shared receive queues of identifiers: `rdma_create_srq(3)`.

use core::ffi::c_int;
use core::{mem, ptr};

use causeway_abi::{IbvPd, IbvSrqInitAttr, IbvSrqInitAttrEx, RdmaCmId};

use crate::device;
use crate::errno::{INVALID, NOT_OFFERED, Result, code, last};
use crate::ffi;

/// `IBV_SRQ_INIT_ATTR_TYPE`
const ATTR_TYPE: u32 = 1;
/// `IBV_SRQ_INIT_ATTR_PD`
const ATTR_PD: u32 = 1 << 1;
/// `IBV_SRQT_BASIC`
const BASIC: u32 = 0;

/// `rdma_create_srq(3)`
pub(crate) unsafe extern "C" fn create_srq(
    id: *mut RdmaCmId,
    pd: *mut IbvPd,
    attr: *mut IbvSrqInitAttr,
) -> c_int {
    // SAFETY: the program passes an identifier of ours, a protection domain or null, and a
    // description.
    code(unsafe { create(id, pd, attr) })
}

/// # Safety
/// As [`create_srq`].
unsafe fn create(id: *mut RdmaCmId, pd: *mut IbvPd, attr: *mut IbvSrqInitAttr) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        if attr.is_null() || (*id).verbs.is_null() || !(*id).srq.is_null() {
            return Err(INVALID);
        }
        let pd = match [pd, (*id).pd].into_iter().find(|pd| !pd.is_null()) {
            Some(pd) => pd,
            None => device::get()?.default_pd()?,
        };
        if (*pd).context != (*id).verbs {
            return Err(INVALID);
        }
        let srq = ffi::ibv_create_srq(pd, attr);
        if srq.is_null() {
            return Err(last());
        }
        (*id).srq = srq;
        (*id).pd = pd;
    }
    Ok(())
}

/// `rdma_create_srq_ex(3)`: basic ones, as nothing else is offered.
pub(crate) unsafe extern "C" fn create_srq_ex(
    id: *mut RdmaCmId,
    attr: *mut IbvSrqInitAttrEx,
) -> c_int {
    // SAFETY: the program passes an identifier of ours, and a description or null.
    unsafe {
        let Some(attr) = attr.as_mut() else {
            return code(Err(INVALID));
        };
        let basic = attr.comp_mask & ATTR_TYPE == 0 || attr.srq_type == BASIC;
        if !basic || attr.comp_mask & !(ATTR_TYPE | ATTR_PD) != 0 {
            return code(Err(NOT_OFFERED));
        }
        let pd = match attr.comp_mask & ATTR_PD {
            0 => ptr::null_mut(),
            _ => attr.pd,
        };
        let mut plain = IbvSrqInitAttr {
            srq_context: attr.base.srq_context,
            attr: attr.base.attr,
        };
        let created = create(id, pd, &raw mut plain);
        attr.base.attr = plain.attr;
        code(created)
    }
}

/// `rdma_destroy_srq(3)`
pub(crate) unsafe extern "C" fn destroy_srq(id: *mut RdmaCmId) {
    // SAFETY: the program passes an identifier of ours whose queue it does not use any more.
    unsafe {
        let srq = mem::replace(&mut (*id).srq, ptr::null_mut());
        if !srq.is_null() {
            ffi::ibv_destroy_srq(srq);
        }
    }
}
