//! Checks of what is installed: our libraries, the broker, the distribution's RDMA packages.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use causeway_device::PortHolder;
use causeway_fabric::handshake::other_hosts;
use causeway_fabric::runtime::MACHINE_SOCKET;
use causeway_fabric::services::handshake::DaemonState;
use causeway_fabric::services::node::{NODE_DAEMON, NODE_PORT};
use causeway_fabric::sisci::Sisci;
use causeway_fabric::{Address, Error};
use causeway_shm::layout::STATS_SETS;
use rustix::fs::StatVfs;
use rustix::io::Errno;

use super::packages::{Group, missing_file_mend};
use super::{Finding, daemon};
use crate::broker;
use crate::locate::{self, Libraries, LocateError};

/// A function and the version under which programs ask for it, per library.
const VERBS_PROBES: [(&CStr, &CStr); 4] = [
    (c"ibv_open_device", c"IBVERBS_1.1"),
    (c"ibv_reg_mr_iova2", c"IBVERBS_1.8"),
    (c"verbs_register_driver_34", c"IBVERBS_PRIVATE_34"),
    (c"_ibv_query_gid_ex", c"IBVERBS_1.11"),
];
const RDMACM_PROBES: [(&CStr, &CStr); 2] = [
    (c"rdma_create_event_channel", c"RDMACM_1.0"),
    (c"rdma_create_qp_ex", c"RDMACM_1.0"),
];

/// Libraries of the distribution that programs load beside libibverbs, and which of its packages
/// has them. None of them is needed for Causeway itself.
const COMPANIONS: [(&CStr, &str); 3] = [
    (c"libibverbs.so.1", "libibverbs1"),
    (c"libmlx5.so.1", "ibverbs-providers"),
    (c"librdmacm.so.1", "librdmacm1"),
];

/// What the device's files take of the runtime directory's file system, and the broker's beside
/// them: files and directories, and bytes of those files at a page each.
const FILES_OF_DEVICE: u64 = 256;
const BYTES_OF_DEVICE: u64 = 1 << 20;

/// How long a node daemon may take from its start until it listens, and how often that is looked
/// for.
const DAEMON_START: Duration = Duration::from_secs(2);
const DAEMON_LOOK: Duration = Duration::from_millis(50);

/// The libraries that `causeway run` preloads can be found and loaded.
pub fn libraries() -> Vec<Finding> {
    const TOPIC: &str = "libraries";
    let libraries = match Libraries::find() {
        Ok(libraries) => libraries,
        Err(error @ LocateError::NotFound(_)) => {
            let mend = missing_file_mend("build with `make`");
            return vec![Finding::fail(TOPIC, format!("{error}; {mend}"))];
        }
        Err(error) => return vec![Finding::fail(TOPIC, error.to_string())],
    };
    vec![
        library(&libraries.path(locate::VERBS), &VERBS_PROBES),
        library(&libraries.path(locate::RDMACM), &RDMACM_PROBES),
        library(&libraries.path(locate::PATHS), &[]),
    ]
}

fn library(path: &Path, probes: &[(&CStr, &CStr)]) -> Finding {
    const TOPIC: &str = "library";
    let shown = path.display();
    let library = match Loaded::open(path) {
        Ok(library) => library,
        Err(error) => {
            let mend = missing_file_mend("build it again");
            return Finding::fail(TOPIC, format!("{error}; {mend}"));
        }
    };
    let missing: Vec<String> = probes
        .iter()
        .filter(|(name, version)| !library.has(name, version))
        .map(|(name, version)| format!("{}@{}", name.to_string_lossy(), version.to_string_lossy()))
        .collect();
    if missing.is_empty() {
        Finding::ok(TOPIC, format!("{shown} {}", env!("CARGO_PKG_VERSION")))
    } else {
        let mend = missing_file_mend("build it again");
        Finding::fail(
            TOPIC,
            format!("{shown} lacks {}; {mend}", missing.join(", ")),
        )
    }
}

/// A library loaded into this process, where it does nothing: Causeway's open no device by
/// themselves. It stays loaded; the process ends soon.
struct Loaded(*mut libc::c_void);

