//! One connection of the connection manager (`rdma_cm(7)`, docs/WIRE.md), sans I/O.
//!
//! The owner feeds in what arrives, what the network reports and the time, and takes out messages
//! and events. Every message that wants an answer is repeated until it has one, or until its
//! budget is used up. What arrives for another connection is the owner's to sort out, by
//! [`Connection::local`]; a message from anyone but the peer is dropped here.

use std::collections::VecDeque;

use causeway_wire::cm::{Acked, Kind, Message, PortSpace, Private, Terms};
use causeway_wire::secure::Why;

use crate::time::{Duration, Instant};
use jitter::Jitter;

mod input;
mod jitter;
#[cfg(test)]
mod tests;

/// First interval after which a message is repeated; it doubles. Each is lengthened or shortened by
/// up to half of it (`jitter::JITTER_PERCENT`).
pub const REPEAT_FIRST: Duration = Duration::from_millis(20);
/// Longest nominal interval.
pub const REPEAT_MAX: Duration = Duration::from_secs(1);
/// How long a request is repeated though its host says that nobody listens: programs that have just
/// told each other to connect do so at the same moment (perftest's `-R`), and a real network takes
/// longer than the listener.
pub const LISTENER_GRACE: Duration = Duration::from_millis(200);
/// How long a request is repeated that nobody has acknowledged, and an accept.
pub const ANSWER_BUDGET: Duration = Duration::from_secs(10);
/// How long a peer's program may think about a request that was acknowledged.
pub const DECISION_BUDGET: Duration = Duration::from_secs(120);
/// How long a shutdown is repeated.
pub const SHUTDOWN_BUDGET: Duration = Duration::from_secs(2);
/// How long an ended connection still answers what is repeated to it.
pub const TIME_WAIT: Duration = Duration::from_secs(3);
/// How long the first probe of a suspected peer has for its answer; each further one twice as long.
pub const PROBE_FIRST: Duration = Duration::from_millis(500);
/// Probes that a live peer can lose.
pub const PROBES: u8 = 3;
/// How long a word of anybody's that no connection will come of a request may be overtaken by one
/// of the peer's own.
pub const UNSECURED_PATIENCE: Duration = Duration::from_secs(1);
/// How often a request is sent again, before it would be repeated anyway, since the listener wants
/// a token: nothing authenticates who says so.
pub const AGAINS_PER_TRY: u8 = 2;
/// What is sent stays below so many times what was received, until the peer's address is proved
/// (RFC 9000 section 8.1).
pub const AMPLIFICATION: usize = 3;

/// Reject reason: the program gave the request up (InfiniBand's "timeout").
pub const REASON_GIVEN_UP: u16 = 4;
/// Reject reason: nobody listens (InfiniBand's "invalid service ID").
pub const REASON_NO_SERVICE: u16 = 8;
/// Reject reason: the connection is unknown (InfiniBand's "stale connection").
pub const REASON_STALE: u16 = 10;
/// Reject reason: the program refused (InfiniBand's "consumer reject").
pub const REASON_CONSUMER: u16 = 28;

/// What happened to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer accepted our request. [`Connection::establish`] completes it, except for
    /// datagrams, where this is all.
    Accepted {
        /// Of the peer's queue pair.
        terms: Terms,
        /// The peer's private data.
        private: Private,
    },
    /// The peer knows that we have accepted.
    Established,
    /// The peer, or its host, refused our request, or it gave its own up.
    Rejected {
        /// InfiniBand's reject reason.
        reason: u16,
        /// The peer's private data.
        private: Private,
    },
    /// Nothing was heard of the peer, or it is known to be gone.
    Unreachable,
    /// As that, and for this reason, by all that is known: the two sides protect their messages
    /// otherwise.
    NotSecured(Why),
    /// An established connection ended.
    Disconnected,
    /// Nothing more will come: the connection can be forgotten.
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Our request is under way.
    Requesting,
    /// The peer accepted; the program has not established the connection.
    Granted,
    /// The peer's request waits for the program.
    Requested,
    /// Our accept is under way.
    Accepting,
    Established,
    /// Our shutdown is under way.
    Closing,
    /// Answers what is repeated, until the time is over.
    Ended,
    Finished,
}

/// A connection, from the request to the end of its time.
#[derive(Debug)]
pub struct Connection {
    state: State,
    space: PortSpace,
    local: u64,
    /// 0 until the peer has named itself.
    remote: u64,
    port: u16,
    /// What is repeated, or was said last: a duplicate question gets it again.
    last: Message,
    /// When it is said again; or, in [`State::Ended`], when the time is over.
    due: Option<Instant>,
    /// The nominal length of the interval that ends then.
    interval: Duration,
    jitter: Jitter,
    give_up: Instant,
    /// Until when a closed port counts as not open yet.
    grace: Instant,
    /// When the peer's program has thought long enough.
    decide_by: Instant,
    /// Probes sent since the peer was suspected to be gone; 0: it is not.
    probes: u8,
    /// The peer has said something.
    heard: bool,
    /// When the request fails since the two sides protect their messages otherwise, and why.
    unsecured: Option<(Instant, Why)>,
    /// A retry was obeyed at once; a further one waits for the timer.
    retried: bool,
    /// How often the request is still sent again at once, with a token, before it is repeated.
    agains_left: u8,
    /// The peer receives at the address it sends from: it knows a name that was sent there.
    proved: bool,
    /// Bytes that may be sent before that.
    credit: usize,
    outbox: VecDeque<Message>,
    events: VecDeque<Event>,
}

