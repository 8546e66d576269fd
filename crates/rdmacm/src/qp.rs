//! Queue pairs of identifiers: `rdma_create_qp(3)`, and the way to a connection.

use core::ffi::c_int;
use core::{mem, ptr};

use causeway_abi::{
    IbvAhAttr, IbvCompChannel, IbvContext, IbvCq, IbvGlobalRoute, IbvPd, IbvQp, IbvQpAttr,
    IbvQpInitAttr, IbvQpInitAttrEx, RdmaCmId, VerbsContext,
};
use causeway_identity::Access;

use crate::device::{self, PORT};
use crate::errno::{Errno, INVALID, NOT_OFFERED, Result, code, last};
use crate::id::{QPT_UD, inner};
use crate::{ffi, multicast};

/// Q_Key of datagrams (`RDMA_UDP_QKEY`).
pub(crate) const UDP_QKEY: u32 = 0x0123_4567;
/// `timeout` of queue pairs, unless `RDMA_OPTION_ID_ACK_TIMEOUT` says otherwise: 4.096 µs × 2^17.
const ACK_TIMEOUT: u8 = 17;
/// `min_rnr_timer` of queue pairs: 41 ms. The kernel's connection manager has 655 ms, and programs
/// that name few retries count on the peer's program to post its receives in that time.
const MIN_RNR_TIMER: u8 = 24;
/// Hops that datagrams may take.
const HOP_LIMIT: u8 = 64;

/// `enum ibv_qp_attr_mask`
mod mask {
    pub const STATE: i32 = 1;
    pub const ACCESS_FLAGS: i32 = 1 << 3;
    pub const PKEY_INDEX: i32 = 1 << 4;
    pub const PORT: i32 = 1 << 5;
    pub const QKEY: i32 = 1 << 6;
    pub const AV: i32 = 1 << 7;
    pub const PATH_MTU: i32 = 1 << 8;
    pub const TIMEOUT: i32 = 1 << 9;
    pub const RETRY_CNT: i32 = 1 << 10;
    pub const RNR_RETRY: i32 = 1 << 11;
    pub const RQ_PSN: i32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: i32 = 1 << 13;
    pub const MIN_RNR_TIMER: i32 = 1 << 15;
    pub const SQ_PSN: i32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    pub const DEST_QPN: i32 = 1 << 20;
}

/// `enum ibv_qp_state`
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;
const ERR: u32 = 6;

/// `IBV_QP_INIT_ATTR_PD`
const INIT_ATTR_PD: u32 = 1;

/// How datagrams find the peer.
///
/// # Safety
/// `id` is one of ours, alive.
pub(crate) unsafe fn address_of_peer(id: *mut RdmaCmId) -> IbvAhAttr {
    // SAFETY: as the caller promises.
    let state = unsafe { inner(id).state() };
    IbvAhAttr {
        grh: IbvGlobalRoute {
            dgid: state.theirs.gid,
            flow_label: 0,
            sgid_index: state.gid.1,
            hop_limit: HOP_LIMIT,
            traffic_class: state.traffic_class,
        },
        is_global: 1,
        port_num: PORT,
        ..IbvAhAttr::default()
    }
}

