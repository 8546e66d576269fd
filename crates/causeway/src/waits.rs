//! Threads that wait for something that other processes do, until the broker tells of it.

use std::collections::HashMap;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// How a wait stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing is known, or the time is over.
    Pending,
    /// The broker has told of it, and forgotten it.
    Told,
    /// There is another broker, which knows of no waits.
    Forgotten,
}

/// All that wait in this process.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    state: Mutex<State>,
    /// Something in `state` has changed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    open: HashMap<u64, Outcome>,
}

/// One wait; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Wait<'a> {
    waits: &'a Waits,
    pub(crate) ticket: u64,
}

impl Waits {
    /// A new one, that nobody has heard of.
    pub(crate) fn begin(&self) -> Wait<'_> {
        let mut state = self.state.lock();
        state.last += 1;
        let ticket = state.last;
        state.open.insert(ticket, Outcome::Pending);
        Wait {
            waits: self,
            ticket,
        }
    }

    /// The broker tells of one.
    pub(crate) fn tell(&self, ticket: u64) {
        if let Some(outcome) = self.state.lock().open.get_mut(&ticket) {
            *outcome = Outcome::Told;
        }
        self.changed.notify_all();
    }

    /// There is another broker.
    pub(crate) fn forget(&self) {
        let mut state = self.state.lock();
        let pending = |outcome: &&mut Outcome| **outcome == Outcome::Pending;
        for outcome in state.open.values_mut().filter(pending) {
            *outcome = Outcome::Forgotten;
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl Wait<'_> {
    /// Sleeps until something is known, or the time is over.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Outcome {
        let mut state = self.waits.state.lock();
        loop {
            let outcome = state.open.get(&self.ticket).copied();
            let outcome = outcome.unwrap_or(Outcome::Pending);
            if outcome != Outcome::Pending {
                return outcome;
            }
            match deadline {
                None => self.waits.changed.wait(&mut state),
                Some(by) if Instant::now() >= by => return Outcome::Pending,
                Some(by) => drop(self.waits.changed.wait_until(&mut state, by)),
            }
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.waits.state.lock().open.remove(&self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_hears_of_its_own_and_all_of_another_broker() {
        let waits = Waits::default();
        let (a, b) = (waits.begin(), waits.begin());
        waits.tell(a.ticket);
        waits.tell(77);
        assert_eq!(a.wait(None), Outcome::Told);
        assert_eq!(b.wait(Some(Instant::now())), Outcome::Pending);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| b.wait(None));
            waits.forget();
            assert_eq!(waiter.join().unwrap(), Outcome::Forgotten);
        });
        assert_eq!(a.wait(None), Outcome::Told, "the broker has forgotten it");
        drop((a, b));
        assert!(waits.state.lock().open.is_empty());
    }

    #[test]
    fn a_time_ends() {
        let waits = Waits::default();
        let wait = waits.begin();
        let by = Instant::now() + Duration::from_millis(5);
        assert_eq!(wait.wait(Some(by)), Outcome::Pending);
        assert!(Instant::now() >= by);
    }
}
