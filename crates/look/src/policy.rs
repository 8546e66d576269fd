//! When a look is worth its time. No clock and no system call here: time is an argument.

use std::time::{Duration, Instant};

/// The least time that a thread looks before it sleeps: as long as the kernel takes to wake a
/// thread on another processor, 23 to 50 µs (docs/PERFORMANCE.md, "eventfd wake-up" and "UDP
/// wake-up"). So such a look in vain costs no more than what it was to save.
pub const LOOK: Duration = Duration::from_micros(50);
/// The longest: for an answer that nobody gives before he is woken. It takes the wake of the peer,
/// and the work in between. In a virtual machine whose processors are idle a wake takes up to
/// 100 µs.
pub const ANSWER: Duration = LOOK.saturating_mul(3);
/// The longest wait after which a look is expected to do better: one spent asleep holds the wake of
/// this thread too.
pub const SHORT: Duration = ANSWER.saturating_mul(2);
/// The least time between two looks after which a thread asks whether another had the processor. A
/// look takes a microsecond, with system calls a few; an interrupt below ten.
pub const GAP: Duration = Duration::from_micros(20);
/// Other threads may have one part in so many of the processor's time without an end to the looks.
/// If they need more, there are none for as many times as long: so looking keeps the processor
/// from others, or uses up a control group's quota, for a small part of the time.
pub const SHARE: u32 = 16;
/// What they may need beyond that at once: a slice or two that the kernel gives a thread.
pub const BURST: Duration = Duration::from_millis(5);
/// The longest time for which nobody looks because others need the processor.
pub const PAUSE_MAX: Duration = Duration::from_secs(1);
/// If they need it before so many times the last pause has gone by since it ended, the next pause
/// is twice as long: on a busy machine there are hardly any looks.
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
    /// What other threads have had of the processor beyond their share, as of `last_gap`: no more
    /// than what the longest pause makes up for.
    taken: Duration,
    /// When another thread last gave the processor back.
    last_gap: Option<Instant>,
    /// How long a look takes at most.
    most: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            hints_needed: 1,
            lost: 0,
            not_before: None,
            pause: Duration::ZERO,
            taken: Duration::ZERO,
            last_gap: None,
            most: LOOK,
        }
    }
}

impl Policy {
    /// Whether a wait that begins now is to begin with a look.
    #[must_use]
    pub fn may_look(&self, now: Instant) -> bool {
        self.hints_needed == 0 && self.not_before.is_none_or(|then| now >= then)
    }

    /// How long a wait that begins now looks at most: as long as the last short one took asleep,
    /// between [`LOOK`] and [`ANSWER`]. If the peer was asleep as well then, a shorter look would
    /// have ended while it woke; and two that only find each other asleep would go on so.
    #[must_use]
    pub fn most(&self) -> Duration {
        self.most
    }

    /// A look has found what it was for.
    pub fn won(&mut self) {
        self.lost = self.lost.saturating_sub(1);
    }

    /// A look has found what it was for, after another thread has had the processor for so long.
    /// If that was no longer than a look, it made what was waited for: a peer, say, that the kernel
    /// has woken on the same processor.
    pub fn found(&mut self, now: Instant, gap: Option<Duration>, most: Duration) {
        if gap.is_none_or(|gap| gap <= most || self.preempted(now, gap)) {
            self.won();
        }
    }

    /// A look was in vain.
    pub fn lost(&mut self) {
        self.lost = (self.lost + 1).min(LOST_MAX);
        self.hints_needed = (1 << self.lost) - 1;
    }

    /// A wait without a look has ended with what it was for.
    pub fn slept(&mut self, waited: Duration) {
        if waited > SHORT {
            self.hints_needed = self.hints_needed.max(1);
            return;
        }
        self.hints_needed = self.hints_needed.saturating_sub(1);
        self.most = waited.clamp(LOOK, ANSWER);
    }

    /// Between two looks, for so long, another thread had the processor. True if the looks may go
    /// on: others have had little of it of late, as timers, the kernel's own threads and a program
    /// that does something now and then have.
    #[must_use]
    pub fn preempted(&mut self, now: Instant, gap: Duration) -> bool {
        let due = self
            .last_gap
            .map_or(Duration::ZERO, |last| (now - last) / SHARE);
        let taken = self.taken.saturating_sub(due).saturating_add(gap);
        self.taken = taken.min(PAUSE_MAX / SHARE);
        self.last_gap = Some(now);
        let is_little = self.taken <= BURST;
        if !is_little {
            self.pause(now);
        }
        is_little
    }

