//! What the calling threads and the monitor share.
//!
//! The monitor is waited for by every thread that unmaps or gives up moved memory, maybe with a
//! lock of the allocator held. So a thread that holds [`Table`]'s lock makes no such call and
//! allocates nothing, and the lock is one that allocates nothing either. Nor does it touch the
//! heap: an allocator may have put things in memory that has been moved, where a fault waits for
//! the monitor. It uses the stack and what is here, which is never moved.

use crate::given_up::Doubts;
use crate::lifted::Lifted;
use crate::number::Number;
use crate::pieces::{Piece, Pieces};
use crate::span::Span;
use crate::store::Store;
use crate::uffd::Uffd;
use crate::vma::{Maps, Vma};
use causeway_pins::Pagemap;
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A mapping of the mover's own that is about to be moved over the program's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub span: Span,
    /// What it shows: a store's pages, or none if it brings private memory back.
    pub shows: Option<(u64, Number, usize)>,
    /// Whether the monitor knows that it has been moved.
    pub arrived: bool,
}

/// What is known about the address space.
#[derive(Debug)]
pub(crate) struct Table {
    pub pieces: Pieces,
    /// Faults here are left alone: a caller is at work, and wakes the waiters.
    pub busy: Span,
    pub window: Option<Window>,
    /// The store's pages that are being copied to where faults are left alone: what the program
    /// gives up there must not come back.
    pub source: Option<Piece>,
    /// The chunk that is just being moved into a store.
    pub lifted: Lifted,
    /// What the program may have given up. The monitor alone changes it.
    pub doubts: Doubts,
}

/// How many pages of grown mappings can wait to be replaced.
pub(crate) const MAX_GROWN: usize = 64;

/// Pages at which threads wait for the growth thread.
#[derive(Debug)]
pub(crate) struct Grown {
    pub pages: [usize; MAX_GROWN],
    pub len: usize,
    pub stop: bool,
}

/// Where things are mapped, and what of it the mover has placed there.
#[derive(Debug)]
pub(crate) struct View {
    pub maps: Maps,
    pub table: Mutex<Table>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub view: View,
    /// Watches moved memory; the monitor reads it.
    pub events: Uffd,
    /// Stops threads that touch a chunk while it is lifted, until it is in its new place. The
    /// monitor reads what else happens to the chunk.
    pub lift: Uffd,
    pub pagemap: Pagemap,
    /// The window has arrived, or the monitor has ended.
    pub arrived: Condvar,
    pub ended: AtomicBool,
    /// Idle pages were unmapped since the mover looked last.
    pub idle_unmapped: AtomicBool,
    /// A page whose unmapping tells the monitor to end.
    pub sentinel: usize,
    pub grown: Mutex<Grown>,
    pub more_grown: Condvar,
}

/// A panic while the lock was held would be a defect of ours; the tables are plain values.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl View {
    /// Nothing is placed yet.
    pub fn open() -> Result<View, Errno> {
        Ok(View {
            maps: Maps::open()?,
            table: Mutex::new(Table {
                pieces: Pieces::new(),
                busy: Span::default(),
                window: None,
                source: None,
                lifted: Lifted::new(),
                doubts: Doubts::new(),
            }),
        })
    }

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

    /// Whether all of a range is mapped for reading and writing.
    pub fn is_writable(&self, span: Span) -> bool {
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        let mut start = span.start;
        while start < span.end {
            match self.maps.find(start) {
                Ok(Some(vma)) if vma.span.contains(start) && vma.prot.contains(rw) => {
                    start = vma.span.end;
                }
                _ => return false,
            }
        }
        true
    }

    /// What is mapped at `span` of `store` from `offset` on.
    pub fn ours(&self, store: &Store, span: Span, offset: usize) -> Result<Vec<Vma>, Errno> {
        let mut found = Vec::new();
        let mut start = span.start;
        while start < span.end {
            let Some(vma) = self.maps.find(start)? else {
                break;
            };
            let part = vma.span.and(span);
            start = vma.span.end;
            let there = vma
                .offset
                .wrapping_add(part.start.wrapping_sub(vma.span.start));
            let wanted = offset + part.start.saturating_sub(span.start);
            if !part.is_empty() && store.is(vma.device, vma.inode) && there == wanted {
                found.push(Vma {
                    span: part,
                    offset: there,
                    ..vma
                });
            }
        }
        Ok(found)
    }
}

impl Deref for Shared {
    type Target = View;

    fn deref(&self) -> &View {
        &self.view
    }
}
