//! Which packet numbers have come already (RFC 6479).

/// Bits of a word.
const WORD: u64 = u64::BITS as u64;
/// Words: numbers up to 8,128 behind the highest are told apart. A full window of TRP is below that
/// in any order, but for the last word.
const WORDS: usize = 128;

/// The numbers that have come: the highest, and a bit for each not far below it.
#[derive(Debug)]
pub struct Replays {
    /// One past the highest number that has come.
    end: u64,
    seen: Box<[u64; WORDS]>,
}

impl Default for Replays {
    fn default() -> Self {
        Replays {
            end: 0,
            seen: Box::new([0; WORDS]),
        }
    }
}

/// Numbers below the highest that are told apart.
pub(crate) const REACH: u64 = (WORDS as u64 - 1) * WORD;

fn place(number: u64) -> (usize, u64) {
    let word = number / WORD % WORDS as u64;
    (word as usize, 1 << (number % WORD))
}

impl Replays {
    /// Whether a number has not come before, and is not too old to tell.
    pub fn is_new(&self, number: u64) -> bool {
        if number >= self.end {
            return true;
        }
        let (word, bit) = place(number);
        self.end - number <= REACH && self.seen[word] & bit == 0
    }

    /// A number has come that was new.
    pub fn note(&mut self, number: u64) {
        if number >= self.end {
            let first = self.end.div_ceil(WORD);
            let last = number / WORD;
            // Words that are used anew.
            let count = (last + 1).saturating_sub(first).min(WORDS as u64);
            for word in (last + 1 - count)..=last {
                self.seen[(word % WORDS as u64) as usize] = 0;
            }
            self.end = number + 1;
        }
        let (word, bit) = place(number);
        self.seen[word] |= bit;
    }
}
