//! What the calling threads and the monitor share.
//!
//! The monitor is waited for by every thread that unmaps or gives up moved memory, maybe with a
//! lock of the allocator held. So whoever holds [`Table`]'s lock makes no such call and allocates
//! nothing, and the lock is one that allocates nothing either. Nor does it touch the heap: an
//! allocator may have put things in memory that has been moved, where a fault waits for the
//! monitor. It uses the stack and what is here, which is never moved.

use crate::pagemap::Pagemap;
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
    pub pagemap: Pagemap,
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

    /// The pieces that `select` hands on, in the order of addresses, copied out by way of the
    /// stack: a fault on the heap, while the lock is held, would wait for ever.
    pub fn collect(&self, select: impl Fn(&Pieces, &mut dyn FnMut(Piece))) -> Vec<Piece> {
        const BATCH: usize = 32;
        let mut found = Vec::new();
        let mut from = 0;
        loop {
            let mut batch = [Piece::default(); BATCH];
            let (mut len, mut more) = (0, false);
            let table = self.table();
            select(&table.pieces, &mut |piece| {
                more |= len == BATCH;
                if piece.span.start >= from && len < BATCH {
                    batch[len] = piece;
                    len += 1;
                }
            });
            drop(table);
            found.extend_from_slice(&batch[..len]);
            if !more {
                return found;
            }
            from = batch[BATCH - 1].span.end;
        }
    }

    /// The memory that must not be moved: this and what hangs on it.
    pub fn memory(&self) -> [Span; 2] {
        let start = std::ptr::from_ref(self).expose_provenance();
        let own = Span::new(start, start + size_of::<Shared>());
        [own, self.table().pieces.memory()]
    }
}
