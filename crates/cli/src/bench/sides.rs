//! Two processes on a processor each, with segments and interrupts of each other's.

use super::{Error, Rounds, Row, median};
use causeway_identity::PAGE;
use causeway_sisci::client::Client;
use causeway_sisci::interrupt::{LocalInterrupt, Plain};
use causeway_sisci::map::Map;
use causeway_sisci::trigger::RemoteInterrupt;
use rustix::event::{EventfdFlags, eventfd};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// In the page: how often the two have met, and the bare ping-pong's words, a line apart.
const MET: usize = 0;
const WORDS: [usize; 2] = [256, 512];
/// When a sleeper was woken: nanoseconds of the clock that both processes have.
const WOKEN_AT: usize = 768;
/// How long the other is let fall asleep.
const REST: Duration = Duration::from_micros(300);
/// Bytes of a segment. Its first word is the ping-pong's.
const SEGMENT: usize = 4096;
/// Segment ids and interrupt numbers, of the side.
const ID: u32 = 0x00be_0000;

/// One of the two, in its process.
struct Side {
    index: usize,
    page: *mut u8,
    bells: [OwnedFd; 2],
    own: Arc<Map>,
    other: Arc<Map>,
    interrupt: Arc<LocalInterrupt<Plain>>,
    trigger: Arc<RemoteInterrupt<Plain>>,
}

/// A word that both have mapped.
fn word<'a>(memory: *mut u8) -> &'a AtomicU64 {
    // SAFETY: an aligned place in a mapping that lasts until the process ends; accessed atomically
    // by all.
    unsafe { AtomicU64::from_ptr(memory.cast()) }
}

impl Side {
    fn new(index: usize, page: *mut u8, bells: [OwnedFd; 2]) -> Result<Side, Error> {
        let client = Client::open()?;
        let id = ID + index as u32;
        let (_, own) = client.offer(id, SEGMENT)?;
        let interrupt = client.interrupt(id)?;
        let side = |made: &mut u64| meet(page, made);
        let mut made = 0;
        side(&mut made);
        let (_, other) = client.connect(ID + 1 - index as u32)?;
        let trigger = client.trigger(ID + 1 - index as u32)?;
        side(&mut made);
        Ok(Side {
            index,
            page,
            bells,
            own,
            other,
            interrupt,
            trigger,
        })
    }

    /// Lets the other go on, then waits for it, so many times; the first side begins.
    fn alternate(&self, turns: u64, mut go: impl FnMut(u64), mut wait: impl FnMut(u64)) {
        for turn in 1..=turns {
            if self.index == 0 {
                go(turn);
            }
            wait(turn);
            if self.index == 1 {
                go(turn);
            }
        }
    }

    /// As [`Side::alternate`], and returns how long each hand-over took.
    fn take_turns(&self, turns: u64, go: impl FnMut(u64), wait: impl FnMut(u64)) -> f64 {
        let begun = Instant::now();
        self.alternate(turns, go, wait);
        begun.elapsed().as_nanos() as f64 / (2 * turns) as f64
    }

    /// As [`Side::take_turns`] where the waiter has fallen asleep: how long it took to be awake.
    fn wake(&self, turns: u64, mut go: impl FnMut(u64), mut wait: impl FnMut(u64)) -> f64 {
        let woken_at = word(self.page.wrapping_add(WOKEN_AT));
        let mut slept = 0;
        let go = |turn| {
            std::thread::sleep(REST);
            woken_at.store(now(), Ordering::Release);
            go(turn);
        };
        let wait = |turn| {
            wait(turn);
            slept += now() - woken_at.load(Ordering::Acquire);
        };
        self.alternate(turns, go, wait);
        slept as f64 / turns as f64
    }

    fn bare_words(&self, base: u64, turns: u64) -> f64 {
        let mine = word(self.page.wrapping_add(WORDS[self.index]));
        let theirs = word(self.page.wrapping_add(WORDS[1 - self.index]));
        poll_words(self, mine, theirs, base, turns)
    }

    fn segment_words(&self, base: u64, turns: u64) -> f64 {
        let mine = word(self.own.mapping().as_ptr());
        let theirs = word(self.other.mapping().as_ptr());
        poll_words(self, mine, theirs, base, turns)
    }

    // A bell or an interrupt that fails leaves the other waiting, which shows.

    fn ring_bell(&self, _: u64) {
        let _ = rustix::io::write(&self.bells[1 - self.index], &1u64.to_ne_bytes());
    }

    fn wait_for_bell(&self, _: u64) {
        let _ = rustix::io::read(&self.bells[self.index], &mut [0u8; 8]);
    }

