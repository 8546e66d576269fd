//! A death that nobody could tell of: found when the lease is over.

use crate::world::{World, late};
use causeway_shm::life::{Life, LifeTable};
use causeway_shm::lock::{Acquired, Barrier, Futex, Liveness, LockError, Locker, Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const MUTEX: usize = 0;
const RWLOCK: usize = 1024;
const BARRIER: usize = 2048;

/// The table says that all live, and only an answer to a question says better.
struct Oracle {
    table: LifeTable,
    dead: Life,
    asked: Arc<AtomicU32>,
}

impl Liveness for Oracle {
    fn is_alive(&self, _: Life) -> bool {
        true
    }

    fn deaths(&self) -> u32 {
        Liveness::deaths(&self.table)
    }

    fn confirm(&self, life: Life) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        life != self.dead
    }
}

/// A process that hears of a death by asking, and how often it asks.
fn asking(world: &World, index: u16, dead: &Locker) -> (Locker, Arc<AtomicU32>) {
    let me = world.process(index).life();
    let asked = Arc::new(AtomicU32::new(0));
    let table = world.writer.table();
    let oracle = Oracle {
        table: table.clone(),
        dead: dead.life(),
        asked: Arc::clone(&asked),
    };
    let who = Locker::new(me, Arc::new(oracle), Arc::new(Futex::new(table)));
    (who, asked)
}

#[test]
fn an_owner_is_asked_after() {
    let world = World::new();
    let dead = world.process(1);
    let (who, asked) = asking(&world, 2, &dead);
    let mutex = Mutex::init(&world.memory, MUTEX).unwrap();
    assert_eq!(mutex.lock(&dead), Ok(Acquired::Clean));
    assert_eq!(mutex.try_lock(&who), Err(LockError::Busy));
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    assert_eq!(mutex.lock_until(&who, late()), Ok(Acquired::OwnerDead));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn a_living_owner_keeps_what_it_has() {
    let world = World::new();
    let (owner, dead) = (world.process(1), world.process(3));
    let (who, asked) = asking(&world, 2, &dead);
    let mutex = Mutex::init(&world.memory, MUTEX).unwrap();
    std::thread::scope(|scope| {
        assert_eq!(mutex.lock(&owner), Ok(Acquired::Clean));
        let waiter = scope.spawn(|| mutex.lock_until(&who, late()));
        while asked.load(Ordering::Relaxed) < 2 {
            std::thread::yield_now();
        }
        mutex.unlock(&owner).unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(Acquired::Clean));
    });
}

#[test]
fn readers_writers_and_participants_are_asked_after() {
    let world = World::new();
    let dead = world.process(1);
    let (who, _) = asking(&world, 2, &dead);
    let lock = RwLock::init(&world.memory, RWLOCK).unwrap();
    assert_eq!(lock.read(&dead), Ok(Acquired::Clean));
    assert_eq!(lock.write_until(&who, late()), Ok(Acquired::Clean));
    lock.unlock(&who).unwrap();
    assert_eq!(lock.write(&dead), Ok(Acquired::Clean));
    assert_eq!(lock.read_until(&who, late()), Ok(Acquired::OwnerDead));
    let barrier = Barrier::init(&world.memory, BARRIER, 2).unwrap();
    barrier.join(&dead).unwrap();
    assert_eq!(barrier.wait_until(&who, late()), Err(LockError::Broken));
}
