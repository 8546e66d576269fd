//! Names under which pods ask for the device.

use std::fmt;
use std::str::FromStr;

/// Domain of our own names; others belong to others' plugins.
const OWN: &str = "causeway.dev";
/// Domain that Kubernetes keeps to itself.
const RESERVED: &str = "kubernetes.io";
/// Longest name after the domain (Kubernetes, "Labels and Selectors").
const NAME_MAX: usize = 63;
/// Longest domain.
const DOMAIN_MAX: usize = 253;

/// An extended resource: a domain, a slash and a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource(String);

impl Resource {
    /// Whether the name belongs to others' plugins, as `rdma/ib`.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        let domain = self.0.split('/').next().unwrap_or_default();
        domain != OWN && !domain.ends_with(&format!(".{OWN}"))
    }

    /// Name of the socket on which the plugin serves this name.
    #[must_use]
    pub fn socket_name(&self) -> String {
        format!("causeway-{}.sock", self.0.replace('/', "_"))
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Resource {
    type Err = String;

    fn from_str(text: &str) -> Result<Resource, String> {
        let (domain, name) = text.split_once('/').ok_or("no domain before a slash")?;
        if domain.is_empty() || domain.len() > DOMAIN_MAX || !domain.split('.').all(is_label) {
            return Err("the domain is none".to_owned());
        }
        if domain == RESERVED || domain.ends_with(&format!(".{RESERVED}")) {
            return Err(format!("{RESERVED} is Kubernetes' own"));
        }
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = name.as_bytes();
        let good = bytes.len() <= NAME_MAX && bytes.iter().all(|&byte| inner(byte));
        if !good || !ends(bytes.first()) || !ends(bytes.last()) {
            return Err(format!(
                "at most {NAME_MAX} letters, digits and -_. after the slash"
            ));
        }
        Ok(Resource(text.to_owned()))
    }
}

/// Whether a part of a domain is well-formed.
fn is_label(label: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let ends = |byte: Option<&u8>| byte.is_some_and(|&byte| inner(byte) && byte != b'-');
    let bytes = label.as_bytes();
    bytes.len() <= NAME_MAX
        && bytes.iter().all(|&byte| inner(byte))
        && ends(bytes.first())
        && ends(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_kubernetes_takes_are_taken() {
        for name in [
            "causeway.dev/rdma",
            "rdma/ib",
            "rdma/hca_shared_devices_a",
            "a.b-c.d/E.f",
        ] {
            assert_eq!(name.parse::<Resource>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn other_names_are_refused() {
        let long = format!("rdma/{}", "x".repeat(NAME_MAX + 1));
        let names = [
            "rdma",
            "/ib",
            "rdma/",
            "rdma/-ib",
            "rdma/ib_",
            "Rdma/ib",
            "a..b/ib",
            "rdma/i/b",
            "kubernetes.io/rdma",
            "x.kubernetes.io/rdma",
            "../ib",
            &long,
        ];
        for name in names {
            assert!(name.parse::<Resource>().is_err(), "{name}");
        }
    }

    #[test]
    fn what_is_not_of_our_domain_is_foreign() {
        let foreign = |name: &str| name.parse::<Resource>().unwrap().is_foreign();
        assert!(!foreign("causeway.dev/rdma") && !foreign("lab.causeway.dev/rdma"));
        assert!(foreign("rdma/ib") && foreign("notcauseway.dev/rdma"));
    }
}
