//! When a look is worth its time. No clock and no system call here: time is an argument.

use std::time::{Duration, Instant};

/// How long a thread looks before it sleeps: as long as the kernel takes to wake a thread on
/// another processor, 23 to 50 µs (docs/PERFORMANCE.md, "eventfd wake-up" and "UDP wake-up"). So a
/// look in vain costs no more than what it was to save.
pub const LOOK: Duration = Duration::from_micros(50);
/// How long a thread looks for an answer that nobody gives before he is woken: the wake of the
/// peer, and the work in between. In a virtual machine whose processors are idle a wake takes up to
/// 100 µs.
pub const ANSWER: Duration = LOOK.saturating_mul(3);
/// The longest wait after which a look is expected to do better: one spent asleep holds the wake of
/// this thread too.
pub const SHORT: Duration = ANSWER.saturating_mul(2);
/// The least time between two looks after which a thread asks whether another had the processor. A
/// look takes a microsecond, with system calls a few; an interrupt below ten.
pub const GAP: Duration = Duration::from_micros(20);
/// After a gap nobody looks for so many times its length: so looking keeps the processor from
/// others, or uses up a control group's quota, for a small part of the time.
pub const PAUSE_PER_GAP: u32 = 16;
/// The least time for which nobody looks after a gap.
pub const PAUSE_MIN: Duration = Duration::from_millis(2);
/// The most.
pub const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A gap that comes before so many times the last pause has gone by since it ended makes the next
/// pause twice as long: on a busy machine there are hardly any looks.
pub const RECURS: u32 = 4;
/// Two to the power of this is the most short waits that are asked for between two looks in vain.
pub const LOST_MAX: u32 = 6;

/// What is known of the waits at one place.
///
/// Nobody looks at first. A short wait, spent asleep, is a hint that a look would have won. Each
/// look in vain asks for more such hints before the next, one, three, up to 63, and each that wins
/// takes one of these steps back: so where fewer than half of the looks win there are hardly any,
/// and a place where events are rare has none at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Short waits to be seen before the next look.
    hints_needed: u32,
    /// Looks in vain, less those that won.
    lost: u32,
    /// When there may be looks again, after another thread had the processor.
    not_before: Option<Instant>,
    /// How long that was for.
    pause: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            hints_needed: 1,
            lost: 0,
            not_before: None,
            pause: Duration::ZERO,
        }
    }
}

impl Policy {
    /// Whether a wait that begins now is to begin with a look.
    #[must_use]
    pub fn may_look(&self, now: Instant) -> bool {
        self.hints_needed == 0 && self.not_before.is_none_or(|then| now >= then)
    }

    /// A look has found what it was for.
    pub fn won(&mut self) {
        self.lost = self.lost.saturating_sub(1);
    }

    /// A look was in vain.
    pub fn lost(&mut self) {
        self.lost = (self.lost + 1).min(LOST_MAX);
        self.hints_needed = (1 << self.lost) - 1;
    }

    /// A wait without a look has ended with what it was for.
    pub fn slept(&mut self, waited: Duration) {
        self.hints_needed = match waited <= SHORT {
            true => self.hints_needed.saturating_sub(1),
            false => self.hints_needed.max(1),
        };
    }

