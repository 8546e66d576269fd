//! The end of look-ups under way.
//!
//! Regions and address handles are looked up under the lock of whoever uses them, and changed under
//! another. What was taken away is used no more once that lock has been seen free: until then a
//! thread may be copying to or from memory that the program is about to unmap, or hold the address
//! of an object that is about to be dropped.

use causeway_biased_lock::await_all_free;

use crate::shared::Shared;

/// Address handles that are reclaimed together.
const WAYS_MANY: usize = 64;

impl Shared {
    /// Waits until each look-up has ended that may have found what was taken away before, and drops
    /// that. To be called without an engine's lock, and without that of a table.
    pub fn reclaim(&self) {
        let regions = self.common.mrs.take_retired();
        let ways = self.common.ways.take_retired();
        self.await_turns();
        for region in regions {
            // SAFETY: each reader's lock was free since it was retired (`await_turns`).
            unsafe { region.reclaim() };
        }
        for way in ways {
            // SAFETY: as above.
            unsafe { way.reclaim() };
        }
    }

    /// Peers do not find a region any more, nor the windows bound to it. Returns the keys by which
    /// accesses may be under way, also of windows that were bound to it before.
    pub fn retract(&self, key: u32) -> Vec<u32> {
        let mut keys = self.common.mrs.write().retract(key);
        keys.extend(
            self.common
                .watches
                .keys_leaving(|window| window.region == key),
        );
        keys
    }

    /// As [`Shared::reclaim`], where that is worth it.
    pub fn reclaim_many(&self) {
        if self.common.mrs.has_many_retired() || self.common.ways.retired() >= WAYS_MANY {
            self.reclaim();
        }
    }

    /// Waits until the turn has ended that each engine is in, if it is in one, and each post.
    fn await_turns(&self) {
        let posters = self.common.posters.all();
        let engines = self.engines.iter().map(|engine| {
            // SAFETY: it is waited for, and never taken or given back but in pairs.
            unsafe { engine.state.raw() }
        });
        let posters = posters.iter().map(|cell| {
            // SAFETY: as above.
            unsafe { cell.entry.raw() }
        });
        await_all_free(engines.chain(posters));
    }
}
