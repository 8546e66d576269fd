//! Transfers to other hosts and from them, in their order.
//!
//! The copy engine's thread copies memory, and waits for nobody; these transfers wait for the
//! network. So a thread of the queue's own carries them out, which is there while there are any.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use causeway_dma::{Completion, Queue, State};
use parking_lot::{Condvar, Mutex};

use crate::error::Error;

/// Name of the thread.
const THREAD: &str = "causeway-remote";

/// Carries a transfer out, until the flag is set.
pub(crate) type Work = Box<dyn FnOnce(&AtomicBool) -> Result<(), Error> + Send>;

/// A transfer.
struct Job {
    number: u64,
    work: Work,
    completion: Completion,
    stop: Arc<AtomicBool>,
}

/// A queue. Clones are the same queue.
#[derive(Clone, Default)]
pub(crate) struct RemoteQueue(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<Jobs>,
    ended: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// The flag of the one that is carried out.
    current: Option<Arc<AtomicBool>>,
    posted: u64,
    /// How many have ended; they do in their order.
    done: u64,
    /// How the last one ended that was waited for.
    last: Option<State>,
    /// The worst end since the queue was idle.
    outcome: Option<State>,
    thread: bool,
}

impl std::fmt::Debug for RemoteQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let outstanding = self.outstanding();
        f.debug_struct("RemoteQueue")
            .field("outstanding", &outstanding)
            .finish_non_exhaustive()
    }
}

/// Which of two ends is worse.
pub(crate) fn worse(one: Option<State>, other: Option<State>) -> Option<State> {
    let rank = |state: &Option<State>| match state {
        None => 0,
        Some(State::Done) => 1,
        Some(State::Aborted) => 2,
        Some(State::Failed) => 3,
        Some(State::Posted) => 4,
    };
    [one, other].into_iter().max_by_key(rank).flatten()
}

impl RemoteQueue {
    /// Puts a transfer at the end of the queue. It begins when the transfers of `before` have
    /// ended. Returns its number.
    ///
    /// # Errors
    /// [`Error::SYSTEM`] without a thread.
    pub fn post(
        &self,
        before: &Arc<Queue>,
        work: Work,
        completion: Completion,
    ) -> Result<u64, Error> {
        let mut jobs = self.0.state.lock();
        if !jobs.thread {
            let (queue, before) = (self.clone(), before.clone());
            let thread = std::thread::Builder::new().name(THREAD.into());
            // It waits for the lock first.
            let spawned = thread.spawn(move || {
                let _ = before.wait(None);
                while queue.turn() {}
            });
            spawned.map_err(|_| Error::SYSTEM)?;
            jobs.thread = true;
        }
        if jobs.posted == jobs.done {
            jobs.outcome = None;
        }
        jobs.posted += 1;
        let number = jobs.posted;
        jobs.waiting.push_back(Job {
            number,
            work,
            completion,
            stop: Arc::default(),
        });
        Ok(number)
    }

    /// Carries out the next transfer. False if there is none, and the thread is to end.
    fn turn(&self) -> bool {
        let mut jobs = self.0.state.lock();
        let Some(job) = jobs.waiting.pop_front() else {
            jobs.thread = false;
            return false;
        };
        jobs.current = Some(job.stop.clone());
        drop(jobs);
        let outcome = match job.stop.load(Ordering::Relaxed) {
            true => Err(Error::CANCELLED),
            false => (job.work)(&job.stop),
        };
        let state = match outcome {
            Ok(()) => State::Done,
            Err(Error::CANCELLED) => State::Aborted,
            Err(_) => State::Failed,
        };
        let mut jobs = self.0.state.lock();
        jobs.current = None;
        jobs.done = job.number;
        jobs.last = Some(state);
        jobs.outcome = worse(jobs.outcome, Some(state));
        drop(jobs);
        self.0.ended.notify_all();
        match job.completion {
            Completion::None => {}
            Completion::Brief(tell) | Completion::Callback(tell) => tell(state),
        }
        true
    }

