//! Listening sockets that a service manager hands over (`sd_listen_fds(3)`).
//!
//! systemd makes the sockets of `causewayd.socket` and keeps them while the broker is away: who
//! connects meanwhile waits for the next broker, and a container that has a socket mounted keeps
//! it. A socket belongs to the tenant that has its path, whatever its number or name.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{SocketAddrUnix, SocketType, getsockname, sockopt};

use crate::sys::inherited_fd;

/// Variable with the process that the descriptors are meant for.
const PID_VARIABLE: &str = "LISTEN_PID";
/// Variable with their number.
const COUNT_VARIABLE: &str = "LISTEN_FDS";
/// The first of them.
const FIRST_FD: i32 = 3;
/// More than any configuration has tenants.
const COUNT_MAX: i32 = 1024;

/// The sockets, by the paths that they are bound to.
#[derive(Debug, Default)]
pub struct Activation {
    sockets: Vec<(PathBuf, OwnedFd)>,
}

impl Activation {
    /// Takes what the service manager left for this process. To be called once, before the process
    /// has opened anything.
    ///
    /// # Errors
    /// What is wrong with the number of descriptors, or with one of them.
    pub fn take() -> io::Result<Activation> {
        let value = |name| std::env::var(name).ok();
        if value(PID_VARIABLE) != Some(std::process::id().to_string()) {
            return Ok(Activation::default());
        }
        let text = value(COUNT_VARIABLE).unwrap_or_default();
        let count = text
            .parse()
            .ok()
            .filter(|count| (0..=COUNT_MAX).contains(count));
        let count = count.ok_or_else(|| bad(format!("{COUNT_VARIABLE} is {text:?}")))?;
        let mut sockets = Vec::new();
        for number in FIRST_FD..FIRST_FD + count {
            let socket = inherited_fd(number)?;
            let path = examine(socket.as_fd())
                .map_err(|error| bad(format!("descriptor {number}: {error}")))?;
            sockets.push((path, socket));
        }
        Ok(Activation { sockets })
    }

    /// Whether the socket at this path was handed over, and has not been asked for yet.
    pub fn has(&self, path: &Path) -> bool {
        self.sockets.iter().any(|(other, _)| other == path)
    }

    /// The socket that is bound to this path.
    pub fn socket(&mut self, path: &Path) -> Option<OwnedFd> {
        let index = self.sockets.iter().position(|(other, _)| other == path)?;
        Some(self.sockets.swap_remove(index).1)
    }

    /// To be called when every tenant has its socket.
    ///
    /// # Errors
    /// A socket that is no tenant's: who connects to it would wait for ever.
    pub fn check_empty(&self) -> io::Result<()> {
        match self.sockets.first() {
            None => Ok(()),
            Some((path, _)) => Err(bad(format!("{path:?} is no tenant's socket"))),
        }
    }
}

/// Makes a descriptor one of this process's own, and says what path it listens at.
fn examine(socket: BorrowedFd<'_>) -> io::Result<PathBuf> {
    fcntl_setfd(socket, FdFlags::CLOEXEC)?;
    if sockopt::socket_type(socket)? != SocketType::SEQPACKET
        || !sockopt::socket_acceptconn(socket)?
    {
        return Err(bad("not a listening socket of type SOCK_SEQPACKET"));
    }
    rustix::io::ioctl_fionbio(socket, true)?;
    let address =
        SocketAddrUnix::try_from(getsockname(socket)?).map_err(|_| bad("not a Unix socket"))?;
    let path = address.path_bytes().ok_or_else(|| bad("it has no path"))?;
    Ok(PathBuf::from(OsStr::from_bytes(path)))
}

fn bad(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}
