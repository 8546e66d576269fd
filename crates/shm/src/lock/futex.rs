//! Sleeping on the host: `futex_waitv(2)`, else `futex(2)`.

use super::locker::{LEASE, Locker, Sleep};
use super::time::{Deadline, now, timespec};
use crate::life::{Life, LifeTable};
use rustix::io::Errno;
use rustix::thread::futex;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Set once the kernel has turned out not to know `futex_waitv(2)` (Linux 5.16), or a filter of
/// system calls not to let it pass.
static NO_WAITV: AtomicBool = AtomicBool::new(false);

/// In a virtual machine: how long a waiter sleeps before it looks for the first time, and how long
/// it sleeps at most.
const GUEST_NAPS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(2));

/// In a virtual machine: sleeping and waking by the host, for words that lie in the window.
#[derive(Clone, Copy, Debug)]
pub struct Outside {
    /// Wakes up to so many sleepers on the word at an address, on the host and in all of its
    /// virtual machines. False if the word is in no window.
    pub wake: fn(address: usize, count: u32) -> bool,
    /// Sleeps while the words at these addresses are as expected, for a time at most.
    pub sleep: fn(words: &[(usize, u32)], time: Duration) -> Proxy,
}

/// What came of having the host sleep for this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proxy {
    /// It slept: the caller looks.
    Slept,
    /// It can't.
    Refused,
    /// A word is in no window.
    Elsewhere,
}

static OUTSIDE: OnceLock<Outside> = OnceLock::new();

/// Says how the host is reached. The first one stays.
pub fn reach_outside_by(outside: Outside) {
    let _ = OUTSIDE.set(outside);
}

/// Sleeps on an object's word and on the deaths word of a life table at once, so that a death wakes
/// the waiter. Where the kernel can't, it sleeps on the object's word, for a lease at most. On
/// memory of a virtual machine's window the host sleeps for it; where that can't be, it looks again
/// and again.
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
        if let Some(outside) = OUTSIDE.get() {
            let time = Duration::from_nanos(until.nanos().saturating_sub(now())).min(LEASE);
            let table = self.table.deaths_word();
            let words = [(word, expected), (table, deaths)];
            let words = words.map(|(word, value)| (word.as_ptr() as usize, value));
            match (outside.sleep)(&words, time) {
                Proxy::Slept => return,
                Proxy::Refused => return self.look_on(word, expected, deaths, until),
                Proxy::Elsewhere => {}
            }
        }
        if !NO_WAITV.load(Ordering::Relaxed) {
            match sleep_on_both(word, expected, self, deaths, until) {
                Outcome::Slept => return,
                Outcome::Window => return self.look_on(word, expected, deaths, until),
                Outcome::Unknown => NO_WAITV.store(true, Ordering::Relaxed),
            }
        }
        // Once more, lest somebody died before this one could be woken by it.
        if self.table.deaths() != deaths {
            return;
        }
        if sleep_on_one(word, expected, until.min(Deadline::after(LEASE))) == Outcome::Window {
            self.look_on(word, expected, deaths, until);
        }
    }

    fn wake(&self, word: &AtomicU64, count: u32) -> u32 {
        // The kernel takes a signed count.
        let count = count.min(i32::MAX as u32);
        if let Some(outside) = OUTSIDE.get()
            && (outside.wake)(word.as_ptr() as usize, count)
        {
            // How many there are is not known: as if there were none, which is the safe side.
            return 0;
        }
        // It fails only for memory that is not there; then nobody sleeps on it.
        let woken = futex::wake(low_half(word), futex::Flags::empty(), count);
        u32::try_from(woken.unwrap_or(0)).unwrap_or(u32::MAX)
    }
}

impl Futex {
    /// Looks at longer and longer intervals until something has changed.
    fn look_on(&self, word: &AtomicU32, expected: u32, deaths: u32, until: Deadline) {
        let until = until.min(Deadline::after(LEASE));
        let (mut nap, longest) = GUEST_NAPS;
        while word.load(Ordering::SeqCst) == expected && self.table.deaths() == deaths {
            if until.passed() {
                return;
            }
            // The C library's sleep would be a cancellation point, within a lock.
            let _ = rustix::thread::nanosleep(&timespec(nap.as_nanos() as u64));
            nap = longest.min(2 * nap);
        }
    }
}

/// What came of an attempt to sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The caller looks.
    Slept,
    /// The kernel has no such call.
    Unknown,
    /// The memory is a virtual machine's window.
    Window,
}

fn sleep_on_both(
    word: &AtomicU32,
    expected: u32,
    with: &Futex,
    deaths: u32,
    until: Deadline,
) -> Outcome {
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
    match result {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Outcome::Slept,
        Err(Errno::FAULT) => Outcome::Window,
        Err(_) => Outcome::Unknown,
    }
}

fn sleep_on_one(word: &AtomicU32, expected: u32, until: Deadline) -> Outcome {
    let time = (until != Deadline::NEVER).then(|| timespec(until.nanos()));
    let result = futex::wait_bitset(
        word,
        futex::Flags::empty(),
        expected,
        time.as_ref(),
        NonZeroU32::MAX,
    );
    match result {
        Err(Errno::FAULT) => Outcome::Window,
        // Whatever else ends it, the caller looks.
        _ => Outcome::Slept,
    }
}
