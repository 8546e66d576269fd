//! A segment that loads and stores reach by the library alone: another host's, or all replicas of a
//! group.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::broadcast::Broadcast;
use crate::error::{Error, Result};
use crate::link::{Direction, Link, Place};
use crate::memory::is_inside;

/// All bytes of such a segment.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    way: Way,
    size: usize,
}

#[derive(Clone, Debug)]
enum Way {
    /// Another host's, at this place.
    Link(Arc<Link>, Place),
    /// A group's.
    Group(Arc<Broadcast>),
}

impl Window {
    /// `size` bytes at a place.
    pub fn new(link: Arc<Link>, place: Place, size: usize) -> Window {
        let way = Way::Link(link, place);
        Window { way, size }
    }

    /// All replicas of a group.
    pub fn of_group(group: Arc<Broadcast>) -> Window {
        let size = group.size();
        let way = Way::Group(group);
        Window { way, size }
    }

    /// The group, if it is one's.
    pub fn group(&self) -> Option<&Arc<Broadcast>> {
        match &self.way {
            Way::Link(..) => None,
            Way::Group(group) => Some(group),
        }
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Posts a WRITE. Its bytes are taken when this returns, and arrive in order; if WRITEs posted
    /// so have been lost since there were `losses` of that, nothing is written.
    ///
    /// # Errors
    /// [`Error::OUT_OF_RANGE`], [`Error::TRANSFER_FAILED`].
    pub fn post(&self, offset: usize, bytes: &[u8], losses: u64) -> Result<()> {
        if !is_inside(offset, bytes.len(), self.size) {
            return Err(Error::OUT_OF_RANGE);
        }
        match &self.way {
            Way::Link(link, place) => link.post_write(bytes, place.after(offset), losses),
            Way::Group(group) => group.post(offset, bytes),
        }
    }

    /// Sees to what was posted without waiting for it.
    ///
    /// # Errors
    /// [`Error::TRANSFER_FAILED`]
    pub fn flush(&self, losses: u64) -> Result<()> {
        match &self.way {
            Way::Link(link, _) => link.flush(losses),
            // Each store has arrived when it is over.
            Way::Group(_) => Ok(()),
        }
    }

    /// Waits until what was posted has arrived.
    ///
    /// # Errors
    /// [`Error::TRANSFER_FAILED`]
    pub fn settle(&self) -> Result<()> {
        match &self.way {
            Way::Link(link, _) => link.settle(),
            Way::Group(_) => Ok(()),
        }
    }

    /// How often posted WRITEs have been lost.
    pub fn losses(&self) -> u64 {
        match &self.way {
            Way::Link(link, _) => link.losses(),
            Way::Group(_) => 0,
        }
    }

    /// Copies between this process's memory and the segment. It has ended when this returns.
    ///
    /// # Errors
    /// [`Error::OUT_OF_RANGE`], [`Error::TRANSFER_FAILED`].
    ///
    /// # Safety
    /// `memory` is valid for `len` bytes, to be read or written, as far as it is mapped.
    pub unsafe fn transfer(
        &self,
        memory: *mut u8,
        offset: usize,
        len: usize,
        direction: Direction,
    ) -> Result<()> {
        static NEVER: AtomicBool = AtomicBool::new(false);
        // SAFETY: the caller's promise.
        unsafe { self.transfer_until(memory, (offset, len), direction, &NEVER) }
    }

    /// As [`Window::transfer`], until `stop` is set.
    ///
    /// # Errors
    /// As there; [`Error::CANCELLED`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn transfer_until(
        &self,
        memory: *mut u8,
        (offset, len): (usize, usize),
        direction: Direction,
        stop: &AtomicBool,
    ) -> Result<()> {
        if !is_inside(offset, len, self.size) {
            return Err(Error::OUT_OF_RANGE);
        }
        // SAFETY: the caller's promise.
        unsafe {
            match &self.way {
                Way::Link(link, place) => {
                    link.transfer(memory, place.after(offset), len, (direction, stop))
                }
                Way::Group(group) => group.transfer(memory, (offset, len), direction, stop),
            }
        }
    }
}
