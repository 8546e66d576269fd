//! What children get of memory that has been moved. Needs the right to trap kernel faults (root).

mod common;

use causeway_memory::{CHUNK, Mover, PAGE, Unmovable};
use common::{Map, Stop, moves, peer_word, returns, store};
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
    let moved = moves(&mover, &store, map.addr, map.len - 2 * PAGE);
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
    returns(&mover, moved);
    map.check(1);
}

#[test]
fn a_childs_mover_is_dead_but_a_new_one_works() {
    let (mover, first) = (Mover::new(None), store(1));
    let map = Map::new(9 * PAGE);
    map.paint(1);
    let moved = moves(&mover, &first, map.addr, map.len);
    let second = store(2);
    assert_eq!(
        in_child(|| {
            assert!(!mover.can_move());
            let refused = mover.move_in(&first, map.addr, map.len);
            assert_eq!(refused.err(), Some(Unmovable::Child));
            let own = Mover::new(None);
            let mine = moves(&own, &second, map.addr, map.len);
            map.paint(5);
            assert_eq!(peer_word(&second, map.addr), 5);
            assert_eq!(in_child(|| map.check(5)), 0);
            returns(&own, mine);
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
    let moved = moves(&mover, &store, map.addr, map.len);
    mover.fork_mode(true);
    let status = in_child(|| {
        map.word(0).load(Ordering::Relaxed);
    });
    assert!(libc::WIFSIGNALED(status));
    assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
    map.check(1);
    mover.fork_mode(false);
    assert_eq!(in_child(|| map.check(1)), 0);
    returns(&mover, moved);
    assert_eq!(in_child(|| map.check(1)), 0);
}

/// Forks, moves, and a thread that gives pages up, all at once: none waits for ever.
#[test]
fn forks_while_memory_moves() {
    let (mover, store) = (Mover::new(None), store(1));
    let map = Map::new(40 * PAGE);
    let scrap = Map::new(40 * PAGE);
    map.paint(1);
    let kept = moves(&mover, &store, scrap.addr, scrap.len);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let moved = moves(&mover, &store, map.addr, map.len);
                returns(&mover, moved);
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
    });
    returns(&mover, kept);
    map.check(1);
}

/// Seconds of processor time that the process has used.
fn processor_time() -> f64 {
    // SAFETY: plain memory, filled by the call.
    let used = unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut used), 0);
        used
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(used.ru_utime) + seconds(used.ru_stime)
}

/// What a child gets takes little more than copying as much to memory never touched before. In
/// processor time, which other load does not count in; the least of some rounds of each.
#[test]
fn a_childs_copy_costs_what_a_copy_costs() {
    const LEN: usize = 128 << 20;
    const ROUNDS: usize = 3;
    let (mover, store) = (Mover::new(None), store(1));
    let map = Map::new(LEN);
    map.paint(1);
    let _moved = moves(&mover, &store, map.addr, map.len);
    let (mut pipe, mut forked, mut copied) = ([0; 2], f64::MAX, f64::MAX);
    // SAFETY: two descriptors are written.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    for _ in 0..ROUNDS {
        let status = in_child(|| {
            // All that the child has done so far is what the handlers do.
            let after = processor_time();
            let fresh = Map::new(LEN);
            let from = common::at(map.addr).cast::<u8>();
            // SAFETY: two mappings of this length.
            unsafe { from.copy_to_nonoverlapping(common::at(fresh.addr).cast(), LEN) };
            let both = [after, processor_time() - after];
            // SAFETY: the descriptor is open, the bytes are there.
            unsafe { libc::write(pipe[1], both.as_ptr().cast(), 16) };
        });
        assert_eq!(status, 0);
        let mut both = [0_f64; 2];
        // SAFETY: the descriptor is open; there is room.
        let got = unsafe { libc::read(pipe[0], both.as_mut_ptr().cast(), 16) };
        assert_eq!(got, 16);
        forked = forked.min(both[0]);
        copied = copied.min(both[1]);
    }
    println!("the child's copy {forked:.3} s, a copy {copied:.3} s");
    // To an emulated processor a system call costs more, beside a copy, than to a real one.
    let most = match std::env::var_os("CAUSEWAY_TEST_EMULATED") {
        Some(_) => 4.0,
        None => 1.5,
    };
    assert!(
        forked < most * copied,
        "{forked:.3} s where a copy takes {copied:.3} s"
    );
}
