//! What the calling threads and the monitor share.
//!
//! The monitor is waited for by every thread that unmaps or gives up moved memory, maybe with a
//! lock of the allocator held. So whoever holds [`Table`]'s lock makes no such call and allocates
//! nothing, and the lock is one that allocates nothing either.

use crate::pieces::{Piece, Pieces};
use crate::span::Span;
use crate::uffd::Uffd;
use crate::vma::Maps;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A mapping of the mover's own that is about to be moved over the program's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub span: Span,
    /// What it shows: a store's pages, or none if it brings private memory back.
    pub shows: Option<(u64, RawFd, usize)>,
    /// Whether the monitor knows that it has been moved.
    pub arrived: bool,
}

/// What is known about the address space.
#[derive(Debug)]
pub(crate) struct Table {
    pub pieces: Pieces,
    /// Faults here are left alone: a caller is at work, and wakes who waits.
    pub busy: Span,
    pub window: Option<Window>,
    /// The store's pages that are being copied to where faults are left alone: what the program
    /// gives up there must not come back.
    pub source: Option<Piece>,
}

/// How many pages of grown mappings can wait to be replaced.
pub(crate) const MAX_GROWN: usize = 64;

/// Pages at which threads wait for the mason.
#[derive(Debug)]
pub(crate) struct Grown {
    pub pages: [usize; MAX_GROWN],
    pub len: usize,
    pub stop: bool,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// Watches moved memory; the monitor reads it.
    pub events: Uffd,
    pub maps: Maps,
    pub table: Mutex<Table>,
    /// The window has arrived, or the monitor has ended.
    pub arrived: Condvar,
    pub ended: AtomicBool,
    /// A page whose unmapping tells the monitor to end.
    pub sentinel: usize,
    pub grown: Mutex<Grown>,
    pub more_grown: Condvar,
}

/// A panic while the lock was held would be a defect of ours; the tables are plain values.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// The pieces that `select` hands on, copied out: room is made before the lock is taken.
    pub fn collect(&self, select: impl Fn(&Pieces, &mut dyn FnMut(Piece))) -> Vec<Piece> {
        let mut found = Vec::new();
        loop {
            found.clear();
            found.reserve(self.table().pieces.len() + 1);
            let mut whole = true;
            let table = self.table();
            select(&table.pieces, &mut |piece| {
                whole &= found.len() < found.capacity();
                if whole {
                    found.push(piece);
                }
            });
            drop(table);
            if whole {
                return found;
            }
        }
    }

    /// The memory that must not be moved: this and what hangs on it.
    pub fn memory(&self) -> [Span; 2] {
        let start = std::ptr::from_ref(self).expose_provenance();
        let own = Span::new(start, start + size_of::<Shared>());
        [own, self.table().pieces.memory()]
    }
}
