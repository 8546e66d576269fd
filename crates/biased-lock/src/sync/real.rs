//! What programs run.

use std::sync::atomic::compiler_fence;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

pub(crate) use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as Raw;

/// From `linux/membarrier.h`.
const MEMBARRIER_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
/// Longer than any processor holds back a store, for a process that has had `membarrier(2)` taken
/// away after it was registered.
const STORES_DONE: Duration = Duration::from_millis(10);
/// Looks at a thread inside before others may run, and before this one sleeps.
const SPINS: u32 = 100;
const YIELDS: u32 = 200;
const NAP: Duration = Duration::from_micros(50);

/// This process may withdraw is biased to.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Lets locks bias threads, where the kernel has what that takes. Cheapest while the process has
/// one thread.
pub fn allow() {
    if membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED) {
        REGISTERED.store(true, Ordering::Relaxed);
    }
}

/// Whether locks may bias threads.
pub(crate) fn allowed() -> bool {
    REGISTERED.load(Ordering::Relaxed)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// The thread with the bias's barrier: nothing but an order for the compiler.
#[inline(always)]
pub(crate) fn light_barrier() {
    compiler_fence(Ordering::SeqCst);
}

/// Who withdraws: a full barrier of this thread, and of each other one.
pub(crate) fn heavy_barrier() {
    if !membarrier(MEMBARRIER_PRIVATE_EXPEDITED) {
        std::thread::sleep(STORES_DONE);
    }
}

/// Looks of a thread that waits for its turn, for one in which it offers its processor to others.
const LOOKS_PER_YIELD: u32 = 256;

/// Waits a little before it is tried again whether it is this thread's turn.
pub(crate) fn await_turn(looks: u32) {
    if looks.is_multiple_of(LOOKS_PER_YIELD) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// After looks by relaxed loads: what is read from here on is read after them.
#[inline]
pub(crate) fn acquire() {
    std::sync::atomic::fence(Ordering::Acquire);
}

/// Waits a little before a thread inside is looked at again, after so many looks.
pub(crate) fn pause(looks: u32) {
    if looks <= SPINS {
        std::hint::spin_loop();
    } else if looks <= YIELDS {
        std::thread::yield_now();
    } else {
        std::thread::sleep(NAP);
    }
}

/// An ordinary lock that is free.
pub(crate) const fn ordinary() -> RawMutex {
    RawMutex::INIT
}

/// Words that all say no.
pub(crate) const fn flags<const N: usize>() -> [AtomicBool; N] {
    [const { AtomicBool::new(false) }; N]
}

/// Names the calling thread among those alive, never 0, with room for the number of a grant.
#[inline(always)]
pub(crate) fn token() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let block: usize;
        // SAFETY: the thread control block begins with its own address (System V ABI, ELF handling
        // for thread-local storage).
        unsafe {
            std::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) block,
                options(pure, nomem, nostack, preserves_flags));
        }
        block
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        #[repr(align(64))]
        struct Name(#[allow(dead_code, reason = "only its address counts")] u8);
        thread_local!(static NAME: Name = const { Name(0) });
        NAME.with(|name| std::ptr::from_ref(name).addr())
    }
}
