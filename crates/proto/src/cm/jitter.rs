//! Intervals that differ from connection to connection.
//!
//! Connections that one program, or one cause, begins at the same moment would otherwise repeat at
//! the same moments ever after, and a listener that takes so many of them in a time would turn the
//! same ones away each time.

use crate::time::Duration;

/// How much shorter or longer than its nominal length an interval may be, in percent of that. So
/// messages that were sent at one moment are spread over as long as the interval lasts.
pub const JITTER_PERCENT: u64 = 50;

/// Draws intervals. The same name draws the same ones: time and chance are arguments here.
#[derive(Debug)]
pub(super) struct Jitter(u64);

impl Jitter {
    /// For the connection of that name, which is random.
    pub fn new(name: u64) -> Jitter {
        Jitter(name)
    }

    /// An interval whose length is evenly distributed around `nominal`.
    pub fn draw(&mut self, nominal: Duration) -> Duration {
        let nominal = u64::try_from(nominal.as_nanos()).unwrap_or(u64::MAX);
        let most = nominal / 100 * JITTER_PERCENT;
        Duration::from_nanos(nominal - most + self.next() % (2 * most + 1))
    }

    /// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}
