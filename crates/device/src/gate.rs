//! Which handshakes of secured connections the broker is asked to answer (docs/WIRE.md, *A secured
//! wire*).
//!
//! Whoever knows the numbers of two connected queue pairs can send what begins a handshake. Each
//! costs a call of the broker, and a Diffie-Hellman if a key of the cluster has made it; and while
//! the broker is asked about one, others for that queue pair are dropped. So where many come, the
//! gate lets those in alone that come from the queue pair's peer and show that its host receives
//! what is sent there: they bear a cookie (WireGuard's whitepaper, section 5.3), for which nothing
//! has to be remembered. One host gets so many in a second.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use causeway_aead::{MacKey, SECRET_LEN};
use causeway_proto::{Duration, Instant};
use causeway_wire::secure::{COOKIE_LEN, Handshake, Step};
use parking_lot::Mutex;

use crate::gid;

/// Handshakes begun in a second from which on cookies are asked for: what costs a broker about a
/// hundredth of its time.
const BEGINS_PER_SECOND: u32 = 64;
/// How long they are, once there were so many.
const LOAD_LASTS: Duration = Duration::from_secs(1);
/// The time over which is counted.
const PERIOD: Duration = Duration::from_secs(1);
/// How many of one host's are let in in that time while cookies are asked for: what costs a broker
/// about a quarter of it.
const BEGINS_PER_HOST: u32 = 1024;
/// How long a secret makes cookies; they are good for as long again.
const SECRET_LASTS: Duration = Duration::from_secs(120);
/// Bytes that a cookie is made of: address, port, the queue pairs' numbers, the sender's name.
const NAMED_LEN: usize = 16 + 2 + 4 + 4 + 8;

/// What is to become of a handshake that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The broker is asked.
    Take,
    /// Nothing.
    Drop,
    /// It is to come again with a cookie: this says so.
    Answer(Handshake<'static>),
}

/// The gate of an endpoint. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// When the period began, what has come in it, and what was let in by host with cookies.
    since: Instant,
    begins: u32,
    hosts: HashMap<IpAddr, u32>,
    loaded_until: Instant,
    secret: Option<Secret>,
    former: Option<Secret>,
}

#[derive(Debug)]
struct Secret {
    key: MacKey,
    made: Instant,
}

impl Secret {
    fn new(now: Instant) -> Option<Secret> {
        let mut bytes = [0; SECRET_LEN];
        getrandom::fill(&mut bytes).ok()?;
        let key = MacKey::new(&bytes);
        Some(Secret { key, made: now })
    }
}

impl Gate {
    /// Judges a datagram that begins a handshake with a queue pair whose peer has the address
    /// `peer`. Where the queue pair is `busy`, and so would not have the broker asked about it, it
    /// takes no part of what its host may have.
    pub fn judge(
        &self,
        now: Instant,
        (from, peer): (SocketAddr, SocketAddr),
        begin: &Handshake<'_>,
        busy: bool,
    ) -> Verdict {
        let mut inner = self.0.lock();
        if !inner.is_loaded(now) {
            return Verdict::Take;
        }
        if !is_of(from, peer) {
            return Verdict::Drop;
        }
        inner.renew_secret(now);
        let named = named(from, begin);
        if let Step::Proved(cookie, _) = begin.step
            && inner.knows(&named, &cookie)
        {
            // It is repeated until it is answered, many times where many wait for the broker.
            if busy {
                return Verdict::Drop;
            }
            return inner.share_of(from.ip().to_canonical());
        }
        let Some(secret) = &inner.secret else {
            return Verdict::Drop;
        };
        Verdict::Answer(Handshake {
            dst_qpn: begin.src_qpn,
            src_qpn: begin.dst_qpn,
            receiver: begin.sender,
            sender: 0,
            step: Step::Cookie(secret.key.code(&named)),
        })
    }
}

impl Inner {
    /// Counts one more. Returns whether there are too many.
    fn is_loaded(&mut self, now: Instant) -> bool {
        if now.since(self.since) >= PERIOD {
            (self.since, self.begins) = (now, 0);
            self.hosts.clear();
        }
        self.begins = self.begins.saturating_add(1);
        if self.begins > BEGINS_PER_SECOND {
            self.loaded_until = now + LOAD_LASTS;
        }
        now < self.loaded_until
    }

    fn renew_secret(&mut self, now: Instant) {
        let is_good = |secret: &Secret, time| now.since(secret.made) < time;
        if !self
            .secret
            .as_ref()
            .is_some_and(|s| is_good(s, SECRET_LASTS))
        {
            self.former = std::mem::replace(&mut self.secret, Secret::new(now));
        }
        self.former.take_if(|s| !is_good(s, 2 * SECRET_LASTS));
    }

    fn knows(&self, named: &[u8], cookie: &[u8; COOKIE_LEN]) -> bool {
        let mut secrets = self.secret.iter().chain(&self.former);
        secrets.any(|secret| secret.key.is_code(named, cookie))
    }

    fn share_of(&mut self, host: IpAddr) -> Verdict {
        let taken = self.hosts.entry(host).or_default();
        *taken = taken.saturating_add(1);
        if *taken > BEGINS_PER_HOST {
            return Verdict::Drop;
        }
        Verdict::Take
    }
}

/// Whether an address is that of a queue pair's peer. A peer on this host may be known by another
/// of its addresses.
fn is_of(from: SocketAddr, peer: SocketAddr) -> bool {
    let (ip, peer_ip) = (from.ip().to_canonical(), peer.ip().to_canonical());
    let near = || gid::is_local(ip) && gid::is_local(peer_ip);
    from.port() == peer.port() && (ip == peer_ip || near())
}

