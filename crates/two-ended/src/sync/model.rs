//! What the models run. The lock has a model of its own, in its crate: here it is loom's.

use std::ops::{Deref, DerefMut};

pub(crate) use loom::cell::UnsafeCell as Cell;
pub use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Mutex, MutexGuard};

/// The lock.
pub struct Lock<T>(Mutex<T>);

/// Its guard.
pub struct Guard<'a, T>(MutexGuard<'a, T>);

/// Its guard in the hands of a thread that did not wait for it.
pub type Hurried<'a, T> = Guard<'a, T>;

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Lock(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        Guard(self.0.lock().unwrap())
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.0.try_lock().is_err()
    }
}

/// Takes it if it is free.
pub(crate) fn hurry<T>(lock: &Lock<T>) -> Option<Hurried<'_, T>> {
    lock.0.try_lock().ok().map(Guard)
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Whether marks are published without the values before them: a defect, planted.
pub static PLANTED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// How a mark is published.
pub(crate) fn release() -> Ordering {
    match PLANTED.load(Ordering::Relaxed) {
        true => Ordering::Relaxed,
        false => Ordering::Release,
    }
}
