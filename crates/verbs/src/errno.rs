//! The three ways in which verbs report an error: a positive `errno` value, -1 with `errno` set,
//! and a null pointer with `errno` set.

use causeway_device::Errno;
use core::ffi::c_int;
use core::ptr;

/// Sets the calling thread's `errno`.
pub(crate) fn set(code: c_int) {
    // SAFETY: glibc returns the address of the calling thread's errno, always valid to write.
    unsafe { *libc::__errno_location() = code };
}

/// Success as 0, an error as its positive value; `errno` is set as well, which callers that print
/// with perror(3) rely on.
pub(crate) fn code(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(Errno(code)) => fail(code),
    }
}

/// Sets `errno` and returns it.
pub(crate) fn fail(code: c_int) -> c_int {
    set(code);
    code
}

/// Sets `errno` and returns -1.
pub(crate) fn minus_one(code: c_int) -> c_int {
    set(code);
    -1
}

/// Sets `errno` and returns a null pointer.
pub(crate) fn null<T>(code: c_int) -> *mut T {
    set(code);
    ptr::null_mut()
}

/// The pointer, or null with `errno` set.
pub(crate) fn pointer<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|Errno(code)| null(code))
}
