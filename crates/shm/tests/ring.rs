//! The ring against an oracle, under threads, and against a hostile peer.
#![cfg(not(any(loom, shuttle)))]

use causeway_shm::Corrupt;
use causeway_shm::layout as l;
use causeway_shm::{Attention, Ring, Segment, Side};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

const CASES: u32 = 256;
const LAPS: u64 = 200;
const OPS: usize = 400;

fn pair(capacity: usize) -> (Ring, Ring) {
    let (_, a, b) = shared(capacity);
    (a, b)
}

fn shared(capacity: usize) -> (Arc<Segment>, Ring, Ring) {
    let segment = Segment::create("test", l::ring_len(capacity)).unwrap();
    let segment = Arc::new(Ring::format(segment, capacity).unwrap());
    let a = Ring::attach(Arc::clone(&segment), Side::A).unwrap();
    let b = Ring::attach(Arc::clone(&segment), Side::B).unwrap();
    (segment, a, b)
}

/// A body that depends on its number, so that a wrong one is noticed.
fn body(seq: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (seq.wrapping_mul(31).wrapping_add(i * 7) & 0xFF) as u8)
        .collect()
}

/// A short body as words; what is beyond it is rubbish.
fn short(body: &[u8]) -> [u64; l::SHORT_WORDS] {
    let mut bytes = [0xA5; l::SHORT_BODY];
    bytes[..body.len()].copy_from_slice(body);
    std::array::from_fn(|i| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().unwrap()))
}

fn send(ring: &mut Ring, seq: u64, len: usize) -> bool {
    let Some(mut slot) = ring.tx.reserve(len, len).unwrap() else {
        return false;
    };
    slot.write(0, &body(seq, len));
    slot.commit((seq % 7) as u8, (seq % 5) as u8, seq, len);
    true
}

/// Takes one record and checks it; its number and length.
fn receive(ring: &mut Ring) -> Option<(u64, usize)> {
    let record = ring.rx.peek().unwrap()?;
    let (seq, len) = (record.seq, record.len());
    let mut got = vec![0; len];
    record.read(0, &mut got);
    assert_eq!(
        (record.kind, record.flags),
        ((seq % 7) as u8, (seq % 5) as u8)
    );
    assert_eq!(got, body(seq, len));
    ring.rx.consume();
    Some((seq, len))
}

/// As [`receive`], the short way where `next`, which is to come, is long.
fn receive_any(ring: &mut Ring, next: Option<(u64, usize)>) -> Option<(u64, usize)> {
    let Some((seq, len)) = next.filter(|(_, len)| *len > l::SHORT_BODY) else {
        assert!(ring.rx.peek_long(0, 0).is_none());
        return receive(ring);
    };
    let (kind, flags) = ((seq % 7) as u8, (seq % 5) as u8);
    assert!(ring.rx.peek_long(kind + 1, flags).is_none());
    let Some(record) = ring.rx.peek_long(kind, flags) else {
        // Behind padding it is not found.
        return receive(ring);
    };
    let mut got = vec![0; record.len()];
    record.read(0, &mut got);
    assert_eq!((record.seq, &got), (seq, &body(seq, len)));
    let ack = record.ack;
    ring.rx.consume_long(ack, len);
    Some((seq, len))
}

#[derive(Clone, Debug)]
enum Op {
    /// Reserves between the two lengths, commits a part of it.
    Send {
        min: usize,
        max: usize,
        part: usize,
    },
    /// Writes and publishes a record of one cell, if nothing is waiting to be published.
    Short(usize),
    /// Writes a record and publishes it, with what waits for that.
    Alone(usize),
    /// Reserves and scribbles, but does not commit.
    Abandon(usize),
    /// The same of a record by itself.
    AbandonAlone(usize),
    Publish,
    Receive(usize),
    Ack(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..300usize, 0..2100usize, 0..=100usize)
            .prop_map(|(min, max, part)| Op::Send { min, max, part }),
        2 => (0..=l::SHORT_BODY).prop_map(Op::Short),
        3 => (0..1200usize).prop_map(Op::Alone),
        1 => (0..1000usize).prop_map(Op::Abandon),
        1 => (0..1000usize).prop_map(Op::AbandonAlone),
        2 => Just(Op::Publish),
        4 => (1..20usize).prop_map(Op::Receive),
        1 => (0..50u64).prop_map(Op::Ack),
    ]
}

/// The ring and a queue that can't be wrong, side by side.
struct Model {
    from: Ring,
    to: Ring,
    committed: Vec<(u64, usize)>,
    visible: VecDeque<(u64, usize)>,
    seq: u64,
    ack: u64,
}

