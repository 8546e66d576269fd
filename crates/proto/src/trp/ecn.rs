//! Congestion that the network tells by marks: ECN (RFC 3168, RFC 8311).
//!
//! Where both sides have the feature, datagrams with data leave as ECT(0). A router whose queue
//! grows marks them instead of dropping them. The receiver hurries to tell the sender, by a number
//! of three bits in each header that is one more whenever marked datagrams came since the header
//! before. The sender heeds each change as it does a loss, once in a round trip (RFC 9002 section
//! 7.1), and has nothing to send again. It needs no answer as RFC 3168's CWR is: seven headers in a
//! row may get lost, and the eighth tells.
//!
//! Some paths drop datagrams that are ECT. So what is sent at first is on trial (RFC 9000 section
//! 13.4.2): if it times out twice in a row, the next is not ECT, and where that one is acknowledged
//! none is any more.

use causeway_wire::trp::MARKS_MAX;

use super::send::Acked;
use super::{Connection, Transmit};
use crate::time::Instant;

/// Time-outs in a row that make a path suspect on which nothing that is ECT has arrived yet.
const SUSPECT: u32 = 2;
/// As many on a path on which something has: its route may have changed.
const SUSPECT_LATER: u32 = 4;

/// The sender's side.
#[derive(Debug)]
pub(super) struct Ecn {
    /// Data leave as ECT(0), as far as the peer has the feature.
    capable: bool,
    /// It is known that they arrive so.
    proved: bool,
    /// When that changed last.
    switched: Option<Instant>,
    /// What was given up was tried again, since it had arrived after all.
    forgiven: bool,
    /// The peer's number, as it was heard last.
    heard: u8,
}

impl Default for Ecn {
    fn default() -> Self {
        Ecn {
            capable: true,
            proved: false,
            switched: None,
            forgiven: false,
            heard: 0,
        }
    }
}

impl Ecn {
    /// Whether the peer's number is what it was.
    #[inline]
    pub fn knows(&self, marks: u8) -> bool {
        self.heard == marks
    }

    /// Something sent at `sent` or before has arrived.
    #[inline]
    pub fn on_delivered(&mut self, sent: Instant) {
        if !self.proved && self.switched.is_none_or(|at| sent >= at) {
            self.proved = true;
        }
    }

    /// The peer has something twice: what was sent before the switch has arrived, too, and the peer
    /// was slow. Once only, since copies have other causes.
    pub fn on_copies(&mut self, now: Instant) {
        if !self.capable && !self.forgiven {
            (self.capable, self.proved, self.forgiven) = (true, false, true);
            self.switched = Some(now);
        }
    }

    /// Nothing is heard, for the `count`th time-out in a row: it may be for the mark, or not. Both
    /// are tried in turn.
    pub fn on_timeout(&mut self, now: Instant, count: u32) {
        let least = if self.proved { SUSPECT_LATER } else { SUSPECT };
        // What is not ECT any more is not lost for that.
        if count < least || self.proved && !self.capable {
            return;
        }
        (self.capable, self.proved) = (!self.capable, false);
        self.switched = Some(now);
    }
}

/// The receiver's side.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Marked datagrams came since the last header.
    news: bool,
    /// How many headers have had news, modulo [`MARKS_MAX`] + 1.
    told: u8,
}

impl Marks {
    /// The number for the next header.
    #[inline]
    pub fn tell(&mut self) -> u8 {
        if core::mem::take(&mut self.news) {
            self.told = (self.told + 1) & MARKS_MAX;
        }
        self.told
    }
}

impl Connection {
    /// So many datagrams, which [`Connection::on_datagram`] and [`Connection::on_run`] have just
    /// taken, bore the mark of a congested path (CE). Call [`Connection::poll_transmit`]
    /// afterwards.
    pub fn on_marked(&mut self, datagrams: u64) {
        self.stats.marks_received += datagrams;
        if datagrams > 0 && self.handshake.ecn(&self.config) && !self.rx.marks.news {
            self.rx.marks.news = true;
            // RFC 9000 section 13.2.1: a mark is acknowledged at once.
            self.rx.acks.ask();
        }
    }

    /// A datagram with data, which leaves as ECT where that is agreed on.
    #[inline]
    pub(super) fn capable(&self, transmit: Transmit) -> Transmit {
        Transmit {
            ecn: self.tx.ecn.capable && self.handshake.ecn(&self.config),
            ..transmit
        }
    }

    /// The peer has told of marks, together with what `acked` says.
    pub(super) fn on_marks(&mut self, now: Instant, marks: u8, acked: &Acked) {
        self.tx.ecn.heard = marks;
        self.stats.marks_reported += 1;
        let sent = if acked.bytes > 0 {
            acked.sent
        } else {
            let rtt = self.tx.rtt.smoothed().unwrap_or_default();
            Instant(now.0.saturating_sub(rtt.as_nanos() as u64))
        };
        if self.tx.cc.on_mark(now, sent) {
            (self.tx.resent, self.tx.needless) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_headers_in_a_row_are_told_apart() {
        let mut marks = Marks::default();
        assert_eq!(marks.tell(), 0);
        for n in 1..20 {
            marks.news = true;
            assert_eq!(marks.tell(), n % 8);
            assert_eq!(marks.tell(), n % 8, "no news");
        }
    }

    #[test]
    fn what_arrives_first_decides() {
        let mut ecn = Ecn::default();
        ecn.on_timeout(Instant(10), 1);
        assert!(ecn.capable, "one may get lost");
        ecn.on_timeout(Instant(20), 2);
        assert!(!ecn.capable);
        // That was sent before, and so was ECT.
        ecn.on_delivered(Instant(15));
        assert!(!ecn.proved);
        ecn.on_delivered(Instant(20));
        for count in 1..9 {
            ecn.on_timeout(Instant(30), count);
        }
        assert!(!ecn.capable && ecn.proved);
    }

    #[test]
    fn a_peer_that_was_slow_is_forgiven_once() {
        let mut ecn = Ecn::default();
        for (at, capable) in [(10, true), (20, false)] {
            ecn.on_timeout(Instant(at), 2);
            assert!(!ecn.capable);
            ecn.on_delivered(Instant(at));
            ecn.on_copies(Instant(at + 5));
            assert_eq!(ecn.capable, capable);
        }
    }

    #[test]
    fn a_path_on_which_nothing_passes_proves_nothing() {
        let mut ecn = Ecn::default();
        let tried = [1, 2, 3, 4, 5].map(|count| {
            ecn.on_timeout(Instant(u64::from(count)), count);
            ecn.capable
        });
        assert_eq!(tried, [true, false, true, false, true]);
        ecn.on_delivered(Instant(5));
        ecn.on_timeout(Instant(6), SUSPECT_LATER - 1);
        assert!(ecn.capable && ecn.proved);
        ecn.on_timeout(Instant(7), SUSPECT_LATER);
        assert!(!ecn.capable, "the route may have changed");
    }
}
