//! Calls that fail. One function stands for many symbols: arguments are in registers or on the
//! caller's stack, and nothing here looks at them.

use core::ffi::{c_int, c_long, c_void};
use core::ptr;

fn set_errno() {
    // SAFETY: glibc returns the address of the calling thread's errno, always valid to write.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
}

/// Calls that return int.
pub(crate) extern "C" fn minus_one() -> c_int {
    set_errno();
    -1
}

/// Calls that return `ssize_t`, `size_t` or `off_t`.
pub(crate) extern "C" fn minus_one_long() -> c_long {
    set_errno();
    -1
}

/// `rdma_create_event_channel(3)`
pub(crate) extern "C" fn null() -> *mut c_void {
    set_errno();
    ptr::null_mut()
}

/// `rdma_get_devices(3)`
pub(crate) unsafe extern "C" fn no_devices(count: *mut c_int) -> *mut c_void {
    if !count.is_null() {
        // SAFETY: the caller passes null or a valid pointer to int.
        unsafe { count.write(0) };
    }
    null()
}

/// `rdma_get_src_port(3)`, `rdma_get_dst_port(3)`: 0, not bound
pub(crate) extern "C" fn zero() -> u16 {
    0
}

/// Calls that free what no other call can have made.
pub(crate) extern "C" fn ignore() {}
