//! `causeway bench vm`: what processes of two machines of one host have of each other, a guest's
//! being the one that measures: its window beside its own memory, doorbells and calls of the
//! broker beside the bare way to the host and back.

use super::segments::row;
use super::{Error, Rounds, Row, in_turn, median};
use causeway_fabric::guest;
use causeway_identity::PAGE;
use causeway_sisci::client::Client;
use causeway_sisci::interrupt::{LocalInterrupt, Plain};
use causeway_sisci::map::Map;
use causeway_sisci::trigger::RemoteInterrupt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a segment that are data; behind them lies a page of words.
const DATA: usize = 8 << 20;
/// In the page, a line apart: the number of what is asked of the server, what it is, how often, of
/// how many bytes, from which turn on; and the number of what the server has begun.
const ASKED: usize = DATA;
const KIND: usize = DATA + 64;
const TURNS: usize = DATA + 128;
const BYTES: usize = DATA + 192;
const FIRST: usize = DATA + 256;
const BEGUN: usize = DATA + 320;
/// And how many nanoseconds the server has slept, when it has done that.
const SLEPT: usize = DATA + 384;
/// What is asked: to end, to hand memory to and fro, to answer interrupts.
const END: u64 = 1;
const HAND_OVER: u64 = 2;
const INTERRUPTS: u64 = 3;
/// Segment ids and interrupt numbers: of the one that serves, of the one that measures.
const SERVER: u32 = 0x00bf_0000;
const CLIENT: u32 = 0x00bf_0001;
/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks of a side that is in no hurry.
const NAP: Duration = Duration::from_millis(1);
/// Looks of a side that is, between two at the clock.
const LOOKS: u32 = 4096;
/// How long the side that is about to trigger an interrupt lets the other fall asleep.
const ASLEEP: Duration = Duration::from_millis(2);
/// Hand-overs of 8 bytes, interrupts, and requests of the host in one measurement.
const SHORT_TURNS: u64 = 20_000;
const INTERRUPT_TURNS: u64 = 40;
const REQUEST_TURNS: u64 = 100;
/// Bytes that are copied in one measurement, and how many measurements there are for each of the
/// bench's rounds: many short ones, of which neighbours are compared.
const VOLUME: usize = 4 << 20;
const PAIRS: u64 = 5;
/// An emulator finds a page's translation by the lower bits of its number, so that copies between
/// pages whose lower bits are the same take up to three times as long. Two buffers whose addresses
/// are the same but for multiples of this are equally far from any third in this respect.
const PLACES: usize = 64 << 20;

/// Copies: bytes, and what the rows are called.
const COPIES: [(usize, [&str; 4]); 3] = [
    (
        64 << 10,
        [
            "store to the peer's segment, 64 KiB",
            "load from the peer's segment, 64 KiB",
            "store to an own segment, 64 KiB",
            "load from an own segment, 64 KiB",
        ],
    ),
    (
        1 << 20,
        [
            "store to the peer's segment, 1 MiB",
            "load from the peer's segment, 1 MiB",
            "store to an own segment, 1 MiB",
            "load from an own segment, 1 MiB",
        ],
    ),
    (
        8 << 20,
        [
            "store to the peer's segment, 8 MiB",
            "load from the peer's segment, 8 MiB",
            "store to an own segment, 8 MiB",
            "load from an own segment, 8 MiB",
        ],
    ),
];
/// Hand-overs: bytes, turns in one measurement, and what the rows are called.
const HAND_OVERS: [(usize, u64, &str); 3] = [
    (8, SHORT_TURNS, "hand-over, 8 B, one way"),
    (4 << 10, SHORT_TURNS / 10, "hand-over, 4 KiB, one way"),
    (64 << 10, SHORT_TURNS / 40, "hand-over, 64 KiB, one way"),
];
const OWN_MEMORY: &str = "copy in own memory";
const KICK: &str = "kick to interrupt";

/// One of the two.
struct Side {
    client: Client,
    own: Arc<Map>,
    other: Arc<Map>,
    interrupt: Arc<LocalInterrupt<Plain>>,
    trigger: Arc<RemoteInterrupt<Plain>>,
    /// What is handed over.
    source: Vec<u8>,
}

