//! The C library's own definitions of functions that `libsisci.so` exports, too.

use core::ffi::{CStr, c_void};

/// The definition behind this library's in the order in which the program's loader searches
/// (dlsym(3)), or else the C library's: a program that has this library for another one's sake
/// finds the C library first, and nothing behind this library. Null where there is none. Not for
/// handlers of signals.
pub(crate) fn find(name: &CStr) -> *mut c_void {
    // SAFETY: a name that ends with a zero; the call is made from this library.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !next.is_null() {
        return next;
    }
    // SAFETY: names that end with a zero. Nothing is loaded: what the handle names is there as long
    // as the process.
    unsafe {
        let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return next;
        }
        libc::dlsym(library, name.as_ptr())
    }
}
