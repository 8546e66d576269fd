//! Which process of a line of forks this is, in one load: asking the system costs more than a short
//! copy.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between this process and the one that loaded the library.
static FORKS: AtomicU32 = AtomicU32::new(0);
static AT_FORK: Once = Once::new();

unsafe extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

/// A number that a child does not have in common with its parents, once this was called in one of
/// them. Children made by other means than fork(3) are not told apart.
pub(crate) fn number() -> u32 {
    // SAFETY: the handler adds to an atomic, as any may.
    AT_FORK.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(count));
    });
    FORKS.load(Ordering::Relaxed)
}
