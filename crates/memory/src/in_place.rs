//! Whether moved memory is still where it was moved, and another way to it.

use crate::span::{PAGE, Span};
use crate::store::Store;
use crate::sys::Area;
use crate::vma::Maps;
use rustix::io::Errno;
use rustix::mm::{Advice, ProtFlags};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often monitors have begun, and finished, to read what programs do.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static FINISHED: AtomicU64 = AtomicU64::new(0);
/// How often that was the end of moved memory at its place.
static LOSSES: AtomicU64 = AtomicU64::new(0);
/// How often a caller looks whether the monitors are done; they take a millisecond at most. In a
/// child made by fork they never are.
const LOOKS: u32 = 10_000;

/// A number that changes, now and then for nothing, when the program unmaps moved memory or moves
/// it elsewhere: before the call by which it does so returns. [`losses`] tells whether it did.
#[inline]
#[must_use]
pub fn changes() -> u64 {
    BEGUN.load(Ordering::Acquire)
}

/// How often the program has unmapped moved memory, or moved it elsewhere; all of it that showed in
/// [`changes`] before is counted.
#[must_use]
pub fn losses() -> u64 {
    let begun = changes();
    for _ in 0..LOOKS {
        if FINISHED.load(Ordering::Acquire) >= begun {
            break;
        }
        std::thread::yield_now();
    }
    LOSSES.load(Ordering::Acquire)
}

/// A monitor is about to read: threads that wait for that go on.
pub(crate) fn reading() {
    BEGUN.fetch_add(1, Ordering::AcqRel);
}

/// What it has read is handled.
pub(crate) fn has_read() {
    FINISHED.fetch_add(1, Ordering::AcqRel);
}

/// Moved memory has left its place.
pub(crate) fn note_loss() {
    LOSSES.fetch_add(1, Ordering::AcqRel);
}

/// The pages that hold `len` bytes at `addr`.
fn pages(addr: usize, len: usize) -> Option<Span> {
    let end = addr.checked_add(len)?.checked_next_multiple_of(PAGE)?;
    Some(Span::new(addr & !(PAGE - 1), end))
}

/// Some bytes of a store, mapped once more, for the calling thread's own use.
#[derive(Debug)]
pub struct Alias {
    area: Area,
    skip: usize,
}

impl Alias {
    /// The first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        crate::sys::at(self.area.span().start + self.skip).cast()
    }
}

impl Store {
    /// Whether the pages that hold `len` bytes at `addr` are mapped there, whatever their
    /// protection. In a guest the driver sees to it.
    #[must_use]
    pub fn is_in_place(&self, addr: usize, len: usize) -> bool {
        if self.is_guest() {
            return true;
        }
        let (Some(span), Ok(maps)) = (pages(addr, len), Maps::open()) else {
            return false;
        };
        let mut start = span.start;
        while start < span.end {
            match maps.find(start) {
                Ok(Some(vma))
                    if vma.span.contains(start)
                        && self.is(vma.device, vma.inode)
                        && vma.offset + (start - vma.span.start) == start =>
                {
                    start = vma.span.end;
                }
                _ => return false,
            }
        }
        true
    }

    /// Maps `len` bytes that belong at `addr` once more, readable and writable.
    ///
    /// # Errors
    /// Those of `mmap(2)`; in a guest, EOPNOTSUPP.
    pub fn alias(&self, addr: usize, len: usize) -> Result<Alias, Errno> {
        if self.is_guest() {
            return Err(Errno::OPNOTSUPP);
        }
        let span = pages(addr, len).ok_or(Errno::INVAL)?;
        let area = Area::reserve(span)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        area.map(Some((self.as_fd(), span.start)), prot)?;
        area.advise(Advice::LinuxDontFork)?;
        let skip = addr - span.start;
        Ok(Alias { area, skip })
    }
}
