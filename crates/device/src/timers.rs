//! When queue pairs want attention without any input.
//!
//! A queue pair's deadline changes with most of what it sends and receives, and seldom is what
//! comes first. So it is listed once, by a time no later than its deadline, and listed anew when
//! that time has come and the deadline has not.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use causeway_proto::Instant;

/// The times of an engine's queue pairs, the earliest first.
#[derive(Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(Instant, u32)>>);

/// The time by which a queue pair is listed, no later than its deadline.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Listed(Option<Instant>);

impl Timers {
    /// No later than the earliest deadline; it may be that of a wait which is over.
    #[inline]
    pub fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((when, _))| *when)
    }

    /// Sees to it that queue pair `qpn` is called no later than its deadline.
    #[inline]
    pub fn list(&mut self, qpn: u32, listed: &mut Listed, deadline: Option<Instant>) {
        if let Some(when) = deadline
            && listed.0.is_none_or(|listed| when < listed)
        {
            listed.0 = Some(when);
            self.0.push(Reverse((when, qpn)));
        }
    }

    /// Takes the earliest, if its time has come: when that was, and the queue pair's number.
    pub fn take(&mut self, now: Instant) -> Option<(Instant, u32)> {
        let Reverse((when, _)) = *self.0.peek()?;
        if when > now {
            return None;
        }
        self.0.pop().map(|Reverse(taken)| taken)
    }

    /// Whether a queue pair of which a time was taken is to be called: one that has been listed by
    /// another time since is not, nor is one whose deadline is later, which is listed again.
    pub fn is_due(
        &mut self,
        (when, qpn): (Instant, u32),
        listed: &mut Listed,
        deadline: Option<Instant>,
        now: Instant,
    ) -> bool {
        if listed.0 != Some(when) {
            return false;
        }
        listed.0 = None;
        let due = deadline.is_some_and(|deadline| deadline <= now);
        if !due {
            self.list(qpn, listed, deadline);
        }
        due
    }

    /// Takes those of another.
    pub fn absorb(&mut self, other: &mut Timers) {
        self.0.append(&mut other.0);
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_called_at_its_deadline_however_often_that_changed() {
        let (mut timers, mut listed) = (Timers::default(), [Listed::default(); 2]);
        let at = |time| Some(Instant(time));
        timers.list(0, &mut listed[0], at(50));
        timers.list(1, &mut listed[1], at(70));
        // The deadlines of both are later by now, and one of them is earlier again.
        let deadlines = [at(90), at(60)];
        timers.list(0, &mut listed[0], at(90));
        timers.list(1, &mut listed[1], at(60));
        let mut called = Vec::new();
        for now in (0..100).map(Instant) {
            while let Some(taken) = timers.take(now) {
                let qpn = taken.1;
                let one = qpn as usize;
                if timers.is_due(taken, &mut listed[one], deadlines[one], now) {
                    called.push((now.0, qpn));
                }
            }
        }
        assert_eq!(called, [(60, 1), (90, 0)]);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn a_wait_that_is_over_is_called_no_more() {
        let (mut timers, mut listed) = (Timers::default(), Listed::default());
        timers.list(7, &mut listed, Some(Instant(10)));
        assert_eq!(
            (timers.next(), timers.take(Instant(9))),
            (Some(Instant(10)), None)
        );
        let taken = timers.take(Instant(10)).unwrap();
        assert!(!timers.is_due(taken, &mut listed, None, Instant(10)));
        assert_eq!(timers.next(), None);
        timers.list(7, &mut listed, Some(Instant(20)));
        assert_eq!(timers.next(), Some(Instant(20)));
    }
}
