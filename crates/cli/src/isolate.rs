//! `causeway run --isolate`: the device's files at their own places, in a mount namespace that the
//! command and its children share with nobody.
//!
//! The path shim shows them only to calls through the C library. Here they are there: for static
//! programs, for raw system calls, for programs that clear their environment. Nobody outside sees
//! a difference. See mount_namespaces(7), user_namespaces(7).

use std::fs::{self, DirEntry, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, mkdir};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::mount::{mount, mount_bind_recursive, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::UnshareFlags;

/// Directories of the tree, and so of the command's view.
const SHOWN: [&str; 4] = [
    "/sys/class/infiniband",
    "/sys/class/infiniband_verbs",
    "/sys/devices/virtual/causeway",
    "/dev/infiniband",
];

/// What went wrong, at which step.
fn failed(step: &str) -> impl FnOnce(io::Error) -> String + '_ {
    move |error| format!("{step}: {error}")
}

/// Gives this process a view of its own in which the directories of the tree are at their places.
/// Must be called while it has one thread, as unshare(2) demands for a user namespace.
///
/// Without privilege that takes a user namespace, in which the user stays who it is.
pub fn enter(tree: &Path) -> Result<(), String> {
    unshare().map_err(|error| {
        format!(
            "no mount namespace of its own: {error}\n\
             causeway: --isolate takes root (CAP_SYS_ADMIN) or user namespaces for everyone \
             (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone); without it the \
             path shim shows the device's files"
        )
    })?;
    // What the system mounts later still arrives here; what is mounted here stays here.
    let inward = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", inward).map_err(|error| failed("a private view of /")(error.into()))?;
    let mut view = View::default();
    for place in SHOWN {
        let shown = view.show(&tree.join(&place[1..]), Path::new(place));
        shown.map_err(failed(place))?;
    }
    Ok(())
}

/// A new mount namespace; without privilege a user namespace first, with the same ids.
fn unshare() -> io::Result<()> {
    // SAFETY: neither flag touches the table of descriptors, which is what the function's contract
    // is about.
    match unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) } {
        Err(rustix::io::Errno::PERM) => {}
        done => return Ok(done?),
    }
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    // SAFETY: as above.
    unsafe {
        rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
    }
    // Without privilege outside, a group map may be written only when setgroups(2) is given up.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// The command's view of the file system, as far as it is its own.
#[derive(Default)]
struct View {
    /// Directories in which entries can be made that nobody else sees.
    own: Vec<PathBuf>,
}

impl View {
    /// Mounts a directory where the command will look for it.
    ///
    /// Whether it is there the kernel says: below another `causeway run` the C library's functions
    /// are the path shim's, which shows it in this process, too.
    fn show(&mut self, source: &Path, place: &Path) -> io::Result<()> {
        if !source.is_dir() {
            return Ok(());
        }
        if rustix::fs::stat(place).is_err() {
            self.make(place)?;
        }
        Ok(mount_bind_recursive(source, place)?)
    }

    /// Makes a directory that only this view has.
    fn make(&mut self, place: &Path) -> io::Result<()> {
        let parent = place.parent().unwrap_or(Path::new("/"));
        if !self.own.iter().any(|own| own == parent) {
            cover(parent)?;
            self.own.push(parent.to_owned());
        }
        Ok(mkdir(place, Mode::from_raw_mode(0o755))?)
    }
}

/// Puts in a directory's place one with the same entries, in which others can be made: sysfs takes
/// none, and those of /dev everybody would see.
fn cover(dir: &Path) -> io::Result<()> {
    let covered = File::open(dir)?;
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("causeway", dir, "tmpfs", flags, c"mode=755")?;
    // What is covered is still reached by the descriptor.
    for entry in fs::read_dir(format!("/proc/self/fd/{}", covered.as_raw_fd()))? {
        repeat(&entry?, dir)?;
    }
    Ok(())
}

/// Shows an entry of the covered directory in the one that covers it.
fn repeat(entry: &DirEntry, dir: &Path) -> io::Result<()> {
    let (old, new) = (entry.path(), dir.join(entry.file_name()));
    let kind = entry.file_type()?;
    if kind.is_symlink() {
        return symlink(fs::read_link(old)?, new);
    }
    if kind.is_dir() {
        fs::create_dir(&new)?;
    } else {
        File::create(&new)?;
    }
    Ok(mount_bind_recursive(old, new)?)
}
