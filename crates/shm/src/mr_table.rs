//! The table of an endpoint's memory regions, in which its peers find those they can access
//! themselves.
//!
//! One segment for each endpoint, which it writes and peers only read. An entry is a cache line: a
//! word with key and access rights, zero while the entry means nothing, and the region's place. The
//! owner clears that word before it changes the rest and stores it last; a peer reads it before and
//! after the rest. What a peer finds is for its own good: the protection of the memory is that it
//! has no descriptor for more than it was granted.
//!
//! Readers in a virtual machine can't be kept from writing to what they are shown. Each machine
//! therefore has a *guest table*: one of its own, in which the owner does whatever it does in the
//! table, and of which it reads nothing. A write to a guest table misleads the machine that made
//! it.

use crate::layout as l;
use crate::mem::Region;
use crate::segment::{Segment, SegmentError};
use crate::sync::{Arc, AtomicU64, Ordering, fence, model_fence};

/// Words of an entry.
const KEY: usize = 0;
const IOVA: usize = 8;
const LENGTH: usize = 16;
const OFFSET: usize = 24;
const SEGMENT: usize = 32;
const START: usize = 40;
const END: usize = 48;
const PD: usize = 56;
/// In the access rights of an entry that only says where the region is in the owner's process.
/// Verbs' flag of that value (`IBV_ACCESS_HUGETLB`) is never published.
const IN_PROCESS: u64 = 1 << 7;
/// `IBV_ACCESS_REMOTE_READ`: all that can be allowed by such an entry.
const REMOTE_READ: u64 = 1 << 2;
/// In the last word: where the queue pair stands.
const QPN_SHIFT: u32 = 32;
/// In the key word: the entry is in force.
const VALID: u64 = 1 << 63;
/// In the key word: where the access rights stand.
const ACCESS_SHIFT: u32 = 32;
const ACCESS_MASK: u64 = 0xff;
/// In the key word, whether or not the entry is in force: how often it has been published.
const COUNT_SHIFT: u32 = 40;
const COUNT_MASK: u64 = (1 << (63 - COUNT_SHIFT)) - 1;

/// A memory region, or a window, that peers can access themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MrEntry {
    /// Its key; never 0.
    pub key: u32,
    /// What it was registered for: the low bits of `enum ibv_access_flags`.
    pub access: u32,
    /// Its protection domain.
    pub pd: u32,
    /// A memory window's: the owner's queue pair that it is bound to; 0 where any may be used.
    pub qpn: u32,
    /// Address by which peers name its first byte.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// Offset of its first byte in the segment, where that is in the segment.
    pub offset: u64,
    /// The memory segment, as the broker names it; [`NO_SEGMENT`] if it is in none.
    pub segment: u64,
    /// The part of it that is in the segment: offsets of its first byte, and behind its last.
    pub start: u64,
    /// Offset behind the last byte in the segment.
    pub end: u64,
}

impl MrEntry {
    /// The offset in the segment of `len` bytes at `addr`, if they are inside the region. They need
    /// not be in the segment: see [`MrEntry::holds`].
    #[inline]
    #[must_use]
    pub fn locate(&self, addr: u64, len: u64) -> Option<u64> {
        let at = addr.checked_sub(self.iova)?;
        let inside = at.checked_add(len)? <= self.len;
        inside.then(|| self.offset.checked_add(at)).flatten()
    }

    /// Whether `len` bytes at an offset are in the segment.
    #[inline]
    #[must_use]
    pub fn holds(&self, offset: u64, len: u64) -> bool {
        let end = offset.checked_add(len);
        offset >= self.start && end.is_some_and(|end| end <= self.end && end <= SEGMENT_END)
    }
}

/// The segment of an entry whose region is in none: its offset is the address in the owner's
/// process.
pub const NO_SEGMENT: u64 = 0;

/// No offset is beyond, whatever an entry says.
const SEGMENT_END: u64 = l::MEMORY_SEGMENT_BYTES;

/// The entry of a key, if the table has one.
fn place(key: u32) -> Option<usize> {
    let index = (key >> l::KEY_GENERATION_BITS) as usize;
    (index < l::MR_TABLE_ENTRIES).then_some(l::PAGE + index * l::MR_ENTRY)
}

/// An endpoint's own table.
#[derive(Debug)]
pub struct MrTable {
    mem: Region,
    guest_tables: Vec<GuestTable>,
}

/// A table for readers in one virtual machine.
#[derive(Debug)]
struct GuestTable {
    name: u64,
    segment: Arc<Segment>,
    mem: Region,
}

/// References to a guest table's segment in here.
const OWN_HOLDERS: usize = 2;

