//! Local identifiers, for programs that know no other address.
//!
//! A port on Ethernet has no LID (IBA annex A17), and programs take a LID of 0 for the sign of
//! such a port. Some are older than that and exchange nothing but LIDs. With `CAUSEWAY_LID=1` the
//! port has one: the last 16 bits of the first IPv4 address. It reaches hosts whose address has
//! the same first 16 bits.

use causeway_setting::setting;
use std::sync::OnceLock;

use causeway_device as dev;

/// The environment variable that gives the port a LID.
const VARIABLE: &str = "CAUSEWAY_LID";
/// What comes first in the GID of an IPv4 address (RFC 4291, section 2.5.5.2).
const IPV4_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// Where in such a GID the 16 bits stand that are the LID.
const LID_AT: usize = 14;

/// Whether the environment asks for LIDs; it is read once.
fn wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| setting(VARIABLE).is_some_and(|value| value == "1"))
}

/// The GID of index 0, if LIDs are wanted and it is an IPv4 address.
fn own_gid() -> Option<[u8; 16]> {
    let gid = wanted().then(dev::gid_table)?.first()?.gid;
    gid.starts_with(&IPV4_PREFIX).then_some(gid)
}

/// The LID that is part of a GID.
fn lid_of(gid: [u8; 16]) -> u16 {
    u16::from_be_bytes([gid[LID_AT], gid[LID_AT + 1]])
}

/// The GID of the host with a LID in the network of `own`.
fn gid_of(own: [u8; 16], lid: u16) -> [u8; 16] {
    let mut gid = own;
    gid[LID_AT..].copy_from_slice(&lid.to_be_bytes());
    gid
}

/// The port's LID; 0 for none.
pub(crate) fn of_port() -> u16 {
    own_gid().map_or(0, lid_of)
}

/// The GID of the host with a LID, from the GID of index 0; none where there are no LIDs.
pub(crate) fn destination(lid: u16) -> Option<[u8; 16]> {
    if lid == 0 {
        return None;
    }
    Some(gid_of(own_gid()?, lid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn gid(a: u8, b: u8, c: u8, d: u8) -> [u8; 16] {
        Ipv4Addr::new(a, b, c, d).to_ipv6_mapped().octets()
    }

    #[test]
    fn a_lid_is_the_last_16_bits_of_the_address() {
        assert_eq!(lid_of(gid(10, 83, 3, 1)), 0x0301);
        assert_eq!(gid_of(gid(10, 83, 3, 1), 0x0302), gid(10, 83, 3, 2));
    }

    #[test]
    fn there_are_none_unless_asked_for() {
        assert_eq!(of_port(), 0);
        assert_eq!(destination(0x0302), None);
    }
}
