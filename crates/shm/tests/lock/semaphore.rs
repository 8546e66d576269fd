//! The semaphore.

use crate::world::{World, late, soon};
use causeway_shm::lock::{LockError, SEMAPHORE_MAX, Semaphore};

const AT: usize = 64;

#[test]
fn a_semaphore_counts() {
    let world = World::new();
    let who = world.process(1);
    let semaphore = Semaphore::init(&world.memory, AT, 2).unwrap();
    assert_eq!(semaphore.wait(&who), Ok(()));
    assert_eq!(semaphore.try_wait(&who), Ok(()));
    assert_eq!(semaphore.try_wait(&who), Err(LockError::Busy));
    assert_eq!(semaphore.wait_until(&who, soon()), Err(LockError::TimedOut));
    semaphore.post(&who).unwrap();
    assert_eq!(semaphore.value(), 1);
    let too_much = Semaphore::init(&world.memory, AT, SEMAPHORE_MAX + 1);
    assert_eq!(too_much.err(), Some(LockError::Invalid));
    let full = Semaphore::init(&world.memory, AT, SEMAPHORE_MAX).unwrap();
    assert_eq!(full.post(&who), Err(LockError::Overflow));
    assert_eq!(full.value(), SEMAPHORE_MAX);
}

#[test]
fn every_token_is_had_once() {
    const TOKENS: u32 = 20_000;
    let world = World::new();
    let semaphore = Semaphore::init(&world.memory, AT, 0).unwrap();
    std::thread::scope(|scope| {
        for index in 0..3 {
            let who = world.process(index);
            scope.spawn(move || {
                for _ in 0..TOKENS {
                    semaphore.wait_until(&who, late()).unwrap();
                }
            });
        }
        let who = world.process(9);
        for _ in 0..3 * TOKENS {
            semaphore.post(&who).unwrap();
        }
    });
    assert_eq!(semaphore.value(), 0);
}
