//! Secured connections: handshakes before TRP's own, and sealed datagrams (docs/WIRE.md, *A secured
//! wire*).
//!
//! The messages of a handshake are made and understood by the brokers of both hosts, which have the
//! keys of the cluster. A connection carries them, as requests and answers to its caller
//! ([`Turn`]), and gets the keys of this one connection. Whenever TRP would send a connection
//! request and there are no keys yet, the handshake goes on in its place; so its repetitions and
//! its budget are TRP's.
//!
//! A side that has completed a handshake which it began has keys. A side that has answered one has
//! a *candidate*, since what it answered may be a recording: the first datagram that is opened by
//! it shows that the peer is there. Where both sides begin at once, the handshake of the one with
//! the lower cookie counts.

mod asks;

pub use asks::{Keys, Turn};
pub use causeway_aead::{Cipher, PHASE_PACKETS};
use causeway_aead::{Opener, Refusal, Sealer, Stamp};
use causeway_wire::secure::{
    COOKIE_LEN, Handshake, OVERHEAD, SEALED_HEADER_LEN, SealedHeader, Step, TAG_LEN, Why,
    is_handshake, is_sealed,
};
use causeway_wire::trp::{Opcode, ParseError};

use super::config::{ANSWER_WAIT, COOKIES_PER_TRY, REFUSAL_PATIENCE};
use super::{Connection, DropReason, State, Transmit};
use crate::time::Instant;
use crate::ulp::Ulp;

/// Both directions of a peer's.
#[derive(Debug)]
struct Pair {
    peer_cookie: u64,
    sealer: Sealer,
    opener: Opener,
    cipher: Cipher,
}

impl Pair {
    fn new(peer_cookie: u64, keys: Keys, phase_packets: u64) -> Self {
        let sealer = Sealer::new(keys.cipher, keys.send);
        Pair {
            peer_cookie,
            sealer: sealer.with_phase_packets(phase_packets),
            opener: Opener::new(keys.cipher, &keys.receive),
            cipher: keys.cipher,
        }
    }
}

/// A handshake of the peer's that was answered.
#[derive(Debug)]
struct Candidate {
    message: Vec<u8>,
    answer: Vec<u8>,
    /// The answer is to be sent.
    due: bool,
    pair: Pair,
}

/// What a secured connection has beside an ordinary one.
#[derive(Debug, Default)]
pub(super) struct Secure {
    ask: Option<Turn>,
    /// The caller has taken a [`Turn`], and has not told the outcome.
    asking: bool,
    /// The message that began our handshake.
    begun: Option<Vec<u8>>,
    begin_due: bool,
    /// What the peer has asked to see with it.
    cookie: Option<[u8; COOKIE_LEN]>,
    /// How many such are heeded before it is repeated.
    cookies_left: u8,
    candidates: Vec<Candidate>,
    /// When the last of those came.
    answered_at: Option<Instant>,
    pair: Option<Pair>,
    /// A datagram of the peer's was opened by those keys.
    proved: bool,
    scratch: Vec<u8>,
}

/// A refusal that is owed to the sender of a datagram with this cookie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    cookie: u64,
    why: Why,
}

/// What a message means that begins a handshake of the peer's.
enum Begin {
    /// The connection has its keys.
    Late,
    /// It was answered already: the place of that.
    Known(usize),
    /// Ours counts.
    OursCounts,
    /// The broker is to answer it.
    New,
}

impl Secure {
    /// Asks the caller, unless it is asked something already: what is lost by that is repeated.
    fn ask(&mut self, ask: Turn) {
        if !self.asking && self.ask.is_none() {
            self.ask = Some(ask);
        }
    }

    /// What is to be done about a message that begins a handshake of the peer's. Of two that are
    /// begun at once one counts: the peer answers ours, unless it has `refused`.
    fn judge(&self, (own, peer): (u64, u64), message: &[u8], refused: bool) -> Begin {
        if self.proved {
            return Begin::Late;
        }
        if let Some(at) = self.candidates.iter().position(|c| c.message == message) {
            return Begin::Known(at);
        }
        if self.begun.is_some() && own < peer && !refused {
            return Begin::OursCounts;
        }
        Begin::New
    }

