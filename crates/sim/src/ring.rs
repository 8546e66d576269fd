//! A ring in simulated memory, and the two queue pairs that it joins.
//!
//! Nothing is lost on a ring, so its faults are others: a store is seen late, a side stalls or
//! stops, dies or exits, the ring is full, a wake-up gets lost, a peer writes what it must not.
//! What one side stores the other sees in order, as the processor has it (release and acquire), at
//! some time, and behind it that it was told of it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use causeway_proto::ring::{Corrupt, News, Record, Shared, Slot};
use causeway_proto::{Bytes, BytesMut, Duration, Instant};

use crate::rng::Rng;

/// Bytes of a record's header, and of the cells that records are made of.
const HEADER: usize = 24;
const CELL: usize = 64;

/// Bytes that a record takes.
fn size(body: usize) -> usize {
    (HEADER + body).next_multiple_of(CELL)
}

/// What the memory does wrong, to show that somebody notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// One in some records gets lost.
    LosesRecords,
    /// One in some records comes before the one that was written before it.
    SwapsRecords,
    /// One in some bodies is another's in part.
    TearsBodies,
    /// Acknowledgments are shown for one request more than was placed.
    AcknowledgesEarly,
    /// Acknowledgments without a record are never seen.
    HidesAcknowledgments,
    /// Room is never given back.
    KeepsRoom,
    /// Whoever sleeps is told nothing, and nobody looks by himself.
    LosesEveryWakeUp,
}

/// A record as it lies in the ring.
#[derive(Clone, Debug)]
pub struct Written {
    /// What it is.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Its number.
    pub seq: u64,
    /// The acknowledgment that it carries.
    pub ack: u64,
    /// Its body.
    pub body: Vec<u8>,
}

/// One store, as the other side comes to see it.
#[derive(Debug)]
enum Store {
    Records(Vec<Written>),
    Ack(u64),
    /// Bytes taken since the beginning.
    Head(usize),
    Leave,
    /// The other side is told.
    Tell,
}

/// What a side has written, and what the other one sees of it.
#[derive(Debug, Default)]
struct Side {
    /// Stores that the other side does not see yet, and when it will.
    unseen: VecDeque<(Instant, Store)>,
    /// What it sees: records not taken, and words.
    records: VecDeque<Written>,
    ack: u64,
    head: usize,
    leaving: bool,
    /// What the side itself knows: records committed, bytes written and taken, acknowledgments.
    committed: Vec<Written>,
    tail: usize,
    taken: usize,
    placed: u64,
    ack_published: u64,
    ack_word: u64,
    /// It does nothing until it is told.
    sleeps: bool,
}

/// What goes wrong, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Bytes of each direction.
    pub capacity: usize,
    /// Longest time until a store is seen.
    pub delay: Duration,
    /// Chance that a wake-up gets lost.
    pub lost_wake_ups: f64,
    /// Chance that a side goes to sleep when it has nothing to do.
    pub sleep: f64,
    /// Chance, each time a side is served, that it loses its processor, and longest time of that.
    pub stall: f64,
    /// See there.
    pub longest_stall: Duration,
}

impl Faults {
    /// Faults of every kind.
    #[must_use]
    pub fn random(rng: &mut Rng) -> Self {
        Faults {
            capacity: rng.pick(&[8512, 10_000, 16 << 10, 64 << 10, 512 << 10]) / CELL * CELL,
            delay: Duration::from_nanos(rng.pick(&[0, 50, 1000, 100_000])),
            lost_wake_ups: rng.pick(&[0.0, 0.0, 0.1, 0.5]),
            sleep: rng.pick(&[0.0, 0.1, 0.9]),
            stall: rng.pick(&[0.0, 0.0, 0.01, 0.1]),
            longest_stall: Duration::from_micros(rng.pick(&[10, 1000, 20_000, 3_000_000])),
        }
    }
}

/// The memory that both sides share.
#[derive(Debug)]
pub struct Memory {
    sides: [Side; 2],
    /// The time.
    pub now: Instant,
    faults: Faults,
    /// What it does wrong.
    pub defect: Option<Defect>,
    stores: u64,
    rng: Rng,
}

