//! Copies by the calling thread.

use std::sync::atomic::{Ordering, fence};

use crate::error::{Error, Result};
pub use crate::link::Direction;
use crate::map::Map;
use crate::memory::portions;
use crate::stores::drain;

/// Bytes that are on their way from one map to another, where both ends are elsewhere, or parts of
/// one memory that no map has both of.
const PORTION: usize = 256 << 10;

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
    if direction == Direction::Write && !map.mapping().is_writable() {
        return Err(Error::ACCESS);
    }
    if (check || map.window().is_some()) && !map.is_alive() {
        return Err(Error::TRANSFER_FAILED);
    }
    if let Some(window) = map.window() {
        drain();
        let range = (map.offset() + offset, len);
        // SAFETY: the caller's promise.
        return unsafe { window.transfer(memory, range, direction, check) };
    }
    let copied = match direction {
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

/// Copies between maps.
///
/// # Errors
/// As [`copy`].
pub fn between(
    (from, from_offset): (&Map, usize),
    (to, to_offset): (&Map, usize),
    len: usize,
    check: bool,
) -> Result<()> {
    let ends = from.ends(from_offset, (to, to_offset), len)?;
    if !to.mapping().is_writable() {
        return Err(Error::ACCESS);
    }
    if check && !(from.is_alive() && to.is_alive()) {
        return Err(Error::TRANSFER_FAILED);
    }
    match (ends, from.window(), to.window()) {
        // SAFETY: in one of the maps, which the caller has.
        (Some((source, target)), None, None) => unsafe { move_bytes(source, target, len)? },
        (Some((source, _)), None, Some(_)) => {
            // SAFETY: in the source map, which the caller has.
            return unsafe { copy(source, to, to_offset, len, Direction::Write, check) };
        }
        (Some((_, target)), Some(_), None) => {
            // SAFETY: in the map that is copied to, which the caller has.
            return unsafe { copy(target, from, from_offset, len, Direction::Read, check) };
        }
        _ => return by_portions((from, from_offset), (to, to_offset), len, check),
    }
    store_barrier();
    if check && !(from.is_alive() && to.is_alive()) {
        return Err(Error::TRANSFER_FAILED);
    }
    Ok(())
}

/// Copies bytes of this host.
///
/// # Safety
/// Both are valid for `len` bytes, as far as they are mapped. They may overlap.
unsafe fn move_bytes(source: *mut u8, target: *mut u8, len: usize) -> Result<()> {
    // SAFETY: the caller's promise; other processes may write there.
    unsafe { causeway_dma::copy(source, target, len) }.map_err(|_| Error::TRANSFER_FAILED)
}

/// Copies between maps by memory that is neither's.
fn by_portions(
    (from, from_offset): (&Map, usize),
    (to, to_offset): (&Map, usize),
    len: usize,
    check: bool,
) -> Result<()> {
    let mut portion = vec![0; PORTION.min(len)];
    let memory = portion.as_mut_ptr();
    let up = from.moves_up(from_offset, (to, to_offset), len);
    for (at, count) in portions(len, PORTION, up) {
        // SAFETY: the portion is as long, and this function's alone.
        unsafe {
            copy(
                memory,
                from,
                from_offset + at,
                count,
                Direction::Read,
                check,
            )?;
            copy(memory, to, to_offset + at, count, Direction::Write, check)?;
        }
    }
    Ok(())
}

/// All stores before are visible to others before any store after; those to another host's memory
/// are on their way there. Copies that go around the
/// caches end with a barrier of their own, in the copy function.
#[inline]
pub fn store_barrier() {
    drain();
    fence(Ordering::Release);
}

/// All stores before are visible to others now; those to another host's memory are on their way
/// there.
#[inline]
pub fn flush() {
    drain();
    fence(Ordering::SeqCst);
}
