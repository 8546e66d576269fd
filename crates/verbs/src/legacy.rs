//! The `IBVERBS_1.0` names. Their structures are those of libibverbs 1.0 (2006): no `next`-second
//! work requests, no `comp_channel` in the CQ, a context without a mutex. No device is offered to
//! such a program, so none of the other calls can be given an object; they fail with `ENOSYS`.
//!
//! A program linked without symbol versions binds to these names too, and sees a machine without
//! devices instead of objects of the wrong shape.

use crate::errno;
use core::ffi::{c_int, c_void};

/// `ibv_get_device_list@IBVERBS_1.0`
pub(crate) unsafe extern "C" fn no_devices(count: *mut c_int) -> *mut c_void {
    if !count.is_null() {
        // SAFETY: the caller passes null or a valid pointer to int (ibv_get_device_list(3)).
        unsafe { count.write(0) };
    }
    errno::null(libc::ENOSYS)
}

/// Calls that return a pointer.
pub(crate) extern "C" fn null() -> *mut c_void {
    errno::null(libc::ENOSYS)
}

/// Calls that return an `errno` value.
pub(crate) extern "C" fn enosys() -> c_int {
    errno::fail(libc::ENOSYS)
}

/// Calls that return -1 and set `errno`.
pub(crate) extern "C" fn minus_one() -> c_int {
    errno::minus_one(libc::ENOSYS)
}
