//! The shared-memory protocols, in every interleaving of small scenarios (loom), and in random ones
//! of longer scenarios (shuttle).
//!
//! loom never lets a load see a later store, so it can't show what a relaxed store of the reader's
//! head would do (the copy out of the ring sinking below it): that rule stands on its argument.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p causeway-shm --release --test models`, and with `--cfg
//! shuttle`.
#![cfg(any(loom, shuttle))]

#[path = "models/checker.rs"]
mod checker;
#[cfg(loom)]
#[path = "models/planted.rs"]
mod planted;

use causeway_shm::layout::{INTERRUPT_BYTES, MR_TABLE_BYTES};
use causeway_shm::{
    Attention, Bell, Grant, Inbox, Interrupt, MrEntry, MrTable, PeerMrs, Record, Ring, Segment,
    Side, Slots, Trigger, TriggerError, is_looking, notify,
};
use checker::sync::atomic::{AtomicU64, Ordering};
use checker::sync::{Arc, Condvar, Mutex};
use checker::{model, thread};

/// How many times longer scenarios of one thread on each side are than loom can bear.
const LENGTH: u64 = if cfg!(loom) { 1 } else { 16 };

fn pair() -> (Ring, Ring) {
    let segment = Arc::new(Ring::create().unwrap());
    let a = Ring::attach(Arc::clone(&segment), Side::A).unwrap();
    (a, Ring::attach(segment, Side::B).unwrap())
}

/// One-cell records with one word of body, or two-cell ones.
fn send(ring: &mut Ring, seq: u64, words: usize) -> bool {
    let Some(mut slot) = ring.tx.reserve(8 * words, 8 * words).unwrap() else {
        return false;
    };
    for i in 0..words {
        // High bits set: taken for a header it would be a plausible ready word.
        slot.write(8 * i, &(0x8000_0000_0000_0000 | seq).to_le_bytes());
    }
    slot.commit(1, 0, seq, 8 * words);
    true
}

/// The same, written and published in one go.
fn send_short(ring: &mut Ring, seq: u64) -> bool {
    let Some(slot) = ring.tx.reserve_short().unwrap() else {
        return false;
    };
    slot.publish(1, 0, seq, [0x8000_0000_0000_0000 | seq], 8);
    true
}

/// As [`send`], written and published in one go.
fn send_alone(ring: &mut Ring, seq: u64, words: usize) -> bool {
    let len = 8 * words;
    let mut slot = match ring.tx.reserve_alone(len) {
        Some(slot) => slot,
        None => match ring.tx.reserve(len, len).unwrap() {
            Some(slot) => slot,
            None => return false,
        },
    };
    for i in 0..words {
        slot.write(8 * i, &(0x8000_0000_0000_0000 | seq).to_le_bytes());
    }
    slot.publish(1, 0, seq);
    true
}

/// Takes a record if there is one, checks its body, and returns its number.
fn receive(ring: &mut Ring) -> Option<u64> {
    let record = ring.rx.peek().expect("the producer is honest")?;
    let seq = check(&record);
    ring.rx.consume();
    Some(seq)
}

/// As [`receive`], the short way where the record is long.
fn receive_long(ring: &mut Ring) -> Option<u64> {
    let Some(record) = ring.rx.peek_long(1, 0) else {
        return receive(ring);
    };
    let (seq, ack, len) = (check(&record), record.ack, record.len());
    ring.rx.consume_long(ack, len);
    Some(seq)
}

/// Checks the body of a record, and returns its number.
fn check(record: &Record<'_>) -> u64 {
    let seq = record.seq;
    for at in (0..record.len()).step_by(8) {
        let mut word = [0; 8];
        record.read(at, &mut word);
        assert_eq!(u64::from_le_bytes(word), 0x8000_0000_0000_0000 | seq);
    }
    seq
}

/// Takes records 0 to `count`, as they come.
fn receive_in_order(ring: &mut Ring, count: u64) {
    take_in_order(ring, count, receive);
}

