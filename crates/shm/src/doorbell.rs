//! The event that wakes an endpoint (`eventfd(2)`).

use std::io;

#[cfg(not(any(loom, shuttle)))]
use {
    causeway_owned::Owned,
    rustix::event::{EventfdFlags, eventfd},
    std::os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// What [`mod@crate::notify`] rings.
pub trait Bell {
    /// Makes the owner's wait return. Never blocks on the owner.
    ///
    /// # Errors
    /// What the system reports; the notification is then lost and the peer should be taken for
    /// dead.
    fn ring(&self) -> io::Result<()>;
}

/// An eventfd: readable since it was rung, until it is drained.
#[cfg(not(any(loom, shuttle)))]
#[derive(Debug)]
pub struct Doorbell {
    fd: Owned,
}

#[cfg(not(any(loom, shuttle)))]
impl Doorbell {
    /// A new doorbell, owned by the caller.
    ///
    /// # Errors
    /// What `eventfd(2)` reports.
    pub fn create() -> io::Result<Doorbell> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell::from_fd(fd))
    }

    /// A peer's doorbell, as its broker handed it out.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Doorbell {
        let fd = Owned::new(fd, "a doorbell");
        Doorbell { fd }
    }

    /// The descriptor: for poll(2), or to be handed out.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// As [`causeway_owned::drain`].
    ///
    /// # Errors
    /// As there.
    pub fn drain(&self) -> io::Result<bool> {
        self.fd.drain()
    }
}

#[cfg(not(any(loom, shuttle)))]
impl Bell for Doorbell {
    fn ring(&self) -> io::Result<()> {
        self.fd.signal()
    }
}

/// Stand-in so that the crate's interface is whole where there are no descriptors.
#[cfg(any(loom, shuttle))]
#[derive(Debug)]
pub struct Doorbell {}

#[cfg(any(loom, shuttle))]
impl Bell for Doorbell {
    fn ring(&self) -> io::Result<()> {
        Ok(())
    }
}
