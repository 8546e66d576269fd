//! Kernels before 6.8, which cannot move single pages (UFFDIO_MOVE). Needs the right to trap kernel
//! faults (root).

use crate::span::{CHUNK, PAGE, Span};
use crate::sys::{Area, at};
use crate::test_support::{Stop, moves, returns};
use crate::uffd::feature;
use crate::{Mover, Store, Unmovable};
use rustix::fs::MemfdFlags;
use rustix::mm::ProtFlags;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn store() -> Arc<Store> {
    let fd = rustix::fs::memfd_create("store", MemfdFlags::CLOEXEC).expect("a memfd");
    rustix::fs::ftruncate(&fd, causeway_identity::ADDRESSES_END).expect("its size");
    Arc::new(Store::new(fd, 1))
}

fn word(area: &Area, offset: usize) -> &AtomicU64 {
    assert!(offset + 8 <= area.span().len());
    // SAFETY: mapped as long as the area, aligned, and only used as atomics.
    unsafe { AtomicU64::from_ptr(at(area.span().start + offset).cast()) }
}

fn area(len: usize) -> Area {
    let area = Area::reserve(Span::new(PAGE, PAGE + len)).expect("address space");
    area.map(None, ProtFlags::READ | ProtFlags::WRITE)
        .expect("memory");
    area
}

#[test]
fn no_update_is_lost_on_older_kernels() {
    let (mover, store) = (Mover::with_features(!feature::MOVE), store());
    let area = area(CHUNK + 9 * PAGE);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for thread in 0..2 {
            let (area, stop) = (&area, &stop);
            scope.spawn(move || {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    // Every third page is a hole at first.
                    for page in (0..area.span().len() / PAGE).filter(|page| page % 3 != 2) {
                        let word = word(area, page * PAGE + thread * 64);
                        assert_eq!(word.swap(count + 1, Ordering::Relaxed), count);
                    }
                    count += 1;
                }
            });
        }
        for _ in 0..40 {
            let span = area.span();
            let moved = moves(&mover, &store, span.start, span.len());
            assert_eq!(word(&area, 2 * PAGE).load(Ordering::Relaxed), 0);
            returns(&mover, moved);
        }
    });
}

/// The kernel's refusal to move locked pages is replaced by a look at what is locked.
#[test]
fn locked_memory_on_older_kernels() {
    let (mover, store) = (Mover::with_features(!feature::MOVE), store());
    let area = area(4 * PAGE);
    let span = area.span();
    // SAFETY: the test's own memory.
    unsafe { rustix::mm::mlock(at(span.start), PAGE).expect("mlock") };
    let refused = mover.move_in(&store, span.start, span.len());
    assert_eq!(refused.err(), Some(Unmovable::Locked));
}

#[test]
fn without_events_nothing_moves() {
    let mover = Mover::with_features(!feature::EVENT_REMOVE);
    assert!(!mover.can_move());
}
