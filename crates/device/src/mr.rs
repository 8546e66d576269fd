//! The table of memory regions and windows: keys, and every check before an access
//! (`ibv_reg_mr(3)`).

use std::cell::Cell;
use std::collections::BTreeSet;

use causeway_proto::host::{AtomicOp, MemError, Remote, Via};
use causeway_proto::types::Access;
use causeway_proto::{Bytes, BytesMut};
use causeway_shm::layout::KEY_GENERATION_BITS;
use causeway_shm::{MrEntry, MrTable as Directory};

use crate::copy;
use crate::errno::Errno;
use crate::home::Home;
use crate::known::Known;
use crate::limits::LIMITS;
use crate::patience::Patience;
use crate::slab::Slab;
use crate::window_type::WindowType;

/// Low bits of a key that change with every registration in the same place.
pub(crate) const GENERATION_BITS: u32 = KEY_GENERATION_BITS;
/// Access flags a registration may ask for; the optional ones (bits 20 to 29) are ignored.
const KNOWN_ACCESS: u32 = Access::all().bits() | Access::OPTIONAL_RANGE;

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
        /// Windows bound to it: it cannot go while there are any.
        windows: u32,
        /// It is about to change: no window can be bound to it.
        frozen: bool,
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
    /// Peers on this host find it in the directory.
    pub published: bool,
    /// Until when it stays where it is.
    pub patience: Patience,
    /// The segment that its memory is in.
    pub home: Option<Home>,
}

/// All regions and windows of the process.
#[derive(Debug)]
pub(crate) struct MrTable {
    pub regions: Slab<Region>,
    generation: u32,
    /// Places of the windows that are bound.
    pub bound: BTreeSet<u32>,
    /// Memory that was populated when it was registered.
    pub known: Known,
    /// How many windows there are.
    pub windows: usize,
    /// The region that has been used so often that it is to be moved.
    pub wanted: Cell<Option<u32>>,
    /// Where peers on this host find those they can map.
    pub(crate) directory: Directory,
    /// When it was last looked whether memory is where it was moved.
    pub looked: Cell<Option<u64>>,
    /// Counts what may have changed a region, or ended one.
    changes: u64,
}

impl MrTable {
    pub fn new(directory: Directory) -> Self {
        MrTable {
            regions: Slab::new(LIMITS.max_mr),
            generation: 0,
            bound: BTreeSet::new(),
            known: Known::default(),
            windows: 0,
            wanted: Cell::new(None),
            directory,
            looked: Cell::new(None),
            changes: 1,
        }
    }

    /// How often a region may have changed, or has ended.
    #[inline(always)]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether peers could find a region of this key.
    pub fn has_room(&self, key: u32) -> bool {
        self.directory.has_room(key)
    }

    /// Lets peers find a region in a segment, and the windows bound to it.
    pub fn place(&mut self, key: u32, at: Place) {
        let Some(region) = self.get_mut(key) else {
            return;
        };
        if let Kind::Memory { place, .. } = &mut region.kind {
            *place = Some(at);
        }
        self.publish(key, at);
        for window in self.windows_of(key) {
            self.publish(window, at);
        }
    }

