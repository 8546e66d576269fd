//! Two queue pairs on a ring, their programs, and a clock.

use std::cell::RefCell;
use std::rc::Rc;

use causeway_proto::ring::Link;
use causeway_proto::ulp::Ulp;
use causeway_proto::{Duration, Instant};

use crate::program::{Program, Setup, Shared};
use crate::ring::{Defect, End, Faults, Memory, Written};
use crate::rng::Rng;

/// A side that sleeps looks by itself so often, as the helper does while an answer is due.
const LOOK: Duration = Duration::from_millis(250);
/// Turns without the clock advancing that mean a side spins.
const MAX_TURNS: u32 = 20_000;
/// Turns in which nothing happens that end a side's time.
const QUIET_TURNS: u32 = 2;
/// Passes in which what a dead peer has written is taken.
const LAST_PASSES: usize = 1000;

/// How the peer of a queue pair ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Its process is killed.
    Killed,
    /// Its process exits.
    Exited,
    /// It destroys its queue pair.
    Closed,
}

/// A queue pair, its end of a ring, and its program.
#[derive(Debug)]
pub struct RingNode {
    /// Queue pair and program.
    pub program: Program,
    /// Its state of the protocol.
    pub link: Link,
    end: End,
    /// Nobody listens.
    pub ended: bool,
    stalled_until: Instant,
    look_at: Option<Instant>,
}

impl RingNode {
    fn new(side: usize, setup: Setup, shared: &Rc<Shared>, end: End, rng: &mut Rng) -> Self {
        let mut link = Link::new(setup.psns[1], true);
        link.start(setup.psns[0]);
        RingNode {
            program: Program::new(side, setup, Rc::clone(shared), rng),
            link,
            end,
            ended: false,
            stalled_until: Instant(0),
            look_at: None,
        }
    }

    /// One pass of progress. Returns whether there was any.
    fn progress(&mut self, now: Instant) -> bool {
        let stores = self.end.memory.borrow().stores();
        let received = self.pass(now);
        received || self.end.memory.borrow().stores() != stores
    }

    fn pass(&mut self, now: Instant) -> bool {
        let RingNode { link, end, .. } = self;
        self.program.with(|qp, host| {
            let mut bound = qp.bind(host);
            link.on_timer(&mut bound, now);
            let received = link.receive(end, &mut bound, &|| now);
            // What waits for room goes on when there is some.
            let _ = link.transmit(end, &mut bound, &|| now, |_, _, _| {});
            let waits = bound.expects_answer() && !bound.is_failed();
            link.check_silence(waits, || None, || now);
            received
        })
    }

    /// The program's turn, and its progress, until there is nothing to do. Returns whether there
    /// was anything.
    fn serve(&mut self, now: Instant) -> bool {
        self.program.on_timeout(now);
        let (mut turns, mut quiet) = (0, 0);
        while quiet < QUIET_TURNS {
            let stepped = self.program.step(now, true, self.link.done()[3]);
            // What is carried out or fails here the program finds in its next turn.
            if self.progress(now) || stepped {
                (turns, quiet) = (turns + 1, 0);
            } else {
                quiet += 1;
            }
            assert!(turns < MAX_TURNS, "a side spins at {now:?}");
        }
        let unsettled = self.link.is_unsettled();
        self.link.settle(&mut self.end);
        turns > 0 || unsettled
    }

    /// When it wants attention, whatever the other side does.
    fn timeout(&self) -> Option<Instant> {
        let own = [
            self.link.deadline(),
            self.program.comes_back(),
            self.look_at,
        ];
        own.into_iter()
            .flatten()
            .min()
            .map(|t| t.max(self.stalled_until))
    }
}

/// Two nodes on a ring.
#[derive(Debug)]
pub struct RingWorld {
    /// The nodes.
    pub nodes: [RingNode; 2],
    /// The memory between them.
    pub memory: Rc<RefCell<Memory>>,
    /// The time.
    pub now: Instant,
    /// What goes wrong.
    pub faults: Faults,
    rng: Rng,
}

