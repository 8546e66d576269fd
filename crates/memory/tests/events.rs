//! What the program does to memory that has been moved: giving it up, unmapping it, moving it,
//! letting it grow. Needs the right to trap kernel faults (root).

mod common;

use causeway_memory::{CHUNK, Mover, PAGE, Store, Unmovable};
use common::{Map, RW, Stop, at, moves, occupied, peer_word, returns, store};
use rustix::mm::{Advice, MapFlags, MremapFlags};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn advise(map: &Map, from: usize, to: usize, advice: Advice) -> rustix::io::Result<()> {
    // SAFETY: the test's own mapping, only used through atomics.
    unsafe { rustix::mm::madvise(at(map.addr + from * PAGE), (to - from) * PAGE, advice) }
}

fn unmap(map: &Map, from: usize, to: usize) {
    // SAFETY: the test does not touch these pages any more.
    unsafe { rustix::mm::munmap(at(map.addr + from * PAGE), (to - from) * PAGE).expect("munmap") };
}

/// Private anonymous memory where nothing is mapped.
fn map_at(addr: usize, len: usize) {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: replaces nothing.
    unsafe { rustix::mm::mmap_anonymous(at(addr), len, RW, flags).expect("mmap") };
}

/// What a test here uses.
struct Setup {
    mover: Mover,
    store: Arc<Store>,
    map: Map,
}

/// Frees the room behind the map, where nobody could settle until now.
fn make_room(map: &Map) {
    let pages = map.len / PAGE;
    unmap(map, pages, 3 * pages);
}

/// A mover, a store and so many painted pages, with twice as many reserved behind them.
fn setup(pages: usize) -> Setup {
    let map = Map::apart(3 * pages * PAGE);
    let prot = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
    // SAFETY: the test's own mapping.
    unsafe { rustix::mm::mprotect(at(map.addr), pages * PAGE, prot).expect("mprotect") };
    let small = Map {
        len: pages * PAGE,
        ..map
    };
    std::mem::forget(map);
    small.paint(1);
    Setup {
        mover: Mover::new(None),
        store: store(1),
        map: small,
    }
}

#[test]
fn given_up_pages_are_zero() {
    let Setup { mover, store, map } = setup(100);
    let moved = moves(&mover, &store, map.addr, map.len);
    advise(&map, 10, 90, Advice::LinuxDontNeed).expect("advice");
    for page in 0..100 {
        let gone = (10..90).contains(&page);
        let value = map.word(page * PAGE).load(Ordering::Relaxed);
        assert_eq!(value, if gone { 0 } else { 1 + page as u64 }, "page {page}");
        assert_eq!(peer_word(&store, map.addr + page * PAGE), value);
    }
    map.paint(2);
    advise(&map, 0, 50, Advice::LinuxDontNeed).expect("advice");
    returns(&mover, moved);
    for page in 0..100 {
        let value = map.word(page * PAGE).load(Ordering::Relaxed);
        assert_eq!(
            value,
            if page < 50 { 0 } else { 2 + page as u64 },
            "page {page}"
        );
    }
    assert_eq!(occupied(&store), 0);
    // Private memory as it was: the same advice works without anybody's help.
    map.paint(3);
    advise(&map, 0, 100, Advice::LinuxDontNeed).expect("advice");
    assert_eq!(map.word(0).load(Ordering::Relaxed), 0);
}

/// The kernel refuses to free pages of a file lazily, but the program has said that it does not
/// need the contents: they may go at once.
#[test]
fn freeing_lazily() {
    let Setup { mover, store, map } = setup(4);
    let moved = moves(&mover, &store, map.addr, map.len);
    assert_eq!(
        advise(&map, 0, 2, Advice::LinuxFree),
        Err(rustix::io::Errno::INVAL)
    );
    for page in 0..4 {
        let value = map.word(page * PAGE).load(Ordering::Relaxed);
        assert!(value == 1 + page as u64 || (value == 0 && page < 2));
    }
    map.paint(2);
    returns(&mover, moved);
    map.check(2);
}

