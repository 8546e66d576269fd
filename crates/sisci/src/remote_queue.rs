//! Transfers to other hosts and from them, in their order.
//!
//! The copy engine's thread copies memory, and waits for nobody; these transfers wait for the
//! network. So a thread of the queue's own carries them out, which is there while there are any,
//! and for a little longer. Who waits for a transfer that has not begun carries it out himself: to
//! wake that thread, and to be woken by it, takes longer than a short transfer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use causeway_dma::{Completion, Queue, State};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::Error;

/// Name of the thread.
const THREAD: &str = "causeway-remote";

/// How long the thread of a queue waits for another transfer before it ends.
const LINGER: Duration = Duration::from_millis(100);

/// Carries a transfer out, until the flag is set.
pub(crate) type Work = Box<dyn FnOnce(&AtomicBool) -> Result<(), Error> + Send>;

/// A transfer.
struct Job {
    number: u64,
    /// Somebody waits for it, and for how it ends.
    waited: bool,
    /// It begins when the transfers of this queue have ended.
    before: Arc<Queue>,
    work: Work,
    completion: Completion,
    stop: Arc<AtomicBool>,
}

/// A queue. Clones are the same queue.
#[derive(Clone)]
pub(crate) struct RemoteQueue(Arc<Shared>);

struct Shared {
    /// How long the thread waits for another transfer before it ends.
    linger: Duration,
    state: Mutex<Jobs>,
    /// A transfer is there for the thread.
    posted: Condvar,
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
    /// How those ended that somebody waits for, by their numbers, until he knows.
    ends: BTreeMap<u64, State>,
    /// The worst end since the queue was idle.
    outcome: Option<State>,
    thread: bool,
}

impl Jobs {
    /// The next transfer, if it may begin. It is the caller's to carry out.
    fn begin(&mut self) -> Option<Job> {
        if self.current.is_some() {
            return None;
        }
        let job = self.waiting.pop_front()?;
        self.current = Some(job.stop.clone());
        Some(job)
    }
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

impl Default for RemoteQueue {
    fn default() -> RemoteQueue {
        RemoteQueue::lingering(LINGER)
    }
}

impl RemoteQueue {
    /// For one transfer: its thread ends with that.
    pub fn once() -> RemoteQueue {
        RemoteQueue::lingering(Duration::ZERO)
    }

    fn lingering(linger: Duration) -> RemoteQueue {
        RemoteQueue(Arc::new(Shared {
            linger,
            state: Mutex::default(),
            posted: Condvar::new(),
            ended: Condvar::new(),
        }))
    }

    /// Puts a transfer at the end of the queue. It begins when the transfers of `before` have
    /// ended. With `waited` the caller waits for it ([`RemoteQueue::wait_for`]). Returns its
    /// number.
    ///
    /// # Errors
    /// [`Error::SYSTEM`] without a thread. `transfer` was not called then.
    pub fn post(
        &self,
        before: &Arc<Queue>,
        waited: bool,
        transfer: impl FnOnce() -> (Work, Completion),
    ) -> Result<u64, Error> {
        let mut jobs = self.0.state.lock();
        if !waited && !jobs.thread {
            let queue = self.clone();
            let thread = std::thread::Builder::new().name(THREAD.into());
            // It waits for the lock first.
            let spawned = causeway_recover::spawn(thread, move |_| queue.serve());
            spawned.map_err(|_| Error::SYSTEM)?;
            jobs.thread = true;
        } else if !waited {
            self.0.posted.notify_one();
        }
        if jobs.posted == jobs.done {
            jobs.outcome = None;
        }
        jobs.posted += 1;
        let number = jobs.posted;
        let (work, completion) = transfer();
        jobs.waiting.push_back(Job {
            number,
            waited,
            before: before.clone(),
            work,
            completion,
            stop: Arc::default(),
        });
        Ok(number)
    }

    /// The thread: carries transfers out that nobody waits for.
    fn serve(&self) {
        let mut jobs = self.0.state.lock();
        loop {
            if let Some(job) = jobs.begin() {
                MutexGuard::unlocked(&mut jobs, || self.carry_out(job));
                continue;
            }
            let idle = self.0.posted.wait_for(&mut jobs, self.0.linger).timed_out();
            if idle && jobs.waiting.is_empty() {
                jobs.thread = false;
                return;
            }
        }
    }

