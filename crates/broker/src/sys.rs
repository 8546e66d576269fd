//! System calls that the safe wrappers in use lack.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};

/// First descriptor after the standard ones.
const FIRST_OTHER_FD: libc::c_uint = 3;

/// Marks every descriptor above the standard ones close-on-exec, so that a daemon does not keep
/// its starter's pipes, sockets and files open.
///
/// # Errors
/// `ENOSYS` before Linux 5.11.
pub fn close_others_on_exec() -> std::io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
    // SAFETY: sets a flag of descriptors; closes none, so no owner of one is deceived.
    let result = unsafe { libc::close_range(FIRST_OTHER_FD, libc::c_uint::MAX, flags) };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Blocks SIGTERM and SIGINT for the calling thread and returns a descriptor that is readable
/// when one is pending (`signalfd(2)`). To be called before any other thread exists.
///
/// # Errors
/// `EMFILE`, `ENFILE`.
pub fn termination_fd() -> std::io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises `set`; the signal numbers are valid; the pointers live for
    // the calls; a null old-set pointer is allowed. The descriptor that signalfd returns is new
    // and nobody else knows it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        let failed = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        if failed != 0 {
            return Err(std::io::Error::from_raw_os_error(failed));
        }
        let fd = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Room for the strings of an entry of the user or group database, its members among them.
const ENTRY_BYTES: usize = 1 << 20;

/// The number of a user, by its name.
pub fn user_number(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut strings = vec![0; ENTRY_BYTES];
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut found = std::ptr::null_mut();
    // SAFETY: the name, the entry, the buffer of the length given and the result's place live for
    // the call, and nobody else has them.
    let result = unsafe {
        libc::getpwnam_r(
            name.as_ptr(),
            entry.as_mut_ptr(),
            strings.as_mut_ptr(),
            strings.len(),
            &raw mut found,
        )
    };
    if result != 0 || found.is_null() {
        return None;
    }
    // SAFETY: the call has found the name, and then has written the whole entry.
    Some(unsafe { entry.assume_init() }.pw_uid)
}

/// The number of a group, by its name.
pub fn group_number(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut strings = vec![0; ENTRY_BYTES];
    let mut entry = MaybeUninit::<libc::group>::uninit();
    let mut found = std::ptr::null_mut();
    // SAFETY: as in `user_number`.
    let result = unsafe {
        libc::getgrnam_r(
            name.as_ptr(),
            entry.as_mut_ptr(),
            strings.as_mut_ptr(),
            strings.len(),
            &raw mut found,
        )
    };
    if result != 0 || found.is_null() {
        return None;
    }
    // SAFETY: as in `user_number`.
    Some(unsafe { entry.assume_init() }.gr_gid)
}
