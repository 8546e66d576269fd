//! What programs hold: handles that are looked up, never followed.
//!
//! A handle names an entry of a table and the entry's generation, so that one of something removed
//! is told from that of its successor, and one that never was is no harm.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::error::{Error, Result};

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
#[derive(Debug)]
pub struct Table<T> {
    epoch: u32,
    slots: RwLock<Slots<T>>,
}

#[derive(Debug)]
struct Slots<T> {
    entries: Vec<(u32, Option<Arc<T>>)>,
    free: Vec<usize>,
}

impl<T: Object> Table<T> {
    /// An empty table.
    #[must_use]
    pub fn new(epoch: u32) -> Table<T> {
        Table {
            epoch,
            slots: RwLock::new(Slots {
                entries: Vec::new(),
                free: Vec::new(),
            }),
        }
    }

    /// Adds an object, which is told its handle.
    ///
    /// # Errors
    /// [`Error::API_NOSPC`], or what `make` says.
    pub fn insert(&self, make: impl FnOnce(Handle<T>) -> Result<Arc<T>>) -> Result<Handle<T>> {
        // Reserved first: `make` may call others, and must not do so under the lock.
        let (index, generation) = {
            let mut slots = self.slots.write();
            match slots.free.pop() {
                Some(index) => (index, slots.entries[index].0),
                None if slots.entries.len() < MAX => {
                    let generation = first_generation(self.epoch);
                    slots.entries.push((generation, None));
                    (slots.entries.len() - 1, generation)
                }
                None => return Err(Error::API_NOSPC),
            }
        };
        let handle = Handle::new(index, generation);
        let made = make(handle);
        let mut slots = self.slots.write();
        match made {
            Ok(object) => {
                slots.entries[index].1 = Some(object);
                Ok(handle)
            }
            Err(error) => {
                slots.entries[index].0 = next_generation(generation);
                slots.free.push(index);
                Err(error)
            }
        }
    }

    /// The object behind a handle.
    ///
    /// # Errors
    /// [`Error::ILLEGAL_PARAMETER`] if there is none.
    pub fn get(&self, handle: Handle<T>) -> Result<Arc<T>> {
        let (index, generation) = handle.parts().ok_or(Error::ILLEGAL_PARAMETER)?;
        match self.slots.read().entries.get(index) {
            Some((current, Some(object))) if *current == generation => Ok(object.clone()),
            _ => Err(Error::ILLEGAL_PARAMETER),
        }
    }

    /// Ends a handle. Returns the object to the one caller that ended it.
    pub fn remove(&self, handle: Handle<T>) -> Option<Arc<T>> {
        let (index, generation) = handle.parts()?;
        let mut slots = self.slots.write();
        match slots.entries.get_mut(index) {
            Some((current, object)) if *current == generation && object.is_some() => {
                let object = object.take();
                *current = next_generation(generation);
                slots.free.push(index);
                object
            }
            _ => None,
        }
    }

    /// Does something with each object there is.
    pub fn each(&self, action: impl FnMut(Arc<T>)) {
        let objects: Vec<Arc<T>> = {
            let slots = self.slots.read();
            slots.entries.iter().filter_map(|e| e.1.clone()).collect()
        };
        objects.into_iter().for_each(action);
    }
}

#[cfg(test)]
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
    fn generations_never_come_to_0_nor_leave_their_epoch() {
        let mut generation = first_generation(5);
        for _ in 0..200_000 {
            generation = next_generation(generation);
            assert_eq!(generation >> EPOCH_SHIFT, 5);
            assert_ne!(generation & 0xffff, 0);
        }
    }
}
