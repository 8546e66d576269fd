//! Memory that the broker lets go of beside the event loop.
//!
//! The last close of a memfd gives its pages back to the system, which takes a tenth of a second
//! and more for a gigabyte. The broker often closes last, since it outlives the program that used
//! the memory; and as long as the loop does nothing else, every program's calls wait, and fail
//! after [`CALL_TIMEOUT`](causeway_fabric::limits::CALL_TIMEOUT). So a thread of its own closes
//! what holds much.
//!
//! A tenant's quota is free at once, its memory soon. So that nobody holds twice the quota by being
//! faster than the thread, so much waits for it at most; what is more is closed in the loop.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use causeway_fabric::fds::is_huge;
use rustix::fs::fstat;

use crate::side_thread::SideThread;

/// Bytes of pages that are freed at once, which takes some milliseconds.
const AT_ONCE_MAX: u64 = 16 << 20;
/// Bytes of pages that wait for the thread, at most: it frees that in about a second.
const WAITING_MAX: u64 = 8 << 30;
/// Bytes of a block, as `fstat(2)` counts them.
const BLOCK_BYTES: u64 = 512;

/// The thread that closes.
static THREAD: Mutex<SideThread<Left>> = Mutex::new(SideThread::new("freer", drop));

/// Bytes of pages that wait for the thread.
static WAITING: AtomicU64 = AtomicU64::new(0);

/// What the thread closes.
#[derive(Debug)]
struct Left {
    fd: Option<OwnedFd>,
    bytes: u64,
}

impl Left {
    /// `None`, and closed, if too much would wait.
    fn new(fd: OwnedFd, bytes: u64) -> Option<Left> {
        let add = |waiting: u64| Some(waiting + bytes).filter(|all| *all <= WAITING_MAX);
        let room = WAITING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        room.ok().map(|_| Left {
            fd: Some(fd),
            bytes,
        })
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        drop(self.fd.take());
        WAITING.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A descriptor of memory, which is not waited for when it is dropped.
#[derive(Debug)]
pub struct Memory(Option<OwnedFd>);

impl Memory {
    /// Bytes of memory that it takes up, whoever wrote them.
    pub fn resident(&self) -> u64 {
        resident(self)
    }
}

fn resident(fd: &OwnedFd) -> u64 {
    fstat(fd).map_or(0, |stat| stat.st_blocks as u64) * BLOCK_BYTES
}

impl From<OwnedFd> for Memory {
    fn from(fd: OwnedFd) -> Memory {
        Memory(Some(fd))
    }
}

impl Deref for Memory {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        self.0.as_ref().expect("there until it is dropped")
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.deref().as_fd()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
            close(fd, &mut thread);
        }
    }
}

/// Closes a descriptor: by the thread if it holds much, unless none can be started. Huge pages are
/// few, so they are free at once, and the next who asks for them finds them.
fn close(fd: OwnedFd, thread: &mut SideThread<Left>) {
    let bytes = resident(&fd);
    if bytes <= AT_ONCE_MAX || is_huge(&fd) {
        return;
    }
    if let Some(left) = Left::new(fd, bytes) {
        // What the thread does not get is dropped, and so closed.
        let _ = thread.give(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use causeway_fabric::fds::private_memfd;
    use rustix::fs::{FallocateFlags, fallocate};
    use std::os::fd::AsRawFd;
    use std::sync::mpsc::channel;

    /// Memory with so many bytes of pages.
    fn filled(bytes: u64) -> OwnedFd {
        let fd = private_memfd("memory", bytes).unwrap();
        fallocate(&fd, FallocateFlags::empty(), 0, bytes).unwrap();
        fd
    }

    #[test]
    fn the_thread_closes_what_holds_much() {
        let (sender, receiver) = channel();
        let mut thread = SideThread::leading_to(sender, drop);
        close(filled(AT_ONCE_MAX), &mut thread);
        assert!(receiver.try_recv().is_err());
        let fd = filled(AT_ONCE_MAX + 4096);
        let number = fd.as_raw_fd();
        close(fd, &mut thread);
        let left = receiver.try_recv().unwrap();
        let held = left.fd.as_ref().map(OwnedFd::as_raw_fd);
        assert_eq!((held, left.bytes), (Some(number), AT_ONCE_MAX + 4096));
    }

    #[test]
    fn what_waits_is_bounded() {
        assert!(Left::new(filled(4096), WAITING_MAX + 1).is_none());
        // That was closed, and does not wait.
        assert!(Left::new(filled(4096), WAITING_MAX / 2).is_some());
    }
}