    /// Takes the message that begins a handshake of the peer's.
    fn on_begin(&mut self, (own, peer): (u64, u64), message: &[u8], refused: bool) {
        match self.judge((own, peer), message, refused) {
            Begin::Late => {}
            Begin::Known(at) => self.candidates[at].due = true,
            Begin::OursCounts => self.begin_due = self.pair.is_none(),
            Begin::New => self.ask(Turn::Answer {
                peer_cookie: peer,
                message: message.to_vec(),
            }),
        }
    }

    /// What began our handshake is sent, unless that has ended.
    fn repeat(&mut self) {
        self.begin_due = self.pair.is_none();
        self.cookies_left = COOKIES_PER_TRY;
    }

    /// The peer wants to see a cookie with what begins our handshake. Returns whether that is
    /// heeded.
    fn on_cookie(&mut self, cookie: [u8; COOKIE_LEN]) -> bool {
        if self.begun.is_none() || self.pair.is_some() || self.cookies_left == 0 {
            return false;
        }
        self.cookies_left -= 1;
        self.cookie = Some(cookie);
        self.begin_due = true;
        true
    }

    fn on_answer(&mut self, peer_cookie: u64, message: &[u8]) {
        if self.begun.is_some() && self.pair.is_none() {
            self.ask(Turn::Finish {
                peer_cookie,
                message: message.to_vec(),
            });
        }
    }

    /// Opens a datagram in place.
    fn open<'a>(
        &mut self,
        own_cookie: u64,
        header: &SealedHeader,
        datagram: &'a mut [u8],
    ) -> Result<&'a mut [u8], Refusal> {
        let stamp = Stamp {
            number: header.number,
            phase: header.phase,
        };
        if let Some(pair) = &mut self.pair
            && (self.proved || self.candidates.is_empty())
        {
            let opened = pair.opener.open(datagram, SEALED_HEADER_LEN, stamp)?;
            self.prove();
            return Ok(opened);
        }
        // Several may fit: each is tried on a copy, since opening in vain leaves nothing to try.
        let mut copy = datagram.to_vec();
        let mut refusal = Refusal::Forged;
        if let Some(pair) = &mut self.pair {
            match pair.opener.open(&mut copy, SEALED_HEADER_LEN, stamp) {
                Ok(text) => {
                    let end = SEALED_HEADER_LEN + text.len();
                    datagram[..end].copy_from_slice(&copy[..end]);
                    self.prove();
                    return Ok(&mut datagram[SEALED_HEADER_LEN..end]);
                }
                Err(why) => refusal = why,
            }
        }
        for at in 0..self.candidates.len() {
            copy.copy_from_slice(datagram);
            let opener = &mut self.candidates[at].pair.opener;
            if let Ok(text) = opener.open(&mut copy, SEALED_HEADER_LEN, stamp) {
                let end = SEALED_HEADER_LEN + text.len();
                datagram[..end].copy_from_slice(&copy[..end]);
                self.choose(own_cookie, at);
                return Ok(&mut datagram[SEALED_HEADER_LEN..end]);
            }
        }
        Err(refusal)
    }

    fn prove(&mut self) {
        if !self.proved {
            self.proved = true;
            (self.candidates, self.begun, self.ask) = (Vec::new(), None, None);
            self.begin_due = false;
        }
    }

    /// A datagram was opened by a candidate's keys: they are the connection's, unless those of a
    /// handshake of ours with the same peer count.
    fn choose(&mut self, own_cookie: u64, at: usize) {
        let theirs = self.candidates[at].pair.peer_cookie;
        let ours = self.pair.as_ref().map(|pair| pair.peer_cookie);
        if ours == Some(theirs) && own_cookie < theirs {
            return;
        }
        self.pair = Some(self.candidates.swap_remove(at).pair);
        self.prove();
    }
}

