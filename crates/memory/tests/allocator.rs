//! An allocator that knows of nothing: threads allocate, grow, shrink and free blocks that are
//! registered, and registrations end long after their blocks. Needs the right to trap kernel faults
//! (root).

mod common;

use causeway_memory::{Moved, Mover, PAGE, Store, Unmovable};
use common::{occupied, returns, store};
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const THREADS: u64 = 3;
const ROUNDS: usize = 1500;
/// Below and above what glibc maps one by one.
const LARGEST: usize = 600 << 10;

/// A small generator (xorshift): the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }
}

/// A block, every page of which begins with its seed.
struct Block {
    start: *mut u8,
    len: usize,
    seed: u64,
}

impl Block {
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, 16).expect("a layout")
    }

    fn new(len: usize, seed: u64, zeroed: bool) -> Block {
        let layout = Block::layout(len);
        // SAFETY: the size is not zero.
        let start = unsafe {
            if zeroed {
                alloc_zeroed(layout)
            } else {
                alloc(layout)
            }
        };
        assert!(!start.is_null());
        let block = Block { start, len, seed };
        if zeroed {
            // SAFETY: within the block.
            let clean = (0..len)
                .step_by(64)
                .all(|at| unsafe { start.add(at).read_volatile() } == 0);
            assert!(clean, "stale bytes in new memory");
        }
        block.paint(0);
        block
    }

    fn words(&self) -> impl Iterator<Item = *mut u64> {
        (0..self.len - 8).step_by(PAGE / 4).map(|at| {
            // SAFETY: within the block.
            unsafe { self.start.add(at).cast() }
        })
    }

    fn paint(&self, from: usize) {
        for word in self.words().skip(from.div_ceil(PAGE / 4)) {
            // SAFETY: within the block, which is this thread's.
            unsafe { word.write_unaligned(self.seed) };
        }
    }

    fn check(&self, len: usize) {
        for word in self.words().take(len.saturating_sub(8).div_ceil(PAGE / 4)) {
            // SAFETY: within the block, which is this thread's.
            let found = unsafe { word.read_unaligned() };
            assert_eq!(found, self.seed, "another's bytes");
        }
    }

    fn resize(&mut self, len: usize) {
        let kept = len.min(self.len);
        // SAFETY: allocated with this layout.
        self.start = unsafe { realloc(self.start, Block::layout(self.len), len) };
        assert!(!self.start.is_null());
        self.len = len;
        self.check(kept);
        self.paint(0);
    }

    fn free(self) {
        self.check(self.len);
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start, Block::layout(self.len)) };
    }
}

fn work(seed: u64, mover: &Mover, store: &Arc<Store>, ended: &Mutex<Vec<Moved>>) -> usize {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut blocks = Vec::new();
    let mut moves = 0;
    for round in 0..ROUNDS {
        let size = 16 + random.below(LARGEST);
        match random.below(6) {
            0 | 1 => blocks.push(Block::new(
                size,
                seed << 32 | round as u64,
                size.is_multiple_of(2),
            )),
            _ if blocks.is_empty() => {}
            2 => {
                let at = random.below(blocks.len());
                blocks[at].resize(size);
            }
            3 => {
                let at = random.below(blocks.len());
                blocks.swap_remove(at).free();
            }
            _ => {
                let block = &blocks[random.below(blocks.len())];
                match mover.move_in(store, block.start.expose_provenance(), block.len) {
                    Ok(moved) => {
                        moves += 1;
                        ended.lock().expect("not poisoned").push(moved);
                    }
                    // The kernel's own work may refer to a page for a moment.
                    Err(
                        Unmovable::NoWholePage
                        | Unmovable::Occupied
                        | Unmovable::Own
                        | Unmovable::Pinned,
                    ) => {}
                    Err(why) => panic!("{why}"),
                }
                block.check(block.len);
            }
        }
        let old = {
            let mut ended = ended.lock().expect("not poisoned");
            (ended.len() > 20).then(|| ended.swap_remove(random.below(20)))
        };
        if let Some(moved) = old {
            returns(mover, moved);
        }
    }
    blocks.into_iter().for_each(Block::free);
    moves
}

#[test]
fn blocks_keep_their_bytes() {
    let (mover, store) = (Mover::new(None), store(1));
    let ended = Mutex::new(Vec::new());
    let moves = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for seed in 1..=THREADS {
            let (mover, store, ended, moves) = (&mover, &store, &ended, &moves);
            scope.spawn(move || {
                moves.fetch_add(work(seed, mover, store, ended), Ordering::Relaxed);
            });
        }
    });
    assert!(moves.into_inner() > ROUNDS / 4);
    for moved in ended.into_inner().expect("not poisoned") {
        returns(&mover, moved);
    }
    assert_eq!(occupied(&store), 0);
}
