//! What is reported of datagrams that did not arrive (ICMP), and what is believed of it.
//!
//! Anybody can send a report under an address of its own. One that quotes our cookie comes from
//! where our datagrams pass, as our own host's does; any other may be forged, or come from a router
//! that quotes eight bytes only. Reports that a host or a network can't be reached are true one
//! moment and false the next (RFC 5927 section 5.2): the retry budget decides, wherever they come
//! from.

use causeway_wire::quote::names;

use super::config::{MIN_DATAGRAM, UNREACHABLE_SPACING};
use super::{Connection, SPACES, State};
use crate::time::Instant;
use crate::ulp::Ulp;

/// Why a datagram did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    /// Nobody has the port that it went to.
    Port,
    /// The peer's host or network can't be reached at the moment, or somebody forbids it.
    Route,
    /// It is larger than the path takes.
    TooBig {
        /// UDP payload that fits, in bytes; 0 if the report did not say.
        max_payload: usize,
    },
}

/// What makes a report credible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof<'a> {
    /// This host made it.
    Local,
    /// The beginning of the datagram, as far as the report quotes it.
    Quote(&'a [u8]),
}

impl Connection {
    /// Takes a report of a datagram sent to the peer's address. Call
    /// [`Connection::poll_transmit`] afterwards.
    ///
    /// Before the handshake no report means anything: the peer may not have started.
    pub fn undelivered(
        &mut self,
        now: Instant,
        what: Undelivered,
        proof: Proof<'_>,
        ulp: &mut impl Ulp,
    ) {
        if self.state != State::Open || self.handshake.peer().is_none() {
            return;
        }
        match (what, self.believes(proof)) {
            (Undelivered::Route, _) | (Undelivered::TooBig { .. }, false) => {}
            (Undelivered::Port, true) => self.port_unreachable(now, ulp),
            (Undelivered::Port, false) => self.probe_on_hearsay(now),
            (Undelivered::TooBig { max_payload }, true) => {
                // An interface of this host's may be narrower than any path is said to be.
                let least = if proof == Proof::Local {
                    MIN_DATAGRAM
                } else {
                    self.config.base_datagram()
                };
                let payload = max_payload.saturating_sub(self.config.overhead());
                self.narrow(now, payload.max(least));
            }
        }
    }

    /// Whether a report is about a datagram of this connection.
    fn believes(&self, proof: Proof<'_>) -> bool {
        let Proof::Quote(quote) = proof else {
            return true;
        };
        let peer = self.handshake.peer().map(|p| p.cookie);
        names(quote).is_some_and(|n| Some(n.receiver) == peer || n.sender == self.config.cookie)
    }

    /// Asks the peer for a sign of life, at most once in a round trip: if its port is closed, its
    /// host answers that with a report that quotes more.
    fn probe_on_hearsay(&mut self, now: Instant) {
        let pause = self.tx.rtt.smoothed().unwrap_or_default();
        let pause = pause.max(UNREACHABLE_SPACING);
        let live = &mut self.live;
        if live.probed_at.is_some_and(|at| now < at + pause) {
            return;
        }
        live.probed_at = Some(now);
        live.ping_due = true;
    }

    /// The path takes smaller datagrams than those that were sent (RFC 8899 section 4.6.2): what is
    /// under way is lost, and was not dropped for want of room.
    fn narrow(&mut self, now: Instant, size: usize) {
        if size >= self.tx.datagram {
            self.tx.search.on_told(size);
            return;
        }
        self.set_max_payload(now, size);
        let tx = &mut self.tx;
        tx.search.settle(now);
        for space in SPACES {
            let space = &mut tx.spaces[space as usize];
            space.lose_from(space.una(), false);
        }
    }
}
