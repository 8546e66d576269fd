//! The table of memory regions and windows: keys, and every check before an access
//! (`ibv_reg_mr(3)`).
//!
//! A look-up takes no lock of the table's ([`MrReader`]): it is part of a turn under the lock of
//! whoever accesses memory. Changes are made by one thread at a time ([`MrWriter`]), which puts a
//! changed copy of a region in its place. The former copy is dropped when each of those locks has
//! been seen free ([`MrTable::take_retired`]).

mod reader;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use causeway_proto::host::{MemError, Remote};
use causeway_proto::types::Access;
use causeway_shm::layout::KEY_GENERATION_BITS;
use causeway_shm::{MrEntry, MrTable as Directory, NO_SEGMENT};
use parking_lot::{Mutex, MutexGuard};

use crate::errno::Errno;
use crate::in_place::InPlace;
use crate::limits::LIMITS;
use crate::move_threshold::MoveThreshold;
use crate::populated::Known;
use crate::published::{Published, Retired};
use crate::slab::Slab;
use crate::window_type::WindowType;

pub(crate) use reader::MrReader;

/// Low bits of a key that change with every registration in the same place.
pub(crate) const GENERATION_BITS: u32 = KEY_GENERATION_BITS;
/// Access flags a registration may ask for; the optional ones (bits 20 to 29) are ignored.
const KNOWN_ACCESS: u32 = Access::all().bits() | Access::OPTIONAL_RANGE;
/// Retired regions from which on somebody is to reclaim them, though no registration ends.
const RETIRED_MANY: usize = 256;

/// Where peers on this host can map a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The segment, in which an address is its own offset.
    pub segment: u64,
    /// The part of the region that is there.
    pub start: usize,
    /// The first address behind it.
    pub end: usize,
}

/// What a key stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Registered memory.
    Memory {
        /// Where peers can map it.
        place: Option<Place>,
    },
    /// A memory window (`window`), and the key of the region that it is bound to.
    Window {
        /// What it may be bound by.
        window: WindowType,
        /// The region; `None` while it is not bound.
        region: Option<u32>,
        /// The only queue pair through which it can be used; 0 where any will do.
        qpn: u32,
    },
}

/// A registered region, or a memory window: what its key lets one do.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub pd: u32,
    /// Where it is in this process.
    pub addr: usize,
    pub len: usize,
    /// Address by which work requests and peers name its first byte.
    pub iova: u64,
    pub access: Access,
    pub key: u32,
    pub kind: Kind,
    /// Until when it stays where it is.
    pub move_threshold: MoveThreshold,
    /// The segment that its memory is in.
    pub in_place: Option<InPlace>,
}

/// What only changes need to know of a region or a window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RegionUse {
    /// Windows bound to it: it cannot go while there are any.
    pub windows: u32,
    /// It is about to change: no window can be bound to it.
    pub frozen: bool,
    /// Peers on this host find it in the directory.
    pub published: bool,
}

/// All regions and windows of the process. Thread-safe.
#[derive(Debug)]
pub(crate) struct MrTable {
    regions: Published<Region>,
    changing: Mutex<Changing>,
    /// Counts what may have changed a region, or ended one.
    changes: AtomicU64,
    /// Counts the regions that were moved to a segment.
    settled: AtomicU64,
    /// The key of the region that has been used so often that it is to be moved; 0 for none.
    wanted: AtomicU32,
    /// How many regions are retired.
    retired: AtomicUsize,
}

/// What changes are made by, and with.
#[derive(Debug)]
pub(crate) struct Changing {
    /// By place.
    pub places: Slab<RegionUse>,
    generation: u32,
    /// Places of the windows that are bound.
    pub bound: BTreeSet<u32>,
    /// Memory that was populated when it was registered.
    pub known: Known,
    /// How many windows there are.
    pub windows: usize,
    /// Where peers on this host find those they can map.
    pub directory: Directory,
    retired: Vec<Retired<Region>>,
}

/// The table for one who changes it. Nothing is waited for while there is one.
pub(crate) struct MrWriter<'a> {
    table: &'a MrTable,
    pub at: MutexGuard<'a, Changing>,
}

