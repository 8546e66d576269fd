//! The receiver's side of one sequence space: which numbers have arrived, and which wait for those
//! before them.

use std::collections::BTreeMap;

use causeway_wire::trp::{MAX_RANGES, Range};

use crate::ulp::SegMeta;

/// A request segment that arrived before its turn.
#[derive(Debug)]
pub struct Held {
    /// What it is.
    pub meta: SegMeta,
    /// The DDP segment.
    pub segment: Box<[u8]>,
}

/// Where a number stands relative to what has been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The next one expected.
    InOrder,
    /// Ahead of its turn, not seen before.
    Early,
    /// Seen before.
    Duplicate,
    /// Further ahead than was advertised.
    Beyond,
}

/// Receiver's side of one sequence space.
#[derive(Debug)]
pub struct ReceiveSpace {
    /// All numbers before it are placed.
    next: u64,
    /// One past the newest number received.
    end: u64,
    /// Bit `seq % window`, for `next .. end`: received (placed early, or held).
    have: Box<[u64]>,
    held: BTreeMap<u64, Held>,
    held_bytes: usize,
    max_held_bytes: usize,
    /// Arrived last out of order: reported first (RFC 2018 section 4).
    latest: u64,
}

impl ReceiveSpace {
    /// A space that begins with `first` and takes `window` segments (rounded up to 64) ahead,
    /// holding at most `max_held_bytes` of them.
    #[must_use]
    pub fn new(first: u64, window: u16, max_held_bytes: usize) -> Self {
        let words = usize::from(window).div_ceil(64).max(1);
        ReceiveSpace {
            next: first,
            end: first,
            have: vec![0; words].into_boxed_slice(),
            held: BTreeMap::new(),
            held_bytes: 0,
            max_held_bytes,
            latest: first,
        }
    }

    /// The next number expected.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Numbers taken ahead of `next`.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.have.len() as u64 * 64
    }

    /// Whether something has arrived out of order.
    #[must_use]
    pub fn has_holes(&self) -> bool {
        self.end > self.next
    }

    fn slot(&self, seq: u64) -> (usize, u64) {
        let bit = seq % self.window();
        // The remainder is less than 64 times a slice's length.
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    fn has(&self, seq: u64) -> bool {
        let (word, mask) = self.slot(seq);
        (self.next..self.end).contains(&seq) && self.have[word] & mask != 0
    }

    /// Classifies a number.
    #[must_use]
    pub fn classify(&self, seq: u64) -> Arrival {
        if seq == self.next && !self.has(seq) {
            Arrival::InOrder
        } else if seq < self.next || self.has(seq) {
            Arrival::Duplicate
        } else if seq - self.next >= self.window() {
            Arrival::Beyond
        } else {
            Arrival::Early
        }
    }

    /// Records that `seq`, which is `Early` or `InOrder`, needs not be sent again.
    pub fn mark(&mut self, seq: u64) {
        debug_assert!(seq >= self.next && seq - self.next < self.window());
        let (word, mask) = self.slot(seq);
        self.have[word] |= mask;
        self.end = self.end.max(seq + 1);
        self.latest = seq;
    }

    /// Keeps an early segment for its turn. Returns whether there was room.
    pub fn hold(&mut self, meta: SegMeta, segment: &[u8]) -> bool {
        if self.held_bytes + segment.len() > self.max_held_bytes {
            return false;
        }
        self.held_bytes += segment.len();
        self.held.insert(
            meta.seq,
            Held {
                meta,
                segment: segment.into(),
            },
        );
        self.mark(meta.seq);
        true
    }

    /// Moves past `next`, which has been placed.
    pub fn advance(&mut self) {
        let (word, mask) = self.slot(self.next);
        self.have[word] &= !mask;
        self.next += 1;
        self.end = self.end.max(self.next);
    }

    /// Moves past `next` and what follows, `count` numbers that have been placed, where nothing has
    /// arrived out of order: the shortest way.
    #[inline]
    pub fn advance_alone(&mut self, count: u64) {
        debug_assert!(!self.has_holes());
        self.next += count;
        self.end = self.next;
    }

    /// Takes out the held segment whose turn it is. `None`: `next` has not arrived. Segments that
    /// were placed early are passed over.
    pub fn take_next(&mut self) -> Option<Held> {
        while self.has(self.next) {
            if let Some(held) = self.held.remove(&self.next) {
                self.held_bytes -= held.segment.len();
                return Some(held);
            }
            self.advance();
        }
        None
    }

    /// Drops held segments: the receiver was not ready for an earlier one, and all will be sent
    /// again. What was placed early stays marked, and is not placed a second time.
    pub fn drop_held(&mut self) {
        while let Some((seq, _)) = self.held.pop_first() {
            let (word, mask) = self.slot(seq);
            self.have[word] &= !mask;
        }
        self.held_bytes = 0;
        // The number in whose stead all this happens may itself have been taken out of `held`.
        let (word, mask) = self.slot(self.next);
        self.have[word] &= !mask;
        while self.end > self.next && !self.has(self.end - 1) {
            self.end -= 1;
        }
    }

    /// The ranges received out of order: first the one with the latest arrival, then from the
    /// lowest up. Returns how many of `out` were filled.
    pub fn ranges(&self, out: &mut [Range; MAX_RANGES]) -> usize {
        let mut n = 0;
        if let Some(range) = self.range_around(self.latest) {
            out[n] = truncate(&range);
            n += 1;
        }
        let mut seq = self.next;
        while n < MAX_RANGES {
            let Some(start) = self.find(seq, true) else {
                break;
            };
            let end = self.find(start, false).unwrap_or(self.end);
            seq = end;
            if !(start..end).contains(&self.latest) {
                out[n] = truncate(&(start..end));
                n += 1;
            }
        }
        n
    }

    /// Whether the accounts agree with what they count, and the limits are kept.
    ///
    /// # Panics
    /// If not.
    #[cfg(test)]
    pub fn check(&self, segments: usize, bytes: usize) {
        assert!(self.next <= self.end && self.end - self.next <= segments as u64);
        assert!(self.held.len() <= segments && self.held_bytes <= bytes);
        assert_eq!(
            self.held_bytes,
            self.held.values().map(|h| h.segment.len()).sum::<usize>()
        );
        assert!(
            self.held.keys().all(|seq| self.has(*seq)),
            "held but not marked"
        );
        let marked: u32 = self.have.iter().map(|w| w.count_ones()).sum();
        let inside = (self.next..self.end).filter(|seq| self.has(*seq)).count();
        assert_eq!(marked as usize, inside, "a mark outside the window");
        assert!(self.end == self.next || self.has(self.end - 1));
    }

    fn range_around(&self, seq: u64) -> Option<core::ops::Range<u64>> {
        if !self.has(seq) {
            return None;
        }
        let mut start = seq;
        while start > self.next && self.has(start - 1) {
            start -= 1;
        }
        Some(start..self.find(seq, false).unwrap_or(self.end))
    }

    /// The first number from `seq` on, before `end`, that has (or has not) been received.
    fn find(&self, mut seq: u64, received: bool) -> Option<u64> {
        while seq < self.end {
            let (word, _) = self.slot(seq);
            let bits = if received {
                self.have[word]
            } else {
                !self.have[word]
            };
            let ahead = (bits >> (seq % 64)).trailing_zeros();
            if ahead < 64 - (seq % 64) as u32 {
                let found = seq + u64::from(ahead);
                return (found < self.end).then_some(found);
            }
            seq += 64 - seq % 64;
        }
        None
    }
}

