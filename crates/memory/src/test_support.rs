//! What the crate's own tests share: how long they try to move memory.

use crate::{Moved, Mover, Store, Unmovable};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Until when pages may seem to be held though nobody holds them; reached only by a failing test.
/// Other work of the kernel refers to pages for a moment, and who is asked may answer late: in an
/// emulated machine on a busy host each one was, for more than a second. (A program
/// waits for 2 s, and is told EBUSY.)
const PATIENCE: Duration = Duration::from_secs(60);

/// Moves a range that nobody holds, nor what is idle there in another store.
pub(crate) fn moves(mover: &Mover, store: &Arc<Store>, addr: usize, len: usize) -> Moved {
    let begun = Instant::now();
    loop {
        match mover.move_in(store, addr, len) {
            Ok(moved) => return moved,
            Err(Unmovable::Pinned | Unmovable::Elsewhere) if begun.elapsed() < PATIENCE => {}
            Err(why) => panic!("moves: {why}"),
        }
        std::thread::yield_now();
    }
}

/// Takes back what nobody holds.
pub(crate) fn returns(mover: &Mover, mut moved: Moved) {
    let begun = Instant::now();
    while let Err((left, why)) = mover.take_back(moved) {
        let may_pass = why == Unmovable::Pinned && begun.elapsed() < PATIENCE;
        assert!(may_pass, "returns: {why}");
        moved = left;
        std::thread::yield_now();
    }
}

/// Takes back what lies before an address, from where on somebody holds it.
pub(crate) fn returns_up_to(mover: &Mover, mut moved: Moved, held: usize) -> Moved {
    let begun = Instant::now();
    loop {
        let (left, why) = mover.take_back(moved).expect_err("held");
        assert_eq!(why, Unmovable::Pinned);
        assert!(left.start() <= held, "what is held is back");
        if left.start() == held {
            return left;
        }
        assert!(begun.elapsed() < PATIENCE, "what nobody holds returns");
        moved = left;
        std::thread::yield_now();
    }
}

/// Takes back what is idle in a store, and held by nobody.
pub(crate) fn reclaims(mover: &Mover, store: &Store) {
    let begun = Instant::now();
    let blocks = || rustix::fs::fstat(store.as_fd()).expect("fstat").st_blocks;
    mover.reclaim(store);
    while blocks() != 0 {
        assert!(begun.elapsed() < PATIENCE, "what is idle returns");
        std::thread::yield_now();
        mover.reclaim(store);
    }
}

/// Tells threads to stop, also where the one that has it panics: they would be waited for, for
/// ever.
pub(crate) struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
