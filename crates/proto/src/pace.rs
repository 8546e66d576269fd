//! How much may be sent when: the generic cell rate algorithm (ITU-T I.371, A.1), in its form as
//! virtual scheduling.
//!
//! What a limit has seen is one number, the *theoretical arrival time*: when all that was let
//! through would have been sent at the rate. What comes is let through while that is no further
//! ahead than the burst lasts, whole, however long it is: what follows waits for it. Processes that
//! share the word share the limit.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use crate::time::Instant;
use crate::types::MAX_MESSAGE;

/// Least burst, by the time in which the rate makes it. Who waits sleeps for half a burst, hence
/// this bounds how often that is.
pub const BURST_LEAST: Duration = Duration::from_millis(1);
/// Burst where none is named.
pub const BURST_USUAL: Duration = Duration::from_millis(10);
/// Longest burst: a limit that was idle lets so much through at once.
pub const BURST_MOST: Duration = Duration::from_secs(10);

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// So many units each second, and a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    per_second: u64,
    /// Nanoseconds in which the rate makes a burst.
    burst: u64,
}

impl Rate {
    /// `per_second` units each second, and up to `burst` at once, within [`BURST_LEAST`] and
    /// [`BURST_MOST`]; 0 stands for [`BURST_USUAL`]. `None` where `per_second` is 0: no limit.
    #[must_use]
    pub fn new(per_second: u64, burst: u64) -> Option<Rate> {
        if per_second == 0 {
            return None;
        }
        let burst = match burst {
            0 => nanoseconds(BURST_USUAL),
            units => time_of(units, per_second),
        };
        let burst = burst.clamp(nanoseconds(BURST_LEAST), nanoseconds(BURST_MOST));
        Some(Rate { per_second, burst })
    }

    /// Lets `amount` through now, or says when to ask again. `word` is what the limit has seen; 0
    /// is nothing.
    ///
    /// # Errors
    /// The time at which half a burst is free.
    pub fn take(self, word: &AtomicU64, amount: u64, now: Instant) -> Result<(), Instant> {
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            // Nothing that this rate lets through leads further: another process wrote that, and it
            // is to hold nobody up for longer.
            let furthest = self.furthest(now);
            let (next, outcome) = match self.step(seen.min(furthest), amount, now) {
                Ok(next) => (next, Ok(())),
                Err(again) if seen <= furthest => return Err(again),
                Err(again) => (furthest, Err(again)),
            };
            match word.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return outcome,
                Err(other) => seen = other,
            }
        }
    }

    /// Takes back what was let through and was not sent.
    pub fn give_back(self, word: &AtomicU64, amount: u64) {
        let cost = time_of(amount, self.per_second);
        // It never fails: the closure always names a value.
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |seen| {
            Some(seen.saturating_sub(cost))
        });
    }

    /// The latest that a limit has seen of what this rate lets through.
    fn furthest(self, now: Instant) -> u64 {
        let longest = time_of(u64::from(MAX_MESSAGE), self.per_second);
        now.0.saturating_add(self.burst).saturating_add(longest)
    }

    /// What a limit that has seen `seen` has seen with `amount` more.
    fn step(self, seen: u64, amount: u64, now: Instant) -> Result<u64, Instant> {
        if seen.saturating_sub(self.burst) > now.0 {
            return Err(Instant(seen - self.burst / 2));
        }
        let cost = time_of(amount, self.per_second);
        Ok(seen.max(now.0).saturating_add(cost))
    }
}

/// Limits on bytes and on messages; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// On bytes of payload.
    pub bytes: Option<Rate>,
    /// On messages: work requests.
    pub messages: Option<Rate>,
}

/// What a [`Limit`] has seen.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Of bytes.
    pub bytes: &'a AtomicU64,
    /// Of messages.
    pub messages: &'a AtomicU64,
}

