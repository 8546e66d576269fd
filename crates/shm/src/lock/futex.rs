//! Sleeping on the host: `futex_waitv(2)`, else `futex(2)`.

use super::locker::{LEASE, Locker, Sleep};
use super::time::{Deadline, timespec};
use crate::life::{Life, LifeTable};
use rustix::io::Errno;
use rustix::thread::futex;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Set once the kernel has turned out not to know `futex_waitv(2)` (Linux 5.16), or a filter of
/// system calls not to let it pass.
static NO_WAITV: AtomicBool = AtomicBool::new(false);

/// Sleeps on an object's word and on the deaths word of a life table at once, so that a death wakes
/// the waiter. Where the kernel can't, it sleeps on the object's word, for a lease at most.
#[derive(Clone, Debug)]
pub struct Futex {
    table: LifeTable,
}

impl Futex {
    /// Hears of the deaths in `table`.
    #[must_use]
    pub fn new(table: LifeTable) -> Futex {
        Futex { table }
    }
}

impl Locker {
    /// A process of this host whose session has the life `me`, which hears of deaths from its
    /// tenant's life table alone.
    #[must_use]
    pub fn on_host(me: Life, table: &LifeTable) -> Locker {
        let sleep = Arc::new(Futex::new(table.clone()));
        Locker::new(me, Arc::new(table.clone()), sleep)
    }
}

/// The half of a word that the kernel compares.
fn low_half(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: the low half of a little-endian word: inside it, and aligned. It is accessed by
    // nothing but atomics, of either size, as long as the word is borrowed.
    unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
}

impl Sleep for Futex {
    fn sleep(&self, word: &AtomicU64, expected: u32, deaths: u32, until: Deadline) {
        let word = low_half(word);
        if NO_WAITV.load(Ordering::Relaxed) || !sleep_on_both(word, expected, self, deaths, until) {
            // Once more, lest somebody died before this one could be woken by it.
            if self.table.deaths() == deaths {
                sleep_on_one(word, expected, until.min(Deadline::after(LEASE)));
            }
        }
    }

    fn wake(&self, word: &AtomicU64, count: u32) -> u32 {
        // The kernel takes a signed count.
        let count = count.min(i32::MAX as u32);
        // It fails only for memory that is not there; then nobody sleeps on it.
        let woken = futex::wake(low_half(word), futex::Flags::empty(), count).unwrap_or(0);
        u32::try_from(woken).unwrap_or(u32::MAX)
    }
}

/// Whether the kernel can.
fn sleep_on_both(
    word: &AtomicU32,
    expected: u32,
    with: &Futex,
    deaths: u32,
    until: Deadline,
) -> bool {
    let on = |word: &AtomicU32, value: u32| {
        let mut wait = futex::Wait::new();
        wait.val = u64::from(value);
        wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
        wait.flags = futex::WaitFlags::SIZE_U32;
        wait
    };
    let both = [on(word, expected), on(with.table.deaths_word(), deaths)];
    let time = (until != Deadline::NEVER).then(|| timespec(until.nanos()));
    let result = futex::waitv(
        &both,
        futex::WaitvFlags::empty(),
        time.as_ref(),
        futex::ClockId::Monotonic,
    );
    let slept = matches!(
        result,
        Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT)
    );
    if !slept {
        NO_WAITV.store(true, Ordering::Relaxed);
    }
    slept
}

fn sleep_on_one(word: &AtomicU32, expected: u32, until: Deadline) {
    let time = (until != Deadline::NEVER).then(|| timespec(until.nanos()));
    // Whatever ends it, the caller looks.
    let _ = futex::wait_bitset(
        word,
        futex::Flags::empty(),
        expected,
        time.as_ref(),
        NonZeroU32::MAX,
    );
}
