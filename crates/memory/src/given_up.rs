//! Pages that the program has given up, or only seems to.
//!
//! `MADV_DONTNEED` and `MADV_FREE` raise the same event, before they do anything. The former then
//! empties the page table's entries. The latter is refused with EINVAL, since the pages are a
//! file's, and the program goes on with its entries as they were: what it writes from then on must
//! stay, so its pages must not be punched.
//!
//! So pages are punched when their entries are empty; until then any access to them is an ordinary
//! one, afterwards it is trapped and waits for the monitor. Where entries do not become empty soon,
//! it was `MADV_FREE`, or the thread has lost its processor in between. The latter shows when an
//! access is trapped later, which empties the page then.

use crate::pieces::{Piece, Pieces};
use crate::span::{PAGE, Span};
use crate::sys;
use causeway_pins::{Entry, Pagemap};
use std::time::{Duration, Instant};

/// How long the monitor waits for entries to become empty. It takes some microseconds.
const PATIENCE: Duration = Duration::from_millis(1);
/// For how long a thread may lose its processor in the middle of `MADV_DONTNEED`. Entries that
/// become empty later do so for other reasons: the kernel reclaims memory.
const PREEMPTED: Duration = Duration::from_secs(1);
/// Ranges that are remembered for so long; of more, the first are taken for `MADV_FREE`'s.
const MAX_DOUBTS: usize = 64;
/// Pages that are looked at together.
const PART: usize = 256;

/// Ranges of which it is not known whether they were given up.
#[derive(Debug)]
pub(crate) struct Doubts {
    doubts: [Option<(Span, Instant)>; MAX_DOUBTS],
    next: usize,
}

impl Doubts {
    pub fn new() -> Doubts {
        Doubts {
            doubts: [None; MAX_DOUBTS],
            next: 0,
        }
    }

    /// Punches the pages in `span` that were given up, as soon as they are, and those of earlier
    /// ranges that have been meanwhile.
    pub fn give_up(&mut self, pagemap: &Pagemap, pieces: &Pieces, span: Span) {
        let now = Instant::now();
        // Each once, the oldest first: what stays in doubt is entered anew.
        let Doubts { doubts, next } = std::mem::replace(self, Doubts::new());
        for (span, since) in doubts[next..].iter().chain(&doubts[..next]).flatten() {
            if now - *since < PREEMPTED {
                self.look(pagemap, pieces, *span, (*since, now));
            }
        }
        self.look(pagemap, pieces, span, (now, now + PATIENCE));
    }

    fn look(&mut self, pagemap: &Pagemap, pieces: &Pieces, span: Span, times: (Instant, Instant)) {
        let (since, deadline) = times;
        for piece in pieces.within(span) {
            let mut start = piece.span.start;
            while start < piece.span.end {
                let end = (start + PART * PAGE).min(piece.span.end);
                let part = Span::new(start, end);
                if await_empty(pagemap, part, deadline) {
                    punch(&piece.clip(part));
                } else {
                    self.doubt(part, since);
                }
                start = end;
            }
        }
    }

    fn doubt(&mut self, span: Span, since: Instant) {
        let last = (self.next + MAX_DOUBTS - 1) % MAX_DOUBTS;
        match &mut self.doubts[last] {
            Some((before, at)) if before.end == span.start && *at == since => before.end = span.end,
            _ => {
                self.doubts[self.next] = Some((span, since));
                self.next = (self.next + 1) % MAX_DOUBTS;
            }
        }
    }

    /// Whether a page, at which a thread was trapped, has been given up after all.
    pub fn have(&self, page: usize) -> bool {
        self.doubts
            .iter()
            .flatten()
            .any(|(span, since)| span.contains(page) && since.elapsed() < PREEMPTED)
    }

    /// Forgets a range, where other memory is mapped from now on.
    pub fn forget(&mut self, gone: Span) {
        for at in 0..MAX_DOUBTS {
            let Some((span, since)) = self.doubts[at].filter(|(span, _)| span.meets(gone)) else {
                continue;
            };
            let before = Span::new(span.start, gone.start);
            let behind = Span::new(gone.end, span.end);
            let [first, second] = if before.is_empty() {
                [behind, before]
            } else {
                [before, behind]
            };
            self.doubts[at] = (!first.is_empty()).then_some((first, since));
            if !second.is_empty() {
                self.doubt(second, since);
            }
        }
    }
}

/// Waits until no page of a part has an entry. False if some have one at the deadline.
fn await_empty(pagemap: &Pagemap, part: Span, deadline: Instant) -> bool {
    let mut entries = [Entry::default(); PART];
    let entries = &mut entries[..part.len() / PAGE];
    loop {
        let read = pagemap.read(part.start, entries);
        if read.is_ok() && !entries.iter().any(|entry| entry.is_present()) {
            return true;
        }
        if read.is_err() || Instant::now() >= deadline {
            return false;
        }
        // The thread may be on this processor.
        std::thread::yield_now();
    }
}

/// Gives the pages of a piece back to the system: they read as zeros from now on.
pub(crate) fn punch(piece: &Piece) {
    // Fails only for lack of memory, or if the program has closed it; then the old contents stay.
    let _ = piece.fd.get().map(|fd| sys::punch(fd, piece.offsets()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(start: usize, end: usize) -> Span {
        Span::new(start * PAGE, end * PAGE)
    }

    #[test]
    fn what_is_mapped_anew_is_in_doubt_no_more() {
        let mut doubts = Doubts::new();
        doubts.doubt(pages(10, 20), Instant::now());
        doubts.forget(pages(13, 15));
        let left = |page: usize| doubts.have(page * PAGE);
        assert!(left(10) && left(12) && !left(13) && !left(14) && left(15) && left(19));
        assert!(!left(9) && !left(20));
        for (gone, page) in [(pages(0, 11), 10), (pages(19, 30), 19), (pages(0, 30), 12)] {
            assert!(doubts.have(page * PAGE));
            doubts.forget(gone);
            assert!(!doubts.have(page * PAGE));
        }
        assert!(doubts.doubts.iter().all(Option::is_none));
    }

    #[test]
    fn the_oldest_doubts_make_room() {
        let mut doubts = Doubts::new();
        let now = Instant::now();
        for at in 0..=MAX_DOUBTS {
            doubts.doubt(pages(2 * at, 2 * at + 1), now);
        }
        assert!(!doubts.have(0));
        assert!((1..=MAX_DOUBTS).all(|at| doubts.have(2 * at * PAGE)));
    }

    #[test]
    fn parts_of_one_range_are_one_doubt() {
        let mut doubts = Doubts::new();
        let now = Instant::now();
        for page in 0..2 * MAX_DOUBTS {
            doubts.doubt(pages(page, page + 1), now);
        }
        assert!((0..2 * MAX_DOUBTS).all(|page| doubts.have(page * PAGE)));
        assert_eq!(doubts.doubts.iter().flatten().count(), 1);
    }
}
