//! Look-ups in the table of memory regions, and the accesses that follow.

use std::cell::Cell;
use std::sync::Arc;

use causeway_proto::host::{AtomicOp, MemError, Remote, Via};
use causeway_proto::{Bytes, BytesMut, Payloads};

use super::{GENERATION_BITS, Kind, MrTable, Region, local, remote};
use crate::copy;

/// The table for one who looks regions up, under a lock of its own.
#[derive(Debug)]
pub(crate) struct MrReader {
    pub(crate) table: Arc<MrTable>,
    /// What had changed when it was last looked whether memory is where it was moved.
    pub(crate) looked: Cell<u64>,
}

impl MrReader {
    /// # Safety
    /// The reader is reached under one lock, and whoever reclaims what the table has retired
    /// ([`MrTable::take_retired`]) sees that lock free before.
    pub unsafe fn new(table: Arc<MrTable>) -> Self {
        MrReader {
            table,
            // No count gets there.
            looked: Cell::new(u64::MAX),
        }
    }

    #[inline(always)]
    pub fn get(&self, key: u32) -> Option<&Region> {
        // SAFETY: the region is not reclaimed before the reader's lock was free, and with it the
        // end of every borrow of the reader ([`MrReader::new`]).
        let region = unsafe { self.table.regions.get(key >> GENERATION_BITS)? };
        (region.key == key).then_some(region)
    }

    /// All of them that had places when this was called.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Region> {
        let places: Vec<u32> = {
            let writer = self.table.write();
            writer.at.places.iter().map(|(at, _)| at).collect()
        };
        // SAFETY: as in `get`.
        let get = |at| unsafe { self.table.regions.get(at) };
        places.into_iter().filter_map(get)
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

    /// As [`MrReader::write_local`] of a range that several payloads carry. Returns how many were
    /// placed.
    pub fn write_local_parts(&self, pd: u32, lkey: u32, addr: u64, parts: Payloads<'_>) -> usize {
        let found = self.find_local(pd, lkey, addr, parts.total(), true);
        found.map_or(0, |at| self.store_parts(lkey, at, parts))
    }

    /// As [`MrReader::write_remote`], the same, of what does not end its WRITE.
    pub fn write_remote_parts(&self, via: Via, rkey: u32, addr: u64, parts: Payloads<'_>) -> usize {
        let found = self.find_remote(via, rkey, addr, parts.total(), Remote::Write);
        found.map_or(0, |at| self.store_parts(rkey, at, parts))
    }

    /// Copies to where a range was found by a key, which may be written.
    fn store_parts(&self, key: u32, at: usize, parts: Payloads<'_>) -> usize {
        let each = parts.each();
        let mut count = 0;
        for part in parts {
            // SAFETY: as in `write_local`: all parts are of one length, and the range is as long
            // as all of them.
            let store = |at: *mut u8| unsafe { copy::store(at, part) };
            let to = at + count * each;
            let done = store(to as *mut u8)
                .or_else(|why| self.otherwise(key, (to, part.len()), why, store));
            if done.is_err() {
                break;
            }
            count += 1;
        }
        count
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

#[cfg(test)]
impl MrReader {
    /// A table of a test's, and what looks up in it: nothing is reclaimed.
    pub(crate) fn of_test(table: MrTable) -> (Arc<MrTable>, MrReader) {
        let table = Arc::new(table);
        // SAFETY: nothing that is retired is taken.
        let reader = unsafe { MrReader::new(Arc::clone(&table)) };
        (table, reader)
    }
}