/// `DATA` bytes of own memory that lie as something else does ([`PLACES`]).
struct Alike {
    area: Vec<u8>,
    offset: usize,
}

impl Alike {
    fn new(other: *mut u8) -> Alike {
        // What is beside the bytes is never touched, and takes no memory.
        let mut area = vec![0; PLACES + DATA];
        let offset = other.addr().wrapping_sub(area.as_ptr().addr()) % PLACES;
        area[offset..][..DATA].fill(7);
        Alike { area, offset }
    }

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.area[self.offset..].as_mut_ptr()
    }
}

/// Tries until it succeeds.
fn patiently<T, E: Into<Error>>(mut attempt: impl FnMut() -> Result<T, E>) -> Result<T, Error> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(error) if begun.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => std::thread::sleep(NAP),
            Ok(value) => return Ok(value),
        }
    }
}

impl Side {
    fn new(own: u32, other: u32) -> Result<Side, Error> {
        let client = Client::open()?;
        let interrupt = client.interrupt(own)?;
        let (_, map) = client.offer(own, DATA + PAGE)?;
        let trigger = patiently(|| client.trigger(other))?;
        let (_, other) = patiently(|| client.connect(other))?;
        Ok(Side {
            client,
            own: map,
            other,
            interrupt,
            trigger,
            source: vec![7; DATA],
        })
    }

    /// Waits until a word of its own segment is as it should be.
    fn spin_until(&self, word: &AtomicU64, wanted: u64) -> Result<(), Error> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            for _ in 0..LOOKS {
                if word.load(Ordering::Acquire) == wanted {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        Err("the other side is silent".into())
    }

    /// Copies `bytes` into the other's segment, of which the last eight are `turn` and come last.
    fn put(&self, bytes: usize, turn: u64) {
        let last = bytes - size_of::<u64>();
        let to = self.other.mapping().as_ptr();
        // SAFETY: source and segment have `DATA` bytes, and `bytes` is at most that; nobody reads
        // the segment before the store below.
        unsafe { std::ptr::copy_nonoverlapping(self.source.as_ptr(), to, last) };
        word(&self.other, last).store(turn, Ordering::Release);
    }

    fn hand_over(&self, leads: bool, bytes: usize, first: u64, turns: u64) -> Result<(), Error> {
        let mine = word(&self.own, bytes - size_of::<u64>());
        for turn in first..first + turns {
            if leads {
                self.put(bytes, turn);
            }
            self.spin_until(mine, turn)?;
            if !leads {
                self.put(bytes, turn);
            }
        }
        Ok(())
    }

    /// Each lets the other fall asleep, and then wakes it. How long this side has slept itself:
    /// had it spun, it would have kept the threads in between off its processor.
    fn interrupts(&self, leads: bool, turns: u64) -> Result<Duration, Error> {
        let mut slept = Duration::ZERO;
        let mut wake = || {
            let begun = Instant::now();
            std::thread::sleep(ASLEEP);
            slept += begun.elapsed();
            self.trigger.trigger(&[])
        };
        for _ in 0..turns {
            if leads {
                wake()?;
            }
            self.interrupt.wait(Some(Instant::now() + PATIENCE))?;
            if !leads {
                wake()?;
            }
        }
        Ok(slept)
    }
}

/// A word of a segment.
fn word(map: &Map, at: usize) -> &AtomicU64 {
    assert!(at.is_multiple_of(8) && at < DATA + PAGE && map.mapping().len() >= DATA + PAGE);
    // SAFETY: aligned and inside of the mapping, which the map keeps; accessed atomically by all,
    // while it is a word.
    unsafe { AtomicU64::from_ptr(map.mapping().as_ptr().add(at).cast()) }
}

/// `causeway bench vm --serve`: does what one client asks, until it is told to end.
pub fn serve() -> Result<Vec<Row>, Error> {
    let side = Side::new(SERVER, CLIENT)?;
    let asked = |at| word(&side.own, at).load(Ordering::Acquire);
    let mut done = 0;
    let mut heard = Instant::now();
    while heard.elapsed() < PATIENCE {
        if asked(ASKED) == done {
            std::thread::sleep(NAP);
            continue;
        }
        done += 1;
        let (kind, turns, first) = (asked(KIND), asked(TURNS), asked(FIRST));
        let bytes = (asked(BYTES) as usize).clamp(size_of::<u64>(), DATA) & !7;
        word(&side.other, BEGUN).store(done, Ordering::Release);
        match kind {
            HAND_OVER => side.hand_over(false, bytes, first, turns)?,
            INTERRUPTS => {
                let slept = side.interrupts(false, turns)?.as_nanos() as u64;
                word(&side.other, SLEPT).store(slept.max(1), Ordering::Release);
            }
            _ => return Ok(Vec::new()),
        }
        heard = Instant::now();
    }
    Err("the other side is silent".into())
}

/// The middle time of the first, and of the second what has the middle ratio to it: both change
/// with the processors' places, and alike. The first pair faulted the pages in.
fn neighbours(pairs: Vec<(f64, f64)>) -> (f64, f64) {
    let (first, ratios) = pairs[1..]
        .iter()
        .map(|(ours, theirs)| (*ours, ours / theirs))
        .unzip();
    let first = median(first);
    (first, first / median(ratios))
}

/// What measures.
struct Meter {
    side: Side,
    rounds: Rounds,
    /// How much was asked of the server, and the last turn.
    asked: u64,
    turn: u64,
}

impl Meter {
    /// Has the server begin.
    fn ask(&mut self, kind: u64, bytes: usize, turns: u64) -> Result<(), Error> {
        let tell = |at, value| word(&self.side.other, at).store(value, Ordering::Release);
        self.asked += 1;
        tell(KIND, kind);
        tell(BYTES, bytes as u64);
        tell(TURNS, turns);
        tell(FIRST, self.turn + 1);
        tell(ASKED, self.asked);
        self.side
            .spin_until(word(&self.side.own, BEGUN), self.asked)
    }

