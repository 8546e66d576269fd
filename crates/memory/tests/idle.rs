//! Memory that is registered no more and stays in its store: it costs nothing to register it again,
//! and nothing of it is left once the program has unmapped it. Needs the right to trap kernel
//! faults (root).

mod common;

use causeway_memory::{Mover, PAGE};
use common::{Map, moves, occupied, returns, store};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const ROUNDS: u64 = 1000;
const LEN: usize = 16 * PAGE;
/// What allocations of the test's own may add to the address space.
const SLACK: usize = 8 << 20;
/// Until the monitor has heard of what was unmapped last.
const HEARD: Duration = Duration::from_secs(60);

/// Keeps the other tests off: what is measured is the process's. The thread of the next test may
/// begin meanwhile, so no thread gets a heap of its own, which takes 64 MiB of addresses.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    // SAFETY: a number for the allocator.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of address space.
fn address_space() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages = statm.split(' ').next().and_then(|pages| pages.parse().ok());
    PAGE * pages.unwrap_or(0_usize)
}

/// Mappings of the process.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    maps.lines().count()
}

fn await_empty(store: &causeway_memory::Store) {
    let begun = Instant::now();
    while occupied(store) > 0 {
        assert!(begun.elapsed() < HEARD, "{} bytes left", occupied(store));
        std::thread::yield_now();
    }
}

#[test]
fn what_is_unmapped_leaves_nothing() {
    let _alone = alone();
    let (mover, store) = (Mover::new(None), store(1));
    let round = |seed| {
        let map = Map::new(LEN);
        map.paint(seed);
        mover.release(moves(&mover, &store, map.addr, LEN));
        map.check(seed);
        assert!(occupied(&store) >= LEN as u64);
        drop(map);
        await_empty(&store);
    };
    round(0);
    let before = (address_space(), mappings());
    (1..ROUNDS).for_each(round);
    let after = (address_space(), mappings());
    assert!(after.0 < before.0 + SLACK, "{before:?}, then {after:?}");
    assert!(after.1 < before.1 + 20, "{before:?}, then {after:?}");
    assert_eq!(
        Arc::strong_count(&store),
        2,
        "one is the mover's, until it is asked again"
    );
    let map = Map::new(LEN);
    returns(&mover, moves(&mover, &store, map.addr, LEN));
    assert_eq!((occupied(&store), Arc::strong_count(&store)), (0, 1));
}

#[test]
fn what_is_registered_again_takes_no_more() {
    let _alone = alone();
    let (mover, store) = (Mover::new(None), store(1));
    let map = Map::new(LEN);
    let mut before = None;
    for seed in 0..ROUNDS {
        assert_eq!(mover.holds(&store, map.addr, LEN), seed > 0);
        let moved = moves(&mover, &store, map.addr, LEN);
        assert!(moved.is_whole() && mover.holds(&store, map.addr, LEN));
        map.paint(seed);
        mover.release(moved);
        map.check(seed);
        assert_eq!(occupied(&store), LEN as u64);
        let now = (address_space(), mappings());
        let (space, count) = *before.get_or_insert(now);
        assert!(now.0 < space + SLACK && now.1 < count + 20, "{now:?}");
    }
    drop(mover);
    map.check(ROUNDS - 1);
    assert_eq!(occupied(&store), 0);
}

/// As an allocator does: what it frees, and gives out again, is now this buffer's and now that's.
#[test]
fn a_heap_stays_in_its_store() {
    let _alone = alone();
    let (mover, store) = (Mover::new(None), store(1));
    let heap = Map::new(4 * LEN);
    heap.paint(1);
    for round in 0..ROUNDS as usize {
        let start = heap.addr + (round * 3 % 40) * PAGE;
        let moved = moves(&mover, &store, start, LEN);
        let other = moves(&mover, &store, start + 5 * PAGE, LEN);
        mover.release(moved);
        mover.release(other);
        heap.check(1);
        assert!(occupied(&store) <= 4 * LEN as u64);
    }
    let (first, second) = (heap.addr, heap.addr + 2 * LEN);
    assert!(mover.holds(&store, first, LEN) && mover.holds(&store, second, LEN));
    drop(heap);
    await_empty(&store);
}
