//! The reader-writer lock.

use crate::world::{World, late, soon};
use causeway_shm::lock::{Acquired, Deadline, LockError, Locker, RECORDS, RwLock};
use std::sync::atomic::{AtomicU64, Ordering};

const AT: usize = 1024;
const CLEAN: Result<Acquired, LockError> = Ok(Acquired::Clean);
const OWNER_DEAD: Result<Acquired, LockError> = Ok(Acquired::OwnerDead);

fn lock(world: &World) -> RwLock<'_> {
    RwLock::init(&world.memory, AT).unwrap()
}

#[test]
fn readers_share_and_writers_do_not() {
    let world = World::new();
    let (a, b) = (world.process(1), world.process(2));
    let lock = lock(&world);
    assert_eq!(lock.unlock(&a), Err(LockError::NotOwner));
    assert_eq!((lock.read(&a), lock.read(&b)), (CLEAN, CLEAN));
    assert_eq!(lock.readers().len(), 2);
    assert_eq!(lock.write_until(&b, Deadline::TRY), Err(LockError::Busy));
    assert_eq!(lock.write_until(&b, soon()), Err(LockError::TimedOut));
    assert!(lock.writer().is_none(), "who gives up leaves nothing");
    lock.unlock(&a).unwrap();
    lock.unlock(&b).unwrap();
    assert_eq!(lock.unlock(&b), Err(LockError::NotOwner));
    assert_eq!(lock.write(&a), CLEAN);
    assert_eq!(lock.write(&a), Err(LockError::Deadlock));
    assert_eq!(lock.read(&a), Err(LockError::Deadlock));
    assert_eq!(lock.read_until(&b, Deadline::TRY), Err(LockError::Busy));
    assert_eq!(lock.read_until(&b, soon()), Err(LockError::TimedOut));
    assert_eq!(lock.unlock(&b), Err(LockError::NotOwner));
    lock.unlock(&a).unwrap();
    assert_eq!(lock.read_until(&b, Deadline::TRY), CLEAN);
}

#[test]
fn a_dead_reader_gives_its_share_back() {
    let world = World::new();
    let (a, b) = (world.process(1), world.process(2));
    let lock = lock(&world);
    assert_eq!((lock.read(&a), lock.read(&a)), (CLEAN, CLEAN));
    assert_eq!(lock.readers(), [(a.life(), 2)]);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let result = lock.write_until(&b, late());
            lock.unlock(&b).unwrap();
            result
        });
        while lock.writer().is_none() {
            std::thread::yield_now();
        }
        world.kill(&a);
        assert_eq!(writer.join().unwrap(), CLEAN);
    });
    assert_eq!(lock.readers(), []);
}

#[test]
fn who_comes_after_a_dead_writer_repairs() {
    let world = World::new();
    let (a, b) = (world.process(1), world.process(2));
    let lock = lock(&world);
    for read in [false, true] {
        let dying = world.process(10 + u16::from(read));
        assert_eq!(lock.write(&dying), CLEAN);
        world.kill(&dying);
        let told = if read { lock.read(&a) } else { lock.write(&a) };
        assert_eq!(told, OWNER_DEAD);
        // It has the lock for writing, however it asked.
        assert_eq!(lock.read_until(&b, Deadline::TRY), Err(LockError::Busy));
        lock.make_consistent(&a).unwrap();
        lock.unlock(&a).unwrap();
        assert_eq!(lock.read(&b), CLEAN);
        lock.unlock(&b).unwrap();
    }
    assert_eq!(lock.write(&a), CLEAN);
    world.kill(&a);
    assert_eq!(lock.read(&b), OWNER_DEAD);
    lock.unlock(&b).unwrap();
    assert_eq!(lock.read(&b), Err(LockError::NotRecoverable));
    assert_eq!(lock.write(&b), Err(LockError::NotRecoverable));
}

/// A writer that dies while it waits for readers has changed nothing.
#[test]
fn a_writer_that_died_waiting_leaves_no_trace() {
    let world = World::new();
    let (a, b, c) = (world.process(1), world.process(2), world.process(3));
    let lock = lock(&world);
    assert_eq!(lock.read(&a), CLEAN);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| lock.write_until(&b, late()));
        while lock.writer().is_none() {
            std::thread::yield_now();
        }
        // To the others it is dead; the thread in its place finds that out and gives up.
        world.kill(&b);
        match lock.read_until(&c, Deadline::TRY) {
            Err(LockError::Busy) => {}
            outcome => {
                assert_eq!(outcome, CLEAN, "after it had given up");
                lock.unlock(&c).unwrap();
            }
        }
        lock.unlock(&a).unwrap();
        assert_eq!(lock.read_until(&c, late()), CLEAN);
        lock.unlock(&c).unwrap();
        assert_eq!(writer.join().unwrap(), Err(LockError::Fenced));
    });
}

#[test]
fn the_records_of_the_dead_are_used_again() {
    let world = World::new();
    let lock = lock(&world);
    let processes: Vec<Locker> = (0..RECORDS as u16).map(|i| world.process(i)).collect();
    for who in &processes {
        assert_eq!(lock.read(who), CLEAN);
    }
    let one_more = world.process(999);
    assert_eq!(lock.read(&one_more), Err(LockError::TooMany));
    assert_eq!(lock.read(&processes[5]), CLEAN);
    world.kill(&processes[9]);
    assert_eq!(lock.read(&one_more), CLEAN);
    assert_eq!(lock.readers().len(), RECORDS);
}

#[test]
fn no_reader_sees_half_a_write() {
    const ROUNDS: u64 = 10_000;
    let world = World::new();
    let lock = lock(&world);
    let (first, second) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for index in 0..4 {
            let (who, first, second) = (world.process(index), &first, &second);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    if (round + u64::from(index)) % 4 == 0 {
                        assert_eq!(lock.write(&who), CLEAN);
                        let value = first.load(Ordering::Relaxed) + 1;
                        first.store(value, Ordering::Relaxed);
                        second.store(value, Ordering::Relaxed);
                    } else {
                        assert_eq!(lock.read(&who), CLEAN);
                        let value = first.load(Ordering::Relaxed);
                        assert_eq!(value, second.load(Ordering::Relaxed));
                    }
                    lock.unlock(&who).unwrap();
                }
            });
        }
    });
    assert_eq!(first.into_inner(), ROUNDS);
}
