//! A barrier in shared memory.
//!
//! One word counts arrivals and how often all have arrived, so the last one to arrive lets all go
//! with the store by which it arrives. A participant is in the records while it waits, and longer
//! if it joins: if it dies meanwhile the barrier is broken, since nobody can say whether it would
//! have come.

use super::error::LockError;
use super::event::ALL;
use super::layout::{BARRIER_BYTES, BARRIER_MAGIC, PARTIES};
use super::locker::{Locker, RETRIES, Waiting, Woke};
use super::memory::{Memory, Place};
use super::records::{Found, Records};
use super::time::Deadline;
use crate::life::Life;
use crate::sync::{AtomicU64, Ordering};

/// The most participants a barrier may have.
pub const BARRIER_MAX: u32 = 0xffff;

/// Somebody may sleep.
const SLEEPERS: u64 = 1;
/// A participant died.
const BROKEN: u64 = 1 << 1;
/// The round, in bits 2 to 31: the part of the word that ends a wait.
const ROUND: u64 = 1 << 2;
const ROUNDS: u64 = 0xffff_fffc;
/// One arrival, in bits 32 to 47.
const ARRIVAL: u64 = 1 << 32;
/// The era, in bits 48 to 63: how often the barrier was mended.
const ERA: u64 = 1 << 48;
const ERAS: u64 = 0xffff << 48;

/// A barrier in shared memory. A view: copies are the same one.
#[derive(Clone, Copy)]
pub struct Barrier<'m> {
    word: &'m AtomicU64,
    parties: &'m AtomicU64,
    spins: &'m AtomicU64,
    records: Records<'m>,
}

fn arrived(word: u64) -> u64 {
    word >> 32 & 0xffff
}

/// How many have arrived, as a word says, whether somebody may sleep on it, and whether it is
/// broken.
pub(crate) fn shown(word: u64) -> (u32, bool, bool) {
    (
        arrived(word) as u32,
        word & SLEEPERS != 0,
        word & BROKEN != 0,
    )
}

