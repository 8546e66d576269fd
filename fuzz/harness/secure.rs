//! Datagrams that somebody without keys sends to a secured connection, and to a UD queue pair with
//! an association.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use causeway_proto::Instant;
use causeway_proto::association::{Associations, Outcome, Peer};
use causeway_proto::trp::{Config, Connection, SendConfig, Turn};
use causeway_sim::broker::{Broker, fixed_keys};
use causeway_wire::secure::{Handshake, OVERHEAD, SEALED_HEADER_LEN, fuzz_secure, is_handshake};

use crate::nobody::Nobody;
use crate::variants::variants;

const NOW: Instant = Instant(1);

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

/// Two UD queue pairs, of the slots 1 and 2, and the ports that those have.
const UD_QPNS: [u32; 2] = [0x1001, 0x2001];
const UD_PORTS: [u16; 2] = [20_481, 20_482];

fn ud_at(me: usize) -> SocketAddr {
    let ip = Ipv4Addr::new(192, 0, 2, me as u8 + 1);
    SocketAddr::new(ip.into(), UD_PORTS[me])
}

fn ud_peer(me: usize) -> Peer {
    Peer {
        own: ud_at(me).ip(),
        address: ud_at(1 - me).ip(),
        qpn: UD_QPNS[1 - me],
    }
}

/// What its broker says to all that a side asks.
fn serve(side: &mut Associations, me: usize) {
    while let Some(ask) = side.take_ask() {
        let keys = fixed_keys(me as u8, 1 - me as u8);
        let begins = ask.turn == Turn::Begin;
        let message = vec![me as u8 + 1; 40];
        let outcome = if begins {
            Outcome::Begun(message)
        } else {
            Outcome::Agreed(message, keys)
        };
        side.told(&ask, outcome);
    }
}

/// A UD queue pair with an association, and every datagram that it was sent.
fn associated() -> (Associations, Vec<Vec<u8>>) {
    let mut sides = UD_QPNS.map(|qpn| Associations::new(qpn, 1 << 20));
    sides[0].begin(NOW, ud_peer(0), ud_at(1), 0xA);
    let mut heard = Vec::new();
    for turn in 0..4 {
        let me = turn % 2;
        serve(&mut sides[me], me);
        while let Some(letter) = sides[me].next_letter() {
            let handshake = Handshake::parse(&letter.bytes).expect("a handshake");
            let ends = (ud_at(1 - me).ip(), ud_at(me));
            let _ = sides[1 - me].on_handshake(NOW, ends, &handshake, 0xB);
            if me == 0 {
                heard.push(letter.bytes);
            }
        }
    }
    for length in [0, 24, 100] {
        let mut datagram = vec![7; length + OVERHEAD];
        assert!(sides[0].seal(&ud_peer(0), &mut datagram), "no association");
        let own: IpAddr = ud_at(1).ip();
        let opened = sides[1].open(ud_at(0), own, &mut datagram.clone()).is_ok();
        assert!(opened, "{datagram:?}");
        heard.push(datagram);
    }
    let [_, other] = sides;
    (other, heard)
}

/// Sends the same to a UD queue pair: nothing is opened, and it seals as before.
fn run_datagrams(data: &[u8]) {
    let (mut side, heard) = associated();
    for datagram in variants(data, &heard) {
        if let Ok(handshake) = Handshake::parse(&datagram) {
            let _ = side.on_handshake(NOW, (ud_at(1).ip(), ud_at(0)), &handshake, 0xC);
        }
        let opened = side
            .open(ud_at(0), ud_at(1).ip(), &mut datagram.clone())
            .is_ok();
        assert!(!opened, "{datagram:?}");
    }
    let mut datagram = [7; SEALED_HEADER_LEN + OVERHEAD];
    assert!(
        side.seal(&ud_peer(1), &mut datagram),
        "the association is gone"
    );
}

/// Sends `data` as it is, and as changes to what was heard: neither reaches anything.
pub fn run(data: &[u8]) {
    fuzz_secure(data);
    run_datagrams(data);
    let (mut conn, heard) = connected();
    let before = conn.stats();
    for datagram in variants(data, &heard) {
        let taken = conn.on_datagram(NOW, &datagram, &mut Nobody);
        // A handshake may be heard, and has no effect any more.
        assert!(taken.is_err() || is_handshake(&datagram), "{taken:?}");
    }
    assert!(!conn.has_ask() && conn.is_confirmed() && !conn.is_closed());
    assert_eq!(conn.stats().congestion_window, before.congestion_window);
    // At most it is said that plain requests are not welcome.
    assert!(poll(&mut conn).iter().all(|answer| is_handshake(answer)));
}
