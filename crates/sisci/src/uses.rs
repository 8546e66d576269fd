//! Uses of an object: it is not removed before its users have let go.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Error, Result};

/// Counts an object's users.
#[derive(Debug, Default)]
pub struct Uses(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    count: usize,
    closed: bool,
}

/// One user; it lets go when dropped.
#[derive(Debug)]
pub struct Use(Arc<Mutex<State>>);

impl Uses {
    /// One more user.
    ///
    /// # Errors
    /// [`Error::ILLEGAL_PARAMETER`] if the object is being removed.
    pub fn enter(&self) -> Result<Use> {
        let mut state = self.0.lock();
        if state.closed {
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
        let mut state = self.0.lock();
        if state.closed {
            Err(Error::ILLEGAL_PARAMETER)
        } else if state.count > 0 {
            Err(Error::BUSY)
        } else {
            state.closed = true;
            Ok(())
        }
    }

    /// Takes [`Uses::close`] back: the removal failed.
    pub fn reopen(&self) {
        self.0.lock().closed = false;
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
        self.0.lock().count -= 1;
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
        uses.reopen();
        assert!(uses.enter().is_ok());
    }
}
