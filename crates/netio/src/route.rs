//! Asks the kernel how large a datagram a route takes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::{canonical, options};

/// Largest UDP payload of an IPv4 datagram: 65535 less IP and UDP headers (RFC 791, RFC 768). Kept
/// for IPv6 too, where 20 more would do.
pub const MAX_PAYLOAD: usize = 65507;

/// UDP payload that every IPv6 path takes: the minimum MTU of 1280 (RFC 8200 section 5) less IP and
/// UDP headers. Taken for granted on IPv4 paths too.
pub const MIN_PATH_PAYLOAD: usize = 1232;

/// IP and UDP headers, without options.
pub(crate) fn overhead(ip: IpAddr) -> usize {
    if ip.is_ipv4() { 28 } else { 48 }
}

/// Largest UDP payload that goes unfragmented from `src` (or the address the route prefers) to
/// `dst`, as far as this host knows: the interface's MTU, or a smaller one learned for the path.
/// [`MIN_PATH_PAYLOAD`] if there is no route; never more than [`MAX_PAYLOAD`].
#[must_use]
pub fn path_mtu(dst: SocketAddr, src: Option<IpAddr>) -> usize {
    query(canonical(dst), src.map(|ip| ip.to_canonical())).unwrap_or(MIN_PATH_PAYLOAD)
}

fn query(dst: SocketAddr, src: Option<IpAddr>) -> io::Result<usize> {
    let any = if dst.is_ipv4() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    };
    // Connecting a UDP socket looks the route up and sends nothing.
    let socket = UdpSocket::bind((src.unwrap_or(any), 0))?;
    socket.connect(dst)?;
    let (level, name) = if dst.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_MTU)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU)
    };
    let mtu = usize::try_from(options::get(&socket, level, name)?).unwrap_or(0);
    let payload = mtu.saturating_sub(overhead(dst.ip())).min(MAX_PAYLOAD);
    if payload == 0 {
        Err(io::ErrorKind::InvalidData.into())
    } else {
        Ok(payload)
    }
}
