//! Many senders and one receiver behind a switch: a queue that is full when they all begin, and one
//! socket that they share, whose owner is off its processor now and then.
//!
//! All that is sent goes through one link, so no number of senders can do better than one that
//! fills it. How near they come, and how evenly they share it, is what TRP is judged by.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use causeway_proto::trp::{Config, Connection, SendConfig, Senders};
use causeway_proto::{Duration, Instant};

use crate::bulk::Bulk;
use crate::rng::Rng;

/// What the kernel charges a socket's buffer for a datagram beside its bytes (`skb->truesize`):
/// 2,304 bytes for one that fills an Ethernet frame.
const CHARGE: u64 = 832;
/// The receive buffer of an ordinary user's socket (`net.core.rmem_max`, which the kernel doubles).
pub const USERS_BUFFER: u64 = 416 << 10;
/// Longest datagram that anybody sends.
const BUFFER: usize = 65_536;
/// First PSN of each side.
const PSN: u32 = 77;
/// Queue pair number of the receiver's end of the first flow; the sender's are from 1 on.
const RECEIVER: u32 = 0x1000;

/// How often the receiver's process loses its processor, on average, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Stalls {
    /// Average time between two.
    pub every: Duration,
    /// Each one's length.
    pub length: Duration,
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Senders, each with a link of its own to the switch.
    pub senders: usize,
    /// Bytes of a message.
    pub message: u64,
    /// Messages that a sender keeps under way.
    pub depth: u64,
    /// Messages that each sends in all.
    pub messages: u64,
    /// Longest datagram.
    pub datagram: usize,
    /// Nanoseconds per byte of every link.
    pub ns_per_byte: u64,
    /// From a sender to the receiver, and back.
    pub delay: Duration,
    /// Bytes that wait at the switch for the receiver's link before more are dropped.
    pub queue: u64,
    /// Chance that a datagram of a sender's is lost beside.
    pub loss: f64,
    /// The receive buffer of the receiver's socket, as the kernel counts it.
    pub buffer: u64,
    /// The receiver's absences.
    pub stalls: Option<Stalls>,
    /// Both ends of each flow begin at some time within this.
    pub spread: Duration,
    /// The receiver divides its buffer among them.
    pub divides: bool,
}

impl Setup {
    /// So many senders of 64 KiB messages through links of 1 Gbit/s to an ordinary user's socket:
    /// a receiver that is always there, and 256 KB at the switch.
    #[must_use]
    pub fn new(senders: usize) -> Self {
        Setup {
            senders,
            message: 64 << 10,
            depth: 16,
            messages: u64::MAX,
            datagram: 1472,
            ns_per_byte: 8,
            delay: Duration::from_micros(50),
            queue: 256_000,
            loss: 0.0,
            buffer: USERS_BUFFER,
            stalls: None,
            spread: Duration::ZERO,
            divides: true,
        }
    }

    /// The window that the receiver configures: as `device::udp` does.
    fn window(&self) -> u16 {
        let fit = self.buffer / 2 / self.datagram as u64;
        u16::try_from(fit).unwrap_or(u16::MAX).clamp(64, 1024)
    }
}

/// Where a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Switch,
    Receiver,
    Sender,
}

/// A datagram on its way; ordered by arrival, then by when it was sent.
type InTransit = Reverse<(Instant, u64, Place, usize, Vec<u8>)>;

/// One end of a flow.
#[derive(Debug)]
struct End {
    conn: Connection,
    ulp: Bulk,
}

/// The world.
#[derive(Debug)]
pub struct FanIn {
    setup: Setup,
    /// The time.
    pub now: Instant,
    senders: Vec<End>,
    receivers: Vec<End>,
    /// Flows that have not begun, the first to begin last.
    to_begin: Vec<(Instant, usize)>,
    /// Who sends to the receiver's socket.
    sharers: Senders,
    in_transit: BinaryHeap<InTransit>,
    order: u64,
    /// When the senders' links are free again, and the receiver's.
    links: Vec<Instant>,
    link: Instant,
    /// What waits in the socket, and what it is charged for that.
    socket: VecDeque<(usize, Vec<u8>)>,
    charged: u64,
    /// The receiver has no processor before this time, and loses it at that one.
    off_until: Instant,
    off_at: Instant,
    rng: Rng,
    absences: Rng,
    buffer: Vec<u8>,
    /// Datagrams dropped at the switch, by the path's loss, and at the socket.
    pub dropped: [u64; 3],
}

fn end(own: u32, peer: u32, ulp: Bulk, setup: &Setup) -> End {
    let config = Config {
        max_datagram: setup.datagram,
        window: setup.window(),
        ..Config::new(own, peer, 0x1000 + u64::from(own), PSN)
    };
    End {
        conn: Connection::new(config, Instant(0)),
        ulp,
    }
}

