//! What the models run.

use loom::sync::atomic::fence;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use loom::sync::{Mutex, MutexGuard};
use std::cell::UnsafeCell;

/// Models are allowed to give the bias to threads anyway.
pub(crate) fn allowed() -> bool {
    true
}

/// A pair of a compiler's barrier and a `membarrier(2)` orders what a pair of full barriers does
/// (see the crate's page): so each is one.
pub(crate) fn light_barrier() {
    fence(Ordering::SeqCst);
}

/// See [`light_barrier`].
pub(crate) fn heavy_barrier() {
    fence(Ordering::SeqCst);
}

/// Lets other threads go on.
pub(crate) fn await_turn(_looks: u32) {
    loom::thread::yield_now();
}

/// After looks by relaxed loads: what is read from here on is read after them.
pub(crate) fn acquire() {
    fence(Ordering::Acquire);
}

/// Lets other threads go on: loom would look for ever.
pub(crate) fn pause(_looks: u32) {
    loom::thread::yield_now();
}

/// Loom's mutex without a guard for its holder to keep.
pub(crate) struct RawMutex {
    mutex: Mutex<()>,
    guard: UnsafeCell<Option<MutexGuard<'static, ()>>>,
}

// SAFETY: its holder alone reaches the guard.
unsafe impl Send for RawMutex {}
// SAFETY: as above.
unsafe impl Sync for RawMutex {}

impl RawMutex {
    fn keep(&self, guard: MutexGuard<'_, ()>) {
        // SAFETY: the mutex outlives its holder, who alone reaches the cell and drops the guard.
        unsafe {
            *self.guard.get() = Some(std::mem::transmute::<_, MutexGuard<'static, ()>>(guard))
        }
    }

    pub(crate) fn lock(&self) {
        self.keep(self.mutex.lock().unwrap());
    }

    pub(crate) fn try_lock(&self) -> bool {
        self.mutex.try_lock().map(|guard| self.keep(guard)).is_ok()
    }

    /// # Safety
    /// The caller holds it.
    pub(crate) unsafe fn unlock(&self) {
        // SAFETY: the holder's cell. It is empty before the next one comes.
        let guard = unsafe { (*self.guard.get()).take() };
        drop(guard.expect("held"));
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.mutex.try_lock().is_err()
    }
}

/// An ordinary lock that is free.
pub(crate) fn ordinary() -> RawMutex {
    RawMutex {
        mutex: Mutex::new(()),
        guard: UnsafeCell::new(None),
    }
}

/// Words that all say no.
pub(crate) fn flags<const N: usize>() -> [AtomicBool; N] {
    std::array::from_fn(|_| AtomicBool::new(false))
}

/// Names the calling thread of a model: all of them are one of the system's.
pub(crate) fn token() -> usize {
    use std::sync::atomic::AtomicUsize;
    static NAMES: AtomicUsize = AtomicUsize::new(1);
    loom::thread_local!(static NAME: usize = NAMES.fetch_add(1, Ordering::Relaxed) * 64);
    NAME.with(|name| *name)
}
