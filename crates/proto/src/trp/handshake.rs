//! Exchange of cookies, sizes and features.
//!
//! Either side may begin, or both. A request tells the peer our cookie, and echoes the peer's where
//! one has been claimed; an accept always does. A sender that echoes our cookie is the peer: its
//! cookie is known from then on, and data may be sent. A cookie that came without ours is a claim.
//! It is echoed, so that its maker can prove to be the peer; several claims stand side by side, and
//! the first that is proved wins.
//!
//! The exchange measures the round trip, also where both sides have begun. What makes the peer
//! known tells which of our datagrams it answers: an accept answers an echo, a request that echoes
//! us answers one that was sent before we had heard of the peer. Of several such nobody knows which
//! (Karn's rule), so they measure nothing.

use causeway_wire::trp::{FEATURE_CRC, FEATURE_ECN, Hello};

use super::config::{Config, MAX_CLAIMS, MIN_DATAGRAM, REQUEST_FIRST, REQUEST_LAST};
use crate::time::{Duration, Instant};

/// What the peer said of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its cookie, which all our datagrams bear.
    pub cookie: u64,
    /// Largest datagram it takes.
    pub max_datagram: usize,
    /// Segments it takes out of order.
    pub window: u16,
    /// Identity of its host's broker, or zeros.
    pub host_id: [u8; 16],
    /// Its nonce for the introduction to shared memory, or zeros.
    pub nonce: [u8; 16],
}

/// Why a handshake datagram is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It does not echo our cookie, or comes from another incarnation of a known peer.
    Cookie,
    /// Its first PSN is not the one we expect.
    Psn,
    /// A field makes no sense.
    Malformed,
}

/// A cookie that somebody says is the peer's.
#[derive(Clone, Copy, Debug)]
struct Claim {
    cookie: u64,
    /// It is to be echoed.
    due: bool,
    /// What has echoed it.
    echoes: Sent,
}

/// Datagrams of one kind that were sent.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    count: u32,
    first: Option<Instant>,
}

impl Sent {
    fn note(&mut self, now: Instant) {
        self.count = self.count.saturating_add(1);
        self.first.get_or_insert(now);
    }

    /// When the only one left, which what answers one of them measures from.
    fn only(self) -> Option<Instant> {
        self.first.filter(|_| self.count == 1)
    }
}

/// State of the exchange.
#[derive(Debug, Default)]
pub struct Handshake {
    peer: Option<Peer>,
    /// Before the peer is known: what was claimed, the latest last.
    claims: Vec<Claim>,
    /// The peer wants CRCs.
    peer_crc: bool,
    /// It heeds marks.
    peer_ecn: bool,
    /// The request of the known peer is to be answered by an accept.
    accept_due: bool,
    /// A request is to be sent.
    pub request_due: bool,
    /// When to repeat the request.
    pub retry_at: Option<Instant>,
    /// Requests sent since work waits for the peer.
    pub tries: u32,
    /// Requests sent that echoed nobody.
    blind: Sent,
    /// When the datagram left whose answer has made the peer known.
    answered: Option<Instant>,
}

