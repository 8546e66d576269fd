//! Secured connections whose brokers are made up.

use causeway_aead::{SECRET_LEN, Secret};
use causeway_wire::trp::{Body, Common, Packet, Reason, seal};

use super::super::tests::Naive;
use super::super::{Config, SendConfig, crc};
use super::*;
use crate::time::Duration;
use crate::ulp::Space;

const T0: Instant = Instant(0);
const COOKIES: [u64; 2] = [0xA, 0xB];

struct Side {
    conn: Connection,
    upper: Naive,
    /// Everything that it sent.
    sent: Vec<Vec<u8>>,
}

fn keys(first: bool) -> Keys {
    let secrets = [Secret([1; SECRET_LEN]), Secret([2; SECRET_LEN])];
    let [send, receive] = if first {
        secrets
    } else {
        let [a, b] = secrets;
        [b, a]
    };
    Keys {
        cipher: Cipher::ChaCha20Poly1305,
        send,
        receive,
    }
}

impl Side {
    fn new(me: usize, secured: bool) -> Side {
        let other = 1 - me;
        let config = Config {
            secured,
            ..Config::new(me as u32 + 1, other as u32 + 1, COOKIES[me], 50)
        };
        let mut conn = Connection::new(config, T0);
        conn.start(SendConfig {
            sq_psn: 50,
            timeout: 14,
            retry_cnt: 7,
        });
        let mut upper = Naive::default();
        upper.left[0] = 3;
        Side {
            conn,
            upper,
            sent: Vec::new(),
        }
    }

    /// What it sends at a time.
    fn poll(&mut self, now: Instant) -> Vec<Vec<u8>> {
        self.conn.on_timeout(now, &mut self.upper);
        let mut out = vec![0; self.conn.max_datagram()];
        let mut all = Vec::new();
        while let Some(t) = self.conn.poll_transmit(now, &mut self.upper, &mut out) {
            all.push(out[..t.len].to_vec());
        }
        self.sent.extend(all.iter().cloned());
        all
    }

    fn take(&mut self, now: Instant, datagram: &[u8]) -> Result<(), DropReason> {
        self.conn.on_datagram(now, datagram, &mut self.upper)
    }

    /// Answers what it asks, as a broker would whose messages are as simple as can be.
    fn serve(&mut self, now: Instant) {
        while let Some(ask) = self.conn.take_ask() {
            match ask {
                Turn::Begin => self.conn.begun(b"begin".to_vec()),
                Turn::Answer {
                    peer_cookie,
                    message,
                } => {
                    let answer = (message, b"answer".to_vec());
                    self.conn.answered(now, peer_cookie, answer, keys(false));
                }
                Turn::Finish { peer_cookie, .. } => self.conn.finished(peer_cookie, keys(true)),
            }
        }
    }
}

/// Lets both talk until neither has anything to say.
fn talk(sides: &mut [Side; 2], now: Instant) {
    loop {
        let mut quiet = true;
        for me in 0..2 {
            sides[me].serve(now);
            for datagram in sides[me].poll(now) {
                quiet = false;
                let _ = sides[1 - me].take(now, &datagram);
            }
        }
        if quiet && !sides.iter().any(|side| side.conn.has_ask()) {
            return;
        }
    }
}

fn connected() -> [Side; 2] {
    let mut sides = [Side::new(0, true), Side::new(1, true)];
    talk(&mut sides, T0);
    assert!(sides.iter().all(|side| side.conn.is_confirmed()));
    sides
}

#[test]
fn nothing_leaves_in_the_clear() {
    let sides = connected();
    for side in &sides {
        assert!(side.sent.iter().all(|d| is_sealed(d) || is_handshake(d)));
        assert!(side.sent.iter().filter(|d| is_sealed(d)).count() > 1);
        assert_eq!(side.upper.left, [0, 0], "work is done");
        assert_eq!(side.conn.last_acks(), None, "nobody else may speak for it");
    }
}

/// A request that was due before there were keys has not left, and does not spoil it.
#[test]
fn requests_measure_the_round_trip_on_both_sides() {
    let sides = connected();
    let samples = sides.each_ref().map(|side| side.conn.handshake.sample());
    assert_eq!(samples, [Some(T0); 2]);
}

#[test]
fn nothing_in_the_clear_is_taken() {
    let mut sides = connected();
    let [side, _] = &mut sides;
    let common = Common {
        dst_qpn: 1,
        src_qpn: 2,
        cookie: COOKIES[0],
        crc: true,
        ..Common::default()
    };
    for body in [
        Body::Ack,
        Body::Shutdown(Reason::Unknown),
        Body::Reject(Reason::Failed),
    ] {
        let mut out = [0; 64];
        let len = Packet::Segment(common, body).emit(&mut out).unwrap();
        seal(&mut out[..len], crc);
        assert_eq!(side.take(T0, &out[..len]), Err(DropReason::NotSecured));
    }
    assert!(!side.conn.is_closed() && side.upper.lost == 0);
}

#[test]
fn copies_and_changes_are_dropped() {
    let mut sides = connected();
    sides[0].upper.left[Space::Request as usize] = 1;
    let now = T0 + Duration::from_millis(1);
    let sent = sides[0].poll(now);
    let data = sent.iter().find(|d| is_sealed(d)).expect("data").clone();
    for bit in 0..data.len() * 8 {
        let mut changed = data.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(sides[1].take(now, &changed).is_err(), "bit {bit}");
    }
    for len in 0..data.len() {
        assert!(sides[1].take(now, &data[..len]).is_err());
    }
    assert_eq!(sides[1].take(now, &data), Ok(()));
    assert_eq!(sides[1].take(now, &data), Err(DropReason::Replayed));
    // A proved connection hears of no other handshake.
    for datagram in sides[0].sent.clone() {
        let _ = sides[1].take(now, &datagram);
        assert!(!sides[1].conn.has_ask());
    }
}

