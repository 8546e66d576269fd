//! Pages that somebody else refers to, by each way there is, on each way a page can go: what is
//! read into them arrives, whatever is asked for meanwhile. Needs root.

#[path = "../../pins/tests/common/mod.rs"]
mod holders;

use crate::span::{CHUNK, PAGE, Span};
use crate::sys::{self, Area, at};
use crate::test_support::{Stop, moves, reclaims, returns, returns_up_to};
use crate::uffd::feature;
use crate::{Mover, Store, Unmovable};
use causeway_pins::remote::{Answerer, Heard};
use holders::{READ_BYTE, ways};
use rustix::fs::MemfdFlags;
use rustix::mm::ProtFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PAGES: usize = 40;
/// Until the monitor has heard of what was unmapped last; reached only by a failing test.
const HEARD: Duration = Duration::from_secs(10);

fn store() -> Arc<Store> {
    numbered(1)
}

fn other_store() -> Arc<Store> {
    numbered(2)
}

fn numbered(id: u64) -> Arc<Store> {
    let fd = rustix::fs::memfd_create("store", MemfdFlags::CLOEXEC).expect("a memfd");
    rustix::fs::ftruncate(&fd, causeway_identity::ADDRESSES_END).expect("its size");
    Arc::new(Store::new(fd, id))
}

fn occupied(store: &Store) -> i64 {
    rustix::fs::fstat(store.as_fd()).expect("fstat").st_blocks
}

/// Fresh memory across the end of a chunk.
fn area() -> Area {
    let like = Span::new(CHUNK - 3 * PAGE, CHUNK + (PAGES - 3) * PAGE);
    let area = Area::reserve(like).expect("address space");
    area.map(None, ProtFlags::READ | ProtFlags::WRITE)
        .expect("memory");
    fill(&area, 0x11);
    area
}

fn fill(area: &Area, byte: u8) {
    // SAFETY: the test's own memory, as long as it says.
    unsafe {
        at(area.span().start)
            .cast::<u8>()
            .write_bytes(byte, area.span().len());
    }
}

fn byte(addr: usize) -> u8 {
    // SAFETY: an address in memory of the test's.
    unsafe { at(addr).cast::<u8>().read_volatile() }
}

/// A process that may ask, as long as the socket is open.
fn broker() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("sockets");
    let answerer = Answerer::start().expect("the privilege");
    std::thread::spawn(move || {
        use rustix::event::{PollFd, PollFlags, poll};
        loop {
            poll(&mut [PollFd::new(&theirs, PollFlags::IN)], None).expect("poll");
            match Answerer::hear(theirs.as_fd()) {
                Heard::Question(question, Some(fd)) => {
                    answerer.answer(theirs.as_fd(), question, &fd);
                }
                Heard::Nothing => {}
                _ => return,
            }
        }
    });
    ours
}

/// Each way that a mover can be made to go: pages moved singly or lifted off; asked with
/// privilege, without, by another.
fn movers() -> Vec<(&'static str, Mover)> {
    vec![
        ("privileged", Mover::new(None)),
        ("before Linux 6.8", Mover::with_features(!feature::MOVE)),
        ("unprivileged", Mover::unprivileged(None)),
        ("by the broker", Mover::unprivileged(Some(broker()))),
    ]
}

#[test]
fn pinned_pages_do_not_move_in() {
    for (kind, mover) in movers() {
        for (name, writes, hold) in ways() {
            let (store, area) = (store(), area());
            let (start, len) = (area.span().start, area.span().len());
            let page = start + 5 * PAGE;
            let let_go = hold(page);
            let refused = mover.move_in(&store, start, len);
            assert_eq!(refused.err(), Some(Unmovable::Pinned), "{kind}, {name}");
            let_go();
            assert_eq!(byte(page) == READ_BYTE, writes, "{kind}, {name}: lost");
            let moved = moves(&mover, &store, start, len);
            assert_eq!(byte(page) == READ_BYTE, writes, "{kind}, {name}: lost");
            returns(&mover, moved);
            assert_eq!(occupied(&store), 0);
        }
    }
}

