//! What the program may do to memory in the very moment in which it is moved, at each step of the
//! move: nothing is lost, nothing that belongs to somebody else is touched. Needs the right to trap
//! kernel faults (root).

use crate::span::{CHUNK, PAGE};
use crate::sys::at;
use crate::test_support::{moves, returns};
use crate::uffd::feature;
use crate::{Mover, Store, Unmovable};
use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const STEPS: [&str; 5] = [
    "move.trapped",
    "move.lifted",
    "move.copied",
    "move.hollowed",
    "move.placed",
];
/// One chunk, and a part of another.
const PAGES: usize = CHUNK / PAGE + 8;
/// The pages to which something happens: some of the first chunk.
const FIRST: usize = 3;
const LAST: usize = 40;

type Hook = Box<dyn FnOnce()>;

thread_local! {
    static HOOK: RefCell<Option<(&'static str, Hook)>> = const { RefCell::new(None) };
}

/// What a test wants to happen at a step of the move that this thread makes.
pub(crate) fn reached(name: &'static str) {
    let hook = HOOK.with_borrow_mut(|hook| hook.take_if(|(at, _)| *at == name));
    if let Some((_, hook)) = hook {
        hook();
    }
}

/// Has something happen when this thread's move reaches a step.
pub(crate) fn on_step(name: &'static str, hook: impl FnOnce() + 'static) {
    HOOK.set(Some((name, Box::new(hook))));
}

fn store() -> Arc<Store> {
    numbered(1)
}

fn numbered(id: u64) -> Arc<Store> {
    let fd = rustix::fs::memfd_create("store", MemfdFlags::CLOEXEC).expect("a memfd");
    rustix::fs::ftruncate(&fd, causeway_identity::ADDRESSES_END).expect("its size");
    Arc::new(Store::new(fd, id))
}

/// Addresses that the kernel gives to no call that names none.
fn apart() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x3000_0000_0000);
    NEXT.fetch_add(1 << 30, Ordering::Relaxed)
}

fn map(addr: usize, pages: usize, prot: ProtFlags, flags: MapFlags) {
    let flags = MapFlags::PRIVATE | flags;
    // SAFETY: addresses of the test's own.
    unsafe { rustix::mm::mmap_anonymous(at(addr), pages * PAGE, prot, flags) }.expect("mmap");
}

fn unmap(addr: usize, pages: usize) {
    // SAFETY: addresses of the test's own, which nothing touches any more.
    unsafe { rustix::mm::munmap(at(addr), pages * PAGE) }.expect("munmap");
}

fn protect(addr: usize, pages: usize, prot: MprotectFlags) {
    // SAFETY: addresses of the test's own.
    unsafe { rustix::mm::mprotect(at(addr), pages * PAGE, prot) }.expect("mprotect");
}

/// A page's first word, read by the kernel. `None` where it finds none.
fn word(addr: usize) -> Option<u64> {
    let mut word = [0; 8];
    // SAFETY: both are valid for the call, or it fails.
    let got = unsafe {
        let to = libc::iovec {
            iov_base: word.as_mut_ptr().cast(),
            iov_len: 8,
        };
        let from = libc::iovec {
            iov_base: at(addr),
            iov_len: 8,
        };
        let own = libc::getpid();
        libc::process_vm_readv(own, &raw const to, 1, &raw const from, 1, 0)
    };
    (got == 8).then(|| u64::from_ne_bytes(word))
}

fn paint(addr: usize, page: usize, value: u64) {
    // SAFETY: the test's own page, mapped and writable.
    unsafe { at(addr + page * PAGE).cast::<u64>().write_volatile(value) };
}

fn has_mapping(addr: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    maps.lines().any(|line| {
        let (range, _) = line.split_once(' ').expect("a range");
        let (start, end) = range.split_once('-').expect("two addresses");
        let number = |text| usize::from_str_radix(text, 16).expect("a number");
        (number(start)..number(end)).contains(&addr)
    })
}

/// What the program does to its pages from `FIRST` up to `LAST`, and what it finds there then.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Deed {
    Unmap,
    /// By one call.
    Replace,
    UnmapAndMap,
    Nothing,
    ReadOnly,
    NoAccess,
    MoveAway,
    GiveUp,
}

