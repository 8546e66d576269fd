//! Threads that wait until an owner is back that a new broker does not have yet.

use std::collections::BTreeSet;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// The waits of a process.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    waits: Mutex<Waits>,
    told: Condvar,
}

#[derive(Debug, Default)]
struct Waits {
    last: u64,
    /// Those that nothing was told of.
    open: BTreeSet<u64>,
}

impl Returns {
    /// Begins a wait, before a broker is asked: it may tell before it is waited for.
    pub fn begin(&self) -> u64 {
        let mut waits = self.waits.lock();
        waits.last += 1;
        let ticket = waits.last;
        waits.open.insert(ticket);
        ticket
    }

    /// There is news of one.
    pub fn tell(&self, ticket: u64) {
        if self.waits.lock().open.remove(&ticket) {
            self.told.notify_all();
        }
    }

    /// All are to ask again: who was asked is gone, or what they wait with is.
    pub fn tell_all(&self) {
        self.waits.lock().open.clear();
        self.told.notify_all();
    }

    /// Waits for news, and ends the wait.
    pub fn wait(&self, ticket: u64, until: Instant) {
        let mut waits = self.waits.lock();
        while waits.open.contains(&ticket) {
            if self.told.wait_until(&mut waits, until).timed_out() {
                break;
            }
        }
        waits.open.remove(&ticket);
    }

    /// Ends a wait at once.
    pub fn end(&self, ticket: u64) {
        self.waits.lock().open.remove(&ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn who_waits_is_woken_by_its_own_news_or_by_those_for_all() {
        let returns = Returns::default();
        let (early, own, other) = (returns.begin(), returns.begin(), returns.begin());
        let for_ever = Instant::now() + Duration::from_secs(3600);
        returns.tell(early);
        returns.wait(early, for_ever);
        std::thread::scope(|scope| {
            let woken = scope.spawn(|| returns.wait(own, for_ever));
            returns.tell(own);
            woken.join().unwrap();
            assert_eq!(returns.waits.lock().open, BTreeSet::from([other]));
            let woken = scope.spawn(|| returns.wait(other, for_ever));
            returns.tell_all();
            woken.join().unwrap();
        });
        let late = returns.begin();
        returns.wait(late, Instant::now());
        assert!(returns.waits.lock().open.is_empty());
    }
}
