//! Socket addresses between C and Rust.

use core::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::errno::{Errno, INVALID, Result};

/// Reads an address of the program.
///
/// # Errors
/// EINVAL for none, EAFNOSUPPORT for a family that is neither IPv4 nor IPv6.
///
/// # Safety
/// `address` is null or points to an address as long as its family demands.
pub(crate) unsafe fn read(address: *const libc::sockaddr) -> Result<SocketAddr> {
    if address.is_null() {
        return Err(INVALID);
    }
    // SAFETY: every address begins with its family; what follows has that family's length.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => Err(Errno(libc::EAFNOSUPPORT)),
        }
    }
}

/// The address as C has it.
pub(crate) fn storage(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: plain data, for which zeroes are valid.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let to = (&raw mut storage).cast::<u8>();
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: as above.
            let mut c: libc::sockaddr_in = unsafe { mem::zeroed() };
            c.sin_family = libc::AF_INET as libc::sa_family_t;
            c.sin_port = v4.port().to_be();
            c.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            // SAFETY: the storage is longer than any address, and aligned for all.
            unsafe { to.cast::<libc::sockaddr_in>().write(c) };
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let mut c: libc::sockaddr_in6 = unsafe { mem::zeroed() };
            c.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            c.sin6_port = v6.port().to_be();
            c.sin6_flowinfo = v6.flowinfo();
            c.sin6_addr.s6_addr = v6.ip().octets();
            c.sin6_scope_id = v6.scope_id();
            // SAFETY: as above.
            unsafe { to.cast::<libc::sockaddr_in6>().write(c) };
        }
    }
    storage
}

/// The same address and port; an IPv4-mapped one as IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip.is_ipv4() => SocketAddr::new(ip, address.port()),
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_and_go_as_they_are() {
        for text in ["10.1.2.3:7471", "[fe80::1%7]:80", "[::]:0", "0.0.0.0:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = storage(address);
            // SAFETY: a whole sockaddr_storage.
            assert_eq!(unsafe { read((&raw const c).cast()) }, Ok(address));
        }
    }

    #[test]
    fn other_families_and_nothing_are_refused() {
        let mut c = storage("10.1.2.3:7471".parse().unwrap());
        c.ss_family = libc::AF_UNIX as libc::sa_family_t;
        // SAFETY: a whole sockaddr_storage; null is allowed.
        unsafe {
            let refused = read((&raw const c).cast());
            assert_eq!(refused, Err(Errno(libc::EAFNOSUPPORT)));
            assert_eq!(read(core::ptr::null()), Err(INVALID));
        }
    }
}