    fn pause(&mut self, now: Instant) {
        let recurs = |resumed| now < resumed + self.pause * RECURS;
        let longer = match self.not_before.is_some_and(recurs) {
            true => self.pause * 2,
            false => Duration::ZERO,
        };
        self.pause = (self.taken * SHARE).max(longer).min(PAUSE_MAX);
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
    fn a_look_is_as_long_as_a_short_wait_took_asleep() {
        let mut policy = Policy::default();
        assert_eq!(policy.most(), LOOK);
        for (waited, most) in [
            (BRIEF, BRIEF),
            (SHORT, ANSWER),
            (RARE, ANSWER),
            (Duration::ZERO, LOOK),
        ] {
            policy.slept(waited);
            assert_eq!(policy.most(), most, "after {waited:?}");
        }
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
    fn others_that_need_much_at_once_are_left_alone_for_many_times_as_long() {
        let (now, ns) = (Instant::now(), Duration::from_nanos(1));
        for (gap, pause) in [
            (BURST + ns, (BURST + ns) * SHARE),
            (Duration::from_millis(50), Duration::from_millis(800)),
            (Duration::from_secs(3600), PAUSE_MAX),
        ] {
            let mut policy = Policy::default();
            policy.slept(BRIEF);
            assert!(!policy.preempted(now, gap));
            assert!(!policy.may_look(now + pause.saturating_sub(ns)));
            assert!(policy.may_look(now + pause), "after {gap:?}");
            assert!(policy.preempted(now + pause + GAP, GAP), "forgiven");
        }
        let mut policy = Policy::default();
        policy.slept(BRIEF);
        assert!(policy.preempted(now, BURST) && policy.may_look(now));
        assert!(!policy.preempted(now + GAP, GAP), "one more at once");
    }

    #[test]
    fn what_another_thread_makes_on_the_same_processor_is_found() {
        let (mut policy, now) = (Policy::default(), Instant::now());
        policy.slept(BRIEF);
        for _ in 0..1000 {
            policy.found(now, Some(LOOK), LOOK);
        }
        assert!(policy.may_look(now));
        policy.found(now, Some(BURST * 2), LOOK);
        assert!(!policy.may_look(now), "another one had work of its own");
    }

    #[test]
    fn pauses_get_longer_where_others_need_the_processor_again_and_short_where_not() {
        let (mut policy, mut now) = (Policy::default(), Instant::now());
        let gap = Duration::from_millis(6);
        policy.slept(BRIEF);
        let pauses: Vec<u128> = (0..6)
            .map(|_| {
                assert!(!policy.preempted(now, gap));
                let pause = policy.pause;
                now += pause;
                assert!(policy.may_look(now));
                now += gap * 2;
                pause.as_millis()
            })
            .collect();
        assert_eq!(pauses, [96, 192, 384, 768, 1000, 1000]);
        now += PAUSE_MAX * RECURS;
        assert!(!policy.preempted(now, gap));
        assert_eq!(policy.pause, gap * SHARE);
    }

    /// How much of ten seconds a thread may look for where another one takes the processor for
    /// `gap` whenever it has not had it for `period`.
    fn looked(gap: Duration, period: Duration) -> f64 {
        let begun = Instant::now();
        let (mut policy, mut now, mut looked) = (Policy::default(), begun, Duration::ZERO);
        policy.slept(BRIEF);
        while now - begun < Duration::from_secs(10) {
            let next = now + period;
            // Before the pause is over there is no look, and no gap that could be seen.
            let from = policy.not_before.map_or(now, |then| then.max(now));
            now = next + gap;
            if from < next {
                looked += next - from;
                let _ = policy.preempted(now, gap);
            }
        }
        looked.as_secs_f64() / 10.0
    }

    #[test]
    fn a_neighbour_that_needs_little_ends_no_looks() {
        let (brief, often) = (Duration::from_micros(200), Duration::from_millis(5));
        assert!(looked(brief, often) > 0.9, "one that looks every 5 ms");
        assert!(looked(GAP, Duration::from_millis(1)) > 0.9, "a timer");
        let slice = Duration::from_millis(4);
        let share = looked(slice, Duration::from_millis(100));
        assert!(share > 0.9, "a slice ten times a second: {share}");
    }

    #[test]
    fn a_neighbour_that_needs_the_processor_keeps_it() {
        for slice in [100, 1000, 3000, 10_000].map(Duration::from_micros) {
            let share = looked(slice, slice);
            assert!(share < 0.05, "{share} beside slices of {slice:?}");
            let share = looked(slice * 2, slice);
            assert!(share < 0.05, "{share} beside two such");
        }
    }
}
