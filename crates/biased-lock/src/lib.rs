//! A biased lock: taking it again is cheap for the thread that took it last.
//!
//! Most programs post and poll from one thread, and the helper thread looks only now and then. An
//! ordinary lock would cost such a program two locked instructions for each call, which also wait
//! for all stores before them: as much as the rest of a short call. So a thread that has taken the
//! lock many times in a row gets the *bias*: from then on it takes the lock by plain stores and
//! loads. Another thread that wants the lock withdraws the bias first, which costs a system call.
//! Each withdrawal makes the bias harder to earn.
//!
//! # Why two threads are never inside
//!
//! The thread with the bias stores that it is inside, and then loads whether it still has the bias.
//! The thread that withdraws the bias stores that, calls `membarrier(2)`, and then loads whether
//! the other is inside. The system call makes every running thread of the process pass a full
//! barrier. If the thread with the bias has stored before that barrier, its store is seen. If it
//! stores after it, it sees that the bias is gone, and takes the ordinary lock. Each grant of the
//! bias has a word of its own for "inside", so a late store of an earlier holder does no harm.
//!
//! # The model
//!
//! `tests/loom.rs` runs this code in every interleaving of small scenarios, and in every reordering
//! that the memory model allows. Loom has no system calls: in a model both sides execute a full
//! barrier, `fence(SeqCst)`. That is no more than they have in a program: `membarrier(2)` gives a
//! table of the pairs of barriers that order accesses, where a compiler's barrier and a
//! `membarrier` order them as two full barriers do ("O"). What the table denies ("X"), and two full
//! barriers in a model order nevertheless, is a pair of two compiler's barriers: those of two
//! threads that had the bias one after the other. Nothing rests on it: before its barrier each
//! stores but its own "inside", which the other never looks at there, and between the two there was
//! a withdrawal, whose `membarrier` is paired with each of them.

mod sync;

#[cfg(not(loom))]
use parking_lot::lock_api::{GuardNoSend, Mutex, MutexGuard, RawMutex as Raw};

#[cfg(not(loom))]
pub use sync::allow;
use sync::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering, RawMutex, token};

/// Names the calling thread among those alive, never 0.
#[cfg(not(loom))]
#[inline(always)]
pub fn this_thread() -> usize {
    token()
}

/// Data behind such a lock.
#[cfg(not(loom))]
pub type BiasedLock<T> = Mutex<RawBiasedLock, T>;
/// Its guard.
#[cfg(not(loom))]
pub type BiasedGuard<'a, T> = MutexGuard<'a, RawBiasedLock, T>;

/// What has such a lock, or is one.
///
/// # Safety
/// It is the same lock at each call.
#[cfg(not(loom))]
pub unsafe trait Owner {
    /// What is behind the lock.
    type Data;

    /// The lock.
    fn biased_lock(&self) -> &BiasedLock<Self::Data>;
}

// SAFETY: itself.
#[cfg(not(loom))]
unsafe impl<T> Owner for BiasedLock<T> {
    type Data = T;

    #[inline(always)]
    fn biased_lock(&self) -> &BiasedLock<T> {
        self
    }
}

/// The guard of such a lock in the hands of a thread that it is biased to ([`hurry`]). It keeps one
/// word, the address of what has the lock, which leads to both.
#[cfg(not(loom))]
pub struct HurriedOf<'a, O: Owner> {
    owner: &'a O,
    grant: usize,
    /// It is given back by the thread that took it.
    _here: std::marker::PhantomData<*const ()>,
}

/// The same, of a lock that is its own owner.
#[cfg(not(loom))]
pub type Hurried<'a, T> = HurriedOf<'a, BiasedLock<T>>;

/// Takes the lock if it is biased to the calling thread, and only then. It calls nothing, and
/// neither does the guard's end: who has to keep nothing for a call saves no registers.
#[cfg(not(loom))]
#[inline(always)]
pub fn hurry<O: Owner>(owner: &O) -> Option<HurriedOf<'_, O>> {
    // SAFETY: what is taken is given back by the guard.
    let grant = unsafe { owner.biased_lock().raw() }.hurry()?;
    Some(HurriedOf {
        owner,
        grant,
        _here: std::marker::PhantomData,
    })
}

#[cfg(not(loom))]
impl<'a, O: Owner> HurriedOf<'a, O> {
    /// What has the lock.
    #[inline(always)]
    #[must_use]
    pub fn owner(&self) -> &'a O {
        self.owner
    }
}

#[cfg(not(loom))]
impl<O: Owner> std::ops::Deref for HurriedOf<'_, O> {
    type Target = O::Data;

    #[inline(always)]
    fn deref(&self) -> &O::Data {
        // SAFETY: the guard has the lock.
        unsafe { &*self.owner.biased_lock().data_ptr() }
    }
}