impl Loaded {
    fn open(path: &Path) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        Self::open_name(&name)
    }

    fn open_name(name: &CStr) -> Result<Self, String> {
        // SAFETY: `name` is null-terminated; running the library's constructors is what loading
        // it in any program does.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(Self(handle));
        }
        // SAFETY: dlerror(3) returns null or a string that lives until the next dl call of this
        // thread; it is copied at once.
        let reason = unsafe {
            let text = libc::dlerror();
            if text.is_null() {
                None
            } else {
                Some(CStr::from_ptr(text).to_string_lossy())
            }
        };
        Err(reason.map_or_else(|| "cannot be loaded".to_owned(), |text| text.into_owned()))
    }

    fn has(&self, name: &CStr, version: &CStr) -> bool {
        // SAFETY: the handle is open, the names are null-terminated.
        !unsafe { libc::dlvsym(self.0, name.as_ptr(), version.as_ptr()) }.is_null()
    }
}

/// The runtime directory is ours alone, or can be made so.
pub fn runtime_dir() -> Vec<Finding> {
    const TOPIC: &str = "runtime directory";
    let dir = match Address::from_env() {
        Address::Dir(dir) => dir,
        Address::Socket(socket) => {
            let text = format!("not used: the broker is at {}", socket.display());
            return vec![Finding::ok(TOPIC, text)];
        }
        Address::Device => {
            let text = "not used: a virtual machine, whose host has the broker";
            return vec![Finding::ok(TOPIC, text)];
        }
    };
    vec![match causeway_fabric::runtime::prepare(&dir) {
        Ok(()) if !has_room(&dir) => Finding::fail(
            TOPIC,
            format!(
                "{}: no space is left there; free some, or set CAUSEWAY_RUNTIME_DIR to another \
                 directory",
                dir.display()
            ),
        ),
        Ok(()) => Finding::ok(TOPIC, dir.display().to_string()),
        Err(error) => Finding::fail(TOPIC, format!("{error}; {}", place_for(&error))),
    }]
}

/// Whether the device's files can be made in a runtime directory, as far as its file system tells.
fn has_room(dir: &Path) -> bool {
    let root = rustix::process::geteuid().is_root();
    rustix::fs::statvfs(dir).map_or(true, |found| suffices(&found, root))
}

/// Whether the device's files fit into a file system. One that counts no files or blocks, as a
/// tmpfs without limits or ramfs, says that it has none. Root has what is kept for it, too.
fn suffices(found: &StatVfs, root: bool) -> bool {
    let (blocks, files) = match root {
        true => (found.f_bfree, found.f_ffree),
        false => (found.f_bavail, found.f_favail),
    };
    let bytes = blocks.saturating_mul(found.f_frsize);
    (found.f_files == 0 || files >= FILES_OF_DEVICE)
        && (found.f_blocks == 0 || bytes >= BYTES_OF_DEVICE)
}

/// Where a runtime directory could be instead.
fn place_for(error: &Error) -> &'static str {
    match error {
        Error::RuntimeDir { reason, .. } if reason.contains("Read-only") => {
            "mount a tmpfs there, in a container --tmpfs /run, or set CAUSEWAY_RUNTIME_DIR to a \
             directory that can be written"
        }
        _ => "correct that, or set CAUSEWAY_RUNTIME_DIR to another directory",
    }
}

/// Whether the broker is there and does not answer.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Whether the check of the broker has found one that does not answer.
pub fn is_silent() -> bool {
    SILENT.load(Ordering::Relaxed)
}

/// The broker answers, or starts and answers.
pub fn broker() -> Vec<Finding> {
    const TOPIC: &str = "broker";
    let address = Address::from_env();
    vec![match (&broker::probe(), &address) {
        (Ok(text), _) => Finding::ok(TOPIC, text),
        (Err(Error::Timeout), _) => {
            SILENT.store(true, Ordering::Relaxed);
            let process = daemon::process(&address);
            let process = process.map_or("it".to_owned(), |pid| format!("process {pid}"));
            let text = "is stopped (SIGCONT lets it go on; SIGKILL ends it, and the next program \
                        starts another) or has no processor; checks that ask it are left out";
            Finding::fail(TOPIC, format!("no answer in {address}: {process} {text}"))
        }
        (Err(error), Address::Socket(_)) if is_not_admitted(error) => {
            let mend = "a tenant's users and groups stand in causewayd.toml, which the broker \
                        reads when it starts";
            Finding::fail(TOPIC, format!("{error}; {mend}"))
        }
        // The error says what there is to say.
        (Err(error @ (Error::Refused { .. } | Error::Version { .. })), _) => {
            Finding::fail(TOPIC, error.to_string())
        }
        (Err(error), Address::Socket(socket)) => {
            Finding::fail(TOPIC, format!("{error}; {}", way_to(socket)))
        }
        (Err(error), _) => Finding::fail(TOPIC, format!("{error}; {}", mend_start(error))),
    }]
}

