//! The engine's thread, which copies, and how it and waiters sleep and wake.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::claims::{CHUNK, Role};
use crate::job::{Job, JobQueue, Step};
use crate::{Request, State, lineage};

/// Bytes of a transfer that its poster carries out alone, if it is its queue's turn, whether the
/// engine's thread is awake or not: to hand it over takes as long.
const SHORT: usize = CHUNK;
/// The same if the engine's thread sleeps. To wake a virtual processor takes 10 to 25 µs of it, and
/// to fetch what is in the other's caches as long again; a MiB is copied in 25 where it is cached.
const MEDIUM: usize = 8 * CHUNK;
/// How long the poster of a longer transfer copies before it wakes the engine's thread, if that
/// sleeps and it is the queue's turn.
pub(crate) const AFOOT: Duration = Duration::from_micros(30);

/// How long a transfer's end is watched for before sleeping: what a wake-up costs, and some parts.
const WATCH: Duration = Duration::from_micros(60);
/// How long the engine's thread, when it is woken, leaves a transfer to its poster. A poster that
/// waits for it at once begins to copy within that time, and need not share it.
const COURTESY: Duration = Duration::from_micros(20);
/// How long the engine's thread stays awake when there is nothing to do: some 10 µs are what the
/// next one to post would pay for waking it, and what the thread would need to wake.
const LINGER: Duration = Duration::from_micros(20);
/// How long the engine's thread leaves transfers to their waiters, after one of these has waited in
/// vain for a part to come back: other programs have the other processors.
const CROWDED: Duration = Duration::from_millis(100);
/// Looks between two at the time.
const LOOKS: u32 = 64;

/// Name of the engine's thread.
const THREAD: &str = "causeway-dma";

/// The engine of the process whose number it bears. Never freed: a child may have been forked while
/// its lock was held, and leaves it alone.
static CURRENT: AtomicPtr<Arc<Engine>> = AtomicPtr::new(std::ptr::null_mut());

