//! Two hosts, a network and a clock.

use causeway_proto::trp::{Transmit, Undelivered};
use causeway_proto::{Duration, Instant};

use crate::network::{Arrival, Network};
use crate::rng::Rng;

/// Longest datagram that any host sends.
const BUFFER: usize = 65_536;
/// Rounds without the clock advancing that mean a host spins.
const MAX_ROUNDS: u32 = 20_000;

/// Turns in which a program does nothing, and nothing is sent, that end its time.
const QUIET_TURNS: u32 = 2;

/// What runs on a host.
pub trait Node {
    /// The program's turn: posts work, polls completions. Returns whether there were any.
    fn step(&mut self, now: Instant) -> bool;
    /// A datagram has arrived.
    fn on_datagram(&mut self, now: Instant, datagram: &[u8]);
    /// A datagram that it has sent did not arrive: why, and what the report quotes of it.
    fn on_report(&mut self, now: Instant, what: Undelivered, quote: &[u8]);
    /// Whether nobody has the port that datagrams to it go to.
    fn is_deserted(&self) -> bool {
        false
    }
    /// Yields a datagram to send.
    fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<Transmit>;
    /// When to call `on_timeout`.
    fn poll_timeout(&self) -> Option<Instant>;
    /// Time has passed.
    fn on_timeout(&mut self, now: Instant);
    /// The program has nothing else to do, and polls. Returns whether that may have led to
    /// something to send, or will if it polls again.
    fn poll_in_vain(&mut self) -> bool;
}

/// A simulation of two nodes.
#[derive(Debug)]
pub struct World<N> {
    /// The hosts.
    pub nodes: [N; 2],
    /// The path between them.
    pub network: Network,
    /// The time.
    pub now: Instant,
    /// Hosts lose their CPU now and then, with this probability at each arrival.
    pub stall: f64,
    /// Longest such pause.
    pub max_stall: Duration,
    stalled_until: [Instant; 2],
    rng: Rng,
    buffer: Vec<u8>,
    rounds: u32,
}

impl<N: Node> World<N> {
    /// A world at time zero.
    #[must_use]
    pub fn new(nodes: [N; 2], network: Network, rng: Rng) -> Self {
        World {
            nodes,
            network,
            now: Instant(0),
            stall: 0.0,
            max_stall: Duration::ZERO,
            stalled_until: [Instant(0); 2],
            rng,
            buffer: vec![0; BUFFER],
            rounds: 0,
        }
    }

    /// Runs until `done` says so, nothing is left to happen, or `limit` is reached. Returns whether
    /// it was done.
    ///
    /// # Panics
    /// If a node spins: wants attention again and again without time passing.
    pub fn run(&mut self, limit: Instant, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        loop {
            for i in 0..2 {
                if self.stalled_until[i] <= self.now {
                    self.serve(i);
                }
            }
            if done(self) {
                return true;
            }
            let Some(next) = self.next_event().filter(|t| *t <= limit) else {
                return false;
            };
            self.rounds = if next > self.now { 0 } else { self.rounds + 1 };
            assert!(self.rounds < MAX_ROUNDS, "a node spins at {:?}", self.now);
            self.now = next.max(self.now);
            self.deliver();
        }
    }

    /// Takes the CPU from a host until `until`.
    pub fn pause(&mut self, host: usize, until: Instant) {
        self.stalled_until[host] = until;
    }

    fn next_event(&self) -> Option<Instant> {
        let timeouts = self.nodes.iter().zip(&self.stalled_until).map(|(n, s)| {
            if *s > self.now {
                Some(*s)
            } else {
                n.poll_timeout()
            }
        });
        timeouts
            .chain([self.network.next_arrival()])
            .flatten()
            .min()
    }

    fn serve(&mut self, i: usize) {
        if self.nodes[i].poll_timeout().is_some_and(|t| t <= self.now) {
            self.nodes[i].on_timeout(self.now);
        }
        // Sending may complete something, which the program polls and so has more to send.
        let mut quiet = 0;
        while quiet < QUIET_TURNS {
            let stepped = self.nodes[i].step(self.now);
            let sent = self.transmit(i);
            quiet = if stepped || sent { 0 } else { quiet + 1 };
        }
        while self.nodes[i].poll_in_vain() {
            self.transmit(i);
        }
    }

    /// Sends what a host has to send. Returns whether that was anything.
    fn transmit(&mut self, i: usize) -> bool {
        let mut any = false;
        while let Some(t) = self.nodes[i].poll_transmit(self.now, &mut self.buffer) {
            self.network
                .send(self.now, 1 - i, &self.buffer[..t.len], t.may_fragment);
            any = true;
        }
        any
    }

    fn deliver(&mut self) {
        while let Some((to, arrival)) = self.network.receive(self.now) {
            if self.rng.chance(self.stall) {
                let pause = self.rng.below(self.max_stall.as_nanos() as u64 + 1);
                self.stalled_until[to] = self.now + Duration::from_nanos(pause);
            }
            // A stalled host's socket still buffers: what arrived is processed when it wakes, which
            // for the protocol is the same as processing it now and answering late.
            let node = &mut self.nodes[to];
            match arrival {
                Arrival::Report(what, quote) => node.on_report(self.now, what, &quote),
                Arrival::Datagram(bytes) if node.is_deserted() => {
                    let why = Undelivered::Port;
                    self.network.report(self.now, 1 - to, why, &bytes);
                }
                Arrival::Datagram(bytes) => node.on_datagram(self.now, &bytes),
            }
        }
    }
}