impl Limit {
    /// Whether it limits anything.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.bytes.is_some() || self.messages.is_some()
    }

    /// Lets a message of so many bytes through now, or says when to ask again.
    ///
    /// # Errors
    /// As [`Rate::take`].
    pub fn take(&self, seen: Seen<'_>, bytes: u32, now: Instant) -> Result<(), Instant> {
        if let Some(rate) = self.bytes {
            rate.take(seen.bytes, bytes.into(), now)?;
        }
        if let Some(rate) = self.messages
            && let Err(again) = rate.take(seen.messages, 1, now)
        {
            if let Some(rate) = self.bytes {
                rate.give_back(seen.bytes, bytes.into());
            }
            return Err(again);
        }
        Ok(())
    }

    /// Takes a message of so many bytes back, which was let through and not sent.
    pub fn give_back(&self, seen: Seen<'_>, bytes: u32) {
        if let Some(rate) = self.bytes {
            rate.give_back(seen.bytes, bytes.into());
        }
        if let Some(rate) = self.messages {
            rate.give_back(seen.messages, 1);
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds in which `amount` units pass.
fn time_of(amount: u64, per_second: u64) -> u64 {
    let time = u128::from(amount) * u128::from(SECOND) / u128::from(per_second);
    u64::try_from(time).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Asks again and again, each time when it is told to, until `until`. Returns what was let
    /// through, and how often it was asked in vain.
    fn run(rate: Rate, word: &AtomicU64, amount: u64, until: Instant) -> (u64, u32) {
        let (mut now, mut through, mut vain) = (Instant(SECOND), 0, 0);
        while now < until {
            match rate.take(word, amount, now) {
                Ok(()) => through += amount,
                Err(again) => {
                    assert!(again > now);
                    (now, vain) = (again, vain + 1);
                }
            }
        }
        (through, vain)
    }

    #[test]
    fn the_rate_holds_whatever_the_amounts() {
        for amount in [1, 8, 1000, 65_536, 500_000] {
            let rate = Rate::new(10_000_000, 100_000).unwrap();
            let (through, vain) = run(rate, &AtomicU64::new(0), amount, Instant(3 * SECOND));
            let most = 20_000_000 + 100_000 + amount;
            assert!(through <= most, "{amount}: {through}");
            assert!(
                through + 100_000 + amount >= 20_000_000,
                "{amount}: {through}"
            );
            // Two seconds, and half a burst of 10 ms at least for each sleep.
            assert!(vain <= 401, "{amount}: {vain}");
        }
    }

    #[test]
    fn what_is_idle_lets_a_burst_through_and_no_more() {
        let rate = Rate::new(1_000_000, 50_000).unwrap();
        let word = AtomicU64::new(0);
        let now = Instant(SECOND);
        let at_once = (0..1000).take_while(|_| rate.take(&word, 1000, now).is_ok());
        assert_eq!(at_once.count(), 51, "and one that begins within it");
        let again = rate.take(&word, 1000, now).unwrap_err();
        assert_eq!(again, Instant(SECOND + 26 * MS));
        assert!(rate.take(&word, 1000, again).is_ok());
    }

    #[test]
    fn a_burst_is_within_its_bounds() {
        let burst = |units| Rate::new(1_000_000, units).unwrap().burst;
        assert_eq!(burst(0), 10 * MS);
        assert_eq!(burst(1), MS);
        assert_eq!(burst(u64::MAX), 10 * SECOND);
        assert_eq!(Rate::new(0, 5), None);
    }

    #[test]
    fn what_others_wrote_holds_nobody_up_for_longer_than_a_message_lasts() {
        let rate = Rate::new(u64::from(MAX_MESSAGE), 0).unwrap();
        let word = AtomicU64::new(u64::MAX);
        let again = rate.take(&word, 1, Instant(0)).unwrap_err();
        assert_eq!(again, Instant(SECOND + 5 * MS));
        assert!(rate.take(&word, 1, again).is_ok());
    }

    #[test]
    fn who_shares_the_word_shares_the_rate() {
        let rate = Rate::new(1_000_000, 1000).unwrap();
        let word = AtomicU64::new(0);
        let total: u64 = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| {
                scope.spawn(|| {
                    let tries = (0..1000).map(|_| rate.take(&word, 100, Instant(SECOND)));
                    tries.filter(Result::is_ok).count() as u64
                })
            });
            threads.map(|thread| thread.join().unwrap()).iter().sum()
        });
        assert_eq!(total, 11);
    }

    #[test]
    fn a_message_counts_in_both_ways_or_in_neither() {
        let limit = Limit {
            bytes: Rate::new(1_000_000, 0),
            messages: Rate::new(1000, 1),
        };
        let (bytes, messages) = (AtomicU64::new(0), AtomicU64::new(0));
        let seen = Seen {
            bytes: &bytes,
            messages: &messages,
        };
        let now = Instant(SECOND);
        assert!(limit.is_set() && !Limit::default().is_set());
        let through = (0..10).filter(|_| limit.take(seen, 100, now).is_ok());
        assert_eq!(through.count(), 2);
        let counted = bytes.load(Ordering::Relaxed);
        assert_eq!(
            counted,
            SECOND + 2 * MS / 10,
            "the refused ones left nothing"
        );
        limit.give_back(seen, 100);
        assert_eq!(bytes.load(Ordering::Relaxed), SECOND + MS / 10);
        assert_eq!(messages.load(Ordering::Relaxed), SECOND + MS);
    }
}
