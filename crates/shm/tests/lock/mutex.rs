//! The mutex, and condition variables on it.

use crate::world::{World, late, soon};
use causeway_shm::lock::{Acquired, Condvar, Deadline, LockError, MUTEX_BYTES, MUTEX_MAGIC, Mutex};
use std::sync::atomic::{AtomicU64, Ordering};

const AT: usize = 128;
const COND_AT: usize = 256;

#[test]
fn only_what_was_made_is_opened() {
    let world = World::new();
    assert_eq!(
        Mutex::open(&world.memory, AT).err(),
        Some(LockError::Invalid)
    );
    Mutex::init(&world.memory, AT).unwrap();
    Mutex::open(&world.memory, AT).unwrap();
    for at in [
        0,
        64,
        AT + 8,
        4096,
        4096 - MUTEX_BYTES + 64,
        usize::MAX,
        usize::MAX - 63,
    ] {
        assert_eq!(
            Mutex::open(&world.memory, at).err(),
            Some(LockError::Invalid)
        );
    }
    assert_eq!(
        Condvar::open(&world.memory, AT).err(),
        Some(LockError::Invalid)
    );
    for at in [1, 8, 4096, usize::MAX - 63] {
        assert_eq!(
            Mutex::init(&world.memory, at).err(),
            Some(LockError::Invalid)
        );
    }
    assert_eq!(MUTEX_MAGIC.to_le_bytes(), *b"CWMUTX\0\x01");
}

#[test]
fn errors_of_the_living() {
    let world = World::new();
    let (a, b) = (world.process(1), world.process(2));
    let mutex = Mutex::init(&world.memory, AT).unwrap();
    assert_eq!(mutex.unlock(&a), Err(LockError::NotOwner));
    assert_eq!(mutex.lock(&a), Ok(Acquired::Clean));
    assert!(mutex.is_mine(&a) && !mutex.is_mine(&b));
    assert_eq!(mutex.holder().unwrap().life, a.life());
    assert_eq!(mutex.lock(&a), Err(LockError::Deadlock));
    assert_eq!(mutex.try_lock(&a), Err(LockError::Deadlock));
    assert_eq!(mutex.try_lock(&b), Err(LockError::Busy));
    assert_eq!(mutex.lock_until(&b, soon()), Err(LockError::TimedOut));
    assert_eq!(
        mutex.lock_until(&b, Deadline::at_realtime(1)),
        Err(LockError::TimedOut)
    );
    assert_eq!(mutex.unlock(&b), Err(LockError::NotOwner));
    assert_eq!(mutex.make_consistent(&a), Err(LockError::Invalid));
    // Another thread of the same process is another owner.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(mutex.try_lock(&a), Err(LockError::Busy));
            assert_eq!(mutex.unlock(&a), Err(LockError::NotOwner));
        });
    });
    assert_eq!(mutex.unlock(&a), Ok(()));
    assert!(mutex.holder().is_none());
    assert_eq!(mutex.try_lock(&b), Ok(Acquired::Clean));
}

#[test]
fn the_next_locker_is_told_of_a_death() {
    let world = World::new();
    let (a, b, c) = (world.process(1), world.process(2), world.process(3));
    let mutex = Mutex::init(&world.memory, AT).unwrap();
    assert_eq!(mutex.lock(&a), Ok(Acquired::Clean));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| mutex.lock_until(&b, late()));
        world.kill(&a);
        assert_eq!(waiter.join().unwrap(), Ok(Acquired::OwnerDead));
    });
    // That was the other thread: this one can't unlock for it. It dies too, unrepaired.
    world.kill(&b);
    assert_eq!(mutex.try_lock(&c), Ok(Acquired::OwnerDead));
    assert_eq!(mutex.make_consistent(&c), Ok(()));
    assert_eq!(mutex.make_consistent(&c), Err(LockError::Invalid));
    assert_eq!(mutex.unlock(&c), Ok(()));
    assert_eq!(mutex.lock(&c), Ok(Acquired::Clean));
}

#[test]
fn what_is_not_repaired_is_lost() {
    let world = World::new();
    let (a, b, c) = (world.process(1), world.process(2), world.process(3));
    let mutex = Mutex::init(&world.memory, AT).unwrap();
    assert_eq!(mutex.lock(&a), Ok(Acquired::Clean));
    world.kill(&a);
    assert_eq!(mutex.lock(&b), Ok(Acquired::OwnerDead));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| mutex.lock_until(&c, late()));
        while mutex.try_lock(&c) != Err(LockError::Busy) {}
        assert_eq!(mutex.unlock(&b), Ok(()));
        assert_eq!(waiter.join().unwrap(), Err(LockError::NotRecoverable));
    });
    assert_eq!(mutex.try_lock(&b), Err(LockError::NotRecoverable));
    assert_eq!(mutex.unlock(&b), Err(LockError::NotOwner));
}

