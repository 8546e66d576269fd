//! A path in both directions between two hosts, with faults.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use causeway_proto::trp::Undelivered;
use causeway_proto::{Duration, Instant};

use crate::rng::Rng;

/// What routers and others say of datagrams that do not arrive (ICMP).
#[derive(Clone, Copy, Debug)]
pub struct Icmp {
    /// Chance that a router reports what it drops for the path's sake.
    pub reported: f64,
    /// Bytes of the UDP payload that it quotes.
    pub quoted: usize,
    /// Chance, per datagram sent, that somebody forges a report to one of the hosts.
    pub forged: f64,
}

impl Icmp {
    /// Silence.
    pub const NONE: Icmp = Icmp {
        reported: 0.0,
        quoted: 0,
        forged: 0.0,
    };
}

/// What goes wrong, and how often. Probabilities are per datagram.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Lost.
    pub loss: f64,
    /// Delivered twice.
    pub duplicate: f64,
    /// One to eight bits flipped.
    pub corrupt: f64,
    /// Cut short.
    pub truncate: f64,
    /// Marked (CE), of those that are ECT.
    pub mark: f64,
    /// Bytes that wait for the wire before all that are ECT are marked.
    pub marking_queue: u64,
    /// Those that are ECT are dropped.
    pub drops_ect: bool,
    /// Held back by up to `jitter` more than `delay`, and so overtaken.
    pub reorder: f64,
    /// One-way delay.
    pub delay: Duration,
    /// Most additional delay of a reordered datagram.
    pub jitter: Duration,
    /// Nanoseconds per byte on the wire; 0: no limit.
    pub ns_per_byte: u64,
    /// Bytes that wait for the wire before more are dropped.
    pub queue: u64,
    /// Largest datagram that passes unfragmented.
    pub mtu: usize,
    /// MTU after `mtu_changes_at`.
    pub mtu_later: usize,
    /// When the MTU changes.
    pub mtu_changes_at: Instant,
    /// Intervals in which nothing passes: start, end, which direction (0, 1, or both: 2).
    pub partitions: Vec<(Instant, Instant, usize)>,
    /// Changes of the route: from when on, and the delay from then on.
    pub routes: Vec<(Instant, Duration)>,
    /// What is said of it.
    pub icmp: Icmp,
}

impl Faults {
    /// A perfect network with a delay.
    #[must_use]
    pub fn none() -> Self {
        Faults {
            loss: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            truncate: 0.0,
            mark: 0.0,
            marking_queue: u64::MAX,
            drops_ect: false,
            reorder: 0.0,
            delay: Duration::from_micros(20),
            jitter: Duration::ZERO,
            ns_per_byte: 0,
            queue: u64::MAX,
            mtu: usize::MAX,
            mtu_later: usize::MAX,
            mtu_changes_at: Instant(u64::MAX),
            partitions: Vec::new(),
            routes: Vec::new(),
            icmp: Icmp::NONE,
        }
    }

