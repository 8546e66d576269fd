//! What moving memory costs, beside populating and copying as much: `cargo run --release --example
//! cost [rounds [bytes]]`. Medians in microseconds; the last columns are the longest time that a
//! thread which writes to the memory all the while was stopped.

#[path = "../tests/common/mod.rs"]
mod common;

use causeway_memory::{Mover, PAGE, Store};
use common::{Map, at, store};
use rustix::mm::{Advice, MapFlags};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SIZES: [usize; 6] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 1 << 30];

/// What one size took.
#[derive(Default)]
struct Times {
    baseline: Vec<Duration>,
    fresh: Vec<Duration>,
    moved: Vec<Duration>,
    again: Vec<Duration>,
    back: Vec<Duration>,
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// Populates pages of a memfd and copies the memory to them.
fn baseline(map: &Map) -> Duration {
    let store = store(0);
    let begin = Instant::now();
    // SAFETY: a new mapping, filled from one of the same length.
    unsafe {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let offset = map.addr as u64;
        let null = std::ptr::null_mut();
        let copy = rustix::mm::mmap(null, map.len, common::RW, flags, store.as_fd(), offset);
        let copy = copy.expect("mmap");
        std::ptr::copy_nonoverlapping(at(map.addr).cast::<u8>(), copy.cast(), map.len);
        let took = begin.elapsed();
        rustix::mm::munmap(copy, map.len).expect("munmap");
        took
    }
}

fn time<T>(times: &mut Vec<Duration>, what: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = what();
    times.push(begin.elapsed());
    result
}

fn measure(mover: &Mover, store: &Arc<Store>, size: usize, rounds: usize, huge: bool) -> Times {
    let mut times = Times::default();
    for _ in 0..rounds {
        let map = Map::new(size);
        if huge {
            // SAFETY: the mapping is the test's own.
            unsafe {
                rustix::mm::madvise(at(map.addr), size, Advice::LinuxHugepage).expect("advice");
            }
        }
        if rounds > 1 {
            let fresh = time(&mut times.fresh, || mover.move_in(store, map.addr, size));
            mover.take_back(fresh.expect("moves")).expect("returns");
        } else {
            times.fresh.push(Duration::ZERO);
        }
        let map = Map::new(size);
        if huge {
            // SAFETY: the mapping is the test's own.
            unsafe {
                rustix::mm::madvise(at(map.addr), size, Advice::LinuxHugepage).expect("advice");
            }
        }
        map.paint(1);
        times.baseline.push(baseline(&map));
        let moved = time(&mut times.moved, || mover.move_in(store, map.addr, size));
        let again = time(&mut times.again, || mover.move_in(store, map.addr, size));
        mover.take_back(again.expect("counts")).expect("returns");
        time(&mut times.back, || mover.take_back(moved.expect("moves"))).expect("returns");
        map.check(1);
    }
    times
}

/// The longest pause of a thread that writes to all pages in turn, while the memory moves once.
fn stall(mover: &Mover, store: &Arc<Store>, size: usize) -> (Duration, Duration) {
    let map = Map::new(size);
    map.paint(1);
    let longest = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let read = || Duration::from_nanos(longest.swap(0, Ordering::Relaxed));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = Instant::now();
            let mut page = 0;
            while !stop.load(Ordering::Relaxed) {
                page = (page + 1) % (size / PAGE);
                map.word(page * PAGE).store(1, Ordering::Relaxed);
                let now = Instant::now();
                let pause = now.duration_since(last).as_nanos() as u64;
                longest.fetch_max(pause, Ordering::Relaxed);
                last = now;
            }
        });
        read();
        let moved = mover.move_in(store, map.addr, size).expect("moves");
        let inward = read();
        mover.take_back(moved).expect("returns");
        let outward = read();
        stop.store(true, Ordering::Relaxed);
        (inward, outward)
    })
}

fn main() {
    let argument = |nth| {
        std::env::args()
            .nth(nth)
            .map(|arg| arg.parse().expect("a number"))
    };
    let (rounds, only): (usize, Option<usize>) = (argument(1).unwrap_or(9), argument(2));
    let (mover, store) = (Mover::new(None), store(1));
    assert!(mover.can_move(), "no full userfaultfd here");
    println!(
        "{:>10} {:>9} {:>9} {:>6} {:>9} {:>6} {:>9} {:>6} {:>7} {:>9} {:>9}",
        "bytes",
        "copy",
        "move",
        "ratio",
        "untouched",
        "ratio",
        "back",
        "ratio",
        "again",
        "stall in",
        "out"
    );
    let sizes = SIZES
        .into_iter()
        .filter(|size| only.is_none_or(|only| only == *size));
    for (size, huge) in sizes.map(|size| (size, false)).chain([(64 << 20, true)]) {
        let rounds = if size > 100 << 20 {
            rounds.div_ceil(3)
        } else {
            rounds
        };
        let mut times = measure(&mover, &store, size, rounds, huge);
        let copy = median(&mut times.baseline);
        let (moved, fresh) = (median(&mut times.moved), median(&mut times.fresh));
        let (back, again) = (median(&mut times.back), median(&mut times.again));
        let (inward, outward) = stall(&mover, &store, size);
        println!(
            "{size:>10} {copy:>9.1} {moved:>9.1} {:>6.2} {fresh:>9.1} {:>6.2} {back:>9.1} {:>6.2} \
             {again:>7.2} {:>9.0} {:>9.0}{}",
            moved / copy,
            fresh / copy,
            back / copy,
            inward.as_secs_f64() * 1e6,
            outward.as_secs_f64() * 1e6,
            if huge { "  huge pages" } else { "" }
        );
    }
}