#[test]
fn pinned_pages_are_not_taken_back() {
    for (kind, mover) in movers() {
        for (name, writes, hold) in ways() {
            let (store, area) = (store(), area());
            let (start, len) = (area.span().start, area.span().len());
            let moved = moves(&mover, &store, start, len);
            let page = start + 5 * PAGE;
            let let_go = hold(page);
            // What lies before is back.
            let left = returns_up_to(&mover, moved, start + 3 * PAGE);
            let (left, why) = mover.take_back(left).expect_err("held");
            assert_eq!(why, Unmovable::Pinned, "{kind}, {name}");
            let_go();
            assert_eq!(byte(page) == READ_BYTE, writes, "{kind}, {name}: lost");
            returns(&mover, left);
            assert_eq!(byte(page) == READ_BYTE, writes, "{kind}, {name}: lost");
            assert_eq!(byte(page + PAGE), 0x11);
            assert_eq!(occupied(&store), 0);
        }
    }
}

/// Only an asker that may ask about what a peer has mapped says something of it.
#[test]
fn pages_that_a_peer_maps() {
    for (kind, mover) in movers() {
        let (store, area) = (store(), area());
        let (start, len) = (area.span().start, area.span().len());
        let moved = moves(&mover, &store, start, len);
        let window = Area::reserve(area.span()).expect("address space");
        let source = Some((store.as_fd(), start));
        window.map(source, ProtFlags::READ).expect("a mapping");
        assert_eq!(byte(window.span().start + 7 * PAGE), 0x11);
        if mover.asks_for_others() {
            returns(&mover, moved);
        } else {
            let (left, why) = mover.take_back(moved).expect_err("a peer maps it");
            assert_eq!(why, Unmovable::Pinned, "{kind}");
            drop(window);
            returns(&mover, left);
        }
        assert_eq!(occupied(&store), 0, "{kind}");
    }
}

/// Idle memory stays, is registered again without a move, and is gone from its store as soon as
/// the program has unmapped it.
#[test]
fn idle_memory_goes_when_it_is_unmapped() {
    for (_, mover) in movers() {
        let (store, area) = (store(), area());
        let (start, len) = (area.span().start, area.span().len());
        let moved = moves(&mover, &store, start, len);
        mover.release(moved);
        let full = occupied(&store);
        assert_eq!(full as usize * 512, len);
        let moved = mover.move_in(&store, start, len).expect("counts");
        mover.release(moved);
        assert_eq!((byte(start), occupied(&store)), (0x11, full));
        // Two pages of it are registered while they are unmapped.
        let kept = mover.move_in(&store, start, 2 * PAGE).expect("counts");
        drop(area);
        // The monitor has heard of it, and is at work.
        let end = Instant::now() + HEARD;
        while occupied(&store) as usize * 512 != 2 * PAGE {
            assert!(Instant::now() < end, "{} blocks left", occupied(&store));
            std::thread::yield_now();
        }
        mover.take_back(kept).expect("nothing is there");
        assert_eq!(occupied(&store), 0);
    }
}

/// Waits until a store is empty: the monitor has heard of what was unmapped, and is at work.
fn await_empty(store: &Store, kind: &str) {
    let end = Instant::now() + HEARD;
    while occupied(store) != 0 {
        assert!(
            Instant::now() < end,
            "{kind}: {} blocks left",
            occupied(store)
        );
        std::thread::yield_now();
    }
}

