//! Extended queue pairs: `ibv_create_qp_ex(3)` and the `ibv_wr_*` calls (`ibv_wr_post(3)`).

use crate::abi::{
    IbvAh, IbvContext, IbvDataBuf, IbvMw, IbvMwBindInfo, IbvQp, IbvQpEx, IbvQpInitAttr,
    IbvQpInitAttrEx, IbvSge,
};
use crate::objects::{self, QpObject};
use crate::{errno, mw, qp, wr};
use causeway_device::{Errno, QPT_UC, QPT_UD};
use causeway_identity::QPN_MASK;
use causeway_proto::types::{MAX_SGE, Payload, SendFlags, SendOp, SendWr, SgList, Sge};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::{ptr, slice};
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use smallvec::SmallVec;

/// `IBV_QP_INIT_ATTR_PD`
const MASK_PD: u32 = 1;
/// `IBV_QP_INIT_ATTR_CREATE_FLAGS`
const MASK_CREATE_FLAGS: u32 = 1 << 2;
/// `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`
const MASK_SEND_OPS: u32 = 1 << 6;
/// `IBV_QP_EX_WITH_*` of what the device does: WRITE, SEND, READ with their variants, atomics,
/// local invalidate, binding of windows, SEND with invalidate.
const SEND_OPS: u64 = 0x3ff;
/// Of these, what unreliable connections do: all but READ and atomics.
const SEND_OPS_UC: u64 = SEND_OPS & !(0b111 << 4);
/// What datagrams do: SEND, with immediate data or without.
const SEND_OPS_UD: u64 = 1 << 2 | 1 << 3;

/// The requests between `ibv_wr_start` and `ibv_wr_complete`.
pub(crate) struct Batch {
    /// Held from start to complete or abort: the calls of one batch are not mixed with another's.
    lock: RawMutex,
    /// Touched only by the holder of the lock.
    pending: UnsafeCell<Pending>,
}

#[derive(Default)]
struct Pending {
    requests: Vec<SendWr>,
    /// Windows that they bind, and the keys that these have once they are posted.
    bound: Vec<(*mut IbvMw, u32)>,
    /// First error of the batch, 0 for none; `ibv_wr_complete` returns it and posts nothing.
    error: c_int,
}

impl Default for Batch {
    fn default() -> Self {
        Batch {
            lock: RawMutex::INIT,
            pending: UnsafeCell::default(),
        }
    }
}

/// `ibv_create_qp_ex(3)`
pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut IbvContext,
    attr: *mut IbvQpInitAttrEx,
) -> *mut IbvQp {
    // SAFETY: the caller passes a valid structure, in which the fields named by comp_mask are set.
    let attr = unsafe { &mut *attr };
    let mask = attr.comp_mask;
    let extended = mask & MASK_SEND_OPS != 0;
    let known = mask & !(MASK_PD | MASK_CREATE_FLAGS | MASK_SEND_OPS) == 0
        && (mask & MASK_CREATE_FLAGS == 0 || attr.create_flags == 0)
        && (!extended || attr.send_ops_flags & !send_ops(attr.qp_type) == 0);
    if !known {
        return errno::null(libc::EOPNOTSUPP);
    }
    if mask & MASK_PD == 0 {
        return errno::null(libc::EINVAL);
    }
    let mut init = IbvQpInitAttr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    // SAFETY: the caller passes live objects.
    match unsafe { qp::create(attr.pd, &mut init, extended) } {
        Ok(object) => {
            attr.cap = init.cap;
            // SAFETY: just published, not yet known to anyone else.
            fill(unsafe { &mut (*object).qp });
            object.cast()
        }
        Err(Errno(code)) => errno::null(code),
    }
}

/// What a type of queue pairs does.
fn send_ops(qp_type: u32) -> u64 {
    match qp_type {
        QPT_UC => SEND_OPS_UC,
        QPT_UD => SEND_OPS_UD,
        _ => SEND_OPS,
    }
}

/// `ibv_qp_to_qp_ex(3)`: null unless the QP was created with `send_ops_flags`
pub(crate) unsafe extern "C" fn qp_to_qp_ex(qp: *mut IbvQp) -> *mut IbvQpEx {
    // SAFETY: the caller passes a live QP.
    if unsafe { objects::qp(qp) }.extended {
        qp.cast()
    } else {
        ptr::null_mut()
    }
}

/// Sets every function of the structure: a binary may call any of them without looking.
fn fill(qp: &mut IbvQpEx) {
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_send_tso = Some(wr_send_tso);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_atomic_write = Some(wr_atomic_write);
    qp.wr_flush = Some(wr_flush);
}

