//! Deferred moves: a region is moved to where peers can map it only once peers use it.
//!
//! Moving memory in place and taking it back costs several times what copying it costs: a program
//! that registers memory for one transfer once it is connected, as many do, pays for no move at
//! all. A region waits until the accesses to it by ring have cost about as much as the move does,
//! and then the broker thread moves it: so no program pays more than twice what it would have paid
//! knowing the future. What is registered before outlives one transfer, and does not wait
//! ([`crate::sharing::Sharing::move_at_connect`]).

use causeway_proto::host::Via;

use crate::core::Core;
use crate::mr::{Kind, MrReader, MrWriter};

/// What a short access counts for, in bytes, or the length of its region if that is less: it takes
/// some 20 µs where the target has to be woken for it.
const SHORT_COUNTS: u64 = 256 << 10;
/// It counts for no less than this part of its region, however long that is: a peer that uses a
/// region so often uses it again.
const SHORT_PART: u64 = 256;
/// Bytes from which on what is written may be a part of a longer message, of which each part
/// counts for its bytes.
const PART: u64 = 8192;

/// What an access of so many bytes to a region counts for.
pub(crate) fn counts_for(len: u64, bytes: u64) -> u64 {
    let len = len.max(1);
    if bytes < PART {
        len.min(SHORT_COUNTS).max(len / SHORT_PART)
    } else {
        bytes
    }
}

impl MrWriter<'_> {
    /// A region is to be moved once it is used.
    pub fn await_use(&self, key: u32) {
        if let Some(region) = self.get(key) {
            region.move_threshold.begin(region.len);
        }
    }

    /// A region could not be moved, for a reason that may pass: it is to be moved once it is used
    /// again, twice as much as before, so that what never can be costs ever less.
    pub fn await_more_use(&self, key: u32) {
        if let Some(region) = self.get(key) {
            region.move_threshold.begin_again(region.len);
        }
    }
}

impl MrReader {
    /// A peer on this host has used so many bytes by a key by ring, in a message or a part of one.
    fn note_use(&self, key: u32, bytes: u64) {
        // One at a time: another one's turn comes when it is used next.
        if self.table.is_wanted() {
            return;
        }
        let Some(named) = self.get(key) else { return };
        let region = match named.kind {
            Kind::Window { region, .. } => region.and_then(|key| self.get(key)),
            Kind::Memory { .. } => Some(named),
        };
        let waiting = region.filter(|r| matches!(r.kind, Kind::Memory { place: None }));
        let Some(region) = waiting else { return };
        if region
            .move_threshold
            .is_over(counts_for(region.len as u64, bytes))
        {
            self.table.want(region.key);
        }
    }
}

impl Core {
    /// The peer of a queue pair has used so many bytes by a key. What comes from other hosts does
    /// not count: nothing is moved for it.
    #[inline]
    pub fn note_use(&self, via: Via, key: u32, bytes: u64) {
        if self.is_on_this_host(via.qpn) {
            self.mrs.note_use(key, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use causeway_proto::types::Access;
    use causeway_shm::layout::MR_TABLE_BYTES;
    use causeway_shm::{MrTable as Directory, Segment};

    use super::*;
    use crate::move_threshold::ACCESSES_BEFORE_MOVE;
    use crate::mr::{MrTable, Place};

    #[test]
    fn a_region_is_wanted_once_when_it_has_been_used() {
        let segment = Segment::create("t", MR_TABLE_BYTES).unwrap();
        let (table, reader) =
            MrReader::of_test(MrTable::new(Directory::format(Arc::new(segment)).unwrap()));
        let insert = || {
            table
                .write()
                .insert(1, (0x1000, 16), 0x1000, Access::REMOTE_READ)
        };
        let (waiting, placed, other) = (insert().unwrap(), insert().unwrap(), insert().unwrap());
        table.write().await_use(waiting);
        table.write().await_use(placed);
        let place = Place {
            segment: 1,
            start: 0x1000,
            end: 0x1010,
        };
        table.write().place(placed, place, None);
        for _ in 1..ACCESSES_BEFORE_MOVE {
            [waiting, placed, other]
                .iter()
                .for_each(|key| reader.note_use(*key, 8));
            assert_eq!(table.take_wanted(), None);
        }
        [waiting, placed, other]
            .iter()
            .for_each(|key| reader.note_use(*key, 8));
        assert_eq!(table.take_wanted(), Some(waiting));
        reader.note_use(waiting, 8);
        assert_eq!(table.take_wanted(), None);
        reader.note_use(waiting + 1, 8);
        assert_eq!(table.take_wanted(), None);
    }

    #[test]
    fn a_region_that_could_not_be_moved_is_wanted_again_ever_later() {
        let segment = Segment::create("t", MR_TABLE_BYTES).unwrap();
        let (table, reader) =
            MrReader::of_test(MrTable::new(Directory::format(Arc::new(segment)).unwrap()));
        let region = table
            .write()
            .insert(1, (0x1000, 16), 0x1000, Access::REMOTE_READ);
        let key = region.unwrap();
        table.write().await_use(key);
        for doubled in [1, 2, 4, 8] {
            for _ in 1..ACCESSES_BEFORE_MOVE * doubled {
                reader.note_use(key, 16);
                assert!(!table.is_wanted());
            }
            reader.note_use(key, 16);
            assert_eq!(table.take_wanted(), Some(key));
            table.write().await_more_use(key);
        }
        table.write().await_use(key);
        (0..ACCESSES_BEFORE_MOVE).for_each(|_| reader.note_use(key, 16));
        assert_eq!(table.take_wanted(), Some(key));
    }

    #[test]
    fn regions_that_are_wanted_at_the_same_time_are_moved_all() {
        let segment = Segment::create("t", MR_TABLE_BYTES).unwrap();
        let (table, reader) =
            MrReader::of_test(MrTable::new(Directory::format(Arc::new(segment)).unwrap()));
        let insert = || {
            table
                .write()
                .insert(1, (0x1000, 16), 0x1000, Access::REMOTE_READ)
        };
        let both = [insert().unwrap(), insert().unwrap()];
        both.iter().for_each(|key| table.write().await_use(*key));
        // As many as are taken from a ring before anybody asks.
        for _ in 0..ACCESSES_BEFORE_MOVE {
            both.iter().for_each(|key| reader.note_use(*key, 16));
        }
        assert_eq!(table.take_wanted(), Some(both[0]));
        reader.note_use(both[1], 16);
        assert_eq!(table.take_wanted(), Some(both[1]));
    }

    #[test]
    fn long_regions_wait_for_as_much_as_moving_them_costs() {
        let segment = Segment::create("t", MR_TABLE_BYTES).unwrap();
        let (table, reader) =
            MrReader::of_test(MrTable::new(Directory::format(Arc::new(segment)).unwrap()));
        // How many accesses of so many bytes a region takes until it is wanted.
        let accesses = |len: usize, bytes: u64| {
            let region = table
                .write()
                .insert(1, (0x1000, len), 0x1000, Access::REMOTE_READ);
            let key = region.unwrap();
            table.write().await_use(key);
            let mut count = 0;
            while table.take_wanted().is_none() {
                reader.note_use(key, bytes);
                count += 1;
            }
            count
        };
        let whole = 1 << 20;
        assert_eq!(accesses(whole, 1 << 20), 4);
        assert_eq!(accesses(whole, PART), 512);
        assert_eq!(accesses(whole, 8), 16);
        assert_eq!(accesses(64 << 10, 8), 4);
        assert_eq!(accesses(1 << 30, 8), 1024);
    }
}
