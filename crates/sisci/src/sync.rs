//! The handles' atomics and lock. The models put the checker's in their place.

pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
