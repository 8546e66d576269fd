//! SISCI: stores to segments and DMA, by size, against plain copies; what a check costs.

use super::{Error, Rounds, Row, median, sides};
use causeway_shm::Segment;
use causeway_sisci::client::Client;
use causeway_sisci::copy::{Direction, copy};
use causeway_sisci::memory::{Mapping, Place};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the segments.
const SIZE: usize = 8 << 20;
/// Bytes that are copied in one measurement, whatever the size of a copy.
const VOLUME: usize = 64 << 20;
/// Checks in one measurement.
const CHECKS: u64 = 1_000_000;
/// Copies in one measurement that are made singly, and how long nothing happens before each.
const RESTS: usize = 40;
const REST: Duration = Duration::from_millis(1);
/// Bytes of those.
const RESTED: usize = 1 << 20;
/// Ids of the segments.
const SOURCE: u32 = 0x00bd_0000;
const TARGET: u32 = 0x00bd_0001;

/// Sizes, and what the rows are called.
const SIZES: [(usize, [&str; 4]); 5] = [
    (
        1 << 10,
        [
            "store, 1 KiB",
            "SCIMemCpy, 1 KiB",
            "DMA waited for, 1 KiB",
            "DMA posted, 1 KiB",
        ],
    ),
    (
        16 << 10,
        [
            "store, 16 KiB",
            "SCIMemCpy, 16 KiB",
            "DMA waited for, 16 KiB",
            "DMA posted, 16 KiB",
        ],
    ),
    (
        128 << 10,
        [
            "store, 128 KiB",
            "SCIMemCpy, 128 KiB",
            "DMA waited for, 128 KiB",
            "DMA posted, 128 KiB",
        ],
    ),
    (
        1 << 20,
        [
            "store, 1 MiB",
            "SCIMemCpy, 1 MiB",
            "DMA waited for, 1 MiB",
            "DMA posted, 1 MiB",
        ],
    ),
    (
        8 << 20,
        [
            "store, 8 MiB",
            "SCIMemCpy, 8 MiB",
            "DMA waited for, 8 MiB",
            "DMA posted, 8 MiB",
        ],
    ),
];
/// What a segment is compared with.
const PLAIN: &str = "memcpy to plain shared memory";
/// What the engine is compared with.
const MEMCPY: &str = "memcpy between the segments";

/// Times two ways of copying in turn, nanoseconds each.
fn compare(
    rounds: Rounds,
    size: usize,
    mut ours: impl FnMut() -> Result<(), Error>,
    mut theirs: impl FnMut(),
) -> Result<(f64, f64), Error> {
    let turns = (VOLUME / size / rounds.divisor as usize).max(4);
    let mut times = (Vec::new(), Vec::new());
    for _ in 0..=rounds.count {
        let begun = Instant::now();
        for _ in 0..turns {
            ours()?;
        }
        times
            .0
            .push(begun.elapsed().as_nanos() as f64 / turns as f64);
        let begun = Instant::now();
        (0..turns).for_each(|_| theirs());
        times
            .1
            .push(begun.elapsed().as_nanos() as f64 / turns as f64);
    }
    // The first round faulted the pages in.
    times.0.remove(0);
    times.1.remove(0);
    Ok((median(times.0), median(times.1)))
}

/// As [`compare`], each copy by itself after a rest of both, in which threads fall asleep.
fn compare_rested(
    rounds: Rounds,
    mut ours: impl FnMut() -> Result<(), Error>,
    mut theirs: impl FnMut(),
) -> Result<(f64, f64), Error> {
    let turns = RESTS / rounds.divisor as usize;
    let mut times = (Vec::new(), Vec::new());
    for _ in 0..turns * rounds.count as usize {
        std::thread::sleep(REST);
        let begun = Instant::now();
        ours()?;
        times.0.push(begun.elapsed().as_nanos() as f64);
        std::thread::sleep(REST);
        let begun = Instant::now();
        theirs();
        times.1.push(begun.elapsed().as_nanos() as f64);
    }
    Ok((median(times.0), median(times.1)))
}