impl Connection {
    /// Takes a datagram of a secured connection's.
    pub(super) fn dispatch_secured(
        &mut self,
        now: Instant,
        datagram: &[u8],
        ulp: &mut impl Ulp,
    ) -> Result<(), DropReason> {
        if self.state == State::Closed {
            return Err(DropReason::Closed);
        }
        if is_handshake(datagram) {
            return self.on_handshake(now, datagram);
        }
        if !is_sealed(datagram) {
            return Err(self.on_plain(datagram));
        }
        let header = SealedHeader::parse(datagram).map_err(DropReason::Malformed)?;
        if header.src_index != 0 {
            return Err(DropReason::Malformed(ParseError::Field));
        }
        if header.dst_qpn != self.config.local_qpn {
            return Err(DropReason::QueuePair);
        }
        let own = self.config.cookie;
        if header.cookie != own {
            return Err(DropReason::Cookie);
        }
        let Some(secure) = &mut self.secure else {
            return Err(DropReason::NotSecured);
        };
        let mut scratch = core::mem::take(&mut secure.scratch);
        scratch.clear();
        scratch.extend_from_slice(datagram);
        let result = match secure.open(own, &header, &mut scratch) {
            Ok(inner) => self.dispatch(now, inner, ulp),
            Err(Refusal::Replayed) => Err(DropReason::Replayed),
            Err(Refusal::Forged) => Err(DropReason::Forged),
        };
        if let Some(secure) = &mut self.secure {
            secure.scratch = scratch;
        }
        result
    }

    /// Something that is not encrypted. The sender of a request is told that it has to be.
    fn on_plain(&mut self, datagram: &[u8]) -> DropReason {
        use causeway_wire::trp::Packet;
        let request = datagram
            .first()
            .is_some_and(|b| b & 0xF == Opcode::Request as u8);
        if request
            && let Ok(Packet::Hello(hello)) = Packet::parse(datagram)
            && (hello.dst_qpn, hello.src_qpn) == (self.config.local_qpn, self.config.remote_qpn)
            && hello.cookie != 0
        {
            self.refusal_due = Some(Owed {
                cookie: hello.cookie,
                why: Why::Plain,
            });
        }
        DropReason::NotSecured
    }

    /// Takes a handshake datagram, of a secured connection or another.
    pub(super) fn on_handshake(&mut self, now: Instant, datagram: &[u8]) -> Result<(), DropReason> {
        let handshake = Handshake::parse(datagram).map_err(DropReason::Malformed)?;
        let config = &self.config;
        if (handshake.dst_qpn, handshake.src_qpn) != (config.local_qpn, config.remote_qpn) {
            return Err(DropReason::QueuePair);
        }
        let own = config.cookie;
        if handshake.step.begins().is_none() && handshake.receiver != own {
            return Err(DropReason::Cookie);
        }
        match (handshake.step, &mut self.secure) {
            (Step::Begin(_) | Step::Proved(..), None) => {
                self.refusal_due = Some(Owed {
                    cookie: handshake.sender,
                    why: Why::NotSecured,
                });
                return Err(DropReason::NotSecured);
            }
            (Step::Answer(_) | Step::Cookie(_), None) => return Err(DropReason::NotSecured),
            // It would begin with itself.
            (Step::Begin(_) | Step::Proved(..), Some(_)) if handshake.sender == own => {
                return Err(DropReason::Cookie);
            }
            (Step::Begin(message) | Step::Proved(_, message), Some(secure)) => {
                let cookies = (own, handshake.sender);
                secure.on_begin(cookies, message, self.refused.is_some());
            }
            (Step::Cookie(cookie), Some(secure)) => {
                if !secure.on_cookie(cookie) {
                    return Err(DropReason::Cookie);
                }
            }
            (Step::Answer(message), Some(secure)) => secure.on_answer(handshake.sender, message),
            (Step::Refuse(why), secure) => {
                let known = match secure {
                    Some(secure) => secure.pair.is_some() || !secure.candidates.is_empty(),
                    None => self.handshake.peer().is_some(),
                };
                if known {
                    return Err(DropReason::NotSecured);
                }
                self.refused.get_or_insert((now, why));
                return Err(DropReason::Refused(why));
            }
        }
        Ok(())
    }

    /// When work fails that waits for a peer which has refused.
    pub(super) fn refusal_at(&self) -> Option<Instant> {
        let (since, _) = self.refused.filter(|_| self.handshake.peer().is_none())?;
        self.waiting_since.and(Some(since + REFUSAL_PATIENCE))
    }

    /// The peer has refused for long enough, and nothing better has come.
    pub(super) fn on_refusal_timeout(&mut self, ulp: &mut impl Ulp) {
        if let Some((_, why)) = self.refused.take()
            && self.is_requesting(ulp)
        {
            ulp.not_secured(why as u8);
            self.lose(ulp);
        }
    }