    /// Between two looks, for so long, another thread had the processor.
    pub fn preempted(&mut self, now: Instant, gap: Duration) {
        let recurs = |resumed| now < resumed + self.pause * RECURS;
        let longer = match self.not_before.is_some_and(recurs) {
            true => self.pause * 2,
            false => Duration::ZERO,
        };
        let pause = gap.saturating_mul(PAUSE_PER_GAP).max(longer);
        self.pause = pause.clamp(PAUSE_MIN, PAUSE_MAX);
        self.not_before = Some(now + self.pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIEF: Duration = Duration::from_micros(60);
    const RARE: Duration = Duration::from_millis(10);

    /// Lets waits of this length go by until a look is due; how many there were.
    fn waits_until_look(policy: &mut Policy, now: Instant, wait: Duration, most: u32) -> u32 {
        (0..most)
            .find(|_| {
                let due = policy.may_look(now);
                if !due {
                    policy.slept(wait);
                }
                due
            })
            .unwrap_or(most)
    }

    #[test]
    fn the_first_wait_has_no_look_and_the_one_after_a_short_wait_has() {
        let (mut policy, now) = (Policy::default(), Instant::now());
        assert!(!policy.may_look(now));
        policy.slept(SHORT);
        assert!(policy.may_look(now));
        policy.won();
        assert!(
            policy.may_look(now),
            "a look that won is followed by a look"
        );
    }

    #[test]
    fn who_waits_for_rare_events_never_looks() {
        let (mut policy, now) = (Policy::default(), Instant::now());
        assert_eq!(waits_until_look(&mut policy, now, RARE, 1000), 1000);
        policy.slept(BRIEF);
        assert!(policy.may_look(now));
        policy.slept(RARE);
        assert!(
            !policy.may_look(now),
            "a hint is of no use after a long wait"
        );
    }

    #[test]
    fn looks_in_vain_ask_for_ever_more_hints_up_to_a_limit() {
        let (mut policy, now) = (Policy::default(), Instant::now());
        policy.slept(BRIEF);
        let gaps: Vec<u32> = (0..8)
            .map(|_| {
                policy.lost();
                waits_until_look(&mut policy, now, BRIEF, 1000)
            })
            .collect();
        assert_eq!(gaps, [1, 3, 7, 15, 31, 63, 63, 63]);
        policy.lost();
        let rare = waits_until_look(&mut policy, now, RARE, 1000);
        assert_eq!(rare, 1000, "long waits are no hints");
    }

    #[test]
    fn wins_take_the_steps_back_one_by_one() {
        let (mut policy, now) = (Policy::default(), Instant::now());
        for _ in 0..3 {
            policy.lost();
        }
        for expected in [7, 3, 1, 1] {
            policy.won();
            policy.lost();
            assert_eq!(waits_until_look(&mut policy, now, BRIEF, 100), expected);
            policy.won();
        }
    }

    #[test]
    fn where_one_look_in_three_wins_there_are_hardly_any() {
        let (mut policy, now) = (Policy::default(), Instant::now());
        let (mut looks, waits) = (0, 30_000);
        for wait in 0..waits {
            let soon = wait % 3 == 0;
            match (policy.may_look(now), soon) {
                (true, true) => policy.won(),
                (true, false) => policy.lost(),
                (false, true) => policy.slept(BRIEF),
                (false, false) => policy.slept(RARE),
            }
            looks += u32::from(policy.may_look(now));
        }
        assert!(looks < waits / 50, "{looks} looks in {waits} waits");
    }

    #[test]
    fn after_a_gap_nobody_looks_for_many_times_its_length() {
        let now = Instant::now();
        for (gap, pause) in [
            (GAP, PAUSE_MIN),
            (Duration::from_millis(3), Duration::from_millis(48)),
            (Duration::from_millis(50), Duration::from_millis(800)),
            (Duration::from_secs(3600), PAUSE_MAX),
        ] {
            let mut policy = Policy::default();
            policy.slept(BRIEF);
            policy.preempted(now, gap);
            assert!(!policy.may_look(now + pause.saturating_sub(Duration::from_nanos(1))));
            assert!(policy.may_look(now + pause), "after {gap:?}");
        }
    }
    #[test]
    fn pauses_get_longer_where_gaps_recur_and_short_again_where_not() {
        let (mut policy, mut now) = (Policy::default(), Instant::now());
        policy.slept(BRIEF);
        let pauses: Vec<u128> = (0..11)
            .map(|_| {
                policy.preempted(now, GAP);
                let pause = policy.pause;
                now += pause;
                assert!(policy.may_look(now));
                now += pause;
                pause.as_millis()
            })
            .collect();
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]);
        now += PAUSE_MAX * RECURS;
        policy.preempted(now, GAP);
        assert_eq!(policy.pause, PAUSE_MIN);
    }
}