    /// Faults of every kind, drawn from `rng`: loss up to 20 %, the others up to 10 %.
    #[must_use]
    pub fn random(rng: &mut Rng) -> Self {
        let mut maybe = |most: f64| {
            if rng.chance(0.5) {
                most * rng.below(1000) as f64 / 1000.0
            } else {
                0.0
            }
        };
        let (loss, duplicate, reorder) = (maybe(0.2), maybe(0.1), maybe(0.1));
        let (corrupt, truncate) = (maybe(0.05), maybe(0.05));
        let delay = Duration::from_micros(rng.pick(&[5, 20, 200, 2000, 30_000]));
        let limited = rng.chance(0.3);
        let mut partitions = Vec::new();
        if rng.chance(0.3) {
            let start = rng.below(20_000_000);
            let end = start + rng.between(1_000_000, 800_000_000);
            partitions.push((Instant(start), Instant(end), rng.below(3) as usize));
        }
        // A link that flaps.
        if rng.chance(0.2) {
            let mut at = rng.below(5_000_000);
            for _ in 0..rng.between(1, 6) {
                let up = at + rng.between(10_000, 30_000_000);
                partitions.push((Instant(at), Instant(up), 2));
                at = up + rng.between(10_000, 30_000_000);
            }
        }
        let mut routes = Vec::new();
        if rng.chance(0.2) {
            for _ in 0..rng.between(1, 3) {
                let later = Duration::from_micros(rng.pick(&[5, 20, 200, 2000]));
                routes.push((Instant(rng.below(10_000_000)), later));
            }
            routes.sort_unstable();
        }
        let icmp = Icmp {
            reported: rng.pick(&[0.0, 0.5, 1.0]),
            quoted: rng.pick(&[0, 24, 548]),
            forged: rng.pick(&[0.0, 0.0, 0.5]),
        };
        let shrinks = rng.chance(0.1);
        Faults {
            loss,
            duplicate,
            corrupt,
            truncate,
            mark: 0.0,
            marking_queue: u64::MAX,
            drops_ect: false,
            reorder,
            delay,
            jitter: delay * rng.between(1, 4) as u32,
            ns_per_byte: if limited { rng.pick(&[1, 8, 80]) } else { 0 },
            queue: rng.pick(&[20_000, 100_000, 1_000_000]),
            mtu: usize::MAX,
            mtu_later: if shrinks { 1300 } else { usize::MAX },
            mtu_changes_at: Instant(rng.below(10_000_000)),
            partitions,
            routes,
            icmp,
        }
    }

    /// Whether a checksum is needed to keep wrong bytes out.
    #[must_use]
    pub fn damages(&self) -> bool {
        self.corrupt > 0.0 || self.truncate > 0.0
    }

    fn delay_at(&self, now: Instant) -> Duration {
        let last = self.routes.iter().rev().find(|(from, _)| *from <= now);
        last.map_or(self.delay, |(_, delay)| *delay)
    }

    fn partitioned(&self, now: Instant, to: usize) -> bool {
        let hit = |&&(start, end, which): &&(Instant, Instant, usize)| {
            (which == to || which == 2) && (start..end).contains(&now)
        };
        self.partitions.iter().find(hit).is_some()
    }
}

/// What arrives at a host.
#[derive(Clone, Debug)]
pub enum Arrival {
    /// A datagram, and whether it was marked.
    Datagram(Vec<u8>, bool),
    /// A report of one that it has sent, and what is quoted of that.
    Report(Undelivered, Vec<u8>),
}

/// Something on its way; ordered by arrival, then by when it was sent.
#[derive(Debug)]
struct InTransit {
    at: Instant,
    order: u64,
    to: usize,
    what: Arrival,
}

impl PartialEq for InTransit {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for InTransit {}

impl PartialOrd for InTransit {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for InTransit {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// The path.
#[derive(Debug)]
pub struct Network {
    /// Faults, which a test may change at any time.
    pub faults: Faults,
    rng: Rng,
    order: u64,
    in_transit: BinaryHeap<Reverse<InTransit>>,
    /// When the wire towards each host is free again.
    busy_until: [Instant; 2],
    /// Datagrams dropped by whatever fault.
    pub dropped: u64,
    /// Those that were marked.
    pub marked: u64,
}

impl Network {
    /// A network whose accidents follow from `rng`.
    #[must_use]
    pub fn new(faults: Faults, rng: Rng) -> Self {
        Network {
            faults,
            rng,
            order: 0,
            in_transit: BinaryHeap::new(),
            busy_until: [Instant(0); 2],
            dropped: 0,
            marked: 0,
        }
    }

