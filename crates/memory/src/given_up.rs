//! Pages that the program has given up, or only seems to.
//!
//! `MADV_DONTNEED` and `MADV_FREE` raise the same event, before they do anything. The former then
//! empties the page table's entries. The latter is refused with EINVAL, since the pages are a
//! file's, and the program goes on with its entries as they were: what it writes from then on must
//! stay, so its pages must not be punched.
//!
//! So pages are punched when their entries are empty; until then any access to them is an ordinary
//! one, afterwards it is trapped and waits for the monitor. Where entries do not become empty soon,
//! it was `MADV_FREE`, or the thread has lost its processor in between. So the monitor looks at
//! them again for a while, less and less often. An access that is trapped before it has looked
//! shows that the page was given up, and empties it.

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
/// The longest time until the monitor looks again. The first is `PATIENCE`, and each is twice the
/// one before.
const LONGEST_PAUSE: Duration = Duration::from_millis(128);

/// Ranges of which it is not known whether they were given up.
#[derive(Debug)]
pub(crate) struct Doubts {
    doubts: [Option<(Span, Instant)>; MAX_DOUBTS],
    next: usize,
    /// When to look again, and the time from then to the look after that.
    again: (Instant, Duration),
}

impl Doubts {
    pub fn new() -> Doubts {
        Doubts {
            doubts: [None; MAX_DOUBTS],
            next: 0,
            again: (Instant::now(), PATIENCE),
        }
    }

    /// Punches the pages in `span` that were given up, as soon as they are, and those of earlier
    /// ranges that have been meanwhile.
    pub fn give_up(&mut self, pagemap: &Pagemap, pieces: &Pieces, span: Span) {
        self.look_at_all(pagemap, pieces);
        let now = Instant::now();
        self.look(pagemap, pieces, span, (now, now + PATIENCE));
        self.again = (Instant::now() + PATIENCE, 2 * PATIENCE);
    }

    /// How long until ranges are to be looked at again; `None` where there are none.
    pub fn pause(&self) -> Option<Duration> {
        let (due, _) = self.again;
        let some = self.doubts.iter().any(Option::is_some);
        some.then(|| due.saturating_duration_since(Instant::now()))
    }

    /// Punches the pages that were given up meanwhile, if it is time to look.
    pub fn look_if_due(&mut self, pagemap: &Pagemap, pieces: &Pieces) {
        if self.pause() != Some(Duration::ZERO) {
            return;
        }
        self.look_at_all(pagemap, pieces);
        let (_, pause) = self.again;
        self.again = (Instant::now() + pause, (2 * pause).min(LONGEST_PAUSE));
    }

    fn look_at_all(&mut self, pagemap: &Pagemap, pieces: &Pieces) {
        let now = Instant::now();
        // Each once, the oldest first: what stays in doubt is entered anew.
        let doubts = std::mem::replace(&mut self.doubts, [None; MAX_DOUBTS]);
        let next = std::mem::take(&mut self.next);
        for (span, since) in doubts[next..].iter().chain(&doubts[..next]).flatten() {
            if now - *since < PREEMPTED {
                self.look(pagemap, pieces, *span, (*since, now));
            }
        }
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
        self.meet(Span::new(page, page + PAGE))
    }

    /// Whether a page of a range may have been given up, and may yet be punched.
    pub fn meet(&self, range: Span) -> bool {
        self.doubts
            .iter()
            .flatten()
            .any(|(span, since)| span.meets(range) && since.elapsed() < PREEMPTED)
    }

    /// Forgets a range, where other memory is mapped from now on, or which was empty and has been
    /// filled since.
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
        // One that leads to a page on its way to other memory counts: that page was not given up.
        if read.is_ok() && !entries.iter().any(|entry| entry.exists()) {
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
    use crate::store::Store;
    use crate::sys::at;
    use rustix::fs::MemfdFlags;
    use rustix::mm::{Advice, MapFlags, ProtFlags};
    use std::os::fd::AsFd;

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

    /// Painted pages of a store, mapped; the store, and where they are.
    fn painted(count: usize) -> (Store, Span) {
        let fd = rustix::fs::memfd_create("store", MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&fd, (count * PAGE) as u64).expect("its size");
        rustix::io::pwrite(&fd, &vec![1; count * PAGE], 0).expect("its pages");
        let (len, rw) = (count * PAGE, ProtFlags::READ | ProtFlags::WRITE);
        let shared = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: at an address of the kernel's choice.
        let addr = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, rw, shared, &fd, 0) };
        let start = addr.expect("mmap").addr();
        (Store::new(fd, 1), Span::new(start, start + len))
    }

    /// The pieces that are mapped: one.
    fn listed(store: &Store, span: Span) -> Pieces {
        let mut pieces = Pieces::new();
        pieces.insert(Piece {
            span,
            offset: 0,
            store: store.id(),
            fd: store.handle().number(),
            idle: false,
        });
        pieces
    }

    #[test]
    fn what_is_emptied_late_is_punched_then() {
        const PAGES: usize = 3;
        let ((store, span), pagemap) = (painted(PAGES), Pagemap::open().expect("pagemap"));
        let (pieces, mut doubts) = (listed(&store, span), Doubts::new());
        let byte = |page: usize| {
            let mut byte = [9];
            rustix::io::pread(store.as_fd(), &mut byte, (page * PAGE) as u64).expect("pread");
            byte[0]
        };

        // As if the thread that gives them up had lost its processor.
        doubts.give_up(&pagemap, &pieces, span);
        assert!(doubts.meet(span) && doubts.pause().is_some());
        doubts.look_if_due(&pagemap, &pieces);
        assert_eq!([0, 1, 2].map(byte), [1; 3], "before they are empty");

        // SAFETY: the test's own pages.
        let given_up =
            unsafe { rustix::mm::madvise(at(span.start), span.len(), Advice::LinuxDontNeed) };
        given_up.expect("madvise");
        while let Some(pause) = doubts.pause() {
            std::thread::sleep(pause);
            doubts.look_if_due(&pagemap, &pieces);
        }
        assert_eq!([0, 1, 2].map(byte), [0; 3], "once they are empty");
    }

    #[test]
    fn what_is_filled_again_leaves_the_rest_in_doubt() {
        let ((store, span), pagemap) = (painted(3), Pagemap::open().expect("pagemap"));
        let (pieces, mut doubts) = (listed(&store, span), Doubts::new());
        doubts.give_up(&pagemap, &pieces, span);
        doubts.forget(Span::new(span.start + PAGE, span.start + 2 * PAGE));
        let left = |page: usize| doubts.have(span.start + page * PAGE);
        assert_eq!([0, 1, 2].map(left), [true, false, true]);
    }
}
