//! Emptying the segments of the dead, beside the event loop.
//!
//! A peer of another user that holds a descriptor of a segment could go on reading what lies in it
//! when its owner is dead, and keep the memory. So the pages are given back to the system. That
//! takes a second for some gigabytes: a thread of its own does it.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};

use causeway_fabric::limits::SEGMENT_BYTES;
use rustix::fs::{FallocateFlags, fallocate};

/// Hands segments to the thread, which it starts when first needed.
#[derive(Debug, Default)]
pub struct Reaper {
    thread: Option<Sender<OwnedFd>>,
}

impl Reaper {
    /// Empties segments soon.
    pub fn empty(&mut self, segments: Vec<OwnedFd>) {
        for segment in segments {
            let unsent = match &self.thread {
                Some(thread) => thread.send(segment).err().map(|unsent| unsent.0),
                None => Some(segment),
            };
            let Some(segment) = unsent else { continue };
            self.thread = start();
            match &self.thread {
                // A thread that has just been started takes it.
                Some(thread) => drop(thread.send(segment)),
                None => punch(&segment),
            }
        }
    }
}

fn start() -> Option<Sender<OwnedFd>> {
    let (sender, receiver) = channel();
    let work = move || receiver.iter().for_each(|segment| punch(&segment));
    let thread = std::thread::Builder::new().name("reaper".into());
    let started = thread.spawn(work);
    if let Err(error) = &started {
        tracing::error!(%error, "cannot start a thread");
    }
    started.ok().map(|_| sender)
}

fn punch(segment: &OwnedFd) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(errno) = fallocate(segment, flags, 0, SEGMENT_BYTES) {
        tracing::error!(%errno, "cannot empty a segment");
    }
}
