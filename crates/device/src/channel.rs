//! Event queues behind a file descriptor: completion channels and the async events of a context.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::errno::Errno;

/// A queue whose descriptor, an eventfd, is readable if and only if the queue holds an event:
/// programs poll it, make it non-blocking and nest it in epoll.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    queue: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    pub fn new() -> Result<Self, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
        Ok(EventQueue {
            fd,
            queue: Mutex::new(VecDeque::new()),
        })
    }

    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub fn push(&self, event: T) {
        let mut queue = self.queue.lock();
        queue.push_back(event);
        if queue.len() == 1 {
            // Cannot block: the counter was 0.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    pub fn pop(&self) -> Option<T> {
        let mut queue = self.queue.lock();
        let event = queue.pop_front()?;
        if queue.is_empty() {
            self.drain();
        }
        Some(event)
    }

    /// Removes the events that `gone` names, because their object is being destroyed.
    pub fn remove(&self, gone: impl Fn(&T) -> bool) -> usize {
        let mut queue = self.queue.lock();
        let before = queue.len();
        queue.retain(|event| !gone(event));
        let removed = before - queue.len();
        if removed > 0 && queue.is_empty() {
            self.drain();
        }
        removed
    }

    /// Whether the program has made the descriptor non-blocking.
    pub fn nonblocking(&self) -> bool {
        rustix::fs::fcntl_getfl(&self.fd)
            .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
    }

    /// Makes the descriptor unreadable. Called with the queue locked and the counter at 1, so the
    /// read cannot block.
    fn drain(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.fd, &mut count);
    }
}

impl<T> AsFd for EventQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn readable(queue: &EventQueue<u32>) -> bool {
        let mut fds = [PollFd::new(queue, PollFlags::IN)];
        let none = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&none)).unwrap() == 1
    }

    #[test]
    fn readable_if_and_only_if_an_event_is_queued() {
        let queue = EventQueue::new().unwrap();
        assert!(!readable(&queue));
        queue.push(1);
        queue.push(2);
        assert!(readable(&queue));
        assert_eq!(queue.pop(), Some(1));
        assert!(readable(&queue));
        assert_eq!(queue.pop(), Some(2));
        assert!(!readable(&queue));
        queue.push(3);
        assert_eq!(queue.remove(|e| *e == 3), 1);
        assert!(!readable(&queue));
    }
}
