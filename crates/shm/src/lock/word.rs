//! The words in which an object names processes.
//!
//! The low half of a word is what its waiters sleep on (`futex(2)` compares 32 bits), so all that
//! matters to them is there: the index of the holder's life, and the flags. The generation of the
//! life is in the high half.

use crate::life::Life;

/// Somebody has it.
pub(crate) const HELD: u64 = 1 << 16;
/// A waiter may sleep on the word: the owner wakes it when it gives the word up.
pub(crate) const WAITERS: u64 = 1 << 17;
/// What it protects may be half changed.
pub(crate) const INCONSISTENT: u64 = 1 << 18;
/// Nobody gets it any more.
pub(crate) const UNRECOVERABLE: u64 = 1 << 19;
/// Bits that name the owner, and say that there is one.
pub(crate) const OWNER: u64 = HELD | 0xffff | (u32::MAX as u64) << 32;

/// The word of an object that `life` has.
pub(crate) const fn held_by(life: Life) -> u64 {
    (life.generation as u64) << 32 | HELD | life.index as u64
}

/// The process that a word names, be it a lock's or a record.
pub(crate) const fn named(word: u64) -> Life {
    Life {
        index: word as u16,
        generation: (word >> 32) as u32,
    }
}

/// Whether a lock's word says that somebody has it.
pub(crate) const fn is_held(word: u64) -> bool {
    word & HELD != 0
}

/// In a record: how often the process has entered, in bits 16 to 31.
pub(crate) const ENTRY: u64 = 1 << 16;
/// The greatest count of a record.
pub(crate) const MAX_ENTRIES: u64 = 0xffff;

/// The record of a process that has entered `entries` times.
pub(crate) const fn record(life: Life, entries: u64) -> u64 {
    (life.generation as u64) << 32 | entries << 16 | life.index as u64
}

/// How often the process of a record has entered.
pub(crate) const fn entries(record: u64) -> u64 {
    record >> 16 & MAX_ENTRIES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_whom_they_were_made_for() {
        let life = Life {
            index: 0xfedc,
            generation: 0x8765_4321,
        };
        assert_eq!(named(held_by(life)), life);
        assert_eq!(named(held_by(life) | WAITERS | INCONSISTENT), life);
        assert_eq!((held_by(life) | WAITERS) & OWNER, held_by(life));
        assert_eq!(named(record(life, 3)), life);
        assert_eq!(entries(record(life, MAX_ENTRIES)), MAX_ENTRIES);
        assert_eq!(entries(record(life, 1) + ENTRY), 2);
    }
}
