//! The handles that programs hold, which are looked up and never followed.
//!
//! A handle names an entry of a table and the entry's generation, so that one of something removed
//! is told from that of its successor, and one that never was is no harm.

use std::array;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;
use std::sync::Arc;

// By `super`, since the models build this file with a `sync` and an `error` of their own
// (crates/shm/tests/handle_models.rs).
use super::error::{Error, Result};
use super::sync::{AtomicPtr, AtomicU64, Mutex, Ordering};

/// Bits of a handle that name the entry.
const INDEX_BITS: u32 = 24;
/// Bits of a handle that hold the generation.
const GENERATION_BITS: u32 = 24;
/// Most objects of a kind in a process.
const MAX: usize = 1 << 20;
/// Bits of a generation that tell a process from its parents.
const EPOCH_SHIFT: u32 = 16;

/// Something that has handles.
pub trait Object: Sized + Send + Sync + 'static {
    /// Tells its handles from those of other kinds.
    const TAG: u8;
}

/// A handle as programs have it: the size of a pointer.
#[repr(transparent)]
pub struct Handle<T> {
    bits: u64,
    kind: PhantomData<fn(T) -> T>,
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        self.bits == other.bits
    }
}

impl<T> Eq for Handle<T> {}

impl<T> Default for Handle<T> {
    fn default() -> Self {
        Handle::NULL
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.bits)
    }
}

impl<T> Handle<T> {
    /// NULL
    pub const NULL: Handle<T> = Handle {
        bits: 0,
        kind: PhantomData,
    };

    /// Whether it is NULL.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.bits == 0
    }

    /// What tells it from all others of the process.
    #[must_use]
    pub fn id(self) -> u64 {
        self.bits
    }
}

impl<T: Object> Handle<T> {
    pub(crate) fn new(index: usize, generation: u32) -> Handle<T> {
        let generation = u64::from(generation) & ((1 << GENERATION_BITS) - 1);
        Handle {
            bits: u64::from(T::TAG) << (INDEX_BITS + GENERATION_BITS)
                | generation << INDEX_BITS
                | index as u64,
            kind: PhantomData,
        }
    }

    /// Entry and generation, if it is a handle of this kind at all.
    #[inline]
    pub(crate) fn parts(self) -> Option<(usize, u32)> {
        let tag = self.bits >> (INDEX_BITS + GENERATION_BITS);
        let generation = (self.bits >> INDEX_BITS) as u32 & ((1 << GENERATION_BITS) - 1);
        let index = self.bits as usize & ((1 << INDEX_BITS) - 1);
        (tag == u64::from(T::TAG)).then_some((index, generation))
    }
}

/// The first generation of a table's entries, in the process that is the `epoch`th of its line.
pub(crate) fn first_generation(epoch: u32) -> u32 {
    (epoch << EPOCH_SHIFT | 1) & ((1 << GENERATION_BITS) - 1)
}

/// The generation after this one: in the same epoch, and never 0.
pub(crate) fn next_generation(generation: u32) -> u32 {
    let low = (1 << EPOCH_SHIFT) - 1;
    generation & !low | ((generation & low) % low + 1)
}

/// All objects of a kind.
///
/// Looking one up takes no lock: the entries never move, and each counts the users of its object,
/// which the table gives up when it is removed and the last of them has left. A thread that ends
/// while it uses an object leaves its count behind: the object is never given up then, and nobody
/// waits for that.
pub struct Table<T> {
    epoch: u32,
    /// The first has [`FIRST_CHUNK`] entries, each other twice as many as the one before.
    chunks: [AtomicPtr<Slot<T>>; CHUNKS],
    allocation: Mutex<Allocation>,
}

/// Entries of a table's first chunk.
const FIRST_CHUNK: usize = 64;
/// Chunks of a table: enough for [`MAX`] entries.
const CHUNKS: usize = (MAX / FIRST_CHUNK).ilog2() as usize + 1;
/// In the place of an entry's generation: its object is removed and still in use.
const CLOSING: u64 = 0xffff_ffff << GENERATION_SHIFT;
/// The same, once all its users have left and one of them has taken it upon itself to give the
/// object up: threads that still look for it may come and go, and leave it alone.
const ENDING: u64 = 0xffff_fffe << GENERATION_SHIFT;
/// Where an entry's word has the generation. Below is the number of users.
const GENERATION_SHIFT: u32 = 32;

/// An entry.
struct Slot<T> {
    /// Generation, 0 without an object, and users. Users of what was removed come and go at any
    /// time: so the generation is changed by addition.
    state: AtomicU64,
    /// From `Arc::into_raw`, or null.
    object: AtomicPtr<T>,
}

