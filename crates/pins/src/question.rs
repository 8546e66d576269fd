//! The question itself. Allocates nothing and touches no heap: the caller may hold up other
//! threads' accesses to it.

use crate::pagemap::{Entry, Pagemap};
use crate::sys::{self, Policy, Reach};
use crate::{PAGE, RANGE_MAX};
use rustix::io::Errno;

/// Whether a range may have holes: pages that do not exist, to which nobody refers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holes {
    /// Private memory may: what does not exist is in no page cache either.
    Allowed,
    /// A part of a file is brought into the page table first, as a whole.
    Filled,
}

/// What the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Nobody refers to the pages but page tables and page cache.
    Free,
    /// Somebody does, or memory is short.
    Busy,
    /// It does not tell: others map some pages, or it refuses to be asked.
    Unknown,
}

/// Asks about `len` bytes at `start`, both on page boundaries, `len` at most
/// [`RANGE_MAX`](crate::RANGE_MAX), all in one mapping of the calling process. Pages change places
/// in memory; contents, addresses and the mapping's memory policy stay. Pages in swap, and those of
/// a file that the page table lacks, are brought in, so that a hole of a file becomes a page.
/// Thread-safe. Takes some 40 µs for a page, 1 ms for [`RANGE_MAX`](crate::RANGE_MAX).
pub fn ask(pagemap: &Pagemap, start: usize, len: usize, reach: Reach, holes: Holes) -> Answer {
    let mut entries = [Entry::default(); RANGE_MAX / PAGE];
    let Some(entries) = entries.get_mut(..len / PAGE) else {
        return Answer::Unknown;
    };
    let before = match holes {
        Holes::Filled => sys::populate(start, len),
        Holes::Allowed => bring_in(pagemap, start, entries),
    };
    if before.is_err() || pagemap.read(start, entries).is_err() {
        return Answer::Unknown;
    }
    if holes == Holes::Allowed && !entries.iter().any(|entry| entry.exists()) {
        return Answer::Free;
    }
    if !can_tell(entries, reach, holes) {
        return Answer::Unknown;
    }
    let policy = Policy::of(start);
    let mut migrated = sys::migrate(start, len, reach);
    if migrated == Err(Errno::IO) && holes == Holes::Allowed && sys::split(start, len).is_ok() {
        migrated = sys::migrate(start, len, reach);
    }
    policy.restore(start, len);
    match migrated {
        Ok(()) => {}
        Err(Errno::IO | Errno::NOMEM | Errno::AGAIN) => return Answer::Busy,
        Err(_) => return Answer::Unknown,
    }
    // What was passed over is in the page table as before, or not at all.
    if pagemap.read(start, entries).is_ok() && can_tell(entries, reach, holes) {
        Answer::Free
    } else {
        Answer::Unknown
    }
}

/// Whether migrating would pass over no page that exists.
fn can_tell(entries: &[Entry], reach: Reach, holes: Holes) -> bool {
    entries.iter().all(|entry| match reach {
        _ if holes == Holes::Allowed && !entry.exists() => true,
        Reach::Own => entry.is_exclusive(),
        Reach::All => entry.is_present(),
    })
}

/// Brings in those pages that are in swap: one that is on its way there, or back, may still be
/// written to.
fn bring_in(pagemap: &Pagemap, start: usize, entries: &mut [Entry]) -> Result<(), Errno> {
    pagemap.read(start, entries)?;
    for (page, entry) in entries.iter().enumerate() {
        if entry.exists() && !entry.is_present() {
            sys::populate(start + page * PAGE, PAGE)?;
        }
    }
    Ok(())
}
