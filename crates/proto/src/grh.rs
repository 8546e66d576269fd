//! The 40 bytes before a datagram in its receive buffer: the Global Routing Header.
//!
//! As with RoCE v2 they hold the datagram's IP header: an IPv6 one whole, an IPv4 one in the last
//! 20 bytes (InfiniBand specification, annex A17.4.5.2). The header is made anew from what is known
//! of the datagram; programs read addresses, traffic class and hop limit from it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Its length.
pub const GRH_LEN: usize = 40;
/// Where an IPv4 header stands in it.
const IPV4_AT: usize = 20;
/// Length of an IPv4 header without options.
const IPV4_LEN: u16 = 20;
/// The protocol number of UDP.
const UDP: u8 = 17;
/// The bits of an IPv6 flow label (RFC 8200 section 3).
const FLOW_LABEL: u32 = 0x000F_FFFF;
/// UDP's header, which an IP header's length counts.
const UDP_LEN: u16 = 8;

/// What is known of a datagram's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its source.
    pub src: IpAddr,
    /// The address it was sent to: this host's, or a group's.
    pub dst: IpAddr,
    /// Traffic class (type of service).
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Flow label, 20 bits; IPv4 has none.
    pub flow_label: u32,
    /// Bytes behind the UDP header.
    pub payload: u16,
}

impl Route {
    /// The header.
    #[must_use]
    pub fn header(&self) -> [u8; GRH_LEN] {
        match (self.src.to_canonical(), self.dst.to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.v4(src, dst),
            (src, dst) => self.v6(v6_of(src), v6_of(dst)),
        }
    }

    /// Whether its last 20 bytes are an IPv4 header, or all of it an IPv6 one.
    #[must_use]
    pub fn is_ipv4(header: &[u8; GRH_LEN]) -> bool {
        header[0] == 0
    }

    fn v4(&self, src: Ipv4Addr, dst: Ipv4Addr) -> [u8; GRH_LEN] {
        let mut out = [0; GRH_LEN];
        let ip = &mut out[IPV4_AT..];
        ip[0] = 0x45;
        ip[1] = self.traffic_class;
        let total = self.payload.saturating_add(IPV4_LEN + UDP_LEN);
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[8] = self.hop_limit;
        ip[9] = UDP;
        ip[12..16].copy_from_slice(&src.octets());
        ip[16..20].copy_from_slice(&dst.octets());
        let sum = checksum(ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        out
    }

    fn v6(&self, src: Ipv6Addr, dst: Ipv6Addr) -> [u8; GRH_LEN] {
        let mut out = [0; GRH_LEN];
        let class = u32::from(self.traffic_class);
        let head = 6 << 28 | class << 20 | self.flow_label & FLOW_LABEL;
        out[..4].copy_from_slice(&head.to_be_bytes());
        let length = self.payload.saturating_add(UDP_LEN);
        out[4..6].copy_from_slice(&length.to_be_bytes());
        out[6] = UDP;
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&src.octets());
        out[24..].copy_from_slice(&dst.octets());
        out
    }
}

fn v6_of(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// The Internet checksum (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks_exact(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(src: &str, dst: &str) -> Route {
        Route {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            traffic_class: 0xa1,
            hop_limit: 64,
            flow_label: 0x12345,
            payload: 100,
        }
    }

    #[test]
    fn ipv4_stands_in_the_last_20_bytes_with_a_right_checksum() {
        let grh = route("10.0.0.1", "239.1.2.3").header();
        assert_eq!(grh[..20], [0; 20]);
        assert_eq!(grh[20..24], [0x45, 0xa1, 0, 128]);
        assert_eq!((grh[28], grh[29]), (64, 17));
        assert_eq!(grh[32..36], [10, 0, 0, 1]);
        assert_eq!(grh[36..], [239, 1, 2, 3]);
        // With its own checksum a header sums up to nothing.
        assert_eq!(checksum(&grh[20..]), 0);
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        let mapped = route("::ffff:10.0.0.1", "::ffff:10.0.0.2").header();
        assert_eq!(mapped, route("10.0.0.1", "10.0.0.2").header());
    }

    #[test]
    fn ipv6_fills_it() {
        let grh = route("fe80::1", "ff0e::2").header();
        assert_eq!(grh[..8], [0x6a, 0x11, 0x23, 0x45, 0, 108, 17, 64]);
        assert_eq!((grh[8], grh[23], grh[24], grh[39]), (0xfe, 1, 0xff, 2));
    }
}