/// The same, each by `take`.
fn take_in_order(ring: &mut Ring, count: u64, take: impl Fn(&mut Ring) -> Option<u64>) {
    let mut next = 0;
    while next < count {
        match take(ring) {
            Some(seq) => {
                assert_eq!(seq, next);
                next += 1;
            }
            None => thread::yield_now(),
        }
    }
}

#[derive(Default)]
struct ModelBell {
    rung: Mutex<bool>,
    wake: Condvar,
}

impl Bell for ModelBell {
    fn ring(&self) -> std::io::Result<()> {
        *self.rung.lock().unwrap() = true;
        self.wake.notify_one();
        Ok(())
    }
}

impl ModelBell {
    /// Sleeps until rung. The checker reports a deadlock if nobody ever rings.
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.wake.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// Records arrive in order and whole, over more than one lap: each cell is reused, with bodies of
/// the earlier lap where headers will stand.
#[test]
fn in_order_over_laps() {
    model(3, || {
        let (mut a, mut b) = pair();
        let producer = thread::spawn(move || {
            for (seq, words) in (0..4 * LENGTH).zip([1, 1, 5, 1].into_iter().cycle()) {
                while !send(&mut a, seq, words) {
                    thread::yield_now();
                }
                a.tx.publish();
            }
        });
        receive_in_order(&mut b, 4 * LENGTH);
        producer.join().unwrap();
    });
}

/// The same with records published one by one, and one that is longer between them.
#[test]
fn short_ones_in_order_over_laps() {
    model(3, || {
        let (mut a, mut b) = pair();
        let producer = thread::spawn(move || {
            let shorts = [true, true, false, true].into_iter().cycle();
            for (seq, short) in (0..4 * LENGTH).zip(shorts) {
                while !(if short {
                    send_short(&mut a, seq)
                } else {
                    send(&mut a, seq, 5)
                }) {
                    thread::yield_now();
                }
                a.tx.publish();
            }
        });
        receive_in_order(&mut b, 4 * LENGTH);
        producer.join().unwrap();
    });
}

/// The same with long ones published one by one, between short ones.
#[test]
fn long_ones_in_order_over_laps() {
    model(3, || {
        let (mut a, mut b) = pair();
        let producer = thread::spawn(move || {
            for (seq, words) in (0..4 * LENGTH).zip([5, 1, 5, 5].into_iter().cycle()) {
                let one = |ring: &mut Ring| match words {
                    1 => send_short(ring, seq),
                    words => send_alone(ring, seq, words),
                };
                while !one(&mut a) {
                    thread::yield_now();
                }
            }
        });
        take_in_order(&mut b, 4 * LENGTH, receive_long);
        producer.join().unwrap();
    });
}

/// A batch becomes visible at once or not at all.
#[test]
fn batches_are_whole() {
    model(3, || {
        let (mut a, mut b) = pair();
        let producer = thread::spawn(move || {
            assert!(send(&mut a, 0, 1) && send(&mut a, 1, 1));
            a.set_req_ack(7);
            assert!(send(&mut a, 2, 1));
            a.tx.publish();
        });
        if receive(&mut b).is_some() {
            assert_eq!((receive(&mut b), receive(&mut b)), (Some(1), Some(2)));
            assert_eq!(b.req_ack_seen(), 7);
            assert_eq!(receive(&mut b), None);
        }
        producer.join().unwrap();
    });
}

/// What was placed before an acknowledgment is visible to one that sees it.
#[test]
fn acknowledgments_publish() {
    model(3, || {
        let (mut a, mut b) = pair();
        let placed = Arc::new(AtomicU64::new(0));
        let memory = Arc::clone(&placed);
        let responder = thread::spawn(move || {
            memory.store(1, Ordering::Relaxed);
            a.set_req_ack(1);
            a.publish_ack();
        });
        if b.req_ack() == 1 {
            assert_eq!(placed.load(Ordering::Relaxed), 1);
        }
        responder.join().unwrap();
    });
}

/// A side whose program and receiver are two threads, and for which a request has come: the
/// receiver takes it, and queues its completion when the acknowledgment is set; the program sleeps
/// until it finds that, and answers.
fn responder(
    b: Ring,
    answer: impl FnOnce(&mut Ring) + Send + 'static,
) -> [thread::JoinHandle<()>; 2] {
    let ring = Arc::new(Mutex::new(b));
    let completion = Arc::new(ModelBell::default());
    let (theirs, queue) = (Arc::clone(&ring), Arc::clone(&completion));
    let receiver = thread::spawn(move || {
        let mut ring = theirs.lock().unwrap();
        assert_eq!(receive(&mut ring), Some(0));
        ring.set_req_ack(1);
        drop(ring);
        queue.ring().unwrap();
    });
    let program = thread::spawn(move || {
        completion.wait();
        answer(&mut ring.lock().unwrap());
    });
    [receiver, program]
}

/// A side that finds the answer to a request finds the request acknowledged by it.
#[test]
fn an_answer_brings_the_acknowledgment() {
    model(3, || {
        let (mut a, b) = pair();
        assert!(send_short(&mut a, 0));
        let threads = responder(b, |ring| assert!(send_short(ring, 5)));
        if let Some(record) = a.rx.peek().unwrap() {
            assert_eq!((record.seq, record.ack), (5, 1));
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

/// The same where the answer is written into memory that the other side looks at.
#[test]
fn a_write_follows_the_acknowledgment() {
    model(3, || {
        let (mut a, b) = pair();
        let memory = Arc::new(AtomicU64::new(0));
        let theirs = Arc::clone(&memory);
        assert!(send_short(&mut a, 0));
        let threads = responder(b, move |ring| {
            ring.publish_ack();
            ring.enter(1);
            theirs.store(1, Ordering::Release);
            assert!(ring.leave());
        });
        if memory.load(Ordering::Acquire) == 1 {
            assert_eq!(a.req_ack(), 1);
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

/// How a consumer falls asleep.
#[derive(Clone, Copy)]
enum Sleep {
    /// Armed, the ring hot.
    Hot,
    /// The ring cold, armed.
    Cold,
}

/// As the short ways do: a peer that looks by itself is not told.
fn tell(ring: &Ring, events: Attention, inbox: &Inbox, bell: &Arc<ModelBell>) {
    if !is_looking(ring, inbox) {
        notify(ring, events, inbox, &**bell, 3).unwrap();
    }
}

/// Waits for a record, sleeping whenever there is none.
fn consume(mut b: Ring, inbox: Inbox, bell: Arc<ModelBell>, sleep: Sleep) {
    loop {
        inbox.take(Slots::ALL, |index| assert_eq!(index, 3));
        if receive(&mut b).is_some() {
            return;
        }
        if matches!(sleep, Sleep::Cold) && !b.set_cold(Attention::DATA).unwrap() {
            continue;
        }
        inbox.arm();
        let news = match sleep {
            Sleep::Hot => b.rx.ready() || !inbox.is_empty(Slots::ALL),
            Sleep::Cold => !inbox.is_empty(Slots::ALL),
        };
        if news {
            inbox.disarm();
        } else {
            bell.wait();
        }
    }
}

fn no_lost_wake_up(sleep: Sleep) {
    model(3, move || {
        let (mut a, b) = pair();
        let inbox = Inbox::open(Inbox::create().unwrap()).unwrap();
        let bell = Arc::new(ModelBell::default());
        let (theirs, their_bell) = (inbox.clone(), Arc::clone(&bell));
        let producer = thread::spawn(move || {
            assert!(send(&mut a, 0, 1));
            a.tx.publish();
            tell(&a, Attention::DATA, &theirs, &their_bell);
        });
        consume(b, inbox, bell, sleep);
        producer.join().unwrap();
    });
}

#[test]
fn no_lost_wake_up_while_hot() {
    no_lost_wake_up(Sleep::Hot);
}

#[test]
fn no_lost_wake_up_while_cold() {
    no_lost_wake_up(Sleep::Cold);
}

/// Two peers of one endpoint, on two rings: the bits and the armed word are shared.
#[test]
fn no_lost_wake_up_with_two_peers() {
    model(2, || {
        let inbox = Inbox::open(Inbox::create().unwrap()).unwrap();
        let bell = Arc::new(ModelBell::default());
        let (mut rings, mut peers) = (Vec::new(), Vec::new());
        for index in [3u32, 70] {
            let (mut a, b) = pair();
            rings.push(b);
            let (inbox, bell) = (inbox.clone(), Arc::clone(&bell));
            peers.push(thread::spawn(move || {
                assert!(send(&mut a, 0, 1));
                a.tx.publish();
                notify(&a, Attention::DATA, &inbox, &*bell, index).unwrap();
            }));
        }
        let mut got = 0;
        let mut look = vec![0, 1];
        while got < 2 {
            for i in look.drain(..) {
                got += usize::from(receive(&mut rings[i]).is_some());
                if !rings[i].set_cold(Attention::DATA).unwrap() {
                    got += usize::from(receive(&mut rings[i]).is_some());
                }
            }
            inbox.take(Slots::ALL, |index| look.push(usize::from(index == 70)));
            if got == 2 || !look.is_empty() {
                continue;
            }
            inbox.arm();
            if inbox.is_empty(Slots::ALL) {
                bell.wait();
            } else {
                inbox.disarm();
            }
        }
        peers.into_iter().for_each(|p| p.join().unwrap());
    });
}

/// A producer that found the ring full sleeps until there is room.
#[test]
fn no_lost_room() {
    model(2, || {
        let (mut a, mut b) = pair();
        let inbox = Inbox::open(Inbox::create().unwrap()).unwrap();
        let bell = Arc::new(ModelBell::default());
        assert!(send(&mut a, 0, 1) && send(&mut a, 1, 5));
        a.tx.publish();
        let (theirs, their_bell) = (inbox.clone(), Arc::clone(&bell));
        let consumer = thread::spawn(move || {
            assert_eq!((receive(&mut b), receive(&mut b)), (Some(0), Some(1)));
            tell(&b, Attention::ROOM, &theirs, &their_bell);
        });
        while !send(&mut a, 2, 1) {
            if !a.set_cold(Attention::ROOM).unwrap() {
                continue;
            }
            inbox.arm();
            if inbox.is_empty(Slots::ALL) {
                bell.wait();
            } else {
                inbox.disarm();
            }
            inbox.take(Slots::ALL, |_| ());
        }
        consumer.join().unwrap();
    });
}

/// A memory region of 4096 bytes, and the key it has.
fn region() -> MrEntry {
    MrEntry {
        key: 1,
        access: 2,
        len: 4096,
        end: 4096,
        ..MrEntry::default()
    }
}

/// The owner takes the region back and then reuses its memory, as soon as nobody is in flight. An
/// access that began before is waited for; a later one finds nothing.
#[test]
fn no_access_outlives_a_region() {
    model(3, || {
        let segment = Arc::new(Segment::create("t", MR_TABLE_BYTES).unwrap());
        let table = MrTable::format(Arc::clone(&segment)).unwrap();
        region_taken_back(table, PeerMrs::open(segment).unwrap(), true);
    });
}

/// Nor where the peer reads a guest table.
#[test]
fn no_access_by_a_guest_table_outlives_a_region() {
    model(3, || {
        let [own, guest_table] =
            [(); 2].map(|()| Arc::new(Segment::create("t", MR_TABLE_BYTES).unwrap()));
        MrTable::format(Arc::clone(&guest_table)).unwrap();
        let mut table = MrTable::format(own).unwrap();
        table
            .add_guest_table(1, Arc::clone(&guest_table), std::iter::empty())
            .unwrap();
        region_taken_back(table, PeerMrs::open(guest_table).unwrap(), true);
    });
}

fn region_taken_back(table: MrTable, theirs: PeerMrs, waits: bool) {
    let (owner, peer) = pair();
    owner.set_grant(Grant::new(0, 2));
    table.publish(&region());
    // What is accessed: 0 while it is the region's, 1 after the owner has reused it.
    let memory = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&memory);
    let initiator = thread::spawn(move || {
        let granted = peer.enter(1).allows(2);
        if granted && theirs.get(1).is_some() {
            // Not an update: it must be ordered by the protocol alone.
            let seen = seen.load(Ordering::Relaxed);
            assert_eq!(seen, 0, "accessed after its end");
        }
        assert!(peer.leave());
    });
    table.retract(1);
    while waits && owner.peer_in_flight() == 1 {
        thread::yield_now();
    }
    memory.store(1, Ordering::Relaxed);
    initiator.join().unwrap();
}

/// An owner that does not wait says so, and the access that ended too late is not reported.
#[test]
fn an_evicted_peer_knows() {
    model(3, || {
        let (owner, peer) = pair();
        let segment = Arc::new(Segment::create("t", MR_TABLE_BYTES).unwrap());
        let table = MrTable::format(Arc::clone(&segment)).unwrap();
        let theirs = PeerMrs::open(segment).unwrap();
        owner.set_grant(Grant::new(0, 2));
        table.publish(&region());
        let memory = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&memory);
        let initiator = thread::spawn(move || {
            let granted = peer.enter(1).allows(2);
            let mut stale = false;
            if granted && theirs.get(1).is_some() {
                stale = seen.load(Ordering::Relaxed) != 0;
            }
            let reported = peer.leave();
            assert!(!(stale && reported));
        });
        table.retract(1);
        if owner.peer_in_flight() == 1 {
            owner.evict();
        }
        memory.store(1, Ordering::Relaxed);
        initiator.join().unwrap();
    });
}

/// A sleeper on a cell is woken for each trigger: none is lost between the look and the sleep.
#[test]
fn no_interrupt_is_lost() {
    model(3, || {
        let segment = Arc::new(Segment::create("t", INTERRUPT_BYTES).unwrap());
        causeway_shm::interrupt::format(Arc::clone(&segment)).unwrap();
        let mut trigger = Trigger::open(Arc::clone(&segment)).unwrap();
        let mut owner = Interrupt::open(segment).unwrap();
        let bell = Arc::new(ModelBell::default());
        let theirs = Arc::clone(&bell);
        let sender = thread::spawn(move || {
            trigger.trigger(&*theirs).unwrap();
            trigger.trigger(&*theirs).unwrap();
        });
        let mut taken = owner.take();
        while taken < 2 {
            owner.arm();
            if !owner.is_pending() {
                bell.wait();
            }
            owner.disarm();
            taken += owner.take();
        }
        assert_eq!(taken, 2);
        sender.join().unwrap();
    });
}

/// A slot is the trigger's again only once its payload has been copied out, and its payload is seen
/// whole.
#[test]
fn payloads_of_interrupts_are_whole() {
    model(3, || {
        let segment = Arc::new(Segment::create("t", INTERRUPT_BYTES).unwrap());
        causeway_shm::interrupt::format(Arc::clone(&segment)).unwrap();
        let mut trigger = Trigger::open(Arc::clone(&segment)).unwrap();
        let mut owner = Interrupt::open(segment).unwrap();
        let bell = Arc::new(ModelBell::default());
        let sender = thread::spawn(move || {
            for number in 1..=3 * LENGTH {
                while let Err(full) = trigger.send(&number.to_le_bytes(), &*bell) {
                    assert!(matches!(full, TriggerError::Full));
                    thread::yield_now();
                }
            }
        });
        let mut payload = Vec::new();
        for number in 1..=3 * LENGTH {
            while !owner.receive(&mut payload).unwrap() {
                thread::yield_now();
            }
            assert_eq!(payload, number.to_le_bytes());
        }
        sender.join().unwrap();
    });
}