    /// The next datagram of a secured connection.
    pub(super) fn poll_secured(
        &mut self,
        now: Instant,
        ulp: &mut impl Ulp,
        out: &mut [u8],
    ) -> Option<Transmit> {
        let has_keys = self.secure.as_ref()?.pair.is_some();
        if !has_keys {
            if self.state != State::Open {
                return None;
            }
            if self.wants_hello(now, ulp) {
                self.go_on(now);
            }
        }
        if let Some(t) = self.transmit_handshake(out) {
            return Some(t);
        }
        if !has_keys {
            return None;
        }
        let end = out.len().checked_sub(TAG_LEN)?;
        let inner = out.get_mut(SEALED_HEADER_LEN..end)?;
        let transmit = self.poll_plain(now, ulp, inner)?;
        self.seal(transmit, out)
    }

    /// TRP has something to say, and no keys: the handshake goes on. An answer given a moment ago
    /// is repeated, else ours is begun, or begun again.
    fn go_on(&mut self, now: Instant) {
        let Some(secure) = &mut self.secure else {
            return;
        };
        let waits = secure.answered_at.is_some_and(|at| now < at + ANSWER_WAIT);
        if let Some(last) = secure.candidates.last_mut().filter(|_| waits) {
            last.due = true;
        } else if secure.begun.is_some() {
            secure.repeat();
        } else {
            secure.ask(Turn::Begin);
        }
    }

    fn transmit_handshake(&mut self, out: &mut [u8]) -> Option<Transmit> {
        let config = &self.config;
        let secure = self.secure.as_mut()?;
        let to = |receiver, step| Handshake {
            dst_qpn: config.remote_qpn,
            src_qpn: config.local_qpn,
            receiver,
            sender: config.cookie,
            step,
        };
        let len = if let Some(due) = secure.candidates.iter_mut().find(|c| c.due) {
            due.due = false;
            to(due.pair.peer_cookie, Step::Answer(&due.answer)).emit(out)?
        } else if let Some(begun) = secure.begun.as_ref().filter(|_| secure.begin_due) {
            secure.begin_due = false;
            let step = match secure.cookie {
                None => Step::Begin(begun),
                Some(cookie) => Step::Proved(cookie, begun),
            };
            to(0, step).emit(out)?
        } else {
            return None;
        };
        self.finish(len, false, out)
    }

    /// A refusal that is owed to somebody who began a handshake, or should have.
    pub(super) fn transmit_refusal(&mut self, out: &mut [u8]) -> Option<Transmit> {
        let Owed { cookie, why } = self.refusal_due.take()?;
        let refusal = Handshake {
            dst_qpn: self.config.remote_qpn,
            src_qpn: self.config.local_qpn,
            receiver: cookie,
            sender: 0,
            step: Step::Refuse(why),
        };
        let len = refusal.emit(out)?;
        self.finish(len, false, out)
    }

    /// Seals what was written behind the room for a header.
    pub(super) fn seal(&mut self, transmit: Transmit, out: &mut [u8]) -> Option<Transmit> {
        let len = transmit.len + OVERHEAD;
        let dst_qpn = self.config.remote_qpn;
        let pair = self.secure.as_mut()?.pair.as_mut()?;
        let cookie = pair.peer_cookie;
        let sealed = pair.sealer.seal(
            out.get_mut(..len)?,
            SEALED_HEADER_LEN,
            |head, Stamp { number, phase }| {
                let header = SealedHeader {
                    phase,
                    src_index: 0,
                    dst_qpn,
                    cookie,
                    number,
                };
                if let Some(head) = head.first_chunk_mut() {
                    header.emit(head);
                }
            },
        );
        if !sealed {
            return None;
        }
        self.stats.tx_bytes += OVERHEAD as u64;
        Some(Transmit { len, ..transmit })
    }

    /// Whether a datagram that is not sealed may be one that this connection takes at all.
    pub(super) fn on_unsecured(
        &mut self,
        now: Instant,
        datagram: &[u8],
    ) -> Option<Result<(), DropReason>> {
        if is_handshake(datagram) {
            return Some(self.on_handshake(now, datagram));
        }
        is_sealed(datagram).then_some(Err(DropReason::Malformed(ParseError::Opcode)))
    }
}

#[cfg(test)]
mod tests;
