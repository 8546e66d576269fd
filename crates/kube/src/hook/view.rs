//! Shows a container the device's files at their places.
//!
//! The hook writes the files itself, in a file system that the container alone has. A container
//! outlives brokers, and the view that a broker keeps of a network namespace goes with the broker.
//! See mount_namespaces(7), fsopen(2), open_tree(2).

use std::fs::{self, DirEntry};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use causeway_device::describe_device;
use causeway_fabric::sysfs::view::{check, local_cpus, plan, write};
use rustix::fs::{Mode, OFlags, openat, stat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags};
use rustix::mount::{fsconfig_create, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree};

use super::root::{Dir, Root};

/// Where programs look: a directory, and those of its entries that are the device's.
const SHOWN: [(&str, &[&str]); 3] = [
    ("/dev", &["infiniband"]),
    ("/sys/class", &["infiniband", "infiniband_verbs"]),
    ("/sys/devices/virtual", &["causeway"]),
];
/// Name of the view in the file system that is made for it.
const VIEW: &str = "view";

/// A directory on which a part of the view is to be mounted, and which part.
struct Place {
    dir: Dir,
    part: String,
}

/// Shows the device, as it is in this process's network namespace, in a container's root.
///
/// # Errors
/// What went wrong, and where.
pub fn show(root: &Root) -> Result<(), String> {
    let mut places = Vec::new();
    for (parent, names) in SHOWN {
        let found = prepare(root, parent, names);
        places.extend(found.map_err(|error| format!("the container's {parent}: {error}"))?);
    }
    let first = places.first().ok_or("the container has no /dev or /sys")?;
    let view = write_view(&first.dir).map_err(|error| format!("the device's files: {error}"))?;
    for place in &places {
        let shown = bind(&view, &place.part, &place.dir);
        shown.map_err(|error| format!("the container's /{}: {error}", place.part))?;
    }
    Ok(())
}

/// Makes sure that the directories are there. None, where the container lacks their parent.
fn prepare(root: &Root, path: &str, names: &[&str]) -> io::Result<Vec<Place>> {
    let Some(mut parent) = root.of_mounts(path)? else {
        return Ok(Vec::new());
    };
    if !can_have(&parent, path, names)? {
        parent = cover(&parent)?;
    }
    let place = |name: &&str| {
        Ok(Place {
            dir: parent.make(name)?,
            part: format!("{}/{name}", &path[1..]),
        })
    };
    names.iter().map(place).collect()
}

/// Whether a directory has entries of these names, or can be given them without anybody outside
/// the container seeing that.
fn can_have(dir: &Dir, path: &str, names: &[&str]) -> io::Result<bool> {
    if names.iter().all(|name| dir.has(name)) {
        return Ok(true);
    }
    // A privileged container may have the host's /dev as it is. That of the host is at `path`, as
    // long as the container's root has not been entered.
    if stat(path).is_ok_and(|host| dir.stat().is_ok_and(|own| own.st_dev == host.st_dev)) {
        return Ok(false);
    }
    // sysfs takes no directories, and says so in several ways.
    Ok(names.iter().all(|name| dir.make(name).is_ok()))
}

/// Mounts the view's file system on a directory and writes the view into it.
fn write_view(place: &Dir) -> io::Result<Dir> {
    let device = describe_device();
    check(&device)?;
    let base = Dir::of(tmpfs(place)?);
    let root = base.by_descriptor().join(VIEW);
    write(&root, &plan(&device, &local_cpus()))?;
    base.make(VIEW)
}

/// Mounts an empty file system on a directory.
fn tmpfs(on: &Dir) -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", "causeway")?;
    fsconfig_set_string(&context, "mode", "755")?;
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let made = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    attach(&made, on)?;
    Ok(made)
}

/// Puts in a directory's place one with the same entries, in which others can be made.
fn cover(dir: &Dir) -> io::Result<Dir> {
    let covering = Dir::of(tmpfs(dir)?);
    // What is covered is still reached by its descriptor.
    for entry in fs::read_dir(dir.by_descriptor())? {
        repeat(dir, &entry?, &covering)?;
    }
    Ok(covering)
}

/// Shows an entry of the covered directory in the one that covers it.
fn repeat(covered: &Dir, entry: &DirEntry, covering: &Dir) -> io::Result<()> {
    let name = entry.file_name();
    let new = covering.by_descriptor().join(&name);
    let kind = entry.file_type()?;
    if kind.is_symlink() {
        return symlink(fs::read_link(entry.path())?, new);
    }
    if kind.is_dir() {
        fs::create_dir(&new)?;
    } else {
        fs::File::create(&new)?;
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let new = openat(covering, &name, flags, Mode::empty())?;
    bind(covered, &name, &Dir::of(new))
}

/// Shows what has a name in one directory at another place, too.
fn bind(dir: &Dir, name: impl AsRef<Path>, place: &Dir) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    attach(&open_tree(dir, name.as_ref(), flags)?, place)
}

/// Mounts what nobody sees yet.
fn attach(mount: &OwnedFd, place: &Dir) -> io::Result<()> {
    let by_descriptors =
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, c"", place, c"", by_descriptors)?)
}
