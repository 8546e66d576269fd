//! The configuration file: tenants, limits and SISCI's nodes (docs/OPERATIONS.md describes it).
//!
//! Names of users and groups are resolved once, when the broker starts.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use causeway_fabric::limits::{
    BLOCKS_PER_SESSION_MAX, BLOCKS_PER_TENANT_MAX, ENDPOINTS_MAX, POOLS_PER_TENANT_MAX,
    QPS_PER_ENDPOINT_MAX, SEGMENTS_PER_ENDPOINT_MAX,
};
use causeway_fabric::runtime::RUNTIME_DIR_ROOT;
use causeway_fabric::services::limit::Rates;
use serde::Deserialize;

use crate::keys::Key;
use crate::nodes::NodeSpec;

mod rates;
mod sisci;
mod values;
pub mod wire;
use rates::{RatesTable, VmTable};
use sisci::SisciTable;
use values::{Amount, Count, Groups, Id, Mode, Trusted, Users};
use wire::{Secure, WireRules, WireTable};

/// Read by root's broker of [`RUNTIME_DIR_ROOT`] if it exists and no other is named.
pub use causeway_fabric::runtime::CONFIG_ROOT as DEFAULT_PATH;
/// Name of the tenant that the runtime directory's socket leads to.
pub const OWN_TENANT: &str = "default";
/// Most tenants, that one included.
pub const TENANTS_MAX: usize = 255;
/// Longest configuration, in bytes.
pub const CONFIG_BYTES_MAX: u64 = 4 << 20;
/// Longest name of a tenant, in bytes.
pub const TENANT_NAME_MAX: usize = 32;
/// Mode of a tenant's socket unless said otherwise: user and group decide what is admitted.
const SOCKET_MODE: u32 = 0o666;

/// Limits of a tenant and of each of its endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Endpoints of the tenant.
    pub endpoints: usize,
    /// Connected queue pairs of an endpoint.
    pub qps: usize,
    /// Segments of an endpoint.
    pub segments: usize,
    /// Bytes of memory that an endpoint moves into its segments.
    pub bytes: u64,
    /// Pools of the tenant.
    pub pools: usize,
    /// Blocks of a session.
    pub blocks: usize,
    /// Their bytes.
    pub block_bytes: u64,
    /// Blocks of the tenant.
    pub tenant_blocks: usize,
    /// Their bytes.
    pub tenant_block_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            endpoints: ENDPOINTS_MAX,
            qps: QPS_PER_ENDPOINT_MAX,
            segments: SEGMENTS_PER_ENDPOINT_MAX,
            bytes: u64::MAX,
            pools: POOLS_PER_TENANT_MAX,
            blocks: BLOCKS_PER_SESSION_MAX,
            block_bytes: u64::MAX,
            tenant_blocks: BLOCKS_PER_TENANT_MAX,
            tenant_block_bytes: u64::MAX,
        }
    }
}

/// Some users, by number and by group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Users.
    pub users: Vec<u32>,
    /// Groups, as primary or supplementary ones.
    pub groups: Vec<u32>,
}

impl Members {
    /// Whether a process is one of them: its user, and what gives its groups if asked.
    pub fn contain(&self, uid: u32, groups: impl FnOnce() -> Vec<u32>) -> bool {
        self.users.contains(&uid)
            || !self.groups.is_empty() && groups().iter().any(|gid| self.groups.contains(gid))
    }
}

/// Where a tenant's socket is, and its mode and owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketSpec {
    /// Its path, absolute.
    pub path: PathBuf,
    /// Its mode.
    pub mode: u32,
    /// Its owner, if not the broker.
    pub owner: Option<u32>,
    /// Its group, if not the broker's.
    pub group: Option<u32>,
}

/// A set of endpoints that may share memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// For people.
    pub name: String,
    /// `None`: the runtime directory's.
    pub socket: Option<SocketSpec>,
    /// The users and groups that are admitted.
    pub members: Members,
    /// The users and groups that may have the broker's userfaultfd device.
    pub userfaultfd: Members,
    /// Whether its processes are one trust boundary, whatever their users and PID namespaces.
    pub one_boundary: bool,
    /// Its limits.
    pub limits: Limits,
    /// By which its processes and node daemons know each other on other hosts.
    pub key: Option<Key>,
    /// What holds for its wires to other hosts.
    pub wire: WireRules,
    /// What its processes may send.
    pub rates: Rates,
}

