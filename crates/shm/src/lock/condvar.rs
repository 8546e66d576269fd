//! A condition variable in shared memory.
//!
//! Its word counts signals and broadcasts, and each of them ends the wait of a waiter that began
//! before it *and looks*. A signal wakes one that sleeps, and so normally one looks. If that one
//! dies instead, its death wakes all, and if it is stopped, the others look when their lease is
//! over: so a signal is never lost with the one it woke, at the price that a wait may end without a
//! signal of its own, as POSIX allows. Waiters leave nothing in the object, so none of them can
//! leave it in disorder: neither signal nor broadcast ever waits for anybody.

use super::error::{Acquired, LockError};
use super::event::{ALL, Event};
use super::layout::{CONDVAR_BYTES, CONDVAR_MAGIC};
use super::locker::{Locker, Waiting};
use super::memory::{Memory, Place};
use super::mutex::Mutex;
use super::time::Deadline;
use crate::sync::AtomicU64;

/// A condition variable in shared memory. A view: copies are the same one.
#[derive(Clone, Copy)]
pub struct Condvar<'m> {
    event: Event<'m>,
    spins: &'m AtomicU64,
}

/// How a wait ended. The mutex is locked again.
#[must_use = "a mutex whose owner died protects data that may be half changed"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Woken {
    /// How the mutex was obtained.
    pub mutex: Acquired,
    /// Whether the time was over before anybody signalled.
    pub timed_out: bool,
}

impl<'m> Condvar<'m> {
    /// Makes a condition variable of the [`CONDVAR_BYTES`] at `at`. Nobody may be using it.
    ///
    /// # Errors
    /// [`LockError::Invalid`]: not inside of the memory, or not aligned.
    pub fn init(memory: &'m Memory, at: usize) -> Result<Condvar<'m>, LockError> {
        Place::new(memory, at, CONDVAR_BYTES)?.make(CONDVAR_MAGIC);
        Condvar::open(memory, at)
    }

    /// The condition variable at `at`.
    ///
    /// # Errors
    /// [`LockError::Invalid`]: there is none.
    #[inline]
    pub fn open(memory: &'m Memory, at: usize) -> Result<Condvar<'m>, LockError> {
        let place = Place::open(memory, at, CONDVAR_BYTES, CONDVAR_MAGIC)?;
        Ok(Condvar {
            event: Event(place.state()),
            spins: place.spins(),
        })
    }

    /// Unlocks `mutex`, waits for a signal, and locks it again.
    ///
    /// # Errors
    /// As for [`Condvar::wait_until`].
    pub fn wait(self, who: &Locker, mutex: Mutex) -> Result<Woken, LockError> {
        self.wait_until(who, mutex, Deadline::NEVER)
    }

    /// The same, until `until` at the latest. All waiters must name the same mutex. May end without
    /// a signal: the caller looks whether what it waits for has come.
    ///
    /// # Errors
    /// [`LockError::NotOwner`]: the calling thread does not have the mutex.
    /// [`LockError::NotRecoverable`]: it waited, and the mutex can't be had again.
    /// [`LockError::Fenced`]: it waited, and does not have the mutex.
    pub fn wait_until(
        self,
        who: &Locker,
        mutex: Mutex,
        until: Deadline,
    ) -> Result<Woken, LockError> {
        let key = self.event.key();
        who.step("lock.cond.entered");
        mutex.unlock(who)?;
        who.step("lock.cond.waiting");
        let timed_out = !self.sleep(who, key, until);
        who.step("lock.cond.returning");
        let mutex = mutex.lock(who)?;
        Ok(Woken { mutex, timed_out })
    }

    /// Whether something was signalled since `key` before the time is over.
    fn sleep(self, who: &Locker, key: u64, until: Deadline) -> bool {
        let mut waiting = Waiting::new(who, until);
        loop {
            let in_time = waiting.turn().is_ok();
            let deaths = who.deaths();
            if self.event.is_past(key) {
                return true;
            }
            if !in_time || waiting.over() {
                return false;
            }
            if !waiting.spin(self.spins, || self.event.is_past(key)) {
                self.event.sleep(who, &mut waiting, key, deaths);
            }
        }
    }

    /// Ends the wait of at least one waiter. Without sleepers it makes no system call.
    pub fn signal(self, who: &Locker) {
        self.event.tell(who, 1);
    }

    /// Ends the wait of all waiters.
    pub fn broadcast(self, who: &Locker) {
        self.event.tell(who, ALL);
    }
}
