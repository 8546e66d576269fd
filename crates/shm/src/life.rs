//! The life table: it shows in one load whether something is alive.
//!
//! The broker keeps one for each tenant, and hands it out for reading. Each of its entries is given
//! to something that may die while others wait for it or use what it made: a session of a process,
//! or a shared segment. An entry's word is `generation << 1 | alive`; after its death it is given
//! to another with the next generation, so a [`Life`] never comes back.
//!
//! The *deaths* word changes with each death, and the broker wakes all that sleep on it
//! (`futex(2)`, shared). A waiter reads it first, then looks whether the other is alive, then
//! sleeps while the word is what it was: no death is missed.

use crate::layout as l;
use crate::mem::Region;
use crate::segment::{Segment, SegmentError};
use crate::sync::{Arc, Ordering};

/// Names something that lives or is dead, for as long as the tenant's table exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Life {
    /// Its entry: below [`l::LIFE_ENTRIES`].
    pub index: u16,
    /// Tells it from others that had the entry before. Never 0 in a life that was given out.
    pub generation: u32,
}

impl Life {
    /// The word of the entry.
    const fn word(self, alive: bool) -> u64 {
        (self.generation as u64) << 1 | alive as u64
    }

    const fn at(self) -> usize {
        l::LIFE_ENTRIES_AT + 8 * self.index as usize % (8 * l::LIFE_ENTRIES)
    }

    /// In 48 bits, for words in shared memory: the index in the low 16, the generation above.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 16 | self.index as u64
    }

    /// What [`Life::to_bits`] gave; bits above the 48 are ignored.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Life {
        Life {
            index: bits as u16,
            generation: (bits >> 16) as u32,
        }
    }
}

/// A table for reading. Clones share the mapping.
#[derive(Clone, Debug)]
pub struct LifeTable {
    mem: Region,
}

impl LifeTable {
    /// The table in a segment, which may be mapped for reading only.
    ///
    /// # Errors
    /// [`SegmentError::Format`] if there is none.
    pub fn open(segment: Arc<Segment>) -> Result<LifeTable, SegmentError> {
        let mem = Region::new(segment);
        let ours = mem.len() == l::LIFE_BYTES
            && mem.word(l::MAGIC_AT).load(Ordering::Acquire) == l::LIFE_MAGIC
            && mem.word(l::VERSION_AT).load(Ordering::Relaxed) == l::VERSION;
        if ours {
            Ok(LifeTable { mem })
        } else {
            Err(SegmentError::Format)
        }
    }

    /// Whether something is alive. A process that hears of the death sees what was written before
    /// it.
    #[inline]
    #[must_use]
    pub fn is_alive(&self, life: Life) -> bool {
        self.mem.word(life.at()).load(Ordering::Acquire) == life.word(true)
    }

    /// The life that has or had this entry last, and whether it is alive. Generation 0: none ever.
    #[must_use]
    pub fn entry(&self, index: u16) -> (Life, bool) {
        let none = Life {
            index,
            generation: 0,
        };
        let word = self.mem.word(none.at()).load(Ordering::Acquire);
        match u32::try_from(word >> 1) {
            Ok(generation) => (Life { index, generation }, word & 1 == 1),
            Err(_) => (none, false),
        }
    }

    /// The deaths word: another value means that something died since.
    #[inline]
    #[must_use]
    pub fn deaths(&self) -> u32 {
        self.mem.word(l::LIFE_DEATHS_AT).load(Ordering::SeqCst) as u32
    }
}

#[cfg(not(any(loom, shuttle)))]
impl LifeTable {
    /// The deaths word, to be slept on (`FUTEX_WAIT`, `FUTEX_WAITV`; shared). It may lie in memory
    /// that is mapped for reading only: load from it, never store.
    #[must_use]
    pub fn deaths_word(&self) -> &std::sync::atomic::AtomicU32 {
        let address = self.mem.bytes(l::LIFE_DEATHS_AT, 4).cast::<u32>();
        // SAFETY: in bounds and aligned for as long as `self` holds the segment; the low half of a
        // little-endian word that is accessed atomically by all.
        unsafe { std::sync::atomic::AtomicU32::from_ptr(address) }
    }

