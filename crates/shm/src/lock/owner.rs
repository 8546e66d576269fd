//! A word that one thread has at a time: a mutex's, and a reader-writer lock's for its writers.
//!
//! Having it begins and ends with one store each. Beside the word is the *holder*: the thread, from
//! when it may begin to change what is protected until it has finished. An owner that dies without
//! a holder has left nothing half changed, so nobody needs to be told.

use super::error::{Acquired, LockError};
use super::event::ALL;
use super::layout::{HOLDER, SPINS, STATE};
use super::locker::{Locker, RETRIES, Waiting};
use super::word::{HELD, INCONSISTENT, OWNER, UNRECOVERABLE, WAITERS, is_held, named};
use crate::life::Life;
use crate::mem::Region;
use crate::sync::{AtomicU64, Ordering, model_fence};
use std::sync::atomic::compiler_fence;

/// The owner of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The life of the process's session.
    pub life: Life,
    /// The thread, by its id in its own PID namespace; 0 while it is on its way in or out.
    pub thread: u32,
}

/// The words.
#[derive(Clone, Copy)]
pub(crate) struct Owner<'m> {
    word: &'m AtomicU64,
    holder: &'m AtomicU64,
    spins: &'m AtomicU64,
}

/// What a look at the word of a lock says.
enum State {
    /// It can be taken; if the flag is set, by one that then repairs.
    Free,
    /// The owner.
    Had(Life),
}

