//! Congestion window (CUBIC, RFC 9438, with HyStart's idea of leaving slow start on delay) and
//! pacing. All sizes are bytes of datagrams.

use crate::time::{Duration, Instant};

/// Initial window: a few dozen datagrams, more than RFC 6928's ten because the paths are a data
/// centre's and the receive window bounds it anyway.
const INITIAL_WINDOW: u64 = 32;
/// Least window, datagrams.
const MIN_WINDOW: u64 = 2;
/// Multiplicative decrease (RFC 9438 section 4.6).
const BETA: f64 = 0.7;
/// Aggressiveness of the cubic function (RFC 9438 section 5), segments per cubed second.
const C: f64 = 0.4;
/// Round-trip growth, as a fraction of the minimum, that ends slow start (RFC 9406 uses 1/8 with
/// bounds; software paths jitter more, hence 1 and a floor).
const SLOW_START_EXIT_FLOOR: Duration = Duration::from_micros(500);
/// Samples in a row that must show it (RFC 9406 takes the least of eight): a queue delays all, a
/// peer that was off its processor only some.
const SLOW_START_EXIT_SAMPLES: u32 = 8;

/// The congestion window of one connection.
#[derive(Clone, Debug)]
pub struct Cubic {
    window: u64,
    threshold: u64,
    datagram: u64,
    /// Window before the last reduction, bytes; where the cubic has its plateau.
    w_max: f64,
    /// Seconds from `epoch` to the plateau.
    k: f64,
    /// When the present growth phase began; `None` while in slow start or recovery.
    epoch: Option<Instant>,
    /// What NewReno would have reached (RFC 9438 section 4.3).
    w_est: f64,
    /// Losses of segments sent before this moment belong to a reduction already made.
    recovery: Option<Instant>,
    /// Window and threshold before the last reduction, in case it proves unnecessary.
    before: Option<(u64, u64)>,
    /// Samples in a row that showed a queue.
    delayed: u32,
}

impl Cubic {
    /// Starts with datagrams of `datagram` bytes.
    #[must_use]
    pub fn new(datagram: usize) -> Self {
        let datagram = datagram as u64;
        Cubic {
            window: INITIAL_WINDOW * datagram,
            threshold: u64::MAX,
            datagram,
            w_max: 0.0,
            k: 0.0,
            epoch: None,
            w_est: 0.0,
            recovery: None,
            before: None,
            delayed: 0,
        }
    }

    /// Bytes that may be in flight.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Whether the window still grows exponentially.
    #[must_use]
    pub fn slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// Changes the datagram size; the window keeps its bytes.
    pub fn set_datagram(&mut self, datagram: usize) {
        self.datagram = datagram as u64;
        self.window = self.window.max(MIN_WINDOW * self.datagram);
    }

