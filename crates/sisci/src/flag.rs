//! Interrupt flags: words of a local segment, a store to which raises an interrupt.
//!
//! No event tells of a store to shared memory, so it has to be found. A *mark*, a random value, is
//! put in the word; a store takes it away. While a flag is enabled a thread of the process looks at
//! its word, every `NAP_MAX` at least; while none is, it sleeps. A thread that finds the mark gone
//! puts a new one in its place by one exchange. So a store is either found by that exchange, and
//! the thread that is told of it sees what was stored before; or it takes the new mark away, and is
//! found next time. None is missed, but several between two looks are one.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::interrupt::{LocalInterrupt, Plain};
use crate::memory::Mapping;
use crate::uses::{Held, Use};

/// Name of the thread.
const THREAD: &str = "causeway-flags";
/// Shortest time between two looks: after an interrupt, and after a flag was enabled.
const NAP_MIN: Duration = Duration::from_micros(20);
/// Longest.
const NAP_MAX: Duration = Duration::from_millis(1);
/// The least byte of a mark: what programs store are small numbers above all, in every byte.
const MARK_MIN: u8 = 0x81;
/// How many bytes there are for marks: up to 0xfe, since 0xff is part of small negative numbers.
const MARKS: u8 = 0xfe - MARK_MIN + 1;

/// Bytes of a flag.
pub const FLAG_BYTES: usize = size_of::<u32>();

/// A flag.
pub struct Flag {
    word: *mut u32,
    state: Mutex<State>,
    interrupt: Weak<LocalInterrupt<Plain>>,
    /// Keeps the word mapped.
    mapping: Arc<Mapping>,
    segment: Held<Use>,
}

// SAFETY: the word is mapped as long as the flag lives, and only accessed as an atomic.
unsafe impl Send for Flag {}
// SAFETY: as above.
unsafe impl Sync for Flag {}

impl fmt::Debug for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flag").finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    mark: u32,
    enabled: bool,
    /// Stores found since the flag was enabled or disabled.
    count: u32,
    /// One was found for which there was no interrupt.
    missed: bool,
}

impl Flag {
    /// A flag, disabled, at an offset of a segment's mapping.
    ///
    /// # Errors
    /// `OFFSET_ALIGNMENT`, `OUT_OF_RANGE`.
    pub fn new(
        (mapping, offset): (Arc<Mapping>, usize),
        segment: Use,
        interrupt: Weak<LocalInterrupt<Plain>>,
    ) -> Result<Arc<Flag>> {
        if !offset.is_multiple_of(FLAG_BYTES) {
            return Err(Error::OFFSET_ALIGNMENT);
        }
        let flag = Flag {
            word: mapping.at(offset, FLAG_BYTES)?.cast(),
            state: Mutex::default(),
            interrupt,
            mapping,
            segment: Held::new(segment),
        };
        // Whatever the word holds, a store of the same would not show.
        flag.mark(&mut flag.state.lock());
        Ok(Arc::new(flag))
    }

    /// Whether another flag is the same word, be it by another mapping of the memory.
    #[must_use]
    pub fn is_at(&self, mapping: &Mapping, offset: usize) -> bool {
        let own = self.word.addr() - self.mapping.as_ptr().addr();
        // Where nothing tells what memory it is, the address does.
        mapping.as_ptr().wrapping_add(offset).addr() == self.word.addr()
            || self.mapping.distance(own, (mapping, offset)) == Some(0)
    }

    /// Whether there was a store since the last look.
    fn look(&self, state: &mut State) -> bool {
        if self.word().load(Ordering::Acquire) == state.mark {
            return false;
        }
        self.mark(state);
        true
    }

    /// Puts a new mark in the word.
    fn mark(&self, state: &mut State) {
        let found = self.word().load(Ordering::Relaxed);
        state.mark = new_mark(state.mark, found);
        // What was stored before is visible to the thread that is told.
        self.word().swap(state.mark, Ordering::AcqRel);
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: mapped, aligned since mappings of whole segments are and the offset is; other
        // processes change it by stores, which an atomic allows for.
        unsafe { AtomicU32::from_ptr(self.word) }
    }

    /// Looks, and raises the interrupt if there was a store and it is enabled; it is not any more
    /// then. Returns whether it still is.
    fn watch(&self) -> bool {
        let mut state = self.state.lock();
        if !state.enabled {
            return false;
        }
        if !self.look(&mut state) {
            return true;
        }
        state.count = state.count.saturating_add(1);
        state.enabled = false;
        drop(state);
        if let Some(interrupt) = self.interrupt.upgrade() {
            interrupt.raise();
        }
        false
    }

