//! Random sequences of what a program, a registration and a fork do to some pages, beside an array
//! that says what each page holds. Needs the right to trap kernel faults (root).

mod common;

use causeway_memory::{Moved, Mover, PAGE, Store, Unmovable};
use common::{Map, PATIENCE, RW, at, reclaims, returns, store};
use proptest::prelude::*;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Pages that are registered and unmapped; as many more are where mappings are moved to.
const PAGES: usize = 24;

#[derive(Debug, Clone)]
enum Step {
    Write(usize, u64),
    MoveIn(usize, usize),
    TakeBack(prop::sample::Index),
    GiveUp(usize, usize),
    Unmap(usize, usize),
    Map(usize, usize),
    Remap(usize, usize, usize),
    Release(prop::sample::Index),
    Reclaim,
    NextStore,
    Fork,
}

fn step() -> impl Strategy<Value = Step> {
    let page = 0..PAGES;
    let any_page = 0..2 * PAGES;
    let len = 1..10usize;
    prop_oneof![
        4 => (any_page.clone(), 1..u64::MAX).prop_map(|(page, value)| Step::Write(page, value)),
        4 => (page.clone(), len.clone()).prop_map(|(page, len)| Step::MoveIn(page, len)),
        3 => any::<prop::sample::Index>().prop_map(Step::TakeBack),
        2 => (any_page.clone(), len.clone()).prop_map(|(page, len)| Step::GiveUp(page, len)),
        1 => (any_page.clone(), len.clone()).prop_map(|(page, len)| Step::Unmap(page, len)),
        1 => (any_page.clone(), len.clone()).prop_map(|(page, len)| Step::Map(page, len)),
        1 => (page, len, any_page).prop_map(|(from, len, to)| Step::Remap(from, len, to)),
        3 => any::<prop::sample::Index>().prop_map(Step::Release),
        1 => Just(Step::Reclaim),
        1 => Just(Step::NextStore),
        1 => Just(Step::Fork),
    ]
}

/// The real thing and its model.
struct World {
    mover: Mover,
    store: Arc<Store>,
    /// Those of before.
    stores: Vec<Arc<Store>>,
    map: Map,
    /// What each page holds; none if it is not accessible. Nothing is ever unmapped for long:
    /// somebody else could settle there.
    model: [Option<u64>; 2 * PAGES],
    live: Vec<Moved>,
}

impl World {
    fn new() -> World {
        World {
            mover: Mover::new(None),
            store: store(0),
            stores: Vec::new(),
            map: Map::new(2 * PAGES * PAGE),
            model: [Some(0); 2 * PAGES],
            live: Vec::new(),
        }
    }

    fn address(&self, page: usize) -> usize {
        self.map.addr + page * PAGE
    }

    fn apply(&mut self, step: Step) {
        let clip = |page: usize, len: usize| page..(page + len).min(2 * PAGES);
        match step {
            Step::Write(page, value) => {
                if self.model[page].is_some() {
                    self.map.word(page * PAGE).store(value, Ordering::Relaxed);
                    self.model[page] = Some(value);
                }
            }
            Step::MoveIn(page, len) => self.move_in(page, len),
            Step::TakeBack(_) if self.live.is_empty() => {}
            Step::TakeBack(index) => {
                let moved = self.live.swap_remove(index.index(self.live.len()));
                returns(&self.mover, moved);
            }
            Step::GiveUp(page, len) => {
                for page in clip(page, len) {
                    // SAFETY: a page of the test's own, or of nobody.
                    let given = unsafe {
                        rustix::mm::madvise(at(self.address(page)), PAGE, Advice::LinuxDontNeed)
                    };
                    assert!(given.is_ok());
                    self.model[page] = self.model[page].map(|_| 0);
                }
            }
            Step::Unmap(page, len) => {
                let pages = clip(page, len);
                self.map_fixed(page, pages.len(), ProtFlags::empty());
                self.model[pages].fill(None);
            }
            Step::Map(page, len) => {
                let pages = clip(page, len);
                self.map_fixed(page, pages.len(), RW);
                self.model[pages].fill(Some(0));
            }
            Step::Remap(from, len, to) => self.remap(from, len, to),
            Step::Release(_) if self.live.is_empty() => {}
            Step::Release(index) => {
                let moved = self.live.swap_remove(index.index(self.live.len()));
                self.mover.release(moved);
            }
            Step::Reclaim => {
                if self.live.is_empty() {
                    reclaims(&self.mover, &self.store);
                } else {
                    self.mover.reclaim(&self.store);
                }
            }
            Step::NextStore => {
                let next = store(self.stores.len() as u64 + 1);
                self.stores.push(std::mem::replace(&mut self.store, next));
            }
            Step::Fork => self.fork(),
        }
    }

