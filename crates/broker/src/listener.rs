//! Listeners: the listening sockets, one for each tenant.
//!
//! The broker's own tenant comes by the socket in the runtime directory, which is nobody else's to
//! enter. The others come by sockets at the paths that the configuration names, each in a
//! directory that only root and the broker may write to, or somebody could put a socket of his own
//! in its place. A service manager may have opened any of them ([`crate::activation`]).

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use causeway_fabric::limits::LISTEN_BACKLOG;
use causeway_fabric::runtime::{SOCKET_NAME, views_beside};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Uid, chownat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen};
use rustix::process::umask;

use crate::activation::Activation;
use crate::config::{SocketSpec, Tenant};
use crate::sysfs_views::SysfsViews;

/// Bits of a directory's mode that let others than its owner write to it.
const FOREIGN_WRITE: u32 = 0o022;
/// What a listener and its views are made under: others may see them.
const OPEN_UMASK: Mode = Mode::WGRP.union(Mode::WOTH);

/// A listener, and what its tenant's clients see of sysfs. Dropped, it takes away what it left in
/// the file system; a socket of the service manager's stays.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    /// The views of sysfs.
    pub sysfs_views: SysfsViews,
    path: PathBuf,
    /// Device and inode of the socket: another's at the same path is left alone.
    identity: (u64, u64),
    /// The socket is the service manager's.
    handed_over: bool,
}

impl Listener {
    /// Opens the listener of a tenant, or takes the one that the service manager has opened. To be
    /// called while `broker.lock` of `dir` is held.
    ///
    /// # Errors
    /// What the system says, or that the socket's directory is not safe, or somebody answers at
    /// the socket already.
    pub fn open(tenant: &Tenant, dir: &Path, given: &mut Activation) -> io::Result<Listener> {
        let path = match &tenant.socket {
            None => dir.join(SOCKET_NAME),
            Some(spec) => spec.path.clone(),
        };
        let given = given.socket(&path);
        let handed_over = given.is_some();
        let (socket, sysfs_views) = match &tenant.socket {
            // Mode 0600 by the umask, in a directory that is 0700.
            None => (
                given.map_or_else(|| listening_socket(&path), Ok)?,
                SysfsViews::new(dir.to_owned(), None),
            ),
            Some(spec) => {
                let before = umask(OPEN_UMASK);
                let socket = listen_for_tenant(spec, given);
                umask(before);
                let socket = socket?;
                let mut sysfs_views = SysfsViews::new(views_beside(&path), Some(OPEN_UMASK));
                // Those of a broker that was killed.
                sysfs_views.remove_all();
                (socket, sysfs_views)
            }
        };
        let metadata = fs::symlink_metadata(&path)?;
        Ok(Listener {
            socket,
            sysfs_views,
            path,
            identity: (metadata.dev(), metadata.ino()),
            handed_over,
        })
    }

    /// The listening socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            if !self.handed_over {
                let _ = fs::remove_file(&self.path);
            }
            self.sysfs_views.remove_all();
        }
    }
}

/// The listening socket of a tenant. One that the service manager gave keeps its mode and owner.
fn listen_for_tenant(spec: &SocketSpec, given: Option<OwnedFd>) -> io::Result<OwnedFd> {
    let dir = spec.path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    check_directory(dir)?;
    if let Some(socket) = given {
        return Ok(socket);
    }
    make_way(&spec.path)?;
    let socket = listening_socket(&spec.path)?;
    fs::set_permissions(&spec.path, fs::Permissions::from_mode(spec.mode))?;
    // Last: it is not the broker's to change afterwards.
    if spec.owner.is_some() || spec.group.is_some() {
        let owner = spec.owner.map(Uid::from_raw);
        let group = spec.group.map(Gid::from_raw);
        chownat(CWD, &spec.path, owner, group, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(socket)
}

/// Nobody but root and this user may put something else in the socket's place.
fn check_directory(dir: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(dir)?;
    let own = rustix::process::geteuid().as_raw();
    let owner_ok = metadata.uid() == own || metadata.uid() == 0;
    if !metadata.is_dir() || !owner_ok || metadata.mode() & FOREIGN_WRITE != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "its directory is not one that only root and the broker's user can write to",
        ));
    }
    Ok(())
}

/// Removes the socket that a killed broker left.
fn make_way(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            let why = "something that is no socket is in its place";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        Ok(_) => {}
    }
    if connect(new_socket()?, &SocketAddrUnix::new(path)?).is_ok() {
        let why = "another broker answers there";
        return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    }
    fs::remove_file(path)
}

fn listening_socket(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, LISTEN_BACKLOG)?;
    Ok(socket)
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socket_with(family, kind, flags, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Limits, Members};

    fn tenant(path: PathBuf) -> Tenant {
        let socket = SocketSpec {
            path,
            mode: 0o640,
            owner: None,
            group: None,
        };
        Tenant {
            name: "t".into(),
            socket: Some(socket),
            members: Members::default(),
            userfaultfd: Members::default(),
            one_boundary: false,
            limits: Limits::default(),
            key: None,
            wire: Default::default(),
            rates: Default::default(),
        }
    }

    fn open(tenant: &Tenant) -> io::Result<Listener> {
        Listener::open(tenant, Path::new("/"), &mut Activation::default())
    }

    fn refusal(tenant: &Tenant) -> String {
        open(tenant).unwrap_err().to_string()
    }

    #[test]
    fn a_listener_is_made_with_its_directory_and_leaves_nothing() {
        let made = tempfile::tempdir().unwrap();
        let dir = made.path().join("made");
        let path = dir.join("sub/t.sock");
        let tenant = tenant(path.clone());
        let listener = open(&tenant).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&path), mode(&dir.join("sub"))), (0o640, 0o755));
        assert!(refusal(&tenant).contains("another broker answers"));
        drop(listener);
        assert!(!path.exists());
        // What a killed one left is replaced, and another's is left alone.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = open(&tenant).unwrap();
        fs::remove_file(&path).unwrap();
        let other = open(&tenant).unwrap();
        drop(listener);
        assert!(path.exists());
        drop(other);
    }

    #[test]
    fn unsafe_places_are_refused() {
        let made = tempfile::tempdir().unwrap();
        let dir = made.path();
        let path = dir.join("t.sock");
        let tenant = tenant(path.clone());
        fs::write(&path, b"").unwrap();
        assert!(refusal(&tenant).contains("no socket"));
        fs::remove_file(&path).unwrap();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refusal(&tenant).contains("only root"));
    }
}
