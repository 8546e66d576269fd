//! The program's own memory, as a queue pair has used it last.

use causeway_memory::changes;
use causeway_proto::host::MemError;

use super::WORD;
use crate::in_place::InPlace;
use crate::mr::MrReader;

/// Where the region of an L_Key was found last, for a queue pair whose protection domain does not
/// change.
#[derive(Debug, Default)]
pub(super) struct Local {
    key: u32,
    /// Whether it may be written to.
    writable: bool,
    /// The addresses by which work requests name it, and what leads from them to memory, wrapping.
    from: u64,
    to: u64,
    offset: u64,
    /// Where the region begins in memory, and how many places in it a word ([`WORD`]) may begin at
    /// that is read, and that is written.
    start: u64,
    words: [u64; 2],
    /// The sum of what was when it was found ([`crate::mr::MrTable::changes`], [`changes`]). Both
    /// only grow, so it is another one when either has changed.
    changes: u64,
}

impl Local {
    /// As [`MrReader::find_local`], of a range and its key. The protection domain is asked for only
    /// where the region is not the one that is known: it would take a register meanwhile.
    #[inline(always)]
    pub fn find(
        &mut self,
        mrs: &MrReader,
        pd: impl FnOnce() -> u32,
        (addr, len, key): (u64, u32, u32),
        write: bool,
    ) -> Result<usize, MemError> {
        if let Some(at) = self.known(mrs, (addr, len, key), write) {
            return Ok(at);
        }
        let pd = pd();
        let at = mrs.find_local(pd, key, addr, len.into(), write)?;
        self.remember(mrs, (pd, key));
        Ok(at)
    }

    /// As [`Local::find`], in the region that was found last. `None`: there it is not. Calls
    /// nothing.
    #[inline(always)]
    pub fn known(
        &self,
        mrs: &MrReader,
        (addr, len, key): (u64, u32, u32),
        write: bool,
    ) -> Option<usize> {
        let known = self.is_current(mrs, key)
            && (self.writable || !write)
            && addr >= self.from
            && addr
                .checked_add(len.into())
                .is_some_and(|end| end <= self.to);
        known.then(|| addr.wrapping_add(self.offset) as usize)
    }

    /// As [`Local::known`], of a word.
    #[inline(always)]
    pub fn known_word(
        &self,
        mrs: &MrReader,
        (addr, key): (u64, u32),
        write: bool,
    ) -> Option<usize> {
        let at = addr.wrapping_sub(self.from);
        let known = self.is_current(mrs, key) && at < self.words[usize::from(write)];
        known.then(|| at.wrapping_add(self.start) as usize)
    }

    /// Whether the region of a key was found last, and none has changed since.
    #[inline(always)]
    fn is_current(&self, mrs: &MrReader, key: u32) -> bool {
        self.key == key && self.changes == mrs.table.changes().wrapping_add(changes())
    }