    /// The next store raises the interrupt. Returns whether a thread has to watch it from now on.
    ///
    /// # Errors
    /// `COND_INT_RACE_PROBLEM` if there was a store since the interrupt, or since it was disabled:
    /// it is not enabled then, and the next attempt does not hear of that store.
    fn enable(&self) -> Result<bool> {
        let mut state = self.state.lock();
        if state.enabled {
            return Ok(false);
        }
        let raced = self.look(&mut state) || state.missed;
        state.missed = false;
        state.count = 0;
        state.enabled = !raced;
        if raced {
            Err(Error::COND_INT_RACE_PROBLEM)
        } else {
            Ok(true)
        }
    }

    /// No store raises the interrupt any more.
    fn disable(&self) {
        let mut state = self.state.lock();
        state.missed |= self.look(&mut state);
        state.count = 0;
        state.enabled = false;
    }

    /// How many stores were found since it was enabled or disabled.
    ///
    /// # Errors
    /// `OVERFLOW` beyond what can be counted.
    pub fn count(&self) -> Result<u32> {
        let _ = self.watch();
        let mut state = self.state.lock();
        if !state.enabled && self.look(&mut state) {
            state.count = state.count.saturating_add(1);
            state.missed = true;
        }
        match state.count {
            u32::MAX => Err(Error::OVERFLOW),
            count => Ok(count),
        }
    }

    /// It is a flag no more.
    fn end(&self) {
        self.state.lock().enabled = false;
        self.segment.release();
    }
}

/// A mark none of whose bytes was there before, neither in the last mark nor in what was found, nor
/// is one that programs store often: a store of one byte or two shows as one of four does.
fn new_mark(old: u32, found: u32) -> u32 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(old);
    let random = (hasher.finish() as u32).to_ne_bytes();
    let (old, found) = (old.to_ne_bytes(), found.to_ne_bytes());
    u32::from_ne_bytes(std::array::from_fn(|at| {
        let taken = |byte: u8| byte == old[at] || byte == found[at];
        // Two are taken at most, and there are many more.
        let mut byte = MARK_MIN + random[at] % MARKS;
        while taken(byte) {
            byte = MARK_MIN + (byte - MARK_MIN + 1) % MARKS;
        }
        byte
    }))
}

/// The flags of a process, and the thread that watches those that are enabled.
#[derive(Debug, Default)]
pub struct Flags {
    inner: Mutex<Inner>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    all: Vec<Weak<Flag>>,
    enabled: Vec<Arc<Flag>>,
    thread: bool,
}

impl Flags {
    /// Adds a flag.
    ///
    /// # Errors
    /// `BUSY` if its word is a flag already; as [`Flag::new`].
    pub fn add(
        &self,
        (mapping, offset): (Arc<Mapping>, usize),
        segment: Use,
        interrupt: Weak<LocalInterrupt<Plain>>,
    ) -> Result<Arc<Flag>> {
        let mut inner = self.inner.lock();
        inner.all.retain(|flag| flag.strong_count() > 0);
        let mut others = inner.all.iter().filter_map(Weak::upgrade);
        if others.any(|other| other.is_at(&mapping, offset)) {
            return Err(Error::BUSY);
        }
        let flag = Flag::new((mapping, offset), segment, interrupt)?;
        inner.all.push(Arc::downgrade(&flag));
        Ok(flag)
    }

    /// Enables a flag.
    ///
    /// # Errors
    /// As `Flag::enable`; `SYSTEM` if there can be no thread.
    pub fn enable(self: &Arc<Self>, flag: &Arc<Flag>) -> Result<()> {
        if !flag.enable()? {
            return Ok(());
        }
        let mut inner = self.inner.lock();
        inner.enabled.push(flag.clone());
        if !inner.thread {
            let flags = self.clone();
            let thread = std::thread::Builder::new().name(THREAD.into());
            if causeway_recover::spawn(thread, move |_| flags.run()).is_err() {
                inner.enabled.pop();
                drop(inner);
                flag.disable();
                return Err(Error::SYSTEM);
            }
            inner.thread = true;
        }
        drop(inner);
        self.more.notify_one();
        Ok(())
    }

    /// Disables a flag.
    pub fn disable(&self, flag: &Arc<Flag>) {
        flag.disable();
        self.forget(flag);
    }

