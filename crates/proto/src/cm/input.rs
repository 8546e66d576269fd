//! What arrives, and what the network reports.

use causeway_wire::cm::{Acked, Kind, Message, PortSpace};
use causeway_wire::secure::Why;

use super::{
    AMPLIFICATION, ANSWER_BUDGET, Connection, DECISION_BUDGET, Event, REASON_NO_SERVICE,
    REASON_STALE, REPEAT_FIRST, State, UNSECURED_PATIENCE,
};
use crate::time::Instant;

impl Connection {
    /// Takes a message addressed to this connection.
    pub fn handle_message(&mut self, message: &Message, now: Instant) {
        let known = self.remote == message.sender;
        let names_itself = self.remote == 0 && self.state == State::Requesting;
        if message.space != self.space || !(known || names_itself) {
            return;
        }
        (self.heard, self.unsecured) = (true, None);
        self.proved |= message.receiver == self.local;
        self.credit += AMPLIFICATION * message.wire_len();
        match message.kind {
            Kind::Request => self.handle_request(),
            Kind::Accept => self.handle_accept(message),
            Kind::Reject => self.handle_reject(message, now),
            Kind::Shutdown => self.handle_shutdown(now),
            Kind::Ack(Acked::Request) => self.handle_patience(message, now),
            Kind::Ack(Acked::Accept) if self.space != PortSpace::Udp => self.note_established(),
            Kind::Ack(Acked::Accept) => {}
            Kind::Ack(Acked::Shutdown) => self.handle_closed(now),
            Kind::Ack(Acked::Probe) => self.handle_life(),
            Kind::Probe => self.handle_probe(message),
            Kind::Retry => self.handle_retry(message, now),
        }
    }

    /// Somebody who knows our name of the connection, which may be anybody on the path, says that
    /// no connection will come of our request, since the two sides protect their messages
    /// otherwise. It counts if the peer itself is silent: one that protects them as we do answers
    /// at once.
    pub fn handle_unsecured(&mut self, why: Why, now: Instant) {
        if self.state == State::Requesting && !self.heard {
            self.unsecured
                .get_or_insert((now + UNSECURED_PATIENCE, why));
        }
    }

    /// Somebody who knows our name of the connection says that the listener has too much to do, and
    /// wants our request again with a token. What the peer itself has said before, it has said to a
    /// request whose token is as good. The newest token counts: whoever makes up others must always
    /// be the last.
    pub fn handle_come_again(&mut self, token: u64, now: Instant) {
        let waits = self.state == State::Requesting && self.remote == 0 && !self.heard;
        if !waits {
            return;
        }
        self.bear(token, now);
        if self.agains_left > 0 {
            self.agains_left -= 1;
            self.outbox.push_back(self.last);
        }
    }

    /// Has the request bear a token. With the first one it is as another request: where the other
    /// was lost for long, this one is repeated soon.
    fn bear(&mut self, token: u64, now: Instant) {
        if self.last.receiver == 0 {
            self.repeat_after(REPEAT_FIRST, now);
        }
        self.last.receiver = token;
    }

    /// The peer asks whether we still have the connection. To it, it is established.
    fn handle_probe(&mut self, probe: &Message) {
        if self.space != PortSpace::Udp {
            self.note_established();
        }
        if self.is_established() {
            self.outbox.push_back(self.ack(Acked::Probe));
        } else if matches!(self.state, State::Ended | State::Finished) {
            self.outbox.push_back(unknown(probe));
        }
    }

    /// The peer still has the connection.
    fn handle_life(&mut self) {
        if self.is_established() && self.is_suspected() {
            self.probes = 0;
            self.due = None;
        }
    }

    /// The listener keeps nothing of our request, and wants it again with a token. At once the
    /// first time: one that is never content would keep both ends busy.
    fn handle_retry(&mut self, retry: &Message, now: Instant) {
        if self.state == State::Requesting && self.remote == 0 {
            self.bear(retry.sender, now);
            if !self.retried {
                self.retried = true;
                self.outbox.push_back(self.last);
            }
        }
    }

    /// A request that was repeated: our answer was lost, or the program has none yet.
    fn handle_request(&mut self) {
        match self.state {
            State::Requested => self.outbox.push_back(self.ack(Acked::Request)),
            State::Accepting => self.outbox.push_back(self.last),
            State::Ended if self.last.kind == Kind::Reject => self.outbox.push_back(self.last),
            _ => {}
        }
    }

