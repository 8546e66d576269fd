//! The progress engines of an endpoint.
//!
//! Queue pairs, completion queues and shared receive queues that are connected with each other,
//! because a queue pair completes to the ones and receives from the others, are the business of one
//! *engine*: one lock, its own UDP ports, timers, and lists of what is to be done. Two threads with
//! queues of their own take two locks, and write no line in common. An endpoint begins with one
//! engine, and gets another when a queue pair is created that has nothing to do with those there
//! are: as many as there are processors. A queue pair that completes to queues of two engines makes
//! them one ([`crate::merge`]).
//!
//! No thread holds two of the locks, but who creates a queue pair: under the registry's lock, in
//! the order of the engines. What all engines share (regions, address handles, peers' accesses) is
//! looked up without a lock, or under one that is taken last.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use causeway_biased_lock::{BiasedGuard, BiasedLock, Owner, this_thread};
use causeway_identity::{QPN_INDEX_BITS, Slot};
use causeway_shm::layout::STATS_SETS;
use rustix::event::epoll;

use crate::at::At;
use crate::clock::Now;
use crate::errno::Errno;
use crate::ports::watch_all;
use crate::qps::{Numbering, SLOTS};
use crate::sleepers::{PortSource, Sleepers};
use crate::state::State;

/// Most engines of an endpoint.
pub(crate) const ENGINES_MAX: usize = STATS_SETS;
/// Calls for one reading of the clock, where nothing else needs it.
const CALLS_PER_TIME: u64 = 16;

/// One of them. Nothing of another thread's lies in the same line.
#[repr(align(128))]
pub(crate) struct Engine {
    pub number: u8,
    pub state: BiasedLock<State>,
    /// Counts calls that made progress, so that the helper leaves an active program alone.
    activity: AtomicU64,
    /// When the program last made progress itself.
    last_call: AtomicU64,
    posts: ForPosts,
    /// Some of what was posted waits to go with more.
    gathers: Arc<AtomicBool>,
    /// By the number of another engine, how many calls had made progress there when a thread of
    /// this one looked last.
    seen: [AtomicU64; ENGINES_MAX],
    /// One of its ports polled as in error: what there is to it is to be looked at.
    port_errors: Arc<AtomicBool>,
}

/// What a post looks at, in a line that changes seldom while one thread posts and another looks.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ForPosts {
    /// The thread that looked for completions last, until it has posted; then 0.
    looked: AtomicUsize,
    /// Some peer may owe an answer.
    unanswered: Arc<AtomicBool>,
}

/// The engine where an object was when it was last looked for: it is there, or nowhere in that
/// engine's tables.
#[derive(Debug)]
pub(crate) struct LastSeen(AtomicPtr<Engine>);

impl LastSeen {
    /// Of an object that keeps the endpoint, and with it its engines, as long as it has this.
    pub fn new(engine: &Engine) -> Self {
        LastSeen(AtomicPtr::new(std::ptr::from_ref(engine).cast_mut()))
    }

    #[inline(always)]
    pub fn get(&self) -> &Engine {
        // SAFETY: an endpoint's engines are boxed, and none is dropped or replaced before the
        // endpoint is, which the object keeps (`LastSeen::new`).
        unsafe { &*self.0.load(Ordering::Acquire) }
    }

    pub fn set(&self, engine: &Engine) {
        self.0
            .store(std::ptr::from_ref(engine).cast_mut(), Ordering::Release);
    }
}

/// The engines of an endpoint.
pub(crate) struct Engines {
    numbering: Numbering,
    engines: [OnceLock<Box<Engine>>; ENGINES_MAX],
    /// By the rank of a slot ([`Numbering::rank`]).
    of_rank: [AtomicU8; SLOTS],
    /// Watches the ports of all engines but the first.
    others: OwnedFd,
    /// Who sleeps on that.
    sleepers: Arc<Sleepers>,
}

// SAFETY: a field.
unsafe impl Owner for Engine {
    type Data = State;

    #[inline(always)]
    fn biased_lock(&self) -> &BiasedLock<State> {
        &self.state
    }
}