impl Handshake {
    /// The peer, once known.
    #[must_use]
    pub fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    /// Whether the peer is known, and nothing is to be said to it.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.peer.is_some() && !self.request_due && !self.accept_due
    }

    /// Whether CRCs are in use.
    #[must_use]
    pub fn crc(&self, config: &Config) -> bool {
        config.crc || self.peer_crc
    }

    /// Whether marks of a congested path are heeded.
    #[must_use]
    pub fn ecn(&self, config: &Config) -> bool {
        config.ecn && self.peer_ecn
    }

    /// Takes a request or an accept. Returns whether it made the peer known.
    pub fn receive(&mut self, config: &Config, hello: &Hello) -> Result<bool, Refusal> {
        if hello.dst_qpn != config.local_qpn || hello.src_qpn != config.remote_qpn {
            return Err(Refusal::Cookie);
        }
        if usize::from(hello.max_datagram) < MIN_DATAGRAM || hello.window == 0 || hello.cookie == 0
        {
            return Err(Refusal::Malformed);
        }
        if hello.sends && hello.psn != config.rq_psn {
            return Err(Refusal::Psn);
        }
        let echoes = hello.echo == config.cookie;
        if hello.accept && !echoes || self.peer.is_some_and(|p| p.cookie != hello.cookie) {
            return Err(Refusal::Cookie);
        }
        if self.peer.is_none() && !echoes {
            self.claim(hello.cookie);
            return Ok(false);
        }
        self.accept_due |= !hello.accept;
        if self.peer.is_some() {
            return Ok(false);
        }
        self.answered = if hello.accept {
            let claim = self.claims.iter().find(|c| c.cookie == hello.cookie);
            claim.and_then(|claim| claim.echoes.only())
        } else {
            self.blind.only()
        };
        self.peer_crc = hello.features & FEATURE_CRC != 0;
        self.peer_ecn = hello.features & FEATURE_ECN != 0;
        self.peer = Some(Peer {
            cookie: hello.cookie,
            max_datagram: usize::from(hello.max_datagram),
            window: hello.window,
            host_id: hello.host_id,
            nonce: hello.nonce,
        });
        self.request_due = false;
        self.retry_at = None;
        self.claims = Vec::new();
        Ok(true)
    }

    /// Somebody claims to be the peer. Of too many claims the oldest goes: the true peer repeats
    /// its own.
    fn claim(&mut self, cookie: u64) {
        if let Some(claim) = self.claims.iter_mut().find(|c| c.cookie == cookie) {
            claim.due = true;
            return;
        }
        if self.claims.len() >= MAX_CLAIMS {
            self.claims.remove(0);
        }
        self.claims.push(Claim {
            cookie,
            due: true,
            echoes: Sent::default(),
        });
    }

    /// None of the requests so far has left: nothing is measured from them.
    pub fn unsent(&mut self) {
        self.blind = Sent::default();
    }

    /// When the datagram left whose answer has made the peer known, if that is certain: so long ago
    /// is the round trip.
    pub fn sample(&self) -> Option<Instant> {
        self.answered
    }

    /// The next handshake datagram to send, if one is due. `psn`: our first request PSN, once
    /// ready to send.
    pub fn transmit(&mut self, now: Instant, config: &Config, psn: Option<u32>) -> Option<Hello> {
        let requested = core::mem::take(&mut self.request_due);
        if requested {
            self.retry_at = Some(now + request_interval(self.tries));
            self.tries += 1;
            for claim in &mut self.claims {
                claim.due = true;
            }
        }
        let accept = self.peer.is_some() && core::mem::take(&mut self.accept_due);
        let due = self.claims.iter_mut().find(|c| c.due);
        let echo = match (self.peer, due) {
            (Some(peer), _) if accept || requested => peer.cookie,
            (None, Some(claim)) => {
                claim.due = false;
                claim.echoes.note(now);
                claim.cookie
            }
            (None, None) if requested => {
                self.blind.note(now);
                0
            }
            _ => return None,
        };
        Some(Hello {
            accept,
            dst_qpn: config.remote_qpn,
            src_qpn: config.local_qpn,
            echo,
            cookie: config.cookie,
            psn: psn.unwrap_or(0),
            expect: config.rq_psn,
            sends: psn.is_some(),
            max_datagram: u16::try_from(config.max_datagram).unwrap_or(u16::MAX),
            window: config.window,
            features: features(config),
            host_id: config.host_id,
            nonce: config.nonce,
        })
    }
}

/// The features that a side has.
fn features(config: &Config) -> u32 {
    let crc = if config.crc { FEATURE_CRC } else { 0 };
    crc | if config.ecn { FEATURE_ECN } else { 0 }
}

