//! Two queue pairs over a byte stream, their programs, and a clock.

use std::cell::RefCell;
use std::rc::Rc;

use causeway_proto::{Duration, Instant};
use causeway_sim::program::{Program, Setup, Shared};
use causeway_sim::rng::Rng;

use super::carrier::{Carrier, Defect};
use super::socket::{Faults, Socket, Wire};

/// Turns without the clock advancing that mean a side spins: a stream may be cut into single bytes.
const MAX_TURNS: u32 = 1_000_000;
/// Events without the clock advancing that mean the same.
const MAX_ROUNDS: u32 = 1000;

/// A queue pair, its carrier and its program.
#[derive(Debug)]
pub struct StreamNode {
    /// Queue pair and program.
    pub program: Program,
    /// What carries for it.
    pub carrier: Carrier,
    socket: Socket,
    ended: bool,
    stalled_until: Instant,
}

impl StreamNode {
    fn serve(&mut self, now: Instant) -> bool {
        self.program.on_timeout(now);
        let stepped = self.program.step(now, true, self.carrier.refusals);
        let StreamNode {
            carrier, socket, ..
        } = self;
        let progress = self
            .program
            .with(|qp, host| carrier.progress(socket, &mut qp.bind(host), now));
        progress || stepped
    }

    fn timeout(&self) -> Option<Instant> {
        let own = [self.carrier.deadline(), self.program.comes_back()];
        let next = own.into_iter().flatten().min();
        next.map(|t| t.max(self.stalled_until))
    }
}

/// Two nodes and the stream between them.
#[derive(Debug)]
pub struct StreamWorld {
    /// The nodes.
    pub nodes: [StreamNode; 2],
    /// The time.
    pub now: Instant,
    /// What the stream is like.
    pub faults: Faults,
    wire: Rc<RefCell<Wire>>,
    /// Events since the clock advanced.
    rounds: u32,
    rng: Rng,
}

impl StreamWorld {
    /// A world at time zero.
    pub fn new(faults: Faults, setups: [Setup; 2], defect: Option<Defect>, rng: &mut Rng) -> Self {
        let wire = Wire::new(faults, defect, rng.fork());
        let shared = Shared::new();
        let nodes = [0, 1].map(|side| StreamNode {
            program: Program::new(side, setups[side], Rc::clone(&shared), rng),
            carrier: Carrier::new(setups[side].psns, defect),
            socket: Socket::new(side, Rc::clone(&wire)),
            ended: false,
            stalled_until: Instant(0),
        });
        StreamWorld {
            nodes,
            now: Instant(0),
            faults,
            wire,
            rounds: 0,
            rng: rng.fork(),
        }
    }

    /// Runs until `done` says so, nothing is left to happen, or `limit` is reached. Returns whether
    /// it was done.
    pub fn run(&mut self, limit: Instant, done: impl Fn(&Self) -> bool) -> bool {
        loop {
            let mut turns = 0;
            // Twice: what is carried out in one turn the program finds in its next.
            let mut quiet = 0;
            while quiet < 2 {
                quiet = if self.turn(0) | self.turn(1) {
                    0
                } else {
                    quiet + 1
                };
                turns += 1;
                assert!(turns < MAX_TURNS, "a side spins at {:?}", self.now);
            }
            if done(self) {
                return true;
            }
            let Some(next) = self.next_event().filter(|t| *t <= limit) else {
                return false;
            };
            self.rounds = if next > self.now { 0 } else { self.rounds + 1 };
            assert!(self.rounds < MAX_ROUNDS, "a side spins at {:?}", self.now);
            self.now = next.max(self.now);
        }
    }

    fn turn(&mut self, side: usize) -> bool {
        let node = &mut self.nodes[side];
        if node.ended || node.stalled_until > self.now {
            return false;
        }
        if self.rng.chance(self.faults.stall) {
            let longest = self.faults.longest_stall.as_nanos() as u64;
            node.stalled_until = self.now + Duration::from_nanos(1 + self.rng.below(longest));
            return false;
        }
        node.serve(self.now)
    }

    fn next_event(&self) -> Option<Instant> {
        let stalled = |node: &StreamNode| Some(node.stalled_until).filter(|t| *t > self.now);
        let alive = self.nodes.iter().filter(|node| !node.ended);
        let times = alive.flat_map(|node| [node.timeout(), stalled(node)]);
        let arrival = self.wire.borrow().next_arrival(self.now);
        times.chain([arrival]).flatten().min()
    }

    /// Side 1 ends: its process is killed, or it destroys its queue pair.
    pub fn end(&mut self) {
        self.nodes[1].ended = true;
        self.wire.borrow_mut().kill(1);
    }
}