#[cfg(not(loom))]
impl<O: Owner> std::ops::DerefMut for HurriedOf<'_, O> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut O::Data {
        // SAFETY: the guard has the lock, and is borrowed alone.
        unsafe { &mut *self.owner.biased_lock().data_ptr() }
    }
}

#[cfg(not(loom))]
impl<O: Owner> Drop for HurriedOf<'_, O> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: taken so by this thread, which the guard does not leave.
        unsafe { self.owner.biased_lock().raw().give_back_by(self.grant) };
    }
}

/// Times in a row that a thread takes the lock before it has the bias, at first and at most.
#[cfg(not(loom))]
const STREAK_FIRST: u32 = if cfg!(test) { 1 << 6 } else { 1 << 9 };
const STREAK_LAST: u32 = if cfg!(loom) {
    2
} else if cfg!(test) {
    1 << 6
} else {
    1 << 16
};
/// Looks of a thread that waits for the lock before it sleeps: some 30 µs.
const WAIT_LOOKS: u32 = 1000;
/// Turns of a thread in a row while another waits. To hand the lock over costs as much as several
/// short turns.
const TURNS_IN_A_ROW: u32 = 32;
/// Looks of a thread that has given the lock back, whether one that waits has taken it: a
/// microsecond, in which a thread that runs takes it, and one that does not run costs no more.
const POLITE_LOOKS: u32 = 24;
/// Looks for a moment in which nobody has the lock, before it is taken instead.
const LOOKS_MAX: u32 = if cfg!(loom) { 3 } else { 256 };
/// Threads that have the bias in the life of a lock.
const GRANTS: usize = if cfg!(loom) { 4 } else { 8 };
/// Low bits of a token, where the grant's number stands. No two threads have tokens that differ in
/// these alone.
const GRANT_MASK: usize = GRANTS - 1;

/// The raw lock.
#[repr(align(64))]
pub struct RawBiasedLock {
    /// The token of the thread with the bias and the number of its grant; 0: none.
    biased_to: AtomicUsize,
    /// By grant: its thread is inside, or about to look whether it may be.
    inside: [AtomicBool; GRANTS],
    /// How the lock is held: by a grant (its number and 1), or by `ordinary` (0). Written by who
    /// holds it.
    held_by: AtomicU8,
    ordinary: RawMutex,
    /// Threads that wait for it.
    waiting: AtomicU32,
    /// The rest changes under `ordinary`. Who took that last, and how often in a row.
    last: AtomicUsize,
    streak: AtomicU32,
    /// How often it takes to get the bias.
    needed: AtomicU32,
    /// The thread of the newest grant, and the number of grants.
    owner: AtomicUsize,
    grants: AtomicUsize,
}

/// A lock that nobody has taken. A macro, since loom's atomics can't be made in a constant.
macro_rules! untaken {
    ($needed:expr) => {
        RawBiasedLock {
            biased_to: AtomicUsize::new(0),
            inside: sync::flags(),
            held_by: AtomicU8::new(0),
            ordinary: sync::ordinary(),
            waiting: AtomicU32::new(0),
            last: AtomicUsize::new(0),
            streak: AtomicU32::new(0),
            needed: AtomicU32::new($needed),
            owner: AtomicUsize::new(0),
            grants: AtomicUsize::new(0),
        }
    };
}

impl RawBiasedLock {
    /// Takes the lock where `word`, just read, is biased to this thread by the grant of this
    /// number. It does not say how it is held.
    #[inline(always)]
    fn enter(&self, word: usize, grant: usize) -> bool {
        let inside = &self.inside[grant];
        inside.store(true, Ordering::Relaxed);
        // The other half of the barrier is `withdraw`'s.
        sync::light_barrier();
        if self.biased_to.load(Ordering::Acquire) != word {
            inside.store(false, Ordering::Release);
            return false;
        }
        true
    }

    #[inline(always)]
    fn enter_if_biased(&self) -> bool {
        let Some(grant) = self.hurry() else {
            return false;
        };
        self.held_by.store(grant as u8 + 1, Ordering::Relaxed);
        true
    }

    /// Takes the lock if it is biased to this thread, and only then: the number of its grant, by
    /// which [`RawBiasedLock::give_back_by`] gives it back. It calls nothing.
    #[inline(always)]
    pub fn hurry(&self) -> Option<usize> {
        let word = self.biased_to.load(Ordering::Relaxed);
        // What a biased word has beside the token is the number: no bias is given to a token that
        // has bits of its own there.
        let grant = word ^ token();
        (grant < GRANTS && self.enter(word, grant)).then_some(grant)
    }

