//! Closing descriptors of files that clients sent, beside the event loop.
//!
//! What no service knows has to be closed, and a file system may take as long as it likes for that:
//! close(2) waits for FUSE's FLUSH, which nothing interrupts. So [`THREADS_MAX`] threads do it, of
//! which each user has one at a time. Descriptors that a user's thread has no time for wait, and a
//! user with [`WAITING_MAX`] waiting descriptors gets no connection until there are fewer.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::admission::Holder;

/// Threads that close.
pub const THREADS_MAX: usize = 4;
/// Descriptors of one user that wait, beyond which it has no connections.
pub const WAITING_MAX: usize = 32;

/// What one user's descriptors wait for.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<OwnedFd>,
    /// A thread is closing one of them.
    is_served: bool,
}

#[derive(Debug)]
struct Closers {
    queues: BTreeMap<Holder, Queue>,
    threads: usize,
}

static CLOSERS: Mutex<Closers> = Mutex::new(Closers {
    queues: BTreeMap::new(),
    threads: 0,
});

fn closers() -> MutexGuard<'static, Closers> {
    CLOSERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes a user's descriptors, sooner or later. False if so many wait by now that the user is to
/// lose its connections.
pub fn close(holder: Holder, fds: Vec<OwnedFd>) -> bool {
    if fds.is_empty() {
        return !is_full(holder);
    }
    let mut closers = closers();
    let queue = closers.queues.entry(holder).or_default();
    queue.waiting.extend(fds);
    let is_served = queue.is_served;
    if !is_served && closers.threads < THREADS_MAX {
        let thread = std::thread::Builder::new().name("closer".into());
        match thread.spawn(serve) {
            Ok(_) => closers.threads += 1,
            Err(error) => tracing::error!(%error, "cannot start a thread"),
        }
    }
    drop(closers);
    !is_full(holder)
}

/// Whether so many descriptors of a user wait that it is to have no connections.
pub fn is_full(holder: Holder) -> bool {
    let waiting = closers().queues.get(&holder).map_or(0, |q| q.waiting.len());
    waiting >= WAITING_MAX
}

impl Closers {
    /// A descriptor that no thread is closing another of the same user's beside.
    fn next(&mut self) -> Option<(Holder, OwnedFd)> {
        let mut queues = self.queues.iter_mut();
        queues.find_map(|(holder, queue)| {
            let fd = (!queue.is_served).then(|| queue.waiting.pop_front())??;
            queue.is_served = true;
            Some((*holder, fd))
        })
    }
}

/// Closes until nothing is left that it may close.
fn serve() {
    let mut closers = closers();
    while let Some((holder, fd)) = closers.next() {
        drop(closers);
        drop(fd);
        closers = self::closers();
        if let Some(queue) = closers.queues.get_mut(&holder) {
            queue.is_served = false;
            if queue.waiting.is_empty() {
                closers.queues.remove(&holder);
            }
        }
    }
    closers.threads -= 1;
}