impl Engine {
    /// Whether several threads take its lock.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        // SAFETY: a look, which takes nothing.
        !unsafe { self.state.raw() }.is_mine()
    }

    /// Whether a poll of a completion queue that is empty may do without the lock: another thread
    /// has made progress since it was polled last. A thread that the lock is biased towards
    /// pays nothing for it, and never leaves it at that.
    #[inline]
    pub fn is_served(&self, at: &At) -> bool {
        self.is_crowded() && at.skip(self.activity())
    }

    pub fn new(state: State) -> Self {
        Engine {
            number: state.number,
            activity: AtomicU64::new(0),
            last_call: AtomicU64::new(0),
            posts: ForPosts {
                unanswered: Arc::clone(&state.unanswered),
                ..ForPosts::default()
            },
            gathers: Arc::clone(&state.udp.has_gathered),
            seen: [const { AtomicU64::new(0) }; ENGINES_MAX],
            port_errors: Arc::clone(&state.udp.errors),
            state: BiasedLock::new(state),
        }
    }

    /// The states of two engines, which are others.
    pub fn lock_both<'a>(
        one: &'a Engine,
        other: &'a Engine,
    ) -> (BiasedGuard<'a, State>, BiasedGuard<'a, State>) {
        if one.number < other.number {
            let state = one.state.lock();
            (state, other.state.lock())
        } else {
            let state = other.state.lock();
            (one.state.lock(), state)
        }
    }

    /// Something was posted without the lock. Only the thread that looks for what it brings says
    /// so: another one would take the line from it with each post.
    #[inline(always)]
    pub fn note_posted(&self) {
        let looked = &self.posts.looked;
        // Stored once: where several threads look, each store takes the line from the others.
        if looked.load(Ordering::Relaxed) == this_thread() {
            looked.store(0, Ordering::Relaxed);
        }
    }

    /// The calling thread looks: whether it has posted something since it did so last. It may also
    /// be said to at its first look, and where another thread has. Called under the lock.
    #[inline(always)]
    pub fn take_posted(&self) -> bool {
        let looked = &self.posts.looked;
        let before = looked.load(Ordering::Relaxed);
        if before != this_thread() {
            looked.store(this_thread(), Ordering::Relaxed);
        }
        before == 0
    }

    /// Whether somebody looks how long peers take to answer.
    #[inline(always)]
    pub fn has_unanswered(&self) -> bool {
        self.posts.unanswered.load(Ordering::Relaxed)
    }

    /// The program makes progress itself: the helper may leave it alone.
    #[inline]
    pub fn note_activity(&self, now: &Now) {
        // The clock costs as much as the rest of a fruitless poll: not every call reads it.
        if self.count_call().is_multiple_of(CALLS_PER_TIME) || now.known().is_some() {
            self.note_time(now);
        }
    }

    /// As [`Engine::note_activity`], for a caller that has no use for the time. Returns whether it
    /// was read.
    #[inline(always)]
    pub fn note_call(&self) -> bool {
        let reads = self.count_reading_call();
        if reads {
            self.note_time(&Now::default());
        }
        reads
    }

    /// Counts a call that made progress. Returns whether the time is to be noted with it.
    #[inline(always)]
    pub fn count_reading_call(&self) -> bool {
        self.count_call().is_multiple_of(CALLS_PER_TIME)
    }

    /// Counts a call that made progress; how many there were before.
    #[inline(always)]
    fn count_call(&self) -> u64 {
        // A plain store spares the locked add. Few are lost, and whoever compares needs none.
        let before = self.activity.load(Ordering::Relaxed);
        self.activity
            .store(before.wrapping_add(1), Ordering::Relaxed);
        before
    }

    #[cold]
    #[inline(never)]
    pub fn note_time(&self, now: &Now) {
        self.last_call.store(now.get().0, Ordering::Relaxed);
    }

    /// How many calls have made progress.
    pub fn activity(&self) -> u64 {
        self.activity.load(Ordering::Relaxed)
    }

    /// When one last did, or some calls before.
    pub fn last_call(&self) -> u64 {
        self.last_call.load(Ordering::Relaxed)
    }

    /// Whether some of what was posted waits to go with more.
    pub fn has_gathered(&self) -> bool {
        self.gathers.load(Ordering::Relaxed)
    }

    /// A port polled as in error, or may have.
    pub fn note_port_errors(&self) {
        self.port_errors.store(true, Ordering::Relaxed);
    }
}

