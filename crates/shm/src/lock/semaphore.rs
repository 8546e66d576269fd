//! A counting semaphore in shared memory.
//!
//! The value is taken by one store, by the waiter itself when it runs: what was posted for a waiter
//! that dies first is still there, and the death wakes the others.

use super::error::LockError;
use super::event::ALL;
use super::layout::{SEMAPHORE_BYTES, SEMAPHORE_MAGIC};
use super::locker::{Locker, RETRIES, Waiting};
use super::memory::{Memory, Place};
use super::time::Deadline;
use crate::sync::{AtomicU64, Ordering};

/// The greatest value, as POSIX has it on Linux (`SEM_VALUE_MAX`).
pub const SEMAPHORE_MAX: u32 = i32::MAX as u32;
/// Somebody may sleep.
const SLEEPERS: u64 = 1 << 31;
/// The bits of the value.
const VALUE: u64 = SEMAPHORE_MAX as u64;

/// The value that a word says, and whether somebody may sleep on it.
pub(crate) fn shown(word: u64) -> (u32, bool) {
    ((word & VALUE) as u32, word & SLEEPERS != 0)
}

/// A semaphore in shared memory. A view: copies are the same one.
#[derive(Clone, Copy)]
pub struct Semaphore<'m> {
    word: &'m AtomicU64,
    spins: &'m AtomicU64,
}

impl<'m> Semaphore<'m> {
    /// Makes a semaphore of the [`SEMAPHORE_BYTES`] at `at`. Nobody may be using it.
    ///
    /// # Errors
    /// [`LockError::Invalid`]: not inside of the memory, not aligned, or the value is greater than
    /// [`SEMAPHORE_MAX`].
    pub fn init(memory: &'m Memory, at: usize, value: u32) -> Result<Semaphore<'m>, LockError> {
        let place = Place::new(memory, at, SEMAPHORE_BYTES)?;
        if value > SEMAPHORE_MAX {
            return Err(LockError::Invalid);
        }
        place.make_with(SEMAPHORE_MAGIC, |place| {
            place.state().store(u64::from(value), Ordering::Relaxed);
        });
        Semaphore::open(memory, at)
    }

    /// The semaphore at `at`.
    ///
    /// # Errors
    /// [`LockError::Invalid`]: there is none.
    #[inline]
    pub fn open(memory: &'m Memory, at: usize) -> Result<Semaphore<'m>, LockError> {
        let place = Place::open(memory, at, SEMAPHORE_BYTES, SEMAPHORE_MAGIC)?;
        Ok(Semaphore {
            word: place.state(),
            spins: place.spins(),
        })
    }

    /// Waits until the value is greater than 0, and takes 1 from it.
    ///
    /// # Errors
    /// [`LockError::Invalid`]: the word is none of a semaphore.
    pub fn wait(self, who: &Locker) -> Result<(), LockError> {
        self.wait_until(who, Deadline::NEVER)
    }

    /// The same, if that is possible now.
    ///
    /// # Errors
    /// [`LockError::Busy`], and as for [`Semaphore::wait`].
    pub fn try_wait(self, who: &Locker) -> Result<(), LockError> {
        self.wait_until(who, Deadline::TRY)
    }

    /// The same, until `until` at the latest.
    ///
    /// # Errors
    /// [`LockError::TimedOut`], and as for [`Semaphore::wait`].
    pub fn wait_until(self, who: &Locker, until: Deadline) -> Result<(), LockError> {
        let mut waiting = Waiting::new(who, until);
        loop {
            waiting.turn()?;
            let deaths = who.deaths();
            let seen = self.load()?;
            if seen & VALUE > 0 {
                if self.replace(seen, seen - 1) {
                    who.step("lock.semaphore.taken");
                    return Ok(());
                }
            } else if waiting.is_try() {
                return Err(LockError::Busy);
            } else if waiting.over() {
                return Err(LockError::TimedOut);
            } else if waiting.spin(self.spins, || self.value() > 0) {
                // There is one.
            } else if seen & SLEEPERS != 0 || self.replace(seen, seen | SLEEPERS) {
                who.step("lock.semaphore.marked");
                waiting.sleep(self.word, seen | SLEEPERS, deaths);
                who.step("lock.semaphore.woken");
            }
        }
    }

    /// Adds 1 to the value, and wakes one waiter.
    ///
    /// # Errors
    /// [`LockError::Overflow`]: it is [`SEMAPHORE_MAX`]. [`LockError::Invalid`] as for
    /// [`Semaphore::wait`].
    pub fn post(self, who: &Locker) -> Result<(), LockError> {
        for _ in 0..RETRIES {
            let seen = self.load()?;
            if seen & VALUE == VALUE {
                return Err(LockError::Overflow);
            }
            if !self.replace(seen, seen + 1) {
                continue;
            }
            who.step("lock.semaphore.posted");
            if seen & SLEEPERS != 0 && who.wake(self.word, 1) == 0 {
                // The sleepers have left. Some may just have come: clearing the mark wakes them,
                // and they set it again.
                self.replace(seen + 1, (seen + 1) & !SLEEPERS);
                who.step("lock.semaphore.cleared");
                who.wake(self.word, ALL);
            }
            return Ok(());
        }
        Err(LockError::Invalid)
    }

    /// The value now.
    #[must_use]
    pub fn value(self) -> u32 {
        (self.word.load(Ordering::Relaxed) & VALUE) as u32
    }

    fn load(self) -> Result<u64, LockError> {
        let seen = self.word.load(Ordering::Acquire);
        if seen >> 32 == 0 {
            Ok(seen)
        } else {
            Err(LockError::Invalid)
        }
    }

    fn replace(self, seen: u64, next: u64) -> bool {
        self.word
            .compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}
