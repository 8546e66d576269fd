//! What each object of `causeway_shm::lock` answers, among threads that stand for processes.
//!
//! Processes that die for real are in `tests/locks`.
#![cfg(not(any(loom, shuttle)))]

#[path = "lock/barrier.rs"]
mod barrier;
#[path = "lock/fenced.rs"]
mod fenced;
#[path = "lock/garbage.rs"]
mod garbage;
#[path = "lock/lease.rs"]
mod lease;
#[path = "lock/mutex.rs"]
mod mutex;
#[path = "lock/rwlock.rs"]
mod rwlock;
#[path = "lock/semaphore.rs"]
mod semaphore;
#[path = "lock/shown.rs"]
mod shown;
#[path = "lock/world.rs"]
mod world;