    /// Remembers a region, unless a part of it is gone, or it has just become another.
    #[cold]
    #[inline(never)]
    fn remember(&mut self, mrs: &MrReader, (pd, key): (u32, u32)) {
        // Before the look at the region: what changes meanwhile is looked at again.
        let changes = mrs.table.changes().wrapping_add(changes());
        let Some(region) = mrs.get(key) else { return };
        let whole = region.in_place.as_ref().is_none_or(InPlace::is_whole);
        if !whole || region.pd != pd {
            return;
        }
        let to = region.iova.saturating_add(region.len as u64);
        let words = (to - region.iova).saturating_sub(u64::from(WORD) - 1);
        *self = Local {
            key,
            writable: region.is_writable(),
            from: region.iova,
            to,
            start: region.addr as u64,
            words: [words, if region.is_writable() { words } else { 0 }],
            offset: (region.addr as u64).wrapping_sub(region.iova),
            changes,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use causeway_proto::types::Access;
    use causeway_shm::layout::MR_TABLE_BYTES;
    use causeway_shm::{MrTable as Directory, Segment};

    use super::*;
    use crate::mr::MrTable;

    const PD: u32 = 3;
    /// Where the memory is, how long, and where work requests say that it begins.
    const AT: usize = 0x7000_0000;
    const LEN: usize = 0x1000;
    const IOVA: u64 = 0x100;

    fn table(access: Access) -> (Arc<MrTable>, MrReader, u32) {
        let segment = Segment::create("t", MR_TABLE_BYTES).unwrap();
        let table = MrTable::new(Directory::format(Arc::new(segment)).unwrap());
        let (table, reader) = MrReader::of_test(table);
        let key = table.write().insert(PD, (AT, LEN), IOVA, access).unwrap();
        (table, reader, key)
    }

    #[test]
    fn a_range_is_found_again_as_the_table_finds_it() {
        let (_, reader, key) = table(Access::LOCAL_WRITE);
        let mut local = Local::default();
        let mut find = |addr, len| local.find(&reader, || PD, (addr, len, key), true);
        for _ in 0..2 {
            assert_eq!(find(IOVA + 8, 16), Ok(AT + 8));
            assert_eq!(find(IOVA, LEN as u32), Ok(AT));
            assert_eq!(find(IOVA - 1, 8), Err(MemError::Bounds));
            assert_eq!(find(IOVA + 1, LEN as u32), Err(MemError::Bounds));
            assert_eq!(find(u64::MAX, 8), Err(MemError::Bounds));
        }
    }

    #[test]
    fn a_word_is_known_where_the_whole_of_it_is_inside_and_may_be_accessed() {
        let end = IOVA + LEN as u64;
        for (access, writable) in [(Access::LOCAL_WRITE, true), (Access::empty(), false)] {
            let (table, reader, key) = table(access);
            let mut local = Local::default();
            assert_eq!(local.known_word(&reader, (IOVA, key), false), None);
            let found = local.find(&reader, || PD, (IOVA, 8, key), false);
            assert_eq!(found, Ok(AT));
            let known = |addr, write| local.known_word(&reader, (addr, key), write);
            for (addr, at) in [(IOVA, AT), (IOVA + 1, AT + 1), (end - 8, AT + LEN - 8)] {
                assert_eq!(known(addr, false), Some(at));
                assert_eq!(known(addr, true), writable.then_some(at));
            }
            for addr in [IOVA - 1, end - 7, end, 0, u64::MAX, u64::MAX - 7] {
                assert_eq!((known(addr, false), known(addr, true)), (None, None));
            }
            assert_eq!(local.known_word(&reader, (IOVA, key + 1), false), None);
            table.write().remove(key).unwrap();
            assert_eq!(local.known_word(&reader, (IOVA, key), false), None);
        }
    }

    #[test]
    fn a_region_shorter_than_a_word_holds_none() {
        let (table, reader, _) = table(Access::LOCAL_WRITE);
        let key = table
            .write()
            .insert(PD, (AT, 7), IOVA, Access::LOCAL_WRITE)
            .unwrap();
        let mut local = Local::default();
        assert_eq!(local.find(&reader, || PD, (IOVA, 7, key), true), Ok(AT));
        for write in [false, true] {
            assert_eq!(local.known_word(&reader, (IOVA, key), write), None);
        }
    }

    #[test]
    fn what_was_found_ends_with_the_region_and_with_what_it_allowed() {
        let (table, reader, key) = table(Access::LOCAL_WRITE);
        let mut local = Local::default();
        let find =
            |local: &mut Local, key, write| local.find(&reader, || PD, (IOVA, 8, key), write);
        assert_eq!(find(&mut local, key, true), Ok(AT));
        table.write().change(key, PD, Access::empty());
        assert_eq!(find(&mut local, key, true), Err(MemError::Access));
        assert_eq!(find(&mut local, key, false), Ok(AT));
        assert_eq!(find(&mut local, key, true), Err(MemError::Access));
        table.write().change(key, PD + 1, Access::LOCAL_WRITE);
        assert_eq!(find(&mut local, key, false), Err(MemError::Pd));
        table.write().change(key, PD, Access::LOCAL_WRITE);
        assert_eq!(find(&mut local, key, false), Ok(AT));
        table.write().remove(key).unwrap();
        assert_eq!(find(&mut local, key, false), Err(MemError::Key));
        let next = table
            .write()
            .insert(PD, (AT, LEN), IOVA, Access::empty())
            .unwrap();
        assert_eq!(find(&mut local, key, false), Err(MemError::Key));
        assert_eq!(find(&mut local, next, false), Ok(AT));
    }
}
