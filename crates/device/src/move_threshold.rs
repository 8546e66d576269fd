//! How long a region waits before it is moved to where peers can map it (`deferred_move`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use causeway_memory::ENVIRONMENT;

/// Accesses by ring to all of a region before it is moved: READs, atomics and WRITEs. One of
/// 256 KiB costs some 60 µs more than a direct one, and moving as much some 250 µs.
pub(crate) const ACCESSES_BEFORE_MOVE: u64 = 4;
/// How often the threshold doubles, each time that a region cannot be moved.
const DOUBLED_MAX: u32 = 16;
/// [`ENVIRONMENT`] set to this: nothing waits.
const EAGER: &str = "eager";

/// Whether regions wait to be used.
pub(crate) fn waits() -> bool {
    static EAGERLY: OnceLock<bool> = OnceLock::new();
    let eager = || causeway_fabric::setting(ENVIRONMENT).is_some_and(|value| value == EAGER);
    !*EAGERLY.get_or_init(eager)
}

/// How many bytes of accesses by ring a region is still to serve before it is moved; 0 if it does
/// not wait. Threads that count at the same moment may count once: it is an estimate.
#[derive(Debug, Default)]
pub(crate) struct MoveThreshold {
    left: AtomicU64,
    /// How often it has been tried in vain.
    tries: AtomicU32,
}

impl Clone for MoveThreshold {
    fn clone(&self) -> MoveThreshold {
        MoveThreshold {
            left: AtomicU64::new(self.left.load(Ordering::Relaxed)),
            tries: AtomicU32::new(self.tries.load(Ordering::Relaxed)),
        }
    }
}

impl MoveThreshold {
    /// Takes an access that counts for so many bytes. True if it was the last.
    pub fn is_over(&self, counts: u64) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return false;
        }
        let rest = left.saturating_sub(counts);
        let (relaxed, left) = (Ordering::Relaxed, left);
        let counted = self.left.compare_exchange(left, rest, relaxed, relaxed);
        counted.is_ok() && left <= counts
    }

    /// Begins for a region of so many bytes, that has not been tried yet.
    pub fn begin(&self, len: usize) {
        self.tries.store(0, Ordering::Relaxed);
        self.wait_for(len, 0);
    }

    /// Begins again for a region that has been tried in vain: twice as much as before.
    pub fn begin_again(&self, len: usize) {
        let tries = self.tries.fetch_add(1, Ordering::Relaxed) + 1;
        self.wait_for(len, tries);
    }

    fn wait_for(&self, len: usize, tries: u32) {
        let doubled = 1 << tries.min(DOUBLED_MAX);
        let len = (len as u64).max(1);
        let left = len
            .saturating_mul(ACCESSES_BEFORE_MOVE)
            .saturating_mul(doubled);
        self.left.store(left, Ordering::Relaxed);
    }
}