impl Memory {
    /// A ring with nothing in it.
    #[must_use]
    pub fn new(faults: Faults, defect: Option<Defect>, rng: Rng) -> Rc<RefCell<Memory>> {
        Rc::new(RefCell::new(Memory {
            sides: Default::default(),
            now: Instant(0),
            faults,
            defect,
            stores: 0,
            rng,
        }))
    }

    fn has(&mut self, defect: Defect) -> bool {
        self.defect == Some(defect) && self.rng.chance(0.1)
    }

    fn store(&mut self, side: usize, store: Store) {
        self.stores += 1;
        let delay = self.rng.below(self.faults.delay.as_nanos() as u64 + 1);
        let last = self.sides[side]
            .unseen
            .back()
            .map_or(self.now, |(at, _)| *at);
        let at = (self.now + Duration::from_nanos(delay)).max(last);
        self.sides[side].unseen.push_back((at, store));
        self.show();
    }

    /// Lets each side see what it is time for.
    pub fn show(&mut self) {
        for side in 0..2 {
            while let Some(store) = self.seen_now(side) {
                let own = &mut self.sides[side];
                match store {
                    Store::Records(records) => own.records.extend(records),
                    Store::Ack(ack) => own.ack = own.ack.max(ack),
                    Store::Head(head) => own.head = head,
                    Store::Leave => own.leaving = true,
                    Store::Tell => self.sides[1 - side].sleeps = false,
                }
            }
        }
    }

    fn seen_now(&mut self, side: usize) -> Option<Store> {
        let unseen = &mut self.sides[side].unseen;
        unseen.front().filter(|(at, _)| *at <= self.now)?;
        unseen.pop_front().map(|(_, store)| store)
    }

    /// When one side sees something new.
    #[must_use]
    pub fn next_seen(&self) -> Option<Instant> {
        let unseen = self.sides.iter().filter_map(|side| side.unseen.front());
        unseen.map(|(at, _)| *at).min()
    }

    /// All that `side` has stored is seen from now on, and the other side looks.
    pub fn fence(&mut self, side: usize) {
        for (at, _) in &mut self.sides[side].unseen {
            *at = self.now;
        }
        self.show();
        self.look(1 - side);
    }

    /// How often anybody has stored anything.
    #[must_use]
    pub fn stores(&self) -> u64 {
        self.stores
    }

    /// Whether `side` waits to be told.
    #[must_use]
    pub fn sleeps(&self, side: usize) -> bool {
        self.sides[side].sleeps
    }

    /// `side` looks by itself.
    pub fn look(&mut self, side: usize) {
        self.sides[side].sleeps = false;
    }

    /// `side` has nothing to do, and may go to sleep.
    pub fn may_sleep(&mut self, side: usize) {
        self.sides[side].sleeps = self.rng.chance(self.faults.sleep);
    }

    /// `side` writes a record that it must not.
    pub fn forge(&mut self, side: usize, record: Written) {
        self.store(side, Store::Records(vec![record]));
        self.fence(side);
    }

    /// Says in the place of `side` that it leaves, as the broker does.
    pub fn close_for(&mut self, side: usize) {
        self.store(side, Store::Leave);
        self.fence(side);
    }
}

/// A side's end of the ring.
#[derive(Debug)]
pub struct End {
    /// Which one it is.
    side: usize,
    /// The memory.
    pub memory: Rc<RefCell<Memory>>,
    /// The body of the record that was looked at last, until it is consumed.
    peeked: Option<Written>,
}

impl End {
    /// One of the two.
    #[must_use]
    pub fn new(side: usize, memory: Rc<RefCell<Memory>>) -> Self {
        End {
            side,
            memory,
            peeked: None,
        }
    }
}

/// Room for a record.
#[derive(Debug)]
pub struct Room {
    side: usize,
    memory: Rc<RefCell<Memory>>,
    body: Vec<u8>,
}

impl Slot for Room {
    fn body(&mut self) -> BytesMut<'_> {
        BytesMut::from(&mut self.body[..])
    }

    fn commit(mut self, kind: u8, flags: u8, seq: u64, len: usize) {
        self.body.truncate(len);
        let mut memory = self.memory.borrow_mut();
        let torn = len > 1 && memory.has(Defect::TearsBodies);
        if torn {
            self.body[len - 1] ^= 1;
        }
        let own = &mut memory.sides[self.side];
        own.tail += size(len);
        own.committed.push(Written {
            kind,
            flags,
            seq,
            ack: own.placed,
            body: std::mem::take(&mut self.body),
        });
    }
}