/// The batch of a QP.
///
/// # Safety
/// The calling thread is between `wr_start` and the end of the batch of a live extended QP, and
/// holds no other such reference.
unsafe fn pending<'a>(qp: *mut IbvQpEx) -> &'a mut Pending {
    // SAFETY: the caller's promise: it holds the lock.
    unsafe { &mut *(*qp.cast::<QpObject>()).batch.pending.get() }
}

/// `ibv_wr_start`
unsafe extern "C" fn wr_start(qp: *mut IbvQpEx) {
    // SAFETY: the caller passes a live extended QP.
    unsafe { (*qp.cast::<QpObject>()).batch.lock.lock() };
}

/// Ends a batch.
///
/// # Safety
/// As [`pending`].
unsafe fn finish(qp: *mut IbvQpEx) {
    // SAFETY: the caller's promise.
    unsafe {
        let pending = pending(qp);
        pending.requests.clear();
        pending.bound.clear();
        pending.error = 0;
        (*qp.cast::<QpObject>()).batch.lock.unlock();
    }
}

/// `ibv_wr_abort`
unsafe extern "C" fn wr_abort(qp: *mut IbvQpEx) {
    // SAFETY: the caller has started a batch on a live extended QP.
    unsafe { finish(qp) };
}

/// `ibv_wr_complete`: 0 or an `errno` value
unsafe extern "C" fn wr_complete(qp: *mut IbvQpEx) -> c_int {
    // SAFETY: the caller has started a batch on a live extended QP, and the windows it binds are
    // live.
    unsafe {
        let pending = pending(qp);
        let result = if pending.error != 0 {
            Err(Errno(pending.error))
        } else {
            let dev = &(*qp.cast::<QpObject>()).dev;
            dev.post_send_batch(&mut pending.requests)
        };
        if result.is_ok() {
            for (window, rkey) in pending.bound.drain(..) {
                (*window).rkey = rkey;
            }
        }
        finish(qp);
        errno::code(result)
    }
}

/// Begins a request; the caller's `wr_id` and `wr_flags` are read now (`ibv_wr_post(3)`).
///
/// # Safety
/// As [`pending`].
unsafe fn push(qp: *mut IbvQpEx, op: SendOp) {
    // SAFETY: the caller's promise.
    unsafe {
        // Inline data is chosen by the setter, not by a flag.
        let flags = SendFlags::from_bits_truncate((*qp).wr_flags) - SendFlags::INLINE;
        let payload = Payload::Sges(SgList::new());
        pending(qp).requests.push(SendWr {
            wr_id: (*qp).wr_id,
            op,
            flags,
            payload,
        });
    }
}

/// Records an error of the batch.
///
/// # Safety
/// As [`pending`].
unsafe fn refuse(qp: *mut IbvQpEx, code: c_int) {
    // SAFETY: the caller's promise.
    let pending = unsafe { pending(qp) };
    if pending.error == 0 {
        pending.error = code;
    }
}

/// Gives the request begun last its payload.
///
/// # Safety
/// As [`pending`].
unsafe fn set_payload(qp: *mut IbvQpEx, payload: Payload) {
    // SAFETY: the caller's promise.
    match unsafe { pending(qp) }.requests.last_mut() {
        Some(request) => {
            request
                .flags
                .set(SendFlags::INLINE, matches!(payload, Payload::Inline(_)));
            request.payload = payload;
        }
        // SAFETY: the caller's promise.
        None => unsafe { refuse(qp, libc::EINVAL) },
    }
}

/// Declares an `ibv_wr_*` call that begins a request.
macro_rules! begin {
    ($name:ident($($arg:ident: $type:ty),*), $op:expr) => {
        #[doc = concat!("`ibv_", stringify!($name), "` (`ibv_wr_post(3)`)")]
        unsafe extern "C" fn $name(qp: *mut IbvQpEx, $($arg: $type),*) {
            // SAFETY: the caller has started a batch on a live extended QP.
            unsafe { push(qp, $op) };
        }
    };
}

/// Declares an `ibv_wr_*` call that the device does not do.
macro_rules! unsupported {
    ($name:ident($($type:ty),*)) => {
        #[doc = concat!("`ibv_", stringify!($name), "`: not offered; the batch fails")]
        unsafe extern "C" fn $name(qp: *mut IbvQpEx, $(_: $type),*) {
            // SAFETY: the caller has started a batch on a live extended QP.
            unsafe { refuse(qp, libc::EOPNOTSUPP) };
        }
    };
}