    fn handle_accept(&mut self, message: &Message) {
        match self.state {
            State::Requesting => {
                if self.remote == 0 && self.space == PortSpace::Udp {
                    // Nothing else tells it that we are where we say.
                    self.remote = message.sender;
                    self.outbox.push_back(self.ack(Acked::Accept));
                }
                self.remote = message.sender;
                self.due = None;
                self.state = State::Granted;
                self.events.push_back(Event::Accepted {
                    terms: message.terms,
                    private: message.private,
                });
                if self.space == PortSpace::Udp {
                    self.state = State::Established;
                }
            }
            State::Established if self.space != PortSpace::Udp => {
                self.outbox.push_back(self.ack(Acked::Accept));
            }
            State::Ended if self.last.kind == Kind::Reject => {
                // We had given up when it was sent.
                self.last.receiver = message.sender;
                self.outbox.push_back(self.last);
            }
            _ => {}
        }
    }

    fn handle_reject(&mut self, message: &Message, now: Instant) {
        let rejected = Event::Rejected {
            reason: message.reason,
            private: message.private,
        };
        match self.state {
            // A program that serves several port spaces at one port opens them one after the other.
            State::Requesting
                if self.space == PortSpace::Udp
                    && self.remote == 0
                    && message.reason == REASON_NO_SERVICE
                    && now < self.grace => {}
            State::Requesting | State::Granted | State::Requested | State::Accepting => {
                self.events.push_back(rejected);
                self.end(now);
            }
            State::Established | State::Closing if self.space != PortSpace::Udp => {
                self.events.push_back(Event::Disconnected);
                self.end(now);
            }
            _ => {}
        }
    }

    fn handle_shutdown(&mut self, now: Instant) {
        match self.state {
            // The last acknowledgment of ours that it needs; it may have come before the peer's
            // of our accept.
            State::Accepting => {
                self.events.push_back(Event::Established);
                self.closed_by_peer(now);
            }
            State::Established | State::Closing | State::Granted => self.closed_by_peer(now),
            State::Ended => self.outbox.push_back(self.ack(Acked::Shutdown)),
            State::Requesting | State::Requested | State::Finished => {}
        }
    }

    fn closed_by_peer(&mut self, now: Instant) {
        self.outbox.push_back(self.ack(Acked::Shutdown));
        self.events.push_back(Event::Disconnected);
        self.end(now);
    }

    /// The peer has our request, and its program is thinking.
    fn handle_patience(&mut self, message: &Message, now: Instant) {
        if self.state != State::Requesting {
            return;
        }
        if self.remote == 0 {
            self.remote = message.sender;
            self.last.receiver = message.sender;
            self.decide_by = now + DECISION_BUDGET;
            // It may send us more once it knows that we are where we say.
            self.outbox.push_back(self.ack(Acked::Request));
        }
        self.give_up = (now + ANSWER_BUDGET).min(self.decide_by);
    }

    fn handle_closed(&mut self, now: Instant) {
        if self.state == State::Closing {
            self.events.push_back(Event::Disconnected);
            self.end(now);
        }
    }

    /// The peer's host says that nobody has the port, and has quoted a message of ours: an attacker
    /// that can't read the way can't forge that. What else the network reports changes nothing (RFC
    /// 5927): routes come and go.
    pub fn handle_refused(&mut self, now: Instant) {
        match self.state {
            State::Requesting if self.remote == 0 && now < self.grace => {}
            State::Requesting if self.remote == 0 => {
                self.events.push_back(Event::Rejected {
                    reason: REASON_NO_SERVICE,
                    private: causeway_wire::cm::Private::NONE,
                });
                self.end(now);
            }
            State::Requesting | State::Accepting | State::Granted => {
                self.events.push_back(Event::Unreachable);
                self.end(now);
            }
            State::Closing => {
                self.events.push_back(Event::Disconnected);
                self.end(now);
            }
            // No report ends an established connection, only the refusal of a probe does.
            State::Established if self.is_suspected() => {
                self.events.push_back(Event::Disconnected);
                self.end(now);
            }
            State::Established => self.suspect(now),
            State::Requested | State::Ended | State::Finished => {}
        }
    }
}

/// The answer to a probe of a connection that is over.
fn unknown(probe: &Message) -> Message {
    Message {
        kind: Kind::Reject,
        receiver: probe.sender,
        sender: probe.receiver.max(1),
        reason: REASON_STALE,
        ..*probe
    }
}