/// What is written after a call that the kernel has refused stays.
#[test]
fn freeing_lazily_and_writing_on() {
    const ROUNDS: u64 = 200;
    let Setup { mover, store, map } = setup(4);
    let moved = moves(&mover, &store, map.addr, map.len);
    for round in 0..ROUNDS {
        let advised = advise(&map, 0, 2, Advice::LinuxFree);
        assert_eq!(advised, Err(rustix::io::Errno::INVAL));
        map.paint(round);
        // The monitor has time to do what it should not.
        std::thread::sleep(std::time::Duration::from_micros(100));
        map.check(round);
        if round % 8 == 7 {
            // What is given up after all is empty at once, and what is refused then stays so.
            advise(&map, 0, 1, Advice::LinuxDontNeed).expect("advice");
            assert_eq!(map.word(0).load(Ordering::Relaxed), 0);
        }
    }
    returns(&mover, moved);
}

/// One thread gives pages up and looks for zeros at once, others write their own pages beside.
#[test]
fn giving_up_while_others_write() {
    const ROUNDS: u64 = 500;
    let Setup { mover, store, map } = setup(40);
    let moved = moves(&mover, &store, map.addr, map.len);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for thread in 0..2 {
            let (map, stop) = (&map, &stop);
            scope.spawn(move || {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    for page in 30 + thread * 5..35 + thread * 5 {
                        let word = map.word(page * PAGE + 8);
                        assert_eq!(word.swap(count + 1, Ordering::Relaxed), count);
                    }
                    count += 1;
                }
            });
        }
        for round in 1..=ROUNDS {
            for page in 0..4 {
                map.word(page * PAGE).store(round, Ordering::Relaxed);
            }
            advise(&map, 0, 4, Advice::LinuxDontNeed).expect("advice");
            for page in (0..4).rev() {
                let word = map.word(page * PAGE);
                assert_eq!(word.load(Ordering::Relaxed), 0, "round {round} page {page}");
            }
        }
    });
    returns(&mover, moved);
    assert_eq!(occupied(&store), 0);
}

/// Two threads on the same page: one gives it up, the other writes increasing numbers. It may see
/// its number or zero, never an older number.
#[test]
fn giving_up_what_another_writes() {
    const ROUNDS: u64 = 200;
    let Setup { mover, store, map } = setup(1);
    map.word(0).store(0, Ordering::Relaxed);
    let moved = moves(&mover, &store, map.addr, map.len);
    let stop = AtomicBool::new(false);
    let (written, zeros) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let writer = scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                let before = map.word(0).swap(number, Ordering::Relaxed);
                assert!(
                    before == 0 || before == number - 1,
                    "{before} before {number}"
                );
                zeros.fetch_add(u64::from(before == 0), Ordering::Relaxed);
                written.store(number, Ordering::Relaxed);
            }
        });
        while zeros.load(Ordering::Relaxed) < ROUNDS && !writer.is_finished() {
            let number = written.load(Ordering::Relaxed);
            advise(&map, 0, 1, Advice::LinuxDontNeed).expect("advice");
            // On one processor a page that is given up all the time is gone again whenever the
            // writer gets its turn.
            while written.load(Ordering::Relaxed) == number && !writer.is_finished() {
                std::thread::yield_now();
            }
        }
    });
    returns(&mover, moved);
}

#[test]
fn unmapped_addresses_are_left_alone() {
    let Setup { mover, store, map } = setup(12);
    let moved = moves(&mover, &store, map.addr, map.len);
    unmap(&map, 3, 6);
    map_at(map.addr + 3 * PAGE, PAGE);
    map.word(3 * PAGE).store(99, Ordering::Relaxed);
    returns(&mover, moved);
    assert_eq!(occupied(&store), 0);
    assert_eq!(map.word(3 * PAGE).load(Ordering::Relaxed), 99);
    for page in [0, 1, 2, 6, 11] {
        assert_eq!(
            map.word(page * PAGE).load(Ordering::Relaxed),
            1 + page as u64
        );
    }
    // Nothing was mapped where nothing is.
    map_at(map.addr + 4 * PAGE, 2 * PAGE);
}

