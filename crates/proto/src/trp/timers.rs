//! Time: one deadline for the caller, and what happens when it passes.

use super::config::MAX_ACK_DELAY;
use super::rtt::{INITIAL_RTO, MIN_RTO};
use super::{Connection, SPACES, State};
use crate::time::{Duration, Instant};
use crate::ulp::{Space, Ulp};

/// Least time after which a tail that went unacknowledged is probed (RFC 8985 section 7.2): room
/// for a peer whose helper thread has to wake up.
const MIN_PROBE: Duration = Duration::from_millis(2);

/// A time that does not come.
const NEVER: u64 = u64::MAX;

impl Connection {
    /// When to call [`Connection::on_timeout`]; `None`: not before something happens. An idle
    /// connection that expects nothing has no deadline.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.state == State::Deserted {
            return self.doomed_at;
        }
        if self.state != State::Open {
            return None;
        }
        let times = [
            self.rx.acks.deadline(),
            self.retransmission_at(),
            self.tx.loss_at,
            self.tx.pace_at,
            self.tx.hold_until,
            self.request_at(),
            self.refusal_at(),
            self.live.deadline(),
        ];
        // By numbers, since they are compared without a jump for each.
        let numbers = times.map(|at| at.map_or(NEVER, |at| at.0));
        let first = numbers.into_iter().fold(NEVER, u64::min);
        (first != NEVER).then_some(Instant(first))
    }

    /// Tells that time has passed; early or needless calls are harmless. Call
    /// [`Connection::poll_transmit`] afterwards.
    pub fn on_timeout(&mut self, now: Instant, ulp: &mut impl Ulp) {
        if self.state == State::Deserted && self.doomed_at.is_some_and(|at| now >= at) {
            self.doomed_at = None;
            self.lose(ulp);
        }
        if self.state != State::Open {
            return;
        }
        self.rx.acks.on_timeout(now);
        if self.tx.pace_at.is_some_and(|at| now >= at) {
            self.tx.pace_at = None;
        }
        if self.tx.hold_until.is_some_and(|at| now >= at) {
            self.tx.hold_until = None;
        }
        if self.tx.loss_at.is_some_and(|at| now >= at) {
            self.detect_losses(now);
        }
        if self.retransmission_at().is_some_and(|at| now >= at) {
            self.on_retransmission_timeout(now, ulp);
        }
        if self.request_at().is_some_and(|at| now >= at) {
            self.on_request_timeout(now, ulp);
        }
        if self.refusal_at().is_some_and(|at| now >= at) {
            self.on_refusal_timeout(ulp);
        }
        self.on_ping_timeout(now, ulp);
    }

    /// Since when the peer owes a sign, and how long that may last; `None` where it owes none, or
    /// may take for ever.
    #[must_use]
    pub fn silence(&self) -> Option<(Instant, Duration)> {
        if self.state != State::Open {
            return None;
        }
        let limit = self.budget.limit()?;
        let unacknowledged = SPACES.iter().any(|s| self.is_waiting_for_ack(*s));
        let times = [
            unacknowledged.then_some(self.tx.progress_at),
            self.waiting_since,
            self.live.silent_since(),
        ];
        Some((times.into_iter().flatten().min()?, limit))
    }

    /// The peer can't answer for a reason that is known and passes: its silence counts from now,
    /// and it is tried again soon.
    pub fn bear(&mut self, now: Instant) {
        self.tx.progress_at = now;
        self.tx.timeouts = self.tx.timeouts.min(1);
        self.tx.waits = self.tx.waits.map(|waits| waits.min(1));
        self.waiting_since = self.waiting_since.map(|_| now);
        self.live.bear(now);
    }

    /// When the connection request is to be repeated.
    fn request_at(&self) -> Option<Instant> {
        self.waiting_since.and(self.handshake.retry_at)
    }

    fn on_request_timeout(&mut self, now: Instant, ulp: &mut impl Ulp) {
        let Some(since) = self.waiting_since else {
            return;
        };
        if self
            .budget
            .exhausted(now.since(since), self.handshake.tries)
        {
            self.lose(ulp);
            return;
        }
        self.handshake.retry_at = None;
        self.handshake.request_due = true;
    }

    fn is_waiting_for_ack(&self, space: Space) -> bool {
        self.tx.spaces[space as usize].outstanding() && !self.tx.is_held(space)
    }

    /// When something unacknowledged is sent again for lack of news.
    fn retransmission_at(&self) -> Option<Instant> {
        let at = SPACES
            .into_iter()
            .filter_map(|space| self.repeats_at(space))
            .min()?;
        // The end of the budget is not to be overslept.
        match self.budget.limit().map(|limit| self.tx.progress_at + limit) {
            Some(end) if self.budget.exhausted(Duration::MAX, self.tx.timeouts) => {
                Some(at.min(end))
            }
            _ => Some(at),
        }
    }

    /// The same for one space: first one probe, soon, to make the peer report what it has; then
    /// everything, with exponential back-off.
    fn repeats_at(&self, space: Space) -> Option<Instant> {
        if !self.is_waiting_for_ack(space) {
            return None;
        }
        let tx = &self.tx;
        let wait = match tx.waits[space as usize] {
            0 => match tx.rtt.smoothed() {
                Some(srtt) => (2 * srtt + MAX_ACK_DELAY).max(MIN_PROBE).min(tx.rtt.rto()),
                None => INITIAL_RTO,
            },
            n => tx.rtt.backed_off(n - 1),
        };
        Some(tx.active_at[space as usize] + wait)
    }

    fn on_retransmission_timeout(&mut self, now: Instant, ulp: &mut impl Ulp) {
        if self
            .budget
            .exhausted(now.since(self.tx.progress_at), self.tx.timeouts)
        {
            self.lose(ulp);
            return;
        }
        self.stats.timeouts += 1;
        self.tx.loss_at = None;
        let mut longest = 0;
        let due = |space| self.repeats_at(space).is_some_and(|at| now >= at);
        let due = SPACES.map(due);
        for space in SPACES.into_iter().filter(|space| due[*space as usize]) {
            let tx = &mut self.tx;
            // Also where nothing can be sent at once, the next time-out counts from here.
            tx.active_at[space as usize] = now;
            tx.probe[space as usize] = true;
            tx.waits[space as usize] += 1;
            let waits = tx.waits[space as usize];
            longest = longest.max(waits);
            if waits > 1 {
                // What the peer reported to have it may have dropped, if it fails to advance.
                let una = tx.spaces[space as usize].una();
                tx.spaces[space as usize].lose_from(una, waits > 2);
            }
        }
        // Both spaces may wait for the same news.
        if longest > self.tx.timeouts {
            self.tx.timeouts += 1;
            self.on_silence(now);
        }
        if longest > 1 {
            self.suspect_black_hole(now);
        }
    }

    /// Another time-out has passed in which neither space advanced.
    fn on_silence(&mut self, now: Instant) {
        let tx = &mut self.tx;
        tx.ecn.on_timeout(now, tx.timeouts);
        if tx.timeouts == 2 {
            (tx.resent, tx.needless) = (0, 0);
        }
        if tx.timeouts > 1 {
            tx.cc.on_timeout(now, tx.timeouts == 2);
        }
    }
}

const _: () = assert!(MIN_PROBE.as_nanos() < MIN_RTO.as_nanos());

#[cfg(test)]
mod tests;