/// A process's copy engine.
#[derive(Debug)]
pub struct Engine {
    lineage: u32,
    inner: Mutex<Inner>,
    /// The engine's thread sleeps here.
    work: Condvar,
    /// Waiters for a transfer sleep here.
    ended: Condvar,
    /// Queues in the list, for looks without the lock.
    listed: AtomicUsize,
    /// Its thread does not sleep.
    awake: AtomicBool,
    born: Instant,
    /// Until when transfers are not shared: microseconds after its birth.
    crowded: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    queues: VecDeque<Arc<JobQueue>>,
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
            listed: AtomicUsize::new(0),
            awake: AtomicBool::new(false),
            born: Instant::now(),
            crowded: AtomicU64::new(0),
        }
    }

    /// Whether the caller is the process that the engine belongs to.
    pub(crate) fn is_ours(&self) -> bool {
        self.lineage == lineage::number()
    }

    /// Puts a transfer at the end of a queue. With `waited` the caller is going to wait for it at
    /// once, and carries it out: the engine's thread is not woken. The queue is to be
    /// [carried on](Engine::carry_on) by the caller if this returns true.
    pub(crate) fn post(
        self: &Arc<Self>,
        queue: &Arc<JobQueue>,
        request: Request,
        waited: bool,
    ) -> (Arc<Job>, bool) {
        let bytes = request.bytes();
        let job = Arc::new(Job::new(queue, request));
        let first = queue.push(job.clone());
        // A thread that is awake helps waiters, and posters leave to it what is long.
        let helped = bytes > SHORT && self.awake.load(Ordering::Relaxed) && !self.is_crowded();
        let mut eager = first && !waited && !helped && self.is_ours();
        if !eager && (!waited || helped) {
            eager = !self.list(queue) && self.is_ours();
        }
        (job, eager)
    }

    /// Carries out what was just posted, of so many bytes: up to [`MEDIUM`] of them whole, and of
    /// more what [`AFOOT`] allows. The rest is the engine's thread's, if there can be one.
    pub(crate) fn carry_on(self: &Arc<Self>, job: &Arc<Job>, bytes: usize) {
        let deadline = (bytes > MEDIUM).then(|| Instant::now() + AFOOT);
        // Otherwise it is for want of a thread that this is called.
        let is_first = job
            .queue
            .front()
            .is_some_and(|front| Arc::ptr_eq(&front, job));
        while is_first && !job.state().is_final() {
            let late = || deadline.is_some_and(|by| Instant::now() >= by);
            if !self.help(&job.queue, job, Role::Poster) || late() {
                break;
            }
        }
        self.let_go(&job.queue);
    }

    /// Makes the engine's thread look at a queue. Returns false if there can be no such thread now:
    /// the caller carries out what is in the queue, and the next one tries again.
    fn list(self: &Arc<Self>, queue: &Arc<JobQueue>) -> bool {
        let mut inner = self.inner.lock();
        if !inner.thread {
            let engine = self.clone();
            let thread = std::thread::Builder::new().name(THREAD.into());
            if causeway_recover::spawn(thread, move |_| engine.run()).is_err() {
                self.ended.notify_all();
                return false;
            }
            inner.thread = true;
        }
        if queue.enlist() {
            inner.queues.push_back(queue.clone());
            self.listed.store(inner.queues.len(), Ordering::Relaxed);
            drop(inner);
            self.work.notify_one();
        }
        true
    }

    /// Carries out all that is in a queue, but for what other threads are at: they do the same when
    /// they stop.
    fn carry_out(&self, queue: &JobQueue) {
        while let Some(front) = queue.front() {
            if !self.help(queue, &front, Role::Waiter) {
                break;
            }
        }
    }

    fn run(&self) {
        let mut last = Instant::now();
        let mut woken = true;
        loop {
            let queue = self.next(last, &mut woken);
            if std::mem::take(&mut woken) {
                give_way(&queue);
            }
            last = Instant::now();
            while self.turn(&queue) {
                last = Instant::now();
                if self.listed.load(Ordering::Relaxed) > 0 {
                    // The others' turn.
                    let mut inner = self.inner.lock();
                    inner.queues.push_back(queue);
                    self.listed.store(inner.queues.len(), Ordering::Relaxed);
                    break;
                }
            }
        }
    }

    /// The next queue of the list: waited for awake until some time after `last`, then asleep,
    /// which `woken` says.
    fn next(&self, last: Instant, woken: &mut bool) -> Arc<JobQueue> {
        let awaited = || self.listed.load(Ordering::Relaxed) > 0;
        look(awaited, last, LINGER);
        let mut inner = self.inner.lock();
        loop {
            if let Some(queue) = inner.queues.pop_front() {
                self.listed.store(inner.queues.len(), Ordering::Relaxed);
                self.awake.store(true, Ordering::Relaxed);
                return queue;
            }
            self.awake.store(false, Ordering::Relaxed);
            self.work.wait(&mut inner);
            *woken = true;
        }
    }

    fn is_crowded(&self) -> bool {
        let until = self.crowded.load(Ordering::Relaxed);
        until > 0 && self.born.elapsed() < Duration::from_micros(until)
    }

    /// Some parts of a queue's first transfer. Returns whether the queue stays in the thread's
    /// hands.
    fn turn(&self, queue: &JobQueue) -> bool {
        let role = if self.is_crowded() {
            Role::LastResort
        } else {
            Role::Engine
        };
        let Some(job) = queue.front() else {
            return !queue.leave(role);
        };
        match queue.step(&job, role) {
            Step::Copied => {}
            Step::Ended => self.tell(),
            Step::Nothing if role == Role::LastResort => return !queue.leave(role),
            Step::Nothing => {
                // The thread that is at it is about to come to its end, or will take a while.
                let over = || job.state().is_final();
                let until = || over() || self.listed.load(Ordering::Relaxed) > 0;
                return look(until, Instant::now(), LINGER) && over() || !queue.leave(role);
            }
        }
        true
    }

    /// Wakes waiters: a transfer has ended.
    fn tell(&self) {
        if self.inner.lock().waiters > 0 {
            self.ended.notify_all();
        }
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
            let Some(front) = job.queue.front() else {
                // Its end is being made known.
                std::hint::spin_loop();
                continue;
            };
            if !self.help(&job.queue, &front, Role::Waiter) {
                let over = || front.state().is_final();
                if !look(over, Instant::now(), WATCH) {
                    let until = self.born.elapsed() + CROWDED;
                    self.crowded
                        .store(until.as_micros() as u64, Ordering::Relaxed);
                    self.sleep(job, deadline);
                }
            }
        }
        self.let_go(&job.queue);
        self.state(job)
    }

    /// Copies for a queue, unless enough others do. Returns whether it did.
    fn help(&self, queue: &JobQueue, front: &Job, role: Role) -> bool {
        match queue.step(front, role) {
            Step::Nothing => return false,
            Step::Copied => {}
            Step::Ended => self.tell(),
        }
        true
    }

    /// What a thread that has copied leaves, because its time is over or since its own transfer has
    /// ended, is the engine's thread's from now on.
    fn let_go(self: &Arc<Self>, queue: &Arc<JobQueue>) {
        if self.is_ours() && queue.is_left() && !self.list(queue) {
            self.carry_out(queue);
        }
    }

    /// Sleeps until a transfer has ended, unless the transfer has, or its queue can be helped.
    fn sleep(&self, job: &Job, deadline: Option<Instant>) {
        let mut inner: MutexGuard<'_, Inner> = self.inner.lock();
        // What ends a transfer says so under the lock, after it has made it known. A thread that
        // copies and stops before the end leaves the queue to the engine's thread.
        if job.state().is_final() || !job.queue.is_taken() {
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
        job.abort();
        if self.is_ours() && !job.state().is_final() && !self.list(&job.queue) {
            self.carry_out(&job.queue);
        }
    }
}

/// Waits until somebody has begun with a queue, for [`COURTESY`] at most.
fn give_way(queue: &JobQueue) {
    let begun = Instant::now();
    while begun.elapsed() < COURTESY && !queue.is_begun() {
        // The poster may be on the same processor.
        std::thread::yield_now();
    }
}

/// Looks for something, awake, until some time after a moment. Returns whether it was there.
fn look(for_it: impl Fn() -> bool, since: Instant, time: Duration) -> bool {
    loop {
        for _ in 0..LOOKS {
            if for_it() {
                return true;
            }
            std::hint::spin_loop();
        }
        if since.elapsed() >= time {
            return false;
        }
        // Another thread of the same processor may be the one that does it.
        std::thread::yield_now();
    }
}
