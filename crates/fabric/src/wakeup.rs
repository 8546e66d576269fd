//! One descriptor that is readable whenever an endpoint has something to read from its broker.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::error::{Error, Result};

/// An epoll descriptor over the control socket and an eventfd. Events may arrive while a call
/// waits for its reply; they are taken off the socket then, so the socket alone would leave a
/// sleeper asleep. The descriptor stays the same when the broker, hence the socket, is replaced.
#[derive(Debug)]
pub(crate) struct Wakeup {
    epoll: OwnedFd,
    queued: OwnedFd,
}

impl Wakeup {
    pub(crate) fn new() -> Result<Wakeup> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::system("epoll_create"))?;
        let queued = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::system("eventfd"))?;
        let wakeup = Wakeup { epoll, queued };
        wakeup.watch(wakeup.queued.as_fd())?;
        Ok(wakeup)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(crate) fn watch(&self, socket: BorrowedFd<'_>) -> Result<()> {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)
            .map_err(Error::system("epoll_ctl"))
    }

    /// Explicit, since a copy of the socket in a forked child would keep it registered.
    pub(crate) fn unwatch(&self, socket: BorrowedFd<'_>) {
        // Fails only for a socket that was never watched, which is as good.
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// Makes the descriptor readable until [`Wakeup::lower`].
    pub(crate) fn raise(&self) {
        // Fails only if the counter is at its maximum, and then it is readable already.
        let _ = rustix::io::write(&self.queued, &1u64.to_ne_bytes());
    }

    pub(crate) fn lower(&self) {
        let mut count = [0u8; 8];
        // Fails only if nothing was raised.
        let _ = rustix::io::read(&self.queued, &mut count);
    }
}