impl Model {
    fn step(&mut self, op: Op) {
        match op {
            Op::Send { min, max, part } => self.send(min, max, part),
            Op::Short(len) => self.send_short(len),
            Op::Alone(len) => self.send_alone(len),
            Op::AbandonAlone(len) => {
                if let Some(mut slot) = self.from.tx.reserve_alone(len) {
                    slot.write(0, &vec![0xFF; len]);
                }
            }
            Op::Abandon(len) => {
                if let Some(mut slot) = self.from.tx.reserve(len, len).unwrap() {
                    slot.write(0, &vec![0xFF; len]);
                }
            }
            Op::Publish => {
                assert_eq!(self.from.tx.publish(), !self.committed.is_empty());
                self.visible.extend(self.committed.drain(..));
            }
            Op::Receive(n) => {
                for _ in 0..n {
                    let next = self.visible.pop_front();
                    assert_eq!(receive_any(&mut self.to, next), next);
                }
            }
            Op::Ack(more) => {
                self.ack += more;
                self.from.set_req_ack(self.ack);
                let told = self.from.publish_ack();
                assert!(!told || self.to.req_ack() == self.ack);
                assert!(!self.from.ack_pending());
            }
        }
    }

    fn send_short(&mut self, len: usize) {
        let empty = self.committed.is_empty() && self.visible.is_empty();
        let Some(slot) = self.from.tx.reserve_short().unwrap() else {
            assert!(!empty, "an empty ring takes any record");
            return;
        };
        assert!(self.committed.is_empty(), "it would overtake them");
        slot.publish(
            (self.seq % 7) as u8,
            (self.seq % 5) as u8,
            self.seq,
            short(&body(self.seq, len)),
            len,
        );
        self.visible.push_back((self.seq, len));
        self.seq += 1;
    }

    fn send_alone(&mut self, len: usize) {
        let (alone, mut slot) = match self.from.tx.reserve_alone(len) {
            Some(slot) => (true, slot),
            None => match self.from.tx.reserve(len, len).unwrap() {
                Some(slot) => (false, slot),
                None => return,
            },
        };
        assert!(
            !alone || self.committed.is_empty(),
            "it would overtake them"
        );
        slot.write(0, &body(self.seq, len));
        slot.publish((self.seq % 7) as u8, (self.seq % 5) as u8, self.seq);
        self.visible.extend(self.committed.drain(..));
        self.visible.push_back((self.seq, len));
        self.seq += 1;
    }

    fn send(&mut self, min: usize, max: usize, part: usize) {
        let cap = self.from.tx.max_body();
        let empty = self.committed.is_empty() && self.visible.is_empty();
        let Some(mut slot) = self.from.tx.reserve(min, max).unwrap() else {
            assert!(!empty, "an empty ring takes any record");
            return;
        };
        assert!(slot.len() >= min.min(cap) && slot.len() <= max.max(min).min(cap));
        let len = slot.len() * part / 100;
        let scribble = vec![0xA5; slot.len()];
        slot.write(0, &scribble);
        slot.write(0, &body(self.seq, len));
        slot.commit((self.seq % 7) as u8, (self.seq % 5) as u8, self.seq, len);
        self.committed.push((self.seq, len));
        self.seq += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn behaves_as_a_queue(ops in prop::collection::vec(op(), 1..OPS)) {
        let (from, to) = pair(l::MIN_CAPACITY);
        let (committed, visible) = (Vec::new(), VecDeque::new());
        let mut model = Model { from, to, committed, visible, seq: 0, ack: 0 };
        for op in ops {
            model.step(op);
        }
        model.step(Op::Publish);
        while let Some(next) = receive(&mut model.to) {
            prop_assert_eq!(Some(next), model.visible.pop_front());
        }
        prop_assert!(model.visible.is_empty());
    }

    /// Both sides go on working on a ring into which somebody writes anything anywhere: they may
    /// report corruption, they may deliver rubbish, but nothing panics or leaves the segment.
    #[test]
    fn survives_a_hostile_peer(
        writes in prop::collection::vec((any::<prop::sample::Index>(), word()), 1..OPS),
        lens in prop::collection::vec(0..2100usize, 1..OPS),
    ) {
        let (segment, mut a, mut b) = shared(l::MIN_CAPACITY);
        let words = segment.len() / 8;
        for ((at, value), len) in writes.into_iter().zip(lens) {
            hostile::store(&segment, at.index(words), value);
            if let Ok(Some(slot)) = a.tx.reserve(len / 2, len) {
                let n = slot.len();
                slot.commit(1, 2, 3, n);
                a.tx.publish();
            }
            if let Some(slot) = a.tx.reserve_alone(len) {
                slot.publish(1, 2, 3);
            }
            if let Some(record) = b.rx.peek_long(1, 2) {
                let (ack, len) = (record.ack, record.len());
                record.read(0, &mut vec![0; len]);
                b.rx.consume_long(ack, len);
            }
            for _ in 0..4 {
                if let Ok(Some(record)) = b.rx.peek() {
                    let mut copy = vec![0; record.len()];
                    record.read(0, &mut copy);
                }
                b.rx.consume();
            }
            let _ = (a.set_cold(Attention::ROOM), b.set_cold(Attention::ACK), a.req_ack());
            a.set_hot();
        }
    }
}

/// Values likely to be taken for something: small, aligned, valid-looking ready words, extremes.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..8192u64,
        (0..128u64).prop_map(|n| n * 64),
        (0..4200u64, any::<u8>(), 0..64u64)
            .prop_map(|(len, kind, n)| len | u64::from(kind) << 32 | (0x8000 | n) << 48),
        Just(u64::MAX),
    ]
}

