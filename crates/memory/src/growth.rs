//! The growth thread: it makes what a moved mapping grows by private.
//!
//! A program may let a moved mapping grow (`mremap(2)`). The new part would show whatever the store
//! has at the offsets that follow: other registered pages, or pages that a peer could see. Nothing
//! is entered in the page table there, so the first access is trapped, and the growth thread
//! replaces the new part by private memory before it lets the access go on. The monitor cannot do
//! this itself: the replacing system call waits for the monitor.
//!
//! Like the monitor it allocates nothing: the stopped thread may hold the allocator's locks.

use crate::shared::{Shared, lock};
use crate::span::{PAGE, Span};
use crate::sys::{self, at};
use rustix::mm::MapFlags;
use std::sync::PoisonError;

/// Runs until told to stop.
pub(crate) fn run(shared: &Shared) {
    sys::be_prompt();
    loop {
        let mut grown = lock(&shared.grown);
        while grown.len == 0 && !grown.stop {
            grown = shared
                .more_grown
                .wait(grown)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if grown.stop {
            return;
        }
        grown.len -= 1;
        let page = grown.pages[grown.len];
        drop(grown);
        wall(shared, page);
        shared.events.wake(Span::new(page, page + PAGE));
    }
}

/// Replaces the grown part around `page`, if it is still one.
fn wall(shared: &Shared, page: usize) {
    let Ok(Some(vma)) = shared.maps.find(page) else {
        return;
    };
    let table = shared.table();
    if table.pieces.find(page).is_some() || table.busy.contains(page) {
        return;
    }
    let part = table.pieces.gap(page).and(vma.span);
    let busy = table.busy;
    drop(table);
    if !vma.span.contains(page) || !vma.shared || vma.inode == 0 || part.meets(busy) {
        return;
    }
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    // SAFETY: nothing was ever accessible there: the mapping is one of ours, at addresses where we
    // placed no page, and a thread that touches it is stopped.
    let replaced =
        unsafe { rustix::mm::mmap_anonymous(at(part.start), part.len(), vma.prot, flags) };
    // Without memory for a mapping the access is tried, and trapped, again.
    let _ = replaced;
    shared.events.wake(part);
}