impl<'m> Barrier<'m> {
    /// Makes a barrier for `parties` threads of the [`BARRIER_BYTES`] at `at`. Nobody may be using
    /// it.
    ///
    /// # Errors
    /// [`LockError::Invalid`]: not inside of the memory, not aligned, no parties, or more than
    /// [`BARRIER_MAX`].
    pub fn init(memory: &'m Memory, at: usize, parties: u32) -> Result<Barrier<'m>, LockError> {
        let place = Place::new(memory, at, BARRIER_BYTES)?;
        if parties == 0 || parties > BARRIER_MAX {
            return Err(LockError::Invalid);
        }
        place.make_with(BARRIER_MAGIC, |place| {
            place
                .word(PARTIES)
                .store(u64::from(parties), Ordering::Relaxed);
        });
        Barrier::open(memory, at)
    }

    /// The barrier at `at`.
    ///
    /// # Errors
    /// [`LockError::Invalid`]: there is none.
    pub fn open(memory: &'m Memory, at: usize) -> Result<Barrier<'m>, LockError> {
        let place = Place::open(memory, at, BARRIER_BYTES, BARRIER_MAGIC)?;
        Ok(Barrier {
            word: place.state(),
            parties: place.word(PARTIES),
            spins: place.spins(),
            records: place.records(),
        })
    }

    /// A thread of this process takes part from now on: should the process die before it
    /// arrives, the others hear of it. Without that, only a death while it waits counts.
    ///
    /// # Errors
    /// [`LockError::TooMany`]: more than [`super::RECORDS`] processes; [`LockError::Broken`]: as
    /// many, and it is broken, or one of them is dead.
    pub fn join(self, who: &Locker) -> Result<(), LockError> {
        self.enter(who)
    }

    /// It takes part no longer.
    ///
    /// # Errors
    /// [`LockError::NotOwner`]: it didn't.
    pub fn leave(self, who: &Locker) -> Result<(), LockError> {
        if self.records.leave(who) {
            Ok(())
        } else {
            Err(LockError::NotOwner)
        }
    }

    /// Waits until all parties have arrived. Returns whether the caller was the last of them.
    ///
    /// # Errors
    /// As for [`Barrier::wait_until`].
    pub fn wait(self, who: &Locker) -> Result<bool, LockError> {
        self.wait_until(who, Deadline::NEVER)
    }

    /// The same, until `until` at the latest. A participant that gives up has not arrived.
    ///
    /// # Errors
    /// [`LockError::Broken`]: a participant died, now or since the barrier was made or mended;
    /// [`LockError::Busy`] and [`LockError::TimedOut`], by the deadline;
    /// [`LockError::TooMany`]: more than [`super::RECORDS`] processes; [`LockError::Invalid`]: the
    /// words are none of a barrier.
    pub fn wait_until(self, who: &Locker, until: Deadline) -> Result<bool, LockError> {
        self.enter(who)?;
        who.step("lock.barrier.entered");
        let result = self.meet(who, until);
        self.records.leave(who);
        result
    }

    /// One participant more. It takes no record of a dead one, by which others learn of the death.
    fn enter(self, who: &Locker) -> Result<(), LockError> {
        if self.records.try_enter(who)? {
            return Ok(());
        }
        let seen = self.word.load(Ordering::Acquire);
        self.check(who, seen, |life| who.is_alive(life))?;
        Err(LockError::TooMany)
    }

    fn meet(self, who: &Locker, until: Deadline) -> Result<bool, LockError> {
        let parties = self.parties.load(Ordering::Relaxed);
        for _ in 0..RETRIES {
            let seen = self.word.load(Ordering::Acquire);
            self.check(who, seen, |life| who.is_alive(life))?;
            if arrived(seen) >= parties || parties > u64::from(BARRIER_MAX) {
                return Err(LockError::Invalid);
            }
            let last = arrived(seen) + 1 == parties;
            let next = if last {
                seen & ERAS | (seen & ROUNDS).wrapping_add(ROUND) & ROUNDS
            } else {
                seen + ARRIVAL
            };
            if !self.replace(seen, next) {
                continue;
            }
            who.step("lock.barrier.arrived");
            if !last {
                return self.sleep(who, seen, until).map(|()| false);
            }
            if seen & SLEEPERS != 0 {
                who.wake(self.word, ALL);
            }
            return Ok(true);
        }
        Err(LockError::Invalid)
    }

    /// Waits for the round after that of `mine`, having arrived.
    fn sleep(self, who: &Locker, mine: u64, until: Deadline) -> Result<(), LockError> {
        let mut waiting = Waiting::new(who, until);
        let mut woke = Woke::Early;
        let is_over = |seen: u64| (seen ^ mine) & (ROUNDS | ERAS) != 0;
        loop {
            let turn = waiting.turn();
            let deaths = who.deaths();
            let seen = self.word.load(Ordering::Acquire);
            if (seen ^ mine) & ERAS != 0 {
                return Err(LockError::Broken);
            }
            if is_over(seen) {
                return Ok(());
            }
            match turn {
                // Its arrival is that of a dead one: the others may have seen that already.
                Err(LockError::Fenced) => {
                    self.end_round(who, seen)?;
                    continue;
                }
                turn => turn?,
            }
            match woke {
                Woke::Early => self.check(who, seen, |life| who.is_alive(life))?,
                Woke::Lease => self.check(who, seen, |life| who.confirm(life))?,
            }
            woke = Woke::Early;
            if waiting.over() {
                if arrived(seen) == 0 {
                    return Err(LockError::Invalid);
                }
                if self.replace(seen, seen - ARRIVAL) {
                    return Err(if waiting.is_try() {
                        LockError::Busy
                    } else {
                        LockError::TimedOut
                    });
                }
            } else if waiting.spin(self.spins, || is_over(self.word.load(Ordering::Relaxed))) {
                // All have come.
            } else if seen & SLEEPERS != 0 || self.replace(seen, seen | SLEEPERS) {
                who.step("lock.barrier.marked");
                woke = waiting.sleep(self.word, seen | SLEEPERS, deaths);
                who.step("lock.barrier.woken");
            }
        }
    }

    /// Whether all participants in the round of `seen` live. If not, the others are told.
    fn check(
        self,
        who: &Locker,
        seen: u64,
        alive: impl FnMut(Life) -> bool,
    ) -> Result<(), LockError> {
        if seen & BROKEN != 0 {
            return Err(LockError::Broken);
        }
        if self.records.look(alive) != Found::Dead {
            return Ok(());
        }
        self.end_round(who, seen)
    }

    /// A participant in the round of `seen` is dead: the others are told, unless all had come.
    fn end_round(self, who: &Locker, mut seen: u64) -> Result<(), LockError> {
        let round = seen & (ROUNDS | ERAS);
        for _ in 0..RETRIES {
            if seen & (ROUNDS | ERAS) != round {
                // All had come before; the death is the next round's.
                return Ok(());
            }
            if seen & BROKEN != 0 || self.replace(seen, seen | BROKEN) {
                break;
            }
            seen = self.word.load(Ordering::Acquire);
        }
        who.step("lock.barrier.broken");
        who.wake(self.word, ALL);
        Err(LockError::Broken)
    }

    /// Makes a broken barrier whole again, with nobody arrived. Those that still wait are told that
    /// it was broken. Forgets the dead. A barrier is broken by a death even if nobody has noticed.
    ///
    /// # Errors
    /// [`LockError::Busy`]: others change it all the time.
    pub fn mend(self, who: &Locker) -> Result<(), LockError> {
        for _ in 0..RETRIES {
            // Before the word is read: who dies later may be of a round that begins when another
            // process mends it.
            let dead = self.records.dead(|life| who.is_alive(life));
            let seen = self.word.load(Ordering::Acquire);
            if seen & BROKEN == 0 {
                if dead.is_empty() {
                    return Ok(());
                }
                // Those that wait hear of a death by the record, or by the word: before the record
                // goes, the word says it.
                let _ = self.end_round(who, seen);
                continue;
            }
            self.records.forget(&dead);
            let next = (seen & ERAS).wrapping_add(ERA) | seen & ROUNDS;
            if self.replace(seen, next) {
                who.wake(self.word, ALL);
                return Ok(());
            }
        }
        Err(LockError::Busy)
    }

    /// How many have arrived in this round, for people to see.
    #[must_use]
    pub fn arrived(self) -> u32 {
        arrived(self.word.load(Ordering::Relaxed)) as u32
    }

    /// The processes that take part now, and with how many threads, for people to see.
    #[must_use]
    pub fn participants(self) -> Vec<(Life, u16)> {
        self.records.list()
    }

    fn replace(self, seen: u64, next: u64) -> bool {
        self.word
            .compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}
