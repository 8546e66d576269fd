//! The trapped loads of a page: many words, or the same ones again and again.

use crate::limits::{LOADS, POLLS};

/// What was loaded since the last sync point.
///
/// A program that loads word after word reads something, and is quicker with the whole page. One
/// that loads the same word again waits for its owner to change it: as long as that may be a matter
/// of microseconds, each load asks the owner. A store tells that the program goes on: what it loads
/// next, it waits for anew.
#[derive(Clone, Copy, Default)]
pub(crate) struct Loads {
    /// The words, of which `count` are known.
    words: [u16; LOADS],
    count: u8,
    /// Loads of words that are known, since the last store to the page.
    polls: u8,
}

impl Loads {
    /// Counts a load of a word of 8 bytes; whether the page is to be made readable instead.
    pub(crate) fn are_many_with(&mut self, word: usize) -> bool {
        let count = usize::from(self.count);
        if self.words[..count].contains(&(word as u16)) {
            self.polls = self.polls.saturating_add(1);
            return self.polls > POLLS;
        }
        if count == LOADS {
            return true;
        }
        self.words[count] = word as u16;
        self.count += 1;
        false
    }

    /// The program has stored to the page.
    pub(crate) fn note_store(&mut self) {
        self.polls = 0;
    }
}
