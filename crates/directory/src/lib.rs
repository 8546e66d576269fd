//! The table `[sisci.directory]` of the configuration (docs/OPERATIONS.md describes it).
//!
//! The node daemon uses it. The broker, which reads the same file, checks it when it starts, so
//! that a mistake is not left to the log of a daemon that starts later.

use std::io::Read;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use causeway_fabric::services::directory::NODE_ADDRESSES_MAX;
use serde::Deserialize;

/// Shortest lease that etcd can keep to, in seconds.
const LEASE_SECONDS_MIN: u64 = 1;
/// Longest: a node that is gone is not noticed for so long.
const LEASE_SECONDS_MAX: u64 = 3600;
/// Shortest time between renewals, in milliseconds.
const RENEW_MS_MIN: u64 = 50;
/// Most members of etcd.
const ENDPOINTS_MAX: usize = 16;
/// Longest name in the directory, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest configuration that is read.
pub const CONFIGURATION_BYTES_MAX: u64 = 4 << 20;
/// Where the last view is kept.
const CACHE_DIR: &str = "/var/lib/causeway";

/// Files that show who etcd is, and who this host is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Certificates that are believed.
    pub ca: Option<PathBuf>,
    /// This host's certificate and its key.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// A user of etcd's, and the file with the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The user.
    pub user: String,
    /// The file, which group and others can neither read nor write. It is read each time that a
    /// token is asked for, so a new password needs no new daemon.
    pub password_file: PathBuf,
}

/// Where the directory is, and what this host says there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// URLs of etcd's members.
    pub etcd: Vec<String>,
    /// For `https`.
    pub tls: Tls,
    /// Where etcd asks for user and password.
    pub login: Option<Login>,
    /// The cluster: its part of etcd's keys.
    pub cluster: String,
    /// This host's name there.
    pub host: String,
    /// A name for its node.
    pub name: Option<String>,
    /// The tenant that is served.
    pub tenant: String,
    /// This host's addresses; none: the one from which it reaches etcd.
    pub addresses: Vec<IpAddr>,
    /// Whether who has a node's address is believed to be part of it.
    pub trusted: bool,
    /// How long this node is taken for present after it was last heard of.
    pub lease: Duration,
    /// How often the lease is renewed. One member is waited for as long.
    pub renew: Duration,
    /// File that keeps the last view.
    pub cache: PathBuf,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    sisci: SisciTable,
}

/// The rest is the broker's, which checks it.
#[derive(Default, Deserialize)]
struct SisciTable {
    directory: Option<DirectoryTable>,
}

/// The table as it stands in the file; [`DirectoryTable::resolve`] checks it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectoryTable {
    etcd: Vec<String>,
    cluster: String,
    host: Option<String>,
    name: Option<String>,
    #[serde(default = "default_tenant")]
    tenant: String,
    #[serde(default)]
    addresses: Vec<IpAddr>,
    trust: Option<Trust>,
    #[serde(default = "default_lease")]
    lease_seconds: u64,
    #[serde(default = "default_renewal")]
    renew_ms: u64,
    cache: Option<PathBuf>,
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    user: Option<String>,
    password_file: Option<PathBuf>,
}

/// By what a process of another host shows which node it is part of.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Trust {
    /// By the address that it comes from.
    Address,
}

fn default_tenant() -> String {
    "default".to_owned()
}

fn default_lease() -> u64 {
    10
}

fn default_renewal() -> u64 {
    3000
}

impl Settings {
    /// Reads a file; `None` if it names no directory.
    ///
    /// # Errors
    /// Text for the user: the file can't be read or understood.
    pub fn load(path: &Path) -> Result<Option<Settings>, String> {
        let at = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let file = std::fs::File::open(path).map_err(|why| at(&why))?;
        let mut text = String::new();
        let mut limited = file.take(CONFIGURATION_BYTES_MAX);
        limited.read_to_string(&mut text).map_err(|why| at(&why))?;
        Settings::parse(&text).map_err(|why| at(&why))
    }

    /// Understands the text of a file.
    ///
    /// # Errors
    /// Text for the user.
    pub fn parse(text: &str) -> Result<Option<Settings>, String> {
        let file: File = toml::from_str(text).map_err(|why| why.to_string())?;
        file.sisci
            .directory
            .map(DirectoryTable::resolve)
            .transpose()
    }
}

