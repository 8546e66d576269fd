//! Memory windows: `ibv_alloc_mw(3)`, `ibv_bind_mw(3)`.

use crate::abi::{IbvMw, IbvMwBind, IbvMwBindInfo, IbvPd, IbvQp, mw_type};
use crate::objects::{self, MwObject};
use crate::{errno, live, pd};
use causeway_device::{Errno, WindowType};
use causeway_proto::types::{Access, Binding, Payload, SendFlags, SendOp, SendWr};
use core::ffi::c_int;

/// The part of a key that changes with each binding (`ibv_inc_rkey`).
const KEY_BYTE: u32 = 0xff;

/// `ibv_alloc_mw(3)`
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut IbvPd, window: c_int) -> *mut IbvMw {
    let window = match window.cast_unsigned() {
        mw_type::ONE => WindowType::One,
        mw_type::TWO => WindowType::Two,
        _ => return errno::null(libc::EINVAL),
    };
    // SAFETY: the caller passes a live PD.
    let (owner, context) = unsafe { (objects::pd(pd), (*pd).context) };
    let created = owner.dev.alloc_mw(window).map(|dev| MwObject {
        mw: IbvMw {
            context,
            pd,
            rkey: dev.first_key(),
            handle: dev.first_key(),
            mw_type: match window {
                WindowType::One => mw_type::ONE,
                WindowType::Two => mw_type::TWO,
            },
        },
        dev,
    });
    errno::pointer(created.map(|object| {
        // SAFETY: the caller's promise.
        unsafe { pd::add_user(pd) };
        objects::publish(objects::allocate(), object).cast()
    }))
}

/// `ibv_dealloc_mw(3)`
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut IbvMw) -> c_int {
    if !live::is(mw.cast::<MwObject>()) {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the caller passes a window it allocated, of a context still open.
    let (object, owner) = unsafe { (objects::mw(mw), objects::context((*mw).context)) };
    if owner.is_inherited() {
        return 0;
    }
    let result = object.dev.dealloc();
    if result.is_ok() {
        // SAFETY: published by alloc_mw(); the caller gives it up. Its PD outlives it.
        unsafe {
            pd::drop_user((*mw).pd);
            objects::retire(mw.cast::<MwObject>());
        }
    }
    errno::code(result)
}

/// The device's form of what a window is bound to.
///
/// # Safety
/// `mw` is a live window; the region of `info` is live or null.
pub(crate) unsafe fn binding(mw: *mut IbvMw, info: &IbvMwBindInfo) -> Binding {
    // SAFETY: the caller's promise.
    let (window, region) = unsafe { ((*mw).handle, info.mr.as_ref()) };
    Binding {
        window,
        region: region.map(|mr| mr.lkey),
        access: Access::from_bits_truncate(info.mw_access_flags),
        addr: info.addr,
        len: info.length,
    }
}

/// The key that a window has after it is bound with a key of the program's choice: of that only the
/// low byte counts (`ibv_post_send(3)`; the kernel's rxe).
///
/// # Safety
/// `mw` is a live window.
pub(crate) unsafe fn key(mw: *const IbvMw, chosen: u32) -> u32 {
    // SAFETY: the caller's promise.
    let handle = unsafe { (*mw).handle };
    (handle & !KEY_BYTE) | (chosen & KEY_BYTE)
}

/// Whether a window is bound by a work request of the program's own: type 2 is, type 1 by
/// `ibv_bind_mw(3)`.
///
/// # Safety
/// `mw` is null or a live window.
pub(crate) unsafe fn is_posted(mw: *const IbvMw) -> bool {
    // SAFETY: the caller's promise.
    unsafe { mw.as_ref() }.is_some_and(|mw| mw.mw_type == mw_type::TWO)
}

/// `ibv_bind_mw(3)`, of which the header's inline function has checked type and domains.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut IbvQp,
    mw: *mut IbvMw,
    bind: *mut IbvMwBind,
) -> c_int {
    // SAFETY: the caller passes live objects and a valid structure.
    let (object, window, bind) = unsafe { (objects::qp(qp), &mut *mw, &*bind) };
    let flags = SendFlags::from_bits(bind.send_flags);
    let allowed = SendFlags::FENCE | SendFlags::SIGNALED;
    let Some(flags) = flags.filter(|flags| allowed.contains(*flags)) else {
        return errno::fail(libc::EINVAL);
    };
    // SAFETY: the caller's promise.
    let rkey = unsafe { key(window, window.rkey.wrapping_add(1)) };
    let request = SendWr {
        wr_id: bind.wr_id,
        op: SendOp::BindMw(rkey),
        flags,
        // SAFETY: the caller's promise.
        payload: Payload::Window(unsafe { binding(mw, &bind.bind_info) }),
    };
    let posted = object.dev.post_send_list(core::iter::once(Ok(request)));
    match posted {
        Ok(()) => {
            window.rkey = rkey;
            0
        }
        Err((_, Errno(code))) => errno::fail(code),
    }
}
