//! What children get of memory that has been moved. Needs the right to trap kernel faults (root).

mod common;

use causeway_memory::{CHUNK, Mover, PAGE, Unmovable};
use common::{Map, peer_word, store};
use std::sync::atomic::Ordering;

/// Runs `body` in a child and returns the status it ends with; a panic, or a signal, is not 0.
fn in_child(body: impl FnOnce()) -> i32 {
    // SAFETY: the child uses what a child of these tests can: memory, atomics, system calls, and
    // the allocator, which glibc keeps usable.
    match unsafe { libc::fork() } {
        -1 => panic!("no child"),
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        child => {
            let mut status = 0;
            // SAFETY: a child of ours.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}

#[test]
fn a_child_has_its_own_copy() {
    let (mover, store) = (Mover::new(None), store(1));
    let map = Map::new(CHUNK + 5 * PAGE);
    map.paint(1);
    let moved = mover
        .move_in(&store, map.addr, map.len - 2 * PAGE)
        .expect("moves");
    assert_eq!(
        in_child(|| {
            map.check(1);
            map.paint(2);
            map.check(2);
            assert_eq!(peer_word(&store, map.addr), 1);
        }),
        0
    );
    map.check(1);
    assert_eq!(peer_word(&store, map.addr), 1);
    mover.take_back(moved).expect("returns");
    map.check(1);
}

#[test]
fn a_childs_mover_is_dead_but_a_new_one_works() {
    let (mover, first) = (Mover::new(None), store(1));
    let map = Map::new(9 * PAGE);
    map.paint(1);
    let moved = mover.move_in(&first, map.addr, map.len).expect("moves");
    let second = store(2);
    assert_eq!(
        in_child(|| {
            assert!(!mover.can_move());
            let refused = mover.move_in(&first, map.addr, map.len);
            assert_eq!(refused.err(), Some(Unmovable::Child));
            let own = Mover::new(None);
            let mine = own.move_in(&second, map.addr, map.len).expect("moves");
            map.paint(5);
            assert_eq!(peer_word(&second, map.addr), 5);
            assert_eq!(in_child(|| map.check(5)), 0);
            own.take_back(mine).expect("returns");
            map.check(5);
            drop(own);
            mover.take_back(moved).expect("nothing to do");
            map.check(5);
            drop(mover);
        }),
        0
    );
    // The parent's mover was the closure's too, and brought everything back when it was dropped.
    map.check(1);
    map.paint(3);
    map.check(3);
    assert_eq!(common::occupied(&first), 0);
}

#[test]
fn a_child_lacks_it_if_told_so() {
    let (mover, store) = (Mover::new(None), store(1));
    let map = Map::new(4 * PAGE);
    map.paint(1);
    let moved = mover.move_in(&store, map.addr, map.len).expect("moves");
    mover.fork_mode(true);
    let status = in_child(|| {
        map.word(0).load(Ordering::Relaxed);
    });
    assert!(libc::WIFSIGNALED(status));
    assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
    map.check(1);
    mover.fork_mode(false);
    assert_eq!(in_child(|| map.check(1)), 0);
    mover.take_back(moved).expect("returns");
    assert_eq!(in_child(|| map.check(1)), 0);
}

/// Forks, moves, and a thread that gives pages up, all at once: none waits for ever.
#[test]
fn forks_while_memory_moves() {
    let (mover, store) = (Mover::new(None), store(1));
    let map = Map::new(40 * PAGE);
    let scrap = Map::new(40 * PAGE);
    map.paint(1);
    let kept = mover.move_in(&store, scrap.addr, scrap.len).expect("moves");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let moved = mover.move_in(&store, map.addr, map.len).expect("moves");
                mover.take_back(moved).expect("returns");
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let start = common::at(scrap.addr);
                // SAFETY: the test's own pages, only used as atomics.
                unsafe {
                    let advice = rustix::mm::Advice::LinuxDontNeed;
                    rustix::mm::madvise(start, scrap.len, advice).expect("advice");
                }
                scrap.word(0).store(1, Ordering::Relaxed);
            }
        });
        for _ in 0..100 {
            assert_eq!(in_child(|| map.check(1)), 0);
        }
        stop.store(true, Ordering::Relaxed);
    });
    mover.take_back(kept).expect("returns");
    map.check(1);
}
