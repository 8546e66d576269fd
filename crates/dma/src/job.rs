//! A transfer in hand, and the queues in which they stand.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use parking_lot::Mutex;

use crate::claims::{Claim, Claims, Plan, Role};
use crate::{Completion, Request, State, notifier};

/// Parts that a thread copies before it looks at what else there is to do.
const PARTS: usize = 4;
/// The same for a poster.
const POSTER_PARTS: usize = 1;

/// A transfer, in the hands of the engine and of its observers.
pub(crate) struct Job {
    state: AtomicU8,
    aborted: AtomicBool,
    pub queue: Arc<JobQueue>,
    work: Mutex<Work>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("state", &self.state()).finish()
    }
}

/// What is left to do of a transfer, and afterwards.
struct Work {
    claims: Claims,
    /// `None` once it has ended.
    plan: Option<Arc<Plan>>,
    completion: Completion,
    hold: Option<Box<dyn Any + Send + Sync>>,
}

impl Job {
    pub fn new(queue: &Arc<JobQueue>, request: Request) -> Job {
        let plan = Plan::new(request.descriptors, request.valid);
        Job {
            state: AtomicU8::new(State::Posted as u8),
            aborted: AtomicBool::new(false),
            queue: queue.clone(),
            work: Mutex::new(Work {
                claims: Claims::new(&plan),
                plan: Some(Arc::new(plan)),
                completion: request.completion,
                hold: request.hold,
            }),
        }
    }

    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            s if s == State::Posted as u8 => State::Posted,
            s if s == State::Done as u8 => State::Done,
            s if s == State::Aborted as u8 => State::Aborted,
            _ => State::Failed,
        }
    }

    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
    }

    /// Whether nobody can help with it before a thread that is at it has finished a part.
    fn is_taken(&self, role: Role) -> bool {
        self.work.lock().claims.is_taken(role)
    }

    /// Copies some parts of it, if there are any to be had.
    fn step(&self, role: Role) -> Step {
        let mut work = self.work.lock();
        let Some(plan) = work.plan.clone() else {
            return Step::Nothing;
        };
        let mut step = Step::Nothing;
        let parts = match role {
            Role::Poster => POSTER_PARTS,
            _ => PARTS,
        };
        for _ in 0..parts {
            if self.aborted.load(Ordering::Relaxed) {
                work.claims.stop(State::Aborted);
            }
            let part = match work.claims.claim(&plan, role) {
                Claim::Part(part) => part,
                Claim::Nothing => break,
                Claim::Over(state) => {
                    drop(work);
                    return self.finish(plan, state);
                }
            };
            drop(work);
            let mut valid = plan.is_valid();
            if valid {
                // SAFETY: the part was claimed above and is given back below.
                valid = unsafe { plan.copy(part) }.is_ok() && plan.is_valid();
            }
            work = self.work.lock();
            if let Some(state) = work.claims.give_back(valid) {
                drop(work);
                return self.finish(plan, state);
            }
            step = Step::Copied;
        }
        // Before the lock is free: the thread that ends the transfer drops the last one.
        drop(plan);
        drop(work);
        step
    }

    /// Makes the end of a transfer known.
    fn finish(&self, plan: Arc<Plan>, mut outcome: State) -> Step {
        if outcome == State::Done && plan.is_empty() && !plan.is_valid() {
            outcome = State::Failed;
        }
        let mut work = self.work.lock();
        let completion = std::mem::take(&mut work.completion);
        let (last, hold) = (work.plan.take(), work.hold.take());
        drop(work);
        drop((plan, last, hold));
        self.state.store(outcome as u8, Ordering::Release);
        match completion {
            Completion::None => {}
            Completion::Brief(tell) => tell(outcome),
            Completion::Callback(tell) => notifier::call(Box::new(move || tell(outcome))),
        }
        Step::Ended
    }
}

/// What a look at a queue came to.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Nothing can be done for the first transfer before others have finished their parts.
    Nothing,
    /// Some of the first transfer was copied.
    Copied,
    /// The first transfer has ended.
    Ended,
}

/// Transfers that are carried out in order.
#[derive(Debug, Default)]
pub(crate) struct JobQueue {
    inner: Mutex<JobQueueState>,
}

#[derive(Debug, Default)]
struct JobQueueState {
    jobs: VecDeque<Arc<Job>>,
    /// The queue is in the engine's list, or in its thread's hands.
    listed: bool,
}

impl JobQueue {
    /// Puts a transfer at its end. Returns whether it is the only one.
    pub fn push(&self, job: Arc<Job>) -> bool {
        let mut state = self.inner.lock();
        state.jobs.push_back(job);
        state.jobs.len() == 1
    }

    /// The transfer whose turn it is.
    pub fn front(&self) -> Option<Arc<Job>> {
        self.inner.lock().jobs.front().cloned()
    }

    /// Copies some parts of the transfer whose turn it is: this one, while nobody has ended it.
    pub fn step(&self, job: &Job, role: Role) -> Step {
        let step = job.step(role);
        if let Step::Ended = step {
            self.inner.lock().jobs.pop_front();
        }
        step
    }

    /// Puts it into the engine's list. Returns false if it is there.
    pub fn enlist(&self) -> bool {
        !std::mem::replace(&mut self.inner.lock().listed, true)
    }

    /// Takes it off the engine's list, unless there is something that the engine can do. A thread
    /// that copies meanwhile looks whether it is left alone ([`JobQueue::is_left`]) when it stops.
    pub fn leave(&self, role: Role) -> bool {
        let mut state = self.inner.lock();
        state.listed = state.jobs.front().is_some_and(|job| !job.is_taken(role));
        !state.listed
    }

    /// Whether it has transfers that the engine's thread does not know of.
    pub fn is_left(&self) -> bool {
        let state = self.inner.lock();
        let last = state.jobs.back();
        !state.listed && last.is_some_and(|job| !job.state().is_final())
    }

    /// Whether a waiter has begun with the transfer whose turn it is, or there is none.
    pub fn is_begun(&self) -> bool {
        let front = self.front();
        front.is_none_or(|job| job.work.lock().claims.is_begun())
    }

    /// Whether a waiter can't help with the transfer whose turn it is.
    pub fn is_taken(&self) -> bool {
        let front = self.front();
        front.is_none_or(|job| job.is_taken(Role::Waiter))
    }
}