/// How a request or an accept is addressed and what it offers.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Of our queue pair.
    pub terms: Terms,
    /// The program's private data.
    pub private: Private,
}

impl Connection {
    /// Requests a connection. `local` names it: random, not 0; `port` is that of our address.
    #[must_use]
    pub fn request(local: u64, space: PortSpace, port: u16, offer: Offer, now: Instant) -> Self {
        let mut connection = Connection::new(State::Requesting, local, 0, space, port);
        connection.grace = now + LISTENER_GRACE;
        // The program has named it.
        connection.proved = true;
        connection.say(Kind::Request, 0, offer, now, ANSWER_BUDGET);
        connection
    }

    /// The other end of a request that arrived, from an address that is `proved` to be its sender's
    /// or may be forged. The program is to answer it.
    #[must_use]
    pub fn incoming(local: u64, request: &Message, proved: bool) -> Self {
        let mut connection =
            Connection::new(State::Requested, local, request.sender, request.space, 0);
        connection.proved = proved;
        // Below, not at most.
        connection.credit = AMPLIFICATION * request.wire_len() - 1;
        connection.outbox.push_back(connection.ack(Acked::Request));
        connection
    }

    fn new(state: State, local: u64, remote: u64, space: PortSpace, port: u16) -> Self {
        Connection {
            state,
            space,
            local,
            remote,
            port,
            last: Message {
                kind: Kind::Request,
                space,
                receiver: remote,
                sender: local,
                port,
                reason: 0,
                terms: Terms::default(),
                private: Private::NONE,
            },
            due: None,
            interval: REPEAT_FIRST,
            jitter: Jitter::new(local),
            give_up: Instant(u64::MAX),
            grace: Instant(0),
            decide_by: Instant(u64::MAX),
            probes: 0,
            heard: false,
            unsecured: None,
            retried: false,
            agains_left: AGAINS_PER_TRY,
            proved: false,
            credit: 0,
            outbox: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Our name of the connection.
    #[must_use]
    pub fn local(&self) -> u64 {
        self.local
    }

    /// The port space that both ends have it in.
    #[must_use]
    pub fn space(&self) -> PortSpace {
        self.space
    }

    /// The peer's name of it; 0 while unknown.
    #[must_use]
    pub fn remote(&self) -> u64 {
        self.remote
    }

    /// Whether there is an established connection, at our end.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.state == State::Established && self.space != PortSpace::Udp
    }

    /// Whether both ends have agreed to the connection, and it has not ended: established, or about
    /// to be.
    #[must_use]
    pub fn is_granted(&self) -> bool {
        let granted = matches!(
            self.state,
            State::Granted | State::Accepting | State::Established
        );
        granted && self.space != PortSpace::Udp
    }

    /// Accepts the peer's request. For datagrams that is all; otherwise [`Event::Established`]
    /// follows. False if there is no request to accept.
    pub fn accept(&mut self, offer: Offer, now: Instant) -> bool {
        if self.state != State::Requested {
            return false;
        }
        self.say(Kind::Accept, 0, offer, now, ANSWER_BUDGET);
        self.state = State::Accepting;
        if self.space == PortSpace::Udp {
            // Asked again, it answers again; nobody acknowledges.
            self.due = None;
            self.give_up = Instant(u64::MAX);
        }
        true
    }

    /// Refuses the peer's request. False if there is none.
    pub fn reject(&mut self, reason: u16, private: Private, now: Instant) -> bool {
        let open = matches!(self.state, State::Requested | State::Granted);
        if open {
            self.refuse(reason, private, now);
        }
        open
    }

    /// Completes a connection that the peer accepted. False if it has not.
    pub fn establish(&mut self) -> bool {
        let granted = self.state == State::Granted;
        if granted {
            self.state = State::Established;
            self.outbox.push_back(self.ack(Acked::Accept));
        }
        granted
    }

    /// The program knows, from data that arrived, that the peer has established the connection
    /// (`rdma_notify(3)`).
    pub fn note_established(&mut self) {
        if self.state == State::Accepting && self.space != PortSpace::Udp {
            self.become_established();
        }
    }

    /// Ends an established connection; [`Event::Disconnected`] follows once the peer knows, or the
    /// budget is used up. False if there is none.
    pub fn disconnect(&mut self, now: Instant) -> bool {
        let open = matches!(self.state, State::Established | State::Accepting)
            && self.space != PortSpace::Udp;
        if open {
            let nothing = Offer {
                terms: Terms::default(),
                private: Private::NONE,
            };
            self.say(Kind::Shutdown, 0, nothing, now, SHUTDOWN_BUDGET);
            self.state = State::Closing;
        }
        open
    }

    /// The program has no more interest: ends the connection in the way its state demands. Keep
    /// it until [`Event::Finished`], so that the peer hears of it.
    pub fn abandon(&mut self, now: Instant) {
        match self.state {
            State::Requesting | State::Requested | State::Granted => {
                self.refuse(REASON_GIVEN_UP, Private::NONE, now);
            }
            State::Established | State::Accepting if self.space != PortSpace::Udp => {
                self.disconnect(now);
            }
            State::Established | State::Accepting => self.finish(),
            State::Closing | State::Ended | State::Finished => {}
        }
    }

    /// Something suggests that the peer is gone. An established connection asks it, and ends if
    /// nothing answers, or if what is asked is refused ([`Connection::handle_refused`]).
    pub fn suspect(&mut self, now: Instant) {
        if self.is_established() && self.probes == 0 {
            self.interval = PROBE_FIRST;
            self.probe(now);
        }
    }

    /// Whether the peer is being asked if it is still there.
    #[must_use]
    pub fn is_suspected(&self) -> bool {
        self.probes > 0
    }

    /// Whether the peer is known to receive at the address that it sends from.
    #[must_use]
    pub fn is_proved(&self) -> bool {
        self.proved
    }

    fn probe(&mut self, now: Instant) {
        self.probes += 1;
        self.due = Some(now + self.interval);
        let probe = Message {
            kind: Kind::Probe,
            ..self.ack(Acked::Probe)
        };
        self.outbox.push_back(probe);
    }

    fn handle_silence(&mut self, now: Instant) {
        if self.probes < PROBES {
            self.interval *= 2;
            return self.probe(now);
        }
        self.events.push_back(Event::Disconnected);
        self.end(now);
    }

    /// When [`Connection::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let unsecured = self.unsecured.map(|(at, _)| at);
        self.due.into_iter().chain(unsecured).min()
    }