    /// Enters a region, or a window bound to it, into the directory.
    pub fn publish(&mut self, key: u32, at: Place) {
        if let Some(region) = self.get_mut(key) {
            region.published = true;
        }
        if let Some(entry) = self.entry(key, at) {
            self.directory.publish(&entry);
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
        if let Some(region) = self.get_mut(key) {
            region.home = None;
            if let Kind::Memory { place, .. } = &mut region.kind {
                *place = None;
            }
        }
        let mut keys = self.windows_of(key);
        keys.push(key);
        keys.retain(|key| self.withdraw(*key));
        keys
    }

    /// Takes a key out of the directory. Returns whether it was there.
    pub fn withdraw(&mut self, key: u32) -> bool {
        let Some(region) = self.get_mut(key) else {
            return false;
        };
        let published = std::mem::take(&mut region.published);
        if published {
            self.directory.retract(key);
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
            kind: Kind::Memory {
                windows: 0,
                frozen: false,
                place: None,
            },
            published: false,
            patience: Patience::default(),
            home: None,
        };
        let at = self.regions.insert(region).ok_or(Errno(libc::ENOMEM))?;
        let key = self.name(at);
        if access.contains(Access::LOCAL_WRITE) {
            self.known.insert(key, (addr, len));
        }
        Ok(key)
    }

    /// Gives what was entered at a place its key.
    pub fn name(&mut self, at: u32) -> u32 {
        // Never 0 in the low byte, so that no key is 0.
        self.generation = self.generation % 0xff + 1;
        let key = (at << GENERATION_BITS) | self.generation;
        if let Some(region) = self.regions.get_mut(at) {
            region.key = key;
        }
        key
    }

    /// Keeps windows from being bound to a region, which is about to change.
    ///
    /// # Errors
    /// EBUSY while one is bound, EINVAL if there is no such region.
    pub fn freeze(&mut self, key: u32) -> Result<(), Errno> {
        match self.get_mut(key).map(|region| &mut region.kind) {
            Some(Kind::Memory {
                windows: 0, frozen, ..
            }) => {
                *frozen = true;
                Ok(())
            }
            Some(Kind::Memory { .. }) => Err(Errno(libc::EBUSY)),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// A frozen region goes on as it was.
    pub fn thaw(&mut self, key: u32) {
        if let Some(Kind::Memory { frozen, .. }) = self.get_mut(key).map(|r| &mut r.kind) {
            *frozen = false;
        }
    }

    /// Gives a frozen region another protection domain and other permissions, under the same key.
    pub fn change(&mut self, key: u32, pd: u32, access: Access) {
        if let Some(region) = self.get_mut(key) {
            (region.pd, region.access) = (pd, access);
            if let Kind::Memory { frozen, .. } = &mut region.kind {
                *frozen = false;
            }
        }
    }

    /// How many regions there are.
    pub fn len(&self) -> usize {
        self.regions.len() - self.windows
    }

    /// Removes a region.
    ///
    /// # Errors
    /// EBUSY while a window is bound to it, EINVAL if there is no such region.
    pub fn remove(&mut self, key: u32) -> Result<(), Errno> {
        self.freeze(key)?;
        self.withdraw(key);
        if let Some(addr) = self.get(key).map(|region| region.addr) {
            self.known.remove(key, addr);
        }
        self.changes += 1;
        self.regions.remove(key >> GENERATION_BITS);
        Ok(())
    }

    pub fn get(&self, key: u32) -> Option<&Region> {
        self.regions
            .get(key >> GENERATION_BITS)
            .filter(|r| r.key == key)
    }

    pub fn get_mut(&mut self, key: u32) -> Option<&mut Region> {
        self.changes += 1;
        self.regions
            .get_mut(key >> GENERATION_BITS)
            .filter(|r| r.key == key)
    }

    /// Finds memory by a key for local use: no window's.
    #[inline(always)]
    pub fn find_local(
        &self,
        pd: u32,
        key: u32,
        addr: u64,
        len: u64,
        write: bool,
    ) -> Result<usize, MemError> {
        let region = self.get(key).ok_or(MemError::Key)?;
        if matches!(region.kind, Kind::Window { .. }) {
            return Err(MemError::Key);
        }
        let at = region.find(pd, addr, len, local(write))?;
        region.is_there(at, len as usize).map(|()| at)
    }

    /// Finds memory by a key that a peer has sent.
    pub fn find_remote(
        &self,
        via: Via,
        key: u32,
        addr: u64,
        len: u64,
        what: Remote,
    ) -> Result<usize, MemError> {
        let region = self.get(key).ok_or(MemError::Key)?;
        if let Kind::Window { region, qpn, .. } = region.kind
            && (region.is_none() || (qpn != 0 && qpn != via.qpn))
        {
            return Err(MemError::Key);
        }
        let at = region.find(via.pd, addr, len, remote(what))?;
        self.memory_of(region)
            .is_there(at, len as usize)
            .map(|()| at)
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

/// The accesses of [`Memory`](causeway_proto::host::Memory).
impl MrTable {
    pub fn check_local(
        &self,
        pd: u32,
        lkey: u32,
        addr: u64,
        len: u64,
        write: bool,
    ) -> Result<(), MemError> {
        self.find_local(pd, lkey, addr, len, write).map(|_| ())
    }

    pub fn check_remote(
        &self,
        via: Via,
        rkey: u32,
        addr: u64,
        len: u64,
        what: Remote,
    ) -> Result<(), MemError> {
        self.find_remote(via, rkey, addr, len, what).map(|_| ())
    }

    #[inline(always)]
    pub fn read_local(
        &self,
        pd: u32,
        lkey: u32,
        addr: u64,
        dst: BytesMut<'_>,
    ) -> Result<(), MemError> {
        let at = self.find_local(pd, lkey, addr, dst.len() as u64, false)?;
        self.load(lkey, at, dst)
    }

    /// Copies from where a range was found by a key, the whole of `dst`.
    pub fn load(&self, key: u32, at: usize, mut dst: BytesMut<'_>) -> Result<(), MemError> {
        let (to, len) = (dst.as_mut_ptr(), dst.len());
        // SAFETY: the range is inside a registered region, the program's memory as long as it is
        // mapped (ibv_reg_mr(3)).
        let load = |at: *mut u8| unsafe { copy::load(at, BytesMut::from_raw(to, len)) };
        load(at as *mut u8).or_else(|why| self.otherwise(key, (at, len), why, load))
    }

    #[inline(always)]
    pub fn write_local(
        &self,
        pd: u32,
        lkey: u32,
        addr: u64,
        src: Bytes<'_>,
    ) -> Result<(), MemError> {
        let at = self.find_local(pd, lkey, addr, src.len() as u64, true)?;
        // SAFETY: as in `load`; registration has checked that it is writable.
        let store = |at: *mut u8| unsafe { copy::store(at, src) };
        store(at as *mut u8).or_else(|why| self.otherwise(lkey, (at, src.len()), why, store))
    }

    pub fn read_remote(
        &self,
        via: Via,
        rkey: u32,
        addr: u64,
        dst: BytesMut<'_>,
    ) -> Result<(), MemError> {
        let at = self.find_remote(via, rkey, addr, dst.len() as u64, Remote::Read)?;
        self.load(rkey, at, dst)
    }

    pub fn write_remote(
        &self,
        via: Via,
        rkey: u32,
        addr: u64,
        src: Bytes<'_>,
    ) -> Result<(), MemError> {
        let at = self.find_remote(via, rkey, addr, src.len() as u64, Remote::Write)?;
        // SAFETY: as in `write_local`.
        let store = |at: *mut u8| unsafe { copy::store_last_word_last(at, src) };
        store(at as *mut u8).or_else(|why| self.otherwise(rkey, (at, src.len()), why, store))
    }

    pub fn atomic(&self, via: Via, rkey: u32, addr: u64, op: AtomicOp) -> Result<u64, MemError> {
        let at = self.find_remote(via, rkey, addr, 8, Remote::Atomic)?;
        if at % 8 != 0 {
            return Err(MemError::Access);
        }
        // SAFETY: 8 aligned bytes inside a registered, writable region; accessed atomically, so
        // that the program's own atomics and those of other QPs compose with it.
        let run = |at| unsafe { copy::atomic(at, op) }.map_err(|_| MemError::Gone);
        run(at as *mut u8).or_else(|why| self.otherwise(rkey, (at, 8), why, run))
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

    #[test]
    fn a_key_is_not_valid_again_after_its_place_is_reused() {
        let segment = Segment::create("t", MR_TABLE_BYTES).unwrap();
        let mut table = MrTable::new(Directory::format(Arc::new(segment)).unwrap());
        let old = table
            .insert(1, (0x1000, 16), 0x1000, Access::LOCAL_WRITE)
            .unwrap();
        assert_eq!(table.remove(old), Ok(()));
        let new = table
            .insert(1, (0x1000, 16), 0x1000, Access::LOCAL_WRITE)
            .unwrap();
        assert_eq!(old >> GENERATION_BITS, new >> GENERATION_BITS);
        assert_eq!(
            table.check_local(1, old, 0x1000, 1, false),
            Err(MemError::Key)
        );
        assert_eq!(table.check_local(1, new, 0x1000, 16, true), Ok(()));
        assert_eq!(
            table.check_local(1, new, 0x1001, 16, true),
            Err(MemError::Bounds)
        );
        assert_eq!(
            table.check_local(2, new, 0x1000, 1, true),
            Err(MemError::Pd)
        );
        let via = Via { pd: 1, qpn: 7 };
        let write = table.check_remote(via, new, 0x1000, 1, Remote::Write);
        assert_eq!(write, Err(MemError::Access));
    }
}
