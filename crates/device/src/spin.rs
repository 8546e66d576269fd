//! Programs that spin on a completion queue, where others need the processor to make what they wait
//! for.
//!
//! A program that polls a NIC keeps its processor from nobody the NIC needs. Here the peer is a
//! process: where there are more that spin than there are processors, each message would wait until
//! the kernel takes the processor from one of them, milliseconds. So a thread that has polled for
//! longer than an answer takes says to the kernel that others may go first (`sched_yield(2)`),
//! which takes a third of a microsecond where there are none.

use std::time::Duration;

use causeway_proto::Instant;

use crate::clock::Now;

/// Fruitless polls between two looks at the clock.
const POLLS: u32 = 32;
/// How long a program polls before it first offers the processor to others.
const PATIENCE: Duration = Duration::from_micros(30);
/// The longest that a poll takes a program that does nothing else. One that does other work
/// between polls needs the processor for that.
const POLL: Duration = Duration::from_micros(2);

/// The polls of an endpoint since something last came, or was posted.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    polls: u32,
    begun: Instant,
    looked: Instant,
}

impl Spin {
    /// Something came, or was posted.
    #[inline(always)]
    pub fn end(&mut self) {
        self.polls = 0;
    }

    /// Counts a fruitless poll, unless it is one that a look at the clock is due in, which
    /// [`Spin::turn`] counts. True for such a one.
    #[inline(always)]
    pub fn is_turn(&mut self) -> bool {
        let polls = self.polls.wrapping_add(1);
        let due = polls.is_multiple_of(POLLS);
        if !due {
            self.polls = polls;
        }
        due
    }

    /// Nothing came. True if others had better go first.
    #[inline]
    pub fn turn(&mut self, now: &Now) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.polls.is_multiple_of(POLLS) && self.is_long(now.get())
    }

    #[cold]
    fn is_long(&mut self, now: Instant) -> bool {
        let took = now.since(self.looked);
        self.looked = now;
        if self.polls == POLLS {
            self.begun = now;
        }
        now.since(self.begun) >= PATIENCE && took < POLL * POLLS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often others go first in so many polls, each of which takes `poll`.
    fn turns(spin: &mut Spin, time: &mut Instant, polls: u32, poll: Duration) -> u32 {
        let mut offered = 0;
        for _ in 0..polls {
            *time = *time + poll;
            // As a poll does.
            if spin.is_turn() {
                offered += u32::from(spin.turn(&Now::at(*time)));
            }
        }
        offered
    }

    #[test]
    fn who_only_spins_lets_others_go_first_after_a_while() {
        let (mut spin, mut time) = (Spin::default(), Instant(1 << 40));
        let poll = PATIENCE / POLLS / 4 + Duration::from_nanos(1);
        assert_eq!(turns(&mut spin, &mut time, 4 * POLLS, poll), 0);
        assert_eq!(turns(&mut spin, &mut time, 10 * POLLS, poll), 10);
        spin.end();
        let again = turns(&mut spin, &mut time, 4 * POLLS, poll);
        assert_eq!(again, 0, "something had come");
    }

    #[test]
    fn who_works_between_polls_keeps_the_processor() {
        let (mut spin, mut time) = (Spin::default(), Instant(1 << 40));
        let poll = POLL + Duration::from_nanos(1);
        assert_eq!(turns(&mut spin, &mut time, 100 * POLLS, poll), 0);
    }
}
