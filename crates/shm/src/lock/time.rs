//! How long to wait.

use std::time::Duration;

#[cfg(not(any(loom, shuttle)))]
const NANOS: u64 = 1_000_000_000;

/// A point of `CLOCK_MONOTONIC` until which a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(u64);

impl Deadline {
    /// Waits for ever.
    pub const NEVER: Deadline = Deadline(u64::MAX);
    /// Does not wait: what can't be had at once is [`super::LockError::Busy`].
    pub const TRY: Deadline = Deadline(0);

    /// After so long from now. What is too far away to be told is never.
    #[must_use]
    pub fn after(time: Duration) -> Deadline {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // At least 1: the first moment of the clock is not "without waiting".
        Deadline(now().saturating_add(nanos).max(1))
    }

    /// At a time of `CLOCK_MONOTONIC`, in nanoseconds.
    #[must_use]
    pub fn at_monotonic(nanos: u64) -> Deadline {
        Deadline(nanos.max(1))
    }

    /// When a time of `CLOCK_REALTIME` will be reached, in nanoseconds since 1970, if nobody sets
    /// that clock meanwhile.
    #[cfg(not(any(loom, shuttle)))]
    #[must_use]
    pub fn at_realtime(nanos: u64) -> Deadline {
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let left = nanos.saturating_sub(in_nanos(clock));
        Deadline(now().saturating_add(left).max(1))
    }

    /// Whether it is over.
    #[must_use]
    pub fn passed(self) -> bool {
        self == Deadline::TRY || (self != Deadline::NEVER && self.0 <= now())
    }

    pub(crate) fn is_try(self) -> bool {
        self == Deadline::TRY
    }

    /// Nanoseconds of `CLOCK_MONOTONIC`; [`u64::MAX`] is never.
    #[must_use]
    pub fn nanos(self) -> u64 {
        self.0
    }
}

#[cfg(not(any(loom, shuttle)))]
fn in_nanos(t: rustix::time::Timespec) -> u64 {
    // Both clocks count up from zero, and have not reached the year 2500.
    (t.tv_sec as u64)
        .saturating_mul(NANOS)
        .saturating_add(t.tv_nsec as u64)
}

/// `CLOCK_MONOTONIC` in nanoseconds.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn now() -> u64 {
    in_nanos(rustix::time::clock_gettime(
        rustix::time::ClockId::Monotonic,
    ))
}

/// In a model no time passes: a sleeper that is not woken deadlocks, and is found.
#[cfg(any(loom, shuttle))]
pub(crate) fn now() -> u64 {
    0
}

/// The time as the system calls take it.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn timespec(nanos: u64) -> rustix::time::Timespec {
    rustix::time::Timespec {
        tv_sec: (nanos / NANOS) as i64,
        tv_nsec: (nanos % NANOS) as i64,
    }
}
