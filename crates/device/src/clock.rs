//! The monotonic clock, and the host's.

use std::cell::Cell;

use causeway_proto::Instant;
use rustix::time::{ClockId, clock_gettime};

/// Now, in nanoseconds of `CLOCK_MONOTONIC`.
pub(crate) fn now() -> Instant {
    let t = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(t.tv_nsec).unwrap_or(0);
    Instant(seconds * 1_000_000_000 + nanoseconds)
}

/// Now, in seconds since 1970 as the host's clock has it: what sealed datagrams to groups bear.
pub(crate) fn unix_seconds() -> u32 {
    let seconds = clock_gettime(ClockId::Realtime).tv_sec;
    u32::try_from(seconds.max(0)).unwrap_or(u32::MAX)
}

/// The earlier of two times, of which either may never come. On the path of every message.
#[inline]
pub(crate) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, None) => a,
        (None, b) => b,
    }
}

/// A duration as the kernel takes it.
pub(crate) fn timespec(t: std::time::Duration) -> rustix::event::Timespec {
    rustix::event::Timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(t.subsec_nanos()),
    }
}

/// The time of one call, read from the clock when it is first asked for: on the ring wire most
/// calls never ask.
#[derive(Debug, Default)]
pub(crate) struct Now(Cell<Option<Instant>>);

impl Now {
    /// The time.
    pub fn get(&self) -> Instant {
        self.0.get().unwrap_or_else(|| {
            let time = now();
            self.0.set(Some(time));
            time
        })
    }

    /// A time that is known.
    #[cfg(test)]
    pub fn at(time: Instant) -> Now {
        Now(Cell::new(Some(time)))
    }

    /// The time, if it has been asked for.
    pub fn known(&self) -> Option<Instant> {
        self.0.get()
    }
}
