//! What a secured connection has its caller ask of the broker, and what comes of that.

use causeway_aead::{Cipher, Secret};
use causeway_wire::secure::{Handshake, Why};

use super::{Begin, Candidate, Owed, Pair};
use crate::time::Instant;
use crate::trp::config::MAX_CANDIDATES;
use crate::trp::{Connection, State};

/// A step of a handshake, which the caller is to ask of its broker; one at a time for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The message that begins a handshake.
    Begin,
    /// The answer to a message of the peer's.
    Answer {
        /// The cookie of its sender.
        peer_cookie: u64,
        /// The message.
        message: Vec<u8>,
    },
    /// What the peer's answer leads to.
    Finish {
        /// The cookie of its sender.
        peer_cookie: u64,
        /// The answer.
        message: Vec<u8>,
    },
}

/// The keys of one connection.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The cipher that both sides have agreed on.
    pub cipher: Cipher,
    /// The secret of what is sent.
    pub send: Secret,
    /// The secret of what is received.
    pub receive: Secret,
}

impl Connection {
    /// What is to be asked of the broker for a secured connection. Tell the outcome by
    /// [`Connection::begun`] and its like, or [`Connection::ask_failed`].
    pub fn take_ask(&mut self) -> Option<Turn> {
        let secure = self.secure.as_mut()?;
        let ask = secure.ask.take()?;
        secure.asking = true;
        Some(ask)
    }

    /// Whether something is to be asked.
    #[must_use]
    pub fn has_ask(&self) -> bool {
        self.secure.as_ref().is_some_and(|s| s.ask.is_some())
    }

    /// Whether something is asked or to be asked already, so that a message of the peer's is not.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        self.secure
            .as_ref()
            .is_some_and(|s| s.asking || s.ask.is_some())
    }

    /// The broker has begun a handshake with this message.
    pub fn begun(&mut self, message: Vec<u8>) {
        if let Some(secure) = &mut self.secure {
            secure.asking = false;
            secure.begun = Some(message);
            secure.repeat();
        }
    }

    /// The broker has answered a handshake that the peer began with `message`.
    pub fn answered(
        &mut self,
        now: Instant,
        peer_cookie: u64,
        (message, answer): (Vec<u8>, Vec<u8>),
        keys: Keys,
    ) {
        let packets = self.config.phase_packets;
        let Some(secure) = &mut self.secure else {
            return;
        };
        secure.asking = false;
        if secure.proved {
            return;
        }
        if secure.candidates.len() >= MAX_CANDIDATES {
            secure.candidates.remove(0);
        }
        secure.candidates.push(Candidate {
            message,
            answer,
            due: true,
            pair: Pair::new(peer_cookie, keys, packets),
        });
        secure.answered_at = Some(now);
        self.refused = None;
    }

    /// The peer's answer has completed the handshake that this side began.
    pub fn finished(&mut self, peer_cookie: u64, keys: Keys) {
        let packets = self.config.phase_packets;
        let Some(secure) = &mut self.secure else {
            return;
        };
        secure.asking = false;
        if secure.pair.is_some() {
            return;
        }
        secure.pair = Some(Pair::new(peer_cookie, keys, packets));
        secure.begun = None;
        self.refused = None;
        self.handshake.request_due = self.send_config.is_some() && self.peer().is_none();
    }

    /// The broker did not do what it was asked for: the peer is told why, if it is `Answer`. A
    /// message that the broker does not believe counts for nothing.
    pub fn ask_failed(&mut self, ask: &Turn, why: Option<Why>) {
        if let Some(secure) = &mut self.secure {
            secure.asking = false;
        }
        if let (Turn::Answer { peer_cookie, .. }, Some(why)) = (ask, why) {
            self.refusal_due = Some(Owed {
                cookie: *peer_cookie,
                why,
            });
        }
    }

    /// The cipher of a secured connection whose peer is known.
    #[must_use]
    pub fn cipher(&self) -> Option<Cipher> {
        Some(self.secure.as_ref()?.pair.as_ref()?.cipher)
    }

    /// A datagram that begins a handshake, if the broker would have to answer it.
    #[must_use]
    pub fn asks_broker<'a>(&self, datagram: &'a [u8]) -> Option<Handshake<'a>> {
        let (secure, config) = (self.secure.as_ref()?, &self.config);
        let handshake = Handshake::parse(datagram).ok()?;
        let message = handshake.step.begins()?;
        let theirs = (handshake.dst_qpn, handshake.src_qpn);
        let is_ours = theirs == (config.local_qpn, config.remote_qpn);
        let (cookies, refused) = ((config.cookie, handshake.sender), self.refused.is_some());
        let begin = secure.judge(cookies, message, refused);
        let open = is_ours && self.state != State::Closed && cookies.0 != cookies.1;
        (open && matches!(begin, Begin::New)).then_some(handshake)
    }
}