const DEEDS: [Deed; 8] = [
    Deed::Unmap,
    Deed::Replace,
    Deed::UnmapAndMap,
    Deed::Nothing,
    Deed::ReadOnly,
    Deed::NoAccess,
    Deed::MoveAway,
    Deed::GiveUp,
];

/// Until the monitor has heard of what was unmapped last; reached only by a failing test.
const HEARD: Duration = Duration::from_secs(10);
/// Of other memory at the same addresses.
const OTHER: u64 = 0xabcd_0000;

fn act(deed: Deed, addr: usize, elsewhere: usize, (first, last): (usize, usize)) {
    let (start, pages) = (addr + first * PAGE, last - first);
    match deed {
        Deed::Nothing => {}
        Deed::Unmap => unmap(start, pages),
        Deed::Replace | Deed::UnmapAndMap => {
            if deed == Deed::UnmapAndMap {
                unmap(start, pages);
            }
            let fixed = match deed {
                Deed::Replace => MapFlags::FIXED,
                _ => MapFlags::FIXED_NOREPLACE,
            };
            map(start, pages, RW, fixed);
            (0..pages).for_each(|page| paint(start, page, OTHER + page as u64));
        }
        Deed::ReadOnly => protect(start, pages, MprotectFlags::READ),
        Deed::NoAccess => protect(start, pages, MprotectFlags::empty()),
        Deed::MoveAway => {
            let len = pages * PAGE;
            let flags = MremapFlags::MAYMOVE;
            // SAFETY: addresses of the test's own.
            unsafe { rustix::mm::mremap_fixed(at(start), len, len, flags, at(elsewhere)) }
                .expect("mremap");
        }
        // SAFETY: as above.
        Deed::GiveUp => unsafe {
            rustix::mm::madvise(at(start), pages * PAGE, Advice::LinuxDontNeed).expect("madvise");
        },
    }
}

fn check(deed: Deed, addr: usize, elsewhere: usize, (first, last): (usize, usize)) {
    let own = |page: usize| Some(1 + page as u64);
    for page in 0..PAGES {
        let here = addr + page * PAGE;
        let there = elsewhere + page.saturating_sub(first) * PAGE;
        if !(first..last).contains(&page) {
            assert_eq!(word(here), own(page), "page {page}, beside");
            continue;
        }
        match deed {
            Deed::Nothing => assert_eq!(word(here), own(page), "page {page}"),
            Deed::Unmap => assert!(!has_mapping(here), "page {page} is mapped"),
            Deed::Replace | Deed::UnmapAndMap => {
                let other = Some(OTHER + (page - first) as u64);
                assert_eq!(word(here), other, "page {page}");
            }
            Deed::ReadOnly => {
                assert_eq!(word(here), own(page), "page {page}");
                assert!(!is_writable(here), "page {page} is writable");
            }
            Deed::NoAccess => {
                assert_eq!(word(here), None, "page {page} is readable");
                protect(here, 1, MprotectFlags::READ);
                assert_eq!(word(here), own(page), "page {page}");
            }
            Deed::MoveAway => {
                assert!(!has_mapping(here), "page {page} is mapped");
                assert_eq!(word(there), own(page), "page {page}");
            }
            Deed::GiveUp => assert_eq!(word(here), Some(0), "page {page}"),
        }
    }
}

fn is_writable(addr: usize) -> bool {
    let file = std::fs::File::open("/dev/zero").expect("/dev/zero");
    // SAFETY: a byte of the test's own memory, or the call fails.
    let got = unsafe { libc::read(file.as_raw_fd(), at(addr), 1) };
    got == 1
}

fn at_step(usable: u64, step: &'static str, deed: Deed, range: (usize, usize)) {
    println!("{step}: {deed:?}");
    let (mover, store) = (Mover::with_features(usable), store());
    let (addr, elsewhere) = (apart(), apart());
    map(addr, PAGES, RW, MapFlags::FIXED_NOREPLACE);
    (0..PAGES).for_each(|page| paint(addr, page, 1 + page as u64));
    let deed_done = move || act(deed, addr, elsewhere, range);
    HOOK.set(Some((step, Box::new(deed_done))));
    let moved = mover.move_in(&store, addr, PAGES * PAGE);
    if let Some((_, _)) = HOOK.take() {
        // Not reached by this kernel's way.
        act(deed, addr, elsewhere, range);
    }
    println!("   {:?}", moved.as_ref().err());
    check(deed, addr, elsewhere, range);
    if let Ok(moved) = moved {
        returns(&mover, moved);
        check_twice(deed, addr, elsewhere, range);
    }
    drop(mover);
}

