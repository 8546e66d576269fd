//! Moving in and taking back. Needs the right to trap kernel faults (root).

mod common;

use causeway_memory::{CHUNK, Mover, PAGE, Unmovable};
use common::{Map, Stop, moves, occupied, peer_word, returns, store};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn there_and_back() {
    let (mover, store) = (Mover::new(None), store(1));
    assert!(mover.can_move());
    let map = Map::new(3 * CHUNK);
    map.paint(7);
    let moved = moves(&mover, &store, map.addr, map.len);
    assert_eq!((moved.start(), moved.end()), (map.addr, map.addr + map.len));
    map.check(7);
    assert_eq!(peer_word(&store, map.addr + 5 * PAGE), 12);
    map.paint(9);
    assert_eq!(peer_word(&store, map.addr + 5 * PAGE), 14);
    returns(&mover, moved);
    map.check(9);
    assert_eq!(occupied(&store), 0);
    map.paint(11);
    map.check(11);
    assert_eq!(occupied(&store), 0);
}

#[test]
fn partial_pages_stay() {
    let (mover, store) = (Mover::new(None), store(1));
    let map = Map::new(4 * PAGE);
    map.paint(1);
    let moved = moves(&mover, &store, map.addr + 8, map.len - 16);
    assert_eq!(
        (moved.start(), moved.end()),
        (map.addr + PAGE, map.addr + 3 * PAGE)
    );
    assert_eq!(peer_word(&store, map.addr), 0);
    assert_eq!(
        mover.move_in(&store, map.addr + 8, PAGE).err(),
        Some(Unmovable::NoWholePage)
    );
    returns(&mover, moved);
    map.check(1);
}

/// A process that has a store mapped can put pages anywhere in it, if only by reading: they neither
/// become the program's nor keep its own out.
#[test]
fn what_a_peer_put_there_is_dropped() {
    let (mover, stores) = (Mover::new(None), [store(1), store(2)]);
    let map = Map::new(2 * CHUNK);
    map.paint(7);
    for store in &stores {
        for page in [0, 3, 700] {
            let at = (map.addr + page * PAGE) as u64;
            rustix::io::pwrite(store.as_fd(), &[0xff; PAGE], at).expect("pwrite");
        }
    }
    let moved = moves(&mover, &stores[0], map.addr, map.len);
    map.check(7);
    assert_eq!(peer_word(&stores[0], map.addr + 3 * PAGE), 10);
    returns(&mover, moved);
    let moved = moves(&mover, &stores[1], map.addr, map.len);
    map.check(7);
    assert_eq!(peer_word(&stores[1], map.addr + 3 * PAGE), 10);
    returns(&mover, moved);
    map.check(7);
    assert_eq!(stores.each_ref().map(|store| occupied(store)), [0, 0]);
}

/// Threads count in words of their own while the memory moves back and forth.
#[test]
fn no_update_is_lost() {
    const THREADS: usize = 4;
    const ROUNDS: u64 = 60;
    let (mover, store) = (Mover::new(None), store(1));
    let map = Map::new(CHUNK + 7 * PAGE);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for thread in 0..THREADS {
            let (map, stop) = (&map, &stop);
            scope.spawn(move || {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    for page in 0..map.len / PAGE {
                        let word = map.word(page * PAGE + thread * 64);
                        assert_eq!(word.load(Ordering::Relaxed), count, "page {page}");
                        word.store(count + 1, Ordering::Relaxed);
                    }
                    count += 1;
                }
                assert!(count > 0);
            });
        }
        for _ in 0..ROUNDS {
            let moved = moves(&mover, &store, map.addr, map.len);
            returns(&mover, moved);
        }
    });
    assert_eq!(occupied(&store), 0);
}

#[test]
fn overlapping_registrations_are_counted() {
    let (mover, store) = (Mover::new(None), store(1));
    let map = Map::new(10 * PAGE);
    map.paint(3);
    let move_in =
        |from: usize, to: usize| moves(&mover, &store, map.addr + from * PAGE, (to - from) * PAGE);
    let (low, high) = (move_in(0, 6), move_in(4, 10));
    let again = move_in(0, 10);
    assert_eq!(occupied(&store), 10 * PAGE as u64);
    returns(&mover, low);
    assert_eq!(occupied(&store), 10 * PAGE as u64);
    returns(&mover, again);
    assert_eq!(occupied(&store), 6 * PAGE as u64);
    map.check(3);
    returns(&mover, high);
    assert_eq!(occupied(&store), 0);
    map.check(3);
}

#[test]
fn another_store_takes_over() {
    let (mover, first, second) = (Mover::new(None), store(1), store(2));
    let map = Map::new(CHUNK);
    map.paint(5);
    let moved = moves(&mover, &first, map.addr, map.len);
    assert_eq!(
        mover.move_in(&second, map.addr, PAGE).err(),
        Some(Unmovable::Elsewhere)
    );
    returns(&mover, moved);
    assert_eq!(occupied(&first), 0);
    let moved = moves(&mover, &second, map.addr, map.len);
    map.check(5);
    map.paint(6);
    assert_eq!(peer_word(&second, map.addr), 6);
    returns(&mover, moved);
    map.check(6);
    assert_eq!(occupied(&second), 0);
}
