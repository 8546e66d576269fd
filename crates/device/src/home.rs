//! Memory that was moved to where peers can map it, and what the program does to it there.
//!
//! Unmapped, or moved elsewhere, it is gone: what the program maps at its addresses next is other
//! memory, which nobody reaches by the old key. Protected, it is where it was, and is reached by
//! another way, as a NIC reaches pages that it has pinned.

use std::cell::Cell;
use std::sync::Arc;

use causeway_memory::{Alias, Store, changes, losses};

/// The segment that a region's memory is in, and which part of the region.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    store: Arc<Store>,
    /// The first address in it, and the one behind the last.
    part: (usize, usize),
    /// [`changes`] and [`losses`] when it was last looked at.
    seen: Cell<(u64, u64)>,
    /// Whether all of it was there.
    whole: Cell<bool>,
}

impl Home {
    pub fn new(store: Arc<Store>, part: (usize, usize)) -> Home {
        let home = Home {
            store,
            part,
            seen: Cell::default(),
            whole: Cell::new(true),
        };
        home.look((changes(), losses()));
        home
    }

    fn look(&self, now: (u64, u64)) {
        let (start, end) = self.part;
        self.seen.set(now);
        self.whole.set(self.store.is_at_home(start, end - start));
    }

    /// Whether all of it is where it was moved.
    #[inline]
    pub fn is_whole(&self) -> bool {
        let now = changes();
        if self.seen.get().0 != now {
            self.look_again(now);
        }
        self.whole.get()
    }

    #[cold]
    fn look_again(&self, now: u64) {
        let losses = losses();
        if self.seen.get().1 == losses {
            self.seen.set((now, losses));
        } else {
            self.look((now, losses));
        }
    }

    /// Whether what of a range was moved is where it was moved.
    #[cold]
    pub fn has(&self, at: usize, len: usize) -> bool {
        let start = at.max(self.part.0);
        let end = at.saturating_add(len).min(self.part.1);
        start >= end || self.store.is_at_home(start, end - start)
    }

    /// Another way to a range, all of which was moved, and is there.
    #[cold]
    pub fn alias(&self, at: usize, len: usize) -> Option<Alias> {
        let inside = at >= self.part.0 && at + len <= self.part.1;
        if !inside || !self.store.is_at_home(at, len) {
            return None;
        }
        self.store.alias(at, len).ok()
    }
}
