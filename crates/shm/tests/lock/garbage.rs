//! Objects full of rubbish: every call comes back, whatever it says.

use crate::world::{BLOCK, World};
use causeway_shm::lock::{
    BARRIER_MAGIC, Barrier, CONDVAR_MAGIC, Condvar, Deadline, Locker, MUTEX_MAGIC, Mutex,
    RWLOCK_MAGIC, RwLock, SEMAPHORE_MAGIC, Semaphore,
};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const MUTEX: usize = 0;
const COND: usize = 64;
const SEMAPHORE: usize = 128;
const RWLOCK: usize = 1024;
const BARRIER: usize = 2048;
const OBJECTS: [(usize, u64); 5] = [
    (MUTEX, MUTEX_MAGIC),
    (COND, CONDVAR_MAGIC),
    (SEMAPHORE, SEMAPHORE_MAGIC),
    (RWLOCK, RWLOCK_MAGIC),
    (BARRIER, BARRIER_MAGIC),
];

fn word(world: &World, at: usize) -> &AtomicU64 {
    assert!(at < BLOCK && at.is_multiple_of(8));
    // SAFETY: an aligned word inside of a live mapping, accessed atomically by all.
    unsafe { AtomicU64::from_ptr(world.segment.as_ptr().add(at).cast()) }
}

/// Rubbish, with magic words.
fn fill(world: &World, mut value: impl FnMut() -> u64) {
    for at in (0..BLOCK).step_by(8) {
        if !OBJECTS.iter().any(|&(object, _)| object == at) {
            word(world, at).store(value(), Ordering::Relaxed);
        }
    }
    for (at, magic) in OBJECTS {
        word(world, at).store(magic, Ordering::Release);
    }
}

/// Calls everything there is.
fn use_all(world: &World, who: &Locker) {
    let memory = &world.memory;
    let brief = || Deadline::after(Duration::from_micros(50));
    let mutex = Mutex::open(memory, MUTEX).unwrap();
    let cond = Condvar::open(memory, COND).unwrap();
    let _ = mutex.try_lock(who);
    if mutex.lock_until(who, brief()).is_ok() {
        let _ = cond.wait_until(who, mutex, brief());
        let _ = mutex.make_consistent(who);
    }
    let _ = mutex.unlock(who);
    cond.signal(who);
    cond.broadcast(who);
    let semaphore = Semaphore::open(memory, SEMAPHORE).unwrap();
    let _ = semaphore.post(who);
    let _ = semaphore.wait_until(who, brief());
    let lock = RwLock::open(memory, RWLOCK).unwrap();
    let _ = lock.read_until(who, brief());
    let _ = lock.unlock(who);
    let _ = lock.write_until(who, brief());
    let _ = lock.make_consistent(who);
    let _ = lock.unlock(who);
    let _ = (lock.readers(), lock.writer(), mutex.holder());
    let barrier = Barrier::open(memory, BARRIER).unwrap();
    let _ = barrier.join(who);
    let _ = barrier.wait_until(who, brief());
    let _ = barrier.leave(who);
    let _ = barrier.mend(who);
}

proptest! {
    #[test]
    fn whatever_stands_there(words in proptest::collection::vec(any::<u64>(), 64)) {
        let world = World::new();
        let who = world.process(1);
        let mut next = words.into_iter().cycle();
        fill(&world, || next.next().unwrap());
        use_all(&world, &who);
        use_all(&world, &who);
    }

    /// Words that differ little from good ones.
    #[test]
    fn whatever_nearly_fits(words in proptest::collection::vec(0..64u32, 64), low in 0..4u64) {
        let world = World::new();
        let who = world.process(1);
        let mut next = words.into_iter().cycle();
        fill(&world, || 1u64 << next.next().unwrap() | low);
        use_all(&world, &who);
        use_all(&world, &who);
    }
}

#[test]
fn somebody_writes_rubbish_all_the_time() {
    const CALLS: u32 = 1_000;
    let world = World::new();
    let who = world.process(1);
    let done = AtomicBool::new(false);
    fill(&world, || 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 1u64;
            while !done.load(Ordering::Relaxed) {
                fill(&world, || {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    // Of the lives that are named, one is the caller's.
                    state.rotate_left(23) & !(0xfffe << 32) & !0xfffe
                });
            }
        });
        for _ in 0..CALLS {
            use_all(&world, &who);
        }
        done.store(true, Ordering::Relaxed);
    });
}
