//! Looking for a moment before sleeping.

use super::layout::MODEL;
use crate::sync::{AtomicU64, Ordering};

/// Looks at most, with a pause of the processor between two: some 2 µs, less than it takes to
/// sleep and be woken.
const MAX_LOOKS: u64 = 100;
/// Looks at least: so that it is noticed when spinning becomes worth while.
const MIN_LOOKS: u64 = 12;

/// Looks whether something is `done`, for about as long as it took lately, which is what `hint`
/// says: a shared word that anybody may write and that is believed within limits.
pub(crate) fn spin(hint: &AtomicU64, mut done: impl FnMut() -> bool) -> bool {
    if MODEL {
        return false;
    }
    let said = hint.load(Ordering::Relaxed);
    let looks = said.clamp(MIN_LOOKS, MAX_LOOKS);
    for look in 0..looks {
        if done() {
            // Twice as long as it took would have been enough for this one.
            adjust(hint, said, (2 * look).max(looks - looks / 4));
            return true;
        }
        std::hint::spin_loop();
    }
    adjust(hint, said, looks - looks / 4);
    false
}

fn adjust(hint: &AtomicU64, said: u64, looks: u64) {
    let looks = looks.clamp(MIN_LOOKS, MAX_LOOKS);
    if looks != said {
        hint.store(looks, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// How often it looks when told `hint`, if nothing ever comes.
    fn looks(hint: &AtomicU64) -> u64 {
        let mut count = 0;
        assert!(!spin(hint, || {
            count += 1;
            false
        }));
        count
    }

    #[test]
    fn what_is_in_vain_becomes_short_and_never_nothing() {
        let hint = AtomicU64::new(u64::MAX);
        assert_eq!(looks(&hint), MAX_LOOKS);
        for _ in 0..20 {
            looks(&hint);
        }
        assert_eq!(looks(&hint), MIN_LOOKS);
    }

    #[test]
    fn what_is_worth_while_becomes_longer() {
        let hint = AtomicU64::new(0);
        let mut left = MIN_LOOKS - 1;
        assert!(spin(&hint, || {
            left -= 1;
            left == 0
        }));
        assert!(looks(&hint) > MIN_LOOKS);
    }
}
