//! Broker requests: what the broker thread is to ask of the broker, and the way to it and back
//! ([`crate::broker_thread`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};

use crate::errno::Errno;

/// Something to ask of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrokerRequest {
    /// The segment that this queue pair wants to reach.
    Fetch(u32),
    /// This queue pair has failed: its peer has no right to anything any more.
    Withdraw(u32),
    /// The segments of this protection domain: an evicted peer may yet store into them.
    GiveUp(u32),
    /// This region is used by peers, and is to be moved to where they can map it.
    Place(u32),
    /// What was taken out of the tables: too much of it waits for the end of a registration.
    Reclaim,
    /// The peer of this queue pair owes an answer: is it held up?
    Ask(u32),
    /// The connection of this queue pair is to be secured, and needs a message made or understood.
    Secure(u32),
    /// The same for associations of this UD queue pair.
    Associate(u32),
    /// The secrets that what has come for multicast groups needs.
    Groups,
}

/// The way to the broker thread, and back.
#[derive(Debug)]
pub(crate) struct BrokerThread {
    /// Wakes it.
    call: OwnedFd,
    /// There are broker requests to carry out.
    has_requests: AtomicBool,
    /// The broker's answers about segments.
    answers: Answers,
}

/// How many answers there have been, and that there is one more.
#[derive(Debug, Default)]
struct Answers {
    count: Mutex<u64>,
    told: Condvar,
}

impl BrokerThread {
    pub fn new() -> Result<Self, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(BrokerThread {
            call: eventfd(0, flags).map_err(std::io::Error::from)?,
            has_requests: AtomicBool::new(false),
            answers: Answers::default(),
        })
    }

    /// The eventfd that wakes it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// There are broker requests. Returns whether it does not know that yet, and is to be woken.
    pub fn send(&self) -> bool {
        !self.has_requests.swap(true, Ordering::SeqCst)
    }

    /// Whether it has been sent since this was last asked.
    pub fn is_sent(&self) -> bool {
        self.has_requests.swap(false, Ordering::SeqCst)
    }

    /// How many answers about segments there have been.
    pub fn answers(&self) -> u64 {
        *self.answers.count.lock()
    }

    /// The broker has answered about a segment, as the state says by now.
    pub fn tell_answered(&self) {
        *self.answers.count.lock() += 1;
        self.answers.told.notify_all();
    }

    /// Waits until there have been others than so many answers. Returns false if that takes too
    /// long.
    pub fn await_answer(&self, seen: u64, until: Instant) -> bool {
        let mut count = self.answers.count.lock();
        while *count == seen {
            if self.answers.told.wait_until(&mut count, until).timed_out() {
                return false;
            }
        }
        true
    }
}