/// Fills in what the connection demands for `attr.qp_state`, and returns the mask.
///
/// # Safety
/// As [`address_of_peer`].
unsafe fn fill(id: *mut RdmaCmId, attr: &mut IbvQpAttr) -> Result<c_int> {
    // SAFETY: as the caller promises.
    let (ah_attr, mut state, datagrams) = unsafe {
        let datagrams = (*id).qp_type == QPT_UD;
        (address_of_peer(id), inner(id).state(), datagrams)
    };
    match attr.qp_state {
        INIT => {
            attr.pkey_index = 0;
            attr.port_num = PORT;
            attr.qkey = UDP_QKEY;
            let answers = state.ours.responder_resources > 0;
            let allowed = match answers {
                true => Access::REMOTE,
                false => Access::REMOTE_WRITE,
            };
            attr.qp_access_flags = allowed.bits();
            let kind = match datagrams {
                true => mask::QKEY,
                false => mask::ACCESS_FLAGS,
            };
            Ok(mask::STATE | mask::PKEY_INDEX | mask::PORT | kind)
        }
        RTR if datagrams => Ok(mask::STATE),
        RTR => {
            attr.ah_attr = ah_attr;
            attr.path_mtu = device::get()?.port()?.active_mtu;
            attr.dest_qp_num = state.theirs.qpn;
            attr.rq_psn = state.theirs.psn;
            attr.max_dest_rd_atomic = state.ours.responder_resources;
            attr.min_rnr_timer = MIN_RNR_TIMER;
            let reads = mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER;
            let path = mask::AV | mask::PATH_MTU;
            Ok(mask::STATE | path | mask::DEST_QPN | mask::RQ_PSN | reads)
        }
        RTS if datagrams => {
            attr.sq_psn = state.first_psn()?;
            Ok(mask::STATE | mask::SQ_PSN)
        }
        RTS => {
            attr.sq_psn = state.first_psn()?;
            attr.timeout = state.ack_timeout.unwrap_or(ACK_TIMEOUT);
            attr.retry_cnt = state.ours.retry_count;
            attr.rnr_retry = state.theirs.rnr_retry_count;
            attr.max_rd_atomic = state.ours.initiator_depth;
            let retries = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY;
            Ok(mask::STATE | mask::SQ_PSN | retries | mask::MAX_QP_RD_ATOMIC)
        }
        _ => Err(INVALID),
    }
}

/// Takes the identifier's queue pair to a state.
///
/// # Safety
/// As [`address_of_peer`]; the identifier has a queue pair.
unsafe fn modify(id: *mut RdmaCmId, qp_state: u32) -> Result<()> {
    let mut attr = IbvQpAttr {
        qp_state,
        ..IbvQpAttr::default()
    };
    // SAFETY: as the caller promises.
    unsafe {
        let mask = match qp_state {
            ERR => mask::STATE,
            _ => fill(id, &mut attr)?,
        };
        match ffi::ibv_modify_qp((*id).qp, &raw mut attr, mask) {
            0 => Ok(()),
            code => Err(Errno(code)),
        }
    }
}

/// Connects the identifier's queue pair with the peer's.
///
/// # Safety
/// As [`modify`].
pub(crate) unsafe fn connect(id: *mut RdmaCmId) -> Result<()> {
    // The first again: what the peer may do is known only now.
    [INIT, RTR, RTS]
        .into_iter()
        // SAFETY: as the caller promises.
        .try_for_each(|state| unsafe { modify(id, state) })
}

/// Ends what the queue pair does, if there is one.
///
/// # Safety
/// As [`address_of_peer`].
pub(crate) unsafe fn shut(id: *mut RdmaCmId) -> Result<()> {
    // SAFETY: as the caller promises.
    match unsafe { (*id).qp.is_null() || (*id).qp_type == QPT_UD } {
        true => Ok(()),
        // SAFETY: the same.
        false => unsafe { modify(id, ERR) },
    }
}

/// Makes the completion queue of one direction, with its channel, where the program brought none.
///
/// # Safety
/// As [`address_of_peer`].
unsafe fn make_cq(
    id: *mut RdmaCmId,
    entries: u32,
    channel: *mut *mut IbvCompChannel,
    cq: *mut *mut IbvCq,
) -> Result<()> {
    let entries = c_int::try_from(entries).map_err(|_| INVALID)?.max(1);
    // SAFETY: the pointers are to fields of the identifier.
    unsafe {
        let context = (*id).verbs;
        *channel = ffi::ibv_create_comp_channel(context);
        if (*channel).is_null() {
            return Err(last());
        }
        *cq = ffi::ibv_create_cq(context, entries, id.cast(), *channel, 0);
        match (*cq).is_null() {
            true => Err(last()),
            false => Ok(()),
        }
    }
}

