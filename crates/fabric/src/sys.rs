//! System calls that the safe wrappers in use lack.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::io::Errno;

/// `SO_NETNS_COOKIE` (Linux 5.14), which older C libraries do not name.
const SO_NETNS_COOKIE: libc::c_int = 71;
/// `SO_PEERGROUPS` (Linux 4.13).
const SO_PEERGROUPS: libc::c_int = 59;
/// Most supplementary groups of a process (`NGROUPS_MAX`, `credentials(7)`).
const GROUPS_MAX: usize = 65_536;
/// `SO_PEERPIDFD` (Linux 6.5).
const SO_PEERPIDFD: libc::c_int = 77;
/// `NS_GET_NSTYPE`, `_IO(0xb7, 3)` (`ioctl_ns(2)`, Linux 4.11).
const NS_GET_NSTYPE: u64 = 0xb703;

/// Reads an integer socket option of level `SOL_SOCKET`.
fn socket_option<T: Copy + Default>(socket: impl AsFd, option: libc::c_int) -> Result<T, Errno> {
    let mut value = T::default();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` and `length` are live and writable for the call, and `length` is the size
    // of `value`; the kernel writes no more. Callers instantiate T
    // with integers and arrays of them only, of which any bytes are a value.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(last_error());
    }
    if length as usize != size_of::<T>() {
        return Err(Errno::INVAL);
    }
    Ok(value)
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The cookie of the network namespace a socket was made in: never 0, never used again while the
/// kernel runs.
///
/// # Errors
/// `ENOTSOCK`, or `ENOPROTOOPT` before Linux 5.14.
pub fn netns_cookie(socket: impl AsFd) -> Result<u64, Errno> {
    socket_option::<u64>(socket, SO_NETNS_COOKIE)
}

/// The kind of a namespace, as the flag of `clone(2)` that makes one of it. To be asked of what is
/// known to be a namespace: a file system would answer for its own files.
///
/// # Errors
/// `ENOTTY` for what is none, `EBADF` for a descriptor by `O_PATH`.
pub fn namespace_kind(fd: impl AsFd) -> Result<libc::c_int, Errno> {
    // SAFETY: the request has no argument, and does nothing but answer.
    let kind = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), NS_GET_NSTYPE) };
    if kind < 0 {
        Err(last_error())
    } else {
        Ok(kind)
    }
}

/// The peer that connected a Unix socket: process and user, as this process's namespaces name them
/// (process 0 means that it can't be named here, which `rustix` has no value for).
///
/// # Errors
/// `ENOTSOCK`.
pub fn peer_credentials(socket: impl AsFd) -> Result<(i32, u32), Errno> {
    // struct ucred (unix(7)): pid, uid, gid, 32 bits each.
    let [pid, uid, _gid] = socket_option::<[u32; 3]>(socket, libc::SO_PEERCRED)?;
    Ok((pid.cast_signed(), uid))
}

/// The groups of the peer that connected a Unix socket: the supplementary ones and the primary one
/// (`SO_PEERGROUPS`, Linux 4.13).
///
/// # Errors
/// `ENOTSOCK`.
pub fn peer_groups(socket: impl AsFd) -> Result<Vec<u32>, Errno> {
    let [_pid, _uid, gid] = socket_option::<[u32; 3]>(&socket, libc::SO_PEERCRED)?;
    let mut groups = vec![0u32; GROUPS_MAX];
    let mut length = size_of_val(groups.as_slice()) as libc::socklen_t;
    // SAFETY: `groups` and `length` are live and writable for the call, and `length` is the size
    // of `groups` in bytes; the kernel writes no more.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(last_error());
    }
    groups.truncate(length as usize / size_of::<u32>());
    groups.push(gid);
    Ok(groups)
}

/// A pidfd of the process that connected a Unix socket; it can't name a later process that got
/// the same number.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.5, `ESRCH` or `EINVAL` if the process is gone.
pub fn peer_pidfd(socket: impl AsFd) -> Result<OwnedFd, Errno> {
    let raw = socket_option::<libc::c_int>(socket, SO_PEERPIDFD)?;
    // SAFETY: the kernel has just made this descriptor for us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// The file this code was loaded from: a shared library's path, or the program's.
pub fn own_object() -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the address is one of our own functions; dladdr writes all of `info` if it succeeds.
    let found = unsafe { libc::dladdr(own_object as *const libc::c_void, info.as_mut_ptr()) };
    if found == 0 {
        return None;
    }
    // SAFETY: dladdr succeeded, hence `info` is written and dli_fname is a C string that lives as
    // long as the object that this code runs in.
    let name = unsafe { CStr::from_ptr(info.assume_init().dli_fname) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_one_namespace_share_a_cookie() {
        let a = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let b = std::os::unix::net::UnixStream::pair().unwrap().0;
        let cookie = netns_cookie(&a).unwrap();
        assert_ne!(cookie, 0);
        assert_eq!(netns_cookie(&b), Ok(cookie));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(netns_cookie(&file), Err(Errno::NOTSOCK));
    }

    #[test]
    fn the_groups_of_a_peer_are_its_own() {
        let pair = std::os::unix::net::UnixStream::pair().unwrap();
        let groups = peer_groups(&pair.0).unwrap();
        assert!(groups.contains(&rustix::process::getegid().as_raw()));
        let supplementary = rustix::process::getgroups().unwrap();
        assert!(
            supplementary
                .iter()
                .all(|gid| groups.contains(&gid.as_raw()))
        );
        assert_eq!(groups.len(), supplementary.len() + 1);
    }

    #[test]
    fn this_code_knows_its_file() {
        assert!(own_object().unwrap().exists());
    }
}
