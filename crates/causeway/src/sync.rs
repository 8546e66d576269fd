//! Locks, condition variables, semaphores and barriers in blocks.
//!
//! An object lies at an offset of a mapping that is a multiple of 64, and takes the bytes that its
//! `BYTES` says. One process makes it (`init`), all that have the block mapped for writing use it
//! (`at`). The next process that asks for a lock whose owner died gets it, is told
//! ([`Acquired::OwnerDead`]), and repairs what it protects; see [`causeway_shm::lock`].
//!
//! The types' parameter is how they keep the mapping: by themselves, unless said otherwise.

use std::borrow::Borrow;
use std::time::Duration;

use causeway_fabric::pool::SyncKind;
use causeway_shm::lock::{self, Deadline};

pub use causeway_shm::lock::{Acquired, LockError, Woken};

use crate::error::Result;
use crate::mapping::Mapping;

/// What an object answers.
type Outcome<T> = std::result::Result<T, LockError>;

/// An offset of an object is a multiple of this.
pub const ALIGN: usize = lock::LOCK_ALIGN;

/// Tells the broker of an object, for `causeway status`. What it does not hear is not shown.
fn note(mapping: &Mapping, at: usize, kind: SyncKind) {
    let held = mapping.held();
    let _ = held.library.session().note(held.handle, at as u64, kind);
}

/// For ever, or for so long from now.
fn until(timeout: Option<Duration>) -> Deadline {
    timeout.map_or(Deadline::NEVER, Deadline::after)
}

