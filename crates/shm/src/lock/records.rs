//! Records of the processes that are inside of an object, and how often.
//!
//! A record is one word: the process, and its entries. So each entry is made, and ended, by a
//! single store; a process that dies in between leaves exactly the entries that it had, and a
//! waiter takes them back.

use super::error::LockError;
use super::layout::{MODEL, RECORDS};
use super::locker::{Locker, RETRIES};
use super::word::{ENTRY, MAX_ENTRIES, entries, named, record};
use crate::life::Life;
use crate::mem::{Region, Words};
use crate::sync::{AtomicU64, Ordering};

/// Records of a cache line.
const PER_LINE: usize = 8;

/// What [`Records::others`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// No entries.
    None,
    /// Entries of living processes only.
    Living,
    /// Entries of a dead process.
    Dead,
}

/// Entries of dead processes, by record; 0 for others.
pub(crate) struct Dead([u64; RECORDS]);

impl Dead {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|&entry| entry == 0)
    }
}

/// The records of an object.
#[derive(Clone, Copy)]
pub(crate) struct Records<'m> {
    words: Words<'m, RECORDS>,
}

impl<'m> Records<'m> {
    /// Those at `at`, which is inside of the region.
    pub(crate) fn new(region: &'m Region, at: usize) -> Records<'m> {
        Records {
            words: region.words(at),
        }
    }

    fn word(self, index: usize) -> &'m AtomicU64 {
        self.words.get(index % RECORDS)
    }

    /// Where a process looks first: neighbours in the life table begin on different lines.
    fn first_record(life: Life) -> usize {
        let index = usize::from(life.index);
        if MODEL {
            index % RECORDS
        } else {
            (index % PER_LINE * PER_LINE + index / PER_LINE) % RECORDS
        }
    }

    /// Whether there may be entries: fewer instructions than to look at each, and right if there
    /// are none.
    #[inline]
    fn any(self) -> bool {
        let all = (0..RECORDS).fold(0, |all, index| {
            all | self.words.get(index).load(Ordering::SeqCst)
        });
        entries(all) != 0
    }

    /// One entry more of this process.
    pub(crate) fn enter(self, who: &Locker) -> Result<(), LockError> {
        if self.try_enter(who)? {
            return Ok(());
        }
        // All taken: the dead give theirs back.
        for index in 0..RECORDS {
            let word = self.word(index);
            let seen = word.load(Ordering::Acquire);
            if entries(seen) == 0 || !who.is_alive(named(seen)) {
                let _ = word.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        if self.try_enter(who)? {
            Ok(())
        } else {
            Err(LockError::TooMany)
        }
    }

    /// The same, unless all are taken, by the living or the dead: then false.
    pub(crate) fn try_enter(self, who: &Locker) -> Result<bool, LockError> {
        let me = who.life();
        for offset in 0..RECORDS {
            let word = self.word(Self::first_record(me) + offset);
            let mut seen = word.load(Ordering::Relaxed);
            // Others of this process enter and leave meanwhile.
            for _ in 0..RETRIES {
                let next = match entries(seen) {
                    0 => record(me, 1),
                    MAX_ENTRIES if named(seen) == me => return Err(LockError::TooMany),
                    _ if named(seen) == me => seen + ENTRY,
                    _ => break,
                };
                // Sequentially consistent: one that enters looks for a writer afterwards.
                match word.compare_exchange(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
                    Ok(_) => return Ok(true),
                    Err(now) => seen = now,
                }
            }
        }
        Ok(false)
    }

    /// One entry less of this process. Returns whether there was one.
    pub(crate) fn leave(self, who: &Locker) -> bool {
        let me = who.life();
        for offset in 0..RECORDS {
            let word = self.word(Self::first_record(me) + offset);
            let mut seen = word.load(Ordering::Relaxed);
            for _ in 0..RETRIES {
                if entries(seen) == 0 || named(seen) != me {
                    break;
                }
                let next = if entries(seen) == 1 { 0 } else { seen - ENTRY };
                // Sequentially consistent, and a release: as on entering.
                match word.compare_exchange(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
                    Ok(_) => return true,
                    Err(now) => seen = now,
                }
            }
        }
        false
    }

    /// Looks at all entries. `alive` says which processes live.
    pub(crate) fn look(self, mut alive: impl FnMut(Life) -> bool) -> Found {
        let mut found = Found::None;
        if !self.any() {
            return found;
        }
        for index in 0..RECORDS {
            let seen = self.word(index).load(Ordering::SeqCst);
            if entries(seen) != 0 {
                if !alive(named(seen)) {
                    return Found::Dead;
                }
                found = Found::Living;
            }
        }
        found
    }

    /// Takes back what the dead have, and returns whether entries are left.
    pub(crate) fn reclaim(self, mut alive: impl FnMut(Life) -> bool) -> bool {
        if !self.any() {
            return false;
        }
        let mut left = false;
        for index in 0..RECORDS {
            let word = self.word(index);
            let seen = word.load(Ordering::SeqCst);
            if entries(seen) == 0 {
                continue;
            }
            // If it changes meanwhile it was not dead, or the next one has it.
            left |= alive(named(seen))
                || word
                    .compare_exchange(seen, 0, Ordering::SeqCst, Ordering::Relaxed)
                    .is_err();
        }
        left
    }

    /// The entries of the dead.
    pub(crate) fn dead(self, mut alive: impl FnMut(Life) -> bool) -> Dead {
        let mut dead = Dead([0; RECORDS]);
        if self.any() {
            for (index, entry) in dead.0.iter_mut().enumerate() {
                let seen = self.word(index).load(Ordering::SeqCst);
                if entries(seen) != 0 && !alive(named(seen)) {
                    *entry = seen;
                }
            }
        }
        dead
    }

    /// Takes these back.
    pub(crate) fn forget(self, dead: &Dead) {
        for (index, &seen) in dead.0.iter().enumerate().filter(|(_, seen)| **seen != 0) {
            // If it changes meanwhile another has taken it back.
            let word = self.word(index);
            let _ = word.compare_exchange(seen, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// The processes inside, and how often.
    pub(crate) fn list(self) -> Vec<(Life, u16)> {
        (0..RECORDS)
            .map(|index| self.word(index).load(Ordering::Acquire))
            .filter(|&seen| entries(seen) != 0)
            .map(|seen| (named(seen), entries(seen) as u16))
            .collect()
    }
}