/// Whether the broker does not admit this user.
fn is_not_admitted(error: &Error) -> bool {
    matches!(error, Error::Refused { errno, .. } if *errno == Errno::ACCESS)
}

/// What to do about a broker that does not start.
fn mend_start(error: &Error) -> &'static str {
    match error {
        Error::RuntimeDir { .. } => "see runtime directory above",
        _ => "run causewayd by hand in a terminal to see why it does not start",
    }
}

/// How to get to a broker's socket that this process does not reach.
fn way_to(socket: &Path) -> String {
    let dir = socket.parent().unwrap_or(socket).display();
    match std::fs::symlink_metadata(socket) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => format!(
            "there is no such file: start that broker; mount its directory in a container, \
             -v {dir}:{dir}"
        ),
        Ok(found) if !found.file_type().is_socket() => {
            "that is no socket: set CAUSEWAY_SOCKET to a tenant's, as its broker's configuration \
             has it, or unset it"
                .to_owned()
        }
        Ok(_) if socket == Path::new(MACHINE_SOCKET) && may_write(socket) => {
            "nobody listens there: systemctl stop causewayd.service, then systemctl restart \
             causewayd.socket"
                .to_owned()
        }
        Ok(found) if may_write(socket) => format!(
            "the broker of user {} that made it does not listen any more: start it again",
            found.uid()
        ),
        Ok(found) => format!(
            "it admits the group {}: usermod -aG {0} USER, and log in again; in a container, \
             --group-add {}",
            group_name(found.gid()),
            found.gid()
        ),
        Err(error) => format!("{dir}: {error}: its owner has to give this user access"),
    }
}

