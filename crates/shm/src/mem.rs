//! Access to shared memory: the only code that turns offsets into addresses.

use crate::layout::CELL;
use crate::segment::Segment;
use crate::sync::{Arc, AtomicU64};

/// Words of a cell.
const CELL_WORDS: usize = CELL / 8;

/// A segment, seen as words and bytes at offsets. Clones share the mapping.
///
/// Every access checks its bounds, whatever its caller has validated: an offset that goes wrong is
/// a defect here, and must not become one in somebody's memory.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    segment: Arc<Segment>,
    /// The segment's address and length (in whole words) again: the check is on the path of every
    /// message.
    #[cfg(not(any(loom, shuttle)))]
    base: *mut u8,
    #[cfg(not(any(loom, shuttle)))]
    len: usize,
}

// SAFETY: as for the segment, of which `base` is but the address.
#[cfg(not(any(loom, shuttle)))]
unsafe impl Send for Region {}
// SAFETY: as above.
#[cfg(not(any(loom, shuttle)))]
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn new(segment: Arc<Segment>) -> Region {
        Region {
            #[cfg(not(any(loom, shuttle)))]
            base: segment.as_ptr(),
            #[cfg(not(any(loom, shuttle)))]
            len: segment.len() & !7,
            segment,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.segment.len()
    }
}

#[cfg(not(any(loom, shuttle)))]
impl Region {
    /// The word at `at`, which others may be writing.
    ///
    /// # Panics
    /// If it is not inside the segment, or not aligned.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < self.len);
        // SAFETY: in bounds and aligned (segments start on a page) for as long as `self` holds the
        // segment; an atomic may be shared with other threads and processes.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    /// The address of `len` bytes at `at`, to be accessed by raw copies only.
    ///
    /// # Panics
    /// If they are not inside the segment.
    #[inline]
    pub(crate) fn bytes(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at);
        self.base.wrapping_add(at)
    }

    /// The segment.
    pub(crate) fn segment(&self) -> Arc<Segment> {
        Arc::clone(&self.segment)
    }

    /// Copies `src` to `at`.
    #[inline]
    pub(crate) fn copy_in(&self, at: usize, src: &[u8]) {
        let dst = self.bytes(at, src.len());
        // SAFETY: `dst` is valid for the length, and no reference covers shared memory.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), dst, src.len()) };
    }

    /// Copies from `at`.
    pub(crate) fn copy_out(&self, at: usize, dst: &mut [u8]) {
        let src = self.bytes(at, dst.len());
        // SAFETY: `src` is valid for the length, and no reference covers shared memory.
        unsafe { std::ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), dst.len()) };
    }
}

/// The words of one cell of a ring.
#[cfg(not(any(loom, shuttle)))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'a>(&'a [AtomicU64; CELL_WORDS]);

#[cfg(not(any(loom, shuttle)))]
impl<'a> Cell<'a> {
    /// The word at an offset in the cell.
    #[inline(always)]
    pub(crate) fn word(self, at: usize) -> &'a AtomicU64 {
        &self.0[at / 8]
    }

    /// The address of the bytes from an offset in the cell on, to be accessed by raw copies only.
    #[inline(always)]
    pub(crate) fn bytes(self, at: usize) -> *const u8 {
        std::ptr::from_ref(self.0).cast::<u8>().wrapping_add(at)
    }
}

/// A circle of cells in a region, whose bounds are checked once: every position leads to one.
#[derive(Clone, Debug)]
pub(crate) struct Circle {
    mem: Region,
    /// Offset of the first cell.
    at: usize,
    /// What of a position leads around the circle, to the beginning of a cell.
    mask: u64,
    #[cfg(not(any(loom, shuttle)))]
    first: *const u8,
}

// SAFETY: as for the region, to one of whose cells `first` leads.
#[cfg(not(any(loom, shuttle)))]
unsafe impl Send for Circle {}
// SAFETY: as above.
#[cfg(not(any(loom, shuttle)))]
unsafe impl Sync for Circle {}

impl Circle {
    /// The cells in the `capacity` bytes, a power of two, from `at` on.
    ///
    /// # Panics
    /// If they are not inside the segment, or not aligned.
    pub(crate) fn new(mem: Region, at: usize, capacity: usize) -> Circle {
        assert!(capacity.is_power_of_two() && capacity >= CELL && at.is_multiple_of(CELL));
        assert!(at <= mem.len() && capacity <= mem.len() - at);
        Circle {
            #[cfg(not(any(loom, shuttle)))]
            first: mem.base.wrapping_add(at),
            mem,
            at,
            mask: (capacity - CELL) as u64,
        }
    }