/// An owner taken for dead that lives on can't give up what is another's by now.
#[test]
fn who_was_given_up_has_nothing() {
    let world = World::new();
    let (a, b) = (world.process(1), world.process(2));
    let mutex = Mutex::init(&world.memory, AT).unwrap();
    assert_eq!(mutex.lock(&a), Ok(Acquired::Clean));
    world.kill(&a);
    assert_eq!(mutex.lock(&b), Ok(Acquired::OwnerDead));
    assert_eq!(mutex.unlock(&a), Err(LockError::NotOwner));
    assert_eq!(mutex.make_consistent(&b), Ok(()));
    assert_eq!(mutex.unlock(&b), Ok(()));
}

#[test]
fn one_at_a_time() {
    const ROUNDS: u64 = 20_000;
    let world = World::new();
    let mutex = Mutex::init(&world.memory, AT).unwrap();
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for index in 0..4 {
            let (who, count) = (world.process(index / 2), &count);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    assert_eq!(mutex.lock(&who), Ok(Acquired::Clean));
                    let before = count.load(Ordering::Relaxed);
                    count.store(before + 1, Ordering::Relaxed);
                    mutex.unlock(&who).unwrap();
                }
            });
        }
    });
    assert_eq!(count.into_inner(), 4 * ROUNDS);
}

#[test]
fn a_wait_needs_the_mutex_and_gets_it_back() {
    let world = World::new();
    let who = world.process(1);
    let mutex = Mutex::init(&world.memory, AT).unwrap();
    let cond = Condvar::init(&world.memory, COND_AT).unwrap();
    assert_eq!(cond.wait(&who, mutex), Err(LockError::NotOwner));
    assert_eq!(mutex.lock(&who), Ok(Acquired::Clean));
    let woken = cond.wait_until(&who, mutex, soon()).unwrap();
    assert!(woken.timed_out && woken.mutex == Acquired::Clean && mutex.is_mine(&who));
    // A signal without waiters is gone.
    cond.signal(&who);
    cond.broadcast(&who);
    assert!(cond.wait_until(&who, mutex, soon()).unwrap().timed_out);
}

#[test]
fn a_wait_that_ends_on_a_dead_ones_mutex_says_so() {
    let world = World::new();
    let (a, b) = (world.process(1), world.process(2));
    let mutex = Mutex::init(&world.memory, AT).unwrap();
    let cond = Condvar::init(&world.memory, COND_AT).unwrap();
    std::thread::scope(|scope| {
        assert_eq!(mutex.lock(&a), Ok(Acquired::Clean));
        let waiter = scope.spawn(|| {
            let before = mutex.lock(&b).unwrap();
            let after = cond.wait_until(&b, mutex, late()).unwrap();
            (before, after)
        });
        while mutex.try_lock(&b) != Err(LockError::Busy) {}
        mutex.unlock(&a).unwrap();
        // Only while the other one waits can the mutex be had from it.
        while cond_waits(&world) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(mutex.lock(&a), Ok(Acquired::Clean));
        cond.signal(&a);
        world.kill(&a);
        let (before, after) = waiter.join().unwrap();
        assert_eq!(before, Acquired::Clean);
        assert_eq!((after.mutex, after.timed_out), (Acquired::OwnerDead, false));
    });
}

/// Whether the condition variable's word says that somebody sleeps.
fn cond_waits(world: &World) -> u64 {
    // SAFETY: an aligned word of a live mapping, accessed atomically by all.
    let word = unsafe { AtomicU64::from_ptr(world.segment.as_ptr().add(COND_AT + 8).cast()) };
    word.load(Ordering::SeqCst) & 1
}

/// A queue of one item: each side waits for the other, with signals only.
#[test]
fn ping_pong_loses_no_signal() {
    const ROUNDS: u64 = 5_000;
    let world = World::new();
    let mutex = Mutex::init(&world.memory, AT).unwrap();
    let cond = Condvar::init(&world.memory, COND_AT).unwrap();
    let turn = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for side in 0..2 {
            let (who, turn) = (world.process(side), &turn);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    assert_eq!(mutex.lock(&who), Ok(Acquired::Clean));
                    while turn.load(Ordering::Relaxed) % 2 != u64::from(side) {
                        let woken = cond.wait_until(&who, mutex, late()).unwrap();
                        assert!(!woken.timed_out);
                    }
                    turn.fetch_add(1, Ordering::Relaxed);
                    cond.signal(&who);
                    mutex.unlock(&who).unwrap();
                }
            });
        }
    });
    assert_eq!(turn.into_inner(), 2 * ROUNDS);
}
