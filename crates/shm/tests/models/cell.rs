//! A cell that finds out whether two threads are in it at once: loom's own, or one for shuttle.

#[cfg(loom)]
pub use loom::cell::UnsafeCell;

#[cfg(shuttle)]
pub use random::UnsafeCell;

#[cfg(shuttle)]
mod random {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    /// What a writer adds to the count of those inside; a reader adds one.
    const WRITER: usize = 1 << 32;

    /// A cell whose every access leaves others the time to come between.
    pub struct UnsafeCell<T> {
        value: std::cell::UnsafeCell<T>,
        inside: AtomicUsize,
    }

    impl<T> UnsafeCell<T> {
        pub fn new(value: T) -> UnsafeCell<T> {
            UnsafeCell {
                value: std::cell::UnsafeCell::new(value),
                inside: AtomicUsize::new(0),
            }
        }

        /// Reads, as loom's cell does.
        pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            self.enter(1, |inside| inside < WRITER);
            let result = read(self.value.get());
            self.inside.fetch_sub(1, SeqCst);
            result
        }

        /// Writes, as loom's cell does.
        pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            self.enter(WRITER, |inside| inside == 0);
            let result = write(self.value.get());
            self.inside.fetch_sub(WRITER, SeqCst);
            result
        }

        fn enter(&self, weight: usize, allowed: impl Fn(usize) -> bool) {
            let inside = self.inside.fetch_add(weight, SeqCst);
            assert!(allowed(inside), "two accesses at once");
            shuttle::thread::yield_now();
        }
    }
}
