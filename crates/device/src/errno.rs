//! Errors of the device: the errno values the verbs man pages name.

use causeway_proto::qp::{AttrError, PostError};

/// A positive errno value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// The program cancels the thread: the call returns this value, which is no error's.
    pub const CANCELLED: Errno = Errno(causeway_cancel::CANCELLED);

    /// The value of `errno` of this thread.
    #[must_use]
    pub fn last() -> Errno {
        std::io::Error::last_os_error().into()
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

/// Why the device could not be opened, for people as well.
#[derive(Debug)]
pub struct OpenError {
    /// What `ibv_open_device(3)` sets.
    pub errno: Errno,
    reason: String,
}

impl OpenError {
    pub(crate) fn new(code: i32, reason: &str) -> Self {
        OpenError {
            errno: Errno(code),
            reason: reason.into(),
        }
    }

    /// A system call was refused, without which there is no device.
    pub(crate) fn by(call: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |error| OpenError {
            reason: format!("{call}: {error}"),
            errno: error.into(),
        }
    }
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for OpenError {}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> Self {
        let reason = errno.to_string();
        OpenError { errno, reason }
    }
}

impl From<std::io::Error> for OpenError {
    fn from(e: std::io::Error) -> Self {
        Errno::from(e).into()
    }
}

impl From<causeway_fabric::Error> for OpenError {
    fn from(e: causeway_fabric::Error) -> Self {
        let reason = e.to_string();
        OpenError {
            errno: e.into(),
            reason,
        }
    }
}

impl From<std::io::Error> for Errno {
    fn from(e: std::io::Error) -> Self {
        Errno(e.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<AttrError> for Errno {
    fn from(_: AttrError) -> Self {
        Errno(libc::EINVAL)
    }
}

impl From<PostError> for Errno {
    fn from(e: PostError) -> Self {
        match e {
            PostError::Full => Errno(libc::ENOMEM),
            PostError::Invalid => Errno(libc::EINVAL),
        }
    }
}

impl From<causeway_fabric::Error> for Errno {
    fn from(e: causeway_fabric::Error) -> Self {
        Errno(e.errno())
    }
}
