//! Two UD queue pairs with an association. The first sends to the second.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};

use causeway_proto::Instant;
use causeway_proto::association::{Associations, Outcome, Peer};
use causeway_proto::trp::Turn;
use causeway_sim::broker::fixed_keys;
use causeway_wire::secure::{Handshake, OVERHEAD, SEALED_HEADER_LEN};

use super::{FORGE, WAIT, Way, forged, honest};
use crate::script::Script;

/// Bytes that a datagram carries: its number.
const NUMBER: usize = 8;
/// Bytes of a handshake's message, which nobody looks at here.
const MESSAGE: usize = 40;

fn ud_at(me: usize) -> SocketAddr {
    let ip = Ipv4Addr::new(192, 0, 2, me as u8 + 1);
    SocketAddr::new(ip.into(), 20_481 + me as u16)
}

fn ud_qpn(me: usize) -> u32 {
    0x1001 + 0x1000 * me as u32
}

fn ud_peer(me: usize) -> Peer {
    Peer {
        own: ud_at(me).ip(),
        address: ud_at(1 - me).ip(),
        qpn: ud_qpn(1 - me),
    }
}

/// Two UD queue pairs with an association; the first sends.
pub struct Associated {
    sides: [Associations; 2],
    way: Way,
    /// Number of the next datagram, and those that arrived.
    next: u64,
    arrived: HashSet<u64>,
}

impl Associated {
    pub fn new() -> Self {
        let mut sides = [0, 1].map(|me| Associations::new(ud_qpn(me), 1 << 20));
        sides[0].begin(Instant(1), ud_peer(0), ud_at(1), 0xA);
        for turn in 0..4 {
            let me = turn % 2;
            while let Some(ask) = sides[me].take_ask() {
                let message = vec![me as u8 + 1; MESSAGE];
                let keys = fixed_keys(me as u8, 1 - me as u8);
                let outcome = match ask.turn {
                    Turn::Begin => Outcome::Begun(message),
                    _ => Outcome::Agreed(message, keys),
                };
                sides[me].told(&ask, outcome);
            }
            while let Some(letter) = sides[me].next_letter() {
                let handshake = Handshake::parse(&letter.bytes).expect("a handshake");
                let ends = (ud_at(1 - me).ip(), ud_at(me));
                let _ = sides[1 - me].on_handshake(Instant(1), ends, &handshake, 0xB);
            }
        }
        Associated {
            sides,
            way: Way::default(),
            next: 0,
            arrived: HashSet::new(),
        }
    }

    /// One step of the script; whether it was a forged datagram.
    pub fn step(&mut self, what: u8, script: &mut Script<'_>) -> bool {
        match what {
            WAIT => self.send(),
            FORGE.. => {
                let Some(datagram) = forged(&self.way, what, script) else {
                    return false;
                };
                self.intrude(datagram);
                return true;
            }
            _ => {
                if let Some(datagram) = honest(&mut self.way, what, script) {
                    self.deliver(datagram);
                }
            }
        }
        false
    }

    fn send(&mut self) {
        let mut datagram = vec![0; NUMBER + OVERHEAD];
        datagram[SEALED_HEADER_LEN..][..NUMBER].copy_from_slice(&self.next.to_be_bytes());
        assert!(
            self.sides[0].seal(&ud_peer(0), &mut datagram),
            "no association"
        );
        self.next += 1;
        self.way.send(datagram);
    }

    /// What is opened; the queue pair that sent it is told right.
    fn open(&mut self, mut datagram: Vec<u8>) -> Option<u64> {
        let opened = self.sides[1].open(ud_at(0), ud_at(1).ip(), &mut datagram);
        let (text, from) = opened.ok()?;
        assert_eq!(from, ud_qpn(0));
        Some(u64::from_be_bytes((*text).try_into().expect("a number")))
    }

    /// One that was sent is opened once. It may be too old.
    fn deliver(&mut self, datagram: Vec<u8>) {
        if let Some(number) = self.open(datagram) {
            assert!(
                number < self.next && self.arrived.insert(number),
                "{number}"
            );
        }
    }

    fn intrude(&mut self, datagram: Vec<u8>) {
        if let Ok(handshake) = Handshake::parse(&datagram) {
            let ends = (ud_at(0).ip(), ud_at(1));
            let _ = self.sides[1].on_handshake(Instant(1), ends, &handshake, 0xC);
        }
        assert_eq!(self.open(datagram.clone()), None, "{datagram:?}");
    }

    /// What is sent now arrives.
    pub fn finish(mut self) {
        self.way.flight.clear();
        self.send();
        let datagram = self.way.take(0).expect("it was sent");
        self.deliver(datagram);
        assert!(
            self.arrived.contains(&(self.next - 1)),
            "the association is gone"
        );
    }
}
