//! What the view of sysfs and `/dev` holds, and how it is written.
//!
//! The root of a view stands for `/`. Names and contents are those that the kernel gives a RoCE
//! device (Documentation/ABI/stable/sysfs-class-infiniband), with the class directories' entries as
//! links into a device directory, since programs resolve them with realpath(3) and climb from
//! there. The character device is a link to `/dev/null`: programs ask only whether it is one that
//! they may read and write.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::limits::{IFNAME_MAX, SYSFS_GIDS_MAX};
use crate::runtime::VIEW_PREFIX;
use crate::services::SysfsRequest;

/// Name of the RDMA device.
pub const DEVICE: &str = "cway0";
/// Name of its verbs device.
pub const UVERBS: &str = "uverbs0";
/// The device directory, from the view's root.
pub const DEVICE_DIR: &str = "sys/devices/virtual/causeway/cway";
/// Directory of its one port, likewise.
pub const PORT_DIR: &str = "sys/devices/virtual/causeway/cway/infiniband/cway0/ports/1";
/// Suffix of a view that is being written.
const NEW_SUFFIX: &str = ".new";
/// Suffix of one that another takes the place of.
const OLD_SUFFIX: &str = ".old";
/// Version of the kernel's uverbs ABI that libibverbs expects in `abi_version`.
const UVERBS_ABI: u32 = 6;
/// Numbers of the kernel's first uverbs device, as `dev` shows them
/// (Documentation/admin-guide/devices.txt).
const UVERBS_DEV: &str = "231:192";

/// One entry of a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// A file with this line.
    File(String),
    /// A symbolic link.
    Link(String),
    /// A directory, for those that may stay empty.
    Dir,
}

/// Names become file contents and names: nothing but a plain interface name may pass.
///
/// # Errors
/// `EINVAL` for names or counts outside their limits.
pub fn check(device: &SysfsRequest) -> std::result::Result<(), Errno> {
    let plain = |name: &str| {
        let bytes_ok = name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'/');
        !name.is_empty() && name.len() <= IFNAME_MAX && bytes_ok && name != "." && name != ".."
    };
    let good = device.gids.len() <= SYSFS_GIDS_MAX && device.gids.iter().all(|g| plain(&g.ifname));
    if good { Ok(()) } else { Err(Errno::INVAL) }
}

/// Every entry of the view, parents implied.
pub fn plan(device: &SysfsRequest, cpus: &str) -> Vec<(String, Node)> {
    let mut nodes = Vec::new();
    plan_device(&mut nodes, device, cpus);
    plan_rdma(&mut nodes, device);
    plan_port(&mut nodes, device);
    plan_uverbs(&mut nodes);
    nodes
}

fn file(nodes: &mut Vec<(String, Node)>, path: String, line: impl Into<String>) {
    nodes.push((path, Node::File(line.into())));
}

fn link(nodes: &mut Vec<(String, Node)>, path: &str, target: &str) {
    nodes.push((path.to_owned(), Node::Link(target.to_owned())));
}

/// What a PCI device's directory would hold.
fn plan_device(nodes: &mut Vec<(String, Node)>, device: &SysfsRequest, cpus: &str) {
    let lines = [
        ("vendor", "0x0000"),
        ("device", "0x0000"),
        ("subsystem_vendor", "0x0000"),
        ("subsystem_device", "0x0000"),
        ("class", "0x020700"),
        ("revision", "0x00"),
        // The kernel's -1, no affinity, sends some programs to look for node 4294967295.
        ("numa_node", "0"),
        ("local_cpus", cpus),
    ];
    for (name, line) in lines {
        file(nodes, format!("{DEVICE_DIR}/{name}"), line);
    }
    nodes.push((format!("{DEVICE_DIR}/net"), Node::Dir));
    let mut seen: Vec<&str> = Vec::new();
    for gid in &device.gids {
        if !seen.contains(&gid.ifname.as_str()) {
            seen.push(&gid.ifname);
            let path = format!("{DEVICE_DIR}/net/{}", gid.ifname);
            link(nodes, &path, &format!("/sys/class/net/{}", gid.ifname));
        }
    }
}

/// The RDMA device itself.
fn plan_rdma(nodes: &mut Vec<(String, Node)>, device: &SysfsRequest) {
    let base = format!("{DEVICE_DIR}/infiniband/{DEVICE}");
    let guid = groups(&device.node_guid);
    let lines = [
        ("node_type", "1: CA"),
        ("node_guid", guid.as_str()),
        ("sys_image_guid", guid.as_str()),
        ("node_desc", "Causeway"),
        ("fw_ver", env!("CARGO_PKG_VERSION")),
        ("hca_type", "Causeway"),
        ("board_id", "CWAY0000000001"),
        ("hw_rev", "0x0"),
    ];
    for (name, line) in lines {
        file(nodes, format!("{base}/{name}"), line);
    }
    link(nodes, &format!("{base}/device"), "../..");
    let class = format!("sys/class/infiniband/{DEVICE}");
    let target = "../../devices/virtual/causeway/cway/infiniband/cway0";
    link(nodes, &class, target);
}