    /// Offset in the region of the cell that a position lies in.
    #[inline(always)]
    pub(crate) fn offset(&self, position: u64) -> usize {
        self.at + (position & self.mask) as usize
    }

    /// That cell, which others may be writing.
    #[inline(always)]
    pub(crate) fn cell(&self, position: u64) -> Cell<'_> {
        #[cfg(not(any(loom, shuttle)))]
        {
            let step = (position & self.mask) as usize;
            // SAFETY: `step` is at the beginning of a cell of the circle, which is inside the
            // segment and aligned; `mem` holds that as long as `self` is borrowed; atomics may be
            // shared with other threads and processes.
            Cell(unsafe { &*self.first.add(step).cast() })
        }
        #[cfg(any(loom, shuttle))]
        {
            self.mem.cell(self.offset(position))
        }
    }

    /// The region.
    #[inline(always)]
    pub(crate) fn mem(&self) -> &Region {
        &self.mem
    }
}

/// A circle of cells, and the one of them that is looked at next.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    circle: Circle,
    #[cfg(not(any(loom, shuttle)))]
    cell: *const [AtomicU64; CELL_WORDS],
    #[cfg(any(loom, shuttle))]
    position: u64,
}

// SAFETY: as for the circle, to one of whose cells `cell` leads.
#[cfg(not(any(loom, shuttle)))]
unsafe impl Send for Cursor {}
// SAFETY: as above.
#[cfg(not(any(loom, shuttle)))]
unsafe impl Sync for Cursor {}

impl Cursor {
    /// At the first cell.
    pub(crate) fn new(circle: Circle) -> Cursor {
        Cursor {
            #[cfg(not(any(loom, shuttle)))]
            cell: circle.cell(0).0,
            #[cfg(any(loom, shuttle))]
            position: 0,
            circle,
        }
    }

    /// Goes to the cell that a position lies in.
    #[inline(always)]
    pub(crate) fn go_to(&mut self, position: u64) {
        #[cfg(not(any(loom, shuttle)))]
        {
            self.cell = self.circle.cell(position).0;
        }
        #[cfg(any(loom, shuttle))]
        {
            self.position = position;
        }
    }

    /// The cell, which others may be writing.
    #[inline(always)]
    pub(crate) fn cell(&self) -> Cell<'_> {
        #[cfg(not(any(loom, shuttle)))]
        {
            // SAFETY: a cell of the circle, which holds the segment as long as `self` is borrowed;
            // atomics may be shared with other threads and processes.
            Cell(unsafe { &*self.cell })
        }
        #[cfg(any(loom, shuttle))]
        {
            self.circle.cell(self.position)
        }
    }

    /// As [`Circle::offset`].
    #[inline(always)]
    pub(crate) fn offset(&self, position: u64) -> usize {
        self.circle.offset(position)
    }

    /// The region.
    #[inline(always)]
    pub(crate) fn mem(&self) -> &Region {
        self.circle.mem()
    }
}

/// `N` words, their bounds checked once.
#[cfg(not(any(loom, shuttle)))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'a, const N: usize>(&'a [AtomicU64; N]);

#[cfg(not(any(loom, shuttle)))]
impl Region {
    /// The words from `at` on, which others may be writing.
    ///
    /// # Panics
    /// If they are not inside the segment, or not aligned.
    #[inline]
    pub(crate) fn words<const N: usize>(&self, at: usize) -> Words<'_, N> {
        assert!(at.is_multiple_of(8) && at < self.len && self.len - at >= 8 * N);
        // SAFETY: in bounds and aligned, for as long as `self` holds the segment; atomics may be
        // shared with other threads and processes.
        Words(unsafe { &*self.base.add(at).cast() })
    }
}

#[cfg(not(any(loom, shuttle)))]
impl<'a, const N: usize> Words<'a, N> {
    /// One of them.
    #[inline]
    pub(crate) fn get(self, index: usize) -> &'a AtomicU64 {
        &self.0[index]
    }
}

/// `N` words of a region that lie in a row, located once: their bounds are checked then.
#[derive(Clone, Debug)]
pub(crate) struct Table<const N: usize> {
    #[cfg_attr(
        not(any(loom, shuttle)),
        allow(dead_code, reason = "keeps them mapped")
    )]
    mem: Region,
    #[cfg(not(any(loom, shuttle)))]
    words: *const [AtomicU64; N],
    #[cfg(any(loom, shuttle))]
    at: usize,
}