    fn trigger(&self, _: u64) {
        let _ = self.trigger.trigger(&[]);
    }

    fn wait_for_interrupt(&self, _: u64) {
        let _ = self.interrupt.wait(None);
    }

    fn bells_in_turn(&self, _: u64, turns: u64) -> f64 {
        self.take_turns(
            turns,
            |turn| self.ring_bell(turn),
            |turn| self.wait_for_bell(turn),
        )
    }

    fn interrupts_in_turn(&self, _: u64, turns: u64) -> f64 {
        self.take_turns(
            turns,
            |turn| self.trigger(turn),
            |turn| self.wait_for_interrupt(turn),
        )
    }

    fn bells_to_sleepers(&self, _: u64, turns: u64) -> f64 {
        self.wake(
            turns,
            |turn| self.ring_bell(turn),
            |turn| self.wait_for_bell(turn),
        )
    }

    fn interrupts_to_sleepers(&self, _: u64, turns: u64) -> f64 {
        self.wake(
            turns,
            |turn| self.trigger(turn),
            |turn| self.wait_for_interrupt(turn),
        )
    }
}

/// Nanoseconds, by a clock that all processes share.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn poll_words(side: &Side, mine: &AtomicU64, theirs: &AtomicU64, base: u64, turns: u64) -> f64 {
    side.take_turns(
        turns,
        |turn| theirs.store(base + turn, Ordering::Release),
        |turn| {
            while mine.load(Ordering::Acquire) < base + turn {
                std::hint::spin_loop();
            }
        },
    )
}

/// Waits until both have come here as often.
fn meet(page: *mut u8, made: &mut u64) {
    let met = word(page.wrapping_add(MET));
    *made += 2;
    met.fetch_add(1, Ordering::SeqCst);
    while met.load(Ordering::SeqCst) < *made {
        std::thread::yield_now();
    }
}

/// What a side does so many times, from a count on; nanoseconds one way.
type Body = fn(&Side, u64, u64) -> f64;

/// The comparisons: what, ours, against, theirs, and how many turns.
const DUELS: [(&str, Body, &str, Body, u64); 3] = [
    (
        "polled ping-pong in segments, one way",
        Side::segment_words,
        "bare cache line",
        Side::bare_words,
        20_000,
    ),
    (
        "interrupt to a sleeper, one way",
        Side::interrupts_to_sleepers,
        "bare eventfd to a sleeper",
        Side::bells_to_sleepers,
        400,
    ),
    (
        "interrupts in turn, one way",
        Side::interrupts_in_turn,
        "bare eventfd in turn",
        Side::bells_in_turn,
        2_000,
    ),
];

/// Measures what takes two.
pub fn measure(rounds: Rounds) -> Result<Vec<Row>, Error> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, of no address that is in use.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, access, MapFlags::SHARED)? };
    let bell = || eventfd(0, EventfdFlags::CLOEXEC);
    let bells = [bell()?, bell()?];
    // SAFETY: `bench` runs in the only thread; the child does what stands here and ends.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    if pid == 0 {
        // SAFETY: the child is not to outlive the bench.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let done = duel(1, page.cast(), bells, rounds).is_ok();
        // SAFETY: nothing of the parent's may be cleaned up here.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    let rows = duel(0, page.cast(), bells, rounds);
    // SAFETY: the child; if this side has failed it waits for ever.
    unsafe {
        if rows.is_err() {
            libc::kill(pid, libc::SIGKILL);
        }
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    rows
}

fn duel(
    index: usize,
    page: *mut u8,
    bells: [OwnedFd; 2],
    rounds: Rounds,
) -> Result<Vec<Row>, Error> {
    let all = sched_getaffinity(None)?;
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| all.is_set(cpu))
        .collect();
    let side = Side::new(index, page, bells)?;
    // The program's own thread alone: the library's keep off it.
    let mut cpu = CpuSet::new();
    cpu.set(usable[index.min(usable.len() - 1)]);
    sched_setaffinity(None, &cpu)?;
    // As many as `Side::new` has made.
    let mut made = 4;
    let mut rows = Vec::new();
    for (what, ours, rival, theirs, turns) in DUELS {
        let turns = turns / rounds.divisor;
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..rounds.count {
            for (body, times) in [ours, theirs].iter().zip(&mut times) {
                meet(page, &mut made);
                times.push(body(&side, round * turns, turns));
            }
        }
        let [ours, theirs] = times.map(median);
        rows.push(Row::new(what, ours, rival, theirs));
    }
    meet(page, &mut made);
    sched_setaffinity(None, &all)?;
    Ok(rows)
}
