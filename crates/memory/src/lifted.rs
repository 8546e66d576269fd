//! Where the pages of a chunk belong while they are lifted.
//!
//! The program may unmap, move or give up the chunk's addresses meanwhile. Its pages are not there,
//! so the kernel cannot take them along: what the events tell is kept here, page by page, and the
//! mover follows it when it puts the pages back.

use crate::span::{CHUNK, PAGE, Span};
use crate::uffd::Event;

const PAGES: usize = CHUNK / PAGE;
/// In place of an address: it was unmapped.
const NOWHERE: usize = 0;
/// In an address: the page was given up, and is to be empty there.
const EMPTY: usize = 1;

/// Where a page belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub addr: usize,
    /// Whether it was given up.
    pub empty: bool,
}

/// A chunk that is lifted, and what the program has done to its addresses since.
#[derive(Debug)]
pub(crate) struct Lifted {
    chunk: Span,
    /// Where each page belongs.
    places: [usize; PAGES],
    /// Counts what the program has done.
    changes: u64,
    /// Where the mover itself moves the chunk's mapping next.
    hollowing: Option<usize>,
    /// Whether the mover itself replaces the chunk's mapping next.
    replacing: bool,
}

impl Lifted {
    pub fn new() -> Lifted {
        Lifted {
            chunk: Span::default(),
            places: [NOWHERE; PAGES],
            changes: 0,
            hollowing: None,
            replacing: false,
        }
    }

    /// From now on the chunk's pages are lifted.
    pub fn begin(&mut self, chunk: Span) {
        *self = Lifted::new();
        self.chunk = chunk;
        for (place, origin) in self
            .places
            .iter_mut()
            .zip((chunk.start..chunk.end).step_by(PAGE))
        {
            *place = origin;
        }
    }

    /// No page is lifted any more.
    pub fn end(&mut self) {
        *self = Lifted::new();
    }

    /// The next event of this kind is the mover's own.
    pub fn expect_hollow(&mut self, to: usize) {
        self.hollowing = Some(to);
    }

    /// The next event of this kind is the mover's own.
    pub fn expect_replaced(&mut self) {
        self.replacing = true;
    }

    /// What the mover was about to do has failed, or is done.
    pub fn expect_nothing(&mut self) {
        self.hollowing = None;
        self.replacing = false;
    }

    /// How often the program has done something to the chunk.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Where a page belongs, by its number in the chunk, and how many that follow it, itself
    /// included, belong behind it in a row. `None`: nowhere.
    pub fn row(&self, page: usize) -> (Option<Place>, usize) {
        let first = self.places[page];
        let rest = &self.places[page..self.chunk.len() / PAGE];
        let follows = |(at, place): (usize, &usize)| match first {
            NOWHERE => *place == NOWHERE,
            first => *place == first + at * PAGE,
        };
        let count = rest
            .iter()
            .enumerate()
            .take_while(|row| follows((row.0, row.1)));
        let place = (first != NOWHERE).then_some(Place {
            addr: first & !EMPTY,
            empty: first & EMPTY != 0,
        });
        (place, count.count())
    }

    /// Follows what the program has done.
    pub fn happened(&mut self, event: Event) {
        match event {
            Event::Remap { from, to } if self.hollowing == Some(to) && from == self.chunk => {
                self.hollowing = None;
            }
            Event::Unmap(span) if self.replacing && span == self.chunk => self.replacing = false,
            Event::Remap { from, to } => self.change(from, |place| to + (place - from.start)),
            Event::Unmap(span) => self.change(span, |_| NOWHERE),
            Event::Remove(span) => self.change(span, |place| place | EMPTY),
            Event::Fault { .. } | Event::Other => {}
        }
    }

    fn change(&mut self, span: Span, to: impl Fn(usize) -> usize) {
        let count = self.chunk.len() / PAGE;
        for place in &mut self.places[..count] {
            if *place != NOWHERE && span.contains(*place) {
                *place = to(*place);
                self.changes += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(start: usize, end: usize) -> Span {
        Span::new(start * PAGE, end * PAGE)
    }

    fn at(page: usize, empty: bool) -> Option<Place> {
        let addr = page * PAGE;
        Some(Place { addr, empty })
    }

    #[test]
    fn pages_are_followed() {
        let mut lifted = Lifted::new();
        lifted.begin(pages(100, 110));
        assert_eq!(lifted.row(0), (at(100, false), 10));
        lifted.happened(Event::Remap {
            from: pages(102, 105),
            to: 300 * PAGE,
        });
        lifted.happened(Event::Unmap(pages(303, 400)));
        lifted.happened(Event::Unmap(pages(301, 302)));
        lifted.happened(Event::Remove(pages(108, 120)));
        let rows = [
            (0, (at(100, false), 2)),
            (2, (at(300, false), 1)),
            (3, (None, 1)),
            (4, (at(302, false), 1)),
            (5, (at(105, false), 3)),
            (8, (at(108, true), 2)),
        ];
        for (page, row) in rows {
            assert_eq!(lifted.row(page), row, "page {page}");
        }
    }

    #[test]
    fn the_movers_own_calls_change_nothing() {
        let mut lifted = Lifted::new();
        let chunk = pages(100, 110);
        lifted.begin(chunk);
        lifted.expect_hollow(7 * PAGE);
        lifted.happened(Event::Remap {
            from: chunk,
            to: 7 * PAGE,
        });
        lifted.expect_replaced();
        lifted.happened(Event::Unmap(chunk));
        assert_eq!((lifted.changes(), lifted.row(0)), (0, (at(100, false), 10)));
        // The next ones are the program's.
        lifted.happened(Event::Unmap(chunk));
        assert_eq!((lifted.changes(), lifted.row(0)), (10, (None, 10)));
    }
}
