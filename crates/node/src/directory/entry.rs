//! What is in the directory: keys and values, validated as any foreign bytes are.

use std::net::IpAddr;

use causeway_directory::{is_address, is_name};
use causeway_fabric::services::directory::NODE_ADDRESSES_MAX;
use causeway_fabric::services::sisci::is_node_id;
use serde::{Deserialize, Serialize};

use crate::limits::{PUBLIC_KEY_BYTES_MAX, TENANTS_MAX, VALUE_BYTES_MAX};

/// What a key names, below a cluster's prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// `ids/HOST`: the host's node id.
    Id(String),
    /// `nodes/ID`: what a node says of itself as long as it lives.
    Node(u32),
    /// `names/NAME`: the id of the node of that name.
    Name(String),
    /// `tenants/NAME`: where a tenant is served. Operators write it.
    Tenant(String),
}

/// What a node says of itself.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct NodeRecord {
    /// Its addresses, the best first.
    pub addresses: Vec<IpAddr>,
    /// TCP port of its daemon.
    pub port: u16,
    /// Its release.
    pub version: String,
    /// Version of the remoting protocol, which a peer must speak too.
    pub protocol: u16,
    /// Names of the tenants that it serves.
    pub tenants: Vec<String>,
    /// How many connections of other hosts it takes.
    pub connections: u32,
    /// For those who prove by a key who they are; may be empty.
    #[serde(default)]
    pub public_key: String,
}

/// What operators say of a tenant.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub struct TenantRecord {
    /// The nodes that serve it; without this, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<u32>>,
    /// How many connections of other hosts each of its node daemons takes; without this, as many
    /// as the daemon can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
}

/// Where all of a cluster is.
pub fn prefix(cluster: &str) -> String {
    format!("/causeway/v1/{cluster}/")
}

impl Key {
    /// Understands what follows a cluster's prefix.
    pub fn parse(text: &str) -> Option<Key> {
        let (kind, name) = text.split_once('/')?;
        if !is_name(name) {
            return None;
        }
        match kind {
            "ids" => Some(Key::Id(name.to_owned())),
            "names" => Some(Key::Name(name.to_owned())),
            "tenants" => Some(Key::Tenant(name.to_owned())),
            "nodes" => parse_id(name.as_bytes()).map(Key::Node),
            _ => None,
        }
    }

    /// What follows a cluster's prefix.
    pub fn text(&self) -> String {
        match self {
            Key::Id(host) => format!("ids/{host}"),
            Key::Node(id) => format!("nodes/{id}"),
            Key::Name(name) => format!("names/{name}"),
            Key::Tenant(name) => format!("tenants/{name}"),
        }
    }
}

/// A node id in decimal digits, without others and without leading zeros.
pub fn parse_id(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text).ok()?;
    let id: u32 = text.parse().ok()?;
    (is_node_id(id) && id.to_string() == text).then_some(id)
}

impl NodeRecord {
    /// Understands a value.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(value: &[u8]) -> Result<NodeRecord, String> {
        let record: NodeRecord = parse(value)?;
        if !(1..=NODE_ADDRESSES_MAX).contains(&record.addresses.len()) {
            return Err(format!("{} addresses", record.addresses.len()));
        }
        if let Some(odd) = record.addresses.iter().find(|a| !is_address(a)) {
            return Err(format!("{odd} is not an address of a host"));
        }
        if record.port == 0 {
            return Err("port 0".to_owned());
        }
        let tenants = record.tenants.iter().all(|tenant| is_name(tenant));
        if !tenants || record.tenants.len() > TENANTS_MAX {
            return Err("bad tenants".to_owned());
        }
        if !is_name(&record.version) {
            return Err("bad version".to_owned());
        }
        let key = &record.public_key;
        if key.len() > PUBLIC_KEY_BYTES_MAX || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("bad public key".to_owned());
        }
        Ok(record)
    }

    /// The value that says this.
    pub fn text(&self) -> String {
        // Fails for no value of this type.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl TenantRecord {
    /// Understands a value.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(value: &[u8]) -> Result<TenantRecord, String> {
        let record: TenantRecord = parse(value)?;
        let odd = record.nodes.iter().flatten().find(|id| !is_node_id(**id));
        match odd {
            Some(odd) => Err(format!("{odd} is not a node id")),
            None => Ok(record),
        }
    }

    /// The value that says this.
    pub fn text(&self) -> String {
        // Fails for no value of this type.
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn parse<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Result<T, String> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(format!("{} bytes", value.len()));
    }
    serde_json::from_slice(value).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_they_say_and_nothing_else() {
        for text in [
            "ids/host-1.example",
            "nodes/8",
            "names/front",
            "tenants/web",
        ] {
            assert_eq!(Key::parse(text).unwrap().text(), text);
        }
        let long = format!("ids/{}", "h".repeat(causeway_directory::NAME_BYTES_MAX + 1));
        let bad = [
            "",
            "ids",
            "ids/",
            "ids/a/b",
            "ids/a b",
            "ids/\u{e9}",
            "nodes/0",
            "nodes/08",
            "nodes/252",
            "nodes/65536",
            "nodes/+8",
            "nodes/x",
            "segments/1",
            "/ids/a",
            &long,
        ];
        for text in bad {
            assert_eq!(Key::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn records_are_validated() {
        let good = r#"{"addresses":["10.0.0.1","fd00::1"],"port":20480,"version":"0.1.0",
            "protocol":11,"tenants":["web"],"connections":512,"later":"ignored"}"#;
        let record = NodeRecord::parse(good.as_bytes()).unwrap();
        assert_eq!(NodeRecord::parse(record.text().as_bytes()).unwrap(), record);
        let long_key = format!("\"later\":1,\"public_key\":\"{}\"", "k".repeat(1025));
        let nine = format!("[{}\"10.0.0.9\"]", "\"10.0.0.1\",".repeat(8));
        let cases = [
            (r#"["10.0.0.1","fd00::1"]"#, "[]"),
            (r#"["10.0.0.1","fd00::1"]"#, nine.as_str()),
            ("10.0.0.1", "10.0.0.300"),
            ("10.0.0.1", "127.0.0.1"),
            ("10.0.0.1", "0.0.0.0"),
            ("fd00::1", "ff02::1"),
            ("20480", "0"),
            ("20480", "65536"),
            ("\"web\"", "\"we b\""),
            ("0.1.0", "0.1.0\\n"),
            ("\"later\":\"ignored\"", long_key.as_str()),
            ("\"later\":\"ignored\"", "\"public_key\":\"\\u0007\""),
            ("\"later\":\"ignored\"", "\"later\":"),
        ];
        for (old, new) in cases {
            let bad = good.replace(old, new);
            assert!(NodeRecord::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        let padded = good.replace("ignored", &"x".repeat(VALUE_BYTES_MAX));
        assert!(NodeRecord::parse(padded.as_bytes()).is_err());
        let web = TenantRecord::parse(br#"{"nodes":[8,12],"connections":3}"#).unwrap();
        assert_eq!((web.nodes, web.connections), (Some(vec![8, 12]), Some(3)));
        assert_eq!(TenantRecord::parse(b"{}").unwrap(), TenantRecord::default());
        assert!(TenantRecord::parse(br#"{"nodes":[252]}"#).is_err());
    }
}
