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

/// The model checkers take sequentially consistent accesses for weaker ones, and only fences for
/// what they are: a fence for them, where such accesses are enough.
#[inline(always)]
pub(crate) fn model_fence() {
    #[cfg(any(loom, shuttle))]
    fence(Ordering::SeqCst);
}
