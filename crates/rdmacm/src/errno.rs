//! How calls report errors: -1, or a null pointer, with `errno` set.

use core::ffi::c_int;
use core::ptr;
use std::io;

use causeway_cancel::CANCELLED;

/// An `errno` value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

/// What calls return.
pub(crate) type Result<T> = core::result::Result<T, Errno>;

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Errno(errno.raw_os_error())
    }
}

/// The error that a verb has left in `errno`.
pub(crate) fn last() -> Errno {
    // SAFETY: glibc returns the address of the calling thread's errno, always valid to read.
    match unsafe { *libc::__errno_location() } {
        0 => Errno(libc::EIO),
        code => Errno(code),
    }
}

/// Sets the calling thread's `errno`.
pub(crate) fn set(code: c_int) {
    // SAFETY: glibc returns the address of the calling thread's errno, always valid to write.
    unsafe { *libc::__errno_location() = code };
}

/// 0, or -1 with `errno` set; [`CANCELLED`] ends the thread.
pub(crate) fn code(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(Errno(CANCELLED)) => CANCELLED,
        Err(Errno(code)) => {
            set(code);
            -1
        }
    }
}

/// The pointer, or null with `errno` set.
pub(crate) fn pointer<T>(result: Result<*mut T>) -> *mut T {
    result.unwrap_or_else(|Errno(code)| {
        set(code);
        ptr::null_mut()
    })
}

/// The error for what is not offered.
pub(crate) const NOT_OFFERED: Errno = Errno(libc::EOPNOTSUPP);
/// The error for bad arguments, and calls in the wrong state.
pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
