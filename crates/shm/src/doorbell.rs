//! The event that wakes an endpoint (`eventfd(2)`).

use std::io;

#[cfg(not(any(loom, shuttle)))]
use {
    crate::signal::check_unnamed,
    rustix::event::{EventfdFlags, eventfd},
    rustix::io::{Errno, ReadWriteFlags},
    std::os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// What [`mod@crate::notify`] rings.
pub trait Bell {
    /// Makes the owner's wait return. Never blocks on the owner.
    ///
    /// # Errors What the system reports; the notification is then lost and the peer should be taken
    /// for dead.
    fn ring(&self) -> io::Result<()>;
}

/// An eventfd: readable since it was rung, until it is drained.
#[cfg(not(any(loom, shuttle)))]
#[derive(Debug)]
pub struct Doorbell {
    fd: OwnedFd,
}

#[cfg(not(any(loom, shuttle)))]
impl Doorbell {
    /// A new doorbell, owned by the caller.
    ///
    /// # Errors
    /// What `eventfd(2)` reports.
    pub fn create() -> io::Result<Doorbell> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell { fd })
    }

    /// A peer's doorbell, as its broker handed it out.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Doorbell {
        Doorbell { fd }
    }

    /// The descriptor: for poll(2), or to be handed out.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// As [`drain`].
    ///
    /// # Errors
    /// As there.
    pub fn drain(&self) -> io::Result<bool> {
        drain(self.fd())
    }
}

/// Makes a doorbell unreadable again. Returns whether it had been rung.
///
/// Reads nothing else, should the program have closed it and have another file there by now.
/// Never blocks, even if a peer has cleared `O_NONBLOCK`, which all holders share.
///
/// # Errors
/// `EBADF` if this is no eventfd any more.
#[cfg(not(any(loom, shuttle)))]
pub fn drain(bell: BorrowedFd<'_>) -> io::Result<bool> {
    check_unnamed(bell)?;
    let mut count = [0u8; 8];
    let mut iov = [io::IoSliceMut::new(&mut count)];
    // Offset -1: as read(2). NOWAIT is this call's own, whatever the descriptor's flags.
    match rustix::io::preadv2(bell, &mut iov, u64::MAX, ReadWriteFlags::NOWAIT) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(Errno::OPNOTSUPP | Errno::SPIPE | Errno::NOSYS | Errno::INVAL) => drain_plain(bell),
        Err(e) => Err(e.into()),
    }
}

#[cfg(not(any(loom, shuttle)))]
fn drain_plain(bell: BorrowedFd<'_>) -> io::Result<bool> {
    match rustix::io::read(bell, &mut [0u8; 8]) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(not(any(loom, shuttle)))]
impl Bell for Doorbell {
    fn ring(&self) -> io::Result<()> {
        crate::signal(self.fd())
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
