//! A queue pair stripped to what TRP sees: numbered segments of known content, offered and checked.

use std::slice::Chunks;

use causeway_proto::trp::{Config, Connection, Proof, SendConfig, Transmit, Undelivered};
use causeway_proto::ulp::{Nak, SegMeta, Space, Ulp, Verdict};
use causeway_proto::unit::{Frame, Kind, Unit};
use causeway_proto::{Bytes, Duration, Instant};

use crate::rng::{Rng, mix};
use crate::world::Node;

/// Time a requester waits after a refusal.
const RNR_WAIT: Duration = Duration::from_micros(300);
/// Bytes every segment begins with: number, first number, length.
const STAMP: usize = 20;

/// A stream of messages in one space.
#[derive(Debug)]
struct Stream {
    /// Content of the segments sent, and of those received, follows from these.
    key: u64,
    rx_key: u64,
    /// Segments of each message to send.
    messages: Vec<u64>,
    first: u64,
    /// Segments sent: length of each, from `first`.
    sent: Vec<(SegMeta, usize)>,
    message: usize,
    done_of_message: u64,
    acked: u64,
    /// Segments received, from `rx_first`: placed?
    rx_first: u64,
    placed: Vec<bool>,
    contiguous: u64,
    expected: u64,
}

/// The upper layer.
#[derive(Debug)]
pub struct MockUlp {
    streams: [Stream; 2],
    rng: Rng,
    /// Most bytes of a segment, beside what its datagram takes.
    pub longest: usize,
    /// Chance that the first segment of a request finds no receive.
    pub not_ready: f64,
    /// Chance that an early segment must wait.
    pub later: f64,
    /// Refuse this request for good.
    pub refuse: Option<u64>,
    /// What was refused to us.
    pub refused: Option<(u64, Nak)>,
    /// The peer was declared lost.
    pub lost: bool,
}

/// A plan for the segments of one direction.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Content key.
    pub key: u64,
    /// Segments of each request message.
    pub requests: Vec<u64>,
    /// Segments of each response message.
    pub responses: Vec<u64>,
    /// First PSN of the request space.
    pub psn: u32,
}

impl Plan {
    /// A random plan of at most `messages` messages in each space.
    #[must_use]
    pub fn random(rng: &mut Rng, messages: u64, segments: u64) -> Self {
        let mut list = |n: u64| {
            (0..rng.below(n + 1))
                .map(|_| rng.between(1, segments))
                .collect()
        };
        let (requests, responses) = (list(messages), list(messages));
        // Close to the wrap in a quarter of all cases.
        let psn = if rng.chance(0.25) {
            u32::MAX - rng.below(20) as u32
        } else {
            rng.below(1 << 24) as u32
        };
        Plan {
            key: rng.next_u64(),
            requests,
            responses,
            psn,
        }
    }
}

impl Stream {
    fn new(out: &Plan, inn: &Plan, space: Space) -> Self {
        let pick = |p: &Plan| match space {
            Space::Request => (p.requests.clone(), u64::from(p.psn)),
            Space::Response => (p.responses.clone(), 0),
        };
        let (messages, first) = pick(out);
        let (expected, rx_first) = pick(inn);
        Stream {
            key: mix(out.key ^ space as u64),
            rx_key: mix(inn.key ^ space as u64),
            messages,
            first,
            sent: Vec::new(),
            message: 0,
            done_of_message: 0,
            acked: first,
            rx_first,
            placed: Vec::new(),
            contiguous: rx_first,
            expected: expected.iter().sum(),
        }
    }

    fn next(&mut self, seq: u64, len: usize) -> SegMeta {
        assert_eq!(
            seq,
            self.first + self.sent.len() as u64,
            "numbers have no gaps"
        );
        let total = self.messages[self.message];
        let meta = SegMeta {
            seq,
            first: seq - self.done_of_message,
            last: self.done_of_message + 1 == total,
            direct: false,
        };
        self.done_of_message += 1;
        if meta.last {
            self.message += 1;
            self.done_of_message = 0;
        }
        self.sent.push((meta, len));
        meta
    }

    fn is_complete(&self) -> bool {
        self.message == self.messages.len()
            && self.acked == self.first + self.sent.len() as u64
            && self.contiguous == self.rx_first + self.expected
    }
}

/// The byte at `at` of segment `seq`; both sides know it.
fn content(key: u64, seq: u64, at: usize) -> u8 {
    mix(key ^ seq ^ ((at as u64 / 8) << 40)).to_le_bytes()[at % 8]
}