#[test]
fn new_memory_at_old_addresses() {
    let Setup { mover, store, map } = setup(8);
    for round in 0..200 {
        let first = moves(&mover, &store, map.addr, map.len);
        unmap(&map, 0, 8);
        map_at(map.addr, map.len);
        map.paint(round);
        // The store still has the first's pages.
        let second = mover.move_in(&store, map.addr, map.len);
        assert_eq!(second.err(), Some(Unmovable::Occupied));
        returns(&mover, first);
        map.check(round);
        let third = moves(&mover, &store, map.addr, map.len);
        map.check(round);
        returns(&mover, third);
        map.check(round);
    }
    assert_eq!(occupied(&store), 0);
}

/// `mremap(2)` of pages of the map, to `to` if given.
fn remap(map: &Map, from: usize, old: usize, new: usize, to: Option<usize>) -> usize {
    let (old, new) = (old * PAGE, new * PAGE);
    let start = at(map.addr + from * PAGE);
    // SAFETY: the test's own pages; `to` is reserved by the test.
    let moved = unsafe {
        match to {
            Some(to) => rustix::mm::mremap_fixed(start, old, new, MremapFlags::MAYMOVE, at(to)),
            None => rustix::mm::mremap(start, old, new, MremapFlags::empty()),
        }
    };
    moved.expect("mremap").expose_provenance()
}

#[test]
fn growing_in_place_shows_zeros_that_are_private() {
    let Setup {
        mover,
        store,
        mut map,
    } = setup(8);
    let moved = moves(&mover, &store, map.addr, map.len);
    make_room(&map);
    assert_eq!(remap(&map, 0, 8, 24, None), map.addr);
    map.len = 24 * PAGE;
    for page in [20, 8, 9, 23] {
        let word = map.word(page * PAGE);
        assert_eq!(word.load(Ordering::Relaxed), 0);
        word.store(77, Ordering::Relaxed);
        assert_eq!(
            peer_word(&store, map.addr + page * PAGE),
            0,
            "page {page} is exposed"
        );
    }
    assert_eq!(occupied(&store), 8 * PAGE as u64);
    returns(&mover, moved);
    for page in 0..8 {
        assert_eq!(
            map.word(page * PAGE).load(Ordering::Relaxed),
            1 + page as u64
        );
    }
    assert_eq!(map.word(23 * PAGE).load(Ordering::Relaxed), 77);
}

/// A mapping grows over offsets at which the store has another's pages.
#[test]
fn growing_never_shows_others() {
    let Setup { mover, store, map } = setup(8);
    let low = moves(&mover, &store, map.addr, 4 * PAGE);
    let high = moves(&mover, &store, map.addr + 4 * PAGE, 4 * PAGE);
    let away = Map::new(16 * PAGE);
    assert_eq!(remap(&map, 4, 4, 4, Some(away.addr)), away.addr);
    assert_eq!(remap(&map, 0, 4, 8, None), map.addr);
    for page in 4..8 {
        assert_eq!(
            map.word(page * PAGE).load(Ordering::Relaxed),
            0,
            "page {page}"
        );
        map.word(page * PAGE).store(50, Ordering::Relaxed);
        assert_eq!(
            away.word((page - 4) * PAGE).load(Ordering::Relaxed),
            1 + page as u64
        );
    }
    assert_eq!(peer_word(&store, map.addr + 4 * PAGE), 5);
    // Where the store's offsets are not the addresses, nothing more is moved.
    assert_eq!(
        mover.move_in(&store, away.addr, 4 * PAGE).err(),
        Some(Unmovable::Occupied)
    );
    assert_eq!(
        mover.move_in(&store, map.addr + 4 * PAGE, PAGE).err(),
        Some(Unmovable::Occupied)
    );
    returns(&mover, high);
    returns(&mover, low);
    assert_eq!(occupied(&store), 0);
    for page in 4..8 {
        assert_eq!(
            away.word((page - 4) * PAGE).load(Ordering::Relaxed),
            1 + page as u64
        );
        assert_eq!(map.word(page * PAGE).load(Ordering::Relaxed), 50);
    }
}