/// Frees what [`make_cq`] made.
///
/// # Safety
/// As [`address_of_peer`]; no queue pair uses it.
pub(crate) unsafe fn free_cqs(id: *mut RdmaCmId) {
    // SAFETY: as the caller promises; the fields are null or what `make_cq` put there.
    unsafe {
        let queues = [&raw mut (*id).send_cq, &raw mut (*id).recv_cq];
        for cq in queues.map(|cq| mem::replace(&mut *cq, ptr::null_mut())) {
            if !cq.is_null() {
                ffi::ibv_destroy_cq(cq);
            }
        }
        let channels = [
            &raw mut (*id).send_cq_channel,
            &raw mut (*id).recv_cq_channel,
        ];
        for channel in channels.map(|c| mem::replace(&mut *c, ptr::null_mut())) {
            if !channel.is_null() {
                ffi::ibv_destroy_comp_channel(channel);
            }
        }
    }
}

/// Fills in what the program left out of a queue pair's description.
///
/// # Safety
/// As [`address_of_peer`].
unsafe fn supply(id: *mut RdmaCmId, attr: &mut IbvQpInitAttr) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        if attr.send_cq.is_null() && (*id).send_cq.is_null() {
            let (channel, cq) = (&raw mut (*id).send_cq_channel, &raw mut (*id).send_cq);
            make_cq(id, attr.cap.max_send_wr, channel, cq)?;
        }
        if attr.recv_cq.is_null() && (*id).recv_cq.is_null() {
            let (channel, cq) = (&raw mut (*id).recv_cq_channel, &raw mut (*id).recv_cq);
            make_cq(id, attr.cap.max_recv_wr, channel, cq)?;
        }
        if attr.send_cq.is_null() {
            attr.send_cq = (*id).send_cq;
        }
        if attr.recv_cq.is_null() {
            attr.recv_cq = (*id).recv_cq;
        }
        if attr.srq.is_null() {
            attr.srq = (*id).srq;
        }
    }
    Ok(())
}

/// The protection domain of a new queue pair.
///
/// # Safety
/// As [`address_of_peer`]; `given` is null or a protection domain.
unsafe fn domain(id: *mut RdmaCmId, given: *mut IbvPd) -> Result<*mut IbvPd> {
    // SAFETY: as the caller promises.
    unsafe {
        if (*id).verbs.is_null() || !(*id).qp.is_null() {
            return Err(INVALID);
        }
        let pd = match [given, (*id).pd].into_iter().find(|pd| !pd.is_null()) {
            Some(pd) => pd,
            None => device::get()?.default_pd()?,
        };
        match (*pd).context == (*id).verbs {
            true => Ok(pd),
            false => Err(INVALID),
        }
    }
}

/// Gives the identifier a queue pair, ready for a connection.
///
/// # Safety
/// As [`address_of_peer`]; `pd` is null or a protection domain.
pub(crate) unsafe fn create(
    id: *mut RdmaCmId,
    pd: *mut IbvPd,
    attr: &mut IbvQpInitAttr,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let pd = domain(id, pd)?;
        let given = (attr.send_cq, attr.recv_cq, attr.srq);
        let made = supply(id, attr).and_then(|()| {
            let qp = ffi::ibv_create_qp(pd, attr);
            attach(id, pd, qp, attr.qp_type)
        });
        made.inspect_err(|_| {
            // A program that tries again with less must not name queues that are gone.
            (attr.send_cq, attr.recv_cq, attr.srq) = given;
            free_cqs(id);
        })
    }
}

/// Takes over a queue pair that was just made.
///
/// # Safety
/// As [`create`]; `qp` is null with `errno` set, or a new queue pair.
unsafe fn attach(id: *mut RdmaCmId, pd: *mut IbvPd, qp: *mut IbvQp, qp_type: u32) -> Result<()> {
    if qp.is_null() {
        return Err(last());
    }
    // SAFETY: as the caller promises.
    unsafe {
        let before = ((*id).pd, (*id).qp_type);
        (*id).pd = pd;
        (*id).qp = qp;
        (*id).qp_type = qp_type;
        let states: &[u32] = match qp_type {
            QPT_UD => &[INIT, RTR, RTS],
            _ => &[INIT],
        };
        let ready = states.iter().try_for_each(|&state| modify(id, state));
        ready.inspect_err(|_| {
            ffi::ibv_destroy_qp(qp);
            (*id).qp = ptr::null_mut();
            ((*id).pd, (*id).qp_type) = before;
        })
    }
}

