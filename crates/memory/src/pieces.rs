//! Where in the address space pages of stores are, as far as events tell. Pure bookkeeping in a
//! fixed amount of memory: it runs where nothing may be allocated.

use crate::number::Number;
use crate::span::Span;

/// Most mappings of stores' pages in a process (`vm.max_map_count` is 65530 for all of them, and
/// each may cost two).
pub const MAX_PIECES: usize = 4096;
/// Room for pieces that the program itself cuts in two.
const SPARE_PIECES: usize = MAX_PIECES;

/// Addresses at which pages of one store lie in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Piece {
    pub span: Span,
    /// Offset in the store of `span.start`.
    pub offset: usize,
    pub store: u64,
    /// The store's descriptor, open as long as the piece is listed.
    pub fd: Number,
    /// Registered no more: its pages are given up when they are unmapped.
    pub idle: bool,
}

impl Piece {
    /// The part of it inside `span`.
    pub fn clip(&self, span: Span) -> Piece {
        let span = self.span.and(span);
        Piece {
            offset: self
                .offset
                .wrapping_add(span.start.wrapping_sub(self.span.start)),
            span,
            ..*self
        }
    }

    /// The offsets it shows.
    pub fn offsets(&self) -> Span {
        self.span.at(self.offset)
    }

    fn continues(&self, left: &Piece) -> bool {
        left.span.end == self.span.start
            && left.offsets().end == self.offset
            && (left.store, left.fd, left.idle) == (self.store, self.fd, self.idle)
    }
}

/// All pieces, disjoint, in the order of addresses.
#[derive(Debug)]
pub(crate) struct Pieces(Vec<Piece>);

