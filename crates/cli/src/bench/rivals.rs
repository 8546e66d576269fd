//! What locks are compared with: the C library's, shared between processes, and bare futexes.

use super::duel::Side;
use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, Ordering};

const MUTEX: usize = 0;
const ROBUST: usize = 1;
const RWLOCK: usize = 2;
const COND: usize = 3;
const SEMAPHORES: [usize; 2] = [4, 5];
const TURN: usize = 6;

/// Makes all of them.
pub fn make(side: &Side) {
    // SAFETY: each place is large enough and aligned, and nobody uses it yet; attributes are
    // initialized before they are used.
    unsafe {
        let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
        libc::pthread_mutexattr_init(&raw mut attributes);
        libc::pthread_mutexattr_setpshared(&raw mut attributes, libc::PTHREAD_PROCESS_SHARED);
        libc::pthread_mutex_init(side.rival(MUTEX), &raw const attributes);
        libc::pthread_mutexattr_setrobust(&raw mut attributes, libc::PTHREAD_MUTEX_ROBUST);
        libc::pthread_mutex_init(side.rival(ROBUST), &raw const attributes);
        let mut attributes: libc::pthread_rwlockattr_t = std::mem::zeroed();
        libc::pthread_rwlockattr_init(&raw mut attributes);
        libc::pthread_rwlockattr_setpshared(&raw mut attributes, libc::PTHREAD_PROCESS_SHARED);
        libc::pthread_rwlock_init(side.rival(RWLOCK), &raw const attributes);
        let mut attributes: libc::pthread_condattr_t = std::mem::zeroed();
        libc::pthread_condattr_init(&raw mut attributes);
        libc::pthread_condattr_setpshared(&raw mut attributes, libc::PTHREAD_PROCESS_SHARED);
        libc::pthread_cond_init(side.rival(COND), &raw const attributes);
        for semaphore in SEMAPHORES {
            libc::sem_init(side.rival(semaphore), 1, 0);
        }
    }
}

/// Both lock, change a word and unlock.
pub fn mutex(side: &Side, turns: u64) {
    lock_and_unlock(side, turns, side.rival(MUTEX));
}

/// The same with a robust mutex.
pub fn robust(side: &Side, turns: u64) {
    lock_and_unlock(side, turns, side.rival(ROBUST));
}

fn lock_and_unlock(side: &Side, turns: u64, mutex: *mut libc::pthread_mutex_t) {
    let data = side.data();
    for _ in 0..turns {
        // SAFETY: made by `make`, in memory that stays.
        unsafe { libc::pthread_mutex_lock(mutex) };
        data.store(data.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // SAFETY: as above, and locked.
        unsafe { libc::pthread_mutex_unlock(mutex) };
    }
}

/// Locks for reading and unlocks.
pub fn read(side: &Side, turns: u64) {
    let lock: *mut libc::pthread_rwlock_t = side.rival(RWLOCK);
    for _ in 0..turns {
        // SAFETY: made by `make`, in memory that stays; unlocked by the thread that has locked.
        unsafe {
            libc::pthread_rwlock_rdlock(lock);
            libc::pthread_rwlock_unlock(lock);
        }
    }
}

/// Locks for writing and unlocks.
pub fn write(side: &Side, turns: u64) {
    let lock: *mut libc::pthread_rwlock_t = side.rival(RWLOCK);
    for _ in 0..turns {
        // SAFETY: as above.
        unsafe {
            libc::pthread_rwlock_wrlock(lock);
            libc::pthread_rwlock_unlock(lock);
        }
    }
}

/// Posts and takes.
pub fn semaphore(side: &Side, turns: u64) {
    let semaphore: *mut libc::sem_t = side.rival(SEMAPHORES[0]);
    for _ in 0..turns {
        // SAFETY: made by `make`, in memory that stays.
        unsafe {
            libc::sem_post(semaphore);
            libc::sem_wait(semaphore);
        }
    }
}

/// Each wakes the other by a semaphore and waits for its own.
pub fn semaphore_turns(side: &Side, turns: u64) {
    let mine: *mut libc::sem_t = side.rival(SEMAPHORES[side.index]);
    let other: *mut libc::sem_t = side.rival(SEMAPHORES[1 - side.index]);
    for _ in 0..turns {
        // SAFETY: as above.
        unsafe {
            if side.index == 0 {
                libc::sem_post(other);
                libc::sem_wait(mine);
            } else {
                libc::sem_wait(mine);
                libc::sem_post(other);
            }
        }
    }
}

/// Each waits for its turn on a condition variable.
pub fn condvar_turns(side: &Side, turns: u64) {
    let mutex: *mut libc::pthread_mutex_t = side.rival(MUTEX);
    let cond: *mut libc::pthread_cond_t = side.rival(COND);
    let data = side.data();
    for _ in 0..turns {
        // SAFETY: made by `make`, in memory that stays; the mutex is locked when it must be.
        unsafe {
            libc::pthread_mutex_lock(mutex);
            while data.load(Ordering::Relaxed) % 2 != side.index as u64 {
                libc::pthread_cond_wait(cond, mutex);
            }
            data.store(data.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            libc::pthread_cond_signal(cond);
            libc::pthread_mutex_unlock(mutex);
        }
    }
}

/// Each sleeps on a bare futex until it is its turn.
pub fn futex_turns(side: &Side, turns: u64) {
    // SAFETY: aligned, in memory that stays, and accessed atomically by both.
    let turn = unsafe { AtomicU32::from_ptr(side.rival(TURN)) };
    let flags = futex::Flags::empty();
    for _ in 0..turns {
        loop {
            let seen = turn.load(Ordering::Acquire);
            if seen as usize % 2 == side.index {
                break;
            }
            let _ = futex::wait(turn, flags, seen, None);
        }
        turn.fetch_add(1, Ordering::Release);
        let _ = futex::wake(turn, flags, 1);
    }
}
