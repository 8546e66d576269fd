//! Answers of locks.

/// How a lock was obtained.
#[must_use = "a lock whose owner died protects data that may be half changed"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// In good order.
    Clean,
    /// The caller has it, but its owner died between lock and unlock: what it protects may be half
    /// changed. The caller repairs that and says so (`make_consistent`); if it unlocks without,
    /// the lock is not recoverable (`pthread_mutexattr_setrobust(3)`).
    OwnerDead,
}

/// Why a lock refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// There is no such object at this place, it does not fit there, or an argument is out of its
    /// range; or somebody writes what no honest program would.
    #[error("not such an object, or not a valid argument")]
    Invalid,
    /// The calling thread has it already.
    #[error("the calling thread has this lock already")]
    Deadlock,
    /// The calling thread (for a read lock: process) does not have it.
    #[error("not held by the caller")]
    NotOwner,
    /// It can't be had now, and the caller did not want to wait.
    #[error("held by another")]
    Busy,
    /// It could not be had in time.
    #[error("timed out")]
    TimedOut,
    /// Its owner died, and the process that was told unlocked it without having repaired what it
    /// protects.
    #[error("the state that it protects was lost with its owner")]
    NotRecoverable,
    /// The semaphore's value is the greatest already.
    #[error("the value is the greatest possible")]
    Overflow,
    /// As many processes as it has records use it at once, or as many threads of one process as
    /// can be counted.
    #[error("too many processes use it at once")]
    TooMany,
    /// A participant of the barrier died.
    #[error("a participant died")]
    Broken,
    /// While the caller waited, its own life ended: others take its process for dead. It is to go
    /// on by another life; what it had by this one it has lost.
    #[error("the caller was taken for dead meanwhile")]
    Fenced,
}

impl LockError {
    /// The error number by which C programs know it.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            LockError::Invalid => libc::EINVAL,
            LockError::Deadlock => libc::EDEADLK,
            LockError::NotOwner => libc::EPERM,
            LockError::Busy => libc::EBUSY,
            LockError::TimedOut => libc::ETIMEDOUT,
            LockError::NotRecoverable => libc::ENOTRECOVERABLE,
            LockError::Overflow => libc::EOVERFLOW,
            LockError::TooMany => libc::EAGAIN,
            LockError::Broken => libc::EOWNERDEAD,
            LockError::Fenced => libc::ESTALE,
        }
    }
}