mod hostile {
    use causeway_shm::Segment;

    /// Writes a word of the segment behind the ring's back.
    pub fn store(segment: &Segment, word: usize, value: u64) {
        rustix::io::pwrite(segment.fd(), &value.to_le_bytes(), word as u64 * 8).unwrap();
    }
}

#[test]
fn nonsense_is_reported() {
    let ready = |len: u64, kind: u64, number: u64| len | kind << 32 | (0x8000 | number) << 48;
    let data = l::PAGE / 8;
    let room = (l::MIN_CAPACITY - l::RECORD_HEADER) as u64;
    let too_long = (l::max_body(l::MIN_CAPACITY) + 1) as u64;
    for bad in [
        1,
        ready(0, 0, 1),
        ready(too_long, 0, 0),
        ready(room - 1, 255, 0),
        u64::MAX,
    ] {
        let (segment, _, mut b) = shared(l::MIN_CAPACITY);
        hostile::store(&segment, data, bad);
        assert_eq!(b.rx.peek().unwrap_err(), Corrupt, "{bad:x}");
        hostile::store(&segment, data, 0);
        assert_eq!(b.rx.peek().unwrap_err(), Corrupt, "for good");
    }
    // Padding without end.
    let (segment, _, mut b) = shared(l::MIN_CAPACITY);
    hostile::store(&segment, data, ready(room, 255, 0));
    assert_eq!(b.rx.peek().unwrap_err(), Corrupt);
    // A head beyond the tail, before the last one, between cells.
    for bad in [64u64, 1, u64::MAX] {
        let (segment, mut a, _) = shared(l::MIN_CAPACITY);
        hostile::store(&segment, (l::SIDES_AT + l::SIDE_STRIDE + l::HEAD) / 8, bad);
        assert_eq!(a.set_cold(Attention::ROOM), Err(Corrupt));
        assert_eq!(a.tx.reserve(0, 4096).unwrap_err(), Corrupt, "{bad}");
    }
}

#[test]
fn fills_up_and_empties() {
    let (mut a, mut b) = pair(l::MIN_CAPACITY);
    let cells = l::MIN_CAPACITY / l::CELL;
    for lap in 0..LAPS {
        let mut sent = 0;
        while send(&mut a, lap + sent, 8) {
            sent += 1;
        }
        assert_eq!(sent as usize, cells - 1, "one cell stays free");
        assert!(b.rx.peek().unwrap().is_none(), "nothing is published");
        assert!(a.tx.publish());
        assert!(!a.tx.publish());
        for i in 0..sent {
            assert_eq!(receive(&mut b), Some((lap + i, 8)));
        }
        assert_eq!(receive(&mut b), None);
    }
}

#[test]
fn the_largest_record_fits_an_empty_ring_anywhere() {
    let (mut a, mut b) = pair(l::MIN_CAPACITY);
    let max = a.tx.max_body();
    for seq in 0..LAPS {
        assert!(send(
            &mut a,
            seq,
            if seq % 2 == 0 {
                max
            } else {
                1 + (seq as usize * 64) % 900
            }
        ));
        a.tx.publish();
        assert!(receive(&mut b).is_some());
    }
}

#[test]
fn acknowledgments_travel_with_records_or_alone() {
    let (mut a, mut b) = pair(l::MIN_CAPACITY);
    a.set_req_ack(3);
    assert!(a.ack_pending());
    assert!(send(&mut a, 0, 8));
    assert!(a.ack_pending(), "not published yet");
    a.tx.publish();
    assert!(!a.ack_pending());
    assert_eq!(b.req_ack_seen(), 0);
    receive(&mut b);
    assert_eq!((b.req_ack_seen(), b.req_ack()), (3, 3));
    a.set_req_ack(4);
    assert!(a.publish_ack() && !a.publish_ack());
    assert_eq!((b.req_ack_seen(), b.req_ack(), b.req_ack_seen()), (3, 4, 4));
    a.set_req_ack(2);
    assert!(!a.ack_pending(), "acknowledgments never go back");
}