    /// `bytes` were acknowledged, the newest of them sent at `sent`. `limited`: the window, not the
    /// application, was what held the sender back (RFC 7661: growth must be earned).
    pub fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        rtt: Duration,
        limited: bool,
    ) {
        if self.recovery.is_some_and(|r| sent <= r) || !limited {
            return;
        }
        if self.slow_start() {
            self.window = self.window.saturating_add(bytes);
            return;
        }
        self.avoid_congestion(now, bytes, rtt);
    }

    fn avoid_congestion(&mut self, now: Instant, bytes: u64, rtt: Duration) {
        let unit = self.datagram as f64;
        let window = self.window as f64;
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.w_est = window;
            self.w_max = self.w_max.max(window);
            self.k = ((self.w_max - window) / unit / C).cbrt();
            now
        });
        let t = now.since(epoch).as_secs_f64() + rtt.as_secs_f64();
        let target = self.w_max + C * (t - self.k).powi(3) * unit;
        let alpha = if self.w_est < self.w_max {
            3.0 * (1.0 - BETA) / (1.0 + BETA)
        } else {
            1.0
        };
        self.w_est += alpha * unit * bytes as f64 / window;
        let target = target.clamp(window, 1.5 * window);
        let grown = window + (target - window) / window * bytes as f64;
        self.window = grown.max(self.w_est) as u64;
    }

    /// The round-trip time shows a queue building: leave slow start before it overflows.
    pub fn on_delay(&mut self, latest: Duration, least: Duration) {
        let limit = least.saturating_mul(2).max(least + SLOW_START_EXIT_FLOOR);
        if latest <= limit {
            self.delayed = 0;
            return;
        }
        self.delayed = self.delayed.saturating_add(1);
        let grown = self.window > INITIAL_WINDOW * self.datagram;
        if self.slow_start() && grown && self.delayed >= SLOW_START_EXIT_SAMPLES {
            self.threshold = self.window;
        }
    }

    /// A segment sent at `sent` was lost. Reduces the window once per round trip; returns whether
    /// it did.
    pub fn on_loss(&mut self, now: Instant, sent: Instant) -> bool {
        if self.recovery.is_some_and(|r| sent <= r) {
            return false;
        }
        self.before = Some((self.window, self.threshold));
        self.reduce(now);
        true
    }

    /// Of what was sent until `sent` something was marked on its way (RFC 3168 section 6.1.2, RFC
    /// 9002 section 7.1): as for a loss, but there is nothing that could prove it unnecessary.
    /// Returns the same.
    pub fn on_mark(&mut self, now: Instant, sent: Instant) -> bool {
        if self.recovery.is_some_and(|r| sent <= r) {
            return false;
        }
        self.before = None;
        self.reduce(now);
        true
    }

    /// A time-out: everything in flight is taken for lost (RFC 9438 section 4.8).
    /// `first` of a series: the window to come back to is the one before it.
    pub fn on_timeout(&mut self, now: Instant, first: bool) {
        if first {
            self.before = Some((self.window, self.threshold));
        }
        self.reduce(now);
        self.window = MIN_WINDOW * self.datagram;
    }

    fn reduce(&mut self, now: Instant) {
        let window = self.window as f64;
        // Fast convergence (RFC 9438 section 4.7): leave room for flows that came later.
        self.w_max = if window < self.w_max {
            window * (1.0 + BETA) / 2.0
        } else {
            window
        };
        self.window = ((window * BETA) as u64).max(MIN_WINDOW * self.datagram);
        self.threshold = self.window;
        self.recovery = Some(now);
        self.epoch = None;
    }

    /// The last reduction proved unnecessary: the peer had everything already.
    pub fn undo(&mut self) {
        if let Some((window, threshold)) = self.before.take() {
            self.window = self.window.max(window);
            self.threshold = self.threshold.max(threshold);
            self.epoch = None;
        }
    }
}

/// Bytes that may leave at once: one GSO batch.
const BURST: u64 = 64 * 1024;
/// Time a burst may cover besides: callers may come only as often as a helper thread ticks.
const BURST_TIME: Duration = Duration::from_micros(250);

/// A token bucket that spreads the window over the round-trip time (RFC 9002 section 7.7).
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    tokens: f64,
    /// When `tokens` was right.
    at: Instant,
}

