//! The table `[wire]`: which wires to other hosts are secured, and by which keys.

use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use causeway_fabric::limits::SERVICE_LEVELS;
use causeway_fabric::services::secure::{WireQuery, WireReply};
use causeway_fabric::setting;
use rustix::io::Errno;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::values::{Count, tables};
use crate::keys::WireKeys;

/// Setting that names a key file where the configuration names none.
pub const KEY_VARIABLE: &str = "CAUSEWAY_WIRE_KEY";
/// Highest DSCP (RFC 2474): six bits.
const DSCP_MAX: usize = 63;
/// Bits of a mapped address (RFC 4291, 2.5.5.2) before those of IPv4.
const MAPPED_BITS: u32 = 96;
/// Bits below a DSCP (RFC 3168).
const ECN_BITS: u32 = 2;
/// Most networks that are told apart.
pub const NETWORKS_MAX: usize = 256;

/// The table.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table: [wire]")]
pub(super) struct WireTable {
    #[serde(default)]
    secure: Secure,
    key: Option<PathBuf>,
    #[serde(default, deserialize_with = "tables")]
    network: Vec<NetworkTable>,
    #[serde(default)]
    dscp: Vec<Count<DSCP_MAX>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of a network")]
struct NetworkTable {
    network: Named,
    secure: Secure,
}

/// A network, and how the file names it.
struct Named(Network, String);

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let odd = || format!("{text:?} is not a network such as \"10.0.0.0/8\"");
        let found = Network::parse(&text).ok_or_else(|| D::Error::custom(odd()))?;
        Ok(Named(found, text))
    }
}

/// Whether datagrams must be sealed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Secure {
    /// Only where the program's user asks for it.
    #[default]
    Off,
    /// Always.
    Required,
}

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// As bits of a mapped address.
    bits: u128,
    /// Of these, how many count.
    length: u32,
}

impl Network {
    /// Understands a text such as `10.0.0.0/8`; one without a length is an address.
    fn parse(text: &str) -> Option<Network> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.trim().parse().ok()?;
        let before = if address.is_ipv4() { MAPPED_BITS } else { 0 };
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = length.unwrap_or(most);
        (length <= most).then_some(())?;
        let network = Network {
            bits: bits(address),
            length: before + length,
        };
        // A host's address with a network's length is a mistake more often than not.
        (network.bits & !network.mask() == 0).then_some(network)
    }

    fn mask(&self) -> u128 {
        match self.length {
            0 => 0,
            length => u128::MAX << (128 - length),
        }
    }

    /// Whether an address is one of these. Those of IPv4 are in no network of IPv6: who writes
    /// `::/0` does not mean them.
    fn holds(&self, address: u128) -> bool {
        let is_mapped = Ipv6Addr::from_bits(address).to_ipv4_mapped().is_some();
        address & self.mask() == self.bits && (self.length >= MAPPED_BITS || !is_mapped)
    }
}

/// An address as 128 bits; one of IPv4 is mapped.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// What holds for a tenant's wires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireRules {
    /// Whether they are secured, unless the peer's network has a rule.
    pub secure: bool,
    /// Networks with rules of their own.
    pub networks: Vec<(Network, bool)>,
    /// The keys; none if there are none.
    pub keys: WireKeys,
    /// The traffic class of datagrams by service level.
    pub classes: Vec<u8>,
}

impl WireRules {
    /// Whether a wire to the port with this GID is to be secured.
    pub fn requires(&self, gid: Option<[u8; 16]>) -> bool {
        let Some(gid) = gid else { return self.secure };
        let address = u128::from_be_bytes(gid);
        let found = self.networks.iter().filter(|(net, _)| net.holds(address));
        found
            .max_by_key(|(net, _)| net.length)
            .map_or(self.secure, |(_, secure)| *secure)
    }

    /// Whether a wire to anybody at all is.
    pub fn may_require(&self) -> bool {
        self.secure || self.networks.iter().any(|(_, secure)| *secure)
    }

    /// Whether the wire that a program asks about is to be secured.
    ///
    /// # Errors
    /// `ENOKEY` where it is, and there is no key for it.
    pub fn answer(&self, query: &WireQuery) -> Result<WireReply, Errno> {
        let required = if query.any_peer {
            self.may_require()
        } else {
            self.requires(query.remote_gid)
        };
        let secured = query.wanted || required;
        if secured && self.keys.is_empty() {
            return Err(Errno::NOKEY);
        }
        Ok(WireReply { secured })
    }

    fn check(self) -> Result<WireRules, String> {
        if self.may_require() && self.keys.is_empty() {
            return Err(
                "the wire is to be secured without a key: name a key file by key in [wire], by \
                        wire_key in the [[tenant]], or by CAUSEWAY_WIRE_KEY"
                    .into(),
            );
        }
        Ok(self)
    }
}

impl WireTable {
    /// What holds for tenants that do not say otherwise.
    pub fn rules(&self) -> Result<WireRules, String> {
        if self.network.len() > NETWORKS_MAX {
            return Err(format!("[wire] has more than {NETWORKS_MAX} networks"));
        }
        WireRules {
            secure: self.secure == Secure::Required,
            networks: networks(&self.network)?,
            keys: match &self.key {
                Some(path) => WireKeys::load(path)?,
                None => default_keys()?,
            },
            classes: classes(&self.dscp)?,
        }
        .check()
    }
}