impl MrTable {
    pub fn new(directory: Directory) -> Self {
        MrTable {
            regions: Published::new(LIMITS.max_mr),
            changing: Mutex::new(Changing {
                places: Slab::new(LIMITS.max_mr),
                generation: 0,
                bound: BTreeSet::new(),
                known: Known::default(),
                windows: 0,
                directory,
                retired: Vec::new(),
            }),
            changes: AtomicU64::new(1),
            settled: AtomicU64::new(0),
            wanted: AtomicU32::new(0),
            retired: AtomicUsize::new(0),
        }
    }

    /// The table, to change it.
    pub fn write(&self) -> MrWriter<'_> {
        MrWriter {
            table: self,
            at: self.changing.lock(),
        }
    }

    /// How many regions were moved to segments.
    #[inline(always)]
    pub fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }

    /// How often a region may have changed, or has ended.
    #[inline(always)]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Whether a region is to be moved.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// A region is to be moved.
    pub fn want(&self, key: u32) {
        self.wanted.store(key, Ordering::Relaxed);
    }

    /// The region to be moved, once.
    #[inline]
    pub fn take_wanted(&self) -> Option<u32> {
        if !self.is_wanted() {
            return None;
        }
        Some(self.wanted.swap(0, Ordering::Relaxed)).filter(|key| *key != 0)
    }

    /// Whether so many regions are retired that somebody is to reclaim them.
    #[inline]
    pub fn has_many_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed) >= RETIRED_MANY
    }

    /// Takes the retired regions, which are to be reclaimed when each reader's lock has been seen
    /// free.
    pub fn take_retired(&self) -> Vec<Retired<Region>> {
        let mut changing = self.changing.lock();
        self.retired.store(0, Ordering::Relaxed);
        std::mem::take(&mut changing.retired)
    }
}

