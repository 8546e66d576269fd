//! Stores that wait to be posted together.

use std::ops::Range;

use crate::backing::Backing;
use crate::clock;
use crate::limits::{CHUNK, GATHERED, PAGE, RUNS, WIDEST};
use crate::pages::{Gathering, Pages};

/// Runs of stored bytes, by ascending address and as they were stored.
pub(crate) struct Gathered {
    /// The bytes from `base` on, as far as they lie in runs.
    bytes: Vec<u8>,
    base: usize,
    runs: [Range<usize>; RUNS],
    count: usize,
    /// Whether the last run may be joined by the store behind it.
    joins: bool,
    /// Something was posted since the time was looked at.
    posted: bool,
}

impl Gathered {
    pub(super) fn new() -> Gathered {
        Gathered {
            bytes: vec![0; CHUNK + WIDEST],
            base: 0,
            runs: [const { 0..0 }; RUNS],
            count: 0,
            joins: false,
            posted: false,
        }
    }

    /// Adds a word of `len` bytes that goes on from the last store in its page, if there are some
    /// that wait.
    #[inline]
    pub(super) fn append(&mut self, at: usize, word: u64, len: usize) -> bool {
        if !self.joins() {
            return false;
        }
        let run = &mut self.runs[self.count - 1];
        let end = self.base + run.end;
        let goes_on = at == end && !end.is_multiple_of(PAGE) && end % PAGE + len <= PAGE;
        if !goes_on || run.end >= GATHERED {
            return false;
        }
        // More bytes than there are, perhaps: those behind are overwritten, or not used.
        self.bytes[run.end..run.end + 8].copy_from_slice(&word.to_le_bytes());
        run.end += len;
        true
    }

    /// A store, which waits to be posted: as a WRITE of its own where stores are few, otherwise in
    /// one with those before it.
    pub(super) fn store(&mut self, pages: &mut Pages, backing: &Backing, at: usize, bytes: &[u8]) {
        match pages.count_gathered(at, bytes.len()) {
            Gathering::Joined => self.add(backing, at, bytes, true),
            Gathering::Alone => self.add(backing, at, bytes, false),
            Gathering::Not => {
                self.post(backing);
                pages.store(backing, at, bytes);
                self.posted = true;
            }
        }
    }

    fn end(&self) -> usize {
        self.count
            .checked_sub(1)
            .map_or(0, |last| self.runs[last].end)
    }

    fn add(&mut self, backing: &Backing, at: usize, bytes: &[u8], joins: bool) {
        let end = self.end();
        let from = at.wrapping_sub(self.base);
        let mut goes_on = joins && self.count > 0 && from == end;
        let fits = end < GATHERED && from >= end && from <= CHUNK - bytes.len();
        if !fits || self.count == RUNS && !goes_on {
            self.post(backing);
            goes_on = false;
        }
        if self.count == 0 {
            self.base = at;
        }
        let from = at - self.base;
        let to = from + bytes.len();
        self.bytes[from..to].copy_from_slice(bytes);
        if goes_on {
            self.runs[self.count - 1].end = to;
        } else {
            self.runs[self.count] = from..to;
            self.count += 1;
        }
        self.joins = joins;
    }

    /// Adds `len` bytes of a dense page that `fill` writes; None if it could not. It gets
    /// [`WIDEST`] bytes more, which nobody uses.
    pub(super) fn extend(
        &mut self,
        backing: &Backing,
        at: usize,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Option<&[u8]> {
        let end = self
            .count
            .checked_sub(1)
            .map_or(0, |last| self.runs[last].end);
        let goes_on = self.count > 0 && at == self.base + end && end < GATHERED;
        if !goes_on {
            self.post(backing);
            self.base = at;
        }
        let from = if goes_on { end } else { 0 };
        if !fill(&mut self.bytes[from..from + len + WIDEST]) {
            return None;
        }
        if goes_on {
            self.runs[self.count - 1].end = from + len;
        } else {
            self.runs[0] = 0..len;
            (self.count, self.joins) = (1, true);
        }
        Some(&self.bytes[from..from + len])
    }

    /// Whether something waits that may be joined by stores behind it.
    #[inline]
    pub(super) fn joins(&self) -> bool {
        self.count > 0 && self.joins
    }

    /// Posts what waits.
    pub(super) fn post(&mut self, backing: &Backing) {
        if self.count > 0 {
            let runs = &self.runs[..self.count];
            let end = runs[self.count - 1].end;
            backing.send_runs(self.base, &self.bytes[..end], runs);
            self.count = 0;
            self.posted = true;
        }
    }

    /// Whether it is later than `until`, by `clock`. Only what is posted takes long.
    #[inline]
    pub(super) fn takes_long(&mut self, until: u64) -> bool {
        std::mem::take(&mut self.posted) && clock::now() > until
    }
}
