//! What is measured of our locks.

use super::duel::{BARRIER, COND, MUTEX, RWLOCK, SEMAPHORES, Side};
use causeway_shm::lock::{Acquired, Barrier, Condvar, Mutex, RwLock, Semaphore};
use std::sync::atomic::Ordering;

/// Of two honest processes that live, neither is told of a death.
const CLEAN: Acquired = Acquired::Clean;

/// Locks, changes a word and unlocks.
pub fn mutex(side: &Side, turns: u64) {
    let data = side.data();
    let mutex = Mutex::open(&side.memory, MUTEX).expect("made");
    for _ in 0..turns {
        assert_eq!(mutex.lock(&side.who), Ok(CLEAN));
        data.store(data.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        mutex.unlock(&side.who).expect("locked");
    }
}

/// Locks for reading and unlocks.
pub fn read(side: &Side, turns: u64) {
    let lock = RwLock::open(&side.memory, RWLOCK).expect("made");
    for _ in 0..turns {
        assert_eq!(lock.read(&side.who), Ok(CLEAN));
        lock.unlock(&side.who).expect("locked");
    }
}

/// Locks for writing and unlocks.
pub fn write(side: &Side, turns: u64) {
    let lock = RwLock::open(&side.memory, RWLOCK).expect("made");
    for _ in 0..turns {
        assert_eq!(lock.write(&side.who), Ok(CLEAN));
        lock.unlock(&side.who).expect("locked");
    }
}

/// Posts and takes.
pub fn semaphore(side: &Side, turns: u64) {
    let semaphore = Semaphore::open(&side.memory, SEMAPHORES[0]).expect("made");
    for _ in 0..turns {
        semaphore.post(&side.who).expect("room");
        semaphore.wait(&side.who).expect("a token");
    }
}

/// Each wakes the other by a semaphore and waits for its own.
pub fn semaphore_turns(side: &Side, turns: u64) {
    let mine = Semaphore::open(&side.memory, SEMAPHORES[side.index]).expect("made");
    let other = Semaphore::open(&side.memory, SEMAPHORES[1 - side.index]).expect("made");
    for _ in 0..turns {
        if side.index == 0 {
            other.post(&side.who).expect("room");
            mine.wait(&side.who).expect("a token");
        } else {
            mine.wait(&side.who).expect("a token");
            other.post(&side.who).expect("room");
        }
    }
}

/// Each waits for its turn on a condition variable.
pub fn condvar_turns(side: &Side, turns: u64) {
    let data = side.data();
    let mutex = Mutex::open(&side.memory, MUTEX).expect("made");
    let cond = Condvar::open(&side.memory, COND).expect("made");
    for _ in 0..turns {
        assert_eq!(mutex.lock(&side.who), Ok(CLEAN));
        while data.load(Ordering::Relaxed) % 2 != side.index as u64 {
            let woken = cond.wait(&side.who, mutex).expect("locked");
            assert_eq!(woken.mutex, CLEAN);
        }
        data.store(data.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        cond.signal(&side.who);
        mutex.unlock(&side.who).expect("locked");
    }
}

/// Both meet.
pub fn barrier(side: &Side, turns: u64) {
    let barrier = Barrier::open(&side.memory, BARRIER).expect("made");
    for _ in 0..turns {
        barrier.wait(&side.who).expect("both live");
    }
}
