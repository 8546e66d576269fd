//! Addresses of rsockets, as the program wants them.

use core::ffi::c_int;
use core::ptr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::socket::{Phase, Socket, State};
use crate::errno::{Errno, INVALID, Result};
use crate::{id, sockaddr};

/// No address of a family.
pub(super) fn unspecified(domain: c_int) -> SocketAddr {
    match domain {
        libc::AF_INET6 => (Ipv6Addr::UNSPECIFIED, 0).into(),
        _ => (Ipv4Addr::UNSPECIFIED, 0).into(),
    }
}

/// An address in the family of the rsocket: IPv4 as IPv6 where that is needed.
fn in_family(domain: c_int, address: SocketAddr) -> SocketAddr {
    match (domain, address.ip()) {
        (libc::AF_INET6, IpAddr::V4(v4)) if v4.is_unspecified() => {
            (Ipv6Addr::UNSPECIFIED, address.port()).into()
        }
        (libc::AF_INET6, IpAddr::V4(v4)) => (v4.to_ipv6_mapped(), address.port()).into(),
        _ => address,
    }
}

/// Own address.
pub(super) fn local(socket: &Socket, state: &State) -> SocketAddr {
    if state.id.is_null() {
        return unspecified(socket.domain);
    }
    // SAFETY: the identifier lives.
    let local = unsafe { id::inner(state.id).state().local };
    local.map_or_else(
        || unspecified(socket.domain),
        |local| in_family(socket.domain, local),
    )
}

/// The peer's address.
///
/// # Errors
/// ENOTCONN if there is no peer.
pub(super) fn peer(socket: &Socket, state: &State) -> Result<SocketAddr> {
    if !matches!(state.phase, Phase::Connected | Phase::Accepting) {
        return Err(Errno(libc::ENOTCONN));
    }
    // SAFETY: the identifier lives.
    let peer = unsafe { id::inner(state.id).state().peer };
    let peer = peer.ok_or(Errno(libc::ENOTCONN))?;
    Ok(in_family(socket.domain, peer))
}

/// Hands an address to the program, as much as there is room for; `len` becomes the whole length.
///
/// # Safety
/// `len` is null or valid; `addr` is null, or has room for `*len` bytes.
pub(super) unsafe fn write(
    address: SocketAddr,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> Result<()> {
    let whole = match address {
        SocketAddr::V4(_) => size_of::<libc::sockaddr_in>(),
        SocketAddr::V6(_) => size_of::<libc::sockaddr_in6>(),
    };
    let storage = sockaddr::storage(address);
    if len.is_null() {
        return Err(INVALID);
    }
    // SAFETY: as the caller promises.
    unsafe {
        let room = usize::try_from(*len).unwrap_or(0).min(whole);
        if !addr.is_null() {
            ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), addr.cast(), room);
        }
        len.write(whole as libc::socklen_t);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_socket_names_ipv4_peers_as_ipv6() {
        let v4: SocketAddr = "10.1.2.3:80".parse().unwrap();
        assert_eq!(
            in_family(libc::AF_INET6, v4).to_string(),
            "[::ffff:10.1.2.3]:80"
        );
        assert_eq!(in_family(libc::AF_INET, v4), v4);
        let any: SocketAddr = "0.0.0.0:80".parse().unwrap();
        assert_eq!(in_family(libc::AF_INET6, any).to_string(), "[::]:80");
    }

    #[test]
    fn no_more_is_written_than_there_is_room_for() {
        let address: SocketAddr = "10.1.2.3:80".parse().unwrap();
        let mut room = [0xEEu8; 16];
        let mut len: libc::socklen_t = 4;
        // SAFETY: 4 bytes are said, 16 are there; null is allowed.
        unsafe {
            write(address, room.as_mut_ptr().cast(), &raw mut len).unwrap();
            assert_eq!(len, 16);
            assert_eq!(room[2..5], [0, 80, 0xEE]);
            len = 0;
            write(address, ptr::null_mut(), &raw mut len).unwrap();
            assert_eq!(len, 16);
            assert_eq!(
                write(address, ptr::null_mut(), ptr::null_mut()),
                Err(INVALID)
            );
        }
    }
}