impl DirectoryTable {
    /// Checks it, and fills in what is not said.
    ///
    /// # Errors
    /// Text for the user.
    pub fn resolve(self) -> Result<Settings, String> {
        let table = self;
        let (lease, renew) = times(&table)?;
        let names = [("cluster", &table.cluster), ("tenant", &table.tenant)];
        // The host's own name is what it is: only one that is written here is looked at.
        let written = [("host", &table.host), ("name", &table.name)];
        let written = written
            .into_iter()
            .filter_map(|(what, name)| Some((what, name.as_ref()?)));
        let names = names.into_iter().chain(written);
        for (what, name) in names {
            if !is_name(name) {
                return Err(format!(
                    "{what} {name:?} of the directory is not 1 to {NAME_BYTES_MAX} letters, \
                     digits, '.', '_' or '-'"
                ));
            }
        }
        if table.etcd.is_empty() || table.etcd.len() > ENDPOINTS_MAX {
            return Err(format!(
                "etcd names {} members; it must name 1 to {ENDPOINTS_MAX} members",
                table.etcd.len()
            ));
        }
        let etcd: Result<Vec<String>, String> =
            table.etcd.iter().map(|url| endpoint(url)).collect();
        let etcd = etcd?;
        if let Some(odd) = table.addresses.iter().find(|address| !is_address(address)) {
            return Err(format!("{odd} is not an address that other hosts reach"));
        }
        if table.addresses.len() > NODE_ADDRESSES_MAX {
            return Err(format!(
                "addresses has more than {NODE_ADDRESSES_MAX} addresses"
            ));
        }
        check_paths(&table)?;
        let own = match (table.certificate, table.key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err("certificate and key belong together: set both or neither".to_owned()),
        };
        if table.ca.is_none() && etcd.iter().any(|url| url.starts_with("https:")) {
            return Err("an https URL needs ca, a file with the trusted certificates".to_owned());
        }
        let login = login(table.user, table.password_file, &etcd)?;
        let cache = table.cache.unwrap_or_else(|| {
            let name = format!("directory-{}-{}.json", table.cluster, table.tenant);
            Path::new(CACHE_DIR).join(name)
        });
        let host = table.host.unwrap_or_else(own_name);
        Ok(Settings {
            etcd,
            tls: Tls { ca: table.ca, own },
            login,
            cluster: table.cluster,
            host,
            name: table.name,
            tenant: table.tenant,
            addresses: table.addresses,
            trusted: matches!(table.trust, Some(Trust::Address)),
            lease,
            renew,
            cache,
        })
    }
}

/// How long the lease lasts, and how often it is renewed.
fn times(table: &DirectoryTable) -> Result<(Duration, Duration), String> {
    let lease = Duration::from_secs(table.lease_seconds);
    let renew = Duration::from_millis(table.renew_ms);
    if !(LEASE_SECONDS_MIN..=LEASE_SECONDS_MAX).contains(&table.lease_seconds) {
        return Err(format!(
            "lease_seconds = {} is not within {LEASE_SECONDS_MIN} and {LEASE_SECONDS_MAX}",
            table.lease_seconds
        ));
    }
    if table.renew_ms < RENEW_MS_MIN || renew * 2 > lease {
        return Err(format!(
            "renew_ms = {} must be at least {RENEW_MS_MIN} and at most half of lease_seconds",
            table.renew_ms
        ));
    }
    Ok((lease, renew))
}

/// The host's name, as the system has it.
fn own_name() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

/// Whether its files are named by absolute paths: the broker that checks the table and the daemon
/// that uses it may run in different directories.
fn check_paths(table: &DirectoryTable) -> Result<(), String> {
    let files = [
        ("cache", &table.cache),
        ("ca", &table.ca),
        ("certificate", &table.certificate),
        ("key", &table.key),
        ("password_file", &table.password_file),
    ];
    for (what, file) in files {
        if let Some(relative) = file.as_ref().filter(|file| !file.is_absolute()) {
            return Err(format!("{what} = {relative:?} is not an absolute path"));
        }
    }
    Ok(())
}

/// Who this host is to etcd, if etcd asks.
fn login(
    user: Option<String>,
    password_file: Option<PathBuf>,
    etcd: &[String],
) -> Result<Option<Login>, String> {
    match (user, password_file) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) if !etcd.iter().all(|url| url.starts_with("https:")) => Err(
            "user and password_file need https URLs: a password is sent by https alone".to_owned(),
        ),
        (Some(user), Some(password_file)) if !user.is_empty() => Ok(Some(Login {
            user,
            password_file,
        })),
        _ => Err("user and password_file belong together: set both or neither".to_owned()),
    }
}

/// Whether a text may be a name in the directory: letters, digits, `.`, `_`, `-`.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(fine)
}

/// Whether an address may be a node's.
#[must_use]
pub fn is_address(address: &IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && !address.is_loopback()
}

/// A URL of a member, without a slash at its end.
fn endpoint(url: &str) -> Result<String, String> {
    let plain = url.trim_end_matches('/');
    let rest = plain
        .strip_prefix("http://")
        .or_else(|| plain.strip_prefix("https://"));
    let parts = rest.and_then(|rest| rest.rsplit_once(':'));
    match parts.map(|(host, port)| (is_host(host), port.parse::<u16>())) {
        Some((true, Ok(1..))) => Ok(plain.to_owned()),
        _ => Err(format!(
            "{url:?} is not http://HOST:PORT or https://HOST:PORT"
        )),
    }
}

