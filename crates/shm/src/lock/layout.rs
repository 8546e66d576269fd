//! Sizes and offsets of the objects (`docs/LAYOUT.md`, "Locks").

/// Whether a model checker stands in for shared memory.
pub(crate) const MODEL: bool = cfg!(any(loom, shuttle));

/// An object begins at a multiple of this: one cache line.
pub const LOCK_ALIGN: usize = if MODEL { 8 } else { 64 };
/// Processes that a reader-writer lock or a barrier tells apart at the same time.
pub const RECORDS: usize = if MODEL { 2 } else { 64 };
/// Offset of the records behind an object's own words.
pub(crate) const RECORDS_AT: usize = if MODEL { 48 } else { 64 };

/// Bytes of a mutex.
pub const MUTEX_BYTES: usize = if MODEL { 48 } else { 64 };
/// Bytes of a condition variable.
pub const CONDVAR_BYTES: usize = if MODEL { 48 } else { 64 };
/// Bytes of a semaphore.
pub const SEMAPHORE_BYTES: usize = if MODEL { 48 } else { 64 };
/// Bytes of a reader-writer lock.
pub const RWLOCK_BYTES: usize = RECORDS_AT + 8 * RECORDS;
/// Bytes of a barrier.
pub const BARRIER_BYTES: usize = RECORDS_AT + 8 * RECORDS;

/// First word of a mutex: "CWMUTX", a zero byte and the version.
pub const MUTEX_MAGIC: u64 = u64::from_le_bytes(*b"CWMUTX\0\x01");
/// First word of a reader-writer lock.
pub const RWLOCK_MAGIC: u64 = u64::from_le_bytes(*b"CWRWLK\0\x01");
/// First word of a condition variable.
pub const CONDVAR_MAGIC: u64 = u64::from_le_bytes(*b"CWCOND\0\x01");
/// First word of a semaphore.
pub const SEMAPHORE_MAGIC: u64 = u64::from_le_bytes(*b"CWSEMA\0\x01");
/// First word of a barrier.
pub const BARRIER_MAGIC: u64 = u64::from_le_bytes(*b"CWBARR\0\x01");

/// In every object: the magic word, stored last when it is made.
pub(crate) const MAGIC: usize = 0;
/// In every object: the word that it is about, and that its waiters sleep on.
pub const STATE: usize = 8;
/// In every object: how long spinning was worth while, a hint.
pub(crate) const SPINS: usize = 16;
/// In a mutex and a reader-writer lock: the thread that is between lock and unlock.
pub const HOLDER: usize = 24;
/// In a barrier: how many must arrive.
pub(crate) const PARTIES: usize = 24;
/// In a reader-writer lock: changes when a reader leaves while a writer waits.
pub(crate) const DRAIN: usize = 32;

const _: () = {
    assert!(DRAIN + 8 <= RECORDS_AT && DRAIN + 8 <= MUTEX_BYTES);
    assert!(MODEL || (RWLOCK_BYTES == 576 && BARRIER_BYTES == 576));
};
