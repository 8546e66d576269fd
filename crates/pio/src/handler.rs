//! A fault in a window.

use std::mem;

use causeway_recover::Trap;

use crate::signals::Blocked;
use crate::table;
#[cfg(target_arch = "x86_64")]
use crate::trap::serve as serve_in;

/// Serves a fault if it lies in a window; `causeway_recover::Server`.
///
/// The window's lock is held with signals blocked, so the thread that is interrupted here does not
/// have it. A fault of a copy in here does not come back to this function: `recover` lets the copy
/// fail.
pub(crate) fn serve(trap: &Trap) -> bool {
    let Some(core) = table::find(trap.addr()) else {
        return false;
    };
    // SAFETY: the thread's own, as long as it runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    let blocked = Blocked::new();
    let served = serve_in(&core, trap);
    if served {
        // The kernel lets the signals come when the handler has returned. Before that they would
        // find SIGSEGV blocked, if the program has passed the fault on.
        mem::forget(blocked);
    } else {
        drop(blocked);
    }
    // SAFETY: as above.
    unsafe { errno.write(before) };
    served
}

/// Where no instruction is decoded, every access opens its page; stores to a read-only window
/// vanish.
#[cfg(not(target_arch = "x86_64"))]
fn serve_in(core: &crate::core::Core, trap: &Trap) -> bool {
    core.expose(trap.addr() - core.start(), crate::pages::Access::Open)
}