/// What a broker serves: first the tenant of the runtime directory's socket, then others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The tenants.
    pub tenants: Vec<Tenant>,
    /// By name, what the processes of virtual machines may send.
    pub vms: BTreeMap<String, Rates>,
    /// SISCI's nodes.
    pub nodes: Vec<NodeSpec>,
    /// Name of the cluster that they are; empty if it has none.
    pub cluster: String,
    /// Whether the broker starts this host's node daemon; if nothing is said, where there is need.
    pub node_daemon: Option<bool>,
    /// The tenant whose nodes a directory names that the node daemon is to join.
    pub directory_tenant: Option<String>,
    /// The file that all that was read from.
    pub file: Option<PathBuf>,
}

impl Config {
    /// Without a file: one tenant, the broker's own user and root.
    pub fn without_file() -> Config {
        Config {
            tenants: vec![own_tenant(
                Limits::default(),
                None,
                WireRules::default(),
                Rates::default(),
            )],
            vms: BTreeMap::new(),
            nodes: Vec::new(),
            cluster: String::new(),
            node_daemon: None,
            directory_tenant: None,
            file: None,
        }
    }

    /// Reads the file named, or the default one if that applies to the broker of `dir`.
    ///
    /// # Errors Text for the user: the file can't be read or understood, or names a user or group
    /// that does not exist.
    pub fn load(named: Option<&Path>, dir: &Path) -> Result<Config, String> {
        let default = Path::new(DEFAULT_PATH);
        let applies = rustix::process::geteuid().is_root() && dir == Path::new(RUNTIME_DIR_ROOT);
        let path = match named {
            Some(path) => path,
            None if applies && default.exists() => default,
            None => {
                let mut config = Config::without_file();
                config.tenants[0].wire.keys = wire::default_keys()?;
                return Ok(config);
            }
        };
        let text = read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let config = Config::parse(&text);
        let mut config = config.map_err(|why| format!("{}: {why}", path.display()))?;
        config.file = std::path::absolute(path).ok();
        Ok(config)
    }

    /// Understands the text of a file.
    ///
    /// # Errors
    /// Text for the user.
    pub fn parse(text: &str) -> Result<Config, String> {
        let mut file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        let limits = file.limits.over(Limits::default());
        let key = file.sisci.load_key()?;
        let rules = file.wire.rules()?;
        let rates = file.rates.over(&Rates::default());
        let mut tenants = vec![own_tenant(limits, key, rules.clone(), rates.clone())];
        for table in file.tenant {
            let name = table.name.clone();
            let tenant = table.resolve(limits, &rules, &rates);
            let tenant = tenant.map_err(|why| format!("tenant {name:?}: {why}"))?;
            let path = |tenant: &Tenant| tenant.socket.as_ref().map(|socket| socket.path.clone());
            if tenants.iter().any(|other| other.name == tenant.name) {
                return Err(format!(
                    "tenant {name:?} is configured twice, or has the name of the broker's own"
                ));
            }
            if tenants.iter().any(|other| path(other) == path(&tenant)) {
                return Err(format!("tenant {name:?} has the socket of another tenant"));
            }
            tenants.push(tenant);
        }
        if tenants.len() > TENANTS_MAX {
            return Err(format!("there are more than {TENANTS_MAX} tenants"));
        }
        let directory_tenant = file.sisci.directory_tenant()?;
        let is_named = |name: &String| tenants.iter().any(|tenant| tenant.name == *name);
        if let Some(name) = directory_tenant.as_ref().filter(|name| !is_named(name)) {
            return Err(format!("[sisci.directory]: there is no tenant {name:?}"));
        }
        Ok(Config {
            tenants,
            vms: rates::of_vms(&file.vm)?,
            cluster: file.sisci.name()?,
            node_daemon: file.sisci.node_daemon,
            directory_tenant,
            file: None,
            nodes: file.sisci.nodes()?,
        })
    }

    /// The file, if the node daemon is to find a directory in it.
    pub fn directory(&self) -> Option<&Path> {
        let has_directory = self.directory_tenant.is_some();
        self.file.as_deref().filter(|_| has_directory)
    }

    /// Whether others than the user who may start a broker depend on it.
    pub fn has_tenants(&self) -> bool {
        self.tenants.len() > 1
    }
}

/// Reads a file that is not longer than a configuration may be.
fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    let most = CONFIG_BYTES_MAX + 1;
    if file.take(most).read_to_string(&mut text)? as u64 == most {
        let why = format!("a configuration has {CONFIG_BYTES_MAX} bytes at most");
        return Err(std::io::Error::other(why));
    }
    Ok(text)
}

