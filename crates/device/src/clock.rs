//! The monotonic clock.

use causeway_proto::Instant;
use rustix::time::{ClockId, clock_gettime};

/// Now, in nanoseconds of `CLOCK_MONOTONIC`.
pub(crate) fn now() -> Instant {
    let t = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(t.tv_nsec).unwrap_or(0);
    Instant(seconds * 1_000_000_000 + nanoseconds)
}

/// A duration as the kernel takes it.
pub(crate) fn timespec(t: std::time::Duration) -> rustix::event::Timespec {
    rustix::event::Timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(t.subsec_nanos()),
    }
}
