//! A byte stream, as the kernel's TCP sockets are one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use causeway_proto::{Duration, Instant};
use causeway_sim::rng::Rng;

use super::carrier::Defect;

/// What a stream is like.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Bytes that each direction has room for.
    pub capacity: usize,
    /// Longest time on the way.
    pub delay: Duration,
    /// Most bytes that are read at a time.
    pub cut: u64,
    /// Chance, each time a side is served, that it loses its processor, and longest time of that.
    pub stall: f64,
    /// See there.
    pub longest_stall: Duration,
}

impl Faults {
    /// Faults of every kind.
    pub fn random(rng: &mut Rng) -> Self {
        Faults {
            capacity: rng.pick(&[7, 500, 5000, 64 << 10, 512 << 10]),
            delay: Duration::from_nanos(rng.pick(&[0, 1000, 100_000, 10_000_000])),
            cut: rng.pick(&[20, 100, 5000, 1 << 20]),
            stall: rng.pick(&[0.0, 0.0, 0.01, 0.1]),
            longest_stall: Duration::from_micros(rng.pick(&[10, 1000, 20_000])),
        }
    }
}

/// One direction.
#[derive(Debug, Default)]
struct Pipe {
    /// Bytes written and not read, and when they arrive.
    chunks: VecDeque<(Instant, Vec<u8>)>,
    used: usize,
    /// The writer has said that there is no more.
    shut: bool,
    /// Nobody reads any more.
    deaf: bool,
}

/// Both directions; side 0 writes the first one.
#[derive(Debug)]
pub struct Wire {
    pipes: [Pipe; 2],
    faults: Faults,
    defect: Option<Defect>,
    rng: Rng,
}

/// One side's end.
#[derive(Debug)]
pub struct Socket {
    side: usize,
    wire: Rc<RefCell<Wire>>,
}

impl Wire {
    /// A connection.
    pub fn new(faults: Faults, defect: Option<Defect>, rng: Rng) -> Rc<RefCell<Wire>> {
        Rc::new(RefCell::new(Wire {
            pipes: Default::default(),
            faults,
            defect,
            rng,
        }))
    }

    /// When something arrives after `now`.
    pub fn next_arrival(&self, now: Instant) -> Option<Instant> {
        let chunks = self.pipes.iter().flat_map(|pipe| &pipe.chunks);
        chunks.map(|(at, _)| *at).filter(|at| *at > now).min()
    }

    /// The process of `side` is gone: its kernel says so, after some of what it had written.
    pub fn kill(&mut self, side: usize) {
        let keep = self.rng.below(self.pipes[side].chunks.len() as u64 + 1);
        self.pipes[side].chunks.truncate(keep as usize);
        self.pipes[side].shut = true;
        self.pipes[1 - side].deaf = true;
    }

    fn has(&mut self, defect: Defect) -> bool {
        self.defect == Some(defect) && self.rng.chance(0.05)
    }

    fn spoil(&mut self, bytes: &mut Vec<u8>) {
        let at = self.rng.below(bytes.len() as u64) as usize;
        if self.has(Defect::ChangesBytes) {
            bytes[at] ^= 1;
        }
        if self.has(Defect::RepeatsBytes) {
            bytes.extend_from_within(at..);
        }
        if self.has(Defect::LosesBytes) {
            bytes.remove(at);
        }
    }
}

impl Socket {
    /// One of the two.
    pub fn new(side: usize, wire: Rc<RefCell<Wire>>) -> Self {
        Socket { side, wire }
    }

    /// Writes as much as there is room for, and says how much that was.
    pub fn write(&mut self, now: Instant, bytes: &[u8]) -> usize {
        let wire = &mut *self.wire.borrow_mut();
        let pipe = &wire.pipes[self.side];
        if pipe.deaf || pipe.shut {
            return bytes.len();
        }
        let len = bytes.len().min(wire.faults.capacity - pipe.used);
        if len == 0 {
            return 0;
        }
        let mut chunk = bytes[..len].to_vec();
        wire.spoil(&mut chunk);
        let delay = wire.rng.below(wire.faults.delay.as_nanos() as u64 + 1);
        let pipe = &mut wire.pipes[self.side];
        let last = pipe.chunks.back().map_or(now, |(at, _)| *at);
        let at = (now + Duration::from_nanos(delay)).max(last);
        pipe.used += len;
        pipe.chunks.push_back((at, chunk));
        len
    }

    /// Reads some of what has arrived: `None` if there is nothing yet, 0 at the end.
    pub fn read(&mut self, now: Instant, buffer: &mut [u8]) -> Option<usize> {
        let wire = &mut *self.wire.borrow_mut();
        let most = (buffer.len() as u64).min(1 + wire.rng.below(wire.faults.cut)) as usize;
        let pipe = &mut wire.pipes[1 - self.side];
        let mut len = 0;
        while len < most {
            let Some((_, chunk)) = pipe.chunks.front_mut().filter(|(at, _)| *at <= now) else {
                break;
            };
            let part = chunk.len().min(most - len);
            buffer[len..len + part].copy_from_slice(&chunk[..part]);
            chunk.drain(..part);
            if chunk.is_empty() {
                pipe.chunks.pop_front();
            }
            len += part;
        }
        pipe.used = pipe.used.saturating_sub(len);
        (len > 0 || pipe.shut && pipe.chunks.is_empty()).then_some(len)
    }

    /// Says that nothing more will be written.
    pub fn shut(&mut self) {
        self.wire.borrow_mut().pipes[self.side].shut = true;
    }
}