    /// Ends a flag.
    pub fn remove(&self, flag: &Arc<Flag>) {
        flag.end();
        let mut inner = self.inner.lock();
        inner
            .all
            .retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(flag)));
        drop(inner);
        self.forget(flag);
    }

    fn forget(&self, flag: &Arc<Flag>) {
        let is_another = |other: &Arc<Flag>| !Arc::ptr_eq(other, flag);
        self.inner.lock().enabled.retain(is_another);
    }

    fn run(&self) {
        let mut nap = NAP_MIN;
        let mut inner = self.inner.lock();
        loop {
            if inner.enabled.is_empty() {
                self.more.wait(&mut inner);
                nap = NAP_MIN;
                continue;
            }
            let before = inner.enabled.len();
            inner.enabled.retain(|flag| flag.watch());
            if inner.enabled.len() < before {
                nap = NAP_MIN;
            }
            // Woken early by one that has just been enabled.
            let early = !self.more.wait_for(&mut inner, nap).timed_out();
            nap = if early { NAP_MIN } else { NAP_MAX.min(nap * 2) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Place;
    use crate::uses::Uses;
    use causeway_shm::Segment;

    fn flag(flags: &Flags, offset: usize) -> (Result<Arc<Flag>>, Arc<Mapping>) {
        let place = Place {
            base: 0,
            offset: 0,
            len: 4096,
            address: 0,
            read_only: false,
        };
        let file = Segment::create("flag", 4096).unwrap();
        let mapping = Arc::new(Mapping::new(file.fd(), place).unwrap());
        let user = Uses::default().enter().unwrap();
        let made = flags.add((mapping.clone(), offset), user, Weak::new());
        (made, mapping)
    }

    fn store(mapping: &Mapping, value: u32) {
        let word: *mut u32 = mapping.as_ptr().cast();
        // SAFETY: the first word of a page.
        unsafe { word.write_volatile(value) };
    }

    #[test]
    fn a_store_is_found_once_and_none_is_missed() {
        let flags = Flags::default();
        let (flag, mapping) = flag(&flags, 0);
        let flag = flag.unwrap();
        assert_eq!(flag.count(), Ok(0));
        assert_eq!(flag.enable(), Ok(true));
        assert_eq!(flag.enable(), Ok(false));
        assert!(flag.watch());
        for value in [1, 1, 0] {
            store(&mapping, value);
            // Found by the watcher: the interrupt.
            assert!(!flag.watch() && !flag.watch());
            assert_eq!(flag.count(), Ok(1));
            assert_eq!(flag.enable(), Ok(true));
        }
        store(&mapping, 1);
        assert!(!flag.watch());
        store(&mapping, 1);
        assert_eq!(flag.count(), Ok(2));
        assert_eq!(flag.enable(), Err(Error::COND_INT_RACE_PROBLEM));
        assert!(!flag.watch());
        assert_eq!(flag.enable(), Ok(true));
        flag.disable();
        store(&mapping, 1);
        assert_eq!(flag.count(), Ok(1));
        assert_eq!(flag.enable(), Err(Error::COND_INT_RACE_PROBLEM));
        flag.state.lock().count = u32::MAX;
        assert_eq!(flag.count(), Err(Error::OVERFLOW));
    }

    #[test]
    fn a_store_of_what_is_there_shows_when_it_is_the_first() {
        let flags = Flags::default();
        let (flag, mapping) = flag(&flags, 0);
        let flag = flag.unwrap();
        assert_eq!(flag.enable(), Ok(true));
        store(&mapping, 0);
        assert!(!flag.watch());
        assert_eq!(flag.count(), Ok(1));
    }

    #[test]
    fn marks_have_no_byte_of_what_was_there_nor_of_what_is_common() {
        let mut old = 0;
        for round in 0..10_000u32 {
            let found = round.wrapping_mul(0x9e37_79b9) | 0x8080_8080;
            let mark = new_mark(old, found);
            for at in 0..FLAG_BYTES {
                let byte = mark.to_ne_bytes()[at];
                assert!((MARK_MIN..0xff).contains(&byte), "{mark:#x}");
                assert_ne!(byte, old.to_ne_bytes()[at]);
                assert_ne!(byte, found.to_ne_bytes()[at]);
            }
            old = mark;
        }
    }

    #[test]
    fn a_flag_is_a_word_of_its_own() {
        let flags = Flags::default();
        assert_eq!(flag(&flags, 2).0.err(), Some(Error::OFFSET_ALIGNMENT));
        assert_eq!(flag(&flags, 4096).0.err(), Some(Error::OUT_OF_RANGE));
        let (first, mapping) = flag(&flags, 8);
        let again = |offset| {
            let user = Uses::default().enter().unwrap();
            flags.add((mapping.clone(), offset), user, Weak::new())
        };
        assert_eq!(again(8).err(), Some(Error::BUSY));
        assert!(again(12).is_ok());
        flags.remove(&first.unwrap());
        assert!(again(8).is_ok());
    }
}
