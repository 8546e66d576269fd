//! Locks.

use causeway_shm::lock::{Acquired, LockError};

use super::*;
use crate::sync::{Barrier, Condvar, Mutex, RwLock, Semaphore};

fn acquired(outcome: Acquired) -> c_int {
    match outcome {
        Acquired::Clean => 0,
        Acquired::OwnerDead => CW_OWNER_DEAD,
    }
}

fn offset_of(offset: u64) -> Result<usize> {
    usize::try_from(offset).map_err(|_| Error::Lock(LockError::Invalid))
}

/// Declares functions of objects: name, type, parameters, and what they do with the object. They
/// have no shield, which would cost as much as a lock does: what they ask of the broker they ask
/// with cancellation off (`CwBlock::map`, `Knows::confirm`, `Handle::renew_life`).
macro_rules! functions {
    ($($name:ident($object:ident: $type:ident $(, $arg:ident: $arg_type:ty)*) $body:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As the header says of objects.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            block: *mut CwBlock,
            offset: u64
            $(, $arg: $arg_type)*
        ) -> c_int {
            let call = || -> Result<c_int> {
                // SAFETY: the caller's promise.
                let mapping = unsafe { named(block) }?.writable()?;
                let $object = $type::borrowed(mapping, offset_of(offset)?);
                $body
            };
            outcome(call())
        }
    )*};
}

/// Declares functions that make objects.
macro_rules! makers {
    ($($name:ident, $type:ident $(, $value:ident)?;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As the header says of objects.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            block: *mut CwBlock,
            offset: u64
            $(, $value: u32)?
        ) -> c_int {
            answer(|| {
                // SAFETY: the caller's promise.
                let mapping = unsafe { named(block) }?.writable()?;
                $type::init(mapping, offset_of(offset)? $(, $value)?)?;
                Ok(0)
            })
        }
    )*};
}

makers! {
    cw_mutex_init, Mutex;
    cw_rwlock_init, RwLock;
    cw_cond_init, Condvar;
    cw_sem_init, Semaphore, value;
    cw_barrier_init, Barrier, parties;
}

functions! {
    cw_mutex_lock(mutex: Mutex) mutex.lock().map(acquired);
    cw_mutex_trylock(mutex: Mutex) mutex.try_lock().map(acquired);
    cw_mutex_timedlock(mutex: Mutex, wait_ns: i64) match time(wait_ns) {
        None => mutex.lock().map(acquired),
        Some(timeout) => mutex.lock_within(timeout).map(acquired),
    };
    cw_mutex_unlock(mutex: Mutex) mutex.unlock().map(|()| 0);
    cw_mutex_consistent(mutex: Mutex) mutex.make_consistent().map(|()| 0);

    cw_rwlock_rdlock(lock: RwLock, wait_ns: i64) lock.read(time(wait_ns)).map(acquired);
    cw_rwlock_tryrdlock(lock: RwLock) lock.try_read().map(acquired);
    cw_rwlock_wrlock(lock: RwLock, wait_ns: i64) lock.write(time(wait_ns)).map(acquired);
    cw_rwlock_trywrlock(lock: RwLock) lock.try_write().map(acquired);
    cw_rwlock_unlock(lock: RwLock) lock.unlock().map(|()| 0);
    cw_rwlock_consistent(lock: RwLock) lock.make_consistent().map(|()| 0);

    cw_cond_signal(condvar: Condvar) condvar.signal().map(|()| 0);
    cw_cond_broadcast(condvar: Condvar) condvar.broadcast().map(|()| 0);

    cw_sem_wait(semaphore: Semaphore, wait_ns: i64) semaphore.wait(time(wait_ns)).map(|()| 0);
    cw_sem_trywait(semaphore: Semaphore) semaphore.try_wait().map(|()| 0);
    cw_sem_post(semaphore: Semaphore) semaphore.post().map(|()| 0);
    cw_sem_value(semaphore: Semaphore) {
        let value = semaphore.value()?;
        Ok(c_int::try_from(value).unwrap_or(c_int::MAX))
    };

    cw_barrier_wait(barrier: Barrier, wait_ns: i64) {
        let last = barrier.wait(time(wait_ns))?;
        Ok(if last { CW_SERIAL } else { 0 })
    };
    cw_barrier_join(barrier: Barrier) barrier.join().map(|()| 0);
    cw_barrier_leave(barrier: Barrier) barrier.leave().map(|()| 0);
    cw_barrier_mend(barrier: Barrier) barrier.mend().map(|()| 0);
}

/// `cw_cond_wait`.
///
/// # Safety
/// As the header says of objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cw_cond_wait(
    block: *mut CwBlock,
    offset: u64,
    mutex: u64,
    wait_ns: i64,
) -> c_int {
    let call = || {
        // SAFETY: the caller's promise.
        let mapping = unsafe { named(block) }?.writable()?;
        let condvar = Condvar::borrowed(mapping, offset_of(offset)?);
        let mutex = Mutex::borrowed(mapping, offset_of(mutex)?);
        let woken = condvar.wait(&mutex, time(wait_ns))?;
        match woken.mutex {
            Acquired::OwnerDead => Ok(CW_OWNER_DEAD),
            Acquired::Clean if woken.timed_out => Err(Error::Lock(LockError::TimedOut)),
            Acquired::Clean => Ok(0),
        }
    };
    outcome(call())
}
