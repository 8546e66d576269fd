//! A segment that loads and stores reach by the library alone: another host's, or all replicas of a
//! group.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::broadcast::Broadcast;
use crate::error::{Error, Result};
use crate::flight::{Fault, Standing};
use crate::link::{ASIDE, Direction, Link};
use crate::memory::is_inside;
use crate::place::Place;

/// All bytes of such a segment.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    way: Way,
    size: usize,
}

#[derive(Clone, Debug)]
enum Way {
    /// Another host's, at this place.
    Link(Arc<Link>, Arc<Place>),
    /// A group's.
    Group(Arc<Broadcast>),
}

impl Window {
    /// `size` bytes at a place.
    pub fn new(link: Arc<Link>, place: Place, size: usize) -> Window {
        let way = Way::Link(link, Arc::new(place));
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

    /// Whether it is the same connection to the same segment.
    pub fn is(&self, other: &Window) -> bool {
        match (&self.way, &other.way) {
            (Way::Link(_, one), Way::Link(_, other)) => Arc::ptr_eq(one, other),
            (Way::Group(one), Way::Group(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The segment is reached by another address and key. Only while the link has no queue pair.
    pub fn move_to(&self, base: u64, rkey: u32) {
        match &self.way {
            Way::Link(_, place) => place.set(base, rkey),
            // Each host's has a place of its own, which is set there.
            Way::Group(_) => {}
        }
    }

    /// Posts a WRITE. Its bytes are taken when this returns, and arrive in order, or not at all.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn post(&self, offset: usize, bytes: &[u8]) -> core::result::Result<(), Fault> {
        if !is_inside(offset, bytes.len(), self.size) {
            return Err(Fault::Refused);
        }
        match &self.way {
            Way::Link(link, place) => {
                // SAFETY: the slice may be read.
                unsafe { link.post(bytes.as_ptr(), place, (offset, bytes.len())) }
            }
            Way::Group(group) => group.post(offset, bytes),
        }
    }

    /// As [`Window::post`], of these runs of the bytes, and of nothing between them.
    ///
    /// # Errors
    /// [`Fault`]: some runs may have been posted.
    pub fn post_runs(
        &self,
        offset: usize,
        bytes: &[u8],
        runs: &[Range<usize>],
    ) -> core::result::Result<(), Fault> {
        if !is_inside(offset, bytes.len(), self.size) {
            return Err(Fault::Refused);
        }
        match &self.way {
            Way::Link(link, place) => link.post_runs(bytes, (place, offset), runs),
            Way::Group(group) => {
                let mut runs = runs.iter();
                runs.try_for_each(|run| group.post(offset + run.start, &bytes[run.clone()]))
            }
        }
    }

    /// Reads into memory that is not to be registered.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> core::result::Result<(), Fault> {
        if !is_inside(offset, bytes.len(), self.size) {
            return Err(Fault::Refused);
        }
        let to = (offset, bytes.len());
        match &self.way {
            Way::Link(link, place) => {
                // SAFETY: the slice may be written.
                unsafe { link.read(bytes.as_mut_ptr(), place, to) }
            }
            Way::Group(group) => group.load(offset, bytes),
        }
    }

    /// Sees to what was posted without waiting for it.
    pub fn flush(&self) {
        match &self.way {
            Way::Link(link, _) => link.flush(),
            // Each store has arrived when it is over.
            Way::Group(_) => {}
        }
    }

    /// Waits until what was posted has arrived.
    ///
    /// # Errors
    /// [`Error::TRANSFER_FAILED`]
    pub fn settle(&self) -> Result<()> {
        match &self.way {
            Way::Link(link, _) => Ok(link.settle()?),
            Way::Group(_) => Ok(()),
        }
    }

    /// As [`Link::wait`]. Of a group, loads come from this host: there is nothing to wait for.
    pub fn wait(&self, patience: Duration) -> bool {
        match &self.way {
            Way::Link(link, _) => link.wait(patience),
            Way::Group(_) => false,
        }
    }

    /// As [`Link::begin`].
    pub fn begin(&self) -> (u64, Standing) {
        match &self.way {
            Way::Link(link, place) => link.begin(place),
            Way::Group(group) => group.begin(),
        }
    }

    /// As [`Link::check`].
    pub fn check(&self, faults: u64, wait: bool) -> Standing {
        match &self.way {
            Way::Link(link, place) => link.check(faults, place, wait),
            Way::Group(group) => group.check(faults),
        }
    }

    /// As [`Link::has_refused`].
    pub fn is_refused(&self) -> bool {
        match &self.way {
            Way::Link(link, place) => link.has_refused(place),
            Way::Group(_) => false,
        }
    }

    /// Copies between this process's memory and the segment. What is read is there when this
    /// returns; what is written may be on its way, if it is little and not `waited` for.
    ///
    /// # Errors
    /// [`Error::OUT_OF_RANGE`], [`Error::TRANSFER_FAILED`].
    ///
    /// # Safety
    /// `memory` is valid for `len` bytes, to be read or written, as far as it is mapped.
    pub unsafe fn transfer(
        &self,
        memory: *mut u8,
        (offset, len): (usize, usize),
        direction: Direction,
        waited: bool,
    ) -> Result<()> {
        static NEVER: AtomicBool = AtomicBool::new(false);
        if !is_inside(offset, len, self.size) {
            return Err(Error::OUT_OF_RANGE);
        }
        let range = (offset, len);
        // SAFETY: the caller's promise.
        unsafe {
            match (&self.way, direction) {
                (Way::Link(link, place), Direction::Write) if !waited => {
                    Ok(link.write(memory, place, range)?)
                }
                (Way::Link(link, place), Direction::Read) if len <= ASIDE => {
                    Ok(link.read(memory, place, range)?)
                }
                _ => self.transfer_until(memory, range, direction, &NEVER),
            }
        }
    }

    /// As [`Window::transfer`], and it has ended when this returns; until `stop` is set.
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
                    let done = link.transfer(memory, place, (offset, len), (direction, stop));
                    Ok(done?)
                }
                Way::Group(group) => group.transfer(memory, (offset, len), direction, stop),
            }
        }
    }
}
