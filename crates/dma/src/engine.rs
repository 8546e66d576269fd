//! The thread that copies, and what it shares with those who wait.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{Completion, Descriptor, Request, State, Valid, lineage, notifier};

/// Bytes copied between two looks at whether the transfer is to go on: some 50 µs.
pub const CHUNK: usize = 512 * 1024;

/// How long a transfer's end is watched for before sleeping: what a wake-up costs, and a chunk.
const WATCH: Duration = Duration::from_micros(60);
/// How long the engine's thread, when it is woken, leaves a transfer to who has posted it. One who
/// waits for it at once begins to copy within that time, and need not share it.
const COURTESY: Duration = Duration::from_micros(20);
/// Looks between two at the time.
const LOOKS: u32 = 64;

/// Name of the engine's thread.
const THREAD: &str = "causeway-dma";

/// The engine of the process whose number it bears. Never freed: a child may have been forked while
/// its lock was held, and leaves it alone.
static CURRENT: AtomicPtr<Arc<Engine>> = AtomicPtr::new(std::ptr::null_mut());

/// A transfer, in the hands of the engine and of those who look at it.
pub(crate) struct Job {
    state: AtomicU8,
    aborted: AtomicBool,
    lane: Arc<Lane>,
    /// Taken by the thread that copies.
    work: Mutex<Work>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("state", &self.state()).finish()
    }
}

/// What is left to do of a transfer.
struct Work {
    descriptors: Vec<Descriptor>,
    /// The descriptor in hand, and the bytes of it that are copied.
    at: (usize, usize),
    valid: Option<Valid>,
    completion: Completion,
    hold: Option<Box<dyn Any + Send + Sync>>,
}

