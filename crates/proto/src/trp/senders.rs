//! Who shares the receive buffer of a socket, and what window each of them gets.
//!
//! A window is promised to each connection, but the buffer that is to take it belongs to the
//! socket. With eight senders the buffer of an ordinary user's socket is full long before their
//! windows are, whenever its owner is off its processor: the kernel drops what comes then, of all
//! of them, and each waits for a time-out. So the receiver counts who has lately sent much, and
//! tells each of those a window of its share.

use super::{Connection, SPACES};
use crate::time::{Duration, Instant};

/// How long a sender counts at least, and at most twice that: longer than a receiver is usually off
/// its processor.
const TURN: Duration = Duration::from_millis(50);
/// Bytes within a turn that make a sender count: fewer fill no buffer.
const MUCH: u64 = 16 << 10;
/// Least mean length of the datagrams of one that counts: acknowledgments, and messages so short,
/// are no reason to divide.
const LONG: u64 = 256;
/// Least share, datagrams: fewer leave no three behind a lost one to tell of it.
const LEAST: u64 = 4;

/// The senders to one socket.
#[derive(Clone, Debug)]
pub struct Senders {
    /// Bytes of datagrams that its buffer takes.
    bytes: usize,
    /// Which turn this is, and when it began.
    turn: u64,
    began: Instant,
    /// Senders that count, in this turn and the one before.
    count: u64,
    before: u64,
}

impl Senders {
    /// Nobody yet, where the buffer surely takes `bytes` of datagrams.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Senders {
            bytes,
            turn: 1,
            began: Instant(0),
            count: 0,
            before: 0,
        }
    }

    /// How many share the buffer.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.count.max(self.before)
    }

    fn advance(&mut self, now: Instant) {
        let past = now.since(self.began);
        if past < TURN {
            return;
        }
        // Nobody has sent for a whole turn.
        let long_ago = past >= 2 * TURN;
        self.before = if long_ago { 0 } else { self.count };
        (self.count, self.began) = (0, now);
        self.turn += 1;
    }
}

/// One connection's part in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// The turn that it was last looked at in, and the one that it last counted in; 0: none.
    turn: u64,
    counted: u64,
    /// What had been received when that turn began.
    from: Received,
    /// Segments to a datagram, in the turn before.
    each: u64,
    /// Most segments that the peer may have under way; `None`: as many as are taken ahead.
    most: Option<u64>,
}

/// What a connection has received.
#[derive(Clone, Copy, Debug, Default)]
struct Received {
    bytes: u64,
    datagrams: u64,
    segments: u64,
}

impl Received {
    fn since(self, from: Received) -> Received {
        Received {
            bytes: self.bytes - from.bytes,
            datagrams: self.datagrams - from.datagrams,
            segments: self.segments - from.segments,
        }
    }

    fn is_much(self) -> bool {
        self.bytes >= MUCH && self.bytes >= self.datagrams * LONG
    }
}

impl Default for Share {
    fn default() -> Self {
        Share {
            turn: 0,
            counted: 0,
            from: Received::default(),
            each: 1,
            most: None,
        }
    }
}

impl Share {
    /// The window to advertise, where `ahead` segments are taken ahead.
    pub fn window(&self, ahead: u64) -> u16 {
        let most = self.most.unwrap_or(ahead).min(ahead);
        u16::try_from(most).unwrap_or(u16::MAX)
    }

    fn update(&mut self, now: Instant, received: Received, datagram: usize, of: &mut Senders) {
        of.advance(now);
        if self.turn != of.turn {
            // Many short segments may share a datagram. What fills a hole late tells nothing of
            // that, so only a whole turn is judged.
            let past = received.since(self.from);
            if past.is_much() {
                self.each = (past.segments / past.datagrams.max(1)).max(1);
            }
            (self.turn, self.from) = (of.turn, received);
        }
        if self.counted != of.turn && received.since(self.from).is_much() {
            self.counted = of.turn;
            of.count += 1;
        }
        let counts = self.counted > 0 && self.counted + 1 >= of.turn;
        let number = of.number();
        let fit = of.bytes as u64 / datagram.max(1) as u64 / number.max(1);
        self.most = (counts && number > 1).then(|| fit.max(LEAST) * self.each);
    }
}

