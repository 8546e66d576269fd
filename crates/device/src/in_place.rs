//! Memory in place: moved to where peers can map it, and what the program does to it there.
//!
//! Unmapped, or moved elsewhere, it is gone: what the program maps at its addresses next is other
//! memory, which nobody reaches by the old key. Protected, it is where it was, and is reached by
//! another way, as a NIC reaches pages that it has pinned.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use causeway_memory::{Alias, Store, changes, losses};

/// The segment that a region's memory is in, and which part of the region. Any number of threads
/// look.
#[derive(Debug)]
pub(crate) struct InPlace {
    store: Arc<Store>,
    /// The first address in it, and the one behind the last.
    part: (usize, usize),
    /// [`changes`] when it was last looked at, and in bit 0 whether all of it was there.
    seen: AtomicU64,
    /// [`losses`] at that time, or before.
    losses: AtomicU64,
}

impl Clone for InPlace {
    fn clone(&self) -> InPlace {
        InPlace::new(Arc::clone(&self.store), self.part)
    }
}

/// What a look has seen, as one word.
fn seen(changes: u64, whole: bool) -> u64 {
    changes << 1 | u64::from(whole)
}

impl InPlace {
    pub fn new(store: Arc<Store>, part: (usize, usize)) -> InPlace {
        // Before the look: what changes meanwhile is looked at again.
        let (changes, losses) = (changes(), losses());
        let mut in_place = InPlace {
            store,
            part,
            seen: AtomicU64::new(0),
            losses: AtomicU64::new(losses),
        };
        let whole = in_place.is_there_now();
        *in_place.seen.get_mut() = seen(changes, whole);
        in_place
    }

    fn is_there_now(&self) -> bool {
        let (start, end) = self.part;
        self.store.is_in_place(start, end - start)
    }

    /// Whether all of it is where it was moved.
    #[inline]
    pub fn is_whole(&self) -> bool {
        let before = self.seen.load(Ordering::Acquire);
        if before >> 1 == changes() << 1 >> 1 {
            return before & 1 != 0;
        }
        self.look_again(before)
    }

    #[cold]
    fn look_again(&self, before: u64) -> bool {
        let (changes, losses) = (changes(), losses());
        let whole = match self.losses.load(Ordering::Relaxed) == losses {
            true => before & 1 != 0,
            false => self.is_there_now(),
        };
        let (relaxed, now) = (Ordering::Relaxed, seen(changes, whole));
        // Another thread may have looked later than this one: what that saw stays, and the count of
        // losses may be of its look. A count that is too small has somebody look once more.
        let stored = self
            .seen
            .compare_exchange(before, now, Ordering::AcqRel, relaxed);
        if stored.is_err() {
            return self.is_there_now();
        }
        self.losses.store(losses, Ordering::Relaxed);
        whole
    }

    /// Whether what of a range was moved is where it was moved.
    #[cold]
    pub fn has(&self, at: usize, len: usize) -> bool {
        let start = at.max(self.part.0);
        let end = at.saturating_add(len).min(self.part.1);
        start >= end || self.store.is_in_place(start, end - start)
    }

    /// Another way to a range, all of which was moved, and is there.
    #[cold]
    pub fn alias(&self, at: usize, len: usize) -> Option<Alias> {
        let inside = at >= self.part.0 && at + len <= self.part.1;
        if !inside || !self.store.is_in_place(at, len) {
            return None;
        }
        self.store.alias(at, len).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_another_thread_has_overtaken_is_not_believed() {
        let fd = rustix::fs::memfd_create("store", rustix::fs::MemfdFlags::CLOEXEC);
        let mut page = [0u8; causeway_memory::PAGE];
        let start = page.as_mut_ptr().addr();
        // Memory that was never moved, so that it is not in place; another thread has seen that.
        let in_place = InPlace {
            store: Arc::new(Store::new(fd.expect("a memfd"), 1)),
            part: (start, start + page.len()),
            seen: AtomicU64::new(seen(changes(), false)),
            losses: AtomicU64::new(losses()),
        };
        // And this one had loaded what was seen before.
        let before = seen(changes().wrapping_sub(1), true);
        assert!(!in_place.look_again(before));
        assert!(!in_place.is_whole());
    }
}
