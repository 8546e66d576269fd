//! Round-trip time and the retransmission time-out derived from it (RFC 6298).

use crate::time::{Duration, Instant};

/// Time-out before the first measurement. RFC 6298 asks for 1 s; a handshake almost always
/// measures before data flows, and the network is a data centre's.
pub const INITIAL_RTO: Duration = Duration::from_millis(50);
/// Least time-out: a software peer may lose its CPU for this long in ordinary operation.
pub const MIN_RTO: Duration = Duration::from_millis(5);
/// Largest time-out, after back-off.
pub const MAX_RTO: Duration = Duration::from_secs(1);

/// Smoothed round-trip time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rtt {
    /// SRTT, RTTVAR and latest sample, nanoseconds; valid once `measured`.
    srtt: u64,
    rttvar: u64,
    latest: u64,
    min: u64,
    measured: bool,
}

impl Rtt {
    /// Takes a measurement (RFC 6298 section 2). The caller excludes retransmitted segments (Karn).
    pub fn sample(&mut self, sent: Instant, now: Instant) {
        // Zero would make time-outs of zero out of a coarse clock.
        let r = now.0.saturating_sub(sent.0).max(1);
        self.latest = r;
        if self.measured {
            self.min = self.min.min(r);
            self.rttvar = (3 * self.rttvar + self.srtt.abs_diff(r)) / 4;
            self.srtt = (7 * self.srtt + r) / 8;
        } else {
            *self = Rtt {
                srtt: r,
                rttvar: r / 2,
                latest: r,
                min: r,
                measured: true,
            };
        }
    }

    /// SRTT, once measured.
    #[must_use]
    pub fn smoothed(&self) -> Option<Duration> {
        self.measured.then(|| Duration::from_nanos(self.srtt))
    }

    /// Least sample seen; zero before the first.
    #[must_use]
    pub fn min(&self) -> Duration {
        Duration::from_nanos(self.min)
    }

    /// RTO, before back-off.
    #[must_use]
    pub fn rto(&self) -> Duration {
        if !self.measured {
            return INITIAL_RTO;
        }
        Duration::from_nanos(self.srtt + 4 * self.rttvar).clamp(MIN_RTO, MAX_RTO)
    }

    /// RTO after `count` time-outs in a row (RFC 6298 section 5.5).
    #[must_use]
    pub fn backed_off(&self, count: u32) -> Duration {
        self.rto()
            .saturating_mul(1 << count.min(16))
            .min(MAX_RTO.max(self.rto()))
    }

    /// How much later than a delivered segment one must have been sent to be taken for reordered
    /// rather than lost (RFC 9002 section 6.1.2: 9/8 of the larger of SRTT and latest sample).
    #[must_use]
    pub fn loss_delay(&self) -> Duration {
        if !self.measured {
            return INITIAL_RTO;
        }
        Duration::from_nanos(self.srtt.max(self.latest).saturating_mul(9) / 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_rfc_6298() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.rto(), INITIAL_RTO);
        rtt.sample(Instant(0), Instant(20_000_000));
        assert_eq!(rtt.smoothed(), Some(Duration::from_millis(20)));
        assert_eq!(rtt.rto(), Duration::from_millis(60));
        assert_eq!(rtt.backed_off(1), Duration::from_millis(120));
        assert_eq!(rtt.backed_off(40), MAX_RTO);
        for _ in 0..100 {
            rtt.sample(Instant(0), Instant(30_000));
        }
        assert_eq!(rtt.rto(), MIN_RTO);
        assert_eq!(rtt.min(), Duration::from_micros(30));
    }

    #[test]
    fn a_clock_that_stands_still_is_no_time_out_of_zero() {
        let mut rtt = Rtt::default();
        rtt.sample(Instant(9), Instant(9));
        assert!(rtt.rto() >= MIN_RTO && rtt.loss_delay() > Duration::ZERO);
    }
}