/// Declares what all objects have in common.
macro_rules! object {
    ($(#[$attr:meta])* $name:ident, $kind:ident, $bytes:ident $(, $value:ident: $type:ty)?) => {
        $(#[$attr])*
        #[derive(Clone, Debug)]
        pub struct $name<M = Mapping> {
            mapping: M,
            at: usize,
        }

        impl $name {
            /// Bytes that it takes.
            pub const BYTES: usize = lock::$bytes;

            /// Makes one of the bytes at an offset, whatever was there. Nobody may be using it.
            ///
            /// # Errors
            /// `EINVAL` for an offset or a value that is none.
            pub fn init(mapping: &Mapping, at: usize $(, $value: $type)?) -> Result<$name> {
                mapping.held().library.locker()?;
                lock::$name::init(mapping.memory(), at $(, $value)?)?;
                note(mapping, at, SyncKind::$kind);
                Ok($name {
                    mapping: mapping.clone(),
                    at,
                })
            }

            /// The one at an offset.
            ///
            /// # Errors
            /// `EINVAL` if there is none.
            pub fn at(mapping: &Mapping, at: usize) -> Result<$name> {
                mapping.held().library.locker()?;
                lock::$name::open(mapping.memory(), at)?;
                Ok($name {
                    mapping: mapping.clone(),
                    at,
                })
            }
        }

        impl<'a> $name<&'a Mapping> {
            /// One that may be there.
            #[inline]
            pub(crate) fn borrowed(mapping: &'a Mapping, at: usize) -> $name<&'a Mapping> {
                $name { mapping, at }
            }
        }

        impl<M: Borrow<Mapping>> $name<M> {
            /// Does something with the object, as this process. In a forked child, which has no
            /// such mapping, it fails before it looks. If the process was taken for dead while it
            /// waited it goes on by its next life.
            #[inline]
            fn with<T>(
                &self,
                act: impl Fn(lock::$name<'_>, &lock::Locker) -> Outcome<T>,
            ) -> Result<T> {
                let library = &self.mapping.borrow().held().library;
                loop {
                    let who = library.locker()?;
                    match act(self.view()?, who) {
                        Err(LockError::Fenced) => library.renew_life(who.life())?,
                        outcome => return Ok(outcome?),
                    }
                }
            }

            #[inline]
            fn view(&self) -> Result<lock::$name<'_>> {
                Ok(lock::$name::open(self.mapping.borrow().memory(), self.at)?)
            }
        }
    };
}

object!(
    /// A mutex: held by one thread of one process.
    Mutex, Mutex, MUTEX_BYTES
);
object!(
    /// A reader-writer lock.
    RwLock, RwLock, RWLOCK_BYTES
);
object!(
    /// A condition variable.
    Condvar, Condvar, CONDVAR_BYTES
);
object!(
    /// A counting semaphore, with its first value.
    Semaphore, Semaphore, SEMAPHORE_BYTES, value: u32
);
object!(
    /// A barrier, for so many threads.
    Barrier, Barrier, BARRIER_BYTES, parties: u32
);

impl<M: Borrow<Mapping>> Mutex<M> {
    /// Locks it, however long that takes.
    ///
    /// # Errors
    /// [`LockError::Deadlock`], [`LockError::NotRecoverable`].
    #[inline]
    pub fn lock(&self) -> Result<Acquired> {
        self.with(|it, who| it.lock(who))
    }

    /// Locks it if nobody has it.
    ///
    /// # Errors
    /// [`LockError::Busy`], and as for [`Mutex::lock`].
    pub fn try_lock(&self) -> Result<Acquired> {
        self.with(|it, who| it.try_lock(who))
    }

    /// Locks it within a time.
    ///
    /// # Errors
    /// [`LockError::TimedOut`], and as for [`Mutex::lock`].
    pub fn lock_within(&self, timeout: Duration) -> Result<Acquired> {
        let until = Deadline::after(timeout);
        self.with(|it, who| it.lock_until(who, until))
    }

    /// Unlocks it.
    ///
    /// # Errors
    /// [`LockError::NotOwner`].
    #[inline]
    pub fn unlock(&self) -> Result<()> {
        self.with(|it, who| it.unlock(who))
    }

    /// The caller, which was told that the owner died, has repaired what it protects.
    ///
    /// # Errors
    /// [`LockError::Invalid`] if there was nothing to repair.
    pub fn make_consistent(&self) -> Result<()> {
        self.with(|it, who| it.make_consistent(who))
    }
}

impl<M: Borrow<Mapping>> RwLock<M> {
    /// Locks it for reading, within a time or however long that takes. After a dead writer the
    /// caller has it for *writing*, to repair what it protects.
    ///
    /// # Errors
    /// [`LockError::TimedOut`], [`LockError::Deadlock`], [`LockError::NotRecoverable`],
    /// [`LockError::TooMany`].
    pub fn read(&self, timeout: Option<Duration>) -> Result<Acquired> {
        let until = until(timeout);
        self.with(|it, who| it.read_until(who, until))
    }

    /// Locks it for reading if that is possible now.
    ///
    /// # Errors
    /// [`LockError::Busy`], and as for [`RwLock::read`].
    pub fn try_read(&self) -> Result<Acquired> {
        self.with(|it, who| it.read_until(who, Deadline::TRY))
    }

    /// Locks it for writing, within a time or however long that takes.
    ///
    /// # Errors
    /// As for [`RwLock::read`].
    pub fn write(&self, timeout: Option<Duration>) -> Result<Acquired> {
        let until = until(timeout);
        self.with(|it, who| it.write_until(who, until))
    }

    /// Locks it for writing if nobody has it.
    ///
    /// # Errors
    /// [`LockError::Busy`], and as for [`RwLock::write`].
    pub fn try_write(&self) -> Result<Acquired> {
        self.with(|it, who| it.write_until(who, Deadline::TRY))
    }

    /// Unlocks it, as reader or writer.
    ///
    /// # Errors
    /// [`LockError::NotOwner`].
    pub fn unlock(&self) -> Result<()> {
        self.with(|it, who| it.unlock(who))
    }

    /// What it protects was repaired.
    ///
    /// # Errors
    /// [`LockError::Invalid`] if there was nothing to repair.
    pub fn make_consistent(&self) -> Result<()> {
        self.with(|it, who| it.make_consistent(who))
    }
}

impl<M: Borrow<Mapping>> Condvar<M> {
    /// Unlocks the mutex, waits for a signal, for a time or however long that takes, and locks it
    /// again. May return without a signal.
    ///
    /// # Errors
    /// [`LockError::NotOwner`] if the caller does not have the mutex,
    /// [`LockError::NotRecoverable`] if it can't be had again.
    pub fn wait<N>(&self, mutex: &Mutex<N>, timeout: Option<Duration>) -> Result<Woken>
    where
        N: Borrow<Mapping>,
    {
        let library = &self.mapping.borrow().held().library;
        let who = library.locker()?;
        let held = mutex.view()?;
        match self.view()?.wait_until(who, held, until(timeout)) {
            // It did not get the mutex any more, and may have missed a signal.
            Err(LockError::Fenced) => {
                library.renew_life(who.life())?;
                Ok(Woken {
                    mutex: mutex.lock()?,
                    timed_out: false,
                })
            }
            outcome => Ok(outcome?),
        }
    }

    /// Ends the wait of one that waits, if any does.
    ///
    /// # Errors
    /// [`LockError::Invalid`].
    pub fn signal(&self) -> Result<()> {
        self.with(|it, who| {
            it.signal(who);
            Ok(())
        })
    }

    /// Ends the wait of all that wait.
    ///
    /// # Errors
    /// [`LockError::Invalid`].
    pub fn broadcast(&self) -> Result<()> {
        self.with(|it, who| {
            it.broadcast(who);
            Ok(())
        })
    }
}

impl<M: Borrow<Mapping>> Semaphore<M> {
    /// Takes 1, within a time or however long it takes until there is one.
    ///
    /// # Errors
    /// [`LockError::TimedOut`], [`LockError::Invalid`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        let until = until(timeout);
        self.with(|it, who| it.wait_until(who, until))
    }

    /// Takes 1 if there is one.
    ///
    /// # Errors
    /// [`LockError::Busy`], [`LockError::Invalid`].
    pub fn try_wait(&self) -> Result<()> {
        self.with(|it, who| it.try_wait(who))
    }

    /// Adds 1.
    ///
    /// # Errors
    /// [`LockError::Overflow`], [`LockError::Invalid`].
    pub fn post(&self) -> Result<()> {
        self.with(|it, who| it.post(who))
    }

    /// The value now.
    ///
    /// # Errors
    /// [`LockError::Invalid`].
    pub fn value(&self) -> Result<u32> {
        self.with(|it, _| Ok(it.value()))
    }
}

impl<M: Borrow<Mapping>> Barrier<M> {
    /// Waits until all have arrived, for a time or however long that takes. True for the last.
    ///
    /// # Errors
    /// [`LockError::Broken`] if a participant died, [`LockError::TimedOut`],
    /// [`LockError::TooMany`], [`LockError::Invalid`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        let until = until(timeout);
        self.with(|it, who| it.wait_until(who, until))
    }

    /// A thread of this process takes part from now on: the others hear of its death before it
    /// arrives.
    ///
    /// # Errors
    /// [`LockError::TooMany`].
    pub fn join(&self) -> Result<()> {
        self.with(|it, who| it.join(who))
    }

    /// It takes part no longer.
    ///
    /// # Errors
    /// [`LockError::NotOwner`].
    pub fn leave(&self) -> Result<()> {
        self.with(|it, who| it.leave(who))
    }

    /// Makes a broken barrier whole, with nobody arrived.
    ///
    /// # Errors
    /// [`LockError::Busy`].
    pub fn mend(&self) -> Result<()> {
        self.with(|it, who| it.mend(who))
    }
}
