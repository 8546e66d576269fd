//! Event queues behind a file descriptor: completion channels and the async events of a context.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use causeway_look::Looks;
use causeway_owned::Owned;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::errno::Errno;
use crate::handlers::{self, Handled};

/// Times that a channel is asked whether it is slept on for one look at its descriptor, a system
/// call.
const ASKED_PER_LOOK: u32 = 16;

/// A queue whose descriptor, an eventfd, is readable if and only if the queue holds an event, or a
/// handler has failed since it was last found empty: programs poll it, make it non-blocking and
/// nest it in epoll. Each event is written to it, so that edge-triggered epoll hears of each
/// (epoll(7)); what empties the queue reads them all.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: Owned,
    queue: Mutex<Queue<T>>,
    /// The descriptor was non-blocking when it was last looked at; how often that was asked.
    was_nonblocking: AtomicBool,
    asked: AtomicU32,
    /// What is known of waits for its events.
    pub looks: Looks,
    /// What the helper thread does about events that it announces itself, if anything.
    handler: Handler,
}

/// What is done about events; an error is for the thread that watches the descriptor to find.
pub(crate) type Handle = Box<dyn Fn() -> Result<(), Errno> + Send + Sync>;

/// What is done about an event.
#[derive(Default)]
struct Handler {
    run: Mutex<Option<Handle>>,
    is_set: AtomicBool,
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handler").field(&self.is_set).finish()
    }
}

#[derive(Debug)]
struct Queue<T> {
    events: VecDeque<T>,
    /// The descriptor is readable.
    raised: bool,
    /// A thread makes progress to take an event itself.
    held: bool,
    /// The handler is about to run.
    handled: bool,
    /// Events have come meanwhile that were not written.
    unwritten: bool,
}

impl<T> EventQueue<T> {
    pub fn new() -> Result<Self, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let queue = Queue {
            events: VecDeque::new(),
            raised: false,
            held: false,
            handled: false,
            unwritten: false,
        };
        Ok(EventQueue {
            fd: Owned::new(fd, "an event channel of the device cway0"),
            queue: Mutex::new(queue),
            was_nonblocking: AtomicBool::new(false),
            asked: AtomicU32::new(0),
            looks: Looks::new(),
            handler: Handler::default(),
        })
    }

    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_fd().as_raw_fd()
    }

    pub fn push(&self, event: T) {
        let mut queue = self.queue.lock();
        queue.events.push_back(event);
        queue.unwritten = true;
        self.show(&mut queue);
    }

    pub fn pop(&self) -> Option<T> {
        let mut queue = self.queue.lock();
        let event = queue.events.pop_front();
        self.show(&mut queue);
        event
    }

    /// Sets what the helper thread does about an event, or nothing. The former one does not run any
    /// more when this returns.
    pub fn set_handler(&self, handler: Option<Handle>) {
        let mut run = self.handler.run.lock();
        self.handler
            .is_set
            .store(handler.is_some(), Ordering::Relaxed);
        *run = handler;
    }

    /// Runs `f`, which makes progress and takes what comes of it: an event that is pushed and
    /// popped meanwhile costs no system calls. A thread that watches the descriptor hears of what
    /// is left afterwards.
    pub fn holding<R>(&self, f: impl FnOnce() -> R) -> R {
        self.queue.lock().held = true;
        let result = f();
        let mut queue = self.queue.lock();
        queue.held = false;
        self.show(&mut queue);
        result
    }

    /// Removes the events that `gone` names, because their object is being destroyed.
    pub fn remove(&self, gone: impl Fn(&T) -> bool) -> usize {
        let mut queue = self.queue.lock();
        let before = queue.events.len();
        queue.events.retain(|event| !gone(event));
        self.show(&mut queue);
        before - queue.events.len()
    }

    /// Writes what is new, unless it may be taken at once, and reads once nothing is left.
    fn show(&self, queue: &mut Queue<T>) {
        if queue.events.is_empty() {
            queue.unwritten = false;
            if queue.raised {
                // Fails only if the program has closed it.
                let _ = self.fd.drain();
                queue.raised = false;
            }
        } else if queue.unwritten && !queue.held && !queue.handled {
            let _ = self.fd.signal();
            queue.raised = true;
            queue.unwritten = false;
        }
    }

    /// Whether the program has made the descriptor non-blocking.
    pub fn nonblocking(&self) -> bool {
        rustix::fs::fcntl_getfl(self.fd.as_fd())
            .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
    }

    /// Makes it so.
    pub fn set_nonblocking(&self) -> Result<(), Errno> {
        let set = || {
            let flags = rustix::fs::fcntl_getfl(self.fd.as_fd())?;
            rustix::fs::fcntl_setfl(self.fd.as_fd(), flags | rustix::fs::OFlags::NONBLOCK)
        };
        set().map_err(|error| Errno(error.raw_os_error()))
    }

    /// Whether the program seems to sleep on the descriptor by calls of its own (`poll(2)`), since
    /// it has made it non-blocking: a program does that before it first asks for an event, so that
    /// not each asks the kernel.
    pub fn is_slept_on(&self) -> bool {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        if asked.is_multiple_of(ASKED_PER_LOOK) {
            self.was_nonblocking
                .store(self.nonblocking(), Ordering::Relaxed);
        }
        self.was_nonblocking.load(Ordering::Relaxed)
    }
}

