//! The trapped loads of a window's pages: many words, or the same ones again and again.

use crate::limits::{LOADS, POLLS};

/// What was loaded of each page since the last sync point.
///
/// A program that loads word after word reads something, and is quicker with the whole page. One
/// that loads the same word again waits for its owner to change it: as long as that may be a matter
/// of microseconds, each load asks the owner. A store tells that the program goes on: what it loads
/// next, it waits for anew.
///
/// All of it is numbers, which are zero at first: memory is taken once a page is loaded from.
#[derive(Default)]
pub(crate) struct Loads {
    /// The words of each page, and how many are known.
    words: Vec<u16>,
    counts: Vec<u8>,
    /// Loads of words that are known, since the window was stored to for the `since`th time.
    polls: Vec<u8>,
    since: Vec<u32>,
    stores: u32,
}

impl Loads {
    /// Of so many pages, none.
    pub(crate) fn new(pages: usize) -> Loads {
        Loads {
            words: vec![0; pages * LOADS],
            counts: vec![0; pages],
            polls: vec![0; pages],
            since: vec![0; pages],
            stores: 0,
        }
    }

    /// Counts a load of a word of 8 bytes; whether the page is to be made readable instead.
    pub(crate) fn are_many_with(&mut self, page: usize, word: usize) -> bool {
        let count = usize::from(self.counts[page]);
        let words = &mut self.words[page * LOADS..][..LOADS];
        if words[..count].contains(&(word as u16)) {
            if self.since[page] != self.stores {
                (self.since[page], self.polls[page]) = (self.stores, 0);
            }
            self.polls[page] = self.polls[page].saturating_add(1);
            return self.polls[page] > POLLS;
        }
        if count == LOADS {
            return true;
        }
        words[count] = word as u16;
        self.counts[page] += 1;
        false
    }

    /// The program has stored to the window.
    pub(crate) fn note_store(&mut self) {
        self.stores = self.stores.wrapping_add(1);
    }

    /// Begins anew with a page.
    pub(crate) fn forget(&mut self, page: usize) {
        (self.counts[page], self.polls[page]) = (0, 0);
    }
}
