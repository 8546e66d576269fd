//! Queues of transfers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::engine::Engine;
use crate::job::JobQueue;
use crate::{Request, State, Transfer};

/// Transfers that are carried out one after another. Thread-safe. They go on if the queue is
/// dropped; [`Queue::abort`] and [`Queue::wait`] end them.
#[derive(Debug)]
pub struct Queue {
    engine: Arc<Engine>,
    jobs: Arc<JobQueue>,
    posted: Mutex<Posted>,
}

/// What was posted and has not been seen to end, and how the others ended.
#[derive(Debug, Default)]
struct Posted {
    /// In their order, in which they end too.
    transfers: VecDeque<Transfer>,
    /// The worst end since the queue was last at rest.
    outcome: Option<State>,
}

impl Posted {
    /// Takes note of those that have ended.
    fn settle(&mut self) {
        while let Some(first) = self.transfers.front() {
            let state = first.state();
            if !state.is_final() {
                return;
            }
            if !matches!(self.outcome, Some(State::Failed | State::Aborted)) {
                self.outcome = Some(state);
            }
            self.transfers.pop_front();
        }
    }
}

impl Default for Queue {
    fn default() -> Queue {
        Queue::new()
    }
}

impl Queue {
    /// An empty queue of this process's engine.
    #[must_use]
    pub fn new() -> Queue {
        // Before there is memory that can go.
        causeway_recover::install();
        Queue {
            engine: Engine::current(),
            jobs: Arc::default(),
            posted: Mutex::default(),
        }
    }

    /// Puts a transfer at the end of the queue, and returns at once: within the time that it takes
    /// to wake a thread, in which one that has no others before it is begun. A short one has ended
    /// then.
    ///
    /// # Safety
    /// Until the transfer has ended, the descriptors' memory is mapped, readable and writable
    /// respectively, and no Rust reference to it claims that it holds still.
    pub unsafe fn post(&self, request: Request) -> Transfer {
        self.enter(request, false)
    }

    /// As [`Queue::post`] for a caller that calls [`Transfer::wait`] next, and so carries the
    /// transfer out itself.
    ///
    /// # Safety
    /// As [`Queue::post`].
    pub unsafe fn post_waited(&self, request: Request) -> Transfer {
        self.enter(request, true)
    }

    fn enter(&self, request: Request, waited: bool) -> Transfer {
        let mut posted = self.posted.lock();
        posted.settle();
        if posted.transfers.is_empty() {
            posted.outcome = None;
        }
        let bytes = request.bytes();
        let (job, eager) = self.engine.post(&self.jobs, request, waited);
        let transfer = Transfer {
            engine: self.engine.clone(),
            job,
        };
        posted.transfers.push_back(transfer.clone());
        drop(posted);
        if eager {
            self.engine.carry_on(&transfer.job, bytes);
        }
        transfer
    }

    /// `None` before the first transfer; [`State::Posted`] while there is one that has not ended;
    /// then how the last ended, or the worst end of those that were posted while others were under
    /// way.
    pub fn state(&self) -> Option<State> {
        let mut posted = self.posted.lock();
        posted.settle();
        if posted.transfers.is_empty() {
            posted.outcome
        } else {
            Some(State::Posted)
        }
    }

    /// How many transfers have not ended.
    pub fn outstanding(&self) -> usize {
        let mut posted = self.posted.lock();
        posted.settle();
        posted.transfers.len()
    }

    /// Waits until all transfers have ended, or until `deadline`; returns the state as
    /// [`Queue::state`].
    pub fn wait(&self, deadline: Option<Instant>) -> Option<State> {
        loop {
            let next = {
                let mut posted = self.posted.lock();
                posted.settle();
                posted.transfers.front().cloned()
            };
            match next {
                None => return self.state(),
                Some(transfer) if transfer.wait(deadline) == State::Posted => {
                    return Some(State::Posted);
                }
                Some(_) => {}
            }
        }
    }

    /// Asks all transfers to stop. Returns when they have: nothing is stored afterwards.
    pub fn abort(&self) {
        let transfers = self.posted.lock().transfers.clone();
        for transfer in &transfers {
            transfer.abort();
        }
        let _ = self.wait(None);
    }

    /// Forgets how transfers have ended: the state is `None` again. Returns false while there are
    /// transfers under way.
    pub fn reset(&self) -> bool {
        let mut posted = self.posted.lock();
        posted.settle();
        if posted.transfers.is_empty() {
            posted.outcome = None;
        }
        posted.transfers.is_empty()
    }
}
