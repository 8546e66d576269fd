//! Lockers: the processes that lock, how they learn of deaths, and how they sleep.

use super::error::LockError;
use super::layout::MODEL;
use super::time::{self, Deadline};
use super::word;
use crate::life::{Life, LifeTable};
use crate::sync::AtomicU64;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// For how long a waiter believes what it knows. Then it looks again, whether anybody has woken it
/// or not, and asks after the process that it waits for: a wake-up or a death that nobody could
/// tell it of costs this time, and nothing else.
pub const LEASE: Duration = Duration::from_millis(500);
/// How often in a row a waiter finds its word changed under its hands before it takes a nap: only
/// a process that writes all the time, to do harm, makes it so.
pub(crate) const RETRIES: u32 = 10_000;
/// The nap.
const NAP: Duration = Duration::from_millis(1);

/// Knows what is alive.
pub trait Liveness: Send + Sync {
    /// Whether somebody is alive, as far as is known here: in a few instructions.
    fn is_alive(&self, life: Life) -> bool;

    /// A value that is another one after every death, read before [`Liveness::is_alive`].
    fn deaths(&self) -> u32;

    /// Whether something is alive, asked of the broker: called when a lease has run out, in case
    /// that the news was lost. May take a while. A process that is stopped is alive; one that can
    /// be kept from storing ever again, as a virtual machine can, may be answered for as dead.
    fn confirm(&self, life: Life) -> bool {
        self.is_alive(life)
    }
}

impl Liveness for LifeTable {
    fn is_alive(&self, life: Life) -> bool {
        LifeTable::is_alive(self, life)
    }

    fn deaths(&self) -> u32 {
        LifeTable::deaths(self)
    }
}

/// How a waiter sleeps: on the host with futexes, which do not reach into virtual machines.
pub trait Sleep: Send + Sync {
    /// Sleeps while the low half of `word` is `expected` and [`Liveness::deaths`] is `deaths`,
    /// until `until` at the latest. May return at any time.
    fn sleep(&self, word: &AtomicU64, expected: u32, deaths: u32, until: Deadline);

    /// Wakes up to `count` of those that sleep on `word`, and returns how many there were.
    fn wake(&self, word: &AtomicU64, count: u32) -> u32;

    /// A step of a protocol, at which the thread may die.
    #[cfg(any(loom, shuttle))]
    fn step(&self, _name: &'static str) {}
}

/// A process that locks, by its session: what it has, it has until the session's life ends. All
/// threads of the process share one.
///
/// After fork(2) the child must not use it: it is its parent's.
#[derive(Clone)]
pub struct Locker {
    me: Life,
    /// The word of a lock that is held by us and awaited by nobody.
    held: u64,
    life: Arc<dyn Liveness>,
    sleep: Arc<dyn Sleep>,
    #[cfg(any(loom, shuttle))]
    thread: u32,
}

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Locker").field(&self.me).finish()
    }
}

impl Locker {
    /// The process whose session has the life `me`.
    #[must_use]
    pub fn new(me: Life, life: Arc<dyn Liveness>, sleep: Arc<dyn Sleep>) -> Locker {
        Locker {
            me,
            held: word::held_by(me),
            life,
            sleep,
            #[cfg(any(loom, shuttle))]
            thread: 1,
        }
    }

    /// Its life.
    #[must_use]
    pub fn life(&self) -> Life {
        self.me
    }

    #[inline(always)]
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    pub(crate) fn deaths(&self) -> u32 {
        self.life.deaths()
    }

    pub(crate) fn is_alive(&self, life: Life) -> bool {
        life == self.me || self.life.is_alive(life)
    }

    pub(crate) fn confirm(&self, life: Life) -> bool {
        life == self.me || self.life.confirm(life)
    }

    /// Whether others take this process for dead. In a model nobody is without being so.
    pub(crate) fn is_fenced(&self) -> bool {
        !MODEL && !self.life.is_alive(self.me)
    }

    pub(crate) fn wake(&self, word: &AtomicU64, count: u32) -> u32 {
        self.sleep.wake(word, count)
    }

    /// A step at which tests kill or stop the process.
    #[inline(always)]
    pub(crate) fn step(&self, name: &'static str) {
        causeway_fault::point(name);
        #[cfg(any(loom, shuttle))]
        self.sleep.step(name);
    }
}

