//! Ranges of addresses or file offsets, in bytes, on page boundaries.

pub use causeway_identity::PAGE;

/// What is moved in one go: the most that a writer to the memory waits for. A multiple of the size
/// of a huge page, so that page tables move whole.
pub const CHUNK: usize = 2 << 20;

/// A half-open range; empty if `start >= end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Span {
    pub start: usize,
    pub end: usize,
}

impl Span {
    pub fn new(start: usize, end: usize) -> Span {
        Span { start, end }
    }

    /// The pages wholly inside `len` bytes at `addr`, if there are any.
    pub fn inside(addr: usize, len: usize) -> Option<Span> {
        let start = addr.checked_next_multiple_of(PAGE)?;
        let end = addr.checked_add(len)? & !(PAGE - 1);
        (start < end).then_some(Span { start, end })
    }

    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    pub fn contains(self, addr: usize) -> bool {
        self.start <= addr && addr < self.end
    }

    pub fn meets(self, other: Span) -> bool {
        !self.and(other).is_empty()
    }

    pub fn and(self, other: Span) -> Span {
        Span {
            start: self.start.max(other.start),
            end: self.end.min(other.end),
        }
    }

    /// The same length elsewhere.
    pub fn at(self, start: usize) -> Span {
        Span {
            start,
            end: start + self.len(),
        }
    }

    /// Cut at multiples of [`CHUNK`].
    pub fn chunks(self) -> impl Iterator<Item = Span> {
        self.cut_at(CHUNK)
    }

    /// Cut at multiples of a size.
    pub fn cut_at(self, size: usize) -> impl Iterator<Item = Span> {
        let mut start = self.start;
        std::iter::from_fn(move || {
            (start < self.end).then(|| {
                let end = (start + 1).next_multiple_of(size).min(self.end);
                let chunk = Span { start, end };
                start = end;
                chunk
            })
        })
    }
}
