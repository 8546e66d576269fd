//! Multicast groups: `rdma_join_multicast(3)`, `rdma_leave_multicast(3)`.
//!
//! Nobody has to be asked: to join is to attach the identifier's queue pair to the IP group, as far
//! as this host is concerned, and to say by an event where datagrams to the group go.

use core::ffi::{c_int, c_void};
use std::net::IpAddr;

use causeway_abi::{IbvQp, RdmaCmId, RdmaCmJoinMcAttrEx, RdmaEventParam, RdmaUdParam};
use causeway_identity::QPN_MULTICAST;

use crate::channel::What;
use crate::errno::{Errno, INVALID, Result, code};
use crate::id::{QPT_UD, complete, inner};
use crate::{ffi, qp, sockaddr};

/// `RDMA_CM_JOIN_MC_ATTR_ADDRESS`
const ATTR_ADDRESS: u32 = 1;
/// `RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS`
const ATTR_JOIN_FLAGS: u32 = 1 << 1;
/// `RDMA_MC_JOIN_FLAG_FULLMEMBER`
const FULL_MEMBER: u32 = 0;
/// `RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER`
const SEND_ONLY: u32 = 1;
/// Groups that an identifier may be in.
const GROUPS_MAX: usize = 64;

/// A group that an identifier has joined.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group {
    ip: IpAddr,
    send_only: bool,
    /// The queue pair is attached to it.
    attached: bool,
}

/// The GID of a group: an IPv6 address itself, an IPv4 one as the kernel's connection manager maps
/// it (`ff0e::ffff:a.b.c.d`).
fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => {
            let mut gid = v4.to_ipv6_mapped().octets();
            (gid[0], gid[1]) = (0xff, 0x0e);
            gid
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// # Safety
/// `id` is one of ours, alive; `addr` is null or an address.
unsafe fn join(
    id: *mut RdmaCmId,
    addr: *const libc::sockaddr,
    send_only: bool,
    context: *mut c_void,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let ip = sockaddr::read(addr)?.ip().to_canonical();
        if !ip.is_multicast() || (*id).verbs.is_null() || (*id).qp_type != QPT_UD {
            return Err(INVALID);
        }
        {
            let mut state = inner(id).state();
            if state.groups.iter().any(|group| group.ip == ip) {
                return Err(Errno(libc::EADDRINUSE));
            }
            if state.groups.len() >= GROUPS_MAX {
                return Err(Errno(libc::ENOMEM));
            }
            state.groups.push(Group {
                ip,
                send_only,
                attached: false,
            });
        }
        let context = context.expose_provenance();
        inner(id).shared.push(What::Joined { ip, context });
        complete(id)
    }
}

/// Attaches the identifier's queue pair, if it has one, as its event is taken; `None` if the group
/// has been left meanwhile.
///
/// # Safety
/// `id` is one of ours, alive.
pub(crate) unsafe fn attach(id: *mut RdmaCmId, ip: IpAddr) -> Option<Result<()>> {
    // SAFETY: as the caller promises; a queue pair of an identifier is alive.
    unsafe {
        let mut state = inner(id).state();
        let group = state.groups.iter_mut().find(|group| group.ip == ip)?;
        if group.send_only || (*id).qp.is_null() {
            return Some(Ok(()));
        }
        Some(match ffi::ibv_attach_mcast((*id).qp, &gid_of(ip), 0) {
            0 => {
                group.attached = true;
                Ok(())
            }
            code => Err(Errno(code)),
        })
    }
}

/// How to reach a group.
///
/// # Safety
/// As [`attach`].
pub(crate) unsafe fn param(id: *mut RdmaCmId, ip: IpAddr, context: usize) -> RdmaEventParam {
    // SAFETY: as the caller promises.
    let mut ah_attr = unsafe { qp::address_of_peer(id) };
    ah_attr.grh.dgid = gid_of(ip);
    RdmaEventParam {
        ud: RdmaUdParam {
            // What the program gave when it joined; it is not data.
            private_data: core::ptr::with_exposed_provenance(context),
            private_data_len: 0,
            ah_attr,
            qp_num: QPN_MULTICAST,
            qkey: qp::UDP_QKEY,
        },
    }
}

/// # Safety
/// As [`join`].
unsafe fn leave(id: *mut RdmaCmId, addr: *const libc::sockaddr) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let ip = sockaddr::read(addr)?.ip().to_canonical();
        let mut state = inner(id).state();
        let at = state.groups.iter().position(|group| group.ip == ip);
        let group = state
            .groups
            .swap_remove(at.ok_or(Errno(libc::EADDRNOTAVAIL))?);
        drop(state);
        detach((*id).qp, &group);
    }
    Ok(())
}

/// # Safety
/// `qp` is null or alive.
unsafe fn detach(qp: *mut IbvQp, group: &Group) {
    if group.attached && !qp.is_null() {
        // SAFETY: as the caller promises.
        unsafe { ffi::ibv_detach_mcast(qp, &gid_of(group.ip), 0) };
    }
}

/// Detaches a queue pair that is about to end from all groups.
///
/// # Safety
/// As [`attach`]; `qp` is null or was the identifier's.
pub(crate) unsafe fn detach_all(id: *mut RdmaCmId, qp: *mut IbvQp) {
    // SAFETY: as the caller promises.
    unsafe {
        for group in &mut inner(id).state().groups {
            detach(qp, group);
            group.attached = false;
        }
    }
}

/// `rdma_join_multicast(3)`
pub(crate) unsafe extern "C" fn join_multicast(
    id: *mut RdmaCmId,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program passes an identifier of ours and an address.
    code(unsafe { join(id, addr, false, context) })
}

/// `rdma_join_multicast_ex(3)`
pub(crate) unsafe extern "C" fn join_multicast_ex(
    id: *mut RdmaCmId,
    attr: *mut RdmaCmJoinMcAttrEx,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program passes an identifier of ours and a valid structure.
    code(unsafe {
        let attr = &*attr;
        let flags = match attr.comp_mask {
            mask if mask & ATTR_JOIN_FLAGS != 0 => attr.join_flags,
            _ => FULL_MEMBER,
        };
        let known = ATTR_ADDRESS | ATTR_JOIN_FLAGS;
        let named = attr.comp_mask & ATTR_ADDRESS != 0 && attr.comp_mask & !known == 0;
        match flags {
            FULL_MEMBER | SEND_ONLY if named => join(id, attr.addr, flags == SEND_ONLY, context),
            _ => Err(INVALID),
        }
    })
}

/// `rdma_leave_multicast(3)`
pub(crate) unsafe extern "C" fn leave_multicast(
    id: *mut RdmaCmId,
    addr: *mut libc::sockaddr,
) -> c_int {
    // SAFETY: the program passes an identifier of ours and an address.
    code(unsafe { leave(id, addr) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_gids() {
        let v4 = gid_of("239.1.2.3".parse().unwrap());
        assert_eq!(
            v4,
            [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]
        );
        assert_eq!(gid_of("ff15::7".parse().unwrap())[..2], [0xff, 0x15]);
    }
}
