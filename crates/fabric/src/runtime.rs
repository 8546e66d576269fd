//! Where a broker is: the runtime directory with its socket, locks and views, or one socket.

use std::fmt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::guest;
use causeway_setting::setting;
use rustix::fs::{Access, access};

/// Setting that names the runtime directory.
pub const RUNTIME_DIR_VARIABLE: &str = "CAUSEWAY_RUNTIME_DIR";
/// Setting that names the socket of a tenant.
pub const SOCKET_VARIABLE: &str = "CAUSEWAY_SOCKET";
/// Runtime directory of root.
pub const RUNTIME_DIR_ROOT: &str = "/run/causeway";
/// Socket of the tenant that packages set up for a machine's users. Its mode says who they are.
pub const MACHINE_SOCKET: &str = "/run/causeway-tenants/causeway/broker.sock";
/// Configuration of the broker there.
pub const CONFIG_ROOT: &str = "/etc/causeway/causewayd.toml";
/// The broker's listening socket.
pub const SOCKET_NAME: &str = "broker.sock";
/// Locked by the broker as long as it lives.
pub const BROKER_LOCK_NAME: &str = "broker.lock";
/// Locked by a process that starts or ends a broker.
pub const START_LOCK_NAME: &str = "start.lock";
/// Holds the broker's process id in decimal, for people.
pub const PID_NAME: &str = "broker.pid";
/// Suffix of the directory beside a tenant's socket that holds its views of sysfs.
const VIEWS_SUFFIX: &str = ".d";
/// Prefix of the views of sysfs, one per network namespace: `sys-<cookie>`.
pub const VIEW_PREFIX: &str = "sys-";

/// Longest path of a runtime directory, in bytes: a socket's, with its name, has 107 (unix(7)).
pub const RUNTIME_DIR_PATH_MAX: usize = 107 - "/".len() - SOCKET_NAME.len();

/// Access bits that the owner has in the runtime directory.
const OWN_ACCESS: u32 = 0o700;
/// Access bits that nobody but the owner may have in the runtime directory.
const FOREIGN_ACCESS: u32 = 0o077;

/// How a broker is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// By its runtime directory. A broker is started there if there is none.
    Dir(PathBuf),
    /// By the socket of a tenant. Its broker is somebody else's to start.
    Socket(PathBuf),
    /// By the device of a virtual machine's driver: the broker is its host's.
    Device,
}

impl Address {
    /// What this user and environment say: the socket `$CAUSEWAY_SOCKET`, else the directory
    /// `$CAUSEWAY_RUNTIME_DIR`, else the driver's device if there is one, else [`MACHINE_SOCKET`]
    /// for those who may connect to it, else [`runtime_dir`].
    pub fn from_env() -> Address {
        if let Some(socket) = setting(SOCKET_VARIABLE) {
            return Address::Socket(lasting(PathBuf::from(socket)));
        }
        if setting(RUNTIME_DIR_VARIABLE).is_some() {
            return Address::Dir(runtime_dir());
        }
        if guest::is_present() {
            return Address::Device;
        }
        let socket = Path::new(MACHINE_SOCKET);
        if may_connect(socket) {
            return Address::Socket(socket.to_owned());
        }
        Address::Dir(runtime_dir())
    }

    /// The socket to connect to, or the device to open.
    pub fn socket(&self) -> PathBuf {
        match self {
            Address::Dir(dir) => dir.join(SOCKET_NAME),
            Address::Socket(socket) => socket.clone(),
            Address::Device => PathBuf::from(guest::DEVICE),
        }
    }

    /// Where a view of sysfs is that the broker says is at `root`. A tenant's socket may lie in
    /// another place for its clients than for the broker, and the views lie beside it.
    pub(crate) fn path_of_view(&self, root: &str) -> PathBuf {
        let root = Path::new(root);
        match (self, root.file_name()) {
            (Address::Socket(socket), Some(name)) => views_beside(socket).join(name),
            _ => root.to_owned(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Dir(path) | Address::Socket(path) => path.display().fmt(f),
            Address::Device => f.write_str(guest::DEVICE),
        }
    }
}

/// Whether this process's user, if it is not root, may connect to a socket. Root has a broker for
/// itself at [`RUNTIME_DIR_ROOT`]. A program that runs for two users at once may not: access(2)
/// answers for the one who started it.
fn may_connect(socket: &Path) -> bool {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    let one_user = getuid() == geteuid() && getgid() == getegid();
    !geteuid().is_root() && one_user && access(socket, Access::WRITE_OK).is_ok()
}

/// The same place, wherever this process and those that it starts work later. A path that is only
/// short enough for a socket while it is relative stays so.
pub fn lasting(path: PathBuf) -> PathBuf {
    match std::path::absolute(&path) {
        Ok(absolute) if absolute.as_os_str().len() <= RUNTIME_DIR_PATH_MAX => absolute,
        Ok(_) | Err(_) => path,
    }
}

/// The directory for the views of sysfs of a tenant with this socket.
pub fn views_beside(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(VIEWS_SUFFIX);
    PathBuf::from(path)
}

/// The runtime directory of this user and environment, not created yet: `$CAUSEWAY_RUNTIME_DIR`,
/// else [`RUNTIME_DIR_ROOT`] for root, else `$XDG_RUNTIME_DIR/causeway`, else
/// `/tmp/causeway-UID`. The XDG Base Directory Specification has a relative `$XDG_RUNTIME_DIR`
/// ignored.
pub fn runtime_dir() -> PathBuf {
    if let Some(dir) = setting(RUNTIME_DIR_VARIABLE) {
        return lasting(PathBuf::from(dir));
    }
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return PathBuf::from(RUNTIME_DIR_ROOT);
    }
    match setting("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(dir) if dir.is_absolute() => dir.join("causeway"),
        Some(_) | None => PathBuf::from(format!("/tmp/causeway-{}", uid.as_raw())),
    }
}

