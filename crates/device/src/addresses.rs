//! The addresses of this network namespace (`getifaddrs(3)`), read again when they have changed.
//!
//! Reading them takes a dozen system calls, and each connection asks for them.

use std::cell::Cell;
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

/// For how long a thread is taken to stay in the network namespace in which it was seen.
const NAMESPACE_AGE: Duration = Duration::from_millis(1);
/// Groups of `rtnetlink(7)`: links, IPv4 and IPv6 addresses.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// An address of a network interface that is up.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub ip: IpAddr,
    pub ifname: String,
    pub ifindex: u32,
    pub loopback: bool,
}

/// The addresses as last read.
struct Known {
    /// Process and network namespace they were read in.
    place: (u32, u64),
    /// Tells of changes since.
    watch: OwnedFd,
    addresses: Arc<[Address]>,
    /// They have changed since, and could not be read again.
    stale: bool,
}

impl Known {
    /// The addresses as they are now, by `read` if they have changed. Where that fails, they are as
    /// they were, and are read again the next time: an address does not go because the program has
    /// no descriptor left.
    fn renewed(&mut self, read: impl FnOnce() -> Option<Vec<Address>>) -> Arc<[Address]> {
        if have_changed(&self.watch) || self.stale {
            let now = read();
            self.stale = now.is_none();
            if let Some(now) = now {
                self.addresses = now.into();
            }
        }
        Arc::clone(&self.addresses)
    }
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// The addresses as they are now.
pub(crate) fn addresses() -> Arc<[Address]> {
    let mut known = KNOWN.lock();
    let place = (std::process::id(), namespace());
    if let Some(known) = known.as_mut().filter(|known| known.place == place) {
        return known.renewed(read_addresses);
    }
    // Watched before they are read: no change is missed.
    let watch = watch();
    let read = read_addresses();
    let stale = read.is_none();
    let addresses: Arc<[Address]> = read.unwrap_or_default().into();
    *known = watch.ok().filter(|_| place.1 != 0).map(|watch| Known {
        place,
        watch,
        addresses: Arc::clone(&addresses),
        stale,
    });
    addresses
}

/// The network namespace of this thread, or 0 where it cannot be told: then nothing is kept. Looked
/// up again once in [`NAMESPACE_AGE`]: the look costs a connection a tenth of its time, and threads
/// that change their namespace while they connect are few.
fn namespace() -> u64 {
    thread_local! {
        static LOOKED: Cell<(u64, Option<Instant>)> = const { Cell::new((0, None)) };
    }
    let (known, since) = LOOKED.get();
    if since.is_some_and(|since| since.elapsed() < NAMESPACE_AGE) {
        return known;
    }
    let now = rustix::fs::stat("/proc/thread-self/ns/net").map_or(0, |found| found.st_ino);
    LOOKED.set((now, Some(Instant::now())));
    now
}

/// Tells of changes of interfaces and addresses.
#[derive(Debug)]
pub(crate) struct Watch(OwnedFd);

impl Watch {
    /// Of this thread's network namespace, from now on.
    pub fn new() -> Result<Self, Errno> {
        watch().map(Watch)
    }

    /// Readable when anything has changed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Whether anything has changed since this was last asked.
    pub fn have_changed(&self) -> bool {
        have_changed(&self.0)
    }
}

fn watch() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::RAW;
    let socket = socket_with(AddressFamily::NETLINK, kind, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
    Ok(socket)
}

/// Whether anything has changed since this was last asked. What it is does not matter.
fn have_changed(watch: &OwnedFd) -> bool {
    let mut changed = false;
    loop {
        match recv(watch, &mut [0u8; 64][..], RecvFlags::TRUNC) {
            Err(Errno::AGAIN) => return changed,
            Ok(_) | Err(Errno::INTR) => changed = true,
            // Too much news for the socket's buffer (ENOBUFS) is news too.
            Err(_) => return true,
        }
    }
}

/// `None` where they can't be read.
fn read_addresses() -> Option<Vec<Address>> {
    let mut found = Vec::new();
    let read = for_each_address(|name, address| {
        let Some(ip) = ip_address(address) else {
            return;
        };
        let ifindex = std::ffi::CString::new(name).map_or(0, |name| {
            // SAFETY: `name` is a terminated string.
            unsafe { libc::if_nametoindex(name.as_ptr()) }
        });
        found.push(Address {
            ip,
            ifname: name.to_owned(),
            ifindex,
            loopback: ip.is_loopback(),
        });
    });
    read.then_some(found)
}

/// Calls `f` with the name and the address of each interface that is up. Returns false where they
/// can't be read.
pub(crate) fn for_each_address(mut f: impl FnMut(&str, *const libc::sockaddr)) -> bool {
    let mut list = std::ptr::null_mut();
    // SAFETY: getifaddrs fills `list`, which freeifaddrs frees below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return false;
    }
    let mut at = list;
    while !at.is_null() {
        // SAFETY: `at` is an element of the list until it is freed.
        let entry = unsafe { &*at };
        // SAFETY: interface names are terminated strings.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        let up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        if up && !entry.ifa_addr.is_null() {
            f(&name.to_string_lossy(), entry.ifa_addr);
        }
        at = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs.
    unsafe { libc::freeifaddrs(list) };
    true
}

fn ip_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the family tells which structure the kernel put there.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = *address.cast::<libc::sockaddr_in>();
                Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
            }
            libc::AF_INET6 => {
                let v6 = *address.cast::<libc::sockaddr_in6>();
                Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
            }
            _ => None,
        }
    }
}

/// The hardware address in a link-layer address.
pub(crate) fn hardware_address(address: *const libc::sockaddr) -> Option<[u8; 6]> {
    // SAFETY: as in `ip_address`.
    unsafe {
        if i32::from((*address).sa_family) != libc::AF_PACKET {
            return None;
        }
        let link = *address.cast::<libc::sockaddr_ll>();
        let mut mac = [0; 6];
        mac.copy_from_slice(&link.sll_addr[..6]);
        (link.sll_halen == 6 && mac != [0; 6]).then_some(mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_cannot_be_read_are_as_they_were() {
        let read = || {
            let loopback = Address {
                ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
                ifname: "lo".to_owned(),
                ifindex: 1,
                loopback: true,
            };
            Some(vec![loopback])
        };
        let mut known = Known {
            place: (0, 1),
            watch: watch().unwrap(),
            addresses: read().unwrap().into(),
            stale: true,
        };
        let first = Arc::as_ptr(&known.addresses);
        assert_eq!(Arc::as_ptr(&known.renewed(|| None)), first);
        assert!(known.stale, "read again the next time");
        assert_eq!(known.renewed(read).len(), 1);
        assert_ne!(Arc::as_ptr(&known.addresses), first);
        assert!(!known.stale);
    }
}