#[test]
fn cools_only_when_nothing_happened() {
    use causeway_shm::ring::Flag;
    let (mut a, mut b) = pair(l::MIN_CAPACITY);
    assert_eq!(b.set_cold(Attention::DATA), Ok(true));
    b.set_hot();
    assert!(send(&mut a, 0, 8));
    a.tx.publish();
    assert_eq!(b.set_cold(Attention::DATA), Ok(false));
    assert_eq!(b.attention(), Attention::HOT);
    receive(&mut b);
    assert_eq!(b.set_cold(Attention::DATA), Ok(true));
    a.set_req_ack(1);
    a.publish_ack();
    assert_eq!(
        b.set_cold(Attention::DATA),
        Ok(true),
        "acknowledgments don't interest it"
    );
    assert_eq!(b.set_cold(Attention::ACK), Ok(false));
    b.req_ack();
    assert_eq!(b.set_cold(Attention::ACK), Ok(true));
    assert_eq!(
        a.set_cold(Attention::ROOM),
        Ok(false),
        "its record was consumed"
    );
    assert_eq!(a.set_cold(Attention::ROOM), Ok(true));
    a.set_flag(Flag::Closed);
    assert_eq!(b.set_cold(Attention::DATA), Ok(false));
    assert!(b.peer_flag(Flag::Closed) && !b.peer_flag(Flag::Failed));
    assert_eq!(b.set_cold(Attention::DATA), Ok(true));
}

#[test]
fn two_threads() {
    // Processors that are emulated in turns take milliseconds to notice each other.
    let records: u64 = match std::env::var_os("CAUSEWAY_TEST_EMULATED") {
        Some(_) => 10_000,
        None => 300_000,
    };
    let (mut a, mut b) = pair(2 * l::MIN_CAPACITY);
    let length = |seq: u64| ((seq * 2_654_435_761) % 700) as usize;
    let producer = std::thread::spawn(move || {
        for seq in 0..records {
            a.set_req_ack(seq);
            while !send(&mut a, seq, length(seq)) {
                a.tx.publish();
                std::thread::yield_now();
            }
            if seq % 3 == 0 {
                a.tx.publish();
            }
        }
        a.tx.publish();
    });
    let mut next = 0;
    while next < records {
        match receive(&mut b) {
            Some(got) => {
                assert_eq!(got, (next, length(next)));
                assert_eq!(b.req_ack_seen(), next);
                next += 1;
            }
            None => std::thread::yield_now(),
        }
    }
    producer.join().unwrap();
}

/// Sends through the way for short records where that is open.
fn send_short(ring: &mut Ring, seq: u64, len: usize) -> bool {
    if let Some(slot) = ring.tx.reserve_short().unwrap() {
        let words = short(&body(seq, len));
        slot.publish((seq % 7) as u8, (seq % 5) as u8, seq, words, len);
        return true;
    }
    let sent = send(ring, seq, len);
    ring.tx.publish();
    sent
}

#[test]
fn short_records_keep_to_the_beginning_of_a_large_ring() {
    let (segment, mut a, mut b) = shared(l::RING_CAPACITY);
    for seq in 0..20_000 {
        // Now and then some that take more than a cell.
        let sent = if seq % 10 == 0 {
            send(&mut a, seq, 300) && a.tx.publish()
        } else {
            send_short(&mut a, seq, 8)
        };
        assert!(sent);
        assert!(receive(&mut b).is_some());
    }
    let touched = rustix::fs::fstat(segment.fd()).unwrap().st_blocks * 512;
    assert!(touched <= 80 << 10, "{touched} bytes are touched");
}

#[test]
fn records_are_in_order_whether_or_not_the_ring_begins_again_early() {
    let (_, mut a, mut b) = shared(l::RING_CAPACITY);
    let (mut sent, mut got) = (0, 0);
    for round in 0..4_000_u64 {
        // Lengths and how far the reader is behind vary independently.
        let len = [8, 40, 300, 8000][(round * 7 % 11 % 4) as usize];
        for _ in 0..round % 90 {
            let done = if len <= l::SHORT_BODY {
                send_short(&mut a, sent, len)
            } else {
                send(&mut a, sent, len) && a.tx.publish()
            };
            if !done {
                break;
            }
            sent += 1;
        }
        let most = if round % 13 == 0 {
            u64::MAX
        } else {
            round % 101
        };
        for _ in 0..most {
            let Some((seq, _)) = receive(&mut b) else {
                break;
            };
            assert_eq!(seq, got);
            got += 1;
        }
    }
    while receive(&mut b).is_some() {
        got += 1;
    }
    assert_eq!(got, sent);
    assert!(sent > 100_000);
}