#[test]
fn a_secured_side_and_another_tell_each_other_and_fail_soon() {
    let mut sides = [Side::new(0, true), Side::new(1, false)];
    talk(&mut sides, T0);
    assert!(sides.iter().all(|side| !side.conn.is_confirmed()));
    assert!(sides.iter().all(|side| side.upper.lost == 0), "not at once");
    let late = T0 + REFUSAL_PATIENCE + Duration::from_millis(1);
    for side in &mut sides {
        side.poll(late);
        assert_eq!(side.upper.lost, 1);
    }
    assert!(!sides[0].sent.iter().any(|d| !is_handshake(d)));
}

#[test]
fn a_refusal_by_anybody_is_overtaken_by_the_peers_answer() {
    let mut sides = [Side::new(0, true), Side::new(1, true)];
    sides[0].serve(T0);
    sides[0].poll(T0);
    sides[0].serve(T0);
    let refusal = |receiver| {
        let mut out = [0; 64];
        let refusal = Handshake {
            dst_qpn: 1,
            src_qpn: 2,
            receiver,
            sender: 0,
            step: Step::Refuse(Why::Key),
        };
        let len = refusal.emit(&mut out).unwrap();
        out[..len].to_vec()
    };
    let blind = sides[0].take(T0, &refusal(0xC));
    assert_eq!(blind, Err(DropReason::Cookie));
    let forged = sides[0].take(T0, &refusal(COOKIES[0]));
    assert_eq!(forged, Err(DropReason::Refused(Why::Key)));
    talk(&mut sides, T0 + Duration::from_millis(300));
    assert!(sides.iter().all(|side| side.conn.is_confirmed()));
    sides[0].poll(T0 + 2 * REFUSAL_PATIENCE);
    assert_eq!(sides[0].upper.lost, 0);
}

#[test]
fn an_answer_that_was_lost_is_repeated() {
    let mut sides = [Side::new(0, true), Side::new(1, true)];
    // The second side answers, and that is lost, as is what it begins itself.
    sides[0].poll(T0);
    sides[0].serve(T0);
    for datagram in sides[0].poll(T0) {
        let _ = sides[1].take(T0, &datagram);
    }
    sides[1].serve(T0);
    assert!(sides[1].poll(T0).iter().all(|d| is_handshake(d)));
    for millis in 1..400 {
        talk(&mut sides, T0 + Duration::from_millis(millis));
    }
    assert!(sides.iter().all(|side| side.conn.is_confirmed()));
}

/// A datagram by which the peer of the first side asks for a cookie.
fn cookie(byte: u8) -> Vec<u8> {
    let mut out = [0; 64];
    let handshake = Handshake {
        dst_qpn: 1,
        src_qpn: 2,
        receiver: COOKIES[0],
        sender: 0,
        step: Step::Cookie([byte; COOKIE_LEN]),
    };
    let len = handshake.emit(&mut out).unwrap();
    out[..len].to_vec()
}

#[test]
fn a_handshake_comes_again_with_the_cookie_that_is_asked_for() {
    let mut sides = [Side::new(0, true), Side::new(1, true)];
    assert_eq!(sides[0].take(T0, &cookie(1)), Err(DropReason::Cookie));
    sides[0].poll(T0);
    sides[0].serve(T0);
    let begun = sides[0].poll(T0);
    let parsed = Handshake::parse(&begun[0]).unwrap();
    assert_eq!(parsed.step, Step::Begin(b"begin"));
    // One that is for somebody else, and then the true one.
    let mut other = cookie(1);
    other[15] ^= 1;
    assert_eq!(sides[0].take(T0, &other), Err(DropReason::Cookie));
    assert_eq!(sides[0].take(T0, &cookie(1)), Ok(()));
    let again = sides[0].poll(T0);
    let parsed = Handshake::parse(&again[0]).unwrap();
    assert_eq!(parsed.step, Step::Proved([1; COOKIE_LEN], b"begin"));
    assert!(sides[1].conn.asks_broker(&again[0]).is_some());
    assert!(sides[0].conn.asks_broker(&again[0]).is_none(), "its own");
    assert!(!sides[1].conn.is_asking());
    sides[1].take(T0, &again[0]).unwrap();
    assert!(sides[1].conn.is_asking(), "to be asked");
    let ask = sides[1].conn.take_ask().unwrap();
    assert!(sides[1].conn.is_asking(), "asked");
    sides[1].conn.ask_failed(&ask, None);
    assert!(!sides[1].conn.is_asking());
    sides[1].take(T0, &again[0]).unwrap();
    talk(&mut sides, T0);
    assert!(sides.iter().all(|side| side.conn.is_confirmed()));
    assert!(sides[1].conn.asks_broker(&again[0]).is_none(), "too late");
    assert_eq!(sides[0].take(T0, &cookie(1)), Err(DropReason::Cookie));
}

#[test]
fn forged_cookies_draw_few_datagrams() {
    let mut sides = [Side::new(0, true), Side::new(1, true)];
    sides[0].poll(T0);
    sides[0].serve(T0);
    sides[0].poll(T0);
    let mut drawn = 0;
    for byte in 0..100 {
        let _ = sides[0].take(T0, &cookie(byte));
        drawn += sides[0].poll(T0).len();
    }
    assert_eq!(drawn, usize::from(COOKIES_PER_TRY));
    // The next attempt heeds others.
    let later = T0 + Duration::from_millis(500);
    sides[0].poll(later);
    assert_eq!(sides[0].take(later, &cookie(7)), Ok(()));
}
