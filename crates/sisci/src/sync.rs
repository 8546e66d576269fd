//! Where the handles' atomics and lock come from, in whose place the models put the checker's.

pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
