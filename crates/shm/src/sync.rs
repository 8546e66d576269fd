//! The one place atomics come from, so that loom and shuttle can put theirs in.

#[cfg(loom)]
pub use loom::sync::{
    Arc,
    atomic::{AtomicU64, Ordering, fence},
};

#[cfg(shuttle)]
pub use shuttle::sync::{
    Arc,
    atomic::{AtomicU64, Ordering, fence},
};

#[cfg(not(any(loom, shuttle)))]
pub use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering, fence},
};
