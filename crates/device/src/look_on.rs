//! How long the helper looks on for what comes next, before it sleeps. No clock and no system call
//! here: time is an argument.

use std::time::Duration;

use causeway_proto::Instant;

/// After a look that found a stream: to wake the helper may cost more than the time between two
/// batches, and a virtual network has the sender pay.
const STREAM: Duration = Duration::from_micros(30);
/// After a request that it has answered, and that was not part of a stream: a requester that waits
/// for one answer before it asks again would pay a wake for each.
const REQUEST: Duration = Duration::from_micros(50);
/// Where arrivals are further apart than that, and not further than this. A requester that sleeps
/// until its answer has come takes as long as its wake, which is longer than [`REQUEST`] on many
/// machines: with the helper asleep too, each would go on waking the other.
const SLEEPER: Duration = REQUEST.saturating_mul(3);
/// What comes while the helper sleeps it finds later, by its own wake: as long as a requester's.
const WAKE: Duration = REQUEST.saturating_mul(2);
/// Once looking on was in vain, the next requests, twice as many each time, are answered without,
/// up to two to the power of this.
const VAIN_MAX: u32 = 6;

/// What is known of arrivals.
#[derive(Debug, Default)]
pub(crate) struct LookOn {
    until: Instant,
    /// When something last arrived.
    last: Instant,
    /// It looks on for a request.
    awaits: bool,
    /// Arrivals are as far apart as a requester's that sleeps.
    sleeper: bool,
    /// It has slept since something last arrived.
    slept: bool,
    /// Times in a row that looking on was in vain; requests left after which it is not tried.
    vain: u32,
    skip: u32,
}

impl LookOn {
    /// Whether to look on.
    pub fn is_due(&self, now: Instant) -> bool {
        now < self.until
    }

    /// A look has found what had arrived, or a `stream` under way.
    pub fn arrived(&mut self, stream: bool, now: Instant) {
        let found = now.since(std::mem::replace(&mut self.last, now));
        let wake = match std::mem::take(&mut self.slept) {
            true => WAKE,
            false => Duration::ZERO,
        };
        let apart = found.saturating_sub(wake);
        if self.is_due(now) || apart <= SLEEPER {
            (self.vain, self.skip) = (0, 0);
        }
        self.sleeper |= found > REQUEST && apart <= SLEEPER;
        if stream && !self.sleeper {
            self.until = now + STREAM;
        } else if self.skip > 0 {
            self.skip -= 1;
        } else {
            self.until = now + if self.sleeper { SLEEPER } else { REQUEST };
            self.awaits = true;
        }
    }

    /// It sleeps now: nothing has come while it looked on, if it did.
    pub fn slept(&mut self) {
        self.slept = true;
        if std::mem::take(&mut self.awaits) {
            self.sleeper = false;
            self.vain = (self.vain + 1).min(VAIN_MAX);
            self.skip = (1 << self.vain) - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arrivals so many microseconds apart, so often: those that came while it looked on.
    fn met(looks: &mut LookOn, apart: u64, times: u32) -> u32 {
        let apart = Duration::from_micros(apart);
        let mut met = 0;
        for _ in 0..times {
            let now = looks.last + apart;
            let due = looks.is_due(now);
            met += u32::from(due);
            if !due {
                looks.slept();
            }
            looks.arrived(false, now);
        }
        met
    }

    fn after_one() -> LookOn {
        let mut looks = LookOn::default();
        looks.arrived(false, Instant(1_000_000_000));
        looks
    }

    #[test]
    fn requests_that_follow_each_other_are_met() {
        assert_eq!(met(&mut after_one(), 20, 100), 100);
    }

    #[test]
    fn a_requester_that_sleeps_is_met_from_its_third_request_on() {
        assert_eq!(met(&mut after_one(), 110, 100), 99);
    }

    #[test]
    fn a_requester_that_sleeps_is_met_though_the_helper_finds_its_requests_late() {
        let (apart, wake) = (Duration::from_micros(110), Duration::from_micros(100));
        let mut looks = after_one();
        let mut met = 0;
        for _ in 0..100 {
            let comes = looks.last + apart;
            match looks.is_due(comes) {
                true => looks.arrived(true, comes),
                false => {
                    looks.slept();
                    looks.arrived(true, comes + wake);
                }
            }
            met += u32::from(looks.is_due(looks.last + apart));
        }
        assert!(met > 95, "{met}");
    }

    #[test]
    fn rare_requests_are_hardly_looked_for() {
        let mut looks = after_one();
        let mut tried = 0;
        for _ in 0..1000 {
            let now = looks.last + Duration::from_millis(1);
            looks.slept();
            looks.arrived(false, now);
            tried += u32::from(looks.is_due(now));
        }
        assert!((1..=1000 / 32).contains(&tried), "{tried}");
    }

    #[test]
    fn one_that_has_slept_is_forgotten_when_it_stays_away() {
        let mut looks = after_one();
        met(&mut looks, 110, 10);
        looks.slept();
        assert!(!looks.sleeper);
        met(&mut looks, 20, 1);
        assert!(looks.is_due(looks.last + Duration::from_micros(49)));
        assert!(!looks.is_due(looks.last + Duration::from_micros(51)));
    }

    #[test]
    fn a_stream_is_looked_for_briefly_unless_its_batches_are_far_apart() {
        let mut looks = LookOn::default();
        let begun = Instant(1_000_000_000);
        looks.arrived(true, begun);
        assert!(looks.is_due(begun + Duration::from_micros(29)));
        assert!(!looks.is_due(begun + Duration::from_micros(31)));
        let next = begun + Duration::from_micros(100);
        looks.arrived(true, next);
        assert!(looks.is_due(next + Duration::from_micros(149)));
    }
}