    /// Takes a datagram for host `to`, which may be fragmented, and is ECT, or not.
    pub fn send(
        &mut self,
        now: Instant,
        to: usize,
        datagram: &[u8],
        (may_fragment, ect): (bool, bool),
    ) {
        let f = &self.faults;
        let mtu = if now >= f.mtu_changes_at {
            f.mtu_later
        } else {
            f.mtu
        };
        let too_long = datagram.len() > mtu && !may_fragment;
        let (cut, lost) = (f.partitioned(now, to), self.rng.chance(f.loss));
        self.forge(now);
        if too_long || cut || lost || ect && self.faults.drops_ect {
            self.dropped += 1;
            let why = if cut {
                Some(Undelivered::Route)
            } else {
                too_long.then_some(Undelivered::TooBig { max_payload: mtu })
            };
            if let Some(why) = why
                && self.rng.chance(self.faults.icmp.reported)
            {
                self.report(now, 1 - to, why, datagram);
            }
            return;
        }
        let marked = ect && self.marks(now, to);
        let Some(leaves) = self.transmit(now, to, datagram.len() as u64) else {
            self.dropped += 1;
            return;
        };
        let copies = if self.rng.chance(self.faults.duplicate) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let mut at = leaves + self.faults.delay_at(now);
            if self.rng.chance(self.faults.reorder) {
                let most = self.faults.jitter.as_nanos() as u64;
                at = at + Duration::from_nanos(self.rng.below(most + 1));
            }
            let bytes = self.damage(datagram);
            self.push(at, to, Arrival::Datagram(bytes, marked));
        }
    }

    fn push(&mut self, at: Instant, to: usize, what: Arrival) {
        self.order += 1;
        self.in_transit.push(Reverse(InTransit {
            at,
            order: self.order,
            to,
            what,
        }));
    }

    /// Tells host `to` what has become of a datagram that it sent.
    pub fn report(&mut self, now: Instant, to: usize, why: Undelivered, datagram: &[u8]) {
        let quoted = self.faults.icmp.quoted.min(datagram.len());
        let at = now + self.faults.delay_at(now);
        self.push(at, to, Arrival::Report(why, datagram[..quoted].to_vec()));
    }

    /// Somebody who knows the addresses, and nothing else, says something to one of the hosts.
    fn forge(&mut self, now: Instant) {
        if !self.rng.chance(self.faults.icmp.forged) {
            return;
        }
        let why = self.rng.pick(&[
            Undelivered::Port,
            Undelivered::Route,
            Undelivered::TooBig { max_payload: 100 },
        ]);
        let quote = (0..self.rng.pick(&[0, 24, 548]))
            .map(|_| self.rng.next_u64() as u8)
            .collect();
        let to = self.rng.below(2) as usize;
        self.push(now, to, Arrival::Report(why, quote));
    }

    /// Whether a datagram that is ECT gets marked.
    fn marks(&mut self, now: Instant, to: usize) -> bool {
        let faults = &self.faults;
        let backlog = self.busy_until[to].since(now).as_nanos() as u64;
        let long = backlog / faults.ns_per_byte.max(1) > faults.marking_queue;
        // A chance of 0 takes no number, so that what else happens stays what it was.
        let marks = long || faults.mark > 0.0 && self.rng.chance(faults.mark);
        self.marked += u64::from(marks);
        marks
    }

    /// When the last byte has left, or `None` if the queue is full.
    fn transmit(&mut self, now: Instant, to: usize, len: u64) -> Option<Instant> {
        let per_byte = self.faults.ns_per_byte;
        if per_byte == 0 {
            return Some(now);
        }
        let backlog = self.busy_until[to].since(now).as_nanos() as u64;
        if backlog / per_byte > self.faults.queue {
            return None;
        }
        let leaves = self.busy_until[to].max(now) + Duration::from_nanos(len * per_byte);
        self.busy_until[to] = leaves;
        Some(leaves)
    }

    fn damage(&mut self, datagram: &[u8]) -> Vec<u8> {
        let mut bytes = datagram.to_vec();
        if self.rng.chance(self.faults.truncate) {
            bytes.truncate(self.rng.below(bytes.len() as u64) as usize);
        }
        if !bytes.is_empty() && self.rng.chance(self.faults.corrupt) {
            for _ in 0..self.rng.between(1, 8) {
                let bit = self.rng.below(bytes.len() as u64 * 8);
                bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
        }
        bytes
    }

    /// When the next datagram arrives.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Instant> {
        self.in_transit.peek().map(|Reverse(d)| d.at)
    }

    /// Takes out what has arrived by `now`, and for whom.
    pub fn receive(&mut self, now: Instant) -> Option<(usize, Arrival)> {
        if self.next_arrival()? > now {
            return None;
        }
        self.in_transit.pop().map(|Reverse(d)| (d.to, d.what))
    }
}
