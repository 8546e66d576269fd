//! How long a requester waits that found no receive.

use crate::time::Duration;

/// The time a `min_rnr_timer` code stands for (InfiniBand specification, table 45).
#[must_use]
pub fn rnr_time(code: u8) -> Duration {
    /// Hundredths of a millisecond by code.
    const TIMES: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(u64::from(TIMES[usize::from(code & 31)]) * 10)
}