#[derive(Debug, Default)]
struct Allocation {
    /// The generation that an entry's object has, or will have.
    generations: Vec<u32>,
    free: Vec<usize>,
}

/// An object in use.
pub struct Ref<'a, T: Object> {
    table: &'a Table<T>,
    slot: &'a Slot<T>,
    index: usize,
}

impl<T: Object> Deref for Ref<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: not null, and the table keeps it as long as this user has not left.
        unsafe { &*self.slot.object.load(Ordering::Relaxed) }
    }
}

impl<T: Object> Drop for Ref<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.table.leave(self.slot, self.index);
    }
}

impl<T> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.allocation.lock().generations.len();
        f.debug_struct("Table")
            .field("entries", &entries)
            .finish_non_exhaustive()
    }
}

/// Chunk of an entry, and its place there.
#[inline]
fn place(index: usize) -> (usize, usize) {
    let chunk = (index / FIRST_CHUNK + 1).ilog2() as usize;
    (chunk, index - FIRST_CHUNK * ((1 << chunk) - 1))
}

fn generation_of(state: u64) -> u32 {
    (state >> GENERATION_SHIFT) as u32
}

impl<T: Object> Table<T> {
    /// An empty table.
    #[must_use]
    pub fn new(epoch: u32) -> Table<T> {
        Table {
            epoch,
            chunks: array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            allocation: Mutex::default(),
        }
    }

    #[inline]
    fn slot(&self, index: usize) -> Option<&Slot<T>> {
        let (chunk, place) = place(index);
        let entries = self.chunks.get(chunk)?.load(Ordering::Acquire);
        if entries.is_null() {
            return None;
        }
        // SAFETY: `reserve` allocated the chunk with this many entries; it lives as the table does.
        Some(unsafe { &*entries.add(place) })
    }

    /// An entry without an object, and the generation for one.
    fn reserve(&self) -> Result<(usize, u32)> {
        let mut allocation = self.allocation.lock();
        if let Some(index) = allocation.free.pop() {
            return Ok((index, allocation.generations[index]));
        }
        let index = allocation.generations.len();
        if index >= MAX {
            return Err(Error::API_NOSPC);
        }
        let (chunk, place) = place(index);
        if place == 0 {
            let fresh: Box<[Slot<T>]> = (0..FIRST_CHUNK << chunk)
                .map(|_| Slot {
                    state: AtomicU64::new(0),
                    object: AtomicPtr::new(ptr::null_mut()),
                })
                .collect();
            self.chunks[chunk].store(Box::into_raw(fresh).cast(), Ordering::Release);
        }
        let generation = first_generation(self.epoch);
        allocation.generations.push(generation);
        Ok((index, generation))
    }

    /// The entry has no object any more.
    fn release(&self, index: usize) {
        let mut allocation = self.allocation.lock();
        allocation.generations[index] = next_generation(allocation.generations[index]);
        allocation.free.push(index);
    }

    /// Adds an object, which is told its handle.
    ///
    /// # Errors
    /// [`Error::API_NOSPC`], or what `make` says.
    pub fn insert(&self, make: impl FnOnce(Handle<T>) -> Result<Arc<T>>) -> Result<Handle<T>> {
        // Reserved first: `make` may call others, and must not do so under the lock.
        let (index, generation) = self.reserve()?;
        let handle = Handle::new(index, generation);
        let slot = self.slot(index).ok_or(Error::API_NOSPC)?;
        let object = make(handle).inspect_err(|_| self.release(index))?;
        slot.object
            .store(Arc::into_raw(object).cast_mut(), Ordering::Relaxed);
        let added = u64::from(generation) << GENERATION_SHIFT;
        slot.state.fetch_add(added, Ordering::Release);
        Ok(handle)
    }

