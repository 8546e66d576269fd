//! The endpoint's lock: a mutex that is released by a plain store.
//!
//! A message takes and releases it three or four times, and a locked instruction also keeps the
//! processor from starting on what follows. The usual mutex needs one to release, to learn whether
//! somebody waits. Here whoever waits pays for that: it announces itself, and before it sleeps it
//! makes every running thread of the process pass a barrier (`membarrier(2)`, private expedited).

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use std::time::{Duration, Instant};

use rustix::thread::futex::{self, Flags};
use rustix::thread::{MembarrierCommand, membarrier};

use crate::clock;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Looks at a lock that is held before its waiter sleeps: most holders are about to release it.
const LOOKS: u32 = 200;

/// A value that one thread at a time can reach.
pub(crate) struct Lock<T> {
    state: AtomicU32,
    /// Threads that sleep, or are about to.
    waiters: AtomicU32,
    /// `membarrier(2)` does for the releasing thread what a fence would.
    expedited: bool,
    value: UnsafeCell<T>,
}

// SAFETY: as for a mutex: the value is only reached through the guard, by one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The right to the value, until dropped.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    /// A free lock around `value`.
    pub fn new(value: T) -> Self {
        let expedited = membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        Lock {
            state: AtomicU32::new(FREE),
            waiters: AtomicU32::new(0),
            expedited,
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock and takes it. Not reentrant.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        if !self.take() {
            self.wait(None);
        }
        Guard { lock: self }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.take().then(|| Guard { lock: self })
    }

    /// Waits for the lock for some time.
    pub fn try_lock_for(&self, time: Duration) -> Option<Guard<'_, T>> {
        (self.take() || self.wait(Some(Instant::now() + time))).then(|| Guard { lock: self })
    }

    #[inline]
    fn take(&self) -> bool {
        let order = (Ordering::Acquire, Ordering::Relaxed);
        self.state
            .compare_exchange(FREE, HELD, order.0, order.1)
            .is_ok()
    }

    /// Takes a lock that was held. Returns false when the time is up.
    #[cold]
    fn wait(&self, until: Option<Instant>) -> bool {
        for _ in 0..LOOKS {
            if self.state.load(Ordering::Relaxed) == FREE && self.take() {
                return true;
            }
            std::hint::spin_loop();
        }
        self.waiters.fetch_add(1, Ordering::SeqCst);
        if self.expedited {
            // A holder that looked for waiters before this barrier has released the lock before it
            // too, and the look below finds it free; one that looks later sees this one.
            let _ = membarrier(MembarrierCommand::PrivateExpedited);
        } else {
            fence(Ordering::SeqCst);
        }
        let taken = loop {
            if self.take() {
                break true;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break false;
            }
            // Woken, or held no longer, or interrupted, or out of time: look again.
            let left = left.map(clock::timespec);
            let _ = futex::wait(&self.state, Flags::PRIVATE, HELD, left.as_ref());
        };
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        taken
    }

    #[inline]
    fn release(&self) {
        self.state.store(FREE, Ordering::Release);
        if self.expedited {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
    }

    /// Wakes a waiter, and lets it run first where it would run here: a thread that polls takes
    /// the lock again at once.
    #[cold]
    fn wake(&self) {
        let _ = futex::wake(&self.state, Flags::PRIVATE, 1);
        std::thread::yield_now();
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, and is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.release();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn one_thread_at_a_time_and_none_sleeps_for_ever() {
        const THREADS: u64 = 4;
        const TURNS: u64 = 20_000;
        let lock = Arc::new(Lock::new((0_u64, 0_u64)));
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let lock = Arc::clone(&lock);
                std::thread::spawn(move || {
                    for turn in 0..TURNS {
                        let mut value = lock.lock();
                        value.0 += 1;
                        if turn % 64 == 0 {
                            // Held while another thread gives up looking and goes to sleep.
                            std::thread::yield_now();
                        }
                        value.1 += 1;
                        assert_eq!(value.0, value.1);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(lock.lock().0, THREADS * TURNS);
        assert_eq!(lock.waiters.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn waiting_ends_when_the_time_is_up() {
        let lock = Lock::new(());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        let start = Instant::now();
        let time = Duration::from_millis(5);
        assert!(lock.try_lock_for(time).is_none() && start.elapsed() >= time);
        drop(held);
        assert!(lock.try_lock_for(time).is_some());
    }
}