/// The publication count of a key word, where it stands.
fn count_of(word: u64) -> u64 {
    word & (COUNT_MASK << COUNT_SHIFT)
}

/// Enters a region into a table, as publication `count`, which is where it stands in the word.
fn enter(mem: &Region, at: usize, entry: &MrEntry, count: u64) {
    let access = u64::from(entry.access) & ACCESS_MASK & !IN_PROCESS;
    enter_with(mem, at, entry, count, access);
}

/// As [`enter`], with these access rights.
fn enter_with(mem: &Region, at: usize, entry: &MrEntry, count: u64, access: u64) {
    let word = |offset| mem.word(at + offset);
    word(KEY).store(count, Ordering::Release);
    fence(Ordering::Release);
    for (offset, value) in [
        (IOVA, entry.iova),
        (LENGTH, entry.len),
        (OFFSET, entry.offset),
        (SEGMENT, entry.segment),
        (START, entry.start),
        (END, entry.end),
        (
            PD,
            u64::from(entry.pd) | (u64::from(entry.qpn) << QPN_SHIFT),
        ),
    ] {
        word(offset).store(value, Ordering::Relaxed);
    }
    causeway_fault::point("table.written");
    let key = VALID | count | (access << ACCESS_SHIFT) | u64::from(entry.key);
    word(KEY).store(key, Ordering::Release);
}

impl MrTable {
    /// Makes a table of a segment of zeroes.
    ///
    /// # Errors
    /// [`SegmentError::Format`] if it has not [`l::MR_TABLE_BYTES`] bytes.
    pub fn format(segment: Arc<Segment>) -> Result<MrTable, SegmentError> {
        let mem = Region::new(segment);
        if mem.len() != l::MR_TABLE_BYTES {
            return Err(SegmentError::Format);
        }
        mem.word(l::VERSION_AT)
            .store(l::MR_TABLE_VERSION, Ordering::Relaxed);
        mem.word(l::MAGIC_AT)
            .store(l::MR_TABLE_MAGIC, Ordering::Release);
        let guest_tables = Vec::new();
        Ok(MrTable { mem, guest_tables })
    }

    /// Keeps a guest table from now on: a table of its own, in which `entries` are put, and what is
    /// published and retracted later. To be called as [`MrTable::publish`] is.
    ///
    /// # Errors
    /// [`SegmentError::Format`] if it has not [`l::MR_TABLE_BYTES`] bytes.
    pub fn add_guest_table(
        &mut self,
        name: u64,
        segment: Arc<Segment>,
        entries: impl Iterator<Item = MrEntry>,
    ) -> Result<(), SegmentError> {
        let mem = Region::new(Arc::clone(&segment));
        if mem.len() != l::MR_TABLE_BYTES {
            return Err(SegmentError::Format);
        }
        for entry in entries {
            if let Some(at) = place(entry.key) {
                enter(&mem, at, &entry, self.count(at));
            }
        }
        self.guest_tables.push(GuestTable { name, segment, mem });
        Ok(())
    }

    /// A guest table that is kept, by its name.
    #[must_use]
    pub fn guest_table(&self, name: u64) -> Option<Arc<Segment>> {
        let found = self
            .guest_tables
            .iter()
            .find(|guest_table| guest_table.name == name);
        found.map(|guest_table| Arc::clone(&guest_table.segment))
    }

    /// Gives up guest tables: those that `keep` does not want, unless somebody else holds their
    /// segment.
    pub fn retain_guest_tables(&mut self, keep: impl Fn(u64) -> bool) {
        let is_held =
            |guest_table: &GuestTable| Arc::strong_count(&guest_table.segment) > OWN_HOLDERS;
        self.guest_tables
            .retain(|guest_table| keep(guest_table.name) || is_held(guest_table));
    }

    /// The table, and its guest tables.
    fn all(&self) -> impl Iterator<Item = &Region> {
        let guest_tables = self.guest_tables.iter().map(|guest_table| &guest_table.mem);
        std::iter::once(&self.mem).chain(guest_tables)
    }

    /// Whether there is room for a key.
    #[must_use]
    pub fn has_room(&self, key: u32) -> bool {
        place(key).is_some()
    }

    /// The publication count of an entry, where it stands in the key word.
    fn count(&self, at: usize) -> u64 {
        count_of(self.mem.word(at + KEY).load(Ordering::Relaxed))
    }

    /// Lets peers find a region. Nothing happens where the table has no room for its key, or where
    /// an entry has been published as often as it can be: two publications never have the same key
    /// word, by which peers know what they have found before. One thread at a time may change the
    /// table.
    pub fn publish(&self, entry: &MrEntry) {
        let Some(at) = place(entry.key) else { return };
        let count = self.count(at);
        if count == COUNT_MASK << COUNT_SHIFT {
            return;
        }
        let count = count + (1 << COUNT_SHIFT);
        self.all().for_each(|mem| enter(mem, at, entry, count));
    }

