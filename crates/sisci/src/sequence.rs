//! Sequences: they say whether what was stored through a map has arrived.
//!
//! On one host it has, as soon as it is stored, as long as the segment's owner is alive. So a check
//! is a load of the owner's word in the life table, and costs as little: the sequences lie in a
//! table that never moves, and are read without a lock. Of memory on another host the link is asked
//! too.

use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use causeway_shm::{Life, LifeTable};
use parking_lot::Mutex;

use crate::error::{Error, Result};
pub(crate) use crate::flight::Standing;
use crate::handles::{Handle, Object, first_generation, next_generation};
pub use crate::life_table::Owner;
use crate::map::Map;
use crate::window::Window;

/// Sequences that are allocated together.
const CHUNK: usize = 256;
/// Most such chunks.
const CHUNKS: usize = 1024;

/// What a handle of a sequence stands for: an entry of [`Sequences`].
#[derive(Debug)]
pub struct Sequence(());

impl Object for Sequence {
    const TAG: u8 = b'Q';
}

/// An entry. Free: generation 0.
#[derive(Default)]
struct Slot {
    generation: AtomicU32,
    /// Null: the memory is the process's own.
    table: AtomicPtr<LifeTable>,
    life: AtomicU64,
    /// The memory is on another host.
    far: AtomicBool,
}

/// All sequences of a process.
pub struct Sequences {
    epoch: u32,
    chunks: [AtomicPtr<[Slot; CHUNK]>; CHUNKS],
    allocation: Mutex<Allocation>,
}

#[derive(Default)]
struct Allocation {
    free: Vec<usize>,
    entries: Vec<Entry>,
}

/// Its next generation, and whether it is in use. It does not keep the map: programs unmap before
/// they remove the sequence, or never do.
#[derive(Debug)]
struct Entry {
    generation: u32,
    used: bool,
    /// Of memory on another host: the way there, and how many faults there had been when the
    /// sequence began.
    far: Option<(Window, u64)>,
}

impl fmt::Debug for Sequences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.allocation.lock().entries.len();
        f.debug_struct("Sequences")
            .field("entries", &entries)
            .finish_non_exhaustive()
    }
}

impl Sequences {
    /// None yet.
    #[must_use]
    pub fn new(epoch: u32) -> Sequences {
        Sequences {
            epoch,
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
            allocation: Mutex::default(),
        }
    }

    #[inline]
    fn slot(&self, index: usize) -> Option<&Slot> {
        let chunk = self.chunks.get(index / CHUNK)?.load(Ordering::Acquire);
        // SAFETY: null, or allocated in `create` and never freed.
        unsafe { chunk.as_ref() }.map(|chunk| &chunk[index % CHUNK])
    }

    /// A sequence of a map.
    ///
    /// # Errors
    /// [`Error::API_NOSPC`]
    pub fn create(&self, map: &Map) -> Result<Handle<Sequence>> {
        let mut allocation = self.allocation.lock();
        let index = match allocation.free.pop() {
            Some(index) => index,
            None if allocation.entries.len() < CHUNK * CHUNKS => {
                if allocation.entries.len().is_multiple_of(CHUNK) {
                    let fresh: Box<[Slot; CHUNK]> =
                        Box::new(std::array::from_fn(|_| Slot::default()));
                    self.chunks[allocation.entries.len() / CHUNK]
                        .store(Box::into_raw(fresh), Ordering::Release);
                }
                allocation.entries.push(Entry {
                    generation: first_generation(self.epoch),
                    used: false,
                    far: None,
                });
                allocation.entries.len() - 1
            }
            None => return Err(Error::API_NOSPC),
        };
        let far = map
            .window()
            .map(|window| (window.clone(), window.begin().0));
        let is_far = far.is_some();
        let entry = &mut allocation.entries[index];
        let generation = entry.generation;
        entry.used = true;
        entry.far = far;
        let slot = self.slot(index).ok_or(Error::API_NOSPC)?;
        let owner = map.owner();
        let table = owner.map_or(ptr::null_mut(), |o| ptr::from_ref(o.table).cast_mut());
        slot.table.store(table, Ordering::Relaxed);
        let life = owner.map_or(0, |o| o.life.to_bits());
        slot.life.store(life, Ordering::Relaxed);
        slot.far.store(is_far, Ordering::Relaxed);
        slot.generation.store(generation, Ordering::Release);
        Ok(Handle::new(index, generation))
    }