/// Its one port.
fn plan_port(nodes: &mut Vec<(String, Node)>, device: &SysfsRequest) {
    let base = PORT_DIR;
    let lines = [
        ("state", "4: ACTIVE"),
        ("phys_state", "5: LinkUp"),
        ("rate", "100 Gb/sec (4X EDR)"),
        ("link_layer", "Ethernet"),
        ("lid", "0x0"),
        ("lid_mask_count", "0"),
        ("sm_lid", "0x0"),
        ("sm_sl", "0"),
        ("cap_mask", "0x00010000"),
        ("pkeys/0", "0xffff"),
    ];
    for (name, line) in lines {
        file(nodes, format!("{base}/{name}"), line);
    }
    for dir in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
        nodes.push((format!("{base}/{dir}"), Node::Dir));
    }
    for (index, gid) in device.gids.iter().enumerate() {
        file(nodes, format!("{base}/gids/{index}"), groups(&gid.gid));
        file(nodes, format!("{base}/gid_attrs/types/{index}"), "RoCE v2");
        file(
            nodes,
            format!("{base}/gid_attrs/ndevs/{index}"),
            gid.ifname.as_str(),
        );
    }
}

/// Its verbs device, and the names under `/dev/infiniband`.
fn plan_uverbs(nodes: &mut Vec<(String, Node)>) {
    let base = format!("{DEVICE_DIR}/infiniband_verbs/{UVERBS}");
    file(nodes, format!("{base}/ibdev"), DEVICE);
    file(nodes, format!("{base}/dev"), UVERBS_DEV);
    file(nodes, format!("{base}/abi_version"), "1");
    link(nodes, &format!("{base}/device"), "../..");
    let class = "sys/class/infiniband_verbs";
    file(
        nodes,
        format!("{class}/abi_version"),
        UVERBS_ABI.to_string(),
    );
    let target = "../../devices/virtual/causeway/cway/infiniband_verbs/uverbs0";
    link(nodes, &format!("{class}/{UVERBS}"), target);
    for name in [UVERBS, DEVICE] {
        link(nodes, &format!("dev/infiniband/{name}"), "/dev/null");
    }
}

/// Bytes as the kernel prints GUIDs and GIDs: groups of two bytes, colons between.
fn groups(bytes: &[u8]) -> String {
    let text: Vec<String> = bytes
        .chunks(2)
        .map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    text.join(":")
}

/// CPUs near the device, as a mask: those of memory node 0, which `numa_node` names.
pub fn local_cpus() -> String {
    let node = fs::read_to_string("/sys/devices/system/node/node0/cpumap");
    node.map_or_else(|_| "1".to_owned(), |mask| mask.trim().to_owned())
}

/// Writes a view beside its place, then exchanges the two: a reader finds the old one or the new
/// one, never half of one, and never none, but for a moment where a file system or a sandbox does
/// not exchange names. One writer at a time.
///
/// # Errors
/// What the file system says.
pub fn write(root: &Path, nodes: &[(String, Node)]) -> std::io::Result<()> {
    let new = beside(root, NEW_SUFFIX);
    let _ = fs::remove_dir_all(&new);
    fill(&new, nodes)?;
    match renameat_with(CWD, &new, CWD, root, RenameFlags::EXCHANGE) {
        Ok(()) => {
            // What stands there now is the old view. Left over, it is removed the next time.
            let _ = fs::remove_dir_all(&new);
            Ok(())
        }
        Err(Errno::NOENT) => fs::rename(&new, root),
        Err(_) => put_in_place(&new, root),
    }
}

/// Writes a view where no broker keeps it, unless it is there: its name tells its content, so it
/// never changes, and any number of processes may come at a time. The view's root.
///
/// # Errors
/// As [`check`]; what the file system says.
pub fn write_own(dir: &Path, device: &SysfsRequest) -> std::io::Result<PathBuf> {
    check(device)?;
    let nodes = plan(device, &local_cpus());
    let mut hasher = DefaultHasher::new();
    nodes.hash(&mut hasher);
    let root = dir.join(format!("{VIEW_PREFIX}{:016x}", hasher.finish()));
    if root.is_dir() {
        return Ok(root);
    }
    let new = beside(&root, &format!(".{}{NEW_SUFFIX}", std::process::id()));
    // Of a process of the same number, which was killed.
    let _ = fs::remove_dir_all(&new);
    fill(&new, &nodes)?;
    match renameat_with(CWD, &new, CWD, &root, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(root),
        Err(Errno::EXIST) => {
            // Another process was quicker.
            let _ = fs::remove_dir_all(&new);
            Ok(root)
        }
        // Without the flag: what is there has files in it, so that nothing takes its place.
        Err(_) => match fs::rename(&new, &root) {
            Err(_) if root.is_dir() => {
                let _ = fs::remove_dir_all(&new);
                Ok(root)
            }
            done => done.map(|()| root),
        },
    }
}

/// As an exchange of names, in two steps.
fn put_in_place(new: &Path, root: &Path) -> std::io::Result<()> {
    let old = beside(root, OLD_SUFFIX);
    let _ = fs::remove_dir_all(&old);
    match fs::rename(root, &old) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => fs::rename(new, root)?,
    }
    let _ = fs::remove_dir_all(&old);
    Ok(())
}

/// A name that begins as a view's.
fn beside(root: &Path, suffix: &str) -> PathBuf {
    let mut name = root.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Makes the entries.
fn fill(root: &Path, nodes: &[(String, Node)]) -> std::io::Result<()> {
    for (path, node) in nodes {
        let path = root.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        match node {
            Node::Dir => fs::create_dir_all(&path)?,
            Node::File(line) => fs::write(&path, format!("{line}\n"))?,
            Node::Link(target) => symlink(target, &path)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
