//! Where datagrams go: to an address, or to a multicast group.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use causeway_identity::MULTICAST_PORT;

use crate::av::Av;
use crate::gid::{self, GidEntry};

/// Where in a GID its IPv4 address stands.
const IPV4_AT: usize = 12;
/// What comes before it, in a group's GID as the connection manager makes it:
/// `ff0e::ffff:a.b.c.d`.
const GROUP_PREFIX: [u8; IPV4_AT] = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// What datagrams need to know of their way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    /// The port is the receiving endpoint's, unless it is a group's.
    pub dst: SocketAddr,
    pub src: IpAddr,
    pub is_multicast: bool,
    /// Longer datagrams travel in fragments.
    pub whole: usize,
    /// As the receiver is told it.
    pub traffic_class: u8,
    /// As the network is.
    pub class: u8,
    pub hop_limit: u8,
    pub flow_label: u32,
}

/// The group that a GID names, if it names one.
pub(crate) fn group_of(gid: [u8; 16]) -> Option<IpAddr> {
    let (prefix, v4) = gid.split_at(IPV4_AT);
    if prefix == GROUP_PREFIX {
        let v4 = Ipv4Addr::new(v4[0], v4[1], v4[2], v4[3]);
        return v4.is_multicast().then_some(IpAddr::V4(v4));
    }
    let ip = Ipv6Addr::from(gid).to_canonical();
    ip.is_multicast().then_some(ip)
}

/// Whether a GID names a multicast group.
#[must_use]
pub fn is_group(gid: [u8; 16]) -> bool {
    group_of(gid).is_some()
}

impl Destination {
    /// The way that an address vector names; the network is to treat datagrams as of `class`.
    pub fn find(av: &Av, source: &GidEntry, class: u8) -> Destination {
        let group = group_of(av.dgid);
        let ip = group.unwrap_or(gid::ip_of(av.dgid));
        let port = group.map_or(0, |_| MULTICAST_PORT);
        let dst = match ip {
            // An interface must be named where the address does not say which.
            IpAddr::V6(v6) if v6.is_unicast_link_local() || v6.is_multicast() => {
                SocketAddr::V6(SocketAddrV6::new(v6, port, 0, source.ifindex))
            }
            ip => SocketAddr::new(ip, port),
        };
        let src = gid::ip_of(source.gid);
        let mut asked = dst;
        // Any port will do; nothing is sent.
        asked.set_port(MULTICAST_PORT);
        Destination {
            dst,
            src,
            is_multicast: group.is_some(),
            whole: causeway_netio::path_mtu(asked, Some(src)),
            traffic_class: av.traffic_class,
            class,
            hop_limit: av.hop_limit,
            flow_label: av.flow_label & causeway_wire::datagram::MAX_FLOW_LABEL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_told_by_their_gids() {
        let group = |text: &str| group_of(text.parse::<Ipv6Addr>().unwrap().octets());
        let v4 = Some("239.1.2.3".parse().unwrap());
        assert_eq!(group("ff0e::ffff:239.1.2.3"), v4);
        assert_eq!(group("::ffff:239.1.2.3"), v4);
        assert_eq!(group("ff0e::ffff:10.1.2.3"), None);
        assert_eq!(group("::ffff:10.1.2.3"), None);
        assert_eq!(group("fe80::1"), None);
        assert_eq!(group("ff15::7"), Some("ff15::7".parse().unwrap()));
    }
}