fn named(from: SocketAddr, begin: &Handshake<'_>) -> [u8; NAMED_LEN] {
    let ip = match from.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut named = [0; NAMED_LEN];
    named[..16].copy_from_slice(&Ipv6Addr::octets(&ip));
    named[16..18].copy_from_slice(&from.port().to_be_bytes());
    named[18..22].copy_from_slice(&begin.dst_qpn.to_be_bytes());
    named[22..26].copy_from_slice(&begin.src_qpn.to_be_bytes());
    named[26..].copy_from_slice(&begin.sender.to_be_bytes());
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Instant = Instant(1_000_000_000_000);

    fn at(host: u8) -> SocketAddr {
        SocketAddr::from(([203, 0, 113, host], 20_500))
    }

    fn begin(sender: u64, cookie: Option<[u8; COOKIE_LEN]>) -> Handshake<'static> {
        Handshake {
            dst_qpn: 1,
            src_qpn: 2,
            receiver: 0,
            sender,
            step: match cookie {
                None => Step::Begin(b"message"),
                Some(cookie) => Step::Proved(cookie, b"message"),
            },
        }
    }

    /// A gate to which too many have come.
    fn loaded(now: Instant) -> Gate {
        let gate = Gate::default();
        for name in 1..=BEGINS_PER_SECOND {
            let stranger = begin(u64::from(name), None);
            assert_eq!(
                gate.judge(now, (at(9), at(1)), &stranger, false),
                Verdict::Take
            );
        }
        gate
    }

    fn cookie_for(gate: &Gate, now: Instant, host: u8) -> [u8; COOKIE_LEN] {
        let begin = begin(7, None);
        let verdict = gate.judge(now, (at(host), at(host)), &begin, false);
        let Verdict::Answer(answer) = verdict else {
            panic!("{verdict:?}");
        };
        assert_eq!((answer.dst_qpn, answer.src_qpn), (2, 1));
        assert_eq!((answer.receiver, answer.sender), (7, 0));
        let Step::Cookie(cookie) = answer.step else {
            panic!("{answer:?}");
        };
        cookie
    }

    #[test]
    fn cookies_are_asked_for_while_many_come() {
        let gate = loaded(T0);
        cookie_for(&gate, T0, 1);
        cookie_for(&gate, T0 + LOAD_LASTS / 2, 1);
        let later = T0 + 2 * LOAD_LASTS;
        let taken = gate.judge(later, (at(1), at(1)), &begin(7, None), false);
        assert_eq!(taken, Verdict::Take);
    }

    #[test]
    fn a_cookie_is_good_for_one_address_and_one_connection() {
        let gate = loaded(T0);
        let cookie = cookie_for(&gate, T0, 1);
        let shown =
            |from: SocketAddr, begin: &Handshake<'_>| gate.judge(T0, (from, from), begin, false);
        let good = begin(7, Some(cookie));
        assert_eq!(shown(at(1), &good), Verdict::Take);
        let port = SocketAddr::new(at(1).ip(), 20_501);
        let other = Handshake { src_qpn: 3, ..good };
        let mut changed = cookie;
        changed[COOKIE_LEN - 1] ^= 1;
        for (from, begin) in [
            (at(2), good),
            (port, good),
            (at(1), other),
            (at(1), begin(8, Some(cookie))),
            (at(1), begin(7, Some(changed))),
        ] {
            assert!(matches!(shown(from, &begin), Verdict::Answer(_)));
        }
    }

    #[test]
    fn a_stranger_gets_nothing_while_many_come() {
        let gate = loaded(T0);
        let cookie = cookie_for(&gate, T0, 9);
        for begin in [begin(7, None), begin(7, Some(cookie))] {
            assert_eq!(gate.judge(T0, (at(9), at(1)), &begin, false), Verdict::Drop);
        }
    }

    #[test]
    fn a_cookie_outlives_its_secret_by_as_long_as_that_lasted() {
        let gate = loaded(T0);
        let cookie = cookie_for(&gate, T0, 1);
        let shown_at = |now: Instant| {
            for name in 0..=BEGINS_PER_SECOND {
                gate.judge(now, (at(9), at(1)), &begin(u64::from(name), None), false);
            }
            gate.judge(now, (at(1), at(1)), &begin(7, Some(cookie)), false)
        };
        assert_eq!(shown_at(T0 + SECRET_LASTS), Verdict::Take);
        assert_ne!(cookie_for(&gate, T0 + SECRET_LASTS, 1), cookie, "another");
        let late = shown_at(T0 + 2 * SECRET_LASTS);
        assert!(matches!(late, Verdict::Answer(_)));
    }

    #[test]
    fn what_the_broker_is_not_asked_about_takes_no_share() {
        let gate = loaded(T0);
        let cookie = cookie_for(&gate, T0, 1);
        let shown = |busy| gate.judge(T0, (at(1), at(1)), &begin(7, Some(cookie)), busy);
        for _ in 0..2 * BEGINS_PER_HOST {
            assert_eq!(shown(true), Verdict::Drop);
        }
        assert_eq!(shown(false), Verdict::Take);
    }

    #[test]
    fn one_host_leaves_others_their_share() {
        let gate = loaded(T0);
        let (one, other) = (cookie_for(&gate, T0, 1), cookie_for(&gate, T0, 2));
        let shown =
            |host, cookie| gate.judge(T0, (at(host), at(host)), &begin(7, Some(cookie)), false);
        for _ in 0..BEGINS_PER_HOST {
            assert_eq!(shown(1, one), Verdict::Take);
        }
        assert_eq!(shown(1, one), Verdict::Drop);
        assert_eq!(shown(2, other), Verdict::Take);
    }
}
