//! A segment of another host: reached by the library's calls.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::flight::{Fault, Standing};
use crate::link::{Direction, Link};
use crate::memory::is_inside;
use crate::place::Place;

/// Bytes that a copy moves aside, so that the caller need not wait for their arrival.
pub(crate) const ASIDE: usize = 8 << 10;

/// All bytes of a segment of another host.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    link: Arc<Link>,
    place: Arc<Place>,
    size: usize,
}

impl Window {
    /// `size` bytes at a place.
    pub fn new(link: Arc<Link>, place: Place, size: usize) -> Window {
        Window {
            link,
            place: Arc::new(place),
            size,
        }
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The segment is reached by another address and key. Only while the link has no queue pair.
    pub fn move_to(&self, base: u64, rkey: u32) {
        self.place.set(base, rkey);
    }

    /// Posts a WRITE. Its bytes are taken when this returns, and arrive in order, or not at all.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn post(&self, offset: usize, bytes: &[u8]) -> core::result::Result<(), Fault> {
        if !is_inside(offset, bytes.len(), self.size) {
            return Err(Fault::Refused);
        }
        // SAFETY: the slice may be read.
        unsafe {
            self.link
                .post(bytes.as_ptr(), &self.place, (offset, bytes.len()))
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
        // SAFETY: the slice may be written.
        unsafe { self.link.read(bytes.as_mut_ptr(), &self.place, to) }
    }

    /// Sees to what was posted without waiting for it.
    pub fn flush(&self) {
        self.link.flush();
    }

    /// Waits until what was posted has arrived.
    ///
    /// # Errors
    /// [`Error::TRANSFER_FAILED`]
    pub fn settle(&self) -> Result<()> {
        Ok(self.link.settle()?)
    }

    /// As [`Link::wait`].
    pub fn wait(&self, patience: Duration) -> bool {
        self.link.wait(patience)
    }

    /// As [`Link::begin`].
    pub fn begin(&self) -> (u64, Standing) {
        self.link.begin(&self.place)
    }

    /// As [`Link::check`].
    pub fn check(&self, faults: u64, wait: bool) -> Standing {
        self.link.check(faults, &self.place, wait)
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
        if len > ASIDE {
            // SAFETY: the caller's promise.
            return unsafe { self.transfer_until(memory, (offset, len), direction, &NEVER) };
        }
        let range = (offset, len);
        // SAFETY: the caller's promise.
        let done = unsafe {
            match direction {
                Direction::Write => self.link.post(memory, &self.place, range),
                Direction::Read => self.link.read(memory, &self.place, range),
            }
        };
        done?;
        if waited && direction == Direction::Write {
            self.settle()?;
        }
        Ok(())
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
        let range = (offset, len);
        // SAFETY: the caller's promise.
        let done = unsafe {
            self.link
                .transfer(memory, &self.place, range, (direction, stop))
        };
        Ok(done?)
    }
}
