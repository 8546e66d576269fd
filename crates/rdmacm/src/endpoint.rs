//! Identifiers made in one step: `rdma_create_ep(3)`, `rdma_get_request(3)`.

use core::ffi::c_int;
use core::ptr;

use causeway_abi::{IbvPd, IbvQpInitAttr, RdmaAddrinfo, RdmaCmEvent, RdmaCmId};
use causeway_cancel::Allowed;

use crate::address::{bind, resolve, route};
use crate::addrinfo::PASSIVE;
use crate::errno::{Errno, INVALID, Result, code};
use crate::event::{self, CONNECT_REQUEST};
use crate::id::{self, inner};
use crate::{qp, sockaddr, srq};

/// `rdma_create_ep(3)`
pub(crate) unsafe extern "C" fn create_ep(
    out: *mut *mut RdmaCmId,
    res: *mut RdmaAddrinfo,
    pd: *mut IbvPd,
    attr: *mut IbvQpInitAttr,
) -> c_int {
    // SAFETY: the program passes room for a pointer, a result of `rdma_getaddrinfo(3)`, and a
    // protection domain and a description, or null.
    code(unsafe { create(res, pd, attr).map(|id| out.write(id)) })
}

/// # Safety
/// As [`create_ep`].
unsafe fn create(
    res: *mut RdmaAddrinfo,
    pd: *mut IbvPd,
    attr: *mut IbvQpInitAttr,
) -> Result<*mut RdmaCmId> {
    // SAFETY: as the caller promises; the identifier is ours alone until it is returned.
    unsafe {
        let res = res.as_ref().ok_or(INVALID)?;
        let ps = u32::try_from(res.ai_port_space).map_err(|_| INVALID)?;
        let qp_type = u32::try_from(res.ai_qp_type).map_err(|_| INVALID)?;
        let id = id::create(ptr::null_mut(), ptr::null_mut(), ps, Some(qp_type))?;
        match set_up(id, res, pd, attr) {
            Ok(()) => Ok(id),
            Err(errno) => {
                destroy_ep(id);
                Err(errno)
            }
        }
    }
}

/// # Safety
/// As [`create_ep`].
unsafe fn set_up(
    id: *mut RdmaCmId,
    res: &RdmaAddrinfo,
    pd: *mut IbvPd,
    attr: *mut IbvQpInitAttr,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        if res.ai_flags & PASSIVE != 0 {
            bind(id, sockaddr::read(res.ai_src_addr)?)?;
            if !pd.is_null() {
                // The program finds it there, and so do the identifiers of connections.
                (*id).pd = pd;
            }
            if let Some(attr) = attr.as_ref() {
                let mut attr = *attr;
                attr.qp_type = (*id).qp_type;
                inner(id).state().endpoint = Some((pd, attr));
            }
            return Ok(());
        }
        let local = match res.ai_src_addr.is_null() {
            true => None,
            false => Some(sockaddr::read(res.ai_src_addr)?),
        };
        resolve(id, local, sockaddr::read(res.ai_dst_addr)?)?;
        route(id)?;
        if let Some(attr) = attr.as_mut() {
            attr.qp_type = (*id).qp_type;
            qp::create(id, pd, attr)?;
        }
    }
    Ok(())
}

/// `rdma_destroy_ep(3)`
pub(crate) unsafe extern "C" fn destroy_ep(id: *mut RdmaCmId) {
    // SAFETY: the program passes an identifier of ours that it does not use any more.
    unsafe {
        if !(*id).qp.is_null() {
            qp::destroy_qp(id);
        }
        if !(*id).srq.is_null() {
            srq::destroy_srq(id);
        }
        id::destroy_id(id);
    }
}

/// `rdma_get_request(3)`; a cancellation point
pub(crate) unsafe extern "C" fn get_request(
    listener: *mut RdmaCmId,
    out: *mut *mut RdmaCmId,
    allowed: Allowed,
) -> c_int {
    // SAFETY: the program passes a listener of ours and room for a pointer.
    code(unsafe { next_request(listener, allowed).map(|id| out.write(id)) })
}

/// # Safety
/// As [`get_request`].
unsafe fn next_request(listener: *mut RdmaCmId, allowed: Allowed) -> Result<*mut RdmaCmId> {
    // SAFETY: as the caller promises.
    unsafe {
        let endpoint = {
            let state = inner(listener).state();
            if !state.sync || state.listener.is_none() {
                return Err(INVALID);
            }
            state.endpoint
        };
        id::release_event(listener);
        let mut event: *mut RdmaCmEvent = ptr::null_mut();
        event::get((*listener).channel, &raw mut event, allowed)?;
        if (*event).event != CONNECT_REQUEST {
            let status = (*event).status;
            event::acknowledge(event);
            return Err(match status {
                0 => INVALID,
                status => Errno(status.saturating_abs()),
            });
        }
        let id = (*event).id;
        (*id).event = event;
        if let Some((pd, mut attr)) = endpoint
            && let Err(errno) = qp::create(id, pd, &mut attr)
        {
            destroy_ep(id);
            return Err(errno);
        }
        Ok(id)
    }
}
