//! What a connection to a segment hears, from the broker or from another host's daemon, and what
//! the program hears of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use causeway_fabric::services::sisci::RemoteChange;

use super::{Reached, RemoteSegment, State, fetch};
use crate::asked::Asked;
use crate::error::Error;
use crate::library::Library;
use crate::local::Reason;

impl RemoteSegment {
    /// The broker tells of a change.
    pub(crate) fn note(self: &Arc<Self>, library: &Library, change: RemoteChange) {
        match change {
            RemoteChange::Connected => {
                let mut state = self.state.lock();
                if !matches!(*state, State::Pending(_)) {
                    return;
                }
                let fetched = fetch(library, &self.via, (self.number, self.id));
                let (fresh, status) = match fetched {
                    Ok(fresh) => (fresh, Error::OK),
                    // The segment went in between.
                    Err(Error::ILLEGAL_PARAMETER) => (State::Failed, Error::CONNECTION_REFUSED),
                    // Another broker or daemon has come in between, or the daemon is away: the
                    // connect is pending there, or will be, and its news is still to come.
                    Err(Error::NOT_CONNECTED) => return,
                    Err(Error::NO_REMOTE_LINK_ACCESS) if matches!(self.via, Asked::Daemon(_)) => {
                        return;
                    }
                    Err(error) => {
                        // Its owner would be told of a connection that nobody has.
                        self.via.disconnect(self.number);
                        (State::Failed, error)
                    }
                };
                *state = fresh;
                drop(state);
                self.tell(library, Reason::Connect, status);
            }
            RemoteChange::Disconnect => self.tell(library, Reason::Disconnect, Error::OK),
            // Of a connect that is pending nothing is told but how it ends.
            RemoteChange::NotOperational | RemoteChange::Operational
                if matches!(*self.state.lock(), State::Pending(_)) => {}
            RemoteChange::NotOperational => {
                self.tell(library, Reason::NotOperational, Error::NODE_NOT_RESPONDING);
            }
            RemoteChange::Operational => self.tell(library, Reason::Operational, Error::OK),
            RemoteChange::Lost => self.lost(library),
        }
    }

    /// The owner, or the daemon by which it was reached, is gone for good.
    fn lost(self: &Arc<Self>, library: &Library) {
        let mut state = self.state.lock();
        let (reason, status) = match &*state {
            // Nothing is lost that was never had.
            State::Failed => return,
            State::Pending(_) => {
                *state = State::Failed;
                (Reason::Connect, Error::NO_REMOTE_LINK_ACCESS)
            }
            State::Connected(reached, owner) => {
                if let Reached::There(_, lives, _) = reached {
                    lives.end(owner.life);
                }
                (Reason::Lost, Error::OK)
            }
        };
        drop(state);
        self.tell(library, reason, status);
    }

    /// When a connect that is pending is given up.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &*self.state.lock() {
            State::Pending(deadline) => *deadline,
            _ => None,
        }
    }

    /// Gives a pending connect up.
    pub(crate) fn expire(self: &Arc<Self>, library: &Library) {
        let mut state = self.state.lock();
        if matches!(*state, State::Pending(_)) {
            *state = State::Failed;
            drop(state);
            self.via.disconnect(self.number);
            self.tell(library, Reason::Connect, Error::TIMEOUT);
        }
    }

    pub(super) fn tell(self: &Arc<Self>, library: &Library, reason: Reason, status: Error) {
        if self.callback.is_none() {
            self.events.push((reason, status));
            return;
        }
        let segment = self.clone();
        let call = move || {
            let callback = segment.callback.as_ref();
            let wanted = callback.filter(|_| !segment.cancelled.load(Ordering::Relaxed));
            if wanted.is_some_and(|callback| !callback(segment.handle, reason, status)) {
                segment.cancelled.store(true, Ordering::Relaxed);
            }
        };
        let (owner, removed) = (self.handle.id(), self.uses.watch());
        library.callbacks.call(owner, removed, Box::new(call));
    }
}
