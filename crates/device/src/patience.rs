//! How long a region waits before it is moved to where peers can map it (`lazy`).

use std::cell::Cell;
use std::sync::OnceLock;

use causeway_memory::ENVIRONMENT;

/// Accesses by ring to all of a region before it is moved: READs, atomics and WRITEs. One of
/// 256 KiB costs some 60 µs more than a direct one, and moving as much some 250 µs.
pub(crate) const PATIENCE: u64 = 4;
/// How often patience doubles, each time that a region cannot be moved.
const DOUBLED_MAX: u32 = 16;
/// [`ENVIRONMENT`] set to this: nothing waits.
const EAGER: &str = "eager";

/// Whether regions wait to be used.
pub(crate) fn waits() -> bool {
    static EAGERLY: OnceLock<bool> = OnceLock::new();
    let eager = || std::env::var_os(ENVIRONMENT).is_some_and(|value| value == EAGER);
    !*EAGERLY.get_or_init(eager)
}

/// How many bytes of accesses by ring a region is still to serve before it is moved; 0 if it does
/// not wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patience {
    left: Cell<u64>,
    /// How often it has been tried in vain.
    pub tries: u32,
}

impl Patience {
    /// Takes an access that counts for so many bytes. True if it was the last.
    pub fn is_over(&self, counts: u64) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(counts));
        left > 0 && left <= counts
    }

    /// Begins again, for a region of so many bytes.
    pub fn begin(&self, len: usize) {
        let doubled = 1 << self.tries.min(DOUBLED_MAX);
        let len = (len as u64).max(1);
        let left = len.saturating_mul(PATIENCE).saturating_mul(doubled);
        self.left.set(left);
    }
}