    fn move_in(&mut self, page: usize, len: usize) {
        let begun = Instant::now();
        loop {
            let moved = self
                .mover
                .move_in(&self.store, self.address(page), len * PAGE);
            let why = match moved {
                Ok(moved) => return self.live.push(moved),
                Err(why) => why,
            };
            let expected = [
                Unmovable::Occupied,
                Unmovable::Elsewhere,
                Unmovable::NotMapped,
                Unmovable::NotPlain,
            ];
            // Plain memory always moves.
            let pages = page..page + len;
            let all = self.live.is_empty() && self.model[pages].iter().all(Option::is_some);
            let must = all && page + len <= PAGES && why != Unmovable::Occupied;
            if expected.contains(&why) && !must {
                return;
            }
            // Unless the kernel's own work refers to it, or to idle memory, for a moment.
            let may_pass = matches!(why, Unmovable::Pinned | Unmovable::Elsewhere);
            assert!(may_pass && begun.elapsed() < PATIENCE, "{why}");
            std::thread::yield_now();
        }
    }

    /// Done if it is one mapping for the kernel: of more, some might be moved, others not.
    fn remap(&mut self, from: usize, len: usize, to: usize) {
        let len = len.min(2 * PAGES - from.max(to));
        let whole = common::mapping(self.address(from)).0.end >= self.address(from + len);
        if from.abs_diff(to) < len || !whole {
            return;
        }
        let (start, target) = (at(self.address(from)), at(self.address(to)));
        // SAFETY: pages of the test's own.
        let moved = unsafe {
            let flags = MremapFlags::MAYMOVE;
            rustix::mm::mremap_fixed(start, len * PAGE, len * PAGE, flags, target)
        };
        moved.expect("mremap");
        self.map_fixed(from, len, ProtFlags::empty());
        self.model.copy_within(from..from + len, to);
        self.model[from..from + len].fill(None);
    }

    fn fork(&self) {
        // SAFETY: the child uses memory, atomics and system calls.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "no child");
        if child == 0 {
            let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                self.check();
                for page in (0..2 * PAGES).filter(|page| self.model[*page].is_some()) {
                    self.map
                        .word(page * PAGE)
                        .store(u64::MAX, Ordering::Relaxed);
                }
            }));
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(good.is_err())) }
        }
        let mut status = 0;
        // SAFETY: a child of ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child sees other contents");
    }

    fn check(&self) {
        for (page, held) in self.model.iter().enumerate() {
            if let Some(held) = held {
                let found = self.map.word(page * PAGE).load(Ordering::Relaxed);
                assert_eq!(found, *held, "page {page}");
            }
        }
    }

    /// New memory in place of old.
    fn map_fixed(&self, page: usize, len: usize, prot: ProtFlags) {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: pages of the test's own.
        unsafe {
            let start = at(self.address(page));
            rustix::mm::mmap_anonymous(start, len * PAGE, prot, flags).expect("mmap");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn pages_hold_what_they_should(steps in prop::collection::vec(step(), 1..50)) {
        let mut world = World::new();
        for step in steps {
            world.apply(step);
            world.check();
        }
        for moved in std::mem::take(&mut world.live) {
            returns(&world.mover, moved);
            world.check();
        }
        world.stores.push(world.store.clone());
        for store in &world.stores {
            reclaims(&world.mover, store);
            world.check();
        }
    }
}