impl Connection {
    /// Learns what part of its socket's buffer the peer may fill. Call it after datagrams were
    /// received, once for a whole batch, with what was made for the socket: what is sent from
    /// then on says it.
    pub fn share_buffer(&mut self, now: Instant, senders: &mut Senders) {
        let received = Received {
            bytes: self.stats.rx_bytes,
            datagrams: self.stats.rx_packets,
            segments: SPACES
                .iter()
                .map(|space| self.rx.spaces[*space as usize].next())
                .sum(),
        };
        let datagram = self.config.max_datagram;
        self.rx.share.update(now, received, datagram, senders);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATAGRAM: usize = 1000;
    const BUFFER: usize = 160 * DATAGRAM;
    const AHEAD: u64 = 128;
    const T0: Instant = Instant(1_000_000_000);

    /// A peer that has sent something.
    #[derive(Default)]
    struct Peer {
        share: Share,
        received: Received,
    }

    impl Peer {
        fn sends(&mut self, now: Instant, of: &mut Senders, datagrams: u64, len: u64, each: u64) {
            self.received.bytes += datagrams * len;
            self.received.datagrams += datagrams;
            self.received.segments += datagrams * each;
            self.share.update(now, self.received, DATAGRAM, of);
        }

        fn window(&self) -> u16 {
            self.share.window(AHEAD)
        }
    }

    fn eight(now: Instant, of: &mut Senders, peers: &mut [Peer]) {
        // What a first look finds counts for nothing, and the first learns of the last.
        for _ in 0..3 {
            for peer in peers.iter_mut() {
                peer.sends(now, of, 20, 1000, 1);
            }
        }
    }

    fn peers(n: usize) -> Vec<Peer> {
        (0..n).map(|_| Peer::default()).collect()
    }

    #[test]
    fn those_who_send_much_share_what_fits() {
        let mut of = Senders::new(BUFFER);
        let mut all = peers(8);
        let (first, _) = all.split_at_mut(1);
        eight(T0, &mut of, first);
        assert_eq!((of.number(), first[0].window()), (1, 128));
        eight(T0, &mut of, &mut all);
        assert_eq!(of.number(), 8);
        assert!(all.iter().all(|peer| peer.window() == 20));
        // Crowds get what finds out about losses.
        let mut many = peers(100);
        eight(T0, &mut of, &mut many);
        assert_eq!(many[0].window(), 4);
    }

    #[test]
    fn who_sends_little_neither_shares_nor_counts() {
        let mut of = Senders::new(BUFFER);
        let mut all = peers(8);
        eight(T0, &mut of, &mut all);
        let mut other = Peer::default();
        other.sends(T0, &mut of, 10, 1000, 1);
        assert_eq!((of.number(), other.window()), (8, 128));
        // Acknowledgments, however many.
        other.sends(T0, &mut of, 100_000, 40, 0);
        assert_eq!((of.number(), other.window()), (8, 128));
    }

    #[test]
    fn who_has_stopped_leaves_the_others_its_share() {
        let mut of = Senders::new(BUFFER);
        let mut all = peers(8);
        eight(T0, &mut of, &mut all);
        let (staying, _) = all.split_at_mut(2);
        // The turn that follows still remembers.
        let now = T0 + TURN;
        eight(now, &mut of, staying);
        assert_eq!((of.number(), staying[0].window()), (8, 20));
        eight(now + TURN, &mut of, staying);
        assert_eq!((of.number(), staying[0].window()), (2, 80));
        // Nobody for long.
        eight(now + 4 * TURN, &mut of, &mut staying[..1]);
        assert_eq!((of.number(), staying[0].window()), (1, 128));
    }

    #[test]
    fn short_segments_that_share_datagrams_get_a_window_for_those() {
        let mut of = Senders::new(BUFFER);
        let mut all = peers(8);
        for turn in 0..2 {
            let now = T0 + turn * TURN;
            eight(now, &mut of, &mut all[1..]);
            for _ in 0..3 {
                all[0].sends(now, &mut of, 20, 1000, 5);
            }
        }
        assert_eq!((all[0].window(), all[1].window()), (100, 20));
    }
}
