//! One descriptor that is readable whenever an endpoint has something to read from its broker.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use causeway_owned::Owned;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::error::{Error, Result};
use crate::launch::timespec;

/// An epoll descriptor over the control socket, an eventfd and a timer. Events may arrive while a
/// call waits for its reply; they are taken off the socket then, so the socket alone would leave
/// a sleeper asleep. The descriptor stays the same when the broker, hence the socket, is replaced.
#[derive(Debug)]
pub(crate) struct Wakeup {
    epoll: Owned,
    queued: Owned,
    retry: Owned,
}

impl Wakeup {
    pub(crate) fn new() -> Result<Wakeup> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::system("epoll_create"))?;
        let queued = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::system("eventfd"))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let retry = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(Error::system("timerfd_create"))?;
        let wakeup = Wakeup {
            epoll: Owned::new(epoll, "what tells of the broker's news"),
            queued: Owned::new(queued, "what wakes for the broker's news"),
            retry: Owned::new(retry, "a timer"),
        };
        wakeup.watch(wakeup.queued.as_fd())?;
        wakeup.watch(wakeup.retry.as_fd())?;
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

    /// A thread is about to call over the socket, and takes whatever comes: nobody else need wake
    /// for it.
    pub(crate) fn pause(&self, socket: BorrowedFd<'_>) {
        self.change(socket, epoll::EventFlags::empty());
    }

    /// The call is over. What is left unread wakes.
    pub(crate) fn resume(&self, socket: BorrowedFd<'_>) {
        self.change(socket, epoll::EventFlags::IN);
    }

    fn change(&self, socket: BorrowedFd<'_>, events: epoll::EventFlags) {
        // Fails only for a socket that is not watched, and then there is nothing to change.
        let _ = epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(0), events);
    }

    /// Explicit, since a copy of the socket in a forked child would keep it registered.
    pub(crate) fn unwatch(&self, socket: BorrowedFd<'_>) {
        // Fails only for a socket that was never watched, which is as good.
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// Makes the descriptor readable until [`Wakeup::lower`].
    pub(crate) fn raise(&self) {
        // Fails only if the program has closed it: then nobody sleeps on it.
        let _ = self.queued.signal();
    }

    pub(crate) fn lower(&self) {
        // As above.
        let _ = self.queued.drain();
    }

    /// Makes the descriptor readable after `delay`.
    pub(crate) fn retry_after(&self, delay: Duration) {
        let zero = timespec(Duration::ZERO);
        let once = Itimerspec {
            it_interval: zero,
            it_value: timespec(delay),
        };
        // Has no way to fail with a valid time and a timer.
        let _ = timerfd_settime(self.retry.as_fd(), TimerfdTimerFlags::empty(), &once);
    }

    /// Whether a delay has passed since the last question.
    pub(crate) fn take_retry(&self) -> bool {
        self.retry.drain().unwrap_or(false)
    }
}
