//! What the libraries would do if a panic of theirs unwound: it passes frames with something to
//! drop, and is caught.

use std::panic::catch_unwind;

struct Dropped<'a>(&'a mut u32);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        *self.0 += 1;
    }
}

#[inline(never)]
fn deeper(left: u32, drops: &mut u32) {
    let dropped = Dropped(drops);
    if left == 0 {
        panic!("a test");
    }
    deeper(left - 1, dropped.0);
}

/// Panics below `depth` frames, and catches it: how many of them were unwound.
#[unsafe(no_mangle)]
pub extern "C" fn caught(depth: u32) -> u32 {
    let mut drops = 0;
    let unwound = std::panic::AssertUnwindSafe(|| deeper(depth, &mut drops));
    match catch_unwind(unwound) {
        Ok(()) => 0,
        Err(_) => drops,
    }
}
