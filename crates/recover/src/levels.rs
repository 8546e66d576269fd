//! How many levels of handlers are in use, and who may change that.

use std::hint;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use crate::masks::{block, blocked, synchronous};

/// The levels in use for each of the signals.
pub(crate) struct Levels {
    used: [AtomicUsize; 2],
    /// The process of the thread that holds the lock, or 0. A child of fork(2) may find one there
    /// that it has no thread of.
    holder: AtomicI32,
    /// The process that has installed handlers, or 0.
    owner: AtomicI32,
}

/// The lock, with all signals blocked but those of faults: a handler that calls sigaction(2) finds
/// no lock that its own thread holds.
pub(crate) struct Held<'a> {
    levels: &'a Levels,
    blocked_before: u64,
}

impl Levels {
    pub const fn new() -> Levels {
        Levels {
            used: [const { AtomicUsize::new(0) }; 2],
            holder: AtomicI32::new(0),
            owner: AtomicI32::new(0),
        }
    }

    /// Waits for the lock. The process owns the handlers from now on.
    pub fn lock(&self) -> Held<'_> {
        let held = self.take(own());
        self.owner.store(own(), Ordering::Relaxed);
        held
    }

    /// Waits for the lock, if the process owns the handlers. A child of vfork(2), which shares this
    /// memory with a process that does, never does.
    pub fn lock_own(&self) -> Option<Held<'_>> {
        let own = own();
        (self.owner.load(Ordering::Relaxed) == own).then(|| self.take(own))
    }

    fn take(&self, own: i32) -> Held<'_> {
        let blocked_before = blocked();
        block(blocked_before | !synchronous());
        let mut found = 0;
        // Whoever is not of this process is a thread of the parent's that the fork has not copied.
        while let Err(holder) =
            self.holder
                .compare_exchange(found, own, Ordering::Acquire, Ordering::Relaxed)
        {
            found = if holder == own { 0 } else { holder };
            hint::spin_loop();
            std::thread::yield_now();
        }
        Held {
            levels: self,
            blocked_before,
        }
    }
}

impl Held<'_> {
    pub fn get(&self) -> [usize; 2] {
        self.levels
            .used
            .each_ref()
            .map(|used| used.load(Ordering::Relaxed))
    }

    pub fn set(&mut self, index: usize, levels: usize) {
        self.levels.used[index].store(levels, Ordering::Relaxed);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.levels.holder.store(0, Ordering::Release);
        block(self.blocked_before);
    }
}

fn own() -> i32 {
    // SAFETY: a system call without arguments.
    unsafe { libc::getpid() }
}
