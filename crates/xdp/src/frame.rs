//! Ethernet frames that hold a UDP datagram, over IPv4 (RFC 791) or IPv6 (RFC 8200): made and taken
//! apart.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::MARK;
use crate::checksum::{finish, fold, sum};

/// A hardware address.
pub type Mac = [u8; 6];

/// Ethernet's header.
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const PROTOCOL_UDP: u8 = 17;
const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
const TYPE_IPV6: [u8; 2] = [0x86, 0xdd];
/// What Linux sends datagrams with.
const HOPS: u8 = 64;
/// "Don't fragment" of the IPv4 header.
const DONT_FRAGMENT: [u8; 2] = [0x40, 0x00];
/// The offset of a fragment, and whether more follow.
const FRAGMENT: u16 = 0x3fff;

/// Longest headers before the payload.
pub const HEADERS_MAX: usize = ETHERNET + IPV6 + UDP;

/// The headers of datagrams from one port to another, but for what differs between them.
#[derive(Clone, Debug)]
pub struct Headers {
    bytes: [u8; HEADERS_MAX],
    len: usize,
    v6: bool,
    /// Of the pseudo-header, without the length, and the ports.
    sum: u64,
}

impl Headers {
    /// `None` if the addresses are of different families.
    #[must_use]
    pub fn new(
        (src, src_mac): (SocketAddr, Mac),
        (dst, dst_mac): (SocketAddr, Mac),
    ) -> Option<Headers> {
        let mut bytes = [0; HEADERS_MAX];
        bytes[..6].copy_from_slice(&dst_mac);
        bytes[6..12].copy_from_slice(&src_mac);
        let (v6, len) = match (src.ip(), dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                bytes[12..14].copy_from_slice(&TYPE_IPV4);
                let header = &mut bytes[ETHERNET..ETHERNET + IPV4];
                header[0] = 0x45;
                header[4..6].copy_from_slice(&MARK);
                header[6..8].copy_from_slice(&DONT_FRAGMENT);
                (header[8], header[9]) = (HOPS, PROTOCOL_UDP);
                header[12..16].copy_from_slice(&src.octets());
                header[16..20].copy_from_slice(&dst.octets());
                (false, ETHERNET + IPV4 + UDP)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                bytes[12..14].copy_from_slice(&TYPE_IPV6);
                let header = &mut bytes[ETHERNET..ETHERNET + IPV6];
                header[0] = 0x60;
                header[2..4].copy_from_slice(&MARK);
                (header[6], header[7]) = (PROTOCOL_UDP, HOPS);
                header[8..24].copy_from_slice(&src.octets());
                header[24..40].copy_from_slice(&dst.octets());
                (true, ETHERNET + IPV6 + UDP)
            }
            _ => return None,
        };
        bytes[len - UDP..len - UDP + 2].copy_from_slice(&src.port().to_be_bytes());
        bytes[len - UDP + 2..len - UDP + 4].copy_from_slice(&dst.port().to_be_bytes());
        let addresses = if v6 { &bytes[22..54] } else { &bytes[26..34] };
        let sum = sum(addresses) + sum(&bytes[len - UDP..len - UDP + 4]) + protocol_sum();
        Some(Headers {
            bytes,
            len,
            v6,
            sum,
        })
    }

    /// Writes a frame with this payload and traffic class into `out`, and returns its length;
    /// `None` where it has no room or the payload is too long for a datagram.
    pub fn write(&self, class: u8, payload: &[u8], out: &mut [u8]) -> Option<usize> {
        let udp_len = u16::try_from(UDP + payload.len()).ok()?.to_be_bytes();
        let total = u16::try_from(self.len - ETHERNET + payload.len()).ok()?;
        let frame = out.get_mut(..self.len + payload.len())?;
        let (headers, rest) = frame.split_at_mut(self.len);
        headers.copy_from_slice(&self.bytes[..self.len]);
        rest.copy_from_slice(payload);
        let ip = &mut headers[ETHERNET..];
        if self.v6 {
            // Version, class, the upper bits of the flow label.
            (ip[0], ip[1]) = (0x60 | class >> 4, class << 4);
            ip[4..6].copy_from_slice(&udp_len);
        } else {
            ip[1] = class;
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            let checksum = finish(sum(&ip[..IPV4]));
            ip[10..12].copy_from_slice(&checksum);
        }
        let udp = &mut headers[self.len - UDP..];
        udp[4..6].copy_from_slice(&udp_len);
        // The length counts twice: in the pseudo-header and in UDP's.
        let checksum = finish(self.sum + 2 * sum(&udp_len) + sum(payload));
        // None is sent as 0, which says that there is none (RFC 768).
        let checksum = if checksum == [0; 2] {
            [0xff; 2]
        } else {
            checksum
        };
        udp[6..8].copy_from_slice(&checksum);
        Some(frame.len())
    }
}

