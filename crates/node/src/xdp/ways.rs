//! The kernel's routes and neighbours (rtnetlink(7)).

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use causeway_xdp::frame::Mac;
use causeway_xdp::lease::{Macs, Way};
use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// Longest answer about one route, neighbour or link.
const ANSWER_MAX: usize = 1 << 15;

/// Groups of rtnetlink(7) that hear of links, which have addresses only while they are up, and of
/// addresses of both families (`RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV6_IFADDR`).
const ADDRESS_GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// What the kernel tells of addresses.
pub(super) struct AddressNews(Socket);

impl AddressNews {
    /// # Errors
    /// What socket(2) and bind(2) report.
    pub fn open() -> io::Result<AddressNews> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, ADDRESS_GROUPS))?;
        socket.set_non_blocking(true)?;
        Ok(AddressNews(socket))
    }

    /// Readable when there is something new.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is the socket's, which lives as long.
        unsafe { BorrowedFd::borrow_raw(self.0.as_raw_fd()) }
    }

    /// Takes what there is, and nothing of what it says.
    pub fn take(&mut self) {
        let mut news = Vec::with_capacity(ANSWER_MAX);
        // That some was lost (ENOBUFS) is the last that is said of it.
        while self.0.recv(&mut news, 0).is_ok() {
            news.clear();
        }
    }
}

/// A connection to the kernel.
pub(super) struct Ways {
    socket: Socket,
    sequence: u32,
}

impl Ways {
    /// # Errors
    /// What socket(2) and bind(2) report.
    pub fn open() -> io::Result<Ways> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Ways {
            socket,
            sequence: 0,
        })
    }

    /// The hardware addresses of a way by an interface, if the kernel knows them now.
    ///
    /// # Errors
    /// What the kernel answers: ENETUNREACH if there is no route, ENOENT if it has not looked for
    /// the neighbour.
    pub fn resolve(&mut self, ifindex: u32, way: Way) -> io::Result<Option<Macs>> {
        let Some(next) = self.next_hop(ifindex, way)? else {
            return Ok(None);
        };
        let Some(dst) = self.neighbour(ifindex, next)? else {
            return Ok(None);
        };
        let src = self.own(ifindex)?;
        Ok(src.map(|src| Macs { src, dst }))
    }

    /// Where a way leads next, by an interface.
    fn next_hop(&mut self, ifindex: u32, way: Way) -> io::Result<Option<IpAddr>> {
        let address = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => RouteAddress::Inet(v4),
            IpAddr::V6(v6) => RouteAddress::Inet6(v6),
        };
        let mut ask = RouteMessage::default();
        ask.header.address_family = family(way.dst);
        let bits = if way.dst.is_ipv4() { 32 } else { 128 };
        ask.header.destination_prefix_length = bits;
        ask.header.source_prefix_length = bits;
        ask.attributes
            .push(RouteAttribute::Destination(address(way.dst)));
        ask.attributes
            .push(RouteAttribute::Source(address(way.src)));
        let RouteNetlinkMessage::NewRoute(route) = self.ask(RouteNetlinkMessage::GetRoute(ask))?
        else {
            return Ok(None);
        };
        let (mut out, mut next) = (None, way.dst);
        for attribute in route.attributes {
            match attribute {
                RouteAttribute::Oif(number) => out = Some(number),
                RouteAttribute::Gateway(RouteAddress::Inet(v4)) => next = v4.into(),
                RouteAttribute::Gateway(RouteAddress::Inet6(v6)) => next = v6.into(),
                // A gateway of the other family.
                RouteAttribute::Via(_) => return Ok(None),
                _ => {}
            }
        }
        let leads = out == Some(ifindex) && route.header.kind == RouteType::Unicast;
        Ok(leads.then_some(next))
    }

    /// The hardware address of a neighbour.
    fn neighbour(&mut self, ifindex: u32, ip: IpAddr) -> io::Result<Option<Mac>> {
        let mut ask = NeighbourMessage::default();
        ask.header.family = family(ip);
        ask.header.ifindex = ifindex;
        let address = match ip {
            IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
            IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
        };
        ask.attributes
            .push(NeighbourAttribute::Destination(address));
        let answer = self.ask(RouteNetlinkMessage::GetNeighbour(ask))?;
        let RouteNetlinkMessage::NewNeighbour(found) = answer else {
            return Ok(None);
        };
        let known = matches!(
            found.header.state,
            NeighbourState::Reachable
                | NeighbourState::Stale
                | NeighbourState::Delay
                | NeighbourState::Probe
                | NeighbourState::Permanent
        );
        let mac = found
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                NeighbourAttribute::LinkLayerAddress(mac) => Mac::try_from(&mac[..]).ok(),
                _ => None,
            });
        Ok(mac.filter(|_| known))
    }

    /// The hardware address of an interface.
    fn own(&mut self, ifindex: u32) -> io::Result<Option<Mac>> {
        let mut ask = LinkMessage::default();
        ask.header.index = ifindex;
        let RouteNetlinkMessage::NewLink(link) = self.ask(RouteNetlinkMessage::GetLink(ask))?
        else {
            return Ok(None);
        };
        Ok(link
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::Address(mac) => Mac::try_from(&mac[..]).ok(),
                _ => None,
            }))
    }

    /// Asks something that has one answer.
    fn ask(&mut self, message: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        (header.flags, header.sequence_number) = (NLM_F_REQUEST, self.sequence);
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answer = Vec::with_capacity(ANSWER_MAX);
        loop {
            answer.clear();
            self.socket.recv(&mut answer, 0)?;
            let invalid = |_| io::Error::from(io::ErrorKind::InvalidData);
            let found = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer);
            let found = found.map_err(invalid)?;
            if found.header.sequence_number != self.sequence {
                continue;
            }
            return match found.payload {
                NetlinkPayload::InnerMessage(message) => Ok(message),
                NetlinkPayload::Error(error) => Err(error.to_io()),
                _ => Err(io::ErrorKind::InvalidData.into()),
            };
        }
    }
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_asked() {
        let mut ways = Ways::open().unwrap();
        let localhost = IpAddr::from([127, 0, 0, 1]);
        let way = Way {
            src: localhost,
            dst: localhost,
        };
        // Interface 1 is loopback, where all is local.
        assert_eq!(ways.resolve(1, way).unwrap(), None);
        assert_eq!(ways.own(1).unwrap(), Some([0; 6]));
        assert!(ways.own(u32::MAX / 2).is_err());
    }
}