    /// Gives it back.
    ///
    /// # Safety
    /// The calling thread has taken it by [`RawBiasedLock::hurry`], which returned this.
    #[inline(always)]
    pub unsafe fn give_back_by(&self, grant: usize) {
        self.inside[grant & GRANT_MASK].store(false, Ordering::Release);
    }

    /// Takes the ordinary lock. A thread that waits looks on for a while before it sleeps, and says
    /// that it waits, so that a thread which takes the lock again and again lets it go first.
    fn lock_ordinary(&self) {
        // In a model there is no time: each look would multiply its interleavings.
        if cfg!(loom) {
            return self.ordinary.lock();
        }
        if self.ordinary.try_lock() {
            return;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut looks = 0;
        while !self.ordinary.try_lock() {
            looks += 1;
            if looks == WAIT_LOOKS {
                self.ordinary.lock();
                break;
            }
            sync::await_turn(looks);
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly(&self) {
        self.lock_ordinary();
        let word = self.biased_to.load(Ordering::Relaxed);
        if word == 0 {
            return self.note_taken();
        }
        if word & !GRANT_MASK == token() & !GRANT_MASK {
            return self.hold_by(word);
        }
        let inside = self.withdraw(word);
        let mut looks = 0;
        while inside.load(Ordering::Acquire) {
            looks += 1;
            sync::pause(looks);
        }
        self.note_taken();
    }

    #[cold]
    #[inline(never)]
    fn try_slowly(&self) -> bool {
        if !self.ordinary.try_lock() {
            return false;
        }
        let word = self.biased_to.load(Ordering::Relaxed);
        if word == 0 {
            self.note_taken();
            return true;
        }
        if word & !GRANT_MASK == token() & !GRANT_MASK {
            self.hold_by(word);
            return true;
        }
        let inside = &self.inside[word & GRANT_MASK];
        if !inside.load(Ordering::Relaxed) && !self.withdraw(word).load(Ordering::Acquire) {
            self.note_taken();
            return true;
        }
        // Nothing was taken from it.
        self.biased_to.store(word, Ordering::Release);
        // SAFETY: locked above.
        unsafe { self.ordinary.unlock() };
        false
    }

    /// Nobody has the bias any more. Returns the word that says whether who was is inside, still.
    fn withdraw(&self, word: usize) -> &AtomicBool {
        self.biased_to.store(0, Ordering::SeqCst);
        sync::heavy_barrier();
        &self.inside[word & GRANT_MASK]
    }

    /// The ordinary lock is taken: is it time to give the bias to its holder?
    fn note_taken(&self) {
        let me = token();
        if self.last.swap(me, Ordering::Relaxed) != me {
            self.streak.store(0, Ordering::Relaxed);
        }
        let streak = self.streak.load(Ordering::Relaxed) + 1;
        self.streak.store(streak, Ordering::Relaxed);
        self.held_by.store(0, Ordering::Relaxed);
        let needed = self.needed.load(Ordering::Relaxed);
        if streak < needed || me & GRANT_MASK != 0 || !sync::allowed() {
            return;
        }
        self.streak.store(0, Ordering::Relaxed);
        let mut grants = self.grants.load(Ordering::Relaxed);
        if self.owner.load(Ordering::Relaxed) != me {
            if grants == GRANTS {
                return;
            }
            grants += 1;
            self.grants.store(grants, Ordering::Relaxed);
            self.owner.store(me, Ordering::Relaxed);
        }
        let harder = needed.saturating_mul(2).min(STREAK_LAST);
        self.needed.store(harder, Ordering::Relaxed);
        self.hold_by(me | (grants - 1));
    }

    /// Who holds the ordinary lock has the bias, and holds the lock by that from now on.
    fn hold_by(&self, word: usize) {
        let grant = word & GRANT_MASK;
        self.inside[grant].store(true, Ordering::Relaxed);
        self.held_by.store(grant as u8 + 1, Ordering::Relaxed);
        self.biased_to.store(word, Ordering::Release);
        // SAFETY: the caller holds it.
        unsafe { self.ordinary.unlock() };
    }

    /// Takes the lock.
    #[inline(always)]
    pub fn take(&self) {
        if !self.enter_if_biased() {
            self.lock_slowly();
        }
    }

    /// Takes the lock if that is possible at once.
    #[inline]
    pub fn try_take(&self) -> bool {
        self.enter_if_biased() || self.try_slowly()
    }

    /// Gives it back.
    ///
    /// # Safety
    /// The calling thread has taken it.
    #[inline(always)]
    pub unsafe fn give_back(&self) {
        match self.held_by.load(Ordering::Relaxed) {
            // SAFETY: held, by the caller's promise, and not by a grant.
            0 => unsafe { self.give_back_ordinary() },
            grant => {
                self.inside[usize::from(grant - 1) & GRANT_MASK].store(false, Ordering::Release)
            }
        }
    }

    /// # Safety
    /// The calling thread holds the ordinary lock.
    #[inline(never)]
    unsafe fn give_back_ordinary(&self) {
        let turns = self.streak.load(Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.ordinary.unlock() };
        if self.waiting.load(Ordering::Relaxed) > 0 && turns.is_multiple_of(TURNS_IN_A_ROW) {
            self.let_go_first();
        }
    }

    /// Another thread waits for the lock, and takes it now, or this one would be back first.
    #[cold]
    fn let_go_first(&self) {
        for _ in 0..POLITE_LOOKS {
            if self.ordinary.is_locked() || self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            sync::pause(1);
        }
    }

    /// Whether the calling thread has the bias.
    #[inline(always)]
    pub fn is_mine(&self) -> bool {
        self.biased_to.load(Ordering::Relaxed) & !GRANT_MASK == token() & !GRANT_MASK
    }

    /// The calling thread takes it and gives it back.
    fn pass(&self) {
        self.take();
        // SAFETY: just taken.
        unsafe { self.give_back() };
    }

    /// As [`RawBiasedLock::pass`], if it is biased to the calling thread. The barrier in it orders
    /// the caller's stores before against the withdrawal of the bias.
    fn pass_if_biased(&self) -> bool {
        let biased = self.enter_if_biased();
        if biased {
            // SAFETY: just taken.
            unsafe { self.give_back() };
        }
        biased
    }

    /// See [`await_all_free`]. After the barrier.
    fn await_free_behind_barrier(&self) {
        for looks in 1..LOOKS_MAX {
            if self.is_free() {
                return;
            }
            sync::pause(looks);
        }
        // Threads take turns, so that it never seems free.
        self.pass();
    }

    /// Whether each thread that had it a moment ago has given it back. First the ordinary lock:
    /// its holder may become biased, and says that it is inside before it gives that back. Then
    /// all that were ever biased: one that is inside says so, also when its bias is withdrawn.
    fn is_free(&self) -> bool {
        if self.ordinary.is_locked() {
            return false;
        }
        sync::acquire();
        let free = !self.inside.iter().any(|one| one.load(Ordering::Relaxed));
        sync::acquire();
        free
    }

    /// Whether somebody has it.
    pub fn is_taken(&self) -> bool {
        let word = self.biased_to.load(Ordering::Relaxed);
        let biased = word != 0 && self.inside[word & GRANT_MASK].load(Ordering::Relaxed);
        biased || self.ordinary.is_locked()
    }
}

/// Waits, for each of several locks, until nobody has it who had it before the call: what they did
/// then has happened before this returns, and whoever takes it later finds what the caller had
/// stored before. Nobody's bias is withdrawn. The caller holds none of them.
///
/// Whoever takes one by plain stores says that it is inside, and only then reads what the lock
/// guards; `heavy_barrier` orders that against the caller's stores before, and its looks here. It
/// is executed once for all, and not at all where each is biased to the caller: who takes one of
/// those executes it to withdraw the bias.
pub fn await_all_free<'a>(locks: impl Iterator<Item = &'a RawBiasedLock>) {
    if !sync::allowed() {
        return locks.for_each(RawBiasedLock::pass);
    }
    let others: Vec<_> = locks.filter(|lock| !lock.pass_if_biased()).collect();
    if others.is_empty() {
        return;
    }
    sync::heavy_barrier();
    others
        .into_iter()
        .for_each(RawBiasedLock::await_free_behind_barrier);
}

// SAFETY: at most one thread holds it at a time: see the crate's page.
#[cfg(not(loom))]
unsafe impl Raw for RawBiasedLock {
    #[allow(
        clippy::declare_interior_mutable_const,
        reason = "what the trait asks for"
    )]
    const INIT: Self = untaken!(STREAK_FIRST);

    type GuardMarker = GuardNoSend;

    #[inline(always)]
    fn lock(&self) {
        self.take();
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.try_take()
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.give_back() }
    }

    fn is_locked(&self) -> bool {
        self.is_taken()
    }
}

/// What the models see of it.
#[cfg(loom)]
impl RawBiasedLock {
    /// A lock whose first bias takes so many times in a row, and each later one two.
    pub fn after(needed: u32) -> RawBiasedLock {
        untaken!(needed)
    }

    /// Whether the calling thread has the bias.
    pub fn is_biased_to_me(&self) -> bool {
        self.biased_to.load(Ordering::Relaxed) & !GRANT_MASK == token()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
