//! A reader-writer lock in shared memory.
//!
//! Readers enter a record of their process and then look for a writer; a writer takes the word of
//! the lock and then waits until no entry is left. Those two steps are sequentially consistent, so
//! that one of the two sees the other. A reader that finds a writer leaves again: writers go
//! before readers. What a dead process has is in its record, and the next writer takes it back.

use super::error::{Acquired, LockError};
use super::event::{ALL, Event};
use super::layout::{DRAIN, RWLOCK_BYTES, RWLOCK_MAGIC};
use super::locker::{Locker, Waiting, Woke};
use super::memory::{Memory, Place};
use super::owner::{Holder, Owner};
use super::records::Records;
use super::time::Deadline;
use crate::life::Life;
use crate::sync::{AtomicU64, model_fence};

/// A reader-writer lock in shared memory. A view: copies are the same lock.
///
/// At most [`super::RECORDS`] processes can read at once. A thread that reads must not begin to
/// read again: if a writer waits, it waits for the first and holds up the second. Writers that
/// come without end keep readers out.
#[derive(Clone, Copy)]
pub struct RwLock<'m> {
    owner: Owner<'m>,
    records: Records<'m>,
    drain: Event<'m>,
    spins: &'m AtomicU64,
}

impl<'m> RwLock<'m> {
    /// Makes a lock of the [`RWLOCK_BYTES`] at `at`. Nobody may be using it.
    ///
    /// # Errors
    /// [`LockError::Invalid`]: not inside of the memory, or not aligned.
    pub fn init(memory: &'m Memory, at: usize) -> Result<RwLock<'m>, LockError> {
        Place::new(memory, at, RWLOCK_BYTES)?.make(RWLOCK_MAGIC);
        RwLock::open(memory, at)
    }

    /// The lock at `at`.
    ///
    /// # Errors
    /// [`LockError::Invalid`]: there is none.
    #[inline]
    pub fn open(memory: &'m Memory, at: usize) -> Result<RwLock<'m>, LockError> {
        let place = Place::open(memory, at, RWLOCK_BYTES, RWLOCK_MAGIC)?;
        Ok(RwLock {
            owner: place.owner(),
            records: place.records(),
            drain: Event(place.word(DRAIN)),
            spins: place.spins(),
        })
    }

    /// Locks it for reading. If a writer died, the caller is told so and has it *for writing*,
    /// that it may repair what it protects ([`RwLock::make_consistent`]).
    ///
    /// # Errors
    /// As for [`RwLock::read_until`].
    pub fn read(self, who: &Locker) -> Result<Acquired, LockError> {
        self.read_until(who, Deadline::NEVER)
    }

    /// The same, until `until` at the latest.
    ///
    /// # Errors
    /// [`LockError::Busy`] and [`LockError::TimedOut`], by the deadline; [`LockError::TooMany`];
    /// [`LockError::Deadlock`], if the calling thread has it for writing;
    /// [`LockError::NotRecoverable`].
    pub fn read_until(self, who: &Locker, until: Deadline) -> Result<Acquired, LockError> {
        let mut waiting = Waiting::new(who, until);
        loop {
            if self.owner.is_free() {
                self.records.enter(who)?;
                who.step("lock.read.entered");
                model_fence();
                let free = self.owner.is_free();
                let fenced = who.is_fenced();
                if free && !fenced {
                    return Ok(Acquired::Clean);
                }
                let left = self.leave(who);
                if fenced {
                    // It may have been taken back already.
                    return Err(LockError::Fenced);
                }
                left?;
            }
            if self.owner.await_free(who, &mut waiting)? {
                waiting.turn()?;
                continue;
            }
            // A dead writer's. It may have waited for readers and changed nothing.
            match self.write_waiting(who, &mut waiting)? {
                Acquired::OwnerDead => return Ok(Acquired::OwnerDead),
                Acquired::Clean => self.owner.release(who, ALL)?,
            }
        }
    }

    /// Locks it for writing.
    ///
    /// # Errors
    /// As for [`RwLock::write_until`].
    pub fn write(self, who: &Locker) -> Result<Acquired, LockError> {
        self.write_until(who, Deadline::NEVER)
    }

    /// The same, until `until` at the latest.
    ///
    /// # Errors
    /// [`LockError::Busy`] and [`LockError::TimedOut`], by the deadline; [`LockError::Deadlock`];
    /// [`LockError::NotRecoverable`].
    pub fn write_until(self, who: &Locker, until: Deadline) -> Result<Acquired, LockError> {
        self.write_waiting(who, &mut Waiting::new(who, until))
    }

    fn write_waiting(self, who: &Locker, waiting: &mut Waiting) -> Result<Acquired, LockError> {
        let acquired = self.owner.take(who, waiting)?;
        match self.await_readers(who, waiting) {
            Ok(()) => {
                self.owner.check(who)?;
                self.owner.hold(who);
                Ok(acquired)
            }
            Err(error) => {
                self.owner.abandon(who);
                Err(error)
            }
        }
    }

    /// Waits until no reader is left, as the owner of the word.
    fn await_readers(self, who: &Locker, waiting: &mut Waiting) -> Result<(), LockError> {
        let mut woke = Woke::Early;
        loop {
            waiting.turn()?;
            let deaths = who.deaths();
            let key = self.drain.key();
            model_fence();
            let left = match woke {
                Woke::Early => self.records.reclaim(|life| who.is_alive(life)),
                Woke::Lease => self.records.reclaim(|life| who.confirm(life)),
            };
            if !left {
                return Ok(());
            }
            if waiting.is_try() {
                return Err(LockError::Busy);
            }
            if waiting.over() {
                return Err(LockError::TimedOut);
            }
            woke = Woke::Early;
            if !waiting.spin(self.spins, || self.drain.is_past(key)) {
                woke = self.drain.sleep(who, waiting, key, deaths);
            }
        }
    }

    /// Unlocks it, as reader or writer. If its last writer died, and
    /// [`RwLock::make_consistent`] was not called since, it is not recoverable from now on.
    ///
    /// # Errors
    /// [`LockError::NotOwner`]: the calling thread does not have it for writing, nor its process
    /// for reading.
    pub fn unlock(self, who: &Locker) -> Result<(), LockError> {
        if self.owner.is_mine(who) {
            self.owner.release(who, ALL)
        } else {
            self.leave(who)
        }
    }

    /// A reader leaves, and wakes the writer that waits for it.
    fn leave(self, who: &Locker) -> Result<(), LockError> {
        if !self.records.leave(who) {
            return Err(LockError::NotOwner);
        }
        who.step("lock.read.left");
        if self.owner.is_had() {
            self.drain.tell(who, ALL);
        }
        Ok(())
    }

    /// The caller, which was told [`Acquired::OwnerDead`], has repaired what the lock protects.
    ///
    /// # Errors
    /// [`LockError::Invalid`]: it does not have it for writing, or there was nothing to repair.
    pub fn make_consistent(self, who: &Locker) -> Result<(), LockError> {
        self.owner.make_consistent(who)
    }

    /// The writer that has it or waits for its readers, for people to see.
    #[must_use]
    pub fn writer(self) -> Option<Holder> {
        self.owner.holder()
    }

    /// The processes that read, and with how many threads, for people to see.
    #[must_use]
    pub fn readers(self) -> Vec<(Life, u16)> {
        self.records.list()
    }
}
