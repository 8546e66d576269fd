//! Signs of life: pings of a silent peer, and what is made of news of its death.

use causeway_wire::trp::Reason;

use super::config::{
    DESERTED_AFTER, PING_FIRST, PING_LAST, UNREACHABLE_PROOFS, UNREACHABLE_SPACING,
};
use super::{Connection, SPACES, State};
use crate::time::{Duration, Instant};
use crate::ulp::{Space, Ulp};

/// What the upper side waits for from the peer, beyond the acknowledgment of what was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expecting {
    /// Nothing.
    #[default]
    Nothing,
    /// Requests, should the peer send any: receives are posted.
    Requests,
    /// Answers it owes: READs or atomics are outstanding.
    Answers,
}

impl From<bool> for Expecting {
    /// Whether receives are posted, where nothing finer is known.
    fn from(receives: bool) -> Self {
        if receives {
            Expecting::Requests
        } else {
            Expecting::Nothing
        }
    }
}

/// What is known of the peer's well-being.
#[derive(Debug)]
pub struct Liveness {
    last_heard: Instant,
    expecting: Expecting,
    interval: Duration,
    /// When to look, or to ask again.
    at: Option<Instant>,
    /// Pings unanswered, and since when.
    tries: u32,
    since: Instant,
    /// A ping is to be sent.
    pub ping_due: bool,
    unreachable: u32,
    unreachable_at: Instant,
    /// When the last ping left that a report without proof had caused.
    pub probed_at: Option<Instant>,
}

impl Liveness {
    pub fn new(now: Instant) -> Self {
        Liveness {
            last_heard: now,
            expecting: Expecting::Nothing,
            interval: PING_FIRST,
            at: None,
            tries: 0,
            since: now,
            ping_due: false,
            unreachable: 0,
            unreachable_at: now,
            probed_at: None,
        }
    }

    /// An authentic datagram arrived; `data`: the peer did something of its own accord.
    pub fn heard(&mut self, now: Instant, data: bool) {
        self.last_heard = now;
        self.unreachable = 0;
        if data {
            self.interval = PING_FIRST;
        }
        if self.tries > 0 {
            self.tries = 0;
            self.ping_due = false;
            self.interval = self.interval.saturating_mul(2).min(PING_LAST);
            self.at = None;
        }
        if self.is_expecting() && self.at.is_none() {
            self.at = Some(now + self.interval);
        }
    }

    /// Whether anything has come from the peer after `when`.
    pub fn heard_since(&self, when: Instant) -> bool {
        self.last_heard > when
    }

    /// Since when pings are unanswered.
    pub fn silent_since(&self) -> Option<Instant> {
        (self.tries > 0).then_some(self.since)
    }

    /// Unanswered pings count from now.
    pub fn bear(&mut self, now: Instant) {
        self.since = now;
        self.tries = self.tries.min(1);
    }

    fn is_expecting(&self) -> bool {
        self.expecting != Expecting::Nothing
    }

    pub fn deadline(&self) -> Option<Instant> {
        if self.ping_due { None } else { self.at }
    }
}

impl Connection {
    /// Says what the upper side waits for, so that the peer's death is noticed even while nothing
    /// is sent to it. Cheap where nothing changes, and free while the peer talks.
    pub fn set_expecting(&mut self, now: Instant, expecting: impl Into<Expecting>) {
        let before = self.live.is_expecting();
        self.live.expecting = expecting.into();
        if before == self.live.is_expecting() {
            return;
        }
        self.live.interval = PING_FIRST;
        self.live.at = self.live.is_expecting().then(|| now + PING_FIRST);
        self.live.tries = 0;
        self.live.ping_due = false;
    }

    /// Nobody listens at the peer's port: believed when it is confirmed.
    pub(super) fn port_unreachable(&mut self, now: Instant, ulp: &mut impl Ulp) {
        let live = &mut self.live;
        if live.unreachable > 0 && now.since(live.unreachable_at) < UNREACHABLE_SPACING {
            return;
        }
        live.unreachable += 1;
        live.unreachable_at = now;
        if live.unreachable >= UNREACHABLE_PROOFS {
            self.died(Reason::Unknown, now, ulp);
        } else if self.live.is_expecting() || self.is_requesting(ulp) {
            self.live.at = Some(now + UNREACHABLE_SPACING);
            self.live.tries = self.live.tries.max(1);
            self.live.since = now;
        }
    }

    /// The peer's process is proved gone, or its queue pair has ended.
    pub(super) fn died(&mut self, reason: Reason, now: Instant, ulp: &mut impl Ulp) {
        let crashed = reason == Reason::Unknown;
        if crashed && (self.is_requesting(ulp) || self.live.expecting >= Expecting::Requests) {
            self.lose(ulp);
            return;
        }
        // A NIC keeps silent about a queue pair that was destroyed until the retries are used up,
        // and programs that end with sends under way rely on it: no failure at once. A queue pair
        // that merely has receives posted learns nothing, as with hardware.
        if self.is_requesting(ulp) || self.live.expecting >= Expecting::Answers {
            self.doomed_at.get_or_insert(now + DESERTED_AFTER);
        }
        for space in SPACES {
            self.tx.spaces[space as usize].abandon();
        }
        self.state = State::Deserted;
        self.tx.stop(Space::Response);
        self.live.at = None;
        self.live.ping_due = false;
    }

    pub(super) fn on_ping_timeout(&mut self, now: Instant, ulp: &mut impl Ulp) {
        let Some(at) = self.live.at.filter(|at| now >= *at) else {
            return;
        };
        if self.handshake.peer().is_none() || self.state != State::Open {
            // Nobody has ever talked: nobody can have died. Armed again by the first datagram.
            self.live.at = None;
            return;
        }
        let live = &mut self.live;
        if live.tries == 0 {
            let silence_ends = live.last_heard + live.interval;
            if silence_ends > at && silence_ends > now {
                live.at = Some(silence_ends);
                return;
            }
            live.since = now;
        } else if !live.is_expecting() && live.unreachable == 0 {
            live.at = None;
            return;
        }
        if self.budget.exhausted(now.since(live.since), live.tries) {
            self.lose(ulp);
            return;
        }
        live.ping_due = true;
        live.tries += 1;
        live.at = Some(
            now + self
                .tx
                .rtt
                .backed_off(live.tries - 1)
                .max(UNREACHABLE_SPACING),
        );
    }
}