/// `rdma_create_qp(3)`
pub(crate) unsafe extern "C" fn create_qp(
    id: *mut RdmaCmId,
    pd: *mut IbvPd,
    attr: *mut IbvQpInitAttr,
) -> c_int {
    if attr.is_null() {
        return code(Err(INVALID));
    }
    // SAFETY: the program passes an identifier of ours, a protection domain or null, and a
    // description that it does not use meanwhile.
    code(unsafe { create(id, pd, &mut *attr) })
}

/// `rdma_create_qp_ex(3)`
pub(crate) unsafe extern "C" fn create_qp_ex(
    id: *mut RdmaCmId,
    attr: *mut IbvQpInitAttrEx,
) -> c_int {
    // SAFETY: as for `create_qp`.
    code(unsafe { create_extended(id, attr) })
}

/// # Safety
/// As [`create_qp_ex`].
unsafe fn create_extended(id: *mut RdmaCmId, attr: *mut IbvQpInitAttrEx) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let attr = attr.as_mut().ok_or(INVALID)?;
        let given = match attr.comp_mask & INIT_ATTR_PD {
            0 => ptr::null_mut(),
            _ => attr.pd,
        };
        let pd = domain(id, given)?;
        let mut plain = IbvQpInitAttr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
        };
        let create = extended_of((*id).verbs).ok_or(NOT_OFFERED)?;
        let queues = (attr.send_cq, attr.recv_cq, attr.srq);
        let (mask, domain_given) = (attr.comp_mask, attr.pd);
        let made = supply(id, &mut plain).and_then(|()| {
            attr.comp_mask |= INIT_ATTR_PD;
            attr.pd = pd;
            (attr.send_cq, attr.recv_cq) = (plain.send_cq, plain.recv_cq);
            attr.srq = plain.srq;
            let qp = create((*id).verbs, attr);
            attach(id, pd, qp, attr.qp_type)
        });
        made.inspect_err(|_| {
            // As in `create`.
            (attr.send_cq, attr.recv_cq, attr.srq) = queues;
            (attr.comp_mask, attr.pd) = (mask, domain_given);
            free_cqs(id);
        })
    }
}

type CreateQpEx = unsafe extern "C" fn(*mut IbvContext, *mut IbvQpInitAttrEx) -> *mut IbvQp;

/// The operation behind the inline function `ibv_create_qp_ex`.
///
/// # Safety
/// `context` is open.
unsafe fn extended_of(context: *mut IbvContext) -> Option<CreateQpEx> {
    // SAFETY: the word says whether an extended context lies around this one.
    unsafe {
        if (*context).abi_compat != causeway_abi::ABI_IS_EXTENDED {
            return None;
        }
        let whole = context.byte_sub(mem::offset_of!(VerbsContext, context));
        (*whole.cast::<VerbsContext>()).create_qp_ex
    }
}

/// `rdma_destroy_qp(3)`
pub(crate) unsafe extern "C" fn destroy_qp(id: *mut RdmaCmId) {
    // SAFETY: the program passes an identifier of ours whose queue pair it does not use any more.
    unsafe {
        let qp = mem::replace(&mut (*id).qp, ptr::null_mut());
        if !qp.is_null() {
            multicast::detach_all(id, qp);
            ffi::ibv_destroy_qp(qp);
        }
        free_cqs(id);
    }
}

/// `rdma_init_qp_attr(3)`
pub(crate) unsafe extern "C" fn init_qp_attr(
    id: *mut RdmaCmId,
    attr: *mut IbvQpAttr,
    out: *mut c_int,
) -> c_int {
    if attr.is_null() || out.is_null() {
        return code(Err(INVALID));
    }
    // SAFETY: the program passes an identifier of ours and valid pointers.
    code(unsafe { fill(id, &mut *attr).map(|mask| out.write(mask)) })
}