begin!(wr_send(), SendOp::Send);
begin!(wr_send_imm(imm: u32), SendOp::SendImm(imm));
begin!(wr_send_inv(rkey: u32), SendOp::SendInv(rkey));
begin!(wr_local_inv(rkey: u32), SendOp::LocalInv(rkey));
begin!(wr_rdma_read(rkey: u32, addr: u64), SendOp::Read { addr, rkey });
begin!(wr_rdma_write(rkey: u32, addr: u64), SendOp::Write { addr, rkey });
begin!(
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32),
    SendOp::WriteImm { addr, rkey, imm }
);
begin!(
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64),
    SendOp::CmpSwap { addr, rkey, compare, swap }
);
begin!(
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64),
    SendOp::FetchAdd { addr, rkey, add }
);
unsupported!(wr_send_tso(*mut c_void, u16, u16));
unsupported!(wr_set_xrc_srqn(u32));
unsupported!(wr_atomic_write(u32, u64, *const c_void));
unsupported!(wr_flush(u32, u64, usize, u8, u8));

/// `ibv_wr_bind_mw`
unsafe extern "C" fn wr_bind_mw(
    qp: *mut IbvQpEx,
    window: *mut IbvMw,
    rkey: u32,
    info: *const IbvMwBindInfo,
) {
    // SAFETY: the caller has started a batch on a live extended QP, and passes a live window and a
    // valid structure.
    unsafe {
        if !mw::is_posted(window) {
            return refuse(qp, libc::EINVAL);
        }
        let rkey = mw::key(window, rkey);
        push(qp, SendOp::BindMw(rkey));
        set_payload(qp, Payload::Window(mw::binding(window, &*info)));
        pending(qp).bound.push((window, rkey));
    }
}

/// `ibv_wr_set_ud_addr`
unsafe extern "C" fn wr_set_ud_addr(qp: *mut IbvQpEx, ah: *mut IbvAh, qpn: u32, qkey: u32) {
    // SAFETY: the caller has started a batch on a live extended QP, and passes a live address
    // handle or, against the rules, null.
    unsafe {
        let imm = match pending(qp).requests.last().map(|request| request.op) {
            Some(SendOp::Send) => None,
            Some(SendOp::SendImm(imm)) => Some(imm),
            _ => return refuse(qp, libc::EINVAL),
        };
        if ah.is_null() || qpn > QPN_MASK {
            return refuse(qp, libc::EINVAL);
        }
        let ah = objects::ah(ah).dev.number();
        if let Some(request) = pending(qp).requests.last_mut() {
            request.op = SendOp::Datagram { ah, qpn, qkey, imm };
        }
    }
}

/// `ibv_wr_set_sge`
unsafe extern "C" fn wr_set_sge(qp: *mut IbvQpEx, lkey: u32, addr: u64, length: u32) {
    let payload = Payload::Sges(SgList::from_elem(Sge { addr, length, lkey }, 1));
    // SAFETY: the caller has started a batch on a live extended QP.
    unsafe { set_payload(qp, payload) };
}

/// `ibv_wr_set_sge_list`
unsafe extern "C" fn wr_set_sge_list(qp: *mut IbvQpEx, count: usize, list: *const IbvSge) {
    // SAFETY: the caller has started a batch on a live extended QP and passes a valid array.
    unsafe {
        match count {
            0 => set_payload(qp, Payload::Sges(SgList::new())),
            1..=MAX_SGE => {
                let entries = slice::from_raw_parts(list, count);
                set_payload(qp, Payload::Sges(wr::gather(entries)));
            }
            _ => refuse(qp, libc::EINVAL),
        }
    }
}

/// `ibv_wr_set_inline_data`
unsafe extern "C" fn wr_set_inline_data(qp: *mut IbvQpEx, addr: *mut c_void, length: usize) {
    // SAFETY: the caller has started a batch on a live extended QP and passes readable memory.
    unsafe { wr_set_inline_data_list(qp, 1, &IbvDataBuf { addr, length }) };
}

/// `ibv_wr_set_inline_data_list`
unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut IbvQpEx,
    count: usize,
    list: *const IbvDataBuf,
) {
    // SAFETY: the caller has started a batch on a live extended QP and passes readable memory.
    unsafe {
        let max = (*qp.cast::<QpObject>()).max_inline_data;
        let mut bytes = SmallVec::new();
        for i in 0..count {
            let IbvDataBuf { addr, length } = *list.add(i);
            if length > max - bytes.len() {
                return refuse(qp, libc::EINVAL);
            }
            if length > 0 {
                bytes.extend_from_slice(slice::from_raw_parts(addr.cast::<u8>(), length));
            }
        }
        set_payload(qp, Payload::Inline(bytes));
    }
}
