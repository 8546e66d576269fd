//! Owners' lives, and a table for those of other hosts.
//!
//! A broker's life table says which owners on this host are alive, and sequences look there. What
//! is known of owners on other hosts comes by events; it is written into a table of the process's
//! own, so that sequences look at it in the same way.

use std::sync::Arc;

use causeway_shm::layout::LIFE_BYTES;
use causeway_shm::{Life, LifeTable, LifeWriter, Segment};
use parking_lot::Mutex;

use crate::error::{Error, Result};

/// The segment whose life a sequence depends on.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// Where it is looked up. Tables are never given up.
    pub table: &'static LifeTable,
    /// The life.
    pub life: Life,
}

impl Owner {
    /// Whether the owner is alive.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.table.is_alive(self.life)
    }
}

/// A table, and what of it is free.
#[derive(Debug)]
pub(crate) struct Lives {
    writer: LifeWriter,
    table: &'static LifeTable,
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    /// Entries from here on have had no life.
    next: u16,
    /// Lives that have ended, one of each other entry that is free.
    ended: Vec<Life>,
}

impl Lives {
    /// A table without lives. It is never given up: a sequence may look at it at any time.
    ///
    /// # Errors
    /// [`Error::SYSTEM`] without memory.
    pub fn new() -> Result<Lives> {
        let segment = Segment::create("causeway-lives", LIFE_BYTES).map_err(|_| Error::SYSTEM)?;
        let writer = LifeWriter::format(Arc::new(segment)).map_err(|_| Error::SYSTEM)?;
        let table = Box::leak(Box::new(writer.table()));
        Ok(Lives {
            writer,
            table,
            free: Mutex::default(),
        })
    }

    /// A new life.
    ///
    /// # Errors
    /// [`Error::API_NOSPC`] if there are as many as the table has entries.
    pub fn begin(&self) -> Result<Owner> {
        let mut free = self.free.lock();
        let life = match free.ended.pop() {
            Some(Life { index, generation }) => Life {
                index,
                generation: generation.wrapping_add(1).max(1),
            },
            None => {
                let index = free.next;
                free.next = index.checked_add(1).ok_or(Error::API_NOSPC)?;
                Life {
                    index,
                    generation: 1,
                }
            }
        };
        self.writer.begin(life);
        Ok(Owner {
            table: self.table,
            life,
        })
    }

    /// A life is over. Its entry is still its own.
    pub fn end(&self, life: Life) {
        self.writer.end(life);
        self.writer.announce();
    }

    /// Nobody will ask for a life as new any more: its entry is free. Called once for each.
    pub fn forget(&self, life: Life) {
        self.end(life);
        self.free.lock().ended.push(life);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_is_used_again_has_another_life() {
        let lives = Lives::new().unwrap();
        let (one, two) = (lives.begin().unwrap(), lives.begin().unwrap());
        assert!(one.is_alive() && two.is_alive());
        lives.end(one.life);
        assert!(!one.is_alive() && two.is_alive());
        lives.forget(one.life);
        let three = lives.begin().unwrap();
        assert_eq!(three.life.index, one.life.index);
        assert!(three.is_alive() && !one.is_alive() && two.is_alive());
    }
}