/// What segment `meta` says; both sides know it.
fn unit(meta: &SegMeta) -> Unit {
    Unit::Send {
        msn: meta.first as u32,
        offset: (meta.seq - meta.first) as u32,
        solicited: meta.seq.is_multiple_of(3),
        invalidate: None,
        imm: meta.seq.is_multiple_of(2).then_some(meta.seq as u32),
    }
}

fn bytes(key: u64, meta: &SegMeta, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|i| content(key, meta.seq, i)).collect();
    bytes[..8].copy_from_slice(&meta.seq.to_le_bytes());
    bytes[8..16].copy_from_slice(&meta.first.to_le_bytes());
    bytes[16..STAMP].copy_from_slice(&(len as u32).to_le_bytes());
    bytes
}

fn write(key: u64, meta: &SegMeta, len: usize, frame: &mut impl Frame) {
    let written = frame
        .put(&unit(meta), meta.last, len)
        .is_some_and(|mut body| body.put(0, &bytes(key, meta, len)));
    assert!(written, "a segment of {len} bytes does not fit again");
}

fn check(key: u64, meta: &SegMeta, got: &Unit, payload: &[u8]) {
    assert_eq!(*got, unit(meta), "segment {meta:?} says something else");
    assert!(payload.len() >= STAMP, "segment {meta:?} was cut short");
    let want = bytes(key, meta, payload.len());
    assert!(payload == want, "segment {meta:?} arrived with wrong bytes");
}

impl MockUlp {
    /// An upper layer that sends `out` and expects `inn`.
    #[must_use]
    pub fn new(out: &Plan, inn: &Plan, rng: Rng) -> Self {
        let stream = |space| Stream::new(out, inn, space);
        MockUlp {
            streams: [stream(Space::Request), stream(Space::Response)],
            rng,
            longest: usize::MAX,
            not_ready: 0.0,
            later: 0.0,
            refuse: None,
            refused: None,
            lost: false,
        }
    }

    /// Whether everything was sent, acknowledged, and received.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.streams.iter().all(Stream::is_complete)
    }

    /// Adds a request of `segments` segments to what is to be sent, as a program that posts.
    pub fn post(&mut self, segments: u64) {
        self.streams[0].messages.push(segments);
    }

    /// Requests received.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.streams[0].contiguous - self.streams[0].rx_first
    }

    /// Whether everything sent was acknowledged.
    #[must_use]
    pub fn is_acked(&self) -> bool {
        let s = &self.streams[0];
        s.message == s.messages.len() && s.acked == s.first + s.sent.len() as u64
    }

    /// Progress in words.
    #[must_use]
    pub fn summary(&self) -> String {
        let stream = |s: &Stream| {
            let (sent, got) = (s.sent.len(), s.contiguous - s.rx_first);
            let total: u64 = s.messages.iter().sum();
            format!(
                "acked {} of {sent} of {total}, got {got} of {}",
                s.acked - s.first,
                s.expected
            )
        };
        format!(
            "requests {}; responses {}",
            stream(&self.streams[0]),
            stream(&self.streams[1])
        )
    }

    fn verdict(&mut self, meta: &SegMeta, in_order: bool) -> Verdict {
        if self.refuse.is_some_and(|r| meta.seq >= r) {
            return if in_order {
                Verdict::Refused(Nak::RemoteAccess)
            } else {
                Verdict::Later
            };
        }
        if !in_order && self.rng.chance(self.later) {
            return Verdict::Later;
        }
        if in_order && meta.seq == meta.first && self.rng.chance(self.not_ready) {
            return Verdict::NotReady(0);
        }
        Verdict::Placed
    }
}

impl Ulp for MockUlp {
    fn has_next(&self, space: Space) -> bool {
        let s = &self.streams[space as usize];
        !self.lost && s.message < s.messages.len()
    }

    fn next(&mut self, space: Space, seq: u64, frame: &mut impl Frame) -> Option<SegMeta> {
        if !self.has_next(space) {
            return None;
        }
        // Mostly full segments, as real messages have them.
        let room = (frame.room(Kind::Send)? as usize).min(self.longest);
        let len = if self.rng.chance(0.7) {
            room
        } else {
            self.rng.between(STAMP as u64, room as u64) as usize
        };
        let stream = &mut self.streams[space as usize];
        let meta = stream.next(seq, len);
        write(stream.key, &meta, len, frame);
        Some(meta)
    }

    fn again(&mut self, space: Space, seq: u64, frame: &mut impl Frame) -> Option<SegMeta> {
        let s = &self.streams[space as usize];
        assert!(seq >= s.acked, "{seq} was acknowledged");
        let (meta, len) = s.sent[(seq - s.first) as usize];
        write(s.key, &meta, len, frame);
        Some(meta)
    }