/// The protocol in the pseudo-header.
fn protocol_sum() -> u64 {
    sum(&[0, PROTOCOL_UDP])
}

/// A datagram that came in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Where it comes from.
    pub src: SocketAddr,
    /// The address that it was sent to.
    pub dst: IpAddr,
    /// Traffic class: DSCP and marks of congestion.
    pub class: u8,
    /// What it holds.
    pub payload: &'a [u8],
}

/// Takes a frame apart that came in by interface number `ifindex`. `None` unless it holds a whole
/// datagram to `port`, from an address that one host may have, with the right checksums.
#[must_use]
pub fn parse(frame: &[u8], port: u16, ifindex: u32) -> Option<Datagram<'_>> {
    let (ethernet, packet) = frame.split_at_checked(ETHERNET)?;
    let kind = [ethernet[12], ethernet[13]];
    let (class, src, dst, udp) = match kind {
        TYPE_IPV4 => ipv4(packet)?,
        TYPE_IPV6 => ipv6(packet)?,
        _ => return None,
    };
    let len = usize::from(u16::from_be_bytes([*udp.get(4)?, *udp.get(5)?]));
    if len < UDP || len != udp.len() {
        return None;
    }
    let src_port = u16::from_be_bytes([udp[0], udp[1]]);
    if u16::from_be_bytes([udp[2], udp[3]]) != port || src_port == 0 || !is_host(src) {
        return None;
    }
    if !checksum_holds(src, dst, udp) {
        return None;
    }
    Some(Datagram {
        src: with_scope(src, src_port, ifindex),
        dst,
        class,
        payload: &udp[UDP..],
    })
}

/// Class, source, destination and UDP's part of an IPv4 packet.
fn ipv4(packet: &[u8]) -> Option<(u8, IpAddr, IpAddr, &[u8])> {
    let header: &[u8; IPV4] = packet.first_chunk()?;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let fragment = u16::from_be_bytes([header[6], header[7]]) & FRAGMENT;
    if header[0] != 0x45 || fragment != 0 || header[9] != PROTOCOL_UDP {
        return None;
    }
    if finish(sum(header)) != [0; 2] {
        return None;
    }
    let address = |at: usize| {
        let octets: [u8; 4] = header[at..at + 4].try_into().ok()?;
        Some(IpAddr::V4(Ipv4Addr::from(octets)))
    };
    // The shortest frames are padded behind the packet.
    let udp = packet.get(IPV4..total)?;
    Some((header[1], address(12)?, address(16)?, udp))
}

/// The same of an IPv6 packet.
fn ipv6(packet: &[u8]) -> Option<(u8, IpAddr, IpAddr, &[u8])> {
    let header: &[u8; IPV6] = packet.first_chunk()?;
    let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if header[0] >> 4 != 6 || header[6] != PROTOCOL_UDP {
        return None;
    }
    let address = |at: usize| {
        let octets: [u8; 16] = header[at..at + 16].try_into().ok()?;
        Some(IpAddr::V6(Ipv6Addr::from(octets)))
    };
    let class = header[0] << 4 | header[1] >> 4;
    let udp = packet.get(IPV6..IPV6 + len)?;
    Some((class, address(8)?, address(24)?, udp))
}

/// Whether an address is one that a datagram from another host may come from, as the kernel judges
/// it, too.
fn is_host(src: IpAddr) -> bool {
    let special = match src {
        // 240.0.0.0/4 holds the broadcast address.
        IpAddr::V4(v4) => v4.octets()[0] >= 240 || v4.octets()[0] == 0,
        IpAddr::V6(v6) => v6.to_ipv4_mapped().is_some(),
    };
    !(special || src.is_multicast() || src.is_loopback() || src.is_unspecified())
}

/// Whether UDP's checksum is right. IPv4 may do without. A sender on this machine leaves all but
/// the pseudo-header's part to hardware that is not there: then nothing has been on a wire.
fn checksum_holds(src: IpAddr, dst: IpAddr, udp: &[u8]) -> bool {
    let stated = [udp[6], udp[7]];
    let pseudo = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => sum(&src.octets()) + sum(&dst.octets()),
        (IpAddr::V6(src), IpAddr::V6(dst)) => sum(&src.octets()) + sum(&dst.octets()),
        _ => return false,
    };
    if stated == [0; 2] {
        return src.is_ipv4();
    }
    let pseudo = pseudo + protocol_sum() + sum(&udp[4..6]);
    stated == fold(pseudo) || finish(pseudo + sum(udp)) == [0; 2]
}

/// The kernel names the interface where an address means something on one link alone.
fn with_scope(src: IpAddr, port: u16, ifindex: u32) -> SocketAddr {
    match src {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddrV6::new(v6, port, 0, ifindex).into()
        }
        _ => SocketAddr::new(src, port),
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