/// Interval after request number `tries`, from 0.
pub fn request_interval(tries: u32) -> Duration {
    REQUEST_FIRST
        .saturating_mul(1 << tries.min(16))
        .min(REQUEST_LAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Instant = Instant(0);

    fn pair() -> ((Handshake, Config), (Handshake, Config)) {
        let a = Config {
            crc: true,
            ..Config::new(1, 2, 0xA, 70)
        };
        let b = Config::new(2, 1, 0xB, 50);
        ((Handshake::default(), a), (Handshake::default(), b))
    }

    #[test]
    fn one_side_starts() {
        let ((mut a, ca), (mut b, cb)) = pair();
        a.request_due = true;
        let request = a.transmit(T0, &ca, Some(50)).unwrap();
        assert_eq!(b.receive(&cb, &request), Ok(false));
        assert!(b.peer().is_none(), "only a claim");
        let answer = b.transmit(T0, &cb, None).unwrap();
        assert!(!answer.accept);
        assert_eq!(a.receive(&ca, &answer), Ok(true));
        assert_eq!(a.sample(), Some(T0));
        let accept = a.transmit(T0, &ca, Some(50)).unwrap();
        assert!(accept.accept);
        assert_eq!(b.receive(&cb, &accept), Ok(true));
        assert!(a.crc(&ca) && b.crc(&cb));
        assert_eq!(
            (a.peer().unwrap().cookie, b.peer().unwrap().cookie),
            (0xB, 0xA)
        );
        assert!(a.transmit(T0, &ca, None).is_none() && b.transmit(T0, &cb, None).is_none());
        // A repeated request is answered again and changes nothing.
        assert_eq!(b.receive(&cb, &request), Ok(false));
        assert!(b.transmit(T0, &cb, None).unwrap().accept);
    }

    #[test]
    fn both_sides_start() {
        let ((mut a, ca), (mut b, cb)) = pair();
        (a.request_due, b.request_due) = (true, true);
        let from_a = a.transmit(T0, &ca, Some(50)).unwrap();
        let from_b = b.transmit(T0, &cb, Some(70)).unwrap();
        let mut sent = 2;
        let mut queue = vec![(true, from_a), (false, from_b)];
        while let Some((to_b, hello)) = queue.pop() {
            let ((to, ct), psn) = if to_b {
                ((&mut b, &cb), 70)
            } else {
                ((&mut a, &ca), 50)
            };
            assert!(to.receive(ct, &hello).is_ok());
            if let Some(answer) = to.transmit(T0, ct, Some(psn)) {
                queue.push((!to_b, answer));
                sent += 1;
            }
        }
        assert!(a.peer().is_some() && b.peer().is_some());
        assert!(sent <= 6, "{sent} datagrams");
    }

    const T1: Instant = Instant(1000);
    const T2: Instant = Instant(2000);

    #[test]
    fn both_sides_that_start_measure_the_round_trip() {
        let ((mut a, ca), (mut b, cb)) = pair();
        (a.request_due, b.request_due) = (true, true);
        let from_a = a.transmit(T0, &ca, Some(50)).unwrap();
        let from_b = b.transmit(T0, &cb, Some(70)).unwrap();
        assert_eq!(a.receive(&ca, &from_b), Ok(false));
        assert_eq!(b.receive(&cb, &from_a), Ok(false));
        let (from_a, from_b) = (
            a.transmit(T1, &ca, Some(50)).unwrap(),
            b.transmit(T1, &cb, Some(70)).unwrap(),
        );
        // Each has sent two by now; what arrives answers the first.
        assert_eq!(a.receive(&ca, &from_b), Ok(true));
        assert_eq!(b.receive(&cb, &from_a), Ok(true));
        assert_eq!((a.sample(), b.sample()), (Some(T0), Some(T0)));
    }

    #[test]
    fn an_accept_measures_from_the_echo() {
        let ((mut a, ca), (mut b, cb)) = pair();
        (a.request_due, b.request_due) = (true, true);
        let from_a = a.transmit(T0, &ca, Some(50)).unwrap();
        // The first of the other side is lost.
        b.transmit(T0, &cb, Some(70)).unwrap();
        assert_eq!(b.receive(&cb, &from_a), Ok(false));
        let from_b = b.transmit(T1, &cb, Some(70)).unwrap();
        assert_eq!(a.receive(&ca, &from_b), Ok(true));
        assert_eq!(a.sample(), Some(T0));
        let accept = a.transmit(T1, &ca, Some(50)).unwrap();
        assert_eq!(b.receive(&cb, &accept), Ok(true));
        assert_eq!(b.sample(), Some(T1));
    }

    #[test]
    fn what_was_sent_twice_measures_nothing() {
        // Requests.
        let ((mut a, ca), (mut b, cb)) = pair();
        for now in [T0, T1] {
            a.request_due = true;
            let from_a = a.transmit(now, &ca, Some(50)).unwrap();
            assert_eq!(b.receive(&cb, &from_a), Ok(false));
        }
        let from_b = b.transmit(T1, &cb, None).unwrap();
        assert_eq!(a.receive(&ca, &from_b), Ok(true));
        assert_eq!(a.sample(), None);
        // Echoes.
        b.request_due = true;
        b.transmit(T2, &cb, None).unwrap();
        let accept = a.transmit(T2, &ca, Some(50)).unwrap();
        assert_eq!(b.receive(&cb, &accept), Ok(true));
        assert_eq!(b.sample(), None);
    }

    #[test]
    fn echoes_of_forged_claims_do_not_spoil_the_measurement() {
        let ((mut a, ca), (mut b, cb)) = pair();
        a.request_due = true;
        let request = a.transmit(T0, &ca, Some(50)).unwrap();
        let forged = Hello {
            cookie: 0xE,
            ..request
        };
        assert_eq!(b.receive(&cb, &forged), Ok(false));
        b.transmit(T0, &cb, None).unwrap();
        assert_eq!(b.receive(&cb, &request), Ok(false));
        let answer = b.transmit(T1, &cb, None).unwrap();
        assert_eq!(a.receive(&ca, &answer), Ok(true));
        let accept = a.transmit(T1, &ca, Some(50)).unwrap();
        assert_eq!(b.receive(&cb, &accept), Ok(true));
        assert_eq!(b.sample(), Some(T1));
    }

    #[test]
    fn impostors_and_strangers_are_refused() {
        let ((mut a, ca), (mut b, cb)) = pair();
        a.request_due = true;
        let request = a.transmit(T0, &ca, Some(50)).unwrap();
        let refused = |b: &mut Handshake, wrong: Hello| b.receive(&cb, &wrong).unwrap_err();
        let wrong = Hello { psn: 51, ..request };
        assert_eq!(refused(&mut b, wrong), Refusal::Psn);
        let wrong = Hello {
            src_qpn: 9,
            ..request
        };
        assert_eq!(refused(&mut b, wrong), Refusal::Cookie);
        let wrong = Hello {
            window: 0,
            ..request
        };
        assert_eq!(refused(&mut b, wrong), Refusal::Malformed);
        // A forged claim is answered, which is of no use to an attacker that cannot read the
        // answer, and does not stand in the way of the true one.
        let forged = Hello {
            cookie: 0xE,
            ..request
        };
        assert_eq!(b.receive(&cb, &forged), Ok(false));
        assert_eq!(b.transmit(T0, &cb, None).unwrap().echo, 0xE);
        assert_eq!(b.receive(&cb, &request), Ok(false));
        let answer = b.transmit(T0, &cb, None).unwrap();
        assert_eq!(b.receive(&cb, &forged), Ok(false));
        assert_eq!(a.receive(&ca, &answer), Ok(true));
        let accept = a.transmit(T0, &ca, Some(50)).unwrap();
        let wrong = Hello {
            echo: 0xF,
            ..accept
        };
        assert_eq!(refused(&mut b, wrong), Refusal::Cookie);
        assert_eq!(b.receive(&cb, &accept), Ok(true));
        assert_eq!(refused(&mut b, forged), Refusal::Cookie);
    }

    #[test]
    fn a_claim_does_not_displace_another() {
        let ((mut a, ca), (mut b, cb)) = pair();
        a.request_due = true;
        let request = a.transmit(T0, &ca, Some(50)).unwrap();
        let forged = |n: u64| Hello {
            cookie: 0xE00 + n,
            ..request
        };
        assert_eq!(b.receive(&cb, &request), Ok(false));
        for n in 1..MAX_CLAIMS as u64 {
            assert_eq!(b.receive(&cb, &forged(n)), Ok(false));
        }
        let mut echoes = Vec::new();
        let mut answer = None;
        while let Some(hello) = b.transmit(T0, &cb, None) {
            echoes.push(hello.echo);
            answer = answer.or(Some(hello).filter(|h| h.echo == ca.cookie));
        }
        assert_eq!(echoes.len(), MAX_CLAIMS, "{echoes:x?}");
        assert_eq!(a.receive(&ca, &answer.expect("an answer")), Ok(true));
        // Each is repeated, and no more than so many are kept.
        for n in 0..100 {
            assert_eq!(b.receive(&cb, &forged(n)), Ok(false));
        }
        b.request_due = true;
        let again = core::iter::from_fn(|| b.transmit(T0, &cb, None)).count();
        assert_eq!(again, MAX_CLAIMS);
        // The proof wins, and claims are worth nothing any more.
        let accept = a.transmit(T0, &ca, Some(50)).unwrap();
        assert_eq!(b.receive(&cb, &accept), Ok(true));
        assert_eq!(b.peer().unwrap().cookie, ca.cookie);
        assert_eq!(b.receive(&cb, &forged(1)), Err(Refusal::Cookie));
        assert!(b.transmit(T0, &cb, None).is_none());
    }

    #[test]
    fn requests_slow_down() {
        let (mut a, ca) = pair().0;
        let mut last = Duration::ZERO;
        for _ in 0..12 {
            a.request_due = true;
            a.transmit(T0, &ca, Some(1)).unwrap();
            let wait = a.retry_at.unwrap().since(T0);
            assert!(wait >= last && wait <= REQUEST_LAST);
            last = wait;
        }
        assert_eq!(last, REQUEST_LAST);
        assert_eq!(a.sample(), None, "which of them was answered?");
    }
}
