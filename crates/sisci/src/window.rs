//! A segment of another host: reached by the library's calls.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::error::{Error, Result};
use crate::link::{Direction, Link, Place};
use crate::memory::is_inside;

/// All bytes of a segment of another host.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    link: Arc<Link>,
    place: Place,
    size: usize,
}

impl Window {
    /// `size` bytes at a place.
    pub fn new(link: Arc<Link>, place: Place, size: usize) -> Window {
        Window { link, place, size }
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
        self.link.post_write(bytes, self.place_of(offset), losses)
    }

    /// Sees to what was posted without waiting for it.
    ///
    /// # Errors
    /// [`Error::TRANSFER_FAILED`]
    pub fn flush(&self, losses: u64) -> Result<()> {
        self.link.flush(losses)
    }

    /// Waits until what was posted has arrived.
    ///
    /// # Errors
    /// [`Error::TRANSFER_FAILED`]
    pub fn settle(&self) -> Result<()> {
        self.link.settle()
    }

    /// How often posted WRITEs have been lost.
    pub fn losses(&self) -> u64 {
        self.link.losses()
    }

    fn place_of(&self, offset: usize) -> Place {
        Place {
            base: self.place.base + offset as u64,
            ..self.place
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
        let there = self.place_of(offset);
        // SAFETY: the caller's promise.
        unsafe { self.link.transfer(memory, there, len, (direction, stop)) }
    }
}