    /// How many transfers have not ended.
    pub fn outstanding(&self) -> usize {
        let jobs = self.0.state.lock();
        (jobs.posted - jobs.done) as usize
    }

    /// As [`Queue::state`].
    pub fn state(&self) -> Option<State> {
        let jobs = self.0.state.lock();
        match jobs.posted == jobs.done {
            true => jobs.outcome,
            false => Some(State::Posted),
        }
    }

    /// Waits until all transfers have ended, or until `deadline`.
    pub fn wait(&self, deadline: Option<Instant>) {
        let mut jobs = self.0.state.lock();
        let all = jobs.posted;
        while jobs.done < all {
            let over = match deadline {
                None => {
                    self.0.ended.wait(&mut jobs);
                    false
                }
                Some(by) => self.0.ended.wait_until(&mut jobs, by).timed_out(),
            };
            if over {
                return;
            }
        }
    }

    /// Waits for the transfer that was posted last, by this thread: how it ended, or how one that
    /// was posted since did.
    pub fn wait_for(&self, number: u64) -> State {
        let mut jobs = self.0.state.lock();
        while jobs.done < number {
            self.0.ended.wait(&mut jobs);
        }
        jobs.last.unwrap_or(State::Failed)
    }

    /// Stops all transfers. Returns when they have ended.
    pub fn abort(&self) {
        self.stop();
        self.wait(None);
    }

    /// Has all transfers stop, and does not wait for that.
    pub fn stop(&self) {
        let jobs = self.0.state.lock();
        let waiting = jobs.waiting.iter().map(|job| &job.stop);
        for stop in waiting.chain(&jobs.current) {
            stop.store(true, Ordering::Relaxed);
        }
    }

    /// Forgets how transfers have ended. Returns false while there are transfers under way.
    pub fn reset(&self) -> bool {
        let mut jobs = self.0.state.lock();
        let idle = jobs.posted == jobs.done;
        if idle {
            jobs.outcome = None;
        }
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn transfers_end_in_their_order_and_the_worst_end_counts() {
        let (queue, engine) = (RemoteQueue::default(), Arc::new(Queue::new()));
        let (ends, ended) = mpsc::channel();
        let (go, gate) = mpsc::channel();
        let post = |work: Work| {
            let ends = ends.clone();
            let tell = Completion::Brief(Box::new(move |state| ends.send(state).unwrap()));
            queue.post(&engine, work, tell).unwrap()
        };
        post(Box::new(move |_| gate.recv().map_err(|_| Error::SYSTEM)));
        post(Box::new(|_| Err(Error::TRANSFER_FAILED)));
        let last = post(Box::new(|_| Ok(())));
        assert_eq!(
            (queue.state(), queue.outstanding()),
            (Some(State::Posted), 3)
        );
        assert!(!queue.reset());
        go.send(()).unwrap();
        assert_eq!(queue.wait_for(last), State::Done);
        assert_eq!(queue.state(), Some(State::Failed));
        let ends: Vec<State> = (0..3).map(|_| ended.recv().unwrap()).collect();
        assert_eq!(ends, [State::Done, State::Failed, State::Done]);
        assert!(queue.reset() && queue.state().is_none());
    }

    #[test]
    fn what_is_aborted_stops_and_what_waits_does_not_begin() {
        let (queue, engine) = (RemoteQueue::default(), Arc::new(Queue::new()));
        let long: Work = Box::new(|stop| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Err(Error::CANCELLED)
        });
        queue.post(&engine, long, Completion::None).unwrap();
        let never: Work = Box::new(|_| panic!("it was aborted before"));
        queue.post(&engine, never, Completion::None).unwrap();
        queue.abort();
        assert_eq!(
            (queue.state(), queue.outstanding()),
            (Some(State::Aborted), 0)
        );
    }
}