/// Creates the runtime directory if it is missing (mode 0700, whatever the umask) and checks that
/// nobody but this user can write to it or replace it.
///
/// # Errors
/// [`Error::RuntimeDir`] if it cannot be created, is not a directory (a symbolic link is not
/// followed), belongs to another user, or is accessible to others.
pub fn prepare(dir: &Path) -> Result<()> {
    check_length(dir)?;
    let created = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(OWN_ACCESS)
        .create(dir);
    if let Err(error) = created
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(refuse(dir, error.to_string()));
    }
    // A read-only file system refuses it. Who needs the access finds that it is missing.
    let _ = give_access(dir);
    check(dir)
}

/// Lets this user into a directory of his from which the umask of the program that made it keeps
/// him out.
fn give_access(dir: &Path) -> std::io::Result<()> {
    let metadata = std::fs::symlink_metadata(dir)?;
    let own = metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw();
    let mode = metadata.mode() & 0o7777;
    // One that others may enter is refused as it is.
    let closed = mode & OWN_ACCESS != OWN_ACCESS && mode & FOREIGN_ACCESS == 0;
    if own && closed {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode | OWN_ACCESS))?;
    }
    Ok(())
}

/// Checks an existing runtime directory as [`prepare`] does.
///
/// # Errors
/// [`Error::RuntimeDir`].
pub fn check(dir: &Path) -> Result<()> {
    let metadata = std::fs::symlink_metadata(dir).map_err(|e| refuse(dir, e.to_string()))?;
    let uid = rustix::process::geteuid().as_raw();
    if metadata.is_symlink() {
        return Err(refuse(dir, "a symbolic link, not a directory".into()));
    }
    if !metadata.is_dir() {
        return Err(refuse(dir, "not a directory".into()));
    }
    if metadata.uid() != uid {
        let owner = metadata.uid();
        return Err(refuse(dir, format!("owned by uid {owner}, not by {uid}")));
    }
    if metadata.mode() & FOREIGN_ACCESS != 0 {
        let mode = metadata.mode() & 0o7777;
        return Err(refuse(
            dir,
            format!("mode {mode:04o} lets others in; chmod 0700"),
        ));
    }
    Ok(())
}

/// Checks that a socket can be made in the runtime directory.
///
/// # Errors
/// [`Error::RuntimeDir`].
pub(crate) fn check_length(dir: &Path) -> Result<()> {
    match dir.as_os_str().len() {
        0..=RUNTIME_DIR_PATH_MAX => Ok(()),
        length => Err(refuse(
            dir,
            format!(
                "the path has {length} bytes, and must leave room for a socket's name: at most \
                 {RUNTIME_DIR_PATH_MAX}"
            ),
        )),
    }
}

fn refuse(path: &Path, reason: String) -> Error {
    Error::RuntimeDir {
        path: path.to_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn trees_are_found_beside_a_socket_wherever_it_is_mounted() {
        let told = "/run/causeway-tenants/web.sock.d/sys-7";
        let socket = Address::Socket("/mnt/rdma.sock".into());
        let found = socket.path_of_view(told);
        assert_eq!(found, Path::new("/mnt/rdma.sock.d/sys-7"));
        let dir = Address::Dir("/run/causeway".into());
        assert_eq!(dir.path_of_view(told), Path::new(told));
    }

    #[test]
    fn a_missing_directory_is_made_private() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("a/b");
        prepare(&dir).unwrap();
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        prepare(&dir).unwrap();
    }

    #[test]
    fn a_path_leaves_room_for_the_sockets_name() {
        assert_eq!(RUNTIME_DIR_PATH_MAX, 95);
        let long = format!("/{}", "x".repeat(RUNTIME_DIR_PATH_MAX - 1));
        assert!(check_length(Path::new(&long)).is_ok());
        assert!(rustix::net::SocketAddrUnix::new(Path::new(&long).join(SOCKET_NAME)).is_ok());
        let error = prepare(Path::new(&(long + "x"))).unwrap_err();
        assert!(error.to_string().contains("96 bytes"), "{error}");
    }

    #[test]
    fn a_directory_that_a_umask_has_closed_is_opened_to_its_owner_alone() {
        let base = tempfile::tempdir().unwrap();
        for (found, made) in [(0o000, 0o700), (0o600, 0o700), (0o700, 0o700)] {
            let dir = base.path().join(format!("{found:o}"));
            std::fs::create_dir(&dir).unwrap();
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(found)).unwrap();
            prepare(&dir).unwrap();
            assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, made);
        }
    }

    #[test]
    fn links_files_and_open_directories_are_refused() {
        let made = tempfile::tempdir().unwrap();
        let base = made.path();
        let good = base.join("good");
        prepare(&good).unwrap();
        symlink(&good, base.join("link")).unwrap();
        std::fs::write(base.join("file"), b"").unwrap();
        let Err(error @ Error::RuntimeDir { .. }) = prepare(&base.join("link")) else {
            panic!("a link is not followed");
        };
        assert!(error.to_string().contains("symbolic link"), "{error}");
        let Err(error @ Error::RuntimeDir { .. }) = prepare(&base.join("file")) else {
            panic!("a file is no directory");
        };
        assert!(error.to_string().ends_with("not a directory"), "{error}");
        std::fs::set_permissions(&good, std::fs::Permissions::from_mode(0o750)).unwrap();
        assert!(matches!(check(&good), Err(Error::RuntimeDir { .. })));
    }
}
