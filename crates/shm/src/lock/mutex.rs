//! A robust mutex.

use super::error::{Acquired, LockError};
use super::layout::{MUTEX_BYTES, MUTEX_MAGIC};
use super::locker::{Locker, Waiting};
use super::memory::{Memory, Place};
use super::owner::{Holder, Owner};
use super::time::Deadline;

/// A mutex in shared memory, held by one thread of one process. A view: copies are the same mutex.
///
/// Waiters are not served in order: a thread that comes when it is free has it.
#[derive(Clone, Copy)]
pub struct Mutex<'m> {
    owner: Owner<'m>,
}

impl<'m> Mutex<'m> {
    /// Makes a mutex of the [`MUTEX_BYTES`] at `at`, whatever was there. Nobody may be using it.
    ///
    /// # Errors
    /// [`LockError::Invalid`]: not inside of the memory, or not aligned
    /// ([`super::LOCK_ALIGN`]).
    pub fn init(memory: &'m Memory, at: usize) -> Result<Mutex<'m>, LockError> {
        let place = Place::new(memory, at, MUTEX_BYTES)?;
        place.make(MUTEX_MAGIC);
        Mutex::open(memory, at)
    }

    /// The mutex at `at`.
    ///
    /// # Errors
    /// [`LockError::Invalid`]: there is none.
    #[inline]
    pub fn open(memory: &'m Memory, at: usize) -> Result<Mutex<'m>, LockError> {
        let place = Place::open(memory, at, MUTEX_BYTES, MUTEX_MAGIC)?;
        Ok(Mutex {
            owner: place.owner(),
        })
    }

    /// Locks it, however long that takes.
    ///
    /// # Errors
    /// [`LockError::Deadlock`] and [`LockError::NotRecoverable`].
    #[inline]
    pub fn lock(self, who: &Locker) -> Result<Acquired, LockError> {
        self.lock_until(who, Deadline::NEVER)
    }

    /// Locks it if nobody has it.
    ///
    /// # Errors
    /// [`LockError::Busy`], [`LockError::Deadlock`] (the calling thread has it) and
    /// [`LockError::NotRecoverable`].
    #[inline]
    pub fn try_lock(self, who: &Locker) -> Result<Acquired, LockError> {
        self.lock_until(who, Deadline::TRY)
    }

    /// Locks it, if possible until `until`.
    ///
    /// # Errors
    /// [`LockError::TimedOut`], and as for [`Mutex::lock`].
    #[inline]
    pub fn lock_until(self, who: &Locker, until: Deadline) -> Result<Acquired, LockError> {
        let acquired = if self.owner.try_take(who) {
            Acquired::Clean
        } else {
            self.owner.take(who, &mut Waiting::new(who, until))?
        };
        self.owner.check(who)?;
        self.owner.hold(who);
        Ok(acquired)
    }

    /// Unlocks it. If its last owner died, and [`Mutex::make_consistent`] was not called since, it
    /// is not recoverable from now on.
    ///
    /// # Errors
    /// [`LockError::NotOwner`]: the calling thread does not have it.
    #[inline]
    pub fn unlock(self, who: &Locker) -> Result<(), LockError> {
        self.owner.release(who, 1)
    }

    /// The caller, which was told [`Acquired::OwnerDead`], has repaired what the mutex protects.
    ///
    /// # Errors
    /// [`LockError::Invalid`]: it does not have it, or there was nothing to repair.
    pub fn make_consistent(self, who: &Locker) -> Result<(), LockError> {
        self.owner.make_consistent(who)
    }

    /// Whether the calling thread has it.
    #[must_use]
    pub fn is_mine(self, who: &Locker) -> bool {
        self.owner.is_mine(who)
    }

    /// Its owner now, for people to see.
    #[must_use]
    pub fn holder(self) -> Option<Holder> {
        self.owner.holder()
    }
}
