//! Errors of the device: the errno values the verbs man pages name.

use causeway_proto::qp::{AttrError, PostError};

/// A positive errno value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
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