    /// Carries a transfer out that has begun.
    fn carry_out(&self, job: Job) {
        let _ = job.before.wait(None);
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
        if job.waited {
            jobs.ends.insert(job.number, state);
        }
        jobs.outcome = worse(jobs.outcome, Some(state));
        if !jobs.waiting.is_empty() {
            self.0.posted.notify_one();
        }
        drop(jobs);
        self.0.ended.notify_all();
        match job.completion {
            Completion::None => {}
            Completion::Brief(tell) | Completion::Callback(tell) => tell(state),
        }
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
        let Some(by) = deadline else {
            return self.end_all(&mut jobs, all);
        };
        // A transfer that this thread carried out could last longer than that.
        while jobs.done < all && !self.0.ended.wait_until(&mut jobs, by).timed_out() {}
    }

    /// Waits for a transfer that was posted to be waited for, once: how it ended.
    pub fn wait_for(&self, number: u64) -> State {
        let mut jobs = self.0.state.lock();
        self.end_all(&mut jobs, number);
        jobs.ends.remove(&number).unwrap_or(State::Failed)
    }

    /// Returns when the transfers up to that number have ended; carries those out that have not
    /// begun.
    fn end_all(&self, jobs: &mut MutexGuard<'_, Jobs>, number: u64) {
        while jobs.done < number {
            match jobs.begin() {
                Some(job) => MutexGuard::unlocked(jobs, || self.carry_out(job)),
                None => self.0.ended.wait(jobs),
            }
        }
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
            queue.post(&engine, false, || (work, tell)).unwrap()
        };
        post(Box::new(move |_| gate.recv().map_err(|_| Error::SYSTEM)));
        post(Box::new(|_| Err(Error::TRANSFER_FAILED)));
        post(Box::new(|_| Ok(())));
        assert_eq!(
            (queue.state(), queue.outstanding()),
            (Some(State::Posted), 3)
        );
        assert!(!queue.reset());
        go.send(()).unwrap();
        queue.wait(None);
        assert_eq!(queue.state(), Some(State::Failed));
        let ends: Vec<State> = (0..3).map(|_| ended.recv().unwrap()).collect();
        assert_eq!(ends, [State::Done, State::Failed, State::Done]);
        assert!(queue.reset() && queue.state().is_none());
    }

    #[test]
    fn who_waits_hears_of_the_own_transfer_whatever_has_ended_since() {
        let (queue, engine) = (RemoteQueue::default(), Arc::new(Queue::new()));
        let post = |outcome| {
            let work: Work = Box::new(move |_| outcome);
            let transfer = || (work, Completion::None);
            queue.post(&engine, true, transfer).unwrap()
        };
        let numbers = [Err(Error::TRANSFER_FAILED), Ok(()), Err(Error::CANCELLED)].map(post);
        let ends = numbers.map(|number| {
            queue.wait(None);
            queue.wait_for(number)
        });
        assert_eq!(ends, [State::Failed, State::Done, State::Aborted]);
        assert!(queue.0.state.lock().ends.is_empty());
    }

    #[test]
    fn who_waits_carries_out_what_has_not_begun_and_what_nobody_waits_for_ends_too() {
        let (queue, engine) = (RemoteQueue::default(), Arc::new(Queue::new()));
        let (threads, thread) = mpsc::channel();
        let note = || -> Work {
            let threads = threads.clone();
            Box::new(move |_| {
                threads
                    .send(std::thread::current().id())
                    .map_err(|_| Error::SYSTEM)
            })
        };
        let quiet = |work| move || (work, Completion::None);
        let number = queue.post(&engine, true, quiet(note())).unwrap();
        assert_eq!(queue.wait_for(number), State::Done);
        assert_eq!(thread.recv(), Ok(std::thread::current().id()));
        assert!(!queue.0.state.lock().thread);
        for _ in 0..2 {
            queue.post(&engine, false, quiet(note())).unwrap();
            let by = Instant::now() + 100 * LINGER;
            queue.wait(Some(by));
            assert_eq!(queue.outstanding(), 0);
            assert_ne!(thread.recv(), Ok(std::thread::current().id()));
        }
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
        let never: Work = Box::new(|_| panic!("it was aborted before"));
        for work in [long, never] {
            queue
                .post(&engine, false, || (work, Completion::None))
                .unwrap();
        }
        queue.abort();
        assert_eq!(
            (queue.state(), queue.outstanding()),
            (Some(State::Aborted), 0)
        );
    }
}
