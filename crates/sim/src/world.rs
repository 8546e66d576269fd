//! Two hosts, a network and a clock.

use std::hash::{DefaultHasher, Hash};
use std::slice::Chunks;

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
    /// Datagrams have arrived together, in this order.
    fn on_datagrams(&mut self, now: Instant, together: Chunks<'_, u8>) {
        for datagram in together {
            self.on_datagram(now, datagram);
        }
    }
    /// As [`Node::on_datagrams`], of marked ones.
    fn on_marked(&mut self, now: Instant, together: Chunks<'_, u8>) {
        self.on_datagrams(now, together);
    }
    /// A datagram that it has sent did not arrive: why, and what the report quotes of it.
    fn on_report(&mut self, now: Instant, what: Undelivered, quote: &[u8]);
    /// Whether nobody has the port that datagrams to it go to.
    fn is_deserted(&self) -> bool {
        false
    }
    /// Yields a datagram to send.
    fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<Transmit>;
    /// Yields datagrams that continue the one of `len` bytes at the start of `out`, just yielded;
    /// how many ([`Connection::poll_run`](causeway_proto::trp::Connection::poll_run)).
    fn poll_run(&mut self, _now: Instant, _out: &mut [u8], _len: usize) -> usize {
        0
    }
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
    /// Datagrams are sent and received in runs where they can be.
    pub runs: bool,
    /// Of all that was sent, and when.
    pub sent: DefaultHasher,
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
            runs: true,
            sent: DefaultHasher::new(),
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
            let mut more = 0;
            if self.runs {
                more = self.nodes[i].poll_run(self.now, &mut self.buffer, t.len);
            }
            for datagram in self.buffer.chunks(t.len).take(1 + more) {
                (self.now, datagram).hash(&mut self.sent);
                let how = (t.may_fragment, t.ecn);
                self.network.send(self.now, 1 - i, datagram, how);
            }
            any = true;
        }
        any
    }

    fn deliver(&mut self) {
        let mut together = Together::default();
        while let Some((to, arrival)) = self.network.receive(self.now) {
            if self.rng.chance(self.stall) {
                let pause = self.rng.below(self.max_stall.as_nanos() as u64 + 1);
                self.stalled_until[to] = self.now + Duration::from_nanos(pause);
            }
            // A stalled host's socket still buffers: what arrived is processed when it wakes, which
            // for the protocol is the same as processing it now and answering late.
            let deserted = self.nodes[to].is_deserted();
            if let Arrival::Datagram(bytes, marked) = &arrival
                && !deserted
                && together.takes(to, bytes, *marked)
            {
                continue;
            }
            self.hand_over(&mut together);
            match arrival {
                Arrival::Report(what, quote) => self.nodes[to].on_report(self.now, what, &quote),
                Arrival::Datagram(bytes, _) if deserted => {
                    let why = Undelivered::Port;
                    self.network.report(self.now, 1 - to, why, &bytes);
                }
                Arrival::Datagram(bytes, marked) if !bytes.is_empty() => {
                    together = Together {
                        to,
                        marked,
                        joins: self.runs,
                        each: bytes.len(),
                        bytes,
                    };
                }
                Arrival::Datagram(bytes, _) => self.nodes[to].on_datagram(self.now, &bytes),
            }
        }
        self.hand_over(&mut together);
    }

    /// Gives a host what has arrived together.
    fn hand_over(&mut self, together: &mut Together) {
        let Together {
            to,
            each,
            marked,
            bytes,
            ..
        } = std::mem::take(together);
        if bytes.is_empty() {
            return;
        }
        let (node, bytes) = (&mut self.nodes[to], bytes.chunks(each));
        if marked {
            node.on_marked(self.now, bytes);
        } else {
            node.on_datagrams(self.now, bytes);
        }
    }
}

/// Datagrams that arrive at one time, joined as the kernel joins them: all but the last have the
/// same length, and all are marked, or none.
#[derive(Debug, Default)]
struct Together {
    to: usize,
    each: usize,
    marked: bool,
    /// Others may join them.
    joins: bool,
    bytes: Vec<u8>,
}

impl Together {
    /// Joins a datagram to them, if it may be.
    fn takes(&mut self, to: usize, datagram: &[u8], marked: bool) -> bool {
        let joins = !self.bytes.is_empty()
            && self.joins
            && (to, marked) == (self.to, self.marked)
            && self.bytes.len().is_multiple_of(self.each)
            && (1..=self.each).contains(&datagram.len())
            && self.bytes.len() + datagram.len() <= BUFFER;
        if joins {
            self.bytes.extend_from_slice(datagram);
        }
        joins
    }
}