impl Pieces {
    /// Allocates all that is ever needed.
    pub fn new() -> Pieces {
        Pieces(Vec::with_capacity(MAX_PIECES + SPARE_PIECES))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The memory it occupies.
    pub fn memory(&self) -> Span {
        let start = self.0.as_ptr().expose_provenance();
        Span::new(start, start + self.0.capacity() * size_of::<Piece>())
    }

    fn first_beyond(&self, addr: usize) -> usize {
        self.0.partition_point(|piece| piece.span.end <= addr)
    }

    /// The parts of `span` that show pages of a store.
    pub fn within(&self, span: Span) -> impl Iterator<Item = Piece> {
        let from = self.first_beyond(span.start);
        let parts = self.0[from..]
            .iter()
            .take_while(move |piece| piece.span.start < span.end);
        parts.map(move |piece| piece.clip(span))
    }

    fn first_within(&self, span: Span) -> Option<Piece> {
        self.within(span).next()
    }

    /// The piece at an address.
    pub fn find(&self, addr: usize) -> Option<&Piece> {
        self.0
            .get(self.first_beyond(addr))
            .filter(|piece| piece.span.contains(addr))
    }

    /// The addresses around `addr`, which is in no piece, up to the next pieces.
    pub fn gap(&self, addr: usize) -> Span {
        let next = self.first_beyond(addr);
        let start = next
            .checked_sub(1)
            .map_or(0, |before| self.0[before].span.end);
        let end = self
            .0
            .get(next)
            .map_or(usize::MAX, |piece| piece.span.start);
        Span::new(start, end)
    }

    /// Where the offsets `span` of a store are.
    pub fn showing(&self, store: u64, span: Span) -> impl Iterator<Item = Piece> {
        let parts = self.0.iter().filter(move |piece| piece.store == store);
        parts.filter_map(move |piece| {
            let offsets = piece.offsets().and(span);
            let start = piece.span.start + offsets.start.wrapping_sub(piece.offset);
            (!offsets.is_empty()).then(|| piece.clip(offsets.at(start)))
        })
    }

    /// Forgets what is in `span`. A piece that cannot be cut in two for lack of room stays whole:
    /// what is listed is compared with what is mapped before anything is replaced.
    pub fn cut(&mut self, span: Span) {
        let from = self.first_beyond(span.start);
        let Some(first) = self.0.get(from).copied() else {
            return;
        };
        if first.span.start < span.start && first.span.end > span.end {
            if self.0.len() < self.0.capacity() {
                self.0[from].span.end = span.start;
                self.0
                    .insert(from + 1, first.clip(Span::new(span.end, first.span.end)));
            }
            return;
        }
        let keep = |piece: Piece| {
            let left = piece.clip(Span::new(0, span.start));
            let right = piece.clip(Span::new(span.end, usize::MAX));
            if left.span.is_empty() { right } else { left }
        };
        for piece in &mut self.0[from..] {
            if piece.span.start >= span.end {
                break;
            }
            *piece = keep(*piece);
        }
        self.0.retain(|piece| !piece.span.is_empty());
    }

    /// Lists a piece in place of what was there; false if there is no room.
    pub fn insert(&mut self, piece: Piece) -> bool {
        self.cut(piece.span);
        let at = self.first_beyond(piece.span.start);
        let joins_right = self.0.get(at).is_some_and(|right| right.continues(&piece));
        if at > 0 && piece.continues(&self.0[at - 1]) {
            self.0[at - 1].span.end = piece.span.end;
            if joins_right {
                self.0[at - 1].span.end = self.0[at].span.end;
                self.0.remove(at);
            }
        } else if joins_right {
            self.0[at].span.start = piece.span.start;
            self.0[at].offset = piece.offset;
        } else if self.0.len() < self.0.capacity() {
            self.0.insert(at, piece);
        } else {
            return false;
        }
        true
    }

    /// Notes of these offsets of a store whether they are idle. Where there is no room to cut a
    /// piece they stay as they were.
    pub fn mark(&mut self, store: u64, offsets: Span, idle: bool) {
        while self.0.len() + 2 <= self.0.capacity() {
            let mut other = self.showing(store, offsets).filter(|p| p.idle != idle);
            let Some(piece) = other.next() else {
                return;
            };
            drop(other);
            self.insert(Piece { idle, ..piece });
        }
    }

    /// A mapping was moved.
    pub fn remap(&mut self, from: Span, to: usize) {
        self.cut(from.at(to));
        while let Some(piece) = self.first_within(from) {
            let offset = piece.span.start - from.start;
            self.cut(piece.span);
            if self.find(piece.span.start).is_some() {
                // No room to cut: see `cut`.
                return;
            }
            self.insert(Piece {
                span: piece.span.at(to + offset),
                ..piece
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 64;

    #[derive(Debug, Clone)]
    enum Step {
        Insert(usize, usize, usize, u64),
        Cut(usize, usize),
        Remap(usize, usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let at = 0..SIZE - 16;
        let len = 1..16usize;
        prop_oneof![
            (at.clone(), len.clone(), 0..3usize, 0..2u64)
                .prop_map(|(at, len, shift, store)| Step::Insert(at, len, shift, store)),
            (at.clone(), len.clone()).prop_map(|(at, len)| Step::Cut(at, len)),
            (at.clone(), len, at).prop_map(|(from, len, to)| Step::Remap(from, len, to)),
        ]
    }

    type Page = Option<(usize, u64)>;

    fn apply(pieces: &mut Pieces, model: &mut [Page; SIZE], step: Step) {
        match step {
            Step::Insert(at, len, shift, store) => {
                let span = Span::new(at, at + len);
                let offset = at + 100 * shift;
                assert!(pieces.insert(Piece {
                    span,
                    offset,
                    store,
                    fd: Number::default(),
                    idle: false
                }));
                (0..len).for_each(|i| model[at + i] = Some((offset + i, store)));
            }
            Step::Cut(at, len) => {
                pieces.cut(Span::new(at, at + len));
                model[at..at + len].fill(None);
            }
            // The kernel refuses to move a mapping onto itself.
            Step::Remap(from, len, to) if from.abs_diff(to) < len => {}
            Step::Remap(from, len, to) => {
                pieces.remap(Span::new(from, from + len), to);
                model.copy_within(from..from + len, to);
                model[from..from + len].fill(None);
            }
        }
    }

    proptest! {
        /// The pieces say of every page what an array of pages says.
        #[test]
        fn pieces_follow(steps in prop::collection::vec(step(), 1..80)) {
            let mut pieces = Pieces::new();
            let mut model = [None; SIZE];
            for step in steps {
                apply(&mut pieces, &mut model, step);
                for (at, page) in model.iter().enumerate() {
                    let found = pieces.find(at).map(|piece| {
                        (piece.offset + at - piece.span.start, piece.store)
                    });
                    prop_assert_eq!(found, *page);
                    if page.is_none() {
                        let gap = pieces.gap(at);
                        prop_assert!(gap.contains(at));
                        let free = |at: usize| at >= SIZE || model[at].is_none();
                        prop_assert!((gap.start..gap.end.min(SIZE)).all(free));
                    }
                }
                let whole = Span::new(0, SIZE);
                let count: usize = pieces.within(whole).map(|piece| piece.span.len()).sum();
                prop_assert_eq!(count, model.iter().flatten().count());
                let low = Span::new(10, 30);
                let showing = pieces.showing(1, low).map(|piece| piece.offsets());
                let mut showing: Vec<usize> = showing.flat_map(|o| o.start..o.end).collect();
                let wanted = model.iter().flatten().filter(|(o, s)| *s == 1 && low.contains(*o));
                let mut wanted: Vec<usize> = wanted.map(|(offset, _)| *offset).collect();
                showing.sort_unstable();
                wanted.sort_unstable();
                prop_assert_eq!(showing, wanted);
            }
        }
    }

    #[test]
    fn without_room_nothing_is_lost() {
        let mut pieces = Pieces::new();
        let piece = |at: usize| Piece {
            span: Span::new(at, at + 3),
            offset: 0,
            store: 0,
            fd: Number::default(),
            idle: false,
        };
        let mut count = 0;
        while pieces.insert(piece(count * 4)) {
            count += 1;
        }
        assert_eq!((count, pieces.len()), (MAX_PIECES + SPARE_PIECES, count));
        pieces.cut(Span::new(1, 2));
        assert_eq!(pieces.find(1), Some(&piece(0)));
        pieces.cut(Span::new(0, 3));
        assert_eq!(pieces.len(), count - 1);
    }
}