/// `causeway bench sisci`
pub fn sisci(rounds: Rounds) -> Result<Vec<Row>, Error> {
    // First what forks: afterwards there are threads.
    let mut rows = sides::measure(rounds)?;
    let client = Client::open()?;
    let (_own, target) = client.offer(TARGET, SIZE)?;
    let (_connection, map) = client.connect(TARGET)?;
    let file = Segment::create("bench-plain", SIZE)?;
    let place = Place {
        base: 0,
        offset: 0,
        len: SIZE,
        address: 0,
        read_only: false,
    };
    let plain = Mapping::new(file.fd(), place)?;
    let mut source = vec![7u8; SIZE];
    let from = source.as_mut_ptr();
    for (size, [store, mem_cpy, ..]) in SIZES {
        let raw = |to: *mut u8| {
            // SAFETY: both are mapped, and as long at least.
            unsafe { std::ptr::copy(from, to, size) };
        };
        let theirs = || raw(plain.as_ptr());
        let by_store = || {
            raw(map.mapping().as_ptr());
            Ok(())
        };
        rows.push(row(store, PLAIN, compare(rounds, size, by_store, theirs)?));
        // SAFETY: the source is as long.
        let by_call = || unsafe { Ok(copy(from, &map, 0, size, Direction::Write, true)?) };
        rows.push(row(mem_cpy, PLAIN, compare(rounds, size, by_call, theirs)?));
    }
    let sequence = client.sequence(&map)?;
    let word = AtomicU64::new(1);
    let mut times = (Vec::new(), Vec::new());
    for _ in 0..rounds.count {
        let begun = Instant::now();
        for _ in 0..CHECKS {
            std::hint::black_box(client.check(std::hint::black_box(sequence))?);
        }
        times
            .0
            .push(begun.elapsed().as_nanos() as f64 / CHECKS as f64);
        let begun = Instant::now();
        for _ in 0..CHECKS {
            std::hint::black_box(std::hint::black_box(&word).load(Ordering::Acquire));
        }
        times
            .1
            .push(begun.elapsed().as_nanos() as f64 / CHECKS as f64);
    }
    let times = (median(times.0), median(times.1));
    rows.push(row("check of a sequence", "load of a word", times));
    drop(target);
    Ok(rows)
}

/// `causeway bench dma`
pub fn dma(rounds: Rounds) -> Result<Vec<Row>, Error> {
    let client = Client::open()?;
    let (local, from) = client.offer(SOURCE, SIZE)?;
    let (_own, to) = client.offer(TARGET, SIZE)?;
    let (remote, _map) = client.connect(TARGET)?;
    let queue = client.queue(1)?;
    let mut rows = Vec::new();
    for (size, [.., waited, posted]) in SIZES {
        let theirs = || {
            // SAFETY: both are mapped, and as long at least.
            unsafe { std::ptr::copy(from.mapping().as_ptr(), to.mapping().as_ptr(), size) };
        };
        let wait = || Ok(client.transfer(&queue, (&local, &remote), size, true)?);
        rows.push(row(waited, MEMCPY, compare(rounds, size, wait, theirs)?));
        // As programs do that start and wait in two calls.
        let post = || {
            client.transfer(&queue, (&local, &remote), size, false)?;
            Ok(queue.wait(None).1?)
        };
        rows.push(row(posted, MEMCPY, compare(rounds, size, post, theirs)?));
        if size == RESTED {
            let times = compare_rested(rounds, post, theirs)?;
            rows.push(row("DMA posted, 1 MiB, 1 ms apart", MEMCPY, times));
        }
    }
    Ok(rows)
}

pub fn row(what: &'static str, rival: &'static str, (ours, theirs): (f64, f64)) -> Row {
    Row::new(what, ours, rival, theirs)
}
