//! The warning to a program that forks without `ibv_fork_init(3)`.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes from which on a copy takes long enough to be worth a line, some 10 ms.
const WORTH_A_LINE: usize = 16 << 20;

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
