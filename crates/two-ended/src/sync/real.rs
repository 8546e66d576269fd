//! What programs run.

pub use std::sync::atomic::{AtomicUsize, Ordering};

pub use causeway_biased_lock::{BiasedGuard as Guard, BiasedLock as Lock, Hurried, hurry};

/// A place that several threads reach, one at a time.
#[derive(Default)]
pub(crate) struct Cell<T>(std::cell::UnsafeCell<T>);

impl<T> Cell<T> {
    /// For who reads it.
    #[inline(always)]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// For who writes it.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// How a mark is published.
#[inline(always)]
pub(crate) const fn release() -> Ordering {
    Ordering::Release
}