/// The number of the calling thread, never 0: its id in the kernel, as tools show it.
#[cfg(not(any(loom, shuttle)))]
impl Locker {
    #[inline]
    pub(crate) fn thread(&self) -> u64 {
        use std::cell::Cell;
        thread_local! {
            static ID: Cell<u32> = const { Cell::new(0) };
        }
        ID.with(|id| match id.get() {
            0 => {
                id.set(current_thread());
                u64::from(id.get())
            }
            known => u64::from(known),
        })
    }
}

#[cfg(not(any(loom, shuttle)))]
#[cold]
fn current_thread() -> u32 {
    rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs()
}

#[cfg(any(loom, shuttle))]
impl Locker {
    /// The same process in a thread of a model.
    #[must_use]
    pub fn in_thread(&self, thread: u32) -> Locker {
        Locker {
            thread,
            ..self.clone()
        }
    }

    pub(crate) fn thread(&self) -> u64 {
        u64::from(self.thread)
    }
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woke {
    /// Somebody woke it, or nobody: the caller looks.
    Early,
    /// The lease has run out.
    Lease,
}

/// A call that waits: its deadline and its lease.
pub(crate) struct Waiting<'a> {
    who: &'a Locker,
    until: Deadline,
    /// When the lease runs out; `None` before the first sleep.
    lease: Option<Deadline>,
    /// What turned out to be dead when it was asked after.
    dead: Option<Life>,
    turns: u32,
    spun: bool,
    /// Whether it has slept since it looked whether it is still alive.
    slept: bool,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(who: &'a Locker, until: Deadline) -> Waiting<'a> {
        Waiting {
            who,
            until,
            lease: None,
            dead: None,
            turns: 0,
            spun: false,
            slept: false,
        }
    }

    pub(crate) fn is_try(&self) -> bool {
        self.until.is_try()
    }

    /// Whether the caller has waited for as long as it would.
    pub(crate) fn over(&self) -> bool {
        self.until.passed()
    }

    /// At the top of each loop. A process that makes us go round without end finds us asleep, or
    /// gone when the time is over.
    ///
    /// # Errors
    /// As the deadline says; [`LockError::Fenced`].
    pub(crate) fn turn(&mut self) -> Result<(), LockError> {
        // A process that acquires in the name of a dead one has nothing: the next one takes it
        // away.
        if std::mem::take(&mut self.slept) && self.who.is_fenced() {
            return Err(LockError::Fenced);
        }
        self.turns += 1;
        if self.turns <= RETRIES {
            return Ok(());
        }
        if self.is_try() {
            return Err(LockError::Busy);
        }
        if self.over() {
            return Err(LockError::TimedOut);
        }
        self.turns = 0;
        let nobody = AtomicU64::new(0);
        let nap = Deadline::after(NAP).min(self.until);
        self.who.sleep.sleep(&nobody, 0, self.who.deaths(), nap);
        Ok(())
    }

    /// Looks for a moment whether what we wait for comes by itself: once for each call.
    pub(crate) fn spin(&mut self, hint: &AtomicU64, done: impl FnMut() -> bool) -> bool {
        !std::mem::replace(&mut self.spun, true) && super::spin::spin(hint, done)
    }

    /// Whether an owner is alive, as far as this call knows.
    pub(crate) fn is_alive(&self, owner: Life) -> bool {
        self.dead != Some(owner) && self.who.is_alive(owner)
    }

    /// Sleeps as in [`Waiting::sleep`], and asks after the owner when the lease is over.
    pub(crate) fn sleep_for(&mut self, owner: Life, word: &AtomicU64, expected: u64, deaths: u32) {
        if self.sleep(word, expected, deaths) == Woke::Lease && !self.who.confirm(owner) {
            self.dead = Some(owner);
        }
    }

    /// Sleeps while the low half of `word` is that of `expected` and nobody has died since
    /// `deaths` was read, until the deadline or the end of the lease.
    pub(crate) fn sleep(&mut self, word: &AtomicU64, expected: u64, deaths: u32) -> Woke {
        let lease = *self.lease.get_or_insert_with(|| Deadline::after(LEASE));
        (self.turns, self.slept) = (0, true);
        let until = self.until.min(lease);
        self.who.sleep.sleep(word, expected as u32, deaths, until);
        // In a model no time passes.
        if !MODEL && lease.nanos() <= time::now() {
            self.lease = None;
            Woke::Lease
        } else {
            Woke::Early
        }
    }
}