    /// Repeats what has not been answered, or gives up.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some((_, why)) = self.unsecured.filter(|(at, _)| *at <= now) {
            self.events.push_back(Event::NotSecured(why));
            return self.end(now);
        }
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        if self.is_suspected() {
            return self.handle_silence(now);
        }
        if now < self.give_up && self.state != State::Ended {
            self.repeat_after((self.interval * 2).min(REPEAT_MAX), now);
            self.agains_left = AGAINS_PER_TRY;
            self.outbox.push_back(self.last);
            return;
        }
        match self.state {
            State::Requesting | State::Accepting => {
                self.events.push_back(Event::Unreachable);
                self.end(now);
            }
            State::Closing => {
                self.events.push_back(Event::Disconnected);
                self.end(now);
            }
            _ => self.finish(),
        }
    }

    /// The next message to the peer. What an address may not be sent that is not proved yet is
    /// dropped: what matters is said again.
    pub fn poll_transmit(&mut self) -> Option<Message> {
        loop {
            let message = self.outbox.pop_front()?;
            if self.proved {
                return Some(message);
            }
            if let Some(left) = self.credit.checked_sub(message.wire_len()) {
                self.credit = left;
                return Some(message);
            }
        }
    }

    /// The next event.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Says something that wants an answer, for the first time.
    fn say(&mut self, kind: Kind, reason: u16, offer: Offer, now: Instant, budget: Duration) {
        self.last = Message {
            kind,
            space: self.space,
            receiver: self.remote,
            sender: self.local,
            port: self.port,
            reason,
            terms: offer.terms,
            private: offer.private,
        };
        self.outbox.push_back(self.last);
        self.probes = 0;
        self.give_up = now + budget;
        self.repeat_after(REPEAT_FIRST, now);
    }

    /// Has what was said repeated after an interval of about `nominal`; or given up on time, if
    /// that is before.
    fn repeat_after(&mut self, nominal: Duration, now: Instant) {
        self.interval = nominal;
        let due = now + self.jitter.draw(nominal);
        self.due = Some(due.min(self.give_up));
    }

    fn ack(&self, acked: Acked) -> Message {
        Message {
            kind: Kind::Ack(acked),
            space: self.space,
            receiver: self.remote,
            sender: self.local,
            port: self.port,
            reason: 0,
            terms: Terms::default(),
            private: Private::NONE,
        }
    }

    fn refuse(&mut self, reason: u16, private: Private, now: Instant) {
        let offer = Offer {
            terms: Terms::default(),
            private,
        };
        self.say(Kind::Reject, reason, offer, now, TIME_WAIT);
        self.end(now);
    }

    fn become_established(&mut self) {
        self.state = State::Established;
        self.due = None;
        self.events.push_back(Event::Established);
    }

    fn end(&mut self, now: Instant) {
        self.state = State::Ended;
        self.unsecured = None;
        self.probes = 0;
        self.due = Some(now + TIME_WAIT);
    }

    fn finish(&mut self) {
        self.state = State::Finished;
        self.due = None;
        self.events.push_back(Event::Finished);
    }
}
