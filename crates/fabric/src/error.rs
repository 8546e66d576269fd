//! What can go wrong between an endpoint and its broker.

use std::path::PathBuf;

use rustix::io::Errno;
use thiserror::Error;

use crate::remoting::Malformed;
use crate::unsecured::Unsecured;

/// Result of a fabric call.
pub type Result<T> = std::result::Result<T, Error>;

/// Failure of a fabric call. [`Error::errno`] maps it for the C ABIs.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The broker refused the request.
    #[error("the broker refused {method}: {errno}{}", not_admitted(method, *errno))]
    Refused {
        /// Method that was refused.
        method: &'static str,
        /// Why.
        errno: Errno,
    },
    /// The connection to the broker is gone; [`crate::Attachment::reattach`] makes a new one.
    #[error("the broker is gone")]
    BrokerGone,
    /// The broker did not reply within [`crate::limits::CALL_TIMEOUT`].
    #[error("the broker did not reply in time; causeway doctor examines it")]
    Timeout,
    /// The broker could not be found or started.
    #[error("cannot start the broker {program:?}: {reason}")]
    Start {
        /// The program that was tried.
        program: PathBuf,
        /// What it said, or the system's error.
        reason: String,
    },
    /// Nobody listens at a tenant's socket.
    #[error(
        "no broker answers at {socket:?}; none is started for a tenant's socket (CAUSEWAY_SOCKET \
         and CAUSEWAY_RUNTIME_DIR choose another)"
    )]
    NoBroker {
        /// The socket.
        socket: PathBuf,
    },
    /// The broker speaks another version of the protocol: it is of another release.
    #[error(
        "the broker speaks version {broker} of the remoting protocol, this build version {}: \
         restart the broker and the programs that use it with one release of Causeway",
        crate::remoting::VERSION
    )]
    Version {
        /// The broker's version.
        broker: u16,
    },
    /// `CAUSEWAY_SISCI_NODE` names no node of the broker's configuration.
    #[error(
        "CAUSEWAY_SISCI_NODE is {node:?}, which is no SISCI node of the broker's configuration"
    )]
    UnknownNode {
        /// What the setting says.
        node: String,
    },
    /// The broker does not speak this protocol.
    #[error("the broker's message is malformed: {0}")]
    Protocol(Malformed),
    /// The runtime directory is not one that only this user can write to.
    #[error("runtime directory {path:?}: {reason}")]
    RuntimeDir {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The caller is a forked child; an attachment belongs to the process that made it.
    #[error("the attachment belongs to the parent process")]
    Forked,
    /// The kernel has pages of another size than Causeway knows.
    #[error(
        "this kernel's pages have {bytes} bytes, and Causeway needs a kernel with pages of {}",
        causeway_identity::PAGE
    )]
    PageSize {
        /// Of a page.
        bytes: usize,
    },
    /// There is no secured session with a node daemon, or a plain one is refused.
    #[error("no connection to a node daemon: {0}")]
    Unsecured(Unsecured),
    /// The operating system refused.
    #[error("{what}: {errno}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        errno: Errno,
    },
}

/// What [`Error::Refused`] names where it is not a request that was refused.
pub(crate) const THE_CONNECTION: &str = "the connection";
/// The user that stands for those who are unknown to a user namespace, unless the kernel was told
/// another (`/proc/sys/kernel/overflowuid`).
const OVERFLOW_UID: u32 = 65534;

/// What it means that a connection was refused to this user.
fn not_admitted(method: &str, errno: Errno) -> &'static str {
    if method != THE_CONNECTION || errno != Errno::ACCESS {
        ""
    } else if rustix::process::geteuid().as_raw() == OVERFLOW_UID {
        "; user 65534, the overflow user, is admitted by no broker: run as another user"
    } else {
        "; its configuration does not admit this user"
    }
}

impl From<Malformed> for Error {
    fn from(why: Malformed) -> Error {
        match why {
            Malformed::Version(broker) => Error::Version { broker },
            why => Error::Protocol(why),
        }
    }
}

impl Error {
    /// The positive errno value that a C interface returns for this error.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Error::Refused { errno, .. } | Error::System { errno, .. } => *errno,
            Error::BrokerGone => Errno::CONNRESET,
            Error::Timeout => Errno::TIMEDOUT,
            Error::Start { .. } | Error::NoBroker { .. } => Errno::NODEV,
            Error::Version { .. } => Errno::PROTONOSUPPORT,
            Error::Protocol(_) => Errno::PROTO,
            Error::RuntimeDir { .. } => Errno::ACCESS,
            Error::UnknownNode { .. } => Errno::INVAL,
            Error::Forked => Errno::PERM,
            Error::PageSize { .. } => Errno::OPNOTSUPP,
            Error::Unsecured(why) => why.errno(),
        };
        errno.raw_os_error()
    }

    /// Whether the broker refused since a limit of its configuration is reached.
    pub(crate) fn is_quota(&self) -> bool {
        matches!(
            self,
            Error::Refused {
                errno: Errno::DQUOT,
                ..
            }
        )
    }

    /// Whether what was asked for has an owner that may yet come back to a new broker.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(
            self,
            Error::Refused {
                errno: Errno::AGAIN,
                ..
            }
        )
    }

    /// Wraps an operating system error with what was tried.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(Errno) -> Error {
        move |errno| Error::System { what, errno }
    }
}
