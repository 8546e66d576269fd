//! Calls that the device does not serve. One function stands for many symbols: arguments are in
//! registers or on the caller's stack, and nothing here looks at them.

use crate::errno;
use core::ffi::{c_int, c_long, c_void};

/// For calls that return an `errno` value.
pub(crate) extern "C" fn unsupported() -> c_int {
    errno::fail(libc::EOPNOTSUPP)
}

/// For calls that return a pointer.
pub(crate) extern "C" fn null() -> *mut c_void {
    errno::null(libc::EOPNOTSUPP)
}

/// For calls that return a descriptor or a length.
pub(crate) extern "C" fn minus_one() -> c_long {
    errno::set(libc::EOPNOTSUPP);
    -1
}

/// For calls that return nothing and have nothing to do, such as a provider's registration.
pub(crate) extern "C" fn ignore() {}

/// For calls that return a count or an identifier of nothing.
pub(crate) extern "C" fn zero() -> u64 {
    0
}
