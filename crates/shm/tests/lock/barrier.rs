//! The barrier.

use crate::world::{World, late, soon};
use causeway_shm::life::Life;
use causeway_shm::lock::{Barrier, Deadline, LockError, Locker, RECORDS};
use std::sync::atomic::{AtomicU64, Ordering};

const AT: usize = 2048;

#[test]
fn all_or_nobody() {
    const ROUNDS: u64 = 3_000;
    let world = World::new();
    let barrier = Barrier::init(&world.memory, AT, 3).unwrap();
    let (count, last) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for index in 0..3 {
            let (who, count, last) = (world.process(index), &count, &last);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    count.fetch_add(1, Ordering::Relaxed);
                    if barrier.wait_until(&who, late()).unwrap() {
                        last.fetch_add(1, Ordering::Relaxed);
                    }
                    assert!(count.load(Ordering::Relaxed) >= 3 * round);
                    assert!(count.load(Ordering::Relaxed) <= 3 * round + 2);
                }
            });
        }
    });
    assert_eq!(last.into_inner(), ROUNDS);
}

#[test]
fn who_gives_up_has_not_arrived() {
    let world = World::new();
    let (a, b) = (world.process(1), world.process(2));
    for parties in [0, 0x1_0000] {
        let made = Barrier::init(&world.memory, AT, parties);
        assert_eq!(made.err(), Some(LockError::Invalid));
    }
    let barrier = Barrier::init(&world.memory, AT, 2).unwrap();
    assert_eq!(barrier.wait_until(&a, soon()), Err(LockError::TimedOut));
    assert_eq!(barrier.wait_until(&b, Deadline::TRY), Err(LockError::Busy));
    assert_eq!((barrier.arrived(), barrier.participants()), (0, vec![]));
    assert_eq!(barrier.leave(&a), Err(LockError::NotOwner));
    assert_eq!(
        Barrier::init(&world.memory, AT, 1).unwrap().wait(&a),
        Ok(true)
    );
}

#[test]
fn a_death_breaks_it_until_it_is_mended() {
    let world = World::new();
    let (a, b, c) = (world.process(1), world.process(2), world.process(3));
    let barrier = Barrier::init(&world.memory, AT, 2).unwrap();
    // Before it arrived: it had joined.
    barrier.join(&a).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| barrier.wait_until(&b, late()));
        while barrier.arrived() == 0 {
            std::thread::yield_now();
        }
        world.kill(&a);
        assert_eq!(waiter.join().unwrap(), Err(LockError::Broken));
    });
    assert_eq!(barrier.wait(&c), Err(LockError::Broken));
    barrier.mend(&c).unwrap();
    assert_eq!(barrier.participants(), []);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| barrier.wait_until(&b, late()));
        let mine = barrier.wait_until(&c, late()).unwrap();
        assert_ne!(other.join().unwrap().unwrap(), mine);
    });
    // While it waits: the thread stands for a process that is gone.
    std::thread::scope(|scope| {
        let dying = scope.spawn(|| barrier.wait_until(&b, late()));
        while barrier.arrived() == 0 {
            std::thread::yield_now();
        }
        world.kill(&b);
        assert_eq!(barrier.wait_until(&c, late()), Err(LockError::Broken));
        let _ = dying.join().unwrap();
    });
}

/// A participant that has joined dies, another one waits, and a third does something before the one
/// that waits is told of the death: it hears of it all the same.
fn hears_of_a_death(joined: usize, then: impl FnOnce(Barrier<'_>, &Locker)) {
    let world = World::new();
    let barrier = Barrier::init(&world.memory, AT, 2).unwrap();
    let mut processes = (0..).map(|index| world.process(index));
    let joined: Vec<Locker> = processes.by_ref().take(joined).collect();
    for who in &joined {
        barrier.join(who).unwrap();
    }
    let (b, c) = (processes.next().unwrap(), processes.next().unwrap());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| barrier.wait_until(&b, late()));
        while barrier.arrived() == 0 {
            std::thread::yield_now();
        }
        world.writer.end(joined[0].life());
        then(barrier, &c);
        world.writer.announce();
        assert_eq!(waiter.join().unwrap(), Err(LockError::Broken));
    });
}

#[test]
fn a_death_is_not_mended_before_it_is_told() {
    hears_of_a_death(1, |barrier, who| {
        barrier.mend(who).unwrap();
        let dead = |&(life, _): &(Life, u16)| life.index == 0;
        assert!(!barrier.participants().iter().any(dead), "forgotten");
    });
}

#[test]
fn the_record_of_a_dead_participant_is_not_anothers() {
    hears_of_a_death(RECORDS - 1, |barrier, who| {
        assert_eq!(barrier.join(who), Err(LockError::Broken));
        barrier.mend(who).unwrap();
        barrier.join(who).unwrap();
    });
}
