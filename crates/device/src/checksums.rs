//! Which connections over UDP protect what they carry by a checksum.
//!
//! UDP's own sum has 16 bits, network cards compute it, and what a router or a card damages in
//! between bears a right one again. RoCE v2 has a 32-bit ICRC in every packet for that; TRP has a
//! CRC32C. Within a host there is nothing to damage.

use std::net::IpAddr;

use crate::addresses::addresses;

/// The setting.
const VARIABLE: &str = "CAUSEWAY_CRC";

/// What the setting says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksums {
    /// Where the peer is on another host.
    BetweenHosts,
    /// Only where the peer asks.
    Off,
    /// Everywhere.
    On,
}

impl Checksums {
    /// The preference of the environment variable; `None` if it holds something else.
    pub fn from_env() -> Option<Checksums> {
        let value = causeway_fabric::setting(VARIABLE);
        match value.as_ref().map(|value| value.to_str()) {
            None | Some(Some("auto")) => Some(Checksums::BetweenHosts),
            Some(Some("off")) => Some(Checksums::Off),
            Some(Some("on")) => Some(Checksums::On),
            _ => None,
        }
    }

    /// Whether a connection to a peer at `ip` is to have them.
    pub fn wanted(self, ip: IpAddr) -> bool {
        match self {
            Checksums::Off => false,
            Checksums::On => true,
            Checksums::BetweenHosts => !is_own(ip.to_canonical()),
        }
    }
}

/// Whether an address is one of this host's, as this network namespace has it.
fn is_own(ip: IpAddr) -> bool {
    ip.is_loopback() || addresses().iter().any(|own| own.ip.to_canonical() == ip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn only_what_leaves_the_host_needs_them() {
        let auto = Checksums::BetweenHosts;
        // RFC 5737: nobody has it.
        let elsewhere = IpAddr::from([192, 0, 2, 1]);
        let here = [
            Ipv4Addr::LOCALHOST.into(),
            Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(),
            Ipv6Addr::LOCALHOST.into(),
        ];
        assert!(auto.wanted(elsewhere) && here.iter().all(|ip| !auto.wanted(*ip)));
        assert!(addresses().iter().all(|own| !auto.wanted(own.ip)));
        assert!(Checksums::On.wanted(here[0]) && !Checksums::Off.wanted(elsewhere));
    }
}