impl RingWorld {
    /// A world at time zero.
    #[must_use]
    pub fn new(faults: Faults, setups: [Setup; 2], defect: Option<Defect>, rng: &mut Rng) -> Self {
        let memory = Memory::new(faults, defect, rng.fork());
        let shared = Shared::new();
        let node = |side: usize, rng: &mut Rng| {
            let end = End::new(side, Rc::clone(&memory));
            RingNode::new(side, setups[side], &shared, end, rng)
        };
        let nodes = [node(0, rng), node(1, rng)];
        RingWorld {
            nodes,
            memory,
            now: Instant(0),
            faults,
            rng: rng.fork(),
        }
    }

    /// Runs until `done` says so, nothing is left to happen, or `limit` is reached. Returns whether
    /// it was done.
    pub fn run(&mut self, limit: Instant, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        loop {
            while self.turn(0) | self.turn(1) {}
            if done(self) {
                return true;
            }
            let Some(next) = self.next_event().filter(|t| *t <= limit) else {
                return false;
            };
            self.now = next.max(self.now);
            let mut memory = self.memory.borrow_mut();
            memory.now = self.now;
            memory.show();
        }
    }

    /// Serves a side. Returns whether it did anything.
    fn turn(&mut self, side: usize) -> bool {
        let now = self.now;
        let node = &mut self.nodes[side];
        if node.ended || node.stalled_until > now {
            return false;
        }
        let due = node.timeout().is_some_and(|when| when <= now);
        if due {
            self.memory.borrow_mut().look(side);
        }
        if self.memory.borrow().sleeps(side) {
            return false;
        }
        node.look_at = None;
        if self.rng.chance(self.faults.stall) {
            let longest = self.faults.longest_stall.as_nanos() as u64;
            node.stalled_until = now + Duration::from_nanos(1 + self.rng.below(longest));
            return false;
        }
        let served = node.serve(now);
        let mut memory = self.memory.borrow_mut();
        memory.may_sleep(side);
        let looks = memory.defect != Some(Defect::LosesEveryWakeUp);
        if memory.sleeps(side) && looks {
            node.look_at = Some(now + LOOK);
        }
        served
    }

    fn next_event(&self) -> Option<Instant> {
        let stalled = |node: &RingNode| Some(node.stalled_until).filter(|t| *t > self.now);
        let timeouts = self.nodes.iter().filter(|node| !node.ended);
        let timeouts = timeouts.flat_map(|node| [node.timeout(), stalled(node)]);
        timeouts
            .chain([self.memory.borrow().next_seen()])
            .flatten()
            .min()
    }

    /// Side 1 stops for so long, as if its process had been stopped by a signal.
    pub fn stop(&mut self, time: Duration) {
        self.nodes[1].stalled_until = self.now + time;
    }

    /// Side 1 ends.
    pub fn end(&mut self, how: Ending) {
        self.nodes[1].ended = true;
        let [node, peer] = &mut self.nodes;
        let now = self.now;
        if how == Ending::Closed {
            let has_work = peer.program.with(|qp, _| qp.has_segment());
            peer.link.close(&mut peer.end, has_work);
            self.memory.borrow_mut().fence(1);
            return;
        }
        // The broker notices when all that was stored is seen.
        self.memory.borrow_mut().fence(1);
        let mut passes = 0;
        while passes < LAST_PASSES && node.progress(now) {
            passes += 1;
        }
        let RingNode { link, end, .. } = node;
        node.program.with(|qp, host| {
            let mut bound = qp.bind(host);
            link.take_last_ack(end, &mut bound);
            if how == Ending::Killed {
                link.peer_died();
                bound.lost();
            } else {
                link.peer_exited();
            }
        });
        if how == Ending::Exited {
            self.memory.borrow_mut().close_for(1);
        }
    }

    /// Side 1 writes a record of its choice.
    pub fn forge(&mut self, record: Written) {
        self.memory.borrow_mut().forge(1, record);
    }
}