impl MrWriter<'_> {
    /// What is in a place.
    pub fn in_place(&self, at: u32) -> Option<&Region> {
        // SAFETY: only what a writer has retired is reclaimed, and none retires anything of this
        // table while this one is there but itself, which keeps it in its list.
        unsafe { self.table.regions.get(at) }
    }

    pub fn get(&self, key: u32) -> Option<&Region> {
        self.in_place(key >> GENERATION_BITS)
            .filter(|region| region.key == key)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Region> {
        let places = self.at.places.iter();
        places.filter_map(|(at, _)| self.in_place(at))
    }

    /// What changes need to know of a region or a window.
    pub fn region_use(&mut self, key: u32) -> Option<&mut RegionUse> {
        self.get(key)?;
        self.at.places.get_mut(key >> GENERATION_BITS)
    }

    /// Whether peers find a region, or a window, in the directory.
    pub fn is_published(&self, key: u32) -> bool {
        let region_use = self.at.places.get(key >> GENERATION_BITS);
        self.get(key).is_some() && region_use.is_some_and(|region_use| region_use.published)
    }

    /// Puts a region in a place.
    fn put(&mut self, at: u32, region: Option<Region>) {
        if let Some(retired) = self.table.regions.replace(at, region) {
            self.at.retired.push(retired);
            let count = self.at.retired.len();
            self.table.retired.store(count, Ordering::Relaxed);
        }
        // Who has seen the count before has found the region before.
        self.table.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Changes what is in a place.
    pub fn update_place(&mut self, at: u32, change: impl FnOnce(&mut Region)) {
        if let Some(mut region) = self.in_place(at).cloned() {
            change(&mut region);
            self.put(at, Some(region));
        }
    }

    /// Changes a region, or a window.
    pub fn update(&mut self, key: u32, change: impl FnOnce(&mut Region)) {
        if self.get(key).is_some() {
            self.update_place(key >> GENERATION_BITS, change);
        }
    }

    /// Whether peers could find a region of this key.
    pub fn has_room(&self, key: u32) -> bool {
        self.at.directory.has_room(key)
    }

    /// Lets peers find a region in a segment, and the windows bound to it. `home`: the segment, of
    /// which this process has the descriptor.
    pub fn place(&mut self, key: u32, at: Place, in_place: Option<InPlace>) {
        self.update(key, |region| {
            if let Kind::Memory { place } = &mut region.kind {
                *place = Some(at);
            }
            if in_place.is_some() {
                region.in_place = in_place;
            }
        });
        self.table.settled.fetch_add(1, Ordering::Release);
        self.publish(key, at);
        for window in self.windows_of(key) {
            self.publish(window, at);
        }
    }

    /// Enters a region, or a window bound to it, into the directory.
    pub fn publish(&mut self, key: u32, at: Place) {
        if let Some(region_use) = self.region_use(key) {
            region_use.published = true;
        }
        if let Some(entry) = self.entry(key, at) {
            self.at.directory.publish(&entry);
        }
    }

    /// Lets peers find where a region is in this process, to read it from there.
    pub fn publish_in_process(&mut self, key: u32) {
        let nowhere = Place {
            segment: NO_SEGMENT,
            start: 0,
            end: 0,
        };
        if let Some(entry) = self.entry(key, nowhere)
            && let Some(region_use) = self.region_use(key)
        {
            region_use.published = true;
            self.at.directory.publish_in_process(&entry);
        }
    }

    /// What peers find of a region, or a window, whose memory is in a segment.
    pub(crate) fn entry(&self, key: u32, at: Place) -> Option<MrEntry> {
        let region = self.get(key)?;
        let qpn = match region.kind {
            Kind::Memory { .. } => 0,
            Kind::Window { qpn, .. } => qpn,
        };
        Some(MrEntry {
            key,
            access: region.access.bits(),
            pd: region.pd,
            qpn,
            iova: region.iova,
            len: region.len as u64,
            offset: region.addr as u64,
            segment: at.segment,
            start: at.start as u64,
            end: at.end as u64,
        })
    }

    /// Peers do not find a region any more, nor the windows bound to it. Returns the keys by which
    /// accesses may be under way.
    pub fn retract(&mut self, key: u32) -> Vec<u32> {
        self.update(key, |region| {
            region.in_place = None;
            if let Kind::Memory { place } = &mut region.kind {
                *place = None;
            }
        });
        let mut keys = self.windows_of(key);
        keys.push(key);
        keys.retain(|key| self.withdraw(*key));
        keys
    }

    /// Takes a key out of the directory. Returns whether it was there.
    pub fn withdraw(&mut self, key: u32) -> bool {
        let Some(region_use) = self.region_use(key) else {
            return false;
        };
        let published = std::mem::take(&mut region_use.published);
        if published {
            self.at.directory.retract(key);
        }
        published
    }

    /// Enters a region and returns its key, the same for local and remote use.
    pub fn insert(
        &mut self,
        pd: u32,
        (addr, len): (usize, usize),
        iova: u64,
        access: Access,
    ) -> Result<u32, Errno> {
        let region = Region {
            pd,
            addr,
            len,
            iova,
            access,
            key: 0,
            kind: Kind::Memory { place: None },
            move_threshold: MoveThreshold::default(),
            in_place: None,
        };
        let at = self.at.places.insert(RegionUse::default());
        let key = self.name(at.ok_or(Errno(libc::ENOMEM))?, region);
        if access.contains(Access::LOCAL_WRITE) {
            self.at.known.insert(key, (addr, len));
        }
        Ok(key)
    }

    /// Puts a region, or a window, in its place under a new key.
    pub fn name(&mut self, at: u32, region: Region) -> u32 {
        // Never 0 in the low byte, so that no key is 0.
        self.at.generation = self.at.generation % 0xff + 1;
        let key = (at << GENERATION_BITS) | self.at.generation;
        self.put(at, Some(Region { key, ..region }));
        key
    }

    /// Takes what is in a place away.
    pub fn clear(&mut self, at: u32) {
        self.put(at, None);
        self.at.places.remove(at);
    }

    /// Keeps windows from being bound to a region, which is about to change.
    ///
    /// # Errors
    /// EBUSY while one is bound, EINVAL if there is no such region.
    pub fn freeze(&mut self, key: u32) -> Result<(), Errno> {
        let is_memory = |region: &Region| matches!(region.kind, Kind::Memory { .. });
        if !self.get(key).is_some_and(is_memory) {
            return Err(Errno(libc::EINVAL));
        }
        match self.region_use(key) {
            Some(region_use) if region_use.windows == 0 => {
                region_use.frozen = true;
                Ok(())
            }
            _ => Err(Errno(libc::EBUSY)),
        }
    }

    /// Whether a region is about to change.
    pub fn is_frozen(&self, key: u32) -> bool {
        let region_use = self.at.places.get(key >> GENERATION_BITS);
        region_use.is_some_and(|region_use| region_use.frozen)
    }

    /// A frozen region goes on as it was.
    pub fn thaw(&mut self, key: u32) {
        if let Some(region_use) = self.region_use(key) {
            region_use.frozen = false;
        }
    }

    /// Gives a frozen region another protection domain and other permissions, under the same key.
    pub fn change(&mut self, key: u32, pd: u32, access: Access) {
        self.update(key, |region| (region.pd, region.access) = (pd, access));
        self.thaw(key);
    }

    /// How many regions there are.
    pub fn len(&self) -> usize {
        self.at.places.len() - self.at.windows
    }

    /// Removes a region. Look-ups under way may have found it:
    /// [`crate::shared::Shared::reclaim`] waits for their end.
    ///
    /// # Errors
    /// EBUSY while a window is bound to it, EINVAL if there is no such region.
    pub fn remove(&mut self, key: u32) -> Result<(), Errno> {
        self.freeze(key)?;
        self.withdraw(key);
        if let Some(addr) = self.get(key).map(|region| region.addr) {
            self.at.known.remove(key, addr);
        }
        self.clear(key >> GENERATION_BITS);
        Ok(())
    }
}

impl Region {
    /// Whether the program's own work requests may write to it.
    pub fn is_writable(&self) -> bool {
        self.access.contains(Access::LOCAL_WRITE)
    }

    /// Where a range of it is, if this may be done with it.
    #[inline]
    fn find(&self, pd: u32, addr: u64, len: u64, need: Access) -> Result<usize, MemError> {
        if self.pd != pd {
            return Err(MemError::Pd);
        }
        if !self.access.contains(need) {
            return Err(MemError::Access);
        }
        let offset = addr.checked_sub(self.iova).ok_or(MemError::Bounds)?;
        let end = offset.checked_add(len).ok_or(MemError::Bounds)?;
        if end > self.len as u64 {
            return Err(MemError::Bounds);
        }
        let offset = usize::try_from(offset).map_err(|_| MemError::Bounds)?;
        Ok(self.addr + offset)
    }
}

fn local(write: bool) -> Access {
    if write {
        Access::LOCAL_WRITE
    } else {
        Access::empty()
    }
}

fn remote(what: Remote) -> Access {
    match what {
        Remote::Read => Access::REMOTE_READ,
        Remote::Write => Access::REMOTE_WRITE,
        Remote::Atomic => Access::REMOTE_ATOMIC,
    }
}

/// Checks a registration's flags (`ibv_reg_mr(3)`): remote writing needs local writing.
pub(crate) fn check_access(flags: u32) -> Result<Access, Errno> {
    if flags & !KNOWN_ACCESS != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let access = Access::from_bits_truncate(flags);
    let writes = access.intersects(Access::REMOTE_CHANGE);
    if writes && !access.contains(Access::LOCAL_WRITE) {
        return Err(Errno(libc::EINVAL));
    }
    Ok(access)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use causeway_shm::Segment;
    use causeway_shm::layout::MR_TABLE_BYTES;

    use super::*;
    use causeway_proto::host::Via;

    #[test]
    fn a_key_is_not_valid_again_after_its_place_is_reused() {
        let segment = Segment::create("t", MR_TABLE_BYTES).unwrap();
        let table = MrTable::new(Directory::format(Arc::new(segment)).unwrap());
        let (table, reader) = MrReader::of_test(table);
        let old = table
            .write()
            .insert(1, (0x1000, 16), 0x1000, Access::LOCAL_WRITE)
            .unwrap();
        assert_eq!(table.write().remove(old), Ok(()));
        let new = table
            .write()
            .insert(1, (0x1000, 16), 0x1000, Access::LOCAL_WRITE)
            .unwrap();
        assert_eq!(old >> GENERATION_BITS, new >> GENERATION_BITS);
        assert_eq!(
            reader.check_local(1, old, 0x1000, 1, false),
            Err(MemError::Key)
        );
        assert_eq!(reader.check_local(1, new, 0x1000, 16, true), Ok(()));
        assert_eq!(
            reader.check_local(1, new, 0x1001, 16, true),
            Err(MemError::Bounds)
        );
        assert_eq!(
            reader.check_local(2, new, 0x1000, 1, true),
            Err(MemError::Pd)
        );
        let via = Via { pd: 1, qpn: 7 };
        let write = reader.check_remote(via, new, 0x1000, 1, Remote::Write);
        assert_eq!(write, Err(MemError::Access));
    }
}
