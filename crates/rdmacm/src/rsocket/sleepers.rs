//! Threads that sleep on one connection, and how each hears of what another takes.
//!
//! All of them wait for the completion channel, which becomes readable once for each time that it
//! is armed. Whoever is about to sleep takes the event, or it would wake at once, and arms the
//! channel again. A thread that is asleep may not have seen the event by then, and what it waits
//! for may have been taken from the queue together with the event. So the event stays until the
//! first sleeper, which waits for nothing else, has woken; and those that sleep beside it have a
//! *bell*, which is rung when the event is taken.

use core::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use causeway_owned::Owned;
use rustix::event::{EventfdFlags, eventfd};

use super::link::Link;

/// What those that sleep on a connection have in common.
#[derive(Default)]
pub(super) struct Sleepers {
    /// Threads that the completion channel alone wakes: the first one, and those for which there is
    /// no descriptor.
    without_bell: u32,
    /// The others'. Once it has been rung the next ones get a new one.
    bell: Option<Arc<Owned>>,
    /// The completion channel is, or will become, readable.
    pub armed: bool,
}

/// A thread that sleeps on a connection.
pub(super) struct Sleeper(Option<Arc<Owned>>);

impl Sleepers {
    /// Prepares for the sleep of one more, beside its look at the queue that is to follow.
    /// [`Sleepers::remove`] ends it.
    pub fn add(&mut self, link: &Link) -> Sleeper {
        if self.without_bell == 0 {
            if link.drain() {
                self.ring();
            }
            self.armed = false;
        }
        // Without an event a sleeper looks again after a while.
        self.armed = self.armed || link.arm().is_ok();
        let bell = match self.without_bell {
            0 => None,
            _ => self.bell(),
        };
        self.without_bell += u32::from(bell.is_none());
        Sleeper(bell)
    }

    /// It is awake.
    pub fn remove(&mut self, sleeper: Sleeper) {
        self.without_bell -= u32::from(sleeper.0.is_none());
        // The last one closes a bell that was rung, and the rsocket is locked.
        causeway_cancel::off(|| drop(sleeper));
    }

    fn bell(&mut self) -> Option<Arc<Owned>> {
        if self.bell.is_none() {
            let made = eventfd(0, EventfdFlags::CLOEXEC).ok();
            self.bell = made.map(|fd| Arc::new(Owned::new(fd, "the bell of an rsocket")));
        }
        self.bell.clone()
    }

    fn ring(&mut self) {
        // One that nobody listens to will do for the next.
        let heard = self.bell.take_if(|bell| Arc::strong_count(bell) > 1);
        if let Some(bell) = heard {
            // Fails only if the program has closed it: then nobody hears of it.
            let _ = causeway_cancel::off(|| bell.signal());
        }
    }
}

impl Sleeper {
    /// The descriptor of its bell; -1 if it has none.
    pub fn fd(&self) -> c_int {
        self.0.as_ref().map_or(-1, |bell| bell.as_fd().as_raw_fd())
    }
}
