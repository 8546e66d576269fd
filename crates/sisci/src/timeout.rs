//! Timeouts of the interface, in milliseconds.

use core::ffi::c_uint;
use std::time::{Duration, Instant};

use crate::constants::SCI_INFINITE_TIMEOUT;

/// When a timeout that begins now is over; `None` is never.
#[must_use]
pub fn deadline(timeout: c_uint) -> Option<Instant> {
    (timeout != SCI_INFINITE_TIMEOUT)
        .then(|| Instant::now() + Duration::from_millis(u64::from(timeout)))
}
