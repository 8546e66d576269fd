//! System calls that the safe wrappers in use lack.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// The descriptors of the calling process (`proc(5)`).
const DESCRIPTORS: &str = "/proc/self/fd";
/// First descriptor after the standard ones.
const FIRST_OTHER_FD: libc::c_uint = 3;

/// Where it is not told how many descriptors there may be: as many as every process may have.
const FILES_UNKNOWN: u64 = 1024;

/// [`overflow_uid`] unless the kernel says otherwise.
const OVERFLOW_UID_DEFAULT: u32 = 65534;

/// 64 random bits.
///
/// # Panics
/// If the kernel has no random numbers, which it always has once it has booted.
pub(crate) fn random() -> u64 {
    getrandom::u64().expect("the kernel's random numbers")
}

/// Another descriptor of the same.
///
/// # Errors
/// `EMFILE`, `ENFILE`.
pub(crate) fn copy(fd: &OwnedFd) -> Result<OwnedFd, Errno> {
    fd.try_clone()
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))
}

/// How many descriptors the process may have.
pub fn files_max() -> u64 {
    match getrlimit(Resource::Nofile).current {
        // A process without any would not be here: a sandbox refuses the question (prlimit64).
        Some(0) => FILES_UNKNOWN,
        files => files.unwrap_or(u64::MAX),
    }
}

/// What the system says of a call that it refuses, with the call's name.
pub fn refused<E: Into<std::io::Error>>(call: &'static str) -> impl Fn(E) -> std::io::Error {
    move |error| {
        let error = error.into();
        std::io::Error::new(error.kind(), format!("{call}: {error}"))
    }
}

/// The user that stands for users unknown to this user namespace
/// (`/proc/sys/kernel/overflowuid`).
pub fn overflow_uid() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(OVERFLOW_UID_DEFAULT)
}

/// Has a program start with no signal blocked: this process blocks those that it reads from a
/// descriptor ([`causeway_fabric::sys::termination_fd`]), and the standard library passes the mask
/// on.
pub fn unblock_signals_of(command: &mut Command) {
    // SAFETY: what runs between fork and exec calls functions that are async-signal-safe
    // (signal-safety(7)) on memory of its own, and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            let mut none = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            // It fails for an invalid first argument alone.
            libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
            Ok(())
        });
    }
}

/// Marks every descriptor above the standard ones close-on-exec, so that a daemon does not keep
/// its starter's pipes, sockets and files open.
///
/// Where the kernel cannot do that in one call (before Linux 5.11: `ENOSYS`, `EINVAL`), or a
/// sandbox refuses the call, each of the descriptors in `/proc/self/fd` is marked.
///
/// # Errors
/// What keeps `/proc/self/fd` from being read.
pub fn close_others_on_exec() -> std::io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // By number: the C library has a function for it from 2.34 on.
    // SAFETY: sets a flag of descriptors; closes none, so no owner of one is deceived.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST_OTHER_FD,
            libc::c_uint::MAX,
            flags,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        mark_each_close_on_exec()
    }
}

fn mark_each_close_on_exec() -> std::io::Result<()> {
    for entry in std::fs::read_dir(DESCRIPTORS)? {
        let name = entry?.file_name();
        let number: Option<u32> = name.to_str().and_then(|name| name.parse().ok());
        let Some(number) = number.filter(|&number| number >= FIRST_OTHER_FD) else {
            continue;
        };
        // SAFETY: sets the only flag of a descriptor, if it is still one; closes none.
        unsafe { libc::fcntl(number.cast_signed(), libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// A descriptor that this process was started with, by its number.
///
/// # Errors
/// `EBADF` if it was not.
pub fn inherited_fd(number: i32) -> std::io::Result<OwnedFd> {
    // SAFETY: asks for a descriptor's flags; EBADF is the answer if there is none.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } == -1 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: it is open, and nothing else here owns it: the caller names each once, before
    // this process has opened any of its own.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Room for the strings of an entry of the user or group database, its members among them.
const ENTRY_BYTES: usize = 1 << 20;

/// `getpwnam_r(3)`, `getgrnam_r(3)`: name, entry, room for its strings, where the entry was put.
type LookUp<T> = unsafe extern "C" fn(
    *const libc::c_char,
    *mut T,
    *mut libc::c_char,
    libc::size_t,
    *mut *mut T,
) -> libc::c_int;

/// The number of a user, by its name.
pub fn user_number(name: &str) -> Option<u32> {
    // SAFETY: the function has the contract asked for.
    unsafe { with_entry(libc::getpwnam_r, name, |entry| entry.pw_uid) }
}

/// The number of a group, by its name.
pub fn group_number(name: &str) -> Option<u32> {
    // SAFETY: the function has the contract asked for.
    unsafe { with_entry(libc::getgrnam_r, name, |entry| entry.gr_gid) }
}

/// What `f` makes of the entry of a name.
///
/// # Safety
/// `look_up` is one of the functions that [`LookUp`] names.
unsafe fn with_entry<T>(look_up: LookUp<T>, name: &str, f: impl FnOnce(&T) -> u32) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut strings = vec![0; ENTRY_BYTES];
    let mut entry = MaybeUninit::<T>::uninit();
    let mut found = std::ptr::null_mut();
    let place = entry.as_mut_ptr();
    // SAFETY: the name, the entry, the buffer of the length given and the result's place live for
    // the call, and nobody else has them.
    let result = unsafe {
        look_up(
            name.as_ptr(),
            place,
            strings.as_mut_ptr(),
            strings.len(),
            &raw mut found,
        )
    };
    if result != 0 || found.is_null() {
        return None;
    }
    // SAFETY: the call has found the name, and then has written the whole entry.
    Some(f(unsafe { entry.assume_init_ref() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn descriptors_are_marked_one_by_one_too() {
        use rustix::io::{FdFlags, dup, fcntl_getfd};
        for mark in [close_others_on_exec, mark_each_close_on_exec] {
            // Without the flag, as a starter's are.
            let inherited = dup(std::io::stderr().as_fd()).unwrap();
            mark().unwrap();
            assert_eq!(fcntl_getfd(&inherited).unwrap(), FdFlags::CLOEXEC);
        }
    }
}
