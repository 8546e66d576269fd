//! Emptying the segments of the dead, beside the event loop.
//!
//! A peer of another user that holds a descriptor of a segment could go on reading what lies in it
//! when its owner is dead, and keep the memory. So the pages are given back to the system. That
//! takes a second for some gigabytes: a thread of its own does it.
//!
//! Dead means that the *process* is: one that only lost its connection still lives in those pages.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use causeway_fabric::limits::SEGMENT_BYTES;
use rustix::fs::{FallocateFlags, fallocate};

use crate::memory::Memory;
use crate::side_thread::SideThread;

/// Most segments that wait for the deaths of their owners. Beyond, they are let go of as they are:
/// their memory is free when the last holder of a descriptor closes it.
const WAITING_MAX: usize = 4096;

/// Segments that their owners left behind.
#[derive(Debug)]
pub struct Reaper {
    /// By the number of the owner's session, which has ended: its pidfd, its segments.
    waiting: HashMap<u64, (OwnedFd, Vec<Memory>)>,
    segments: usize,
    thread: SideThread<Memory>,
}

impl Default for Reaper {
    fn default() -> Reaper {
        Reaper {
            waiting: HashMap::new(),
            segments: 0,
            thread: SideThread::new("reaper", |segment| punch(&segment)),
        }
    }
}

impl Reaper {
    /// Keeps segments until the process behind `pidfd` is dead. The pidfd must stay watched by the
    /// caller; it is given back if there is no room.
    ///
    /// # Errors
    /// The pidfd, if nothing is kept.
    pub fn wait(
        &mut self,
        session: u64,
        pidfd: OwnedFd,
        segments: Vec<Memory>,
    ) -> Result<(), OwnedFd> {
        if segments.is_empty() || self.segments + segments.len() > WAITING_MAX {
            return Err(pidfd);
        }
        self.segments += segments.len();
        self.waiting.insert(session, (pidfd, segments));
        Ok(())
    }

    /// The process of a session is dead: its segments are emptied soon. Returns its pidfd.
    pub fn empty(&mut self, session: u64) -> Option<OwnedFd> {
        let (pidfd, segments) = self.waiting.remove(&session)?;
        self.segments -= segments.len();
        for segment in segments {
            if let Err(segment) = self.thread.give(segment) {
                punch(&segment);
            }
        }
        Some(pidfd)
    }
}

fn punch(segment: &Memory) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(errno) = fallocate(segment, flags, 0, SEGMENT_BYTES) {
        tracing::error!(%errno, "cannot empty a segment");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use causeway_fabric::fds::{private_memfd, reopen};

    #[test]
    fn segments_wait_for_a_death_and_only_so_many() {
        let mut reaper = Reaper::default();
        let pidfd = crate::testing::descriptor;
        assert!(reaper.wait(1, pidfd(), Vec::new()).is_err());
        let segment = private_memfd("left", SEGMENT_BYTES).unwrap();
        rustix::io::pwrite(&segment, b"secret", 4096).unwrap();
        let held = reopen(&segment, false).unwrap();
        reaper.wait(1, pidfd(), vec![segment.into()]).unwrap();
        let many = (0..WAITING_MAX).map(|_| pidfd().into()).collect();
        assert!(reaper.wait(2, pidfd(), many).is_err());
        assert!(reaper.empty(2).is_none());
        assert!(reaper.empty(1).is_some());
        assert_eq!(reaper.segments, 0);
        let blocks = || rustix::fs::fstat(&held).unwrap().st_blocks;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(8);
        while blocks() != 0 {
            assert!(std::time::Instant::now() < deadline, "never emptied");
            std::thread::yield_now();
        }
        assert!(reaper.empty(1).is_none());
    }
}