    fn receive(
        &mut self,
        space: Space,
        meta: SegMeta,
        unit: &Unit,
        payload: Bytes<'_>,
        in_order: bool,
    ) -> Verdict {
        let Stream {
            rx_key, contiguous, ..
        } = self.streams[space as usize];
        check(rx_key, &meta, unit, &payload.to_vec());
        if space == Space::Request {
            if in_order {
                assert_eq!(meta.seq, contiguous, "out of order");
            } else {
                assert!(meta.first <= contiguous && !meta.last && meta.seq > contiguous);
            }
            let verdict = self.verdict(&meta, in_order);
            if verdict != Verdict::Placed {
                return verdict;
            }
        }
        let s = &mut self.streams[space as usize];
        let index = (meta.seq - s.rx_first) as usize;
        if s.placed.len() <= index {
            s.placed.resize(index + 1, false);
        }
        assert!(!s.placed[index], "{space:?} {} placed twice", meta.seq);
        s.placed[index] = true;
        while s.placed.get((s.contiguous - s.rx_first) as usize) == Some(&true) {
            s.contiguous += 1;
        }
        Verdict::Placed
    }

    fn acked(&mut self, space: Space, upto: u64) {
        let s = &mut self.streams[space as usize];
        assert!(upto > s.acked && upto <= s.first + s.sent.len() as u64);
        s.acked = upto;
    }

    fn not_ready(&mut self, seq: u64, _timer: u8, now: Instant) -> Option<Instant> {
        assert!(seq >= self.streams[0].acked);
        Some(now + RNR_WAIT)
    }

    fn expects_answer(&self) -> bool {
        false
    }

    fn is_failed(&self) -> bool {
        false
    }

    fn refused(&mut self, seq: u64, nak: Nak) {
        assert!(self.refused.is_none());
        self.refused = Some((seq, nak));
    }

    fn other_version(&mut self, theirs: u8, _: u8) {
        unreachable!("both sides are of this build, not of version {theirs}");
    }

    fn lost(&mut self) {
        assert!(!self.lost);
        self.lost = true;
    }
}

/// A TRP connection over the mock.
#[derive(Debug)]
pub struct MockNode {
    /// The connection.
    pub link: Connection,
    /// What it carries for.
    pub ulp: MockUlp,
    /// How often the program polls in vain before it goes on with something else.
    pub patience: u32,
    /// How often it has.
    vain: u32,
}

impl MockNode {
    /// A host whose program polls for ever.
    #[must_use]
    pub fn new(link: Connection, ulp: MockUlp) -> Self {
        MockNode {
            link,
            ulp,
            patience: u32::MAX,
            vain: 0,
        }
    }

    /// One of the hosts 1 and 2, which send each other a message of one segment: `me`, with
    /// datagrams of so many bytes, and a `timeout` as the verbs have it.
    #[must_use]
    pub fn of_two(me: u32, max_datagram: usize, timeout: u8, seed: u64) -> Self {
        const PSN: u32 = 77;
        let plan = Plan {
            key: 5,
            requests: vec![1],
            responses: Vec::new(),
            psn: PSN,
        };
        let config = Config {
            max_datagram,
            ..Config::new(me, 3 - me, 0x1000_0000_0000 + u64::from(me), PSN)
        };
        let mut link = Connection::new(config, Instant(0));
        link.start(SendConfig {
            sq_psn: PSN,
            timeout,
            retry_cnt: 7,
        });
        let rng = Rng::new(seed + u64::from(me));
        MockNode::new(link, MockUlp::new(&plan, &plan, rng))
    }
}

impl Node for MockNode {
    fn step(&mut self, _now: Instant) -> bool {
        self.vain = 0;
        false
    }

    fn on_datagram(&mut self, now: Instant, datagram: &[u8]) {
        // Drops are the protocol's business, and counted there.
        let _ = self.link.on_datagram(now, datagram, &mut self.ulp);
    }

    fn on_marked(&mut self, now: Instant, together: Chunks<'_, u8>) {
        let before = self.link.stats().rx_packets;
        self.on_datagrams(now, together);
        let taken = self.link.stats().rx_packets - before;
        self.link.on_marked(taken);
    }

    fn on_report(&mut self, now: Instant, what: Undelivered, quote: &[u8]) {
        self.link
            .undelivered(now, what, Proof::Quote(quote), &mut self.ulp);
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<Transmit> {
        self.link.poll_transmit(now, &mut self.ulp, out)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.link.poll_timeout()
    }

    fn on_timeout(&mut self, now: Instant) {
        self.link.on_timeout(now, &mut self.ulp);
    }

    fn poll_in_vain(&mut self) -> bool {
        self.vain += 1;
        self.vain <= self.patience && self.link.on_vain_pass()
    }
}
