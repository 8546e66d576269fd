//! Whether the program has called `ibv_fork_init(3)`, and the warning to one that forks without.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes from which on a copy takes long enough to be worth a line, some 10 ms.
const WORTH_A_LINE: usize = 16 << 20;

/// Children do without memory that peers can map (`ibv_fork_init(3)`).
static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// The program has called [`crate::fork_init`].
pub(crate) fn note_init() {
    INITIALIZED.store(true, Ordering::SeqCst);
}

/// Whether [`crate::fork_init`] was called.
#[must_use]
pub fn is_fork_initialized() -> bool {
    INITIALIZED.load(Ordering::SeqCst)
}

/// Says once on standard error that a child was given copies of registered memory, as the process
/// that forks may only want to execute another program.
pub(crate) fn tell_of_copies() {
    causeway_memory::tell_of_copies(|bytes| {
        static SAID: AtomicBool = AtomicBool::new(false);
        if bytes < WORTH_A_LINE || SAID.swap(true, Ordering::Relaxed) {
            return;
        }
        let _ = writeln!(
            std::io::stderr(),
            "causeway: fork copied {} MiB of registered memory for the child; after ibv_fork_init \
             children do without it, and posix_spawn never copies",
            bytes >> 20
        );
    });
}
