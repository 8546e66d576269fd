//! Older kernels: before 6.8 they cannot move single pages (UFFDIO_MOVE). Needs the right to trap
//! kernel faults (root).

use crate::gone_tests::on_step;
use crate::span::{CHUNK, PAGE, Span};
use crate::sys::{self, Area, at};
use crate::test_support::{Stop, moves, returns};
use crate::uffd::feature;
use crate::{Mover, Store, Unmovable};
use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, ProtFlags};
use std::os::fd::{AsRawFd, OwnedFd};
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

/// A pipe that refers to a page.
fn held(page: usize) -> (OwnedFd, OwnedFd) {
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let vector = libc::iovec {
        iov_base: at(page),
        iov_len: PAGE,
    };
    // SAFETY: one vector, of a page of the test's.
    let held = unsafe { libc::vmsplice(writer.as_raw_fd(), &raw const vector, 1, 0) };
    assert_eq!(held, PAGE as isize);
    (reader, writer)
}

/// Writes a number of its own into each page.
fn number(area: &Area) {
    for page in 0..area.span().len() / PAGE {
        word(area, page * PAGE).store(page as u64 + 1, Ordering::Relaxed);
    }
}

fn check_numbers(area: &Area) {
    for page in 0..area.span().len() / PAGE {
        let found = word(area, page * PAGE).load(Ordering::Relaxed);
        assert_eq!(found, page as u64 + 1, "page {page}");
    }
}

/// Before Linux 6.7 mbind(2) does not move a huge page of which the page table has parts.
#[test]
fn parts_of_huge_pages_move_on_older_kernels() {
    let (mover, store) = (Mover::with_features(!feature::MOVE), store());
    let area = area(3 * CHUNK);
    area.advise(Advice::LinuxHugepage).expect("madvise");
    number(&area);
    // From the middle of one to the middle of another.
    let (start, len) = (area.span().start + CHUNK + CHUNK / 2, CHUNK);
    let pipe = held(start + 3 * PAGE);
    let refused = mover.move_in(&store, start, len);
    assert_eq!(refused.err(), Some(Unmovable::Pinned));
    drop(pipe);
    check_numbers(&area);
    let moved = moves(&mover, &store, start, len);
    check_numbers(&area);
    returns(&mover, moved);
    check_numbers(&area);
}

/// Before Linux 6.17 any userfaultfd stops the trapping of any other. Here one mover gives up while
/// another, of the same process, has the same memory lifted, and then gives up too.
#[test]
fn a_refused_move_leaves_what_another_mover_traps() {
    const PAGES: usize = 64;
    let area = area(2 * PAGES * PAGE);
    number(&area);
    let span = Span::new(area.span().start, area.span().start + PAGES * PAGE);
    let pipe = held(span.start + 3 * PAGE);
    let ([raised, is_raised], [go_on, may_go_on]) = (pair(), pair());
    let second = move || {
        let (mover, store) = (Mover::with_features(!feature::MOVE), store());
        on_step("move.raised", move || {
            signal(&raised);
            await_signal(&may_go_on);
        });
        mover.move_in(&store, span.start, span.len()).err()
    };
    let (mover, store) = (Mover::with_features(!feature::MOVE), store());
    let (sender, ended) = std::sync::mpsc::channel();
    on_step("move.lowered", move || {
        let second = std::thread::spawn(second);
        await_signal(&is_raised);
        // By then the first traps nothing any more.
        on_step("move.refused", move || {
            signal(&go_on);
            sender
                .send(second.join().expect("no panic"))
                .expect("a receiver");
        });
    });
    let first = mover.move_in(&store, span.start, span.len()).err();
    let second = ended.recv().expect("an end");
    drop(pipe);
    check_numbers(&area);
    assert_eq!([first, second], [Some(Unmovable::Pinned); 2]);
}

/// Both ends of a pipe, to signal by: no more than a byte goes through it.
fn pair() -> [OwnedFd; 2] {
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    [writer, reader]
}

fn signal(to: &OwnedFd) {
    assert_eq!(rustix::io::write(to, &[1]), Ok(1));
}

fn await_signal(from: &OwnedFd) {
    assert_eq!(rustix::io::read(from, &mut [0]), Ok(1));
}

/// What is placed is watched, also where the program has unmapped a page of it in that very moment.
#[test]
fn what_is_placed_stays_watched() {
    for usable in [u64::MAX, !feature::MOVE] {
        let (mover, store) = (Mover::with_features(usable), store());
        let area = area(CHUNK);
        let span = Span::new(area.span().start, area.span().start + 8 * PAGE);
        for page in 0..8 {
            word(&area, page * PAGE).store(7, Ordering::Relaxed);
        }
        let gone = Span::new(span.start + 3 * PAGE, span.start + 4 * PAGE);
        // SAFETY: the test's own memory, which it does not touch any more.
        on_step("move.settling", move || unsafe { sys::unmap(gone) });
        let moved = moves(&mover, &store, span.start, span.len());
        assert_eq!(word(&area, 5 * PAGE).load(Ordering::Relaxed), 7);
        let page = at(span.start + 5 * PAGE);
        // SAFETY: the test's own memory.
        unsafe { rustix::mm::madvise(page, PAGE, Advice::LinuxDontNeed).expect("madvise") };
        assert_eq!(word(&area, 5 * PAGE).load(Ordering::Relaxed), 0);
        returns(&mover, moved);
        // What else the area has is unmapped by the area.
        area.map(None, ProtFlags::READ | ProtFlags::WRITE)
            .expect("memory");
    }
}

/// The kernel joins a hollow mapping with a neighbour of its kind, and fills both with a huge page,
/// if the program never touched the memory before it moved.
#[test]
fn what_comes_into_a_hollow_mapping_is_of_no_use() {
    for usable in [u64::MAX, !feature::MOVE] {
        let (mover, store) = (Mover::with_features(usable), store());
        let area = area(CHUNK + 9 * PAGE);
        let span = area.span();
        let moved = moves(&mover, &store, span.start, span.len());
        number(&area);
        let emptied = mover.emptied();
        assert_eq!(
            emptied.iter().map(|hollow| hollow.len()).sum::<usize>(),
            span.len()
        );
        for hollow in emptied {
            let some = Span::new(hollow.start + PAGE, hollow.end - PAGE);
            // SAFETY: memory of the mover's, which it does not look at now.
            unsafe {
                let advice = Advice::LinuxPopulateWrite;
                rustix::mm::madvise(at(some.start), some.len(), advice).expect("madvise");
                rustix::mm::mlock(at(some.start), some.len()).expect("mlock");
            }
        }
        check_numbers(&area);
        returns(&mover, moved);
        check_numbers(&area);
    }
}