impl EventQueue<usize> {
    /// As [`EventQueue::push`]. Returns whether this thread calls the handler soon, and nobody else
    /// need hear of the event. Another thread's event is shown by the descriptor, at once or when
    /// the handler that is about to run has left it.
    pub fn announce(self: &Arc<Self>, cookie: usize) -> bool {
        let mut queue = self.queue.lock();
        queue.events.push_back(cookie);
        queue.unwritten = true;
        let mine = self.handler.is_set.load(Ordering::Relaxed) && handlers::runs_here();
        if mine && !queue.handled {
            handlers::run_later(Arc::<Self>::clone(self));
            queue.handled = true;
        }
        self.show(&mut queue);
        mine
    }
}

impl Handled for EventQueue<usize> {
    /// A thread that watches the descriptor hears of what is left afterwards, and of a failure.
    fn handle(&self) {
        let outcome = self.handler.run.lock().as_ref().map_or(Ok(()), |run| run());
        let mut queue = self.queue.lock();
        queue.handled = false;
        self.show(&mut queue);
        if outcome.is_err() && !queue.raised {
            // It may have taken the event, and nothing else is to come.
            let _ = self.fd.signal();
            queue.raised = true;
        }
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
    use rustix::buffer::spare_capacity;
    use rustix::event::{PollFd, PollFlags, epoll, poll};
    use std::os::fd::OwnedFd;

    fn readable<T>(queue: &EventQueue<T>) -> bool {
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

    #[test]
    fn a_handler_that_fails_wakes_who_watches() {
        let queue = Arc::new(EventQueue::<usize>::new().unwrap());
        // It has taken the event: nobody else hears of that.
        let run = |outcome: Result<(), Errno>| {
            let taken = Arc::downgrade(&queue);
            let handler = move || {
                assert_eq!(taken.upgrade().unwrap().pop(), Some(7));
                outcome
            };
            queue.set_handler(Some(Box::new(handler)));
            handlers::run_after(|| assert!(queue.announce(7)));
            readable(&queue)
        };
        assert!(!run(Ok(())));
        assert!(run(Err(Errno(libc::EIO))), "who is to hear of it sleeps");
        assert_eq!(queue.pop(), None);
        assert!(!readable(&queue), "it has been told of");
        assert!(run(Err(Errno(libc::EIO))));
        assert!(!run(Ok(())), "what came next was taken");
    }

    /// How often a watcher by edge-triggered epoll is woken, asked after each step.
    struct Edges(OwnedFd);

    impl Edges {
        fn of(queue: &EventQueue<u32>) -> Edges {
            let fd = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&fd, queue, epoll::EventData::new_u64(0), flags).unwrap();
            Edges(fd)
        }

        fn woken(&self) -> bool {
            let mut events = Vec::with_capacity(1);
            let none = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            epoll::wait(&self.0, spare_capacity(&mut events), Some(&none)).unwrap() == 1
        }
    }

    #[test]
    fn each_event_wakes_who_watches_for_edges() {
        let queue = EventQueue::new().unwrap();
        let edges = Edges::of(&queue);
        assert!(!edges.woken());
        queue.push(1);
        assert!(edges.woken());
        queue.push(2);
        assert!(edges.woken(), "though the first has not been taken");
        assert_eq!(queue.pop(), Some(1));
        assert!(!edges.woken(), "taking one is no event");
        queue.push(3);
        assert!(edges.woken());
        queue.holding(|| {
            queue.push(4);
            assert!(!edges.woken());
            assert_eq!(queue.pop(), Some(2));
        });
        assert!(edges.woken(), "what came meanwhile is left");
        queue.holding(|| assert_eq!(queue.pop(), Some(3)));
        assert!(!edges.woken(), "it was told of before");
        assert_eq!(queue.pop(), Some(4));
        assert!(!edges.woken() && !readable(&queue));
        queue.push(5);
        assert!(edges.woken());
    }

    #[test]
    fn what_is_taken_by_who_brought_it_is_never_shown() {
        let queue = EventQueue::new().unwrap();
        let taken = queue.holding(|| {
            queue.push(1);
            assert!(!readable(&queue));
            queue.pop()
        });
        assert_eq!(taken, Some(1));
        assert!(!readable(&queue));
        queue.holding(|| {
            queue.push(2);
            queue.push(3);
            assert_eq!(queue.pop(), Some(2));
        });
        assert!(readable(&queue), "what is left is shown");
        queue.holding(|| assert_eq!(queue.pop(), Some(3)));
        assert!(!readable(&queue));
    }
}
