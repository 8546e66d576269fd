//! A word that changes when something happens, and on which waiters sleep.
//!
//! Bit 0 says that somebody may sleep; the rest counts events, and never comes back to a value in a
//! waiter's lifetime. A waiter reads the count (the *key*), looks for what it waits for, and sleeps
//! while the count is the same. An event is first counted and then told, so it can't be lost:
//! neither with a waiter that dies when it is woken, since the death wakes the others and they find
//! the count changed, nor with a waker that dies or stops in between, since every waiter looks
//! again when its lease is over.

use super::locker::{Locker, Waiting, Woke};
use crate::sync::{AtomicU64, Ordering};

/// Somebody may sleep.
const SLEEPERS: u64 = 1;
/// One event.
const EVENT: u64 = 2;
/// To wake all.
pub(crate) const ALL: u32 = u32::MAX;

/// Whether somebody may sleep on an event word.
pub(crate) fn is_awaited(word: u64) -> bool {
    word & SLEEPERS != 0
}

/// An event word.
#[derive(Clone, Copy)]
pub(crate) struct Event<'m>(pub(crate) &'m AtomicU64);

impl Event<'_> {
    /// What was counted until now.
    pub(crate) fn key(self) -> u64 {
        self.0.load(Ordering::Acquire) & !SLEEPERS
    }

    /// Whether something was counted since.
    pub(crate) fn is_past(self, key: u64) -> bool {
        self.key() != key
    }

    /// Counts an event and wakes one sleeper, or all. Without sleepers it makes no system call.
    pub(crate) fn tell(self, who: &Locker, count: u32) {
        let before = self.0.fetch_add(EVENT, Ordering::AcqRel);
        who.step("lock.event.counted");
        if before & SLEEPERS == 0 {
            return;
        }
        if count == ALL {
            self.wake_all(who, before.wrapping_add(EVENT));
        } else if who.wake(self.0, count) == 0 {
            // The sleepers have left. Some may just have come: clearing the mark wakes them.
            self.wake_all(who, before.wrapping_add(EVENT));
        }
    }

    /// Clears the mark, unless more has happened, and wakes all. One that sleeps again marks it
    /// again.
    fn wake_all(self, who: &Locker, now: u64) {
        let _ = self
            .0
            .compare_exchange(now, now & !SLEEPERS, Ordering::AcqRel, Ordering::Relaxed);
        who.step("lock.event.cleared");
        who.wake(self.0, ALL);
    }

    /// Sleeps while nothing was counted since `key` and nobody has died since `deaths`.
    pub(crate) fn sleep(self, who: &Locker, waiting: &mut Waiting, key: u64, deaths: u32) -> Woke {
        let now = self.0.load(Ordering::Acquire);
        if now & !SLEEPERS != key {
            return Woke::Early;
        }
        let marked = now | SLEEPERS;
        if now != marked
            && self
                .0
                .compare_exchange(now, marked, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
        {
            return Woke::Early;
        }
        who.step("lock.event.marked");
        let woke = waiting.sleep(self.0, marked, deaths);
        who.step("lock.event.woken");
        woke
    }
}
