//! Multicast groups: `ibv_attach_mcast(3)`, `ibv_detach_mcast(3)`.

use crate::abi::IbvQp;
use crate::{errno, objects};
use core::ffi::c_int;

/// `ibv_attach_mcast(3)`; Ethernet has no LIDs
pub(crate) unsafe extern "C" fn attach(qp: *mut IbvQp, gid: *const [u8; 16], _lid: u16) -> c_int {
    // SAFETY: the caller passes a live QP and a GID.
    errno::code(unsafe { objects::qp(qp).dev.attach(*gid) })
}

/// `ibv_detach_mcast(3)`
pub(crate) unsafe extern "C" fn detach(qp: *mut IbvQp, gid: *const [u8; 16], _lid: u16) -> c_int {
    // SAFETY: the caller passes a live QP and a GID.
    errno::code(unsafe { objects::qp(qp).dev.detach(*gid) })
}
