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
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// The addresses as they are now.
pub(crate) fn addresses() -> Arc<[Address]> {
    let mut known = KNOWN.lock();
    let place = (std::process::id(), namespace());
    if let Some(known) = known.as_mut().filter(|known| known.place == place) {
        if have_changed(&known.watch) {
            known.addresses = read_addresses().into();
        }
        return Arc::clone(&known.addresses);
    }
    // Watched before they are read: no change is missed.
    let watch = watch();
    let addresses: Arc<[Address]> = read_addresses().into();
    *known = watch.ok().filter(|_| place.1 != 0).map(|watch| Known {
        place,
        watch,
        addresses: Arc::clone(&addresses),
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

fn read_addresses() -> Vec<Address> {
    let mut found = Vec::new();
    for_each_address(|name, address| {
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
    found
}

/// Calls `f` with the name and the address of each interface that is up.
pub(crate) fn for_each_address(mut f: impl FnMut(&str, *const libc::sockaddr)) {
    let mut list = std::ptr::null_mut();
    // SAFETY: getifaddrs fills `list`, which freeifaddrs frees below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return;
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
