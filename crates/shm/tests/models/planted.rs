//! Defects that are planted in the scenarios of the models: the checker finds each of them. A model
//! that could not fail would show nothing.

use super::*;

#[test]
fn planted_defects_are_found() {
    checker::expect_failures(&[
        (
            "planted::a_consumer_that_sleeps_without_looking_again",
            "deadlock",
        ),
        (
            "planted::an_owner_that_does_not_wait",
            "accessed after its end",
        ),
        (
            "planted::an_acknowledgment_that_comes_too_early",
            "acknowledged before it was placed",
        ),
        ("planted::an_interrupt_that_is_slept_through", "deadlock"),
    ]);
}

/// A consumer that does not look again between arming and sleeping.
#[test]
#[ignore = "fails: run by `planted_defects_are_found`"]
fn a_consumer_that_sleeps_without_looking_again() {
    model(3, || {
        let (mut a, mut b) = pair();
        let inbox = Inbox::open(Inbox::create().unwrap()).unwrap();
        let bell = Arc::new(ModelBell::default());
        let (theirs, their_bell) = (inbox.clone(), Arc::clone(&bell));
        let producer = thread::spawn(move || {
            assert!(send(&mut a, 0, 1));
            a.tx.publish();
            tell(&a, Attention::DATA, &theirs, &their_bell);
        });
        while receive(&mut b).is_none() {
            inbox.arm();
            bell.wait();
        }
        producer.join().unwrap();
    });
}

/// An owner that uses its memory again without waiting for accesses under way.
#[test]
#[ignore = "fails: run by `planted_defects_are_found`"]
fn an_owner_that_does_not_wait() {
    model(3, || {
        let segment = Arc::new(Segment::create("t", MR_TABLE_BYTES).unwrap());
        let table = MrTable::format(Arc::clone(&segment)).unwrap();
        region_taken_back(table, PeerMrs::open(segment).unwrap(), false);
    });
}

/// A responder that acknowledges first and places afterwards.
#[test]
#[ignore = "fails: run by `planted_defects_are_found`"]
fn an_acknowledgment_that_comes_too_early() {
    model(3, || {
        let (mut a, mut b) = pair();
        let placed = Arc::new(AtomicU64::new(0));
        let memory = Arc::clone(&placed);
        let responder = thread::spawn(move || {
            a.set_req_ack(1);
            a.publish_ack();
            memory.store(1, Ordering::Relaxed);
        });
        if b.req_ack() == 1 {
            let placed = placed.load(Ordering::Relaxed);
            assert_eq!(placed, 1, "acknowledged before it was placed");
        }
        responder.join().unwrap();
    });
}

/// An owner of a cell that sleeps without looking again.
#[test]
#[ignore = "fails: run by `planted_defects_are_found`"]
fn an_interrupt_that_is_slept_through() {
    model(3, || {
        let segment = Arc::new(Segment::create("t", INTERRUPT_BYTES).unwrap());
        causeway_shm::interrupt::format(Arc::clone(&segment)).unwrap();
        let mut trigger = Trigger::open(Arc::clone(&segment)).unwrap();
        let mut owner = Interrupt::open(segment).unwrap();
        let bell = Arc::new(ModelBell::default());
        let theirs = Arc::clone(&bell);
        let sender = thread::spawn(move || {
            trigger.trigger(&*theirs).unwrap();
        });
        let mut taken = owner.take();
        while taken < 1 {
            owner.arm();
            bell.wait();
            taken += owner.take();
        }
        sender.join().unwrap();
    });
}