// SAFETY: as for the region, to some of whose words `words` leads.
#[cfg(not(any(loom, shuttle)))]
unsafe impl<const N: usize> Send for Table<N> {}
// SAFETY: as above.
#[cfg(not(any(loom, shuttle)))]
unsafe impl<const N: usize> Sync for Table<N> {}

impl<const N: usize> Table<N> {
    /// The words from `at` on.
    ///
    /// # Panics
    /// If they are not inside the segment, or not aligned.
    pub(crate) fn new(mem: &Region, at: usize) -> Self {
        Table {
            #[cfg(not(any(loom, shuttle)))]
            words: mem.words::<N>(at).0,
            #[cfg(any(loom, shuttle))]
            at,
            mem: mem.clone(),
        }
    }

    /// One of them, which others may be writing.
    #[inline(always)]
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        #[cfg(not(any(loom, shuttle)))]
        {
            // SAFETY: words of `mem`, which holds the segment as long as `self` is borrowed;
            // atomics may be shared with other threads and processes.
            unsafe { &(*self.words)[index] }
        }
        #[cfg(any(loom, shuttle))]
        {
            self.mem.words::<N>(self.at).get(index)
        }
    }
}

/// `N` words of a region, each located once: their bounds are checked then.
#[derive(Clone, Debug)]
pub(crate) struct Spots<const N: usize> {
    words: [*const AtomicU64; N],
    /// Keeps them mapped.
    _mem: Region,
}

// SAFETY: the pointers lead to atomics in the segment that it owns a share of.
unsafe impl<const N: usize> Send for Spots<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for Spots<N> {}

impl<const N: usize> Spots<N> {
    /// The words at these offsets.
    ///
    /// # Panics
    /// If one is not inside the segment, or not aligned.
    pub(crate) fn new(mem: &Region, at: [usize; N]) -> Self {
        Spots {
            words: at.map(|at| std::ptr::from_ref(mem.word(at))),
            _mem: mem.clone(),
        }
    }

    /// One of them, which others may be writing.
    #[inline(always)]
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: a word of the segment, which is mapped as long as `_mem` holds it; an atomic may
        // be shared with other threads and processes.
        unsafe { &*self.words[index] }
    }
}

/// The same for a model checker.
#[cfg(any(loom, shuttle))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'a, const N: usize>(&'a Region, usize);

#[cfg(any(loom, shuttle))]
impl Region {
    pub(crate) fn words<const N: usize>(&self, at: usize) -> Words<'_, N> {
        assert!(at.is_multiple_of(8) && self.len() - at >= 8 * N);
        Words(self, at)
    }
}

#[cfg(any(loom, shuttle))]
impl<'a, const N: usize> Words<'a, N> {
    pub(crate) fn get(self, index: usize) -> &'a AtomicU64 {
        assert!(index < N);
        self.0.word(self.1 + 8 * index)
    }
}

/// The same for a model checker.
#[cfg(any(loom, shuttle))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'a>(&'a Region, usize);

#[cfg(any(loom, shuttle))]
impl<'a> Cell<'a> {
    pub(crate) fn word(self, at: usize) -> &'a AtomicU64 {
        assert!(at / 8 < CELL_WORDS);
        self.0.word(self.1 + at)
    }
}

#[cfg(any(loom, shuttle))]
impl Region {
    pub(crate) fn cell(&self, at: usize) -> Cell<'_> {
        assert!(at.is_multiple_of(CELL) && self.len() - at >= CELL);
        Cell(self, at)
    }

    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < self.len());
        self.segment.word(at)
    }

    /// Copies whole words, relaxed, so that the model finds a body read before it was published.
    pub(crate) fn copy_in(&self, at: usize, src: &[u8]) {
        for (i, chunk) in src.chunks(8).enumerate() {
            let mut b = [0; 8];
            b[..chunk.len()].copy_from_slice(chunk);
            self.word(at + 8 * i)
                .store(u64::from_le_bytes(b), crate::sync::Ordering::Relaxed);
        }
    }

    pub(crate) fn copy_out(&self, at: usize, dst: &mut [u8]) {
        for (i, chunk) in dst.chunks_mut(8).enumerate() {
            let w = self
                .word(at + 8 * i)
                .load(crate::sync::Ordering::Relaxed)
                .to_le_bytes();
            chunk.copy_from_slice(&w[..chunk.len()]);
        }
    }
}