impl FanIn {
    /// A world at time zero, in which all begin at once, whose accidents follow from `seed`.
    #[must_use]
    pub fn new(setup: Setup, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let absences = rng.fork();
        let most = setup.spread.as_nanos() as u64 + 1;
        let mut to_begin: Vec<_> = (0..setup.senders)
            .map(|flow| (Instant(rng.below(most)), flow))
            .collect();
        to_begin.sort_unstable_by(|a, b| b.cmp(a));
        let numbers = || (1..).zip(RECEIVER..).take(setup.senders);
        let mut world = FanIn {
            setup,
            now: Instant(0),
            senders: numbers()
                .map(|(own, peer)| {
                    end(
                        own,
                        peer,
                        Bulk::sender(setup.messages, setup.message, setup.depth),
                        &setup,
                    )
                })
                .collect(),
            receivers: numbers()
                .map(|(peer, own)| end(own, peer, Bulk::receiver(), &setup))
                .collect(),
            to_begin,
            sharers: Senders::new(setup.buffer as usize / 2),
            in_transit: BinaryHeap::new(),
            order: 0,
            links: vec![Instant(0); setup.senders],
            link: Instant(0),
            socket: VecDeque::new(),
            charged: 0,
            off_until: Instant(0),
            off_at: Instant(u64::MAX),
            rng,
            absences,
            buffer: vec![0; BUFFER],
            dropped: [0; 3],
        };
        world.plan_absence();
        world
    }

    /// Both ends of a flow are ready to send.
    fn begin(&mut self, flow: usize) {
        for place in [Place::Receiver, Place::Sender] {
            self.end(place, flow).conn.start(SendConfig {
                sq_psn: PSN,
                timeout: 14,
                retry_cnt: 7,
            });
            self.transmit(flow, place);
        }
    }

    /// Runs until every message has been acknowledged. Returns whether that was so by `limit`.
    pub fn run(&mut self, limit: Instant) -> bool {
        while !self.senders.iter().all(|end| end.ulp.is_complete()) {
            let Some(next) = self.next_event().filter(|next| *next <= limit) else {
                self.now = limit;
                return false;
            };
            self.now = next.max(self.now);
            self.pass();
        }
        true
    }

    /// Bytes of each sender's messages that have been acknowledged.
    #[must_use]
    pub fn delivered(&self) -> Vec<u64> {
        self.senders.iter().map(|end| end.ulp.delivered()).collect()
    }

    /// Senders whose peer was declared lost.
    #[must_use]
    pub fn lost(&self) -> usize {
        let ends = self.senders.iter().chain(&self.receivers);
        ends.filter(|end| end.ulp.is_lost()).count()
    }

