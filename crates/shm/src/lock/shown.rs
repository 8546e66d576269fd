//! What an object looks like from outside, for people to see.
//!
//! It is read from the memory's file, without a mapping, a word at a time. While others use the
//! object the words need not fit together, and a process that may write to it may have written
//! anything. So nothing is to be decided by it.

use super::barrier;
use super::layout::{
    BARRIER_MAGIC, CONDVAR_MAGIC, HOLDER, MAGIC, MUTEX_MAGIC, PARTIES, RECORDS, RECORDS_AT,
    RWLOCK_MAGIC, SEMAPHORE_MAGIC, STATE,
};
use super::owner::Holder;
use super::semaphore;
use super::word::{INCONSISTENT, UNRECOVERABLE, WAITERS, entries, named};
use crate::life::Life;

/// What has become of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// Nothing.
    #[default]
    Fine,
    /// A lock whose owner died; what it protects has not been repaired yet.
    Inconsistent,
    /// A lock that was given up without repair.
    NotRecoverable,
    /// A barrier of which a participant died.
    Broken,
}

/// An object's words, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The owner of a mutex, or of a reader-writer lock for writing.
    pub holder: Option<Holder>,
    /// What has become of it.
    pub health: Health,
    /// Whether somebody may sleep on it.
    pub awaited: bool,
    /// A semaphore's value, or how many have arrived at a barrier.
    pub count: u32,
    /// How many must arrive at a barrier.
    pub parties: u32,
    /// The readers, or the participants of a barrier, and with how many threads.
    pub entries: Vec<(Life, u16)>,
}

impl Shown {
    /// What the object with this magic word looks like, whose word at each offset `word` tells;
    /// `None` if there is another magic word.
    pub fn read(magic: u64, word: impl Fn(usize) -> u64) -> Option<Shown> {
        if word(MAGIC) != magic {
            return None;
        }
        let state = word(STATE);
        Some(match magic {
            MUTEX_MAGIC => owned(state, word(HOLDER)),
            RWLOCK_MAGIC => Shown {
                entries: inside(&word),
                ..owned(state, word(HOLDER))
            },
            CONDVAR_MAGIC => Shown {
                awaited: super::event::is_awaited(state),
                ..Shown::default()
            },
            SEMAPHORE_MAGIC => {
                let (count, awaited) = semaphore::shown(state);
                Shown {
                    count,
                    awaited,
                    ..Shown::default()
                }
            }
            BARRIER_MAGIC => {
                let (count, awaited, broken) = barrier::shown(state);
                Shown {
                    count,
                    awaited,
                    health: if broken { Health::Broken } else { Health::Fine },
                    parties: u32::try_from(word(PARTIES)).unwrap_or(u32::MAX),
                    entries: inside(&word),
                    ..Shown::default()
                }
            }
            _ => Shown::default(),
        })
    }
}

fn owned(state: u64, holder: u64) -> Shown {
    let health = match state {
        state if state & UNRECOVERABLE != 0 => Health::NotRecoverable,
        state if state & INCONSISTENT != 0 => Health::Inconsistent,
        _ => Health::Fine,
    };
    Shown {
        holder: Holder::of_words(state, holder),
        health,
        awaited: state & WAITERS != 0,
        ..Shown::default()
    }
}

fn inside(word: &impl Fn(usize) -> u64) -> Vec<(Life, u16)> {
    (0..RECORDS)
        .map(|index| word(RECORDS_AT + 8 * index))
        .filter(|&record| entries(record) != 0)
        .map(|record| (named(record), entries(record) as u16))
        .collect()
}
