//! sysfs helpers that old programs call: `ibv_get_sysfs_path`, `ibv_read_sysfs_file`.

use crate::errno;
use core::ffi::{CStr, c_char, c_int};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// `ibv_get_sysfs_path`
pub(crate) extern "C" fn get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: the length read into `buffer` as a string without its newline, or -1 with
/// `errno`
pub(crate) unsafe extern "C" fn read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the caller passes strings.
    let part = |s| OsString::from_vec(unsafe { CStr::from_ptr(s) }.to_bytes().to_vec());
    let path = PathBuf::from(part(dir)).join(part(file));
    let limit = size.saturating_sub(1);
    let mut text = Vec::new();
    let read = File::open(path).and_then(|f| f.take(limit as u64).read_to_end(&mut text));
    if let Err(error) = read {
        return errno::minus_one(error.raw_os_error().unwrap_or(libc::EIO));
    }
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    if size > 0 {
        // SAFETY: the caller passes `size` bytes; the text is shorter than that by one at least.
        unsafe {
            buffer.cast::<u8>().copy_from(text.as_ptr(), text.len());
            buffer.add(text.len()).write(0);
        }
    }
    c_int::try_from(text.len()).unwrap_or(c_int::MAX)
}