impl Job {
    fn new(lane: &Arc<Lane>, request: Request) -> Job {
        Job {
            state: AtomicU8::new(State::Posted as u8),
            aborted: AtomicBool::new(false),
            lane: lane.clone(),
            work: Mutex::new(Work {
                descriptors: request.descriptors,
                at: (0, 0),
                valid: request.valid,
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

    /// Copies up to a chunk. Returns how the transfer ended, if it did.
    fn step(&self) -> State {
        if self.aborted.load(Ordering::Relaxed) {
            return State::Aborted;
        }
        let mut work = self.work.lock();
        if !work.is_valid() {
            return State::Failed;
        }
        let mut budget = CHUNK;
        while budget > 0 {
            let (index, done) = work.at;
            let Some(descriptor) = work.descriptors.get(index) else {
                break;
            };
            let len = (descriptor.len - done).min(budget);
            // SAFETY: whoever posted the transfer vouches for the memory until it has ended;
            // memmove allows the ranges to overlap.
            unsafe { std::ptr::copy(descriptor.src.add(done), descriptor.dst.add(done), len) };
            budget -= len;
            work.at = if done + len == descriptor.len {
                (index + 1, 0)
            } else {
                (index, done + len)
            };
        }
        if !work.is_valid() {
            State::Failed
        } else if work.at.0 == work.descriptors.len() {
            State::Done
        } else {
            State::Posted
        }
    }
}

impl Work {
    fn is_valid(&self) -> bool {
        self.valid.as_ref().is_none_or(|valid| valid())
    }
}

/// Transfers that are carried out in order.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    inner: Mutex<LaneState>,
}

#[derive(Debug, Default)]
struct LaneState {
    jobs: VecDeque<Arc<Job>>,
    /// A thread is copying for this lane.
    running: bool,
    /// The lane is in the engine's list.
    listed: bool,
}

impl Lane {
    /// Waits until somebody copies for it, for [`COURTESY`] at most.
    fn give_way(&self) {
        let begun = Instant::now();
        while begun.elapsed() < COURTESY && !self.inner.lock().running {
            // Who has posted may be on the same processor.
            std::thread::yield_now();
        }
    }

    /// Whether it has transfers that the engine's thread does not know of.
    fn is_left(&self) -> bool {
        let state = self.inner.lock();
        !state.jobs.is_empty() && !state.listed
    }
}

/// A process's copy engine.
#[derive(Debug)]
pub struct Engine {
    lineage: u32,
    inner: Mutex<Inner>,
    /// The engine's thread sleeps here.
    work: Condvar,
    /// Those who wait for a transfer sleep here.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    lanes: VecDeque<Arc<Lane>>,
    thread: bool,
    waiters: usize,
}

impl Engine {
    /// The engine of this process.
    #[must_use]
    pub fn current() -> Arc<Engine> {
        let lineage = lineage::number();
        loop {
            let current = CURRENT.load(Ordering::Acquire);
            // SAFETY: what is stored there is never freed.
            if let Some(engine) = unsafe { current.as_ref() }
                && engine.lineage == lineage
            {
                return engine.clone();
            }
            let fresh = Box::into_raw(Box::new(Arc::new(Engine::new(lineage))));
            let swapped =
                CURRENT.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire);
            if swapped.is_err() {
                // SAFETY: made above, and seen by nobody else.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }

    fn new(lineage: u32) -> Engine {
        Engine {
            lineage,
            inner: Mutex::default(),
            work: Condvar::new(),
            ended: Condvar::new(),
        }
    }

    /// Whether the caller is the process that the engine belongs to.
    pub(crate) fn is_ours(&self) -> bool {
        self.lineage == lineage::number()
    }

    /// Puts a transfer at the end of a lane. With `waited` the caller is going to wait for it at
    /// once, and carries it out: the engine's thread is left asleep.
    pub(crate) fn post(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        request: Request,
        waited: bool,
    ) -> Arc<Job> {
        let job = Arc::new(Job::new(lane, request));
        lane.inner.lock().jobs.push_back(job.clone());
        if !waited {
            self.list(lane);
        }
        job
    }

    /// Makes the engine's thread look at a lane.
    fn list(self: &Arc<Self>, lane: &Arc<Lane>) {
        let mut inner = self.inner.lock();
        let mut state = lane.inner.lock();
        if std::mem::replace(&mut state.listed, true) {
            return;
        }
        drop(state);
        inner.lanes.push_back(lane.clone());
        if !std::mem::replace(&mut inner.thread, true) {
            let engine = self.clone();
            let thread = std::thread::Builder::new().name(THREAD.into());
            if thread.spawn(move || engine.run()).is_err() {
                // Whoever waits carries the transfer out; the next one tries again.
                inner.thread = false;
            }
        }
        drop(inner);
        self.work.notify_one();
    }

    fn run(&self) {
        let mut inner = self.inner.lock();
        let mut woken = true;
        loop {
            let Some(lane) = inner.lanes.pop_front() else {
                self.work.wait(&mut inner);
                woken = true;
                continue;
            };
            drop(inner);
            if std::mem::take(&mut woken) {
                lane.give_way();
            }
            let (again, ended) = self.turn(&lane);
            inner = self.inner.lock();
            if again {
                inner.lanes.push_back(lane);
            }
            if ended && inner.waiters > 0 {
                self.ended.notify_all();
            }
        }
    }

    /// One chunk of a lane. Returns whether the lane stays listed, and whether a transfer ended.
    fn turn(&self, lane: &Lane) -> (bool, bool) {
        let mut state = lane.inner.lock();
        let job = match state.jobs.front() {
            Some(job) if !state.running => job.clone(),
            _ => {
                // Empty, or a thread that waits is at it and lists the lane again.
                state.listed = false;
                return (false, false);
            }
        };
        state.running = true;
        drop(state);
        let outcome = job.step();
        if outcome.is_final() {
            finish(&job, outcome);
        }
        let mut state = lane.inner.lock();
        state.running = false;
        if outcome.is_final() {
            state.jobs.pop_front();
        }
        state.listed = !state.jobs.is_empty();
        (state.listed, outcome.is_final())
    }

    pub(crate) fn state(&self, job: &Job) -> State {
        let state = job.state();
        if state == State::Posted && !self.is_ours() {
            return State::Failed;
        }
        state
    }

    pub(crate) fn wait(self: &Arc<Self>, job: &Job, deadline: Option<Instant>) -> State {
        while !self.state(job).is_final() && deadline.is_none_or(|by| Instant::now() < by) {
            if !self.help(&job.lane) && !watch(job) {
                self.sleep(job, deadline);
            }
        }
        // What it leaves, because its time is over or since its own transfer has ended, is the
        // engine's thread's from now on.
        if self.is_ours() && job.lane.is_left() {
            self.list(&job.lane);
        }
        self.state(job)
    }

    /// Copies a chunk of a lane, unless another thread does. Returns whether it did.
    fn help(self: &Arc<Self>, lane: &Arc<Lane>) -> bool {
        let mut state = lane.inner.lock();
        let job = match state.jobs.front() {
            Some(job) if !state.running => job.clone(),
            _ => return false,
        };
        state.running = true;
        drop(state);
        let outcome = job.step();
        if outcome.is_final() {
            finish(&job, outcome);
        }
        let mut state = lane.inner.lock();
        state.running = false;
        if outcome.is_final() {
            state.jobs.pop_front();
        }
        drop(state);
        if outcome.is_final() && self.inner.lock().waiters > 0 {
            self.ended.notify_all();
        }
        true
    }

    /// Sleeps until a transfer has ended, unless the transfer has, or nobody copies for its lane.
    fn sleep(&self, job: &Job, deadline: Option<Instant>) {
        let mut inner: MutexGuard<'_, Inner> = self.inner.lock();
        // What ends a transfer says so under the lock, after it has made it known. Who copies and
        // stops before the end leaves the lane to the engine's thread.
        if job.state().is_final() || !job.lane.inner.lock().running {
            return;
        }
        inner.waiters += 1;
        match deadline {
            Some(by) => drop(self.ended.wait_until(&mut inner, by)),
            None => self.ended.wait(&mut inner),
        }
        inner.waiters -= 1;
    }

    pub(crate) fn abort(self: &Arc<Self>, job: &Job) {
        job.aborted.store(true, Ordering::Relaxed);
        if self.is_ours() && !job.state().is_final() {
            self.list(&job.lane);
        }
    }
}

/// Watches a transfer that another thread carries out. Returns whether it has ended.
fn watch(job: &Job) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < WATCH {
        for _ in 0..LOOKS {
            if job.state().is_final() {
                return true;
            }
            std::hint::spin_loop();
        }
    }
    false
}

/// Makes the end of a transfer known.
fn finish(job: &Job, outcome: State) {
    let mut work = job.work.lock();
    let completion = std::mem::take(&mut work.completion);
    let (valid, hold) = (work.valid.take(), work.hold.take());
    work.descriptors = Vec::new();
    drop(work);
    drop((valid, hold));
    job.state.store(outcome as u8, Ordering::Release);
    match completion {
        Completion::None => {}
        Completion::Brief(tell) => tell(outcome),
        Completion::Callback(tell) => notifier::call(Box::new(move || tell(outcome))),
    }
}
