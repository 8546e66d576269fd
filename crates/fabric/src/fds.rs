//! Checks of descriptors that came from another process.
//!
//! Order matters: the first question about a descriptor is one that the kernel answers without
//! asking a file system, since a descriptor of a FUSE mount would let its owner stall us.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use causeway_identity::Slot;
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals,
    fcntl_getfl, fstat, fstatfs, memfd_create,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrAny, SocketType, getsockname, sockopt};

use crate::sys::{namespace_kind, netns_cookie};

/// Seals without which a memfd is refused: nobody can shrink it under a mapping (SIGBUS), grow it
/// or add seals that would break its users.
pub const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);
/// Seals that would make a segment useless to its writer.
const FORBIDDEN_SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::FUTURE_WRITE);
/// `f_type` of memory in huge pages (`statfs(2)`).
const HUGETLBFS_MAGIC: libc::__fsword_t = 0x9584_58f6;
/// Mode of what only the broker may open.
const PRIVATE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Creates a memfd of `bytes` zero bytes with [`SEALS`].
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`, `EFBIG` beyond RLIMIT_FSIZE.
pub fn sealed_memfd(name: &str, bytes: u64) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know NOEXEC_SEAL; later ones may insist on it.
        Err(Errno::INVAL) => memfd_create(name, flags)?,
        made => made?,
    };
    causeway_shm::segment::set_size(&fd, bytes)?;
    fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// Checks that `fd` is a memfd with [`SEALS`], writable, in ordinary pages (huge ones may run out
/// under a mapping), of `size` bytes.
///
/// # Errors
/// `EINVAL` if any of this does not hold.
pub fn check_memfd(fd: impl AsFd, size: u64) -> Result<(), Errno> {
    let seals = fcntl_get_seals(&fd).map_err(|_| Errno::INVAL)?;
    if !seals.contains(SEALS) || seals.intersects(FORBIDDEN_SEALS) {
        return Err(Errno::INVAL);
    }
    let ordinary = fstatfs(&fd)?.f_type == libc::TMPFS_MAGIC;
    if ordinary && u64::try_from(fstat(&fd)?.st_size) == Ok(size) {
        Ok(())
    } else {
        Err(Errno::INVAL)
    }
}

/// Creates a memfd as [`sealed_memfd`] does, which only processes of this user may open again
/// through `/proc`, whatever descriptor of it they hold. That makes [`reopen`]ed descriptors
/// binding for others.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn private_memfd(name: &str, bytes: u64) -> Result<OwnedFd, Errno> {
    let fd = sealed_memfd(name, bytes)?;
    fchmod(&fd, PRIVATE_MODE)?;
    Ok(fd)
}

/// Creates a memfd as [`private_memfd`] does, in huge pages, all of which are taken from the
/// system's reserve now. A process that can write can give them back: they are for processes that
/// trust each other.
///
/// # Errors
/// `ENOSPC` or `ENOMEM` if the reserve is too small, `EINVAL` or `ENOSYS` without huge pages.
pub fn huge_memfd(name: &str, bytes: u64) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let fd = memfd_create(name, flags | MemfdFlags::HUGE_2MB)?;
    causeway_shm::segment::set_size(&fd, bytes)?;
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes)?;
    fcntl_add_seals(&fd, SEALS)?;
    fchmod(&fd, PRIVATE_MODE)?;
    Ok(fd)
}

/// Whether a descriptor's memory is in huge pages.
pub fn is_huge(fd: impl AsFd) -> bool {
    fstatfs(fd).is_ok_and(|stat| stat.f_type == HUGETLBFS_MAGIC)
}

/// Checks that `fd` is what [`private_memfd`] makes when the user `owner` runs it, open for reading
/// and writing.
///
/// # Errors
/// `EINVAL` if any of this does not hold.
pub fn check_private_memfd(fd: impl AsFd, size: u64, owner: u32) -> Result<(), Errno> {
    check_memfd(&fd, size)?;
    // A descriptor for reading proves no right to write, and must not be traded for one.
    let both_ways = fcntl_getfl(&fd)? & OFlags::ACCMODE == OFlags::RDWR;
    let stat = fstat(&fd)?;
    let private = Mode::from_raw_mode(stat.st_mode) == PRIVATE_MODE;
    if both_ways && private && stat.st_uid == owner {
        Ok(())
    } else {
        Err(Errno::INVAL)
    }
}

/// The rest of the name of a memfd that a process of the user `owner` made as [`private_memfd`]
/// does, after `prefix`; `None` if it is anything else. A process of another user can't make one,
/// so the name says what its owner's word is worth. The descriptor may be open for reading only.
pub fn private_memfd_name(fd: impl AsFd, owner: u32, prefix: &str) -> Option<String> {
    if fstatfs(&fd).ok()?.f_type != libc::TMPFS_MAGIC {
        return None;
    }
    any_private_memfd_name(fd, owner, prefix)
}

/// As [`private_memfd_name`], also of a memfd in huge pages ([`huge_memfd`]).
pub fn any_private_memfd_name(fd: impl AsFd, owner: u32, prefix: &str) -> Option<String> {
    let seals = fcntl_get_seals(&fd).ok()?;
    let stat = fstat(&fd).ok()?;
    let private = Mode::from_raw_mode(stat.st_mode) == PRIVATE_MODE;
    if !seals.contains(SEALS) || seals.intersects(FORBIDDEN_SEALS) {
        return None;
    }
    let kind = fstatfs(&fd).ok()?.f_type;
    let memory = kind == libc::TMPFS_MAGIC || kind == HUGETLBFS_MAGIC;
    if !private || stat.st_uid != owner || !memory {
        return None;
    }
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let target = rustix::fs::readlink(link, Vec::new()).ok()?;
    let name = target.to_str().ok()?.strip_prefix("/memfd:")?;
    let name = name.strip_suffix(" (deleted)")?.strip_prefix(prefix)?;
    Some(name.to_owned())
}

/// Another open file of the same memfd, for reading, or for reading and writing. Unlike a duplicate
/// it shares no flags or offset with `fd`.
///
/// # Errors
/// `EACCES` if the memfd belongs to another user, `EMFILE`, `ENFILE`, `ENOENT` without `/proc`.
pub fn reopen(fd: impl AsFd, writable: bool) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let way = if writable {
        OFlags::RDWR
    } else {
        OFlags::RDONLY
    };
    rustix::fs::open(path, way | OFlags::CLOEXEC, Mode::empty())
}

/// Checks that `fd` is an eventfd.
///
/// # Errors
/// `EINVAL` if it is not; `ENOENT` if `/proc` is not mounted, which is how eventfds are known.
pub fn check_eventfd(fd: impl AsFd) -> Result<(), Errno> {
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let target = rustix::fs::readlink(link, Vec::new())?;
    if target.to_bytes() == b"anon_inode:[eventfd]" {
        Ok(())
    } else {
        Err(Errno::INVAL)
    }
}

/// This process's PID namespace: a process that has a descriptor of it is inside, may trace a
/// process that is, or was given it by one. `None` without `/proc`.
pub fn own_pid_namespace() -> Option<OwnedFd> {
    let way = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open("/proc/self/ns/pid", way, Mode::empty()).ok()
}

/// Checks that `fd` is a PID namespace; returns device and inode, by which it is known as long as
/// a descriptor of it is open.
///
/// # Errors
/// `EINVAL` if it is not; `ENOENT` if `/proc` is not mounted, which is how namespaces are known.
pub fn check_pid_namespace(fd: impl AsFd) -> Result<(u64, u64), Errno> {
    // The name of anything in a file system begins with a slash, whatever its server says.
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let target = rustix::fs::readlink(link, Vec::new())?;
    if !target.to_bytes().starts_with(b"pid:[") {
        return Err(Errno::INVAL);
    }
    if namespace_kind(&fd) != Ok(libc::CLONE_NEWPID) {
        return Err(Errno::INVAL);
    }
    let found = fstat(&fd)?;
    Ok((found.st_dev, found.st_ino))
}

/// Whether a descriptor is of a kind that clients have to send. The kernel closes all of those at
/// once: memory, eventfds, PID namespaces, sockets that wait for nobody. To close others may take
/// as long as their file system, or a peer, likes (`FUSE_FLUSH`; `SO_LINGER` of socket(7)).
pub fn closes_at_once(fd: &OwnedFd) -> bool {
    // Only memory has seals.
    if fcntl_get_seals(fd).is_ok() {
        return true;
    }
    match sockopt::socket_domain(fd) {
        Ok(AddressFamily::UNIX) => true,
        Ok(AddressFamily::INET | AddressFamily::INET6) => {
            sockopt::socket_type(fd) == Ok(SocketType::DGRAM)
        }
        Ok(_) => false,
        Err(_) => check_eventfd(fd).is_ok() || check_pid_namespace(fd).is_ok(),
    }
}

/// Checks that `fd` is a UDP socket bound to the port of `slot`; returns the cookie of its
/// network namespace, if the kernel has cookies (from Linux 5.14 on).
///
/// # Errors
/// `EINVAL` if it is not.
pub fn check_slot_socket(fd: impl AsFd, slot: Slot) -> Result<Option<u64>, Errno> {
    let cookie = match netns_cookie(&fd) {
        Ok(cookie) => Some(cookie),
        Err(Errno::NOPROTOOPT) => None,
        Err(Errno::NOTSOCK) => return Err(Errno::INVAL),
        Err(error) => return Err(error),
    };
    let domain = sockopt::socket_domain(&fd)?;
    let udp = sockopt::socket_protocol(&fd)? == Some(rustix::net::ipproto::UDP);
    let ip = domain == AddressFamily::INET || domain == AddressFamily::INET6;
    if !ip || !udp || sockopt::socket_type(&fd)? != SocketType::DGRAM {
        return Err(Errno::INVAL);
    }
    if bound_port(getsockname(&fd)?) != Some(slot.port()) {
        return Err(Errno::INVAL);
    }
    Ok(cookie)
}

fn bound_port(address: SocketAddrAny) -> Option<u16> {
    std::net::SocketAddr::try_from(address)
        .ok()
        .map(|address| address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn only_sealed_memfds_of_the_right_size_pass() {
        let good = sealed_memfd("t", 8192).unwrap();
        assert_eq!(check_memfd(&good, 8192), Ok(()));
        assert_eq!(check_memfd(&good, 4096), Err(Errno::INVAL));
        let open = memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, 8192).unwrap();
        assert_eq!(check_memfd(&open, 8192), Err(Errno::INVAL));
        fcntl_add_seals(&open, SEALS | SealFlags::FUTURE_WRITE).unwrap();
        assert_eq!(check_memfd(&open, 8192), Err(Errno::INVAL));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(check_memfd(&null, 0), Err(Errno::INVAL));
    }

    #[test]
    fn a_private_memfd_is_known_by_every_one_of_its_properties() {
        let own = rustix::process::geteuid().as_raw();
        let good = private_memfd("t", 8192).unwrap();
        assert_eq!(check_private_memfd(&good, 8192, own), Ok(()));
        let refused = Err(Errno::INVAL);
        assert_eq!(check_private_memfd(&good, 4096, own), refused);
        assert_eq!(check_private_memfd(&good, 8192, own + 1), refused);
        let open = sealed_memfd("t", 8192).unwrap();
        assert_eq!(check_private_memfd(&open, 8192, own), refused, "mode");
        let unsealed = memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 8192).unwrap();
        fchmod(&unsealed, PRIVATE_MODE).unwrap();
        assert_eq!(check_private_memfd(&unsealed, 8192, own), refused);
        let reader = reopen(&good, false).unwrap();
        assert_eq!(check_private_memfd(&reader, 8192, own), refused, "way");
        assert_eq!(
            rustix::io::write(&reader, b"x"),
            Err(Errno::BADF),
            "a reader does not write"
        );
        let writer = reopen(&good, true).unwrap();
        assert_eq!(check_private_memfd(&writer, 8192, own), Ok(()));
        rustix::io::write(&writer, b"x").unwrap();
        let mut byte = [0];
        rustix::io::read(&reader, &mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }

    #[test]
    fn a_name_is_believed_of_the_broker_alone() {
        let own = rustix::process::geteuid().as_raw();
        let ticket = private_memfd("ticket:web:7", 0).unwrap();
        let rest = |fd, owner, prefix| private_memfd_name(fd, owner, prefix);
        assert_eq!(rest(&ticket, own, "ticket:web:").as_deref(), Some("7"));
        assert_eq!(rest(&ticket, own, "ticket:ftp:"), None);
        assert_eq!(rest(&ticket, own + 1, "ticket:web:"), None);
        let open = sealed_memfd("ticket:web:7", 0).unwrap();
        assert_eq!(rest(&open, own, "ticket:web:"), None, "mode");
        let null = std::fs::File::open("/dev/null").unwrap().into();
        assert_eq!(rest(&null, own, ""), None);
    }

    #[test]
    fn only_eventfds_pass_as_doorbells() {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert_eq!(check_eventfd(&bell), Ok(()));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(check_eventfd(&null), Err(Errno::INVAL));
        let other = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
        assert_eq!(check_eventfd(other.unwrap()), Err(Errno::INVAL));
    }

    #[test]
    fn only_pid_namespaces_pass_as_such() {
        let own = own_pid_namespace().unwrap();
        let known = check_pid_namespace(&own).unwrap();
        assert_eq!(check_pid_namespace(own_pid_namespace().unwrap()), Ok(known));
        let refused = |path: &str, way: OFlags| {
            let fd = rustix::fs::open(path, way | OFlags::CLOEXEC, Mode::empty()).unwrap();
            assert_eq!(check_pid_namespace(&fd), Err(Errno::INVAL), "{path}");
        };
        refused("/proc/self/ns/net", OFlags::RDONLY);
        refused("/proc/self/ns/pid", OFlags::PATH);
        refused("/proc/self/ns/pid", OFlags::PATH | OFlags::NOFOLLOW);
        // A file may have any name.
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("pid:[1]");
        std::fs::write(&name, b"").unwrap();
        refused(name.to_str().unwrap(), OFlags::RDONLY);
    }

    #[test]
    fn what_clients_send_closes_at_once() {
        use rustix::net::{SocketFlags, socketpair};
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let flags = SocketFlags::CLOEXEC;
        let (end, _) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let space = own_pid_namespace().unwrap();
        let memory = sealed_memfd("t", 4096).unwrap();
        for good in [bell, memory, udp.into(), end, space] {
            assert!(closes_at_once(&good));
        }
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let file = |path| OwnedFd::from(std::fs::File::open(path).unwrap());
        let path = OFlags::PATH | OFlags::CLOEXEC;
        let unopened = rustix::fs::open("/proc", path, Mode::empty()).unwrap();
        for bad in [
            tcp.into(),
            file("/proc/self/stat"),
            file("/dev/null"),
            unopened,
        ] {
            assert!(!closes_at_once(&bad));
        }
    }

    #[test]
    fn a_slot_is_proved_by_its_port() {
        let slot = Slot::new(4093).unwrap();
        let socket = std::net::UdpSocket::bind(("127.0.0.1", slot.port())).unwrap();
        assert!(check_slot_socket(&socket, slot).is_ok());
        assert_eq!(check_slot_socket(&socket, Slot::MIN), Err(Errno::INVAL));
        let tcp = std::net::TcpListener::bind(("127.0.0.1", slot.port())).unwrap();
        assert_eq!(check_slot_socket(&tcp, slot), Err(Errno::INVAL));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(check_slot_socket(&null, slot), Err(Errno::INVAL));
    }
}
