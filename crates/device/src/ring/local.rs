//! The program's own memory, as a queue pair has used it last.

use causeway_memory::changes;
use causeway_proto::host::MemError;

use crate::mr::MrTable;

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
    /// What was when it was found ([`MrTable::changes`], [`changes`]).
    table: u64,
    memory: u64,
}

impl Local {
    /// As [`MrTable::find_local`].
    #[inline(always)]
    pub fn find(
        &mut self,
        mrs: &MrTable,
        (pd, key): (u32, u32),
        (addr, len): (u64, u32),
        write: bool,
    ) -> Result<usize, MemError> {
        let known = self.key == key
            && self.table == mrs.changes()
            && self.memory == changes()
            && (self.writable || !write)
            && addr >= self.from
            && addr
                .checked_add(len.into())
                .is_some_and(|end| end <= self.to);
        if known {
            return Ok(addr.wrapping_add(self.offset) as usize);
        }
        let at = mrs.find_local(pd, key, addr, len.into(), write)?;
        self.remember(mrs, key, at.wrapping_sub(addr as usize));
        Ok(at)
    }

    /// Remembers a region of which some was found, unless a part of it is gone.
    #[cold]
    #[inline(never)]
    fn remember(&mut self, mrs: &MrTable, key: u32, offset: usize) {
        // Before the look at the region: what changes meanwhile is looked at again.
        let memory = changes();
        let Some(region) = mrs.get(key) else { return };
        if region.home.as_ref().is_some_and(|home| !home.is_whole()) {
            return;
        }
        *self = Local {
            key,
            writable: region.is_writable(),
            from: region.iova,
            to: region.iova.saturating_add(region.len as u64),
            offset: offset as u64,
            table: mrs.changes(),
            memory,
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

    const PD: u32 = 3;
    /// Where the memory is, how long, and where work requests say that it begins.
    const AT: usize = 0x7000_0000;
    const LEN: usize = 0x1000;
    const IOVA: u64 = 0x100;

    fn table(access: Access) -> (MrTable, u32) {
        let segment = Segment::create("t", MR_TABLE_BYTES).unwrap();
        let mut table = MrTable::new(Directory::format(Arc::new(segment)).unwrap());
        let key = table.insert(PD, (AT, LEN), IOVA, access).unwrap();
        (table, key)
    }

    #[test]
    fn a_range_is_found_again_as_the_table_finds_it() {
        let (table, key) = table(Access::LOCAL_WRITE);
        let mut local = Local::default();
        let mut find = |addr, len| local.find(&table, (PD, key), (addr, len), true);
        for _ in 0..2 {
            assert_eq!(find(IOVA + 8, 16), Ok(AT + 8));
            assert_eq!(find(IOVA, LEN as u32), Ok(AT));
            assert_eq!(find(IOVA - 1, 8), Err(MemError::Bounds));
            assert_eq!(find(IOVA + 1, LEN as u32), Err(MemError::Bounds));
            assert_eq!(find(u64::MAX, 8), Err(MemError::Bounds));
        }
    }

    #[test]
    fn what_was_found_ends_with_the_region_and_with_what_it_allowed() {
        let (mut table, key) = table(Access::LOCAL_WRITE);
        let mut local = Local::default();
        let find = |local: &mut Local, table: &MrTable, key, write| {
            local.find(table, (PD, key), (IOVA, 8), write)
        };
        assert_eq!(find(&mut local, &table, key, true), Ok(AT));
        table.change(key, PD, Access::empty());
        assert_eq!(find(&mut local, &table, key, true), Err(MemError::Access));
        assert_eq!(find(&mut local, &table, key, false), Ok(AT));
        assert_eq!(find(&mut local, &table, key, true), Err(MemError::Access));
        table.change(key, PD + 1, Access::LOCAL_WRITE);
        assert_eq!(find(&mut local, &table, key, false), Err(MemError::Pd));
        table.change(key, PD, Access::LOCAL_WRITE);
        assert_eq!(find(&mut local, &table, key, false), Ok(AT));
        table.remove(key).unwrap();
        assert_eq!(find(&mut local, &table, key, false), Err(MemError::Key));
        let next = table.insert(PD, (AT, LEN), IOVA, Access::empty()).unwrap();
        assert_eq!(find(&mut local, &table, key, false), Err(MemError::Key));
        assert_eq!(find(&mut local, &table, next, false), Ok(AT));
    }
}