/// What connect(2) asks of a socket's file.
fn may_write(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// The name of a group, or its number where it has no name here.
fn group_name(gid: u32) -> String {
    Group::numbered(Path::new("/"), gid).map_or_else(|| gid.to_string(), |group| group.name)
}

/// The SISCI node that a process with this environment belongs to.
pub fn sisci_node() -> Vec<Finding> {
    const TOPIC: &str = "SISCI node";
    vec![match Sisci::open(None) {
        Ok(sisci) => Finding::ok(TOPIC, sisci.node().to_string()),
        Err(error @ Error::UnknownNode { .. }) => Finding::fail(
            TOPIC,
            format!("{error}; unset it, or name one of those in a [[sisci.node]]"),
        ),
        // The broker's own finding says what to do.
        Err(error) => Finding::warn(TOPIC, format!("not known: {error}")),
    }]
}

/// The node daemon, which other hosts reach this one's SISCI nodes by: where there are such nodes.
pub fn node_daemon() -> Vec<Finding> {
    const TOPIC: &str = "node daemon";
    let asked = Sisci::open(None).and_then(|sisci| Ok((sisci.cluster()?, sisci.nodes()?)));
    let Ok((cluster, nodes)) = asked else {
        return vec![Finding::warn(TOPIC, "not known: the broker does not say")];
    };
    // A tenant's broker may be in another network namespace, and a guest's is another machine's:
    // what they have started is not to be seen here.
    let is_here = matches!(Address::from_env(), Address::Dir(_));
    let is_awaited = is_here && cluster.daemon == DaemonState::Started;
    let holder = node_port_holder(is_awaited);
    let own = |holder: &PortHolder| {
        let process = holder.process.as_ref();
        // Another user's process may not be seen.
        process.is_none_or(|(_, name)| name == NODE_DAEMON)
    };
    let named = holder.as_ref().map(holder_name);
    // A directory names nodes only once the daemon is there.
    let wanted = is_awaited && holder.is_none();
    vec![match (holder, cluster.daemon) {
        _ if !wanted && nodes.iter().all(|node| node.addresses.is_empty()) => {
            Finding::ok(TOPIC, "not needed: no SISCI node has an address")
        }
        (Some(holder), state) if own(&holder) && state != DaemonState::PortTaken => {
            Finding::ok(TOPIC, format!("{} listens", named.unwrap_or_default()))
        }
        (Some(_), _) => Finding::fail(
            TOPIC,
            format!(
                "TCP port {NODE_PORT} is taken: {} listens there; end it, or SISCI does not reach \
                 other hosts",
                named.unwrap_or_default()
            ),
        ),
        (None, DaemonState::Started) if !is_here => {
            Finding::ok(TOPIC, "started by the broker; not to be seen from here")
        }
        (None, DaemonState::Started) => Finding::warn(
            TOPIC,
            format!(
                "the broker has started causeway-noded, which does not listen at TCP port \
                 {NODE_PORT} yet; if that stays so, causeway-noded --config FILE in a terminal, \
                 with the broker's configuration, says why"
            ),
        ),
        (None, _) => Finding::warn(
            TOPIC,
            format!(
                "nobody listens at TCP port {NODE_PORT}: other hosts do not reach this one; start \
                 causeway-noded, or set node_daemon = true in the configuration"
            ),
        ),
    }]
}

/// Who listens at the node daemons' TCP port. A daemon that was started a moment ago gets the time
/// to listen.
fn node_port_holder(is_awaited: bool) -> Option<PortHolder> {
    let deadline = Instant::now() + DAEMON_START;
    loop {
        let holder = causeway_device::tcp_port_holder(NODE_PORT);
        if holder.is_some() || !is_awaited || Instant::now() >= deadline {
            return holder;
        }
        std::thread::sleep(DAEMON_LOOK);
    }
}

/// Whether what goes to other hosts' SISCI nodes is encrypted: where there are such nodes.
pub fn sisci_wire() -> Vec<Finding> {
    const TOPIC: &str = "SISCI's wire";
    let asked = Sisci::open(None).and_then(|sisci| Ok((sisci.nodes()?, sisci)));
    // The broker's own finding says what to do.
    let Ok((nodes, sisci)) = asked else {
        return vec![Finding::warn(TOPIC, "not known: the broker does not say")];
    };
    let others = other_hosts(&nodes);
    let all: BTreeSet<u32> = others.iter().map(|(node, _)| *node).collect();
    let mut plain = BTreeSet::new();
    for (node, at) in others {
        match sisci.is_wire_secured(at.ip()) {
            Ok(true) => {}
            Ok(false) => drop(plain.insert(node)),
            Err(error) => {
                let text = format!("node {node} at {}: {error}", at.ip());
                return vec![Finding::fail(TOPIC, text)];
            }
        }
    }
    if all.is_empty() {
        let text = "not needed: no SISCI node is another host's";
        return vec![Finding::ok(TOPIC, text)];
    }
    let text = format!(
        "{} of {} other nodes are reached by a secured wire ([wire] in the configuration)",
        all.len() - plain.len(),
        all.len()
    );
    vec![Finding::ok(TOPIC, text)]
}

fn holder_name(holder: &PortHolder) -> String {
    match &holder.process {
        Some((pid, name)) => format!("process {pid} ({name}) of user {}", holder.uid),
        None => format!("a process of user {}", holder.uid),
    }
}

/// The distribution's RDMA libraries, which many programs load beside libibverbs.
pub fn distribution() -> Vec<Finding> {
    const TOPIC: &str = "distribution";
    COMPANIONS
        .iter()
        .map(|(name, package)| {
            let shown = name.to_string_lossy();
            match Loaded::open_name(name) {
                Ok(_) => Finding::ok(TOPIC, shown),
                Err(_) => Finding::warn(
                    TOPIC,
                    format!("no {shown}: programs that load it need the package {package}"),
                ),
            }
        })
        .collect()
}

/// Variables that steer another RDMA stack, or hide our libraries.
pub fn environment() -> Vec<Finding> {
    const TOPIC: &str = "environment";
    let mut findings: Vec<Finding> = std::env::vars_os()
        .filter_map(|(name, value)| {
            let (name, value) = (name.to_str()?, value.to_str()?);
            conflict(name, value).map(|advice| Finding::warn(TOPIC, format!("{name}: {advice}")))
        })
        .collect();
    if findings.is_empty() {
        findings.push(Finding::ok(TOPIC, "no variable that interferes"));
    }
    findings
}

/// Why a variable gets in the way, if it does.
fn conflict(name: &str, value: &str) -> Option<String> {
    let names_device = ["UCX_NET_DEVICES", "NCCL_IB_HCA", "FI_VERBS_DEVICE_NAME"].contains(&name);
    if names_device && !value.contains("cway") && value != "all" {
        return Some(format!("names the devices {value}; Causeway's is cway0"));
    }
    if name == "NCCL_IB_DISABLE" && value == "1" {
        return Some("turns verbs off in NCCL".into());
    }
    if name == "LD_PRELOAD" && value.contains("libibverbs") && !value.contains("causeway") {
        return Some(format!(
            "preloads {value}; causeway run puts its own before it"
        ));
    }
    if name == "CAUSEWAY_WIRE" && !["auto", "shm", "udp"].contains(&value) {
        return Some(format!("{value} is no wire; auto, shm and udp are"));
    }
    if name == "CAUSEWAY_PORT" && !["udp", "xdp"].contains(&value) {
        return Some(format!("is {value}; it can be udp or xdp"));
    }
    if name == "CAUSEWAY_CRC" && !["auto", "on", "off"].contains(&value) {
        return Some(format!("is {value}; it can be auto, on or off"));
    }
    if name == "CAUSEWAY_ECN" && !["0", "1"].contains(&value) {
        return Some(format!("is {value}; it can be 0 or 1"));
    }
    let engines = |value: &str| {
        value
            .parse()
            .is_ok_and(|n: usize| (1..=STATS_SETS).contains(&n))
    };
    if name == "CAUSEWAY_ENGINES" && !engines(value) {
        return Some(format!("is {value}; it can be 1 to {STATS_SETS}"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_what_interferes() {
        assert!(conflict("UCX_NET_DEVICES", "mlx5_0:1").is_some());
        assert!(conflict("UCX_NET_DEVICES", "cway0:1").is_none());
        assert!(conflict("CAUSEWAY_WIRE", "tcp").is_some());
        assert!(conflict("CAUSEWAY_WIRE", "shm").is_none());
        assert!(conflict("CAUSEWAY_PORT", "tcp").is_some());
        assert!(conflict("CAUSEWAY_PORT", "xdp").is_none());
        assert!(conflict("CAUSEWAY_CRC", "1").is_some());
        assert!(conflict("CAUSEWAY_CRC", "off").is_none());
        assert!(conflict("CAUSEWAY_ECN", "off").is_some());
        assert!(conflict("CAUSEWAY_ECN", "0").is_none());
        assert!(conflict("CAUSEWAY_ENGINES", "0").is_some());
        assert!(conflict("CAUSEWAY_ENGINES", "9").is_some());
        assert!(conflict("CAUSEWAY_ENGINES", "2").is_none());
        assert!(conflict("HOME", "/root").is_none());
    }

    #[test]
    fn room_is_judged_by_what_is_counted() {
        let counted = StatVfs {
            f_bsize: 4096,
            f_frsize: 4096,
            f_blocks: 1 << 20,
            f_bfree: 1 << 10,
            f_bavail: 0,
            f_files: 1 << 20,
            f_ffree: 1 << 10,
            f_favail: 0,
            f_fsid: 0,
            f_flag: rustix::fs::StatVfsMountFlags::empty(),
            f_namemax: 255,
        };
        assert!(suffices(&counted, true), "what is kept for root");
        assert!(!suffices(&counted, false));
        let no_bytes = StatVfs {
            f_bfree: 16,
            ..counted
        };
        assert!(!suffices(&no_bytes, true));
        let no_files = StatVfs {
            f_ffree: 16,
            ..counted
        };
        assert!(!suffices(&no_files, true));
        let uncounted = StatVfs {
            f_blocks: 0,
            f_bfree: 0,
            f_files: 0,
            f_ffree: 0,
            ..counted
        };
        assert!(suffices(&uncounted, true) && suffices(&uncounted, false));
    }

    #[test]
    fn a_directory_that_is_not_there_is_not_full() {
        assert!(has_room(Path::new("/nonexistent")));
    }

    #[test]
    fn a_missing_library_is_a_failure_with_the_loader_s_reason() {
        let finding = library(Path::new("/nonexistent/libibverbs.so.1"), &VERBS_PROBES);
        assert_eq!(finding.verdict, crate::doctor::Verdict::Fail);
        assert!(finding.text.contains("/nonexistent/libibverbs.so.1"));
    }
}
