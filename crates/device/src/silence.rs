//! How long a peer may be silent that owes an answer.
//!
//! On a ring nothing is lost, so nothing is sent again that could be counted: what is measured is
//! the time in which the peer has done nothing at all. One that is held up by a debugger, by
//! SIGSTOP or with its control group counts as talking while that lasts, if it is inside the trust
//! boundary; the broker says so, on either wire.

use std::sync::OnceLock;
use std::time::Duration;

use causeway_proto::Instant;
use causeway_proto::trp::RETRY_FLOOR;

/// Time between two looks at peers that owe an answer.
pub(crate) const LOOK: Duration = Duration::from_millis(250);
/// Time between two questions to the broker about one of them.
const ASK: Duration = Duration::from_secs(1);
/// The setting: the least time that peers are waited for, in seconds.
const VARIABLE: &str = "CAUSEWAY_PATIENCE";
/// The most that it may say.
const LONGEST: f64 = 86_400.0;

/// The least time that a peer is waited for, whatever a queue pair's `timeout` and `retry_cnt` say;
/// `None` if the setting holds something else than seconds.
pub(crate) fn patience() -> Option<Duration> {
    static PATIENCE: OnceLock<Option<Duration>> = OnceLock::new();
    *PATIENCE.get_or_init(|| match causeway_fabric::setting(VARIABLE) {
        None => Some(RETRY_FLOOR),
        Some(text) => seconds(text.to_str()?),
    })
}

fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.parse().ok()?;
    (0.0..=LONGEST)
        .contains(&seconds)
        .then(|| Duration::from_secs_f64(seconds))
}

/// What is to be done about a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Wait,
    /// Ask the broker whether it is held up.
    Ask,
    /// It has been silent for too long.
    GiveUp,
}

/// The silence of a peer that owes an answer.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// What it had done when that was last looked at, and since when it has done no more.
    since: Option<([u64; 4], Instant)>,
    /// The broker has been asked about it since then, and when that may be done again.
    asked: bool,
    ask_at: Instant,
}

impl Silence {
    /// The peer owes nothing.
    pub fn end(&mut self) {
        (self.since, self.asked) = (None, false);
    }

    /// The peer is held up, says the broker, or nobody has looked at it lately: its silence counts
    /// from now.
    pub fn bear(&mut self, now: Instant) {
        if let Some((_, since)) = &mut self.since {
            (*since, self.asked) = (now, false);
        }
    }

    /// Judges a peer that owes an answer, from what it has done so far. One that is `trusted` is
    /// not given up before the broker was asked about it.
    pub fn judge(
        &mut self,
        now: Instant,
        done: [u64; 4],
        limit: Duration,
        trusted: bool,
    ) -> Verdict {
        let Some((_, since)) = self.since.filter(|(before, _)| *before == done) else {
            (self.since, self.asked) = (Some((done, now)), false);
            return Verdict::Wait;
        };
        let silent = now.since(since);
        if silent >= limit && (self.asked || !trusted) {
            Verdict::GiveUp
        } else if trusted && self.is_to_be_asked(now, silent, limit) {
            Verdict::Ask
        } else {
            Verdict::Wait
        }
    }

    /// Whether it is time to ask the broker about a peer that has been silent for so long: when
    /// half of the limit has passed, so that a peer that has just been let go of has the rest to
    /// answer.
    pub fn is_to_be_asked(&mut self, now: Instant, silent: Duration, limit: Duration) -> bool {
        if silent < limit / 2 || now < self.ask_at {
            return false;
        }
        self.ask_at = now + ASK.min(limit / 4);
        self.asked = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(4);

    fn at(millis: u64) -> Instant {
        Instant(1) + Duration::from_millis(millis)
    }

    #[test]
    fn who_does_anything_is_not_silent() {
        let mut silence = Silence::default();
        for step in 0..100 {
            let verdict = silence.judge(at(step * 3000), [step, 0, 0, 0], LIMIT, true);
            assert_eq!(verdict, Verdict::Wait);
        }
    }

    #[test]
    fn the_broker_is_asked_before_a_peer_is_given_up() {
        let mut silence = Silence::default();
        let mut judge = |millis| silence.judge(at(millis), [7; 4], LIMIT, true);
        let verdicts = [0, 1999, 2000, 2500, 3000, 3999, 4000].map(&mut judge);
        use Verdict::{Ask, GiveUp, Wait};
        assert_eq!(verdicts, [Wait, Wait, Ask, Wait, Ask, Wait, GiveUp]);
        // However short the limit is, but about strangers.
        let short = Duration::from_micros(8);
        for (trusted, expected) in [(true, [Wait, Ask, GiveUp]), (false, [Wait, GiveUp, GiveUp])] {
            let mut silence = Silence::default();
            let mut judge = |millis| silence.judge(at(millis), [7; 4], short, trusted);
            assert_eq!([0, 250, 500].map(&mut judge), expected);
        }
    }

    #[test]
    fn who_is_held_up_is_waited_for() {
        let mut silence = Silence::default();
        for look in 0..1000 {
            let now = at(look * 250);
            match silence.judge(now, [7; 4], LIMIT, true) {
                Verdict::Wait => {}
                Verdict::Ask => silence.bear(now),
                Verdict::GiveUp => panic!("given up at {look}"),
            }
        }
        // Let go of, it has half of the limit at least.
        let later = silence.judge(at(251_000), [7; 4], LIMIT, true);
        assert_ne!(later, Verdict::GiveUp);
        silence.end();
        assert_eq!(
            silence.judge(at(900_000), [7; 4], LIMIT, true),
            Verdict::Wait
        );
    }

    #[test]
    fn the_setting_is_a_number_of_seconds() {
        assert_eq!(seconds("4"), Some(Duration::from_secs(4)));
        assert_eq!(seconds("0.25"), Some(Duration::from_millis(250)));
        assert_eq!(seconds("0"), Some(Duration::ZERO));
        for bad in ["", "4s", "-1", "NaN", "inf", "86401", "0x4"] {
            assert_eq!(seconds(bad), None, "{bad:?}");
        }
    }
}
