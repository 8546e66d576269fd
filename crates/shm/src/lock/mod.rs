//! Locks in shared memory that survive the death of any process that uses them.
//!
//! [`Mutex`], [`RwLock`], [`Condvar`], [`Semaphore`] and [`Barrier`] lie at any offset of a shared
//! block that is a multiple of [`LOCK_ALIGN`], and are used by all processes that have it mapped
//! for writing. They are views: a reference to the memory and nothing else, opened as often as one
//! likes. Their user is a [`Locker`]: a process, by its entry in the life table ([`crate::life`]),
//! which the broker keeps.
//!
//! # What holds in all of them
//!
//! - **One store, one step.** A process acquires or gives up anything by a single store that names
//!   it. So there is nothing a death can leave half done, and what the dead had can be told from
//!   the word alone. What is lost with a lock's owner is the order of what the *program* protects
//!   by it, and the next owner is told ([`Acquired::OwnerDead`]).
//! - **First say, then wake.** What a waiter waits for is visible before anybody is woken. A waker
//!   that dies in between, or a waiter that dies when it has been woken in place of another,
//!   changes the deaths word, which all waiters sleep on too. They look, and find it. A waker or
//!   waiter that is *stopped* there is not noticed, but waiters look again by themselves when their
//!   [`LEASE`] is over.
//! - **No system call without need.** A process that locks or unlocks what nobody else wants makes
//!   none, nor does one that signals or posts when nobody sleeps.
//! - **Nobody is believed.** Every word is read once and taken for what it says within its bounds.
//!   A process that writes rubbish into an object makes its users fail, or wait until their time is
//!   over, or believe to have what they have not: it may write what the lock protects anyway.
//! - **A process that is taken for dead has nothing.** A process whose life ends while it waits,
//!   though it goes on itself, is told [`LockError::Fenced`] when it wakes, and has not what it
//!   waited for. It is to go on by another life; what it had by this one is the next owner's.
//!
//! A process that is stopped is alive: it keeps what it has, since it can't be kept from storing
//! when it goes on. A *thread* that ends keeps what it has until its process ends.
//!
//! Sleeping is behind the trait [`Sleep`], and knowledge of deaths behind [`Liveness`]: futexes and
//! the life table on the host ([`Futex`]).

mod barrier;
mod condvar;
mod error;
mod event;
#[cfg(not(any(loom, shuttle)))]
mod futex;
mod layout;
mod locker;
mod memory;
mod mutex;
mod owner;
#[cfg(not(any(loom, shuttle)))]
mod proxy;
mod records;
mod rwlock;
mod semaphore;
mod shown;
mod spin;
mod time;
mod word;

pub use barrier::{BARRIER_MAX, Barrier};
pub use condvar::{Condvar, Woken};
pub use error::{Acquired, LockError};
#[cfg(not(any(loom, shuttle)))]
pub use futex::{Futex, Outside, Proxy, reach_outside_by};
pub use layout::{
    BARRIER_BYTES, BARRIER_MAGIC, CONDVAR_BYTES, CONDVAR_MAGIC, HOLDER, LOCK_ALIGN, MUTEX_BYTES,
    MUTEX_MAGIC, RECORDS, RWLOCK_BYTES, RWLOCK_MAGIC, SEMAPHORE_BYTES, SEMAPHORE_MAGIC, STATE,
};
pub use locker::{LEASE, Liveness, Locker, Sleep};
pub use memory::Memory;
pub use mutex::Mutex;
pub use owner::Holder;
#[cfg(not(any(loom, shuttle)))]
pub use proxy::{WORDS_MAX, Watched, sleep_on_any, wake_in};
pub use rwlock::RwLock;
pub use semaphore::{SEMAPHORE_MAX, Semaphore};
pub use shown::{Health, Shown};
pub use time::Deadline;
