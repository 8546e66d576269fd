//! Events of an object, and the threads that wait for them.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};

/// Most events that are kept of an object for which nobody waits; then the oldest are dropped.
const MAX: usize = 4096;

/// A queue of events.
#[derive(Debug)]
pub struct Events<T> {
    inner: Mutex<Inner<T>>,
    more: Condvar,
}

#[derive(Debug)]
struct Inner<T> {
    queue: VecDeque<T>,
    closed: bool,
}

impl<T> Default for Events<T> {
    fn default() -> Self {
        Events {
            inner: Mutex::new(Inner {
                queue: VecDeque::new(),
                closed: false,
            }),
            more: Condvar::new(),
        }
    }
}

impl<T> Events<T> {
    /// Adds an event, and wakes one waiter.
    pub fn push(&self, event: T) {
        let mut inner = self.inner.lock();
        if inner.queue.len() == MAX {
            inner.queue.pop_front();
        }
        inner.queue.push_back(event);
        drop(inner);
        self.more.notify_one();
    }

    /// Takes the first event, waiting for it until `deadline`.
    ///
    /// # Errors
    /// [`Error::TIMEOUT`]; [`Error::CANCELLED`] once the queue is closed.
    pub fn wait(&self, deadline: Option<Instant>) -> Result<T> {
        let mut inner = self.inner.lock();
        loop {
            if inner.closed {
                return Err(Error::CANCELLED);
            }
            if let Some(event) = inner.queue.pop_front() {
                return Ok(event);
            }
            let late = match deadline {
                None => {
                    self.more.wait(&mut inner);
                    false
                }
                Some(by) => self.more.wait_until(&mut inner, by).timed_out(),
            };
            if late && inner.queue.is_empty() && !inner.closed {
                return Err(Error::TIMEOUT);
            }
        }
    }

    /// Ends all waits, now and later.
    pub fn close(&self) {
        self.inner.lock().closed = true;
        self.more.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeout::deadline;

    #[test]
    fn events_come_in_order_and_no_more_after_the_end() {
        let events = Events::default();
        assert_eq!(events.wait(deadline(0)), Err(Error::TIMEOUT));
        events.push(1);
        events.push(2);
        assert_eq!(events.wait(None), Ok(1));
        assert_eq!(events.wait(deadline(1)), Ok(2));
        events.push(3);
        events.close();
        assert_eq!(events.wait(None), Err(Error::CANCELLED));
    }

    #[test]
    fn the_end_ends_a_wait() {
        let events: Events<u8> = Events::default();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| events.wait(None));
            events.close();
            assert_eq!(waiter.join().unwrap(), Err(Error::CANCELLED));
        });
    }

    #[test]
    fn what_nobody_takes_is_bounded() {
        let events = Events::default();
        for i in 0..MAX + 3 {
            events.push(i);
        }
        assert_eq!(events.wait(None), Ok(3));
    }
}
