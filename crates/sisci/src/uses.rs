//! Uses of an object: it is not removed before its users have let go.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::{Error, Result};

/// Counts an object's users.
#[derive(Debug, Default)]
pub struct Uses(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    decided: Condvar,
}

#[derive(Debug, Default)]
struct State {
    count: usize,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// Somebody tries to remove the object; until that is decided, others wait.
    Closing,
    Closed,
}

/// Tells whether an object is removed, also to who does not keep it.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Shared>);

/// One user; it lets go when dropped.
#[derive(Debug)]
pub struct Use(Arc<Shared>);

/// An attempt to remove an object. Unless it succeeds, the object stays as it was.
#[derive(Debug)]
pub struct Closing<'a>(&'a Shared);

impl Uses {
    /// For who is to know whether the object is removed.
    pub fn watch(&self) -> Watch {
        Watch(self.0.clone())
    }

    /// One more user.
    ///
    /// # Errors
    /// [`Error::ILLEGAL_PARAMETER`] if the object is removed.
    pub fn enter(&self) -> Result<Use> {
        let mut state = self.0.settled();
        if state.phase == Phase::Closed {
            return Err(Error::ILLEGAL_PARAMETER);
        }
        state.count += 1;
        Ok(Use(self.0.clone()))
    }

    /// Closes the object: there will be no users.
    ///
    /// # Errors
    /// [`Error::BUSY`] while there are, [`Error::ILLEGAL_PARAMETER`] if it is closed.
    pub fn close(&self) -> Result<()> {
        self.try_close()?.succeed();
        Ok(())
    }

    /// Begins to close the object, which may fail yet. Until that is decided, no other thread gets
    /// an answer: it would be told that there is no such object, of one that stays. So whoever
    /// decides waits for no other user.
    ///
    /// # Errors
    /// As [`Uses::close`].
    pub fn try_close(&self) -> Result<Closing<'_>> {
        let mut state = self.0.settled();
        match *state {
            State {
                phase: Phase::Closed,
                ..
            } => Err(Error::ILLEGAL_PARAMETER),
            State { count: 0, .. } => {
                state.phase = Phase::Closing;
                Ok(Closing(&self.0))
            }
            _ => Err(Error::BUSY),
        }
    }
}

impl Watch {
    /// Whether it is, once nobody is about to remove it.
    pub fn is_closed(&self) -> bool {
        self.0.settled().phase == Phase::Closed
    }
}

impl Shared {
    /// The state once nobody is closing the object.
    fn settled(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        while state.phase == Phase::Closing {
            self.decided.wait(&mut state);
        }
        state
    }

    fn decide(&self, phase: Phase) {
        self.state.lock().phase = phase;
        self.decided.notify_all();
    }
}

impl Closing<'_> {
    /// The object is removed.
    pub fn succeed(self) {
        self.0.decide(Phase::Closed);
        std::mem::forget(self);
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.decide(Phase::Open);
    }
}

/// What an object uses, until it is removed: others may hold the object a little longer.
#[derive(Debug)]
pub struct Held<T = Use>(Mutex<Option<T>>);

impl<T> Held<T> {
    /// Holds on.
    pub fn new(held: T) -> Held<T> {
        Held(Mutex::new(Some(held)))
    }

    /// Lets go.
    pub fn release(&self) {
        drop(self.0.lock().take());
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.state.lock().count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_is_not_closed() {
        let uses = Uses::default();
        let one = uses.enter().unwrap();
        let two = uses.enter().unwrap();
        assert_eq!(uses.close(), Err(Error::BUSY));
        drop(one);
        assert_eq!(uses.close(), Err(Error::BUSY));
        drop(two);
        assert_eq!(uses.close(), Ok(()));
        assert_eq!(uses.enter().unwrap_err(), Error::ILLEGAL_PARAMETER);
        assert_eq!(uses.close(), Err(Error::ILLEGAL_PARAMETER));
    }

    #[test]
    fn who_comes_while_it_is_decided_waits_for_the_decision() {
        for succeeds in [false, true] {
            let uses = Uses::default();
            let closing = uses.try_close().unwrap();
            std::thread::scope(|scope| {
                let enters = scope.spawn(|| uses.enter().map(drop));
                let closes = scope.spawn(|| uses.close());
                // Long enough that one that does not wait has its answer.
                for _ in 0..20 {
                    std::thread::yield_now();
                    assert!(!enters.is_finished() && !closes.is_finished());
                }
                match succeeds {
                    true => closing.succeed(),
                    false => drop(closing),
                }
                let (entered, closed) = (enters.join().unwrap(), closes.join().unwrap());
                let gone = Err(Error::ILLEGAL_PARAMETER);
                if succeeds {
                    assert_eq!((entered, closed), (gone, gone));
                } else {
                    // In any order, but one of them finds it as it was.
                    assert!(entered.is_ok() || closed.is_ok(), "{entered:?} {closed:?}");
                }
            });
        }
    }
}
