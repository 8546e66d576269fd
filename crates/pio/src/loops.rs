//! Finds loops of stores: an instruction that is trapped again while its last trap is remembered.

use crate::limits::{ATTEMPTS, LOOPS};

/// Instructions that were trapped of late.
#[derive(Default)]
pub(crate) struct Loops {
    recent: [Recent; LOOPS],
    /// Which is forgotten for the next.
    oldest: usize,
}

#[derive(Clone, Copy, Default)]
struct Recent {
    at: usize,
    /// Attempts that led to no other store.
    vain: u8,
}

impl Loops {
    /// Whether the program seems to be in a loop with this instruction, which is remembered.
    pub(crate) fn seems_one(&mut self, at: usize) -> bool {
        if let Some(recent) = self.recent.iter().find(|recent| recent.at == at) {
            return recent.vain < ATTEMPTS;
        }
        self.recent[self.oldest] = Recent { at, vain: 0 };
        self.oldest = (self.oldest + 1) % LOOPS;
        false
    }

    /// The instructions, some perhaps more than once; zeros behind them.
    pub(crate) fn recent(&self) -> impl Iterator<Item = usize> {
        self.recent.iter().map(|recent| recent.at)
    }

    /// Whether an attempt from there was worth it.
    pub(crate) fn note(&mut self, at: usize, was_worth_it: bool) {
        if let Some(recent) = self.recent.iter_mut().find(|recent| recent.at == at) {
            recent.vain = match was_worth_it {
                true => 0,
                false => recent.vain.saturating_add(1),
            };
        }
    }
}