    /// Nanoseconds of one way.
    fn hand_over(&mut self, bytes: usize, turns: u64) -> Result<f64, Error> {
        self.ask(HAND_OVER, bytes, turns)?;
        let begun = Instant::now();
        self.side.hand_over(true, bytes, self.turn + 1, turns)?;
        self.turn += turns;
        Ok(begun.elapsed().as_nanos() as f64 / (2 * turns) as f64)
    }

    fn interrupts(&mut self, turns: u64) -> Result<f64, Error> {
        word(&self.side.own, SLEPT).store(0, Ordering::Relaxed);
        self.ask(INTERRUPTS, 0, turns)?;
        let begun = Instant::now();
        let slept = self.side.interrupts(true, turns)?;
        let awake = begun.elapsed().saturating_sub(slept).as_nanos() as f64;
        let others = word(&self.side.own, SLEPT);
        let others = patiently(|| match others.load(Ordering::Acquire) {
            0 => Err("the other side does not say how long it has slept"),
            others => Ok(others),
        })?;
        Ok((awake - others as f64) / (2 * turns) as f64)
    }

    /// Two ways in turn; medians.
    fn duel(
        &mut self,
        ours: impl FnMut(&mut Meter) -> Result<f64, Error>,
        theirs: impl FnMut(&mut Meter) -> Result<f64, Error>,
    ) -> Result<(f64, f64), Error> {
        let times = self.rounds.count;
        in_turn(self, times, ours, theirs)
    }