    /// Sleeps until the deaths word is not `seen` any more, or for `timeout`. May return early.
    pub fn wait_for_death(&self, seen: u32, timeout: std::time::Duration) {
        use rustix::thread::futex;
        let seconds = timeout.as_secs().min(i32::MAX as u64);
        let timeout = rustix::time::Timespec {
            tv_sec: seconds as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // Whatever ends it, the caller looks again.
        let flags = futex::Flags::empty();
        let _ = futex::wait(self.deaths_word(), flags, seen, Some(&timeout));
    }
}

/// A table for writing: the broker's.
#[derive(Debug)]
pub struct LifeWriter {
    mem: Region,
}

impl LifeWriter {
    /// Makes a table of a segment of zeroes.
    ///
    /// # Errors
    /// [`SegmentError::Format`] if it has not [`l::LIFE_BYTES`] bytes.
    pub fn format(segment: Arc<Segment>) -> Result<LifeWriter, SegmentError> {
        let mem = Region::new(segment);
        if mem.len() != l::LIFE_BYTES {
            return Err(SegmentError::Format);
        }
        mem.word(l::VERSION_AT).store(l::VERSION, Ordering::Relaxed);
        mem.word(l::MAGIC_AT)
            .store(l::LIFE_MAGIC, Ordering::Release);
        Ok(LifeWriter { mem })
    }

    /// Goes on with a table that an earlier broker kept.
    ///
    /// # Errors
    /// [`SegmentError::Format`] if there is none.
    pub fn resume(segment: Arc<Segment>) -> Result<LifeWriter, SegmentError> {
        LifeTable::open(segment).map(|table| LifeWriter { mem: table.mem })
    }

    /// The same table, for reading.
    #[must_use]
    pub fn table(&self) -> LifeTable {
        LifeTable {
            mem: self.mem.clone(),
        }
    }

    /// Gives an entry to something that lives from now on.
    pub fn begin(&self, life: Life) {
        self.mem
            .word(life.at())
            .store(life.word(true), Ordering::Release);
    }

    /// Something is dead. [`LifeWriter::announce`] once all are that died together.
    pub fn end(&self, life: Life) {
        self.mem
            .word(life.at())
            .store(life.word(false), Ordering::Release);
    }

    /// Changes the deaths word and wakes all that sleep on it.
    pub fn announce(&self) {
        self.mem
            .word(l::LIFE_DEATHS_AT)
            .fetch_add(1, Ordering::SeqCst);
        #[cfg(not(any(loom, shuttle)))]
        {
            use rustix::thread::futex;
            // Nobody sleeping is no failure, and no other is possible.
            let _ = futex::wake(
                self.table().deaths_word(),
                futex::Flags::empty(),
                i32::MAX as u32,
            );
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::time::Duration;

    fn tables() -> (LifeWriter, LifeTable) {
        let segment = Segment::create("t", l::LIFE_BYTES).unwrap();
        let fd = segment.fd().try_clone_to_owned().unwrap();
        let writer = LifeWriter::format(Arc::new(segment)).unwrap();
        let reader = Segment::map_read_only(fd, l::LIFE_BYTES).unwrap();
        (writer, LifeTable::open(Arc::new(reader)).unwrap())
    }

    #[test]
    fn a_life_ends_once_and_for_all() {
        let (writer, table) = tables();
        let first = Life {
            index: u16::MAX,
            generation: u32::MAX,
        };
        assert!(!table.is_alive(first));
        writer.begin(first);
        assert!(table.is_alive(first));
        assert_eq!(table.entry(first.index), (first, true));
        writer.end(first);
        assert!(!table.is_alive(first));
        assert_eq!(table.entry(first.index), (first, false));
        let next = Life {
            generation: 1,
            ..first
        };
        writer.begin(next);
        assert!(table.is_alive(next) && !table.is_alive(first));
        assert_eq!(Life::from_bits(next.to_bits()), next);
        assert_eq!(Life::from_bits(first.to_bits() | 0xffff << 48), first);
    }

    #[test]
    fn who_sleeps_on_a_read_only_table_hears_of_a_death() {
        let (writer, table) = tables();
        let life = Life {
            index: 7,
            generation: 3,
        };
        writer.begin(life);
        let waiter = std::thread::spawn(move || {
            loop {
                let seen = table.deaths();
                if !table.is_alive(life) {
                    return;
                }
                // Far longer than the test may take: a death that is missed fails it.
                table.wait_for_death(seen, Duration::from_secs(3600));
            }
        });
        writer.end(life);
        writer.announce();
        waiter.join().unwrap();
    }

    #[test]
    fn only_tables_are_opened() {
        let short = Segment::create("t", l::PAGE).unwrap();
        assert!(LifeTable::open(Arc::new(short)).is_err());
        let blank = Arc::new(Segment::create("t", l::LIFE_BYTES).unwrap());
        assert!(LifeTable::open(Arc::clone(&blank)).is_err());
        assert!(LifeWriter::resume(Arc::clone(&blank)).is_err());
        let writer = LifeWriter::format(Arc::clone(&blank)).unwrap();
        writer.announce();
        let resumed = LifeWriter::resume(blank).unwrap();
        assert_eq!(resumed.table().deaths(), 1);
    }
}