/// A part, and then all, of registered memory is unmapped before its registration ends.
#[test]
fn what_was_unmapped_before_is_not_idle() {
    for (kind, mover) in movers() {
        let (store, area) = (store(), area());
        let (start, len) = (area.span().start, area.span().len());
        let (first, second) = (
            moves(&mover, &store, start, len),
            moves(&mover, &store, start, len),
        );
        // SAFETY: a part of the test's own memory, which nothing touches any more.
        unsafe { sys::unmap(Span::new(start, start + 5 * PAGE)) };
        mover.release(first);
        assert_eq!(occupied(&store) as usize * 512, len, "{kind}: registered");
        mover.release(second);
        assert_eq!(occupied(&store) as usize * 512, len - 5 * PAGE, "{kind}");
        assert_eq!(byte(start + 5 * PAGE), 0x11);
        let left = mover.move_in(&store, start + 5 * PAGE, len - 5 * PAGE);
        let left = left.expect("counts");
        drop(area);
        mover.release(left);
        assert_eq!(occupied(&store), 0, "{kind}");
        assert_eq!(
            Arc::strong_count(&store),
            1,
            "{kind}: nothing is left of it"
        );
    }
}

/// Idle memory that could not come back, since a page of it was held, is idle as before.
#[test]
fn what_could_not_come_back_goes_when_it_is_unmapped() {
    for (kind, mover) in movers() {
        let (store, area) = (store(), area());
        let (start, len) = (area.span().start, area.span().len());
        mover.release(moves(&mover, &store, start, len));
        let let_go = holders::process_vm_writev(start + 5 * PAGE);
        mover.reclaim(&store);
        let_go();
        assert_ne!(occupied(&store), 0, "{kind}");
        assert_eq!(byte(start + 5 * PAGE), READ_BYTE, "{kind}: lost");
        drop(area);
        await_empty(&store, kind);
    }
}

/// Idle memory makes way for another store, unless it is held.
#[test]
fn idle_memory_makes_way() {
    for (kind, mover) in movers() {
        let (first, area) = (store(), area());
        let second = other_store();
        let (start, len) = (area.span().start, area.span().len());
        mover.release(moves(&mover, &first, start, len));
        let let_go = holders::process_vm_writev(start + 5 * PAGE);
        let refused = mover.move_in(&second, start, len);
        assert_eq!(refused.err(), Some(Unmovable::Elsewhere), "{kind}");
        let_go();
        let moved = moves(&mover, &second, start, len);
        assert_eq!((occupied(&first), byte(start + 5 * PAGE)), (0, READ_BYTE));
        mover.release(moved);
        reclaims(&mover, &second);
        assert_eq!((occupied(&second), byte(start + 5 * PAGE)), (0, READ_BYTE));
    }
}

/// Data arrives in one page after the other while all of them move to and fro.
#[test]
fn no_data_is_lost() {
    const TIME: Duration = Duration::from_millis(700);
    for (kind, mover) in movers() {
        let (store, area) = (store(), area());
        let (start, len) = (area.span().start, area.span().len());
        let (stop, arrived) = (AtomicBool::new(false), AtomicUsize::new(0));
        let mut moves = [0, 0];
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            for thread in 0..2 {
                let (stop, arrived) = (&stop, &arrived);
                scope.spawn(move || {
                    let mine = Span::new(0, len / 2).at(start + thread * (len / 2));
                    let mut page = mine.start;
                    while !stop.load(Ordering::Relaxed) {
                        let let_go = holders::process_vm_writev(page);
                        std::thread::yield_now();
                        let_go();
                        assert_eq!(byte(page), READ_BYTE, "{kind}: lost");
                        // SAFETY: the test's own memory.
                        unsafe { at(page).cast::<u8>().write_volatile(0) };
                        arrived.fetch_add(1, Ordering::Relaxed);
                        page += PAGE;
                        if page >= mine.end {
                            page = mine.start;
                        }
                    }
                });
            }
            let end = Instant::now() + TIME;
            let mut moved = None;
            while Instant::now() < end {
                moved = match moved {
                    None => mover.move_in(&store, start, len).ok(),
                    Some(moved) => mover.take_back(moved).err().map(|(left, _)| left),
                };
                moves[usize::from(moved.is_some())] += 1;
            }
            if let Some(moved) = moved {
                mover.release(moved);
            }
        });
        println!("{kind}: {arrived:?} arrived, {moves:?} moves out and in");
        assert!(arrived.load(Ordering::Relaxed) > 0, "{kind}");
    }
}
