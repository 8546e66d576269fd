//! Creates and binds UDP sockets.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};

/// A socket at an address of IPv6: of that family `only`, or of both.
pub(crate) fn bind_v6(address: SocketAddr, only: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_only_v6(only)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A socket at an address of IPv4.
pub(crate) fn bind_v4(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Whether an error means that the host has no IPv6.
pub(crate) fn no_ipv6(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)
    )
}
