//! What the tests of this crate share: stores, mappings, counters.
#![allow(dead_code, reason = "not every test program uses all of it")]

use causeway_memory::{Moved, Mover, PAGE, Store, Unmovable};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Readable and writable.
pub const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A store of the full size.
pub fn store(id: u64) -> Arc<Store> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("store", flags).expect("a memfd");
    rustix::fs::ftruncate(&fd, causeway_identity::ADDRESSES_END).expect("its size");
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals).expect("its seals");
    Arc::new(Store::new(fd, id))
}

/// Bytes that a store occupies.
pub fn occupied(store: &Store) -> u64 {
    rustix::fs::fstat(store.as_fd()).expect("fstat").st_blocks as u64 * 512
}

/// A mapping, unmapped at the end unless it was forgotten.
#[derive(Debug)]
pub struct Map {
    pub addr: usize,
    pub len: usize,
}

impl Map {
    /// Private anonymous memory.
    pub fn new(len: usize) -> Map {
        Map::with(len, RW, MapFlags::PRIVATE)
    }

    pub fn with(len: usize, prot: ProtFlags, flags: MapFlags) -> Map {
        // SAFETY: a new mapping where the kernel likes it.
        let addr = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags).expect("mmap")
        };
        Map {
            addr: addr.expose_provenance(),
            len,
        }
    }

    /// Addresses without access, far from where the kernel puts what names no address: what a test
    /// unmaps there stays free, whatever threads begin meanwhile.
    pub fn apart(len: usize) -> Map {
        const FIRST: usize = 0x2000_0000_0000;
        /// Between two, so that none joins another.
        const GAP: usize = 1 << 30;
        static NEXT: AtomicUsize = AtomicUsize::new(FIRST);
        let addr = NEXT.fetch_add(len.next_multiple_of(GAP) + GAP, Ordering::Relaxed);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: replaces nothing.
        unsafe { rustix::mm::mmap_anonymous(at(addr), len, ProtFlags::empty(), flags) }
            .expect("mmap");
        Map { addr, len }
    }

    /// A word of it, as an atomic.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.len);
        // SAFETY: mapped for as long as self, aligned, and only used as atomics.
        unsafe { AtomicU64::from_ptr(at(self.addr + offset).cast()) }
    }

    /// Writes a number derived from `seed` into each page.
    pub fn paint(&self, seed: u64) {
        for page in 0..self.len / PAGE {
            self.word(page * PAGE)
                .store(seed + page as u64, Ordering::Relaxed);
            self.word(page * PAGE + PAGE - 8)
                .store(!seed, Ordering::Relaxed);
        }
    }

    /// Checks the first words that `paint` has written.
    pub fn check_pages(&self, seed: u64) {
        for page in 0..self.len / PAGE {
            let first = self.word(page * PAGE).load(Ordering::Relaxed);
            assert_eq!(first, seed + page as u64, "page {page}");
        }
    }

    /// Checks what `paint` has written.
    pub fn check(&self, seed: u64) {
        for page in 0..self.len / PAGE {
            let first = self.word(page * PAGE).load(Ordering::Relaxed);
            let last = self.word(page * PAGE + PAGE - 8).load(Ordering::Relaxed);
            assert_eq!((first, last), (seed + page as u64, !seed), "page {page}");
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the test's own mapping.
        unsafe { rustix::mm::munmap(at(self.addr), self.len).expect("munmap") };
    }
}

/// An address as a pointer.
pub fn at(addr: usize) -> *mut std::ffi::c_void {
    std::ptr::with_exposed_provenance_mut(addr)
}

/// Reads a word of a store by a system call, as a peer would see it.
pub fn peer_word(store: &Store, offset: usize) -> u64 {
    let mut word = [0; 8];
    let got = rustix::io::pread(store.as_fd(), &mut word, offset as u64).expect("pread");
    assert_eq!(got, 8);
    u64::from_ne_bytes(word)
}

/// The protection of a mapping as `/proc/self/maps` shows it.
pub fn protection(addr: usize) -> String {
    mapping(addr).1
}

/// The addresses and the protection of the mapping at an address.
pub fn mapping(addr: usize) -> (std::ops::Range<usize>, String) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let found = maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).expect("a number");
        let range = number(start)..number(end);
        let protection = rest.split(' ').next()?.to_owned();
        range.contains(&addr).then_some((range, protection))
    });
    found.expect("a mapping")
}

/// Until when pages may seem to be held though nobody holds them; reached only by a failing test.
/// Other work of the kernel refers to pages for a moment, and who is asked may answer late: in an
/// emulated machine on a busy host each one was, for more than a second. (A program
/// waits for 2 s, and is told EBUSY.)
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Moves a range that nobody holds.
pub fn moves(mover: &Mover, store: &Arc<Store>, addr: usize, len: usize) -> Moved {
    let begun = Instant::now();
    loop {
        match mover.move_in(store, addr, len) {
            Ok(moved) => return moved,
            Err(Unmovable::Pinned) if begun.elapsed() < PATIENCE => {}
            Err(why) => panic!("moves: {why}"),
        }
        std::thread::yield_now();
    }
}

/// Takes back what nobody holds.
pub fn returns(mover: &Mover, mut moved: Moved) {
    let begun = Instant::now();
    while let Err((left, why)) = mover.take_back(moved) {
        let may_pass = why == Unmovable::Pinned && begun.elapsed() < PATIENCE;
        assert!(may_pass, "returns: {why}");
        moved = left;
        std::thread::yield_now();
    }
}

/// Takes back the first of what somebody holds the rest of, and returns that.
pub fn returns_in_part(mover: &Mover, mut moved: Moved) -> Moved {
    let (begun, start) = (Instant::now(), moved.start());
    loop {
        let (left, why) = mover.take_back(moved).expect_err("held");
        assert_eq!(why, Unmovable::Pinned);
        if left.start() > start {
            return left;
        }
        assert!(begun.elapsed() < PATIENCE, "what nobody holds returns");
        moved = left;
        std::thread::yield_now();
    }
}

/// Takes back what is idle in a store, and held by nobody.
pub fn reclaims(mover: &Mover, store: &Store) {
    let begun = Instant::now();
    mover.reclaim(store);
    while occupied(store) != 0 {
        assert!(begun.elapsed() < PATIENCE, "what is idle returns");
        std::thread::yield_now();
        mover.reclaim(store);
    }
}

/// Tells threads to stop, also where the one that has it panics: they would be waited for, for
/// ever.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