impl Shared for End {
    type Slot<'a> = Room;

    fn reserve(&mut self, len: usize) -> Result<Option<Room>, Corrupt> {
        let memory = self.memory.borrow();
        let (own, peer) = (&memory.sides[self.side], &memory.sides[1 - self.side]);
        if peer.head > own.tail {
            return Err(Corrupt);
        }
        // One cell is always kept free.
        let used = own.tail - peer.head + CELL;
        let fits = used + size(len) <= memory.faults.capacity;
        Ok(fits.then(|| Room {
            side: self.side,
            memory: Rc::clone(&self.memory),
            body: vec![0; len],
        }))
    }

    fn publish(&mut self) -> bool {
        let memory = &mut *self.memory.borrow_mut();
        let own = &mut memory.sides[self.side];
        let mut records = std::mem::take(&mut own.committed);
        let Some(last) = records.last() else {
            return false;
        };
        own.ack_published = last.ack;
        if memory.has(Defect::LosesRecords) {
            records.pop();
        }
        if records.len() > 1 && memory.has(Defect::SwapsRecords) {
            records.swap(0, 1);
        }
        memory.store(self.side, Store::Records(records));
        true
    }

    fn peek(&mut self) -> Result<Option<Record<'_>>, Corrupt> {
        let mut memory = self.memory.borrow_mut();
        let peer = &mut memory.sides[1 - self.side];
        if self.peeked.is_none() {
            self.peeked = peer.records.front().cloned();
        }
        if let Some(record) = &self.peeked {
            peer.ack = peer.ack.max(record.ack);
        }
        Ok(self.peeked.as_ref().map(|record| Record {
            kind: record.kind,
            flags: record.flags,
            seq: record.seq,
            ack: record.ack,
            body: Bytes::from(&record.body[..]),
        }))
    }

    fn consume(&mut self) {
        let Some(record) = self.peeked.take() else {
            return;
        };
        let mut memory = self.memory.borrow_mut();
        memory.sides[1 - self.side].records.pop_front();
        let own = &mut memory.sides[self.side];
        own.taken += size(record.body.len());
        let taken = own.taken;
        if memory.defect != Some(Defect::KeepsRoom) {
            memory.store(self.side, Store::Head(taken));
        }
    }

    fn is_ready(&self) -> bool {
        !self.memory.borrow().sides[1 - self.side].records.is_empty()
    }

    fn set_ack(&mut self, upto: u64) {
        let mut memory = self.memory.borrow_mut();
        let early = u64::from(memory.has(Defect::AcknowledgesEarly));
        let own = &mut memory.sides[self.side];
        own.placed = own.placed.max(upto + early);
    }

    fn ack_pending(&self) -> bool {
        let own = &self.memory.borrow().sides[self.side];
        own.placed > own.ack_published.max(own.ack_word)
    }

    fn publish_ack(&mut self) -> bool {
        let mut memory = self.memory.borrow_mut();
        let own = &mut memory.sides[self.side];
        if own.placed <= own.ack_word {
            return false;
        }
        own.ack_word = own.placed;
        let ack = own.placed;
        if memory.defect != Some(Defect::HidesAcknowledgments) {
            memory.store(self.side, Store::Ack(ack));
        }
        true
    }

    fn ack(&mut self) -> u64 {
        self.memory.borrow().sides[1 - self.side].ack
    }

    fn last_ack(&mut self) -> u64 {
        let memory = self.memory.borrow();
        let peer = &memory.sides[1 - self.side];
        peer.ack.max(peer.placed)
    }

    fn leave(&mut self, _closed: bool) {
        self.memory.borrow_mut().store(self.side, Store::Leave);
    }

    fn is_peer_leaving(&self) -> bool {
        self.memory.borrow().sides[1 - self.side].leaving
    }

    fn tell(&mut self, _news: News) -> bool {
        let memory = &mut *self.memory.borrow_mut();
        let lost = match memory.defect {
            Some(Defect::LosesEveryWakeUp) => true,
            _ => memory.rng.chance(memory.faults.lost_wake_ups),
        };
        if !lost {
            memory.store(self.side, Store::Tell);
        }
        memory.sides[1 - self.side].sleeps
    }
}
