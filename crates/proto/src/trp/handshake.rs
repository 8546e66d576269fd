//! Exchange of cookies, sizes and features.
//!
//! Either side may begin, or both: a request tells the peer our cookie, an accept echoes the
//! peer's and tells ours. A side may send data as soon as it knows the peer's cookie. Until a
//! datagram with *our* cookie arrives the peer is a claim that a later request may replace.

use causeway_wire::trp::{FEATURE_CRC, Hello};

use super::config::{Config, MIN_DATAGRAM, REQUEST_FIRST, REQUEST_LAST};
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
    /// It does not echo our cookie, or comes from another incarnation of a confirmed peer.
    Cookie,
    /// Its first PSN is not the one we expect.
    Psn,
    /// A field makes no sense.
    Malformed,
}

/// State of the exchange.
#[derive(Debug, Default)]
pub struct Handshake {
    peer: Option<Peer>,
    /// A datagram with our cookie has come: the peer is who it says.
    confirmed: bool,
    /// The peer wants CRCs.
    peer_crc: bool,
    /// An accept is to be sent.
    pub accept_due: bool,
    /// A request is to be sent.
    pub request_due: bool,
    /// When to repeat the request.
    pub retry_at: Option<Instant>,
    /// Requests sent.
    pub tries: u32,
    /// When the request answered by an accept was sent, if only one was.
    first_sent: Option<Instant>,
}

impl Handshake {
    /// The peer, once known.
    #[must_use]
    pub fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    /// Whether the peer has proved that it received our cookie.
    #[must_use]
    pub fn confirmed(&self) -> bool {
        self.confirmed
    }

    /// A datagram with our cookie has come from the peer.
    pub fn confirm(&mut self) {
        self.confirmed = true;
    }

    /// Whether CRCs are in use.
    #[must_use]
    pub fn crc(&self, config: &Config) -> bool {
        config.crc || self.peer_crc
    }

    /// Takes a request or an accept. Returns whether the peer became known or changed.
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
        let same = self.peer.is_some_and(|p| p.cookie == hello.cookie);
        if hello.accept && hello.echo != config.cookie || self.confirmed && !same {
            return Err(Refusal::Cookie);
        }
        if hello.accept {
            self.confirmed = true;
        } else {
            self.accept_due = true;
        }
        self.peer_crc = hello.features & FEATURE_CRC != 0;
        self.peer = Some(Peer {
            cookie: hello.cookie,
            max_datagram: usize::from(hello.max_datagram),
            window: hello.window,
            host_id: hello.host_id,
            nonce: hello.nonce,
        });
        self.request_due = false;
        self.retry_at = None;
        Ok(!same)
    }

    /// When the only request sent so far left: its answer measures the round trip.
    pub fn sample(&mut self) -> Option<Instant> {
        self.first_sent.take().filter(|_| self.tries == 1)
    }

    /// The next handshake datagram to send, if one is due. `psn`: our first request PSN, once
    /// ready to send.
    pub fn transmit(&mut self, now: Instant, config: &Config, psn: Option<u32>) -> Option<Hello> {
        let accept = self.accept_due;
        if !accept && !self.request_due {
            return None;
        }
        let echo = if accept {
            self.peer.map_or(0, |p| p.cookie)
        } else {
            0
        };
        if accept {
            self.accept_due = false;
        } else {
            self.request_due = false;
            self.first_sent.get_or_insert(now);
            self.retry_at = Some(now + request_interval(self.tries));
            self.tries += 1;
        }
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
            features: if config.crc { FEATURE_CRC } else { 0 },
            host_id: config.host_id,
            nonce: config.nonce,
        })
    }
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
        assert_eq!(b.receive(&cb, &request), Ok(true));
        assert!(!b.confirmed());
        let accept = b.transmit(T0, &cb, None).unwrap();
        assert_eq!(a.receive(&ca, &accept), Ok(true));
        assert!(a.confirmed() && a.crc(&ca) && b.crc(&cb));
        assert_eq!(
            (a.peer().unwrap().cookie, b.peer().unwrap().cookie),
            (0xB, 0xA)
        );
        // A repeated request is answered again and changes nothing.
        assert_eq!(b.receive(&cb, &request), Ok(false));
        assert!(b.transmit(T0, &cb, None).is_some());
    }

    #[test]
    fn impostors_and_strangers_are_refused() {
        let ((mut a, ca), (mut b, cb)) = pair();
        a.request_due = true;
        let request = a.transmit(T0, &ca, Some(50)).unwrap();
        let wrong = Hello { psn: 51, ..request };
        assert_eq!(b.receive(&cb, &wrong), Err(Refusal::Psn));
        let wrong = Hello {
            src_qpn: 9,
            ..request
        };
        assert_eq!(b.receive(&cb, &wrong), Err(Refusal::Cookie));
        let wrong = Hello {
            window: 0,
            ..request
        };
        assert_eq!(b.receive(&cb, &wrong), Err(Refusal::Malformed));
        // Before confirmation a claim may be replaced, after it not.
        assert_eq!(
            b.receive(
                &cb,
                &Hello {
                    cookie: 0xE,
                    ..request
                }
            ),
            Ok(true)
        );
        assert_eq!(b.receive(&cb, &request), Ok(true));
        b.confirm();
        assert_eq!(
            b.receive(
                &cb,
                &Hello {
                    cookie: 0xE,
                    ..request
                }
            ),
            Err(Refusal::Cookie)
        );
        let accept = b.transmit(T0, &cb, None).unwrap();
        assert_eq!(
            a.receive(
                &ca,
                &Hello {
                    echo: 0xF,
                    ..accept
                }
            ),
            Err(Refusal::Cookie)
        );
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
