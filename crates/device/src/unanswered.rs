//! Looks at peers that owe an answer ([`crate::silence`]): every [`LOOK`] while one does, and
//! never otherwise.

use std::sync::atomic::Ordering;
use std::time::Duration;

use causeway_proto::Instant;
use causeway_proto::trp::Budget;
use causeway_proto::types::{QpState, Service};

use crate::broker_request::BrokerRequest;
use crate::clock::{self, Now};
use crate::qp_entry::{Link, QpEntry};
use crate::shared::Shared;
use crate::silence::{LOOK, Verdict, patience};
use crate::state::State;

/// A look that is later than this says nothing of what was before.
const AWAY: Duration = Duration::from_millis(750);
/// Long passes of a program that polls for one look at the clock.
const PASSES_PER_LOOK: u32 = 32;

impl State {
    /// As [`State::look_for_silence`], for a program that polls.
    pub fn check_silence(&mut self, now: &Now) {
        if !self.unanswered.load(Ordering::Relaxed) {
            return;
        }
        self.unanswered_passes = self.unanswered_passes.wrapping_add(1);
        if now.known().is_some() || self.unanswered_passes.is_multiple_of(PASSES_PER_LOOK) {
            self.look_for_silence(now);
        }
    }

    /// Looks which peers owe an answer, and for how long they have been silent, if that is due.
    /// Returns when to look again: never, if none does.
    pub fn look_for_silence(&mut self, now: &Now) -> Option<Instant> {
        if !self.unanswered.load(Ordering::Relaxed) {
            return None;
        }
        if now.get() >= self.look_at {
            // This process may have been held up itself, and its peer with it.
            let away = now.get() >= self.look_at + AWAY;
            self.look_at = now.get() + LOOK;
            // Before the looks: who posts later than that to a queue pair sets it again.
            self.unanswered.store(false, Ordering::Relaxed);
            let mut next = 0;
            while let Some(cell) = self.qps.step(&mut next) {
                let mut entry = cell.entry.lock();
                let Some(verdict) = judge(&mut entry, now.get(), away) else {
                    entry.silence.end();
                    continue;
                };
                self.unanswered.store(true, Ordering::Relaxed);
                let qpn = entry.qp.qpn();
                drop(entry);
                match verdict {
                    Verdict::Wait => {}
                    Verdict::Ask => self.broker_requests.push(BrokerRequest::Ask(qpn)),
                    Verdict::GiveUp => self.give_up(qpn, now),
                }
            }
        }
        let unanswered = self.unanswered.load(Ordering::Relaxed);
        unanswered.then_some(self.look_at)
    }

    /// The peer of a ring has been silent for too long, unless something has just come.
    fn give_up(&mut self, qpn: u32, now: &Now) {
        if self.poll_ring(qpn, now) {
            return;
        }
        let Some(mut entry) = self.qps.lock(qpn) else {
            return;
        };
        if let Some((qp, ring)) = entry.ring() {
            ring.give_up(qp, &mut self.core);
            drop(entry);
            self.touch(qpn);
        }
    }
}

/// What is to be done about the peer of a queue pair; `None` if it owes nothing, or may take for
/// ever. `away`: nobody has looked for a while.
fn judge(entry: &mut QpEntry, now: Instant, away: bool) -> Option<Verdict> {
    let QpEntry {
        qp, link, silence, ..
    } = entry;
    match link {
        Link::Ring(ring) => {
            let owes = qp.expects_answer() && qp.state() != QpState::Err && ring.is_awaited();
            let (timeout, retry_cnt) = qp.patience();
            let limit = Budget::new(timeout, retry_cnt, patience()?).limit()?;
            if !owes || qp.service() != Service::Rc {
                return None;
            }
            if ring.is_held_back() {
                // It has answered, and asked for time.
                silence.end();
                return Some(Verdict::Wait);
            }
            if away {
                silence.bear(now);
            }
            Some(silence.judge(now, ring.done(), limit, ring.is_trusted()))
        }
        Link::Udp(udp) => {
            let (since, limit) = udp.conn.silence()?;
            // To give up is the connection's own decision.
            let asks = silence.is_to_be_asked(now, now.since(since), limit);
            Some(if asks { Verdict::Ask } else { Verdict::Wait })
        }
        _ => None,
    }
}

impl Shared {
    /// Asks the broker whether a silent peer is held up and to be waited for. Called without any
    /// lock.
    pub fn ask_about_peer(&self, qpn: u32) {
        if !self.control.is_peer_suspended(qpn).unwrap_or(false) {
            return;
        }
        let now = clock::now();
        let (_, mut state) = self.engines.lock(qpn);
        let Some(mut entry) = state.qp(qpn) else {
            return;
        };
        entry.silence.bear(now);
        if let Link::Udp(udp) = &mut entry.link {
            udp.conn.bear(now);
            drop(entry);
            state.touch(qpn);
        }
    }
}