    /// Ends a sequence.
    ///
    /// # Errors
    /// [`Error::ILLEGAL_PARAMETER`] if there is none.
    pub fn remove(&self, handle: Handle<Sequence>) -> Result<()> {
        let (index, generation) = handle.parts().ok_or(Error::ILLEGAL_PARAMETER)?;
        let mut allocation = self.allocation.lock();
        match allocation.entries.get_mut(index) {
            Some(entry) if entry.generation == generation && entry.used => {
                entry.used = false;
                entry.generation = next_generation(generation);
                entry.far = None;
                allocation.free.push(index);
                if let Some(slot) = self.slot(index) {
                    slot.generation.store(0, Ordering::Release);
                }
                Ok(())
            }
            _ => Err(Error::ILLEGAL_PARAMETER),
        }
    }

    /// Ends all sequences.
    pub fn clear(&self) {
        let handles: Vec<Handle<Sequence>> = {
            let allocation = self.allocation.lock();
            let used = allocation.entries.iter().enumerate();
            used.filter(|(_, entry)| entry.used)
                .map(|(index, entry)| Handle::new(index, entry.generation))
                .collect()
        };
        for handle in handles {
            let _ = self.remove(handle);
        }
    }

    /// A sequence begins anew. Whether it makes sense to store.
    ///
    /// # Errors
    /// As [`Sequences::check`].
    pub(crate) fn start(&self, handle: Handle<Sequence>) -> Result<Standing> {
        if !self.check(handle)? {
            return Ok(Standing::NotRetriable);
        }
        let Some((window, _)) = self.far(handle)? else {
            return Ok(Standing::Ok);
        };
        let (faults, standing) = window.begin();
        if let Some((index, generation)) = handle.parts() {
            let mut allocation = self.allocation.lock();
            let entry = allocation.entries.get_mut(index);
            let entry = entry.filter(|entry| entry.generation == generation);
            if let Some((_, begun)) = entry.and_then(|entry| entry.far.as_mut()) {
                *begun = faults;
            }
        }
        Ok(standing)
    }

    /// Whether all has arrived that was stored since the sequence began; with `wait` it waits for
    /// what is on its way to another host.
    ///
    /// # Errors
    /// As [`Sequences::check`].
    #[inline]
    pub(crate) fn standing(&self, handle: Handle<Sequence>, wait: bool) -> Result<Standing> {
        if !self.check(handle)? {
            return Ok(Standing::NotRetriable);
        }
        let Some((window, begun)) = self.far(handle)? else {
            return Ok(Standing::Ok);
        };
        let standing = window.check(begun, wait);
        match self.check(handle)? {
            true => Ok(standing),
            // Its end was told meanwhile.
            false => Ok(Standing::NotRetriable),
        }
    }

    /// The way to memory on another host, and how many faults there had been.
    #[inline]
    fn far(&self, handle: Handle<Sequence>) -> Result<Option<(Window, u64)>> {
        let (index, generation) = handle.parts().ok_or(Error::ILLEGAL_PARAMETER)?;
        let slot = self.slot(index).ok_or(Error::ILLEGAL_PARAMETER)?;
        if !slot.far.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let allocation = self.allocation.lock();
        let entry = allocation.entries.get(index);
        let entry = entry.filter(|entry| entry.generation == generation && entry.used);
        Ok(entry.ok_or(Error::ILLEGAL_PARAMETER)?.far.clone())
    }

    /// Whether the owner of the memory is alive.
    ///
    /// # Errors
    /// [`Error::ILLEGAL_PARAMETER`] if there is no such sequence.
    #[inline]
    pub fn check(&self, handle: Handle<Sequence>) -> Result<bool> {
        let (index, generation) = handle.parts().ok_or(Error::ILLEGAL_PARAMETER)?;
        let slot = self.slot(index).ok_or(Error::ILLEGAL_PARAMETER)?;
        if slot.generation.load(Ordering::Acquire) != generation {
            return Err(Error::ILLEGAL_PARAMETER);
        }
        let table = slot.table.load(Ordering::Relaxed);
        let life = Life::from_bits(slot.life.load(Ordering::Relaxed));
        // SAFETY: null, or a table that is never given up (`Owner`).
        let table = unsafe { table.as_ref() };
        Ok(table.is_none_or(|table| table.is_alive(life)))
    }
}
