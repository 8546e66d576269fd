//! What can go wrong.

use causeway_shm::SegmentError;
use causeway_shm::lock::LockError;
use rustix::io::Errno;
use thiserror::Error;

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// Failure of a call. [`Error::errno`] maps it for C.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The broker refused, or is not to be had.
    #[error(transparent)]
    Fabric(#[from] causeway_fabric::Error),
    /// A lock can't be had, or is none.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Memory can't be mapped.
    #[error(transparent)]
    Map(#[from] SegmentError),
    /// The operating system refused, or the call makes no sense.
    #[error("{what}: {errno}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        errno: Errno,
    },
}

impl Error {
    /// The positive errno value that the C interface gives for this error.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Fabric(error) => error.errno(),
            Error::Lock(error) => error.errno(),
            Error::Map(SegmentError::Os(error) | SegmentError::Call { error, .. }) => {
                error.raw_os_error().unwrap_or(libc::EIO)
            }
            Error::Map(_) => libc::EPROTO,
            Error::System { errno, .. } => errno.raw_os_error(),
        }
    }

    pub(crate) fn of(what: &'static str, errno: Errno) -> Error {
        Error::System { what, errno }
    }
}
