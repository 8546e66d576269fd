//! Where objects lie.

use super::error::LockError;
use super::layout::{LOCK_ALIGN, MAGIC, RECORDS_AT, SPINS, STATE};
use super::owner::Owner;
use super::records::Records;
use crate::mem::Region;
use crate::segment::Segment;
use crate::sync::{Arc, AtomicU64, Ordering};

/// Shared memory that objects are placed in.
#[derive(Clone, Debug)]
pub struct Memory {
    region: Region,
}

impl Memory {
    /// All of a segment, which must be mapped for writing.
    #[must_use]
    pub fn new(segment: Arc<Segment>) -> Memory {
        Memory {
            region: Region::new(segment),
        }
    }
}

/// The bytes of an object, inside of its memory and aligned.
#[derive(Clone, Copy)]
pub(crate) struct Place<'m> {
    region: &'m Region,
    at: usize,
    len: usize,
}

impl<'m> Place<'m> {
    #[inline]
    pub(crate) fn new(memory: &'m Memory, at: usize, len: usize) -> Result<Place<'m>, LockError> {
        let region = &memory.region;
        let fits = at <= region.len() && len <= region.len() - at;
        if fits && at.is_multiple_of(LOCK_ALIGN) {
            Ok(Place { region, at, len })
        } else {
            Err(LockError::Invalid)
        }
    }

    /// The object that was made there.
    #[inline]
    pub(crate) fn open(
        memory: &'m Memory,
        at: usize,
        len: usize,
        magic: u64,
    ) -> Result<Place<'m>, LockError> {
        let place = Place::new(memory, at, len)?;
        if place.word(MAGIC).load(Ordering::Acquire) == magic {
            Ok(place)
        } else {
            Err(LockError::Invalid)
        }
    }

    /// Zeroes all words, and then says what it is.
    pub(crate) fn make(self, magic: u64) {
        self.make_with(magic, |_| ());
    }

    /// The same with other words than 0.
    pub(crate) fn make_with(self, magic: u64, words: impl FnOnce(Place<'m>)) {
        self.word(MAGIC).store(0, Ordering::Relaxed);
        for at in (8..self.len).step_by(8) {
            self.word(at).store(0, Ordering::Relaxed);
        }
        words(self);
        self.word(MAGIC).store(magic, Ordering::Release);
    }

    #[inline]
    pub(crate) fn word(self, at: usize) -> &'m AtomicU64 {
        self.region.word(self.at + at)
    }

    #[inline]
    pub(crate) fn state(self) -> &'m AtomicU64 {
        self.word(STATE)
    }

    pub(crate) fn spins(self) -> &'m AtomicU64 {
        self.word(SPINS)
    }

    #[inline]
    pub(crate) fn owner(self) -> Owner<'m> {
        Owner::new(self.region, self.at)
    }

    pub(crate) fn records(self) -> Records<'m> {
        Records::new(self.region, self.at + RECORDS_AT)
    }
}