/// What the tables say of networks.
fn networks(tables: &[NetworkTable]) -> Result<Vec<(Network, bool)>, String> {
    let mut known: Vec<(Network, bool)> = Vec::with_capacity(tables.len());
    for NetworkTable { network, secure } in tables {
        let Named(found, network) = network;
        let rule = (*found, *secure == Secure::Required);
        // Neither is the longer one: which of them is meant can't be told.
        if known.contains(&(rule.0, !rule.1)) {
            return Err(format!(
                "[wire] has the network {network:?} twice: once it is secured, and once it is not"
            ));
        }
        known.push(rule);
    }
    Ok(known)
}

/// The traffic class of datagrams by service level, whose DSCPs are these. The lower two bits are
/// those of congestion notification (RFC 3168): the transport's.
fn classes(dscp: &[Count<DSCP_MAX>]) -> Result<Vec<u8>, String> {
    if dscp.len() > SERVICE_LEVELS {
        return Err(format!(
            "dscp names more than {SERVICE_LEVELS} service levels"
        ));
    }
    Ok(dscp
        .iter()
        .map(|value| (value.0 as u8) << ECN_BITS)
        .collect())
}

/// The keys that the environment names.
pub(super) fn default_keys() -> Result<WireKeys, String> {
    match setting(KEY_VARIABLE) {
        Some(path) if !path.is_empty() => WireKeys::load(Path::new(&path)),
        _ => Ok(WireKeys::default()),
    }
}

/// What a tenant's own settings make of what holds for all.
pub(super) fn of_tenant(
    rules: &WireRules,
    secure: Option<Secure>,
    key: Option<&Path>,
) -> Result<WireRules, String> {
    let mut own = rules.clone();
    if let Some(secure) = secure {
        own.secure = secure == Secure::Required;
    }
    if let Some(path) = key {
        own.keys = WireKeys::load(path)?;
    }
    own.check()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Option<[u8; 16]> {
        Some(bits(text.parse().unwrap()).to_be_bytes())
    }

    #[test]
    fn the_longest_network_counts() {
        let rule = |text, secure| (Network::parse(text).unwrap(), secure);
        let rules = WireRules {
            secure: false,
            networks: vec![
                rule("10.0.0.0/8", true),
                rule("10.1.0.0/16", false),
                rule("10.1.2.3", true),
                rule("fd00::/8", true),
            ],
            ..WireRules::default()
        };
        for (address, secured) in [
            ("10.0.0.1", true),
            ("10.1.0.1", false),
            ("10.1.2.3", true),
            ("11.0.0.1", false),
            ("fd12::1", true),
            ("fe80::1", false),
        ] {
            assert_eq!(rules.requires(gid(address)), secured, "{address}");
        }
        assert!(!rules.requires(None) && rules.may_require());
        assert!(rules.check().is_err(), "no key");
        let all = WireRules {
            classes: Vec::new(),
            secure: true,
            networks: vec![rule("0.0.0.0/0", false), rule("::/0", true)],
            keys: WireKeys::default(),
        };
        assert!(
            all.requires(None) && !all.requires(gid("1.2.3.4")) && all.requires(gid("2001::1"))
        );
    }

    #[test]
    fn a_network_of_ipv6_is_none_of_ipv4() {
        for (network, address, holds) in [
            ("::/0", "1.2.3.4", false),
            ("::/0", "2001::1", true),
            ("::/64", "1.2.3.4", false),
            ("::ffff:0.0.0.0/96", "1.2.3.4", true),
            ("::ffff:10.0.0.0/104", "10.2.3.4", true),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.0.0/0", "::1", false),
        ] {
            let found = Network::parse(network).unwrap();
            let address = u128::from_be_bytes(gid(address).unwrap());
            assert_eq!(found.holds(address), holds, "{network} {address:#x}");
        }
    }

    #[test]
    fn a_network_has_one_rule() {
        let parse = |other: &str, secure: &str| {
            crate::config::Config::parse(&format!(
                "[wire]\nnetwork = [{{ network = \"10.9.0.0/16\", secure = \"off\" }}, \
                 {{ network = \"{other}\", secure = \"{secure}\" }}]"
            ))
        };
        for same in ["10.9.0.0/16", "::ffff:10.9.0.0/112"] {
            let why = parse(same, "required").unwrap_err();
            assert!(why.contains(same) && why.contains("twice"), "{why}");
            assert!(parse(same, "off").is_ok());
        }
        let why = parse("10.9.0.0/17", "required").unwrap_err();
        assert!(why.contains("without a key"), "{why}");
    }

    #[test]
    fn networks_are_written_as_such() {
        for bad in [
            "",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "::/129",
            "ten/8",
            "10.0.0.0/-1",
            "fd00::1/64",
        ] {
            assert_eq!(Network::parse(bad), None, "{bad}");
        }
        assert_eq!(Network::parse("::").unwrap().length, 128);
    }

    #[test]
    fn service_levels_have_traffic_classes() {
        let parse = |text: &str| crate::config::Config::parse(text);
        let config = parse("[wire]\ndscp = [0, 10, 63]").unwrap();
        assert_eq!(config.tenants[0].wire.classes, [0, 40, 252]);
        assert!(parse("").unwrap().tenants[0].wire.classes.is_empty());
        for (text, wanted) in [("64", "a number from 0 to 63"), (&"0, ".repeat(17), "16")] {
            let why = parse(&format!("[wire]\ndscp = [{text}]")).unwrap_err();
            assert!(why.contains(wanted), "{why}");
        }
    }
}