impl Pacer {
    /// A full bucket.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Pacer {
            tokens: BURST as f64,
            at: now,
        }
    }

    /// Takes `bytes` out, or says when to come back. `rtt` `None`: not measured yet, no pacing.
    #[inline]
    pub fn check(
        &mut self,
        now: Instant,
        cc: &Cubic,
        rtt: Option<Duration>,
    ) -> Result<(), Instant> {
        let Some(rtt) = rtt else { return Ok(()) };
        // All datagrams of a batch are of one time: nothing has been earned since the last.
        if now == self.at && self.tokens > 0.0 {
            return Ok(());
        }
        let gain = if cc.slow_start() { 2.0 } else { 1.25 };
        let per_ns = gain * cc.window() as f64 / (rtt.as_nanos() as f64).max(1.0);
        let capacity = (BURST as f64).max(per_ns * BURST_TIME.as_nanos() as f64);
        let earned = now.since(self.at).as_nanos() as f64 * per_ns;
        self.tokens = (self.tokens + earned).min(capacity);
        self.at = self.at.max(now);
        if self.tokens > 0.0 {
            return Ok(());
        }
        // Come back for a good part of a burst, else every datagram costs a wake-up.
        let want = capacity.min(cc.window() as f64) / 4.0;
        let wait = (want - self.tokens) / per_ns;
        Err(now + Duration::from_nanos(wait as u64 + 1))
    }

    /// How many datagrams of `bytes` may leave, one after the other, where [`Pacer::check`] has let
    /// the first go.
    #[inline]
    #[must_use]
    pub fn lets_go(&self, bytes: usize, rtt: Option<Duration>) -> u64 {
        match rtt {
            Some(_) => (self.tokens / bytes.max(1) as f64).ceil() as u64,
            None => u64::MAX,
        }
    }

    /// Accounts for `count` datagrams sent, of `bytes` each. The debt is one datagram at most:
    /// probes are not paced, and must not keep back what follows them.
    #[inline]
    pub fn spend(&mut self, bytes: usize, count: usize) {
        let each = bytes as f64;
        self.tokens = (self.tokens - each * count as f64).max(-each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(1);

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    #[test]
    fn doubles_in_slow_start_and_only_when_limited() {
        let mut cc = Cubic::new(1000);
        let start = cc.window();
        cc.on_ack(at(1), at(0), start, RTT, false);
        assert_eq!(cc.window(), start);
        cc.on_ack(at(1), at(0), start, RTT, true);
        assert_eq!(cc.window(), 2 * start);
    }

    #[test]
    fn one_reduction_per_round_trip() {
        let mut cc = Cubic::new(1000);
        assert!(cc.on_loss(at(10), at(5)));
        let reduced = cc.window();
        assert_eq!(reduced, 22_400);
        assert!(!cc.on_loss(at(11), at(9)));
        assert_eq!(cc.window(), reduced);
        assert!(cc.on_loss(at(20), at(15)));
    }

    #[test]
    fn a_mark_reduces_as_a_loss_does_and_for_good() {
        let mut cc = Cubic::new(1000);
        assert!(cc.on_mark(at(10), at(5)));
        assert_eq!(cc.window(), 22_400);
        assert!(!cc.on_mark(at(11), at(9)) && !cc.on_loss(at(11), at(10)));
        cc.undo();
        assert_eq!(cc.window(), 22_400);
        assert!(cc.on_mark(at(20), at(11)));
    }

    #[test]
    fn slow_start_ends_on_a_queue_and_not_on_a_hiccup() {
        let mut cc = Cubic::new(1000);
        let bytes = cc.window();
        cc.on_ack(at(1), at(0), bytes, RTT, true);
        let slow = 3 * RTT;
        for _ in 0..SLOW_START_EXIT_SAMPLES {
            cc.on_delay(slow, RTT);
            cc.on_delay(RTT, RTT);
        }
        assert!(cc.slow_start());
        for _ in 0..SLOW_START_EXIT_SAMPLES {
            cc.on_delay(slow, RTT);
        }
        assert!(!cc.slow_start());
    }

    #[test]
    fn grows_back_past_the_plateau() {
        let mut cc = Cubic::new(1000);
        cc.on_loss(at(0), at(0));
        for ms in 1..5000 {
            let bytes = cc.window();
            cc.on_ack(at(ms), at(ms), bytes, RTT, true);
        }
        assert!(cc.window() > 32_000, "{}", cc.window());
    }

    #[test]
    fn a_false_alarm_is_undone() {
        let mut cc = Cubic::new(1000);
        cc.on_timeout(at(1), true);
        cc.on_timeout(at(2), false);
        assert_eq!(cc.window(), 2000);
        cc.undo();
        assert_eq!(cc.window(), 32_000);
        assert!(cc.slow_start());
    }

    #[test]
    fn paces_what_exceeds_a_burst() {
        let cc = Cubic::new(1000);
        let mut pacer = Pacer::new(at(0));
        let mut sent = 0;
        let wake = loop {
            match pacer.check(at(0), &cc, Some(Duration::from_millis(100))) {
                Ok(()) => pacer.spend(1000, 1),
                Err(wake) => break wake,
            }
            sent += 1000;
        };
        assert!((BURST..BURST + 2000).contains(&sent));
        assert!(wake > at(0) && wake < at(100));
        assert!(
            pacer
                .check(wake, &cc, Some(Duration::from_millis(100)))
                .is_ok()
        );
    }
}