/// Whether a text may be the host of a URL: a name, an IPv4 address, or an IPv6 one in brackets.
fn is_host(text: &str) -> bool {
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match inner {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !text.is_empty() && text.bytes().all(fine),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "[limits]\nqps = 5\n[[sisci.node]]\nid = 3\n[sisci.directory]\n\
         etcd = ['http://10.0.0.9:2379/']\ncluster = 'lab'\nhost = 'a'\n";

    #[test]
    fn a_table_is_understood() {
        assert_eq!(Settings::parse("[[sisci.node]]\nid = 3\n"), Ok(None));
        let six = PLAIN.replace("10.0.0.9:", "[fd00::9]:");
        let six = Settings::parse(&six).unwrap().unwrap();
        assert_eq!(six.etcd, ["http://[fd00::9]:2379"]);
        let plain = Settings::parse(PLAIN).unwrap().unwrap();
        assert_eq!(plain.etcd, ["http://10.0.0.9:2379"]);
        assert_eq!(plain.lease, Duration::from_secs(10));
        assert_eq!(plain.renew, Duration::from_secs(3));
        assert_eq!(
            plain.cache,
            Path::new("/var/lib/causeway/directory-lab-default.json")
        );
        assert!(!plain.trusted && plain.tls == Tls::default());
        let more = format!(
            "{PLAIN}name = 'n'\ntenant = 'web'\naddresses = ['10.0.0.1']\ntrust = 'address'\n\
             lease_seconds = 1\nrenew_ms = 300\nca = '/ca'\ncertificate = '/c'\nkey = '/k'\n"
        );
        let more = Settings::parse(&more).unwrap().unwrap();
        assert!(more.trusted && more.name.as_deref() == Some("n"));
        assert_eq!(more.tls.own, Some(("/c".into(), "/k".into())));
        let known = PLAIN.replace("http:", "https:");
        let known = format!("{known}ca = '/ca'\nuser = 'u'\npassword_file = '/p'\n");
        let known = Settings::parse(&known).unwrap().unwrap();
        assert!(known.login.is_some_and(|login| login.user == "u"));
        let own = PLAIN.replace("host = 'a'", "");
        assert!(!Settings::parse(&own).unwrap().unwrap().host.is_empty());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (old, new, why) in [
            (
                "http://10.0.0.9:2379/",
                "ftp://10.0.0.9:2379",
                "is not http",
            ),
            ("http://10.0.0.9:2379/", "http://10.0.0.9", "is not http"),
            (
                "http://10.0.0.9:2379/",
                "http://user@10.0.0.9:1",
                "is not http",
            ),
            ("10.0.0.9:2379/", ":2379", "is not http"),
            ("10.0.0.9:2379/", "10.0.0 9:2379", "is not http"),
            ("10.0.0.9:2379/", "::1:2379", "is not http"),
            ("10.0.0.9:2379/", "[10.0.0.9]:2379", "is not http"),
            ("10.0.0.9:2379/", "10.0.0.9/a:2379", "is not http"),
            ("http://", "https://", "needs ca"),
            ("['http://10.0.0.9:2379/']", "[]", "1 to 16 members"),
            ("'lab'", "'l/ab'", "cluster \"l/ab\""),
            ("host = 'a'", "host = ''", "host \"\""),
            ("host = 'a'", "addresses = ['127.0.0.1']", "127.0.0.1"),
            ("host = 'a'", "lease_seconds = 0", "lease_seconds = 0"),
            ("host = 'a'", "renew_ms = 6000", "at most half"),
            ("host = 'a'", "renew_ms = 1", "at least"),
            ("host = 'a'", "key = '/k'", "belong together"),
            ("host = 'a'", "user = 'u'", "belong together"),
            (
                "host = 'a'",
                "user = 'u'\npassword_file = '/p'",
                "by https alone",
            ),
            ("host = 'a'", "cache = 'c.json'", "cache = \"c.json\""),
            ("host = 'a'", "ca = 'ca.pem'", "ca = \"ca.pem\""),
            (
                "host = 'a'",
                "certificate = 'c'\nkey = '/k'",
                "certificate = \"c\"",
            ),
            ("host = 'a'", "certificate = '/c'\nkey = 'k'", "key = \"k\""),
            ("host = 'a'", "endpoints = []", "unknown field"),
            ("host = 'a'", "trust = 'all'", "unknown variant"),
        ] {
            let text = PLAIN.replace(old, new);
            let said = Settings::parse(&text).unwrap_err();
            assert!(said.contains(why), "{new}: {said}");
        }
    }
}