fn own_tenant(limits: Limits, key: Option<Key>, wire: WireRules, rates: Rates) -> Tenant {
    let own = Members {
        users: vec![rustix::process::geteuid().as_raw(), 0],
        groups: Vec::new(),
    };
    Tenant {
        name: OWN_TENANT.to_owned(),
        socket: None,
        members: own.clone(),
        userfaultfd: own,
        one_boundary: false,
        limits,
        key,
        wire,
        rates,
    }
}

/// The file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    limits: LimitsTable,
    #[serde(default, deserialize_with = "values::tables")]
    tenant: Vec<TenantTable>,
    #[serde(default)]
    sisci: SisciTable,
    #[serde(default)]
    wire: WireTable,
    #[serde(default)]
    rates: RatesTable,
    #[serde(default, deserialize_with = "values::tables")]
    vm: Vec<VmTable>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of limits")]
struct LimitsTable {
    endpoints: Option<Count<ENDPOINTS_MAX>>,
    qps: Option<Count<QPS_PER_ENDPOINT_MAX>>,
    segments: Option<Count<SEGMENTS_PER_ENDPOINT_MAX>>,
    bytes: Option<Amount>,
    pools: Option<Count<POOLS_PER_TENANT_MAX>>,
    blocks: Option<Count<BLOCKS_PER_SESSION_MAX>>,
    block_bytes: Option<Amount>,
    tenant_blocks: Option<Count<BLOCKS_PER_TENANT_MAX>>,
    tenant_block_bytes: Option<Amount>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of a tenant")]
struct TenantTable {
    name: String,
    #[serde(deserialize_with = "values::socket_path")]
    socket: PathBuf,
    mode: Option<Mode>,
    owner: Option<Id<Users>>,
    group: Option<Id<Groups>>,
    #[serde(default)]
    users: Vec<Id<Users>>,
    #[serde(default)]
    groups: Vec<Id<Groups>>,
    #[serde(default)]
    userfaultfd: Vec<Trusted>,
    #[serde(default)]
    one_boundary: bool,
    key: Option<PathBuf>,
    secure: Option<Secure>,
    wire_key: Option<PathBuf>,
    #[serde(default)]
    limits: LimitsTable,
    #[serde(default)]
    rates: RatesTable,
}

impl LimitsTable {
    /// These limits, and others where none is given.
    fn over(&self, base: Limits) -> Limits {
        fn count<const MOST: usize>(given: Option<Count<MOST>>, base: usize) -> usize {
            given.map_or(base, |count| count.0)
        }
        let bytes = |given: Option<Amount>, base| given.map_or(base, |amount| amount.0);
        Limits {
            endpoints: count(self.endpoints, base.endpoints),
            qps: count(self.qps, base.qps),
            segments: count(self.segments, base.segments),
            bytes: bytes(self.bytes, base.bytes),
            pools: count(self.pools, base.pools),
            blocks: count(self.blocks, base.blocks),
            block_bytes: bytes(self.block_bytes, base.block_bytes),
            tenant_blocks: count(self.tenant_blocks, base.tenant_blocks),
            tenant_block_bytes: bytes(self.tenant_block_bytes, base.tenant_block_bytes),
        }
    }
}

impl TenantTable {
    fn resolve(self, limits: Limits, rules: &WireRules, rates: &Rates) -> Result<Tenant, String> {
        let printable = self.name.chars().all(|c| !c.is_control());
        if self.name.is_empty() || self.name.len() > TENANT_NAME_MAX || !printable {
            return Err(format!(
                "the name must have 1 to {TENANT_NAME_MAX} bytes and no control characters"
            ));
        }
        let members = Members {
            users: self.users.iter().map(|id| id.number).collect(),
            groups: self.groups.iter().map(|id| id.number).collect(),
        };
        if members == Members::default() {
            return Err("nobody is admitted: name users or groups".into());
        }
        Ok(Tenant {
            socket: Some(SocketSpec {
                path: self.socket,
                mode: self.mode.map_or(SOCKET_MODE, |mode| mode.0),
                owner: self.owner.map(|id| id.number),
                group: self.group.map(|id| id.number),
            }),
            members,
            userfaultfd: trusted(&self.userfaultfd),
            one_boundary: self.one_boundary,
            limits: self.limits.over(limits),
            key: self.key.as_deref().map(Key::load).transpose()?,
            wire: wire::of_tenant(rules, self.secure, self.wire_key.as_deref())?,
            rates: self.rates.over(rates),
            name: self.name,
        })
    }
}

/// A list of users and groups.
fn trusted(listed: &[Trusted]) -> Members {
    let mut members = Members::default();
    for one in listed {
        match one {
            Trusted::User(number) => members.users.push(*number),
            Trusted::Group(number) => members.groups.push(*number),
        }
    }
    members
}

#[cfg(test)]
mod tests;
