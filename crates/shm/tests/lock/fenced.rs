//! A process that is taken for dead and is not gets nothing by its old life.

use crate::world::{World, late};
use causeway_shm::lock::{Acquired, Barrier, Condvar, LockError, Mutex, RwLock};
use std::sync::atomic::{AtomicBool, Ordering};

const AT: usize = 0;
const COND: usize = 64;
const OTHER: usize = 2048;

#[test]
fn it_takes_no_lock() {
    let world = World::new();
    let (a, b) = (world.process(1), world.process(2));
    let mutex = Mutex::init(&world.memory, AT).unwrap();
    let lock = RwLock::init(&world.memory, OTHER).unwrap();
    world.kill(&a);
    assert_eq!(mutex.lock(&a), Err(LockError::Fenced));
    assert_eq!(mutex.try_lock(&a), Err(LockError::Fenced));
    assert_eq!(lock.read(&a), Err(LockError::Fenced));
    assert_eq!(lock.write(&a), Err(LockError::Fenced));
    assert_eq!(mutex.try_lock(&b), Ok(Acquired::Clean), "left as it was");
    assert_eq!(lock.readers(), []);
    assert_eq!(lock.write_until(&b, late()), Ok(Acquired::Clean));
}

#[test]
fn what_it_had_it_has_lost() {
    let world = World::new();
    let (a, b) = (world.process(1), world.process(2));
    let mutex = Mutex::init(&world.memory, AT).unwrap();
    let lock = RwLock::init(&world.memory, OTHER).unwrap();
    assert_eq!(mutex.lock(&a), Ok(Acquired::Clean));
    assert_eq!(lock.read(&a), Ok(Acquired::Clean));
    world.kill(&a);
    assert_eq!(mutex.lock(&b), Ok(Acquired::OwnerDead));
    assert_eq!(lock.write_until(&b, late()), Ok(Acquired::Clean));
    assert_eq!(mutex.unlock(&a), Err(LockError::NotOwner));
    assert_eq!(lock.unlock(&a), Err(LockError::NotOwner));
    mutex.make_consistent(&b).unwrap();
    mutex.unlock(&b).unwrap();
    // What another left to be repaired stays so.
    assert_eq!(mutex.lock(&b), Ok(Acquired::Clean));
    world.kill(&b);
    assert_eq!(mutex.lock(&a), Err(LockError::Fenced));
    let c = world.process(3);
    assert_eq!(mutex.lock(&c), Ok(Acquired::OwnerDead));
}

#[test]
fn it_waits_no_longer() {
    let world = World::new();
    let (a, b) = (world.process(1), world.process(2));
    let mutex = Mutex::init(&world.memory, AT).unwrap();
    let cond = Condvar::init(&world.memory, COND).unwrap();
    let barrier = Barrier::init(&world.memory, OTHER, 2).unwrap();
    assert_eq!(mutex.lock(&b), Ok(Acquired::Clean));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| mutex.lock_until(&a, late()));
        let arrived = scope.spawn(|| barrier.wait_until(&a, late()));
        while barrier.arrived() == 0 {
            std::thread::yield_now();
        }
        world.kill(&a);
        assert_eq!(waiter.join().unwrap(), Err(LockError::Fenced));
        assert_eq!(arrived.join().unwrap(), Err(LockError::Broken));
    });
    assert_eq!(barrier.wait_until(&b, late()), Err(LockError::Broken));
    mutex.unlock(&b).unwrap();
    let (c, locked) = (world.process(3), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            assert_eq!(mutex.lock(&c), Ok(Acquired::Clean));
            locked.store(true, Ordering::Relaxed);
            let woken = cond.wait_until(&c, mutex, late());
            woken.map(|woken| woken.mutex)
        });
        while !locked.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        // It has it until it waits.
        assert_eq!(mutex.lock_until(&b, late()), Ok(Acquired::Clean));
        world.kill(&c);
        mutex.unlock(&b).unwrap();
        cond.broadcast(&b);
        assert_eq!(waiter.join().unwrap(), Err(LockError::Fenced));
    });
    assert_eq!(mutex.try_lock(&b), Ok(Acquired::Clean));
}