impl<'m> Owner<'m> {
    /// Those of the object at `at`, which is inside of the region.
    #[inline]
    pub(crate) fn new(region: &'m Region, at: usize) -> Owner<'m> {
        Owner {
            word: region.word(at + STATE),
            holder: region.word(at + HOLDER),
            spins: region.word(at + SPINS),
        }
    }

    /// Takes the word, without becoming its holder.
    #[inline]
    pub(crate) fn take(self, who: &Locker, waiting: &mut Waiting) -> Result<Acquired, LockError> {
        if self.try_take(who) {
            return Ok(Acquired::Clean);
        }
        self.take_slowly(who, waiting)
    }

    /// Takes the word if it is free and nothing is to be said of it.
    #[inline]
    pub(crate) fn try_take(self, who: &Locker) -> bool {
        // Sequentially consistent for the sake of writers, who then look for readers.
        let free = self
            .word
            .compare_exchange(0, who.held(), Ordering::SeqCst, Ordering::Relaxed)
            .is_ok();
        if free {
            who.step("lock.owner.taken");
        }
        free
    }

    /// From now on the owner may change what is protected.
    #[inline]
    pub(crate) fn hold(self, who: &Locker) {
        self.holder.store(who.thread(), Ordering::Relaxed);
        // What is changed after, is changed after; for a death, the program's order is enough.
        compiler_fence(Ordering::SeqCst);
        who.step("lock.owner.holding");
    }

    /// Gives it up at once if the owner is taken for dead: the next one would take it away.
    #[inline]
    pub(crate) fn check(self, who: &Locker) -> Result<(), LockError> {
        if who.is_fenced() {
            self.abandon(who);
            return Err(LockError::Fenced);
        }
        Ok(())
    }

    /// Whether the calling thread is the holder, as the word `seen` has it.
    #[inline]
    fn is_held_by(self, who: &Locker, seen: u64) -> bool {
        seen & OWNER == who.held() && self.holder.load(Ordering::Relaxed) == who.thread()
    }

    /// Whether the calling thread is the holder.
    #[inline]
    pub(crate) fn is_mine(self, who: &Locker) -> bool {
        self.is_held_by(who, self.word.load(Ordering::Relaxed))
    }

    /// What can be done about a word.
    fn state(self, who: &Locker, seen: u64) -> Result<State, LockError> {
        if seen & UNRECOVERABLE != 0 {
            Err(LockError::NotRecoverable)
        } else if !is_held(seen) {
            Ok(State::Free)
        } else if self.is_held_by(who, seen) {
            Err(LockError::Deadlock)
        } else {
            Ok(State::Had(named(seen)))
        }
    }

    /// The word for its next owner, and what that one is told.
    fn next(self, who: &Locker, seen: u64, waiters: u64) -> (u64, Acquired) {
        let half_changed = is_held(seen) && self.holder.load(Ordering::Acquire) != 0;
        let flags = waiters | seen & WAITERS;
        if half_changed || seen & INCONSISTENT != 0 {
            (who.held() | INCONSISTENT | flags, Acquired::OwnerDead)
        } else {
            (who.held() | flags, Acquired::Clean)
        }
    }

    #[cold]
    fn take_slowly(self, who: &Locker, waiting: &mut Waiting) -> Result<Acquired, LockError> {
        // One that has slept can't know whether others still do, and wakes the next one when it
        // unlocks.
        let mut waiters = 0;
        loop {
            waiting.turn()?;
            let deaths = who.deaths();
            let seen = self.word.load(Ordering::Acquire);
            let had = match self.state(who, seen)? {
                State::Had(owner) if waiting.is_alive(owner) => true,
                State::Had(_) | State::Free => false,
            };
            if !had {
                // From nobody, or from a dead one: the word names him, so it is his death.
                let (next, acquired) = self.next(who, seen, waiters);
                if self.replace(seen, next) {
                    who.step("lock.owner.taken");
                    return Ok(acquired);
                }
            } else if waiting.is_try() {
                return Err(LockError::Busy);
            } else if waiting.spin(self.spins, || !is_held(self.word.load(Ordering::Relaxed))) {
                // Free.
            } else if seen & WAITERS != 0 || self.replace(seen, seen | WAITERS) {
                // Not before the mark is set: a wake-up that we were given and have no use for
                // is then passed on by the present owner.
                if waiting.over() {
                    return Err(LockError::TimedOut);
                }
                waiters = WAITERS;
                who.step("lock.owner.marked");
                waiting.sleep_for(named(seen), self.word, seen | WAITERS, deaths);
                who.step("lock.owner.woken");
            } else if waiting.over() {
                return Err(LockError::TimedOut);
            }
        }
    }

    fn replace(self, seen: u64, next: u64) -> bool {
        self.word
            .compare_exchange(seen, next, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }

    /// Whether a writer has it, or what a dead one left is to be taken first. Sequentially
    /// consistent: readers have entered before.
    #[inline]
    pub(crate) fn is_free(self) -> bool {
        self.word.load(Ordering::SeqCst) & (HELD | INCONSISTENT | UNRECOVERABLE) == 0
    }

    /// Waits until it is free and nothing is to be said of it (`true`), or must be taken to be free
    /// again (`false`).
    pub(crate) fn await_free(self, who: &Locker, waiting: &mut Waiting) -> Result<bool, LockError> {
        loop {
            waiting.turn()?;
            let deaths = who.deaths();
            let seen = self.word.load(Ordering::Acquire);
            match self.state(who, seen)? {
                State::Free => return Ok(seen & INCONSISTENT == 0),
                State::Had(owner) if !waiting.is_alive(owner) => return Ok(false),
                State::Had(_) if waiting.is_try() => return Err(LockError::Busy),
                State::Had(_) => {}
            }
            if waiting.over() {
                return Err(LockError::TimedOut);
            }
            if waiting.spin(self.spins, || !is_held(self.word.load(Ordering::Relaxed))) {
                continue;
            }
            if seen & WAITERS != 0 || self.replace(seen, seen | WAITERS) {
                who.step("lock.owner.marked");
                waiting.sleep_for(named(seen), self.word, seen | WAITERS, deaths);
                who.step("lock.owner.woken");
            }
        }
    }

    /// The holder gives it up, and wakes one waiter or all.
    #[inline]
    pub(crate) fn release(self, who: &Locker, count: u32) -> Result<(), LockError> {
        let seen = self.word.load(Ordering::Relaxed);
        if !self.is_held_by(who, seen) {
            return Err(LockError::NotOwner);
        }
        compiler_fence(Ordering::SeqCst);
        self.holder.store(0, Ordering::Release);
        who.step("lock.owner.leaving");
        let (free, count) = if seen & INCONSISTENT == 0 {
            (0, count)
        } else {
            (UNRECOVERABLE, ALL)
        };
        self.give_up(who, seen, free, count)
    }

    /// The owner, that is not its holder, gives it up as it got it.
    pub(crate) fn abandon(self, who: &Locker) {
        let seen = self.word.load(Ordering::Relaxed);
        if seen & OWNER == who.held() {
            let _ = self.give_up(who, seen, seen & INCONSISTENT, ALL);
        }
    }

    #[inline]
    fn give_up(self, who: &Locker, mut seen: u64, free: u64, count: u32) -> Result<(), LockError> {
        // Nobody but a new waiter changes it, unless we are taken for dead: then it is another's.
        for _ in 0..RETRIES {
            match self
                .word
                .compare_exchange(seen, free, Ordering::SeqCst, Ordering::Relaxed)
            {
                Ok(_) => {
                    who.step("lock.owner.released");
                    if seen & WAITERS != 0 {
                        who.wake(self.word, count);
                    }
                    return Ok(());
                }
                Err(now) if now & OWNER == who.held() => seen = now,
                Err(_) => break,
            }
        }
        Err(LockError::NotOwner)
    }

    /// The holder has repaired what it protects.
    pub(crate) fn make_consistent(self, who: &Locker) -> Result<(), LockError> {
        for _ in 0..RETRIES {
            let seen = self.word.load(Ordering::Relaxed);
            if !self.is_held_by(who, seen) || seen & INCONSISTENT == 0 {
                return Err(LockError::Invalid);
            }
            if self.replace(seen, seen & !INCONSISTENT) {
                who.step("lock.owner.consistent");
                return Ok(());
            }
        }
        Err(LockError::Invalid)
    }

    /// Whether somebody has it. Sequentially consistent: the caller has just left its record.
    #[inline]
    pub(crate) fn is_had(self) -> bool {
        model_fence();
        is_held(self.word.load(Ordering::SeqCst))
    }

    /// Its owner.
    pub(crate) fn holder(self) -> Option<Holder> {
        let seen = self.word.load(Ordering::Acquire);
        Holder::of_words(seen, self.holder.load(Ordering::Relaxed))
    }
}

impl Holder {
    /// The owner of a lock, by its state and holder words: for a reader of the memory's file.
    #[must_use]
    pub fn of_words(state: u64, holder: u64) -> Option<Holder> {
        is_held(state).then(|| Holder {
            life: named(state),
            thread: holder as u32,
        })
    }
}
