//! Datagrams that somebody without keys sends to a secured connection.

use causeway_proto::Instant;
use causeway_proto::bytes::Bytes;
use causeway_proto::trp::{Config, Connection, SendConfig};
use causeway_proto::ulp::{Nak, SegMeta, Space, Ulp, Verdict};
use causeway_proto::unit::{Frame, Unit};
use causeway_sim::broker::Broker;
use causeway_wire::secure::{fuzz_secure, is_handshake};

const NOW: Instant = Instant(1);

/// An upper layer that nobody may reach.
struct Nobody;

impl Ulp for Nobody {
    fn has_next(&self, _: Space) -> bool {
        false
    }

    fn next(&mut self, _: Space, _: u64, _: &mut impl Frame) -> Option<SegMeta> {
        None
    }

    fn again(&mut self, _: Space, _: u64, _: &mut impl Frame) -> Option<SegMeta> {
        None
    }

    fn receive(&mut self, _: Space, _: SegMeta, _: &Unit, _: Bytes<'_>, _: bool) -> Verdict {
        panic!("something was placed")
    }

    fn acked(&mut self, _: Space, _: u64) {
        panic!("something was acknowledged")
    }

    fn not_ready(&mut self, _: u64, _: u8, _: Instant) -> Option<Instant> {
        panic!("something was refused")
    }

    fn refused(&mut self, _: u64, _: Nak) {
        panic!("something was refused for good")
    }

    fn other_version(&mut self, _: u8, _: u8) {
        panic!("another version was believed in")
    }

    fn expects_answer(&self) -> bool {
        true
    }

    fn is_failed(&self) -> bool {
        false
    }

    fn lost(&mut self) {
        panic!("the connection was ended")
    }
}

fn side(me: usize) -> Connection {
    let other = 1 - me;
    let config = Config {
        secured: true,
        ..Config::new(me as u32 + 1, other as u32 + 1, me as u64 + 0xA, 50)
    };
    let mut conn = Connection::new(config, NOW);
    conn.start(SendConfig {
        sq_psn: 50,
        timeout: 14,
        retry_cnt: 7,
    });
    conn
}

/// All that a side has to send.
fn poll(conn: &mut Connection) -> Vec<Vec<u8>> {
    let mut out = vec![0; conn.max_datagram()];
    let mut all = Vec::new();
    while let Some(t) = conn.poll_transmit(NOW, &mut Nobody, &mut out) {
        all.push(out[..t.len].to_vec());
    }
    all
}

/// A connected side, and every datagram that it was sent.
fn connected() -> (Connection, Vec<Vec<u8>>) {
    let mut sides = [side(0), side(1)];
    let mut brokers = [Broker::default(), Broker::default()];
    let mut heard = Vec::new();
    for _ in 0..16 {
        for me in 0..2 {
            brokers[me].serve(&mut sides[me], NOW);
            for datagram in poll(&mut sides[me]) {
                let _ = sides[1 - me].on_datagram(NOW, &datagram, &mut Nobody);
                if me == 1 {
                    heard.push(datagram);
                }
            }
        }
    }
    let [one, _] = sides;
    assert!(one.is_confirmed(), "not connected");
    (one, heard)
}

/// Sends `data` as it is, and as changes to what was heard: neither reaches anything.
pub fn run(data: &[u8]) {
    fuzz_secure(data);
    let (mut conn, heard) = connected();
    let mut sent = vec![data.to_vec()];
    if let [which, changes @ ..] = data {
        let mut changed = heard[usize::from(*which) % heard.len()].clone();
        for change in changes.chunks_exact(3) {
            let at = usize::from(u16::from_be_bytes([change[0], change[1]])) % changed.len();
            changed[at] ^= change[2];
        }
        sent.push(changed.clone());
        changed.truncate(changes.len());
        sent.push(changed);
    }
    let before = conn.stats();
    for datagram in sent {
        let taken = conn.on_datagram(NOW, &datagram, &mut Nobody);
        // A handshake may be heard, and has no effect any more.
        assert!(taken.is_err() || is_handshake(&datagram), "{taken:?}");
    }
    assert!(!conn.has_ask() && conn.is_confirmed() && !conn.is_closed());
    assert_eq!(conn.stats().congestion_window, before.congestion_window);
    // At most it is said that plain requests are not welcome.
    assert!(poll(&mut conn).iter().all(|answer| is_handshake(answer)));
}