#[test]
fn moving_and_growing_at_once() {
    let Setup { mover, store, map } = setup(8);
    let moved = moves(&mover, &store, map.addr, map.len);
    let away = Map::new(32 * PAGE);
    remap(&map, 0, 8, 16, Some(away.addr));
    for page in 0..16 {
        let value = away.word(page * PAGE).load(Ordering::Relaxed);
        assert_eq!(value, if page < 8 { 1 + page as u64 } else { 0 });
    }
    away.word(9 * PAGE).store(1, Ordering::Relaxed);
    // Old addresses are free for others.
    map_at(map.addr, map.len);
    map.paint(30);
    // SAFETY: the test's own pages.
    unsafe {
        rustix::mm::madvise(at(away.addr), PAGE, Advice::LinuxDontNeed).expect("advice");
    }
    assert_eq!(away.word(0).load(Ordering::Relaxed), 0);
    away.word(0).store(5, Ordering::Relaxed);
    assert_eq!(peer_word(&store, map.addr), 5);
    returns(&mover, moved);
    assert_eq!(occupied(&store), 0);
    map.check(30);
    for page in 1..8 {
        assert_eq!(
            away.word(page * PAGE).load(Ordering::Relaxed),
            1 + page as u64
        );
    }
    assert_eq!(away.word(0).load(Ordering::Relaxed), 5);
    away.word(0).store(6, Ordering::Relaxed);
    assert_eq!(peer_word(&store, map.addr), 0);
}

#[test]
fn shrinking() {
    let Setup {
        mover,
        store,
        mut map,
    } = setup(8);
    let moved = moves(&mover, &store, map.addr, map.len);
    remap(&map, 0, 8, 3, None);
    map.len = 3 * PAGE;
    map.check_pages(1);
    returns(&mover, moved);
    map.check_pages(1);
    assert_eq!(occupied(&store), 0);
    map_at(map.addr + 3 * PAGE, 5 * PAGE);
}

/// What was moved and came back is one mapping with its surroundings again: it can be remapped.
#[test]
fn returned_memory_joins_its_neighbours() {
    let Setup { mover, store, map } = setup(16);
    for (from, to) in [(2, 5), (7, 9), (5, 7), (1, 15)] {
        let start = map.addr + from * PAGE;
        let moved = moves(&mover, &store, start, (to - from) * PAGE);
        returns(&mover, moved);
    }
    map.check(1);
    let away = Map::new(16 * PAGE);
    remap(&map, 0, 16, 16, Some(away.addr));
    away.check(1);
    map_at(map.addr, map.len);
}

#[test]
fn protection_is_kept() {
    let Setup { mover, store, map } = setup(2 * CHUNK / PAGE);
    let moved = moves(&mover, &store, map.addr, map.len);
    let protect = |prot: rustix::mm::MprotectFlags| {
        // SAFETY: the test's own pages.
        unsafe { rustix::mm::mprotect(at(map.addr + 8 * PAGE), PAGE, prot).expect("mprotect") };
    };
    protect(rustix::mm::MprotectFlags::READ);
    returns(&mover, moved);
    map.check(1);
    assert_eq!(common::protection(map.addr + 8 * PAGE), "r--p");
    assert_eq!(common::protection(map.addr + 9 * PAGE), "rw-p");
    let refused = mover.move_in(&store, map.addr, map.len);
    assert_eq!(refused.err(), Some(Unmovable::NotPlain));
    map.check(1);
    protect(rustix::mm::MprotectFlags::empty());
    let refused = mover.move_in(&store, map.addr, map.len);
    assert_eq!(refused.err(), Some(Unmovable::NotPlain));
    protect(rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE);
    map.check(1);
}