    /// Lets peers find a region that is in no segment, to read it from this process's memory. This
    /// does not count as a publication: what is found so is not remembered. To be called as
    /// [`MrTable::publish`] is, and only where the region is not published.
    pub fn publish_in_process(&self, entry: &MrEntry) {
        let Some(at) = place(entry.key) else { return };
        let access = IN_PROCESS | (u64::from(entry.access) & REMOTE_READ);
        let entry = MrEntry {
            segment: NO_SEGMENT,
            start: 0,
            end: 0,
            ..*entry
        };
        let count = self.count(at);
        self.all()
            .for_each(|mem| enter_with(mem, at, &entry, count, access));
    }

    /// Withdraws a region: no access to it begins any more. Those under way show in the in-flight
    /// words ([`crate::Ring::peer_in_flight`]), to be looked at afterwards.
    pub fn retract(&self, key: u32) {
        let Some(at) = place(key) else { return };
        let count = self.count(at);
        for mem in self.all() {
            mem.word(at + KEY).store(count, Ordering::SeqCst);
        }
        model_fence();
        causeway_fault::point("table.retracted");
    }
}

/// Tells the publications of entries with the same key apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

/// An entry of a peer's table as it was found.
#[derive(Debug)]
pub struct Publication {
    /// The entry's key word.
    word: *const AtomicU64,
    stamp: Stamp,
    /// Keeps that mapped.
    _mem: Region,
}

// SAFETY: the pointer leads to an atomic in the segment that it owns a share of.
unsafe impl Send for Publication {}

impl Publication {
    /// Whether the entry has not changed since. To be asked as [`PeerMrs::get`] is, after
    /// [`crate::Ring::enter`].
    #[inline(always)]
    #[must_use]
    pub fn is_still(&self) -> bool {
        // SAFETY: a word of the segment, which is mapped as long as `_mem` holds it.
        unsafe { &*self.word }.load(Ordering::SeqCst) == self.stamp.0
    }

    /// What it was found with.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }
}

/// A peer's table.
#[derive(Clone, Debug)]
pub struct PeerMrs {
    mem: Region,
}

impl PeerMrs {
    /// The table in a segment, which may be mapped for reading only.
    ///
    /// # Errors
    /// [`SegmentError::Format`] if there is none.
    pub fn open(segment: Arc<Segment>) -> Result<PeerMrs, SegmentError> {
        let mem = Region::new(segment);
        let ours = mem.len() == l::MR_TABLE_BYTES
            && mem.word(l::MAGIC_AT).load(Ordering::Acquire) == l::MR_TABLE_MAGIC
            && mem.word(l::VERSION_AT).load(Ordering::Relaxed) == l::MR_TABLE_VERSION;
        if ours {
            Ok(PeerMrs { mem })
        } else {
            Err(SegmentError::Format)
        }
    }

    /// A look at the entry of a key, as it was when [`PeerMrs::find`] gave its stamp.
    #[must_use]
    pub fn watch(&self, key: u32, stamp: Stamp) -> Option<Publication> {
        Some(Publication {
            word: self.mem.word(place(key)? + KEY),
            stamp,
            _mem: self.mem.clone(),
        })
    }

    /// The region that a key names, if it is in the table. A copy, whole or none.
    #[inline]
    #[must_use]
    pub fn get(&self, key: u32) -> Option<MrEntry> {
        self.find(key).map(|(entry, _)| entry)
    }

