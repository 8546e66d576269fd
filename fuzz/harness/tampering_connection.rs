//! The connection between two sides, each of which sends messages to the other.

use causeway_proto::trp::{Config, Connection, SendConfig, Stats};
use causeway_proto::{Duration, Instant};
use causeway_sim::broker::Broker;
use causeway_sim::bulk::Bulk;
use causeway_wire::secure::is_handshake;

use super::{FORGE, WAIT, Way, forged, honest};
use crate::nobody::Nobody;
use crate::script::Script;

/// What either side of the connection sends: messages, their bytes, and how many at a time.
const MESSAGES: u64 = 24;
const MESSAGE: u64 = 3000;
const DEPTH: u64 = 4;
/// Datagrams after which keys change.
const PHASE: u64 = 16;
/// Rounds in which all is delivered when the script has ended: many times what is needed.
const ROUNDS: usize = 10_000;
const MILLISECOND: Duration = Duration::from_millis(1);

fn side(me: usize) -> Connection {
    let config = Config {
        secured: true,
        phase_packets: PHASE,
        ..Config::new(me as u32 + 1, 2 - me as u32, me as u64 + 0xA, 50)
    };
    let mut conn = Connection::new(config, Instant(1));
    conn.start(SendConfig {
        sq_psn: 50,
        // Whatever is lost: only a forgery could end or stop the connection.
        timeout: 0,
        retry_cnt: 7,
    });
    conn
}

/// What must not differ after a forged datagram.
fn essence(conn: &Connection) -> Stats {
    Stats {
        rx_packets: 0,
        rx_bytes: 0,
        rx_dropped: 0,
        rx_crc_errors: 0,
        ..conn.stats()
    }
}

/// A connection in use.
pub struct Connected {
    now: Instant,
    sides: [Connection; 2],
    ulps: [Bulk; 2],
    ways: [Way; 2],
}

impl Connected {
    pub fn new() -> Self {
        let mut brokers = [Broker::default(), Broker::default()];
        let mut it = Connected {
            now: Instant(1),
            sides: [side(0), side(1)],
            ulps: [0, 1].map(|_| Bulk::sender(MESSAGES, MESSAGE, DEPTH)),
            ways: Default::default(),
        };
        while !it.sides.iter().all(Connection::is_confirmed) {
            for (side, broker) in it.sides.iter_mut().zip(&mut brokers) {
                broker.serve(side, it.now);
            }
            it.poll();
            while it.deliver(0) || it.deliver(1) {}
        }
        it
    }

    /// Both sides send what they have.
    fn poll(&mut self) {
        for me in [0, 1] {
            for datagram in self.sent(me) {
                self.ways[1 - me].send(datagram);
            }
        }
    }

    fn sent(&mut self, me: usize) -> Vec<Vec<u8>> {
        let (conn, ulp) = (&mut self.sides[me], &mut self.ulps[me]);
        let mut out = vec![0; conn.max_datagram()];
        let mut all = Vec::new();
        while let Some(sent) = conn.poll_transmit(self.now, ulp, &mut out) {
            all.push(out[..sent.len].to_vec());
        }
        all
    }

    /// One step of the script; whether it was a forged datagram.
    pub fn step(&mut self, me: usize, what: u8, script: &mut Script<'_>) -> bool {
        self.poll();
        match what {
            WAIT => self.wait(script.byte().is_some_and(|long| long % 2 == 1)),
            FORGE.. => {
                let Some(datagram) = forged(&self.ways[me], what, script) else {
                    return false;
                };
                self.intrude(me, &datagram);
                return true;
            }
            _ => {
                if let Some(datagram) = honest(&mut self.ways[me], what, script) {
                    self.take(me, &datagram);
                }
            }
        }
        false
    }

    fn take(&mut self, me: usize, datagram: &[u8]) {
        let _ = self.sides[me].on_datagram(self.now, datagram, &mut self.ulps[me]);
    }

    fn deliver(&mut self, me: usize) -> bool {
        let Some(datagram) = self.ways[me].take(0) else {
            return false;
        };
        self.take(me, &datagram);
        true
    }

    /// Time passes, for a moment or until the next timer.
    fn wait(&mut self, long: bool) {
        let moment = self.now + MILLISECOND;
        let next = self.sides.iter().filter_map(Connection::poll_timeout).min();
        self.now = next.filter(|_| long).map_or(moment, |at| at.max(moment));
        for (side, ulp) in self.sides.iter_mut().zip(&mut self.ulps) {
            side.on_timeout(self.now, ulp);
        }
    }

    /// A forged datagram changes nothing, and is not answered but by a handshake's.
    fn intrude(&mut self, me: usize, datagram: &[u8]) {
        let before = essence(&self.sides[me]);
        let conn = &mut self.sides[me];
        let taken = conn.on_datagram(self.now, datagram, &mut Nobody);
        // A handshake may be heard, and has no effect any more.
        assert!(taken.is_err() || is_handshake(datagram), "{datagram:?}");
        assert!(!conn.has_ask() && conn.is_confirmed() && !conn.is_closed());
        assert_eq!(essence(conn), before, "{datagram:?}");
        let answers = self.sent(me);
        assert!(answers.iter().all(|answer| is_handshake(answer)));
    }

    /// Whether the upper layers have all: when nobody loses anything any more, they get it.
    pub fn finish(mut self) {
        for _ in 0..ROUNDS {
            assert!(!self.ulps.iter().any(Bulk::is_lost), "it was ended");
            if self.ulps.iter().all(Bulk::is_complete) {
                return;
            }
            self.poll();
            let mut quiet = true;
            while self.deliver(0) || self.deliver(1) {
                quiet = false;
            }
            self.wait(quiet);
        }
        panic!("the connection stands still: {:?}", self.sides[0].stats());
    }
}
