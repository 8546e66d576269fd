//! Address handles by number. Sending looks one up without a lock ([`crate::published`]).

use std::sync::Arc;

use parking_lot::Mutex;

use crate::destination::Destination;
use crate::limits::LIMITS;
use crate::published::{Published, Retired};
use crate::slab::Slab;

/// Where address handles lead. Thread-safe.
#[derive(Debug)]
pub(crate) struct Ways {
    published: Published<Destination>,
    changing: Mutex<Changing>,
}

#[derive(Debug)]
struct Changing {
    numbers: Slab<()>,
    retired: Vec<Retired<Destination>>,
}

/// The table for one who looks them up, under a lock of its own.
#[derive(Debug)]
pub(crate) struct WayReader(Arc<Ways>);

impl Ways {
    pub fn new() -> Self {
        Ways {
            published: Published::new(LIMITS.max_ah),
            changing: Mutex::new(Changing {
                numbers: Slab::new(LIMITS.max_ah),
                retired: Vec::new(),
            }),
        }
    }

    /// Enters a way, and returns its number; `None` if there are too many.
    pub fn insert(&self, way: Destination) -> Option<u32> {
        let mut changing = self.changing.lock();
        let number = changing.numbers.insert(())?;
        let retired = self.published.replace(number, Some(way));
        changing.retired.extend(retired);
        Some(number)
    }

    /// Ends one. Returns whether it was there.
    pub fn remove(&self, number: u32) -> bool {
        let mut changing = self.changing.lock();
        let was_there = changing.numbers.remove(number).is_some();
        let retired = self.published.replace(number, None);
        changing.retired.extend(retired);
        was_there
    }

    /// Takes those that were ended, which are to be reclaimed when each reader's lock has been seen
    /// free.
    pub fn take_retired(&self) -> Vec<Retired<Destination>> {
        std::mem::take(&mut self.changing.lock().retired)
    }

    /// How many are to be taken so.
    pub fn retired(&self) -> usize {
        self.changing.lock().retired.len()
    }
}

impl WayReader {
    /// # Safety
    /// As for [`crate::mr::MrReader::new`].
    pub unsafe fn new(ways: Arc<Ways>) -> Self {
        WayReader(ways)
    }

    pub fn get(&self, number: u32) -> Option<&Destination> {
        // SAFETY: it is not reclaimed before the reader's lock was free, and with it the end of
        // every borrow of the reader.
        unsafe { self.0.published.get(number) }
    }
}