impl Engines {
    /// One. `sleepers` sleep on its sources, and on those of engines to come.
    ///
    /// # Errors
    /// What epoll_create1(2) reports.
    pub fn new(
        numbering: Numbering,
        mut first: State,
        sleepers: &Arc<Sleepers>,
    ) -> Result<Self, Errno> {
        let others = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        first.udp.ports.set_sleepers(sleepers);
        let engines = [const { OnceLock::new() }; ENGINES_MAX];
        let _ = engines[0].set(Box::new(Engine::new(first)));
        Ok(Engines {
            numbering,
            engines,
            of_rank: [const { AtomicU8::new(0) }; SLOTS],
            others,
            sleepers: Arc::clone(sleepers),
        })
    }

    /// The first.
    #[inline(always)]
    pub fn first(&self) -> &Engine {
        match self.engines[0].get() {
            Some(first) => first,
            None => unreachable!("set when the endpoint was made"),
        }
    }

    /// The engine with a number, the first if there is none.
    #[inline(always)]
    pub fn get(&self, number: u8) -> &Engine {
        let engine = self.engines.get(usize::from(number));
        match engine.and_then(OnceLock::get) {
            Some(engine) => engine,
            None => self.first(),
        }
    }

    /// All of them.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &Engine> {
        let engines = self.engines.iter().map_while(OnceLock::get);
        engines.map(|engine| &**engine)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.iter().count()
    }

    /// Adds one. Called by one thread at a time, while there are fewer than [`ENGINES_MAX`].
    ///
    /// # Errors
    /// What epoll_ctl(2) reports.
    pub fn add(&self, state: State) -> Result<&Engine, Errno> {
        self.watch(state.udp.ports.sources().map(|(_, source)| source))?;
        let number = state.number;
        let engine = Box::new(Engine::new(state));
        if let Some(place) = self.engines.get(usize::from(number)) {
            let _ = place.set(engine);
        }
        Ok(self.get(number))
    }

    pub fn numbering(&self) -> Numbering {
        self.numbering
    }

    /// Watches more sockets of an engine that is not the first.
    ///
    /// # Errors
    /// What epoll_ctl(2) reports; then none of them is watched.
    pub fn watch<'a>(&self, fds: impl IntoIterator<Item = BorrowedFd<'a>>) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(0);
        watch_all(&self.others, fds.into_iter().map(|fd| (fd, data)))?;
        self.sleepers.enliven(PortSource::OtherEngines);
        Ok(())
    }

    /// Readable when something has come to a port of an engine that is not the first.
    pub fn others(&self) -> BorrowedFd<'_> {
        self.others.as_fd()
    }

    /// A slot's queue pairs are an engine's. Called under the locks of that one, and of the one
    /// whose they were.
    pub fn assign(&self, slot: Slot, to: &Engine) {
        let rank = self.numbering.rank_of(slot);
        self.of_rank[rank].store(to.number, Ordering::Release);
    }

    #[inline(always)]
    fn number_of(&self, qpn: u32) -> u8 {
        let rank = self.numbering.index(qpn) >> QPN_INDEX_BITS;
        self.of_rank
            .get(rank)
            .map_or(0, |number| number.load(Ordering::Acquire))
    }

    /// The engine of a queue pair's number, and its state.
    #[inline]
    pub fn lock(&self, qpn: u32) -> (&Engine, BiasedGuard<'_, State>) {
        loop {
            let number = self.number_of(qpn);
            let engine = self.get(number);
            let state = engine.state.lock();
            // Queue pairs move under both locks.
            if self.number_of(qpn) == number {
                return (engine, state);
            }
        }
    }

    /// The engine where an object's state is, and that engine's.
    #[inline(always)]
    pub fn lock_at(&self, at: &At) -> (&Engine, BiasedGuard<'_, State>) {
        loop {
            let number = at.get();
            let engine = self.get(number);
            let state = engine.state.lock();
            if at.get() == number {
                return (engine, state);
            }
        }
    }

    /// The engines but `own` that no thread seems to serve: none has made progress there since a
    /// thread of `own` looked last.
    pub fn unserved(&self, own: &Engine) -> impl Iterator<Item = &Engine> {
        let others = self.iter().filter(|other| other.number != own.number);
        others.filter(|other| {
            let calls = other.activity();
            let seen = &own.seen[usize::from(other.number)];
            seen.load(Ordering::Relaxed) == calls || {
                seen.store(calls, Ordering::Relaxed);
                false
            }
        })
    }

    /// Calls on the state of each.
    pub fn each(&self, mut f: impl FnMut(&Engine, &mut State)) {
        for engine in self.iter() {
            f(engine, &mut engine.state.lock());
        }
    }
}