/// The same on the way back, which fails at first if somebody holds a page of the first chunk.
fn at_step_back(step: &'static str, deed: Deed, range: (usize, usize), held: Option<usize>) {
    println!("{step}: {deed:?}, {range:?}, held: {held:?}");
    let (mover, store) = (Mover::new(None), store());
    let (addr, elsewhere) = (apart(), apart());
    map(addr, PAGES, RW, MapFlags::FIXED_NOREPLACE);
    (0..PAGES).for_each(|page| paint(addr, page, 1 + page as u64));
    let mut moved = moves(&mover, &store, addr, PAGES * PAGE);
    let holder = held.map(|page| hold(addr + page * PAGE));
    HOOK.set(Some((
        step,
        Box::new(move || act(deed, addr, elsewhere, range)),
    )));
    if let Some(holder) = holder {
        let (left, why) = mover.take_back(moved).expect_err("a page is held");
        assert_eq!(why, Unmovable::Pinned);
        check(deed, addr, elsewhere, range);
        moved = left;
        drop(holder);
    }
    returns(&mover, moved);
    assert!(HOOK.take().is_none(), "{step} is not reached");
    check(deed, addr, elsewhere, range);
}

/// Has a pipe refer to a page, until it is closed.
fn hold(addr: usize) -> (OwnedFd, OwnedFd) {
    let pipe = rustix::pipe::pipe().expect("a pipe");
    let page = libc::iovec {
        iov_base: at(addr),
        iov_len: PAGE,
    };
    // SAFETY: a page of the test's own.
    let held = unsafe { libc::vmsplice(pipe.1.as_raw_fd(), &raw const page, 1, 0) };
    assert_eq!(held, PAGE as isize);
    pipe
}

/// Once more, after [`check`].
fn check_twice(deed: Deed, addr: usize, elsewhere: usize, range: (usize, usize)) {
    let after = if deed == Deed::NoAccess {
        Deed::ReadOnly
    } else {
        deed
    };
    check(after, addr, elsewhere, range);
}

#[test]
fn whatever_happens_at_any_step_of_a_way_back() {
    for step in ["back.begun", "back.trapped"] {
        for deed in [Deed::Nothing, Deed::Unmap, Deed::UnmapAndMap, Deed::Replace] {
            for range in [(FIRST, LAST), (0, CHUNK / PAGE)] {
                at_step_back(step, deed, range, None);
                at_step_back(step, deed, range, Some(FIRST - 1));
            }
        }
    }
}

#[test]
fn whatever_happens_at_any_step_of_a_move_in() {
    for usable in [u64::MAX, !feature::MOVE] {
        for step in STEPS {
            for deed in DEEDS {
                at_step(usable, step, deed, (FIRST, LAST));
                at_step(usable, step, deed, (0, CHUNK / PAGE));
            }
        }
    }
}

/// The program unmaps idle memory, of which a page is about to make way for another store.
#[test]
fn what_is_unmapped_around_a_page_under_way() {
    let (mover, first, second) = (Mover::new(None), store(), numbered(2));
    let addr = apart();
    map(addr, PAGES, RW, MapFlags::FIXED_NOREPLACE);
    (0..PAGES).for_each(|page| paint(addr, page, 1 + page as u64));
    mover.release(moves(&mover, &first, addr, PAGES * PAGE));
    on_step("back.placing", move || unmap(addr, PAGES));
    let moved = mover.move_in(&second, addr, PAGE);
    // The monitor has heard of it, and is at work.
    let end = Instant::now() + HEARD;
    while rustix::fs::fstat(first.as_fd()).expect("fstat").st_blocks != 0 {
        assert!(Instant::now() < end, "something is left");
        std::thread::yield_now();
    }
    if let Ok(moved) = moved {
        returns(&mover, moved);
    }
}
