//! Copies of the C library's kind without a fault, for whoever knows that windows may be concerned.

use crate::elements::{String, round};
use crate::signals::Blocked;
use crate::table;

/// Whether the process has any window: one load. Who replaces memcpy(3) and its like asks this
/// first.
#[inline]
#[must_use]
pub fn exist() -> bool {
    table::any()
}

/// Whether a byte lies in a window.
#[must_use]
pub fn is_inside(at: *const u8) -> bool {
    table::find(at.addr()).is_some()
}

/// Copies from or to windows as memmove(3) does, by READ and WRITE and without a fault, and returns
/// how many bytes it has copied: all, or those before one where no window is concerned, or where
/// memory ends. Which ones these are depends on the direction: the first of them, or the last if
/// `dst` lies behind `src` and they overlap.
///
/// # Safety
/// As for memmove(3), but faults of memory that has gone end the copy.
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> usize {
    let (to, from) = (dst.expose_provenance(), src.expose_provenance());
    let downward = to > from && to - from < len;
    run(to, Some(from), len, downward, 0)
}

/// Sets bytes of a window as memset(3) does, and returns how many it has set, from the first on.
///
/// # Safety
/// As for memset(3).
pub unsafe fn fill(dst: *mut u8, value: u8, len: usize) -> usize {
    run(dst.expose_provenance(), None, len, false, value)
}

fn run(to: usize, from: Option<usize>, len: usize, downward: bool, value: u8) -> usize {
    let mut done = 0;
    while done < len {
        let string = |addr: usize| String {
            addr: if downward {
                addr + len - 1 - done
            } else {
                addr + done
            },
            element: 1,
            downward,
        };
        // Signals come between the rounds.
        let _blocked = Blocked::new();
        match round(string(to), from.map(string), len - done, &[value]) {
            Some(count) => done += count,
            None => break,
        }
    }
    done
}
