//! Copies by the calling thread.

use std::sync::atomic::{Ordering, fence};

use crate::error::{Error, Result};
use crate::map::Map;

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the map.
    Write,
    /// From the map.
    Read,
}

/// Copies between the program's memory and a map. It fails where one of both is gone; with `check`
/// also if the owner of the map's memory has gone, before or meanwhile.
///
/// # Errors
/// [`Error::ILLEGAL_PARAMETER`], [`Error::OUT_OF_RANGE`], [`Error::ACCESS`] to write to a map for
/// reading, [`Error::TRANSFER_FAILED`].
///
/// # Safety
/// `memory` is valid for `len` bytes, to be read or written, as far as it is mapped.
pub unsafe fn copy(
    memory: *mut u8,
    map: &Map,
    offset: usize,
    len: usize,
    direction: Direction,
    check: bool,
) -> Result<()> {
    let there = map.mapping().at(offset, len)?;
    if memory.is_null() && len > 0 {
        return Err(Error::ILLEGAL_PARAMETER);
    }
    if check && !map.is_alive() {
        return Err(Error::TRANSFER_FAILED);
    }
    let copied = match direction {
        Direction::Write if !map.mapping().is_writable() => return Err(Error::ACCESS),
        // SAFETY: in the mapping, which the map keeps; the caller vouches for its own memory;
        // memmove allows them to overlap, and other processes may write there.
        Direction::Write => unsafe { causeway_dma::copy(memory, there, len) },
        // SAFETY: as above.
        Direction::Read => unsafe { causeway_dma::copy(there, memory, len) },
    };
    copied.map_err(|_| Error::TRANSFER_FAILED)?;
    store_barrier();
    if check && !map.is_alive() {
        return Err(Error::TRANSFER_FAILED);
    }
    Ok(())
}

/// All stores before are visible to others before any store after. Copies that go around the
/// caches end with a barrier of their own, in the copy function.
#[inline]
pub fn store_barrier() {
    fence(Ordering::Release);
}

/// All stores before are visible to others now.
#[inline]
pub fn flush() {
    fence(Ordering::SeqCst);
}