    fn copies(&mut self, rows: &mut Vec<Row>) -> Result<(), Error> {
        let (source, mut target) = (self.side.source.clone(), vec![0u8; DATA]);
        let (from, to): (*const u8, _) = (source.as_ptr(), target.as_mut_ptr());
        let segments = [&self.side.other, &self.side.own].map(|map| map.mapping().as_ptr());
        let mut beside = segments.map(Alike::new);
        let [at_peers, at_own] = beside.each_mut().map(Alike::as_mut_ptr);
        let [peers, own] = segments;
        for (bytes, names) in COPIES {
            let ways = [
                [(from, peers), (from, at_peers)],
                [(peers.cast_const(), to), (at_peers.cast_const(), to)],
                [(from, own), (from, at_own)],
                [(own.cast_const(), to), (at_own.cast_const(), to)],
            ];
            for (name, [there, here]) in names.into_iter().zip(ways) {
                // SAFETY: all have `DATA` bytes at least, and the other side leaves them alone.
                let copy = |from: *const u8, to| unsafe { std::ptr::copy(from, to, bytes) };
                let turns = (VOLUME / bytes).max(1);
                let timed = |(from, to)| {
                    let begun = Instant::now();
                    (0..turns).for_each(|_| copy(from, to));
                    begun.elapsed().as_nanos() as f64 / turns as f64
                };
                let pairs = (0..self.rounds.count * PAIRS)
                    .map(|_| (timed(there), timed(here)))
                    .collect();
                rows.push(row(name, OWN_MEMORY, neighbours(pairs)));
            }
        }
        Ok(())
    }

    fn hand_overs(&mut self, rows: &mut Vec<Row>) -> Result<(), Error> {
        let source = self.side.source.clone();
        let mut target = vec![0u8; DATA];
        for (bytes, turns, name) in HAND_OVERS {
            let turns = turns / self.rounds.divisor;
            let times = self.duel(
                |meter| meter.hand_over(bytes, turns),
                |_| {
                    let begun = Instant::now();
                    for _ in 0..turns {
                        target[..bytes].copy_from_slice(std::hint::black_box(&source[..bytes]));
                        std::hint::black_box(&target);
                    }
                    Ok(begun.elapsed().as_nanos() as f64 / turns as f64)
                },
            )?;
            rows.push(row(name, OWN_MEMORY, times));
        }
        Ok(())
    }

    fn requests(&mut self, rows: &mut Vec<Row>) -> Result<(), Error> {
        let device = guest::open()?;
        let timed = |turns: u64, request: &dyn Fn() -> Result<(), Error>| {
            let begun = Instant::now();
            for _ in 0..turns {
                request()?;
            }
            Ok(begun.elapsed().as_nanos() as f64 / turns as f64)
        };
        let divisor = self.rounds.divisor;
        // After a rest as long as doorbells have: all that takes part has gone to sleep.
        let rested = |_: &mut Meter| {
            let turns = INTERRUPT_TURNS / divisor;
            let mut time = Duration::ZERO;
            for _ in 0..turns {
                std::thread::sleep(ASLEEP);
                let begun = Instant::now();
                guest::settle(device.as_fd())?;
                time += begun.elapsed();
            }
            Ok(time.as_nanos() as f64 / turns as f64)
        };
        let turns = INTERRUPT_TURNS / divisor;
        let times = self.duel(|meter| meter.interrupts(turns), rested)?;
        rows.push(row("doorbell to a sleeper, one way", KICK, times));
        let bare = |_: &mut Meter| {
            timed(REQUEST_TURNS / divisor, &|| {
                Ok(guest::settle(device.as_fd())?)
            })
        };
        let call = |meter: &mut Meter| {
            let client = &meter.side.client;
            timed(REQUEST_TURNS / divisor, &|| {
                std::hint::black_box(client.probe()?);
                Ok(())
            })
        };
        let times = self.duel(call, bare)?;
        rows.push(row("call of the broker, to and fro", KICK, times));
        Ok(())
    }
}

/// `causeway bench vm`
pub fn measure(rounds: Rounds) -> Result<Vec<Row>, Error> {
    if !guest::is_present() {
        return Err("this is no guest; on the host only `bench vm --serve` can run".into());
    }
    let mut meter = Meter {
        side: Side::new(CLIENT, SERVER)?,
        rounds,
        asked: 0,
        turn: 0,
    };
    let mut rows = Vec::new();
    meter.copies(&mut rows)?;
    meter.hand_overs(&mut rows)?;
    meter.requests(&mut rows)?;
    meter.ask(END, 0, 0)?;
    Ok(rows)
}