    /// What the senders say of themselves, one a line.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut lines = format!("at {:?}, dropped {:?}", self.now, self.dropped);
        for end in &self.senders {
            let stats = end.conn.stats();
            lines += &format!(
                "\n{} KiB, {} again, {} time-outs, window {}, {:?}",
                end.ulp.delivered() >> 10,
                stats.retransmits,
                stats.timeouts,
                stats.congestion_window,
                stats.smoothed_rtt
            );
        }
        lines
    }

    fn plan_absence(&mut self) {
        if let Some(stalls) = self.setup.stalls {
            let most = 2 * stalls.every.as_nanos() as u64;
            self.off_at = self.off_until + Duration::from_nanos(self.absences.below(most));
        }
    }

    fn is_off(&self) -> bool {
        self.now < self.off_until
    }

    fn next_event(&self) -> Option<Instant> {
        let arrival = self.in_transit.peek().map(|Reverse(d)| d.0);
        let senders = self.senders.iter().map(|end| end.conn.poll_timeout());
        let receivers = self.receivers.iter().map(|end| end.conn.poll_timeout());
        let there = receivers.filter(|_| !self.is_off());
        let back = self.is_off().then_some(self.off_until);
        let begin = self.to_begin.last().map(|(at, _)| *at);
        let times = senders.chain(there).chain([arrival, back, begin]);
        times.flatten().min()
    }

    /// All that happens at one time.
    fn pass(&mut self) {
        if self.now >= self.off_at
            && let Some(stalls) = self.setup.stalls
        {
            self.off_until = self.now + stalls.length;
            self.plan_absence();
        }
        while let Some((_, flow)) = self.to_begin.pop_if(|(at, _)| *at <= self.now) {
            self.begin(flow);
        }
        while self
            .in_transit
            .peek()
            .is_some_and(|Reverse(d)| d.0 <= self.now)
        {
            let Some(Reverse((_, _, place, flow, datagram))) = self.in_transit.pop() else {
                break;
            };
            match place {
                Place::Switch => self.forward(flow, datagram),
                Place::Receiver => self.queue(flow, datagram),
                Place::Sender => {
                    let end = &mut self.senders[flow];
                    // Drops are the protocol's business.
                    let _ = end.conn.on_datagram(self.now, &datagram, &mut end.ulp);
                    self.transmit(flow, Place::Sender);
                }
            }
        }
        self.time_out(Place::Sender);
        if !self.is_off() {
            self.receive();
            self.time_out(Place::Receiver);
        }
    }

    /// A datagram has reached the switch.
    fn forward(&mut self, flow: usize, datagram: Vec<u8>) {
        let waiting = self.link.since(self.now).as_nanos() as u64 / self.setup.ns_per_byte;
        let size = datagram.len() as u64;
        if waiting + size > self.setup.queue {
            self.dropped[0] += 1;
        } else if self.rng.chance(self.setup.loss) {
            self.dropped[1] += 1;
        } else {
            self.link =
                self.link.max(self.now) + Duration::from_nanos(size * self.setup.ns_per_byte);
            self.push(self.link, Place::Receiver, flow, datagram);
        }
    }

    /// A datagram has reached the receiver's host.
    fn queue(&mut self, flow: usize, datagram: Vec<u8>) {
        let charge = datagram.len() as u64 + CHARGE;
        if self.charged + charge > self.setup.buffer {
            self.dropped[2] += 1;
            return;
        }
        self.charged += charge;
        self.socket.push_back((flow, datagram));
    }

    /// The receiver takes all that waits for it, and answers then: it sleeps where nothing does.
    fn receive(&mut self) {
        let mut touched = Vec::new();
        self.charged = 0;
        for (flow, datagram) in std::mem::take(&mut self.socket) {
            let End { conn, ulp } = &mut self.receivers[flow];
            let _ = conn.on_datagram(self.now, &datagram, ulp);
            if self.setup.divides {
                conn.share_buffer(self.now, &mut self.sharers);
            }
            touched.push(flow);
        }
        touched.sort_unstable();
        touched.dedup();
        for flow in touched {
            self.receivers[flow].conn.give_up_reply();
            self.transmit(flow, Place::Receiver);
        }
    }

    fn time_out(&mut self, place: Place) {
        for flow in 0..self.setup.senders {
            let now = self.now;
            let End { conn, ulp } = self.end(place, flow);
            if conn.poll_timeout().is_some_and(|at| at <= now) {
                conn.on_timeout(now, ulp);
                self.transmit(flow, place);
            }
        }
    }

    fn end(&mut self, place: Place, flow: usize) -> &mut End {
        match place {
            Place::Receiver => &mut self.receivers[flow],
            _ => &mut self.senders[flow],
        }
    }

    /// Sends what an end has to send.
    fn transmit(&mut self, flow: usize, place: Place) {
        let mut buffer = std::mem::take(&mut self.buffer);
        loop {
            let now = self.now;
            let End { conn, ulp } = self.end(place, flow);
            let Some(sent) = conn.poll_transmit(now, ulp, &mut buffer) else {
                break;
            };
            let datagram = buffer[..sent.len].to_vec();
            if place == Place::Receiver {
                self.push(now, Place::Sender, flow, datagram);
                continue;
            }
            let time = Duration::from_nanos(sent.len as u64 * self.setup.ns_per_byte);
            self.links[flow] = self.links[flow].max(now) + time;
            // The first link is as long as nothing: the delay is that of both.
            self.in_order(self.links[flow], Place::Switch, flow, datagram);
        }
        self.buffer = buffer;
    }

    fn push(&mut self, leaves: Instant, place: Place, flow: usize, datagram: Vec<u8>) {
        self.in_order(leaves + self.setup.delay, place, flow, datagram);
    }

    fn in_order(&mut self, at: Instant, place: Place, flow: usize, datagram: Vec<u8>) {
        self.order += 1;
        self.in_transit
            .push(Reverse((at, self.order, place, flow, datagram)));
    }
}

/// Jain's index of fairness: 1 where all shares are equal, 1/n where one has all.
#[must_use]
pub fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|x| *x as f64).sum();
    let squares: f64 = shares.iter().map(|x| (*x as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_has_its_bounds() {
        assert!((jain(&[5, 5, 5, 5]) - 1.0).abs() < 1e-9);
        assert!((jain(&[9, 0, 0]) - 1.0 / 3.0).abs() < 1e-9);
    }
}