    /// The object behind a handle, until the result is dropped.
    ///
    /// # Errors
    /// [`Error::ILLEGAL_PARAMETER`] if there is none.
    #[inline]
    pub fn enter(&self, handle: Handle<T>) -> Result<Ref<'_, T>> {
        let (index, generation) = handle.parts().ok_or(Error::ILLEGAL_PARAMETER)?;
        let slot = self.slot(index).ok_or(Error::ILLEGAL_PARAMETER)?;
        let before = slot.state.fetch_add(1, Ordering::Acquire);
        if generation == 0 || generation_of(before) != generation {
            self.leave(slot, index);
            return Err(Error::ILLEGAL_PARAMETER);
        }
        Ok(Ref {
            table: self,
            slot,
            index,
        })
    }

    #[inline]
    fn leave(&self, slot: &Slot<T>, index: usize) {
        let before = slot.state.fetch_sub(1, Ordering::AcqRel);
        if before == CLOSING | 1 {
            self.give_up(slot, index);
        }
    }

    /// Gives up a removed object, which nobody uses any more. Threads that found it removed may
    /// still come and go, and also end here: the one that changes the word gives up the object. A
    /// thread that comes too late may find the entry's next object here, and changes nothing.
    #[cold]
    fn give_up(&self, slot: &Slot<T>, index: usize) {
        let claimed =
            slot.state
                .compare_exchange(CLOSING, ENDING, Ordering::AcqRel, Ordering::Relaxed);
        if claimed.is_err() {
            return;
        }
        let object = slot.object.swap(ptr::null_mut(), Ordering::AcqRel);
        slot.state.fetch_sub(ENDING, Ordering::Release);
        // SAFETY: from `into_raw` in `insert`, and taken by nobody else.
        drop(unsafe { Arc::from_raw(object) });
        self.release(index);
    }

    /// The object behind a handle.
    ///
    /// # Errors
    /// [`Error::ILLEGAL_PARAMETER`] if there is none.
    pub fn get(&self, handle: Handle<T>) -> Result<Arc<T>> {
        let entered = self.enter(handle)?;
        let object: *const T = &*entered;
        // SAFETY: from `into_raw`; the table keeps its count until this user has left.
        unsafe {
            Arc::increment_strong_count(object);
            Ok(Arc::from_raw(object))
        }
    }

    /// Ends a handle. Returns the object to the one caller that ended it.
    pub fn remove(&self, handle: Handle<T>) -> Option<Arc<T>> {
        let (_, generation) = handle.parts()?;
        let object = self.get(handle).ok()?;
        let entered = self.enter(handle).ok()?;
        let closing = CLOSING - (u64::from(generation) << GENERATION_SHIFT);
        let close = |state: u64| (generation_of(state) == generation).then(|| state + closing);
        let closed = entered
            .slot
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, close);
        closed.ok().map(|_| object)
    }

    /// Does something with each object there is.
    pub fn each(&self, action: impl FnMut(Arc<T>)) {
        let generations = self.allocation.lock().generations.clone();
        let handles = generations.into_iter().enumerate();
        let objects: Vec<Arc<T>> = handles
            .filter_map(|(index, generation)| self.get(Handle::new(index, generation)).ok())
            .collect();
        objects.into_iter().for_each(action);
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for (chunk, entries) in self.chunks.iter().enumerate() {
            let entries = entries.load(Ordering::Relaxed);
            if entries.is_null() {
                continue;
            }
            let entries = ptr::slice_from_raw_parts_mut(entries, FIRST_CHUNK << chunk);
            // SAFETY: from `into_raw` in `reserve`, of this length; nobody else has the table.
            for slot in unsafe { Box::from_raw(entries) } {
                let object = slot.object.load(Ordering::Relaxed);
                if !object.is_null() {
                    // SAFETY: from `into_raw` in `insert`.
                    drop(unsafe { Arc::from_raw(object) });
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Thing(u32);
    impl Object for Thing {
        const TAG: u8 = 3;
    }

    #[test]
    fn a_handle_ends_with_its_object() {
        let table = Table::new(0);
        let first = table.insert(|_| Ok(Arc::new(Thing(1)))).unwrap();
        assert_eq!(table.get(first).unwrap().0, 1);
        assert_eq!(table.remove(first).unwrap().0, 1);
        assert!(table.remove(first).is_none());
        assert!(table.get(first).is_err());
        let second = table.insert(|_| Ok(Arc::new(Thing(2)))).unwrap();
        assert_ne!(first, second);
        assert!(table.get(first).is_err());
        let mut seen = Vec::new();
        table.each(|thing| seen.push(thing.0));
        assert_eq!(seen, [2]);
    }

    #[test]
    fn garbage_is_no_handle() {
        let table = Table::new(0);
        let good = table.insert(|_| Ok(Arc::new(Thing(1)))).unwrap();
        for bits in [
            0,
            1,
            u64::MAX,
            good.bits ^ 1 << 24,
            good.bits ^ 1 << 48,
            good.bits + 1,
        ] {
            let bad: Handle<Thing> = Handle {
                bits,
                kind: PhantomData,
            };
            assert_eq!(table.get(bad).unwrap_err(), Error::ILLEGAL_PARAMETER);
            assert!(table.remove(bad).is_none());
        }
        assert!(table.get(good).is_ok());
    }

    #[test]
    fn a_child_does_not_take_its_parents_handles_for_its_own() {
        let (parent, child) = (Table::new(0), Table::new(1));
        for _ in 0..100 {
            let old = parent.insert(|_| Ok(Arc::new(Thing(1)))).unwrap();
            child.insert(|_| Ok(Arc::new(Thing(2)))).unwrap();
            assert!(child.get(old).is_err());
        }
    }

    #[test]
    fn what_could_not_be_made_has_no_handle() {
        let table: Table<Thing> = Table::new(0);
        let mut seen = None;
        let failed = table.insert(|handle| {
            seen = Some(handle);
            Err(Error::NOSPC)
        });
        assert_eq!(failed.unwrap_err(), Error::NOSPC);
        assert!(table.get(seen.unwrap()).is_err());
        let next = table.insert(|_| Ok(Arc::new(Thing(2)))).unwrap();
        assert_ne!(Some(next), seen);
    }

    #[test]
    fn entries_have_places_of_their_own() {
        let mut next = [0; CHUNKS];
        for index in 0..MAX {
            let (chunk, at) = place(index);
            assert_eq!(at, next[chunk]);
            assert!(at < FIRST_CHUNK << chunk);
            next[chunk] += 1;
        }
    }

    #[test]
    fn a_removed_object_goes_with_its_last_user() {
        let table = Table::new(0);
        let object = Arc::new(Thing(1));
        let handle = table.insert(|_| Ok(object.clone())).unwrap();
        let (one, two) = (table.enter(handle).unwrap(), table.enter(handle).unwrap());
        drop(table.remove(handle).unwrap());
        assert!(table.enter(handle).is_err());
        // Its entry is nobody else's yet.
        let other = table.insert(|_| Ok(Arc::new(Thing(2)))).unwrap();
        assert_ne!(handle.parts().unwrap().0, other.parts().unwrap().0);
        drop(one);
        assert_eq!((two.0, Arc::strong_count(&object)), (1, 2));
        drop(two);
        assert_eq!(Arc::strong_count(&object), 1);
        let next = table.insert(|_| Ok(Arc::new(Thing(3)))).unwrap();
        assert_eq!(handle.parts().unwrap().0, next.parts().unwrap().0);
        drop(table);
    }

    #[test]
    fn a_user_that_never_leaves_holds_nobody_up() {
        let table = Table::new(0);
        let handle = table.insert(|_| Ok(Arc::new(Thing(1)))).unwrap();
        std::mem::forget(table.enter(handle).unwrap());
        assert!(table.remove(handle).is_some() && table.remove(handle).is_none());
        let next = table.insert(|_| Ok(Arc::new(Thing(2)))).unwrap();
        assert_eq!(table.get(next).unwrap().0, 2);
        assert!(table.enter(handle).is_err());
    }

    #[test]
    fn those_who_look_up_what_is_removed_see_it_or_not() {
        const ROUNDS: u32 = 20_000;
        const READERS: usize = 4;
        let table = Table::new(0);
        let shown = AtomicU64::new(0);
        let things: Arc<()> = Arc::new(());
        struct Counted(u32, #[allow(dead_code, reason = "counts")] Arc<()>);
        impl Object for Counted {
            const TAG: u8 = 5;
        }
        let start = std::sync::Barrier::new(READERS + 1);
        std::thread::scope(|scope| {
            for _ in 0..READERS {
                scope.spawn(|| {
                    start.wait();
                    while shown.load(Ordering::Acquire) != u64::MAX {
                        let bits = shown.load(Ordering::Acquire);
                        let handle: Handle<Counted> = Handle {
                            bits,
                            kind: PhantomData,
                        };
                        if let Ok(seen) = table.enter(handle) {
                            assert!(seen.0 < ROUNDS);
                        }
                        let _ = table.get(handle).map(|seen| assert!(seen.0 < ROUNDS));
                    }
                });
            }
            start.wait();
            for round in 0..ROUNDS {
                let made = Arc::new(Counted(round, things.clone()));
                let handle = table.insert(|_| Ok(made)).unwrap();
                shown.store(handle.id(), Ordering::Release);
                assert_eq!(table.remove(handle).unwrap().0, round);
                assert!(table.get(handle).is_err());
            }
            shown.store(u64::MAX, Ordering::Release);
        });
        assert_eq!(Arc::strong_count(&things), 1);
    }

    #[test]
    fn generations_never_come_to_0_nor_leave_their_epoch() {
        let mut generation = first_generation(5);
        for _ in 0..200_000 {
            generation = next_generation(generation);
            assert_eq!(generation >> EPOCH_SHIFT, 5);
            assert_ne!(generation & 0xffff, 0);
        }
    }
}
