//! The GID table: one RoCE v2 entry for each address of this network namespace.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use causeway_fabric::limits::ADDRESSES_MAX;
use causeway_fabric::sysfs::{SysfsGid, SysfsRequest};
use parking_lot::Mutex;

use crate::addresses::{Address, addresses, for_each_address, hardware_address};

/// An entry of the GID table (`ibv_query_gid_ex(3)`). All are of type RoCE v2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The address; IPv4 ones mapped into IPv6 (`::ffff:a.b.c.d`).
    pub gid: [u8; 16],
    /// Position in the table.
    pub index: u32,
    /// Name of the network interface.
    pub ifname: String,
    /// Its number.
    pub ifindex: u32,
}

/// The table as the addresses are now. Programs that are given no index take 0, so what can be
/// reached from most places comes first: global IPv4, global IPv6, link-local IPv6. Loopback
/// addresses are there only where nothing else is.
#[must_use]
pub fn gid_table() -> Vec<GidEntry> {
    table().to_vec()
}

/// [`gid_table`], made again only when the addresses have changed: each connection asks for it.
pub(crate) fn table() -> Arc<[GidEntry]> {
    /// The addresses, and the table made of them.
    type Made = (Arc<[Address]>, Arc<[GidEntry]>);
    static LAST: Mutex<Option<Made>> = Mutex::new(None);
    let addresses = addresses();
    let mut last = LAST.lock();
    if let Some((of, table)) = &*last
        && Arc::ptr_eq(of, &addresses)
    {
        return Arc::clone(table);
    }
    let table: Arc<[GidEntry]> = make_table(&addresses).into();
    *last = Some((addresses, Arc::clone(&table)));
    table
}

fn make_table(addresses: &[Address]) -> Vec<GidEntry> {
    let mut addresses = addresses.to_vec();
    if addresses.iter().any(|a| !a.loopback) {
        addresses.retain(|a| !a.loopback);
    }
    addresses.sort_by_key(|a| (rank(a.ip), a.ifindex));
    (0..)
        .zip(addresses)
        .map(|(index, a)| GidEntry {
            gid: gid_of(a.ip),
            index,
            ifname: a.ifname,
            ifindex: a.ifindex,
        })
        .collect()
}

/// Whether an address belongs to this network namespace.
pub(crate) fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || addresses().iter().any(|a| a.ip == ip)
}

/// The GID that stands for an address.
pub(crate) fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The address that a GID stands for.
pub(crate) fn ip_of(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

/// A GUID from the hardware address of the first interface that has one (EUI-64), or a fixed one.
/// In the byte order of the network, as `ibv_get_device_guid(3)` returns it.
#[must_use]
pub fn node_guid() -> u64 {
    let mut guid = [0x02, 0, 0, 0xff, 0xfe, 0xca, 0x05, 0xe0];
    // Where they can't be read it is the fixed one.
    let _ = for_each_address(|name, address| {
        if let Some(mac) = hardware_address(address)
            && name != "lo"
            && guid[5..] == [0xca, 0x05, 0xe0]
        {
            guid = [
                mac[0] ^ 2,
                mac[1],
                mac[2],
                0xff,
                0xfe,
                mac[3],
                mac[4],
                mac[5],
            ];
        }
    });
    u64::from_ne_bytes(guid)
}

/// The device as this network namespace sees it, for its files in sysfs and `/dev`.
#[must_use]
pub fn describe_device() -> SysfsRequest {
    let gids = gid_table().into_iter();
    SysfsRequest {
        node_guid: node_guid().to_ne_bytes(),
        gids: gids
            .map(|entry| SysfsGid {
                gid: entry.gid,
                ifname: entry.ifname,
            })
            .collect(),
    }
}

fn rank(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(v4) => u8::from(v4.is_link_local()),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => 3,
        IpAddr::V6(_) => 2,
    }
}

/// The largest payload of the port, as `enum ibv_mtu`: maximum and active.
#[must_use]
pub fn port_mtu() -> (u32, u32) {
    // Segments are cut to the path whatever this says; 4096 is the largest the enumeration has.
    (5, 5)
}

/// The addresses by which others know this namespace.
pub(crate) fn own_addresses() -> Vec<[u8; 16]> {
    let gids = gid_table().into_iter().map(|entry| entry.gid);
    let known = gids.filter(|gid| !ip_of(*gid).is_loopback());
    known.take(ADDRESSES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_never_empty_and_indexes_are_positions() {
        let table = gid_table();
        assert!(!table.is_empty());
        for (at, entry) in table.iter().enumerate() {
            assert_eq!(entry.index as usize, at);
            assert!(is_local(ip_of(entry.gid)));
        }
    }
}