    /// As [`PeerMrs::get`], with the stamp of what says so.
    #[inline]
    #[must_use]
    pub fn find(&self, key: u32) -> Option<(MrEntry, Stamp)> {
        let at = place(key)?;
        let word = |offset| self.mem.word(at + offset);
        // After `Ring::enter`, as `retract` before `Ring::peer_in_flight`: all four in one order.
        let before = word(KEY).load(Ordering::SeqCst);
        if before & VALID == 0 || before as u32 != key {
            return None;
        }
        let read = |offset| word(offset).load(Ordering::Relaxed);
        let last = read(PD);
        let entry = MrEntry {
            key,
            access: ((before >> ACCESS_SHIFT) & ACCESS_MASK) as u32,
            pd: last as u32,
            qpn: (last >> QPN_SHIFT) as u32,
            iova: read(IOVA),
            len: read(LENGTH),
            offset: read(OFFSET),
            segment: read(SEGMENT),
            start: read(START),
            end: read(END),
        };
        fence(Ordering::Acquire);
        (word(KEY).load(Ordering::Relaxed) == before).then_some((entry, Stamp(before)))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn tables() -> (MrTable, PeerMrs) {
        let segment = Arc::new(Segment::create("t", l::MR_TABLE_BYTES).unwrap());
        let own = MrTable::format(Arc::clone(&segment)).unwrap();
        (own, PeerMrs::open(segment).unwrap())
    }

    fn entry(key: u32) -> MrEntry {
        MrEntry {
            key,
            access: 7,
            pd: 3,
            qpn: 0x7001,
            iova: 0x1000,
            len: 0x3000,
            offset: 0x7000_0800,
            segment: 9,
            start: 0x7000_1000,
            end: 0x7000_3000,
        }
    }

    #[test]
    fn a_region_is_found_until_it_is_retracted() {
        let (own, peer) = tables();
        let key = (5 << l::KEY_GENERATION_BITS) | 1;
        assert_eq!(peer.get(key), None);
        own.publish(&entry(key));
        assert_eq!(peer.get(key), Some(entry(key)));
        assert_eq!(peer.get(key + 1), None, "another generation");
        own.retract(key);
        assert_eq!(peer.get(key), None);
        let beyond = (l::MR_TABLE_ENTRIES as u32) << l::KEY_GENERATION_BITS;
        assert!(!own.has_room(beyond));
        own.publish(&entry(beyond));
        assert_eq!(peer.get(beyond), None);
    }

    #[test]
    fn a_stamp_is_that_of_one_publication() {
        let (own, peer) = tables();
        let key = (5 << l::KEY_GENERATION_BITS) | 1;
        own.publish(&entry(key));
        let found = |(_, stamp)| peer.watch(key, stamp);
        let first = peer.find(key).and_then(found).unwrap();
        assert!(first.is_still());
        own.retract(key);
        assert!(!first.is_still());
        own.publish(&entry(key));
        assert!(!first.is_still());
        let second = peer.find(key).and_then(found).unwrap();
        assert!(second.is_still());
    }

    #[test]
    fn an_entry_is_published_no_more_once_its_count_has_run_out() {
        let (own, peer) = tables();
        let key = (5 << l::KEY_GENERATION_BITS) | 1;
        let at = place(key).unwrap() + KEY;
        let last = (COUNT_MASK - 1) << COUNT_SHIFT;
        own.mem.word(at).store(last, Ordering::Relaxed);
        own.publish(&entry(key));
        assert!(peer.get(key).is_some());
        own.retract(key);
        own.publish(&entry(key));
        assert_eq!(peer.get(key), None);
    }

    #[test]
    fn a_guest_table_shows_what_the_table_does() {
        let (mut own, _) = tables();
        let [early, late] = [5, 6].map(|index| index << l::KEY_GENERATION_BITS);
        own.publish(&entry(early));
        let guest_table = || {
            let segment = Arc::new(Segment::create("t", l::MR_TABLE_BYTES).unwrap());
            MrTable::format(Arc::clone(&segment)).unwrap();
            (PeerMrs::open(Arc::clone(&segment)).unwrap(), segment)
        };
        let (peer, segment) = guest_table();
        own.add_guest_table(7, segment, [entry(early)].into_iter())
            .unwrap();
        assert_eq!(peer.get(early), Some(entry(early)), "what there was");
        own.publish(&entry(late));
        assert_eq!(peer.get(late), Some(entry(late)));
        own.retract(early);
        own.retract(late);
        assert_eq!((peer.get(early), peer.get(late)), (None, None));
        // One that nobody holds any more is given up when it is not wanted.
        own.retain_guest_tables(|_| false);
        assert!(own.guest_table(7).is_some(), "held");
        drop(peer);
        own.retain_guest_tables(|name| name == 7);
        assert!(own.guest_table(7).is_some(), "wanted");
        own.retain_guest_tables(|_| false);
        assert!(own.guest_table(7).is_none());
        let short = Arc::new(Segment::create("t", l::PAGE).unwrap());
        assert!(own.add_guest_table(8, short, std::iter::empty()).is_err());
    }

    #[test]
    fn only_what_is_inside_is_located() {
        let entry = entry(1);
        assert_eq!(entry.locate(0x1000, 0x3000), Some(0x7000_0800));
        assert_eq!(entry.locate(0x1000, 0x3001), None);
        assert_eq!(entry.locate(0xfff, 1), None);
        assert_eq!(entry.locate(0x2000, u64::MAX), None);
        assert!(entry.holds(0x7000_1000, 0x2000));
        assert!(!entry.holds(0x7000_0fff, 1));
        assert!(!entry.holds(0x7000_1000, 0x2001));
        let wild = MrEntry {
            end: u64::MAX,
            ..entry
        };
        assert!(!wild.holds(l::MEMORY_SEGMENT_BYTES, 1));
    }
}