/// The wire's numbers are the low halves of ours.
fn truncate(range: &core::ops::Range<u64>) -> Range {
    Range {
        start: range.start as u32,
        end: range.end as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(seq: u64) -> SegMeta {
        SegMeta {
            seq,
            first: seq,
            last: true,
            direct: false,
        }
    }

    fn ranges(r: &ReceiveSpace) -> Vec<(u32, u32)> {
        let mut out = [Range::default(); MAX_RANGES];
        let n = r.ranges(&mut out);
        out[..n].iter().map(|r| (r.start, r.end)).collect()
    }

    #[test]
    fn classifies_against_the_window() {
        let mut r = ReceiveSpace::new(10, 64, 1000);
        assert_eq!(r.classify(9), Arrival::Duplicate);
        assert_eq!(r.classify(10), Arrival::InOrder);
        assert_eq!(r.classify(11), Arrival::Early);
        assert_eq!(r.classify(73), Arrival::Early);
        assert_eq!(r.classify(74), Arrival::Beyond);
        r.mark(11);
        assert_eq!(r.classify(11), Arrival::Duplicate);
        r.advance();
        assert!(r.take_next().is_none());
        assert_eq!(r.next(), 12);
        assert!(!r.has_holes());
        assert_eq!(r.classify(75), Arrival::Early);
    }

    #[test]
    fn held_segments_come_out_in_order_and_within_bounds() {
        let mut r = ReceiveSpace::new(0, 64, 10);
        assert!(r.hold(meta(2), b"two!"));
        assert!(r.hold(meta(1), b"one!"));
        assert!(!r.hold(meta(3), b"three"), "over the limit");
        assert_eq!(r.classify(3), Arrival::Early);
        r.advance();
        for seq in 1..3 {
            assert_eq!(r.take_next().unwrap().meta, meta(seq));
            r.advance();
        }
        assert!(r.take_next().is_none() && !r.has_holes());
        assert!(r.hold(meta(4), b"0123456789"));
    }

    #[test]
    fn dropping_keeps_what_was_placed() {
        let mut r = ReceiveSpace::new(0, 64, 100);
        r.mark(5);
        r.hold(meta(3), b"x");
        r.hold(meta(9), b"x");
        r.drop_held();
        assert_eq!(ranges(&r), [(5, 6)]);
        assert_eq!(r.classify(3), Arrival::Early);
        assert_eq!(r.classify(5), Arrival::Duplicate);
    }

    #[test]
    fn ranges_begin_with_the_latest_and_cross_the_ring() {
        let mut r = ReceiveSpace::new(u64::from(u32::MAX) - 1, 128, 0);
        let base = r.next();
        for seq in [4, 1, 2, 70, 71, 3] {
            r.mark(base + seq);
        }
        // base is 2^32 - 2: numbers from base + 2 on have wrapped on the wire.
        assert_eq!(ranges(&r), [(u32::MAX, 3), (68, 70)]);
        r.mark(base + 100);
        assert_eq!(ranges(&r), [(98, 99), (u32::MAX, 3), (68, 70)]);
    }

    #[test]
    fn the_ring_is_reused_for_ever() {
        let mut r = ReceiveSpace::new(7, 1, 0);
        assert_eq!(r.window(), 64);
        for seq in (7..5000).step_by(2) {
            r.mark(seq + 1);
            assert_eq!(ranges(&r).len(), 1);
            assert_eq!(r.classify(seq), Arrival::InOrder);
            r.advance();
            assert!(r.take_next().is_none());
            assert_eq!(r.next(), seq + 2);
        }
    }
}
