//! The time by which accessible pages are closed, and the bell that says that there are some.

use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

/// What is called when the first page of a window becomes accessible, or null.
static BELL: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Nanoseconds of CLOCK_MONOTONIC. May be called in handlers: clock_gettime(2).
pub(crate) fn now() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure is plain memory, which the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
    now.as_nanos() as u64
}

/// The same of another time. Those before `now` are now.
pub(crate) fn of(instant: Instant) -> u64 {
    let ahead = instant.saturating_duration_since(Instant::now());
    now() + ahead.as_nanos() as u64
}

/// The instant of a time.
pub(crate) fn instant(at: u64) -> Instant {
    Instant::now() + Duration::from_nanos(at.saturating_sub(now()))
}

/// Names the function that is called when a window has got a deadline
/// ([`deadline`](crate::deadline)) and had none: to wake the thread that calls
/// [`close_due`](crate::close_due). It may run in a signal's handler, under the rules of
/// [`Remote`](crate::Remote)'s functions. Another call names another function.
pub fn set_bell(ring: fn()) {
    BELL.store(ring as *mut (), Ordering::Release);
}

pub(crate) fn ring() {
    let bell = BELL.load(Ordering::Acquire);
    if !bell.is_null() {
        // SAFETY: nothing else is stored there than such a function.
        unsafe { mem::transmute::<*mut (), fn()>(bell)() };
    }
}
