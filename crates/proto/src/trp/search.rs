//! The size of datagrams that a path carries, found out by trying (RFC 8899, DPLPMTUD).
//!
//! What the network says of it by ICMP is followed at once ([`Connection::undelivered`]). A router
//! may also drop what is too long without a word, and a path may come to carry more than it did. So
//! where messages fill their datagrams a longer one is sent now and then: a *probe*, a bundle of
//! one segment of the ordinary length, with padding. If its segment has to be sent again, the probe
//! was lost, and that segment goes as any other; so a probe costs no more than its padding, and it
//! has one of two ends whatever becomes of the connection's other traffic.
//!
//! All sizes are those of datagrams before they are sealed.
//!
//! [`Connection::undelivered`]: super::Connection::undelivered

use causeway_wire::trp::{HEADER_LEN, MAX_BUNDLED, Table, table_len};

use super::{Connection, MIN_DATAGRAM, Transmit};
use crate::time::{Duration, Instant};
use crate::ulp::{SegMeta, Space};

/// Probes of one size that are lost until it counts as too long (RFC 8899 section 5.1.2,
/// MAX_PROBES).
const MAX_PROBES: u32 = 3;
/// A search ends when what passes and what does not differ by no more than so many bytes. Also how
/// much longer the first probe is that looks whether a path carries more than it did.
const PRECISION: usize = 32;
/// How long after the end of a search it is looked whether the path carries more meanwhile. RFC
/// 8899 section 5.1.1 has 600 s (PMTU_RAISE_TIMER) for paths of the internet; in a data centre that
/// costs three datagrams each time, of a message that has many.
pub const RAISE_AFTER: Duration = Duration::from_secs(20);
/// What Ethernet's 1500 bytes leave of IPv4 and of IPv6 datagrams: likely, so tried before others.
const COMMON: [usize; 2] = [1472, 1452];
/// Least difference of a probe from other datagrams: it carries a table.
const LEAST_STEP: usize = table_len(1);
/// Time-outs in a row of a datagram above [`BASE_DATAGRAM`](super::BASE_DATAGRAM) that mean a black
/// hole (RFC 8899 section 4.3).
const BLACK_HOLE_TIMEOUTS: u32 = 2;
/// Round trips in which such datagrams were lost, and none of their size arrived in between, that
/// mean the same where shorter ones pass.
const BLACK_HOLE_ROUNDS: u32 = 3;

/// A probe under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Probe {
    space: Space,
    seq: u64,
    size: usize,
}

/// What is going on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Nothing, until it is looked whether the path carries more.
    #[default]
    Settled,
    /// It is looked whether the path carries any more than it did.
    Raising,
    /// The greatest size is looked for.
    Searching,
}

/// The state of a search.
#[derive(Debug, Default)]
pub(super) struct Search {
    phase: Phase,
    /// The least size that is known to be too long.
    too_long: Option<usize>,
    /// The size that the network says it takes, to be tried next.
    told: Option<usize>,
    probe: Option<Probe>,
    /// Probes lost in a row.
    lost: u32,
    /// When to look whether the path carries more.
    raise_at: Option<Instant>,
    /// Time-outs and round trips with losses of datagrams above the base size, in a row, and how
    /// large those were.
    timeouts: u32,
    rounds: u32,
    large: u32,
}

impl Search {
    /// Everything has been tried: the next look is in a while.
    pub fn settle(&mut self, now: Instant) {
        *self = Search {
            raise_at: Some(now + RAISE_AFTER),
            ..Search::default()
        };
    }

    /// The greatest size is looked for from now on.
    fn begin(&mut self, phase: Phase) {
        *self = Search {
            phase,
            ..Search::default()
        };
    }

    /// The size to try next where `size` passes and none above `bound` may be sent; `None` where
    /// the search is at its end.
    fn next(&self, size: usize, bound: usize, overhead: usize) -> Option<usize> {
        let above = |next: &usize| *next >= size + LEAST_STEP && *next <= bound;
        if let Some(told) = self.told {
            return Some(told).filter(above);
        }
        if self.phase == Phase::Raising && self.too_long.is_none() {
            return Some((size + PRECISION).min(bound)).filter(above);
        }
        // A black hole may be none: the peer may have had no processor for a while.
        let Some(too_long) = self.too_long.filter(|too_long| *too_long <= bound) else {
            return Some(bound).filter(above);
        };
        if too_long <= size + PRECISION {
            return None;
        }
        let common = COMMON.map(|common| common - overhead);
        let likely = common.into_iter().find(|c| above(c) && *c < too_long);
        likely.or(Some(size + (too_long - size) / 2))
    }

    /// Whether that is the segment of the probe under way.
    fn carries(&self, space: Space, seq: u64) -> bool {
        self.probe.is_some_and(|p| (p.space, p.seq) == (space, seq))
    }

    /// The segment of a probe is sent again, so that one was lost.
    pub fn on_again(&mut self, space: Space, seq: u64) {
        if !self.carries(space, seq) {
            return;
        }
        let lost = self.probe.take();
        self.lost += 1;
        if self.lost >= MAX_PROBES {
            (self.lost, self.told) = (0, None);
            self.too_long = lost.map(|probe| probe.size);
        }
    }

    /// Nothing will be heard of a probe whose segment is `seq` or follows it: the search goes on
    /// with another.
    pub fn forget_from(&mut self, space: Space, seq: u64) {
        self.probe = self.probe.filter(|p| p.space != space || p.seq < seq);
    }

    /// The network says what it takes, and that is not less than what is sent now.
    pub fn on_told(&mut self, size: usize) {
        if self.probe.is_some_and(|probe| probe.size > size) {
            (self.phase, self.lost, self.probe) = (Phase::Searching, 0, None);
            (self.told, self.too_long) = (Some(size), Some(size + 1));
        }
    }

    /// Datagrams were delivered, the largest of so many bytes. A smaller one that passes proves
    /// nothing about those that vanish.
    pub fn on_delivered(&mut self, largest: u32) {
        if largest >= self.large {
            (self.timeouts, self.rounds) = (0, 0);
        }
    }

    /// Another datagram of `size` bytes has timed out. Returns whether such ones vanish.
    fn on_timeout(&mut self, size: u32) -> bool {
        self.large = size;
        self.timeouts += 1;
        self.timeouts >= BLACK_HOLE_TIMEOUTS
    }

    /// In another round trip one of `size` bytes was lost. Returns the same.
    fn on_round(&mut self, size: u32) -> bool {
        self.large = size;
        self.rounds += 1;
        self.rounds >= BLACK_HOLE_ROUNDS
    }
}

impl Connection {
    /// Changes the largest datagram for segments not numbered yet, as path MTU discovery finds
    /// out. It never exceeds the configuration's nor the peer's limit. Segments that have their
    /// number keep their size, and go with [`Transmit::may_fragment`] if they must be sent again.
    pub fn set_max_payload(&mut self, _now: Instant, datagram: usize) {
        let bound = self.bound();
        self.tx.datagram = datagram.clamp(MIN_DATAGRAM.min(bound), bound);
        self.tx.cc.set_datagram(self.tx.datagram);
        (self.tx.search.timeouts, self.tx.search.rounds) = (0, 0);
    }

    /// The largest datagram that either side allows.
    fn bound(&self) -> usize {
        let peer = self.handshake.peer().map_or(usize::MAX, |p| p.max_datagram);
        self.config.max_datagram.min(peer)
    }

    /// The size of a probe, if one is to be sent now with a segment of `len` bytes, which fills its
    /// datagram.
    #[inline]
    pub(super) fn probe_size(&mut self, now: Instant, len: usize) -> Option<usize> {
        let search = &self.tx.search;
        if search.phase == Phase::Settled && search.raise_at.is_none() {
            return None;
        }
        self.next_probe(now, len)
    }

    #[cold]
    fn next_probe(&mut self, now: Instant, len: usize) -> Option<usize> {
        let (bound, overhead) = (self.bound(), self.config.overhead());
        let search = &mut self.tx.search;
        if search.phase == Phase::Settled && search.raise_at.is_some_and(|at| now >= at) {
            search.begin(Phase::Raising);
        }
        if search.phase == Phase::Settled || search.probe.is_some() || len > MAX_BUNDLED {
            return None;
        }
        let next = search.next(self.tx.datagram, bound, overhead);
        if next.is_none() {
            search.settle(now);
            if self.tx.datagram >= bound {
                search.raise_at = None;
            }
        }
        next
    }

    /// Writes a probe of `size` bytes: the segment of `len` bytes that stands behind the header,
    /// and padding.
    pub(super) fn send_probe(
        &mut self,
        space: Space,
        meta: &SegMeta,
        (len, size): (usize, usize),
        now: Instant,
        out: &mut [u8],
    ) -> Option<Transmit> {
        let out = out.get_mut(..size)?;
        let mut table = Table::new();
        let pushed = table.push(len, meta.last);
        debug_assert!(pushed);
        table.finish(HEADER_LEN + len, out)?;
        self.tx.spaces[space as usize].note_probe();
        let seq = meta.seq;
        self.tx.search.probe = Some(Probe { space, seq, size });
        self.stats.probes += 1;
        let sent = self.send_bundle(space, meta, now, out)?;
        Some(Transmit {
            may_fragment: false,
            alone: true,
            ..sent
        })
    }

    /// After an acknowledgment: whether the probe under way has arrived.
    #[inline]
    pub(super) fn check_probe(&mut self, now: Instant) {
        let arrived = |p: &Probe| self.tx.spaces[p.space as usize].is_delivered(p.seq);
        if let Some(Probe { size, .. }) = self.tx.search.probe.filter(arrived) {
            let search = &mut self.tx.search;
            (search.probe, search.told, search.lost) = (None, None, 0);
            if search.phase == Phase::Raising {
                (search.phase, search.too_long) = (Phase::Searching, None);
            }
            if size > self.tx.datagram {
                self.set_max_payload(now, size);
            }
        }
    }

    /// Large datagrams that vanish again and again, while smaller ones may pass: the path's MTU has
    /// shrunk and nobody tells (RFC 8899 section 4.3).
    pub(super) fn suspect_black_hole(&mut self, now: Instant) {
        let oldest = self.tx.spaces.iter().map(|s| s.oldest_size()).max();
        let largest = oldest.unwrap_or(0);
        if self.is_above_base(largest) && self.tx.search.on_timeout(largest) {
            self.escape_black_hole(now);
        }
    }

    /// In another round trip datagrams were lost, the largest of so many bytes.
    pub(super) fn on_loss_round(&mut self, now: Instant, largest: u32) {
        // A longer one may have been fragmented.
        let whole = largest as usize <= self.tx.datagram;
        if whole && self.is_above_base(largest) && self.tx.search.on_round(largest) {
            self.escape_black_hole(now);
        }
    }

    fn is_above_base(&self, size: u32) -> bool {
        let base = self.config.base_datagram();
        size as usize > base && self.tx.datagram > base
    }

    fn escape_black_hole(&mut self, now: Instant) {
        self.set_max_payload(now, self.config.base_datagram());
        self.tx.search.begin(Phase::Searching);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches for what a path of `mtu` bytes carries. Returns that, and how many probes it took.
    fn search(mut size: usize, mtu: usize, bound: usize, phase: Phase) -> (usize, u32) {
        let mut search = Search::default();
        search.begin(phase);
        let mut probes = 0;
        while let Some(next) = search.next(size, bound, 0) {
            assert!(next >= size + LEAST_STEP && next <= bound);
            let seq = u64::from(probes);
            search.probe = Some(Probe {
                space: Space::Request,
                seq,
                size: next,
            });
            probes += 1;
            assert!(probes < 100, "it does not end");
            if next > mtu {
                search.on_again(Space::Request, seq);
                continue;
            }
            (size, search.lost, search.probe) = (next, 0, None);
            if search.phase == Phase::Raising {
                (search.phase, search.too_long) = (Phase::Searching, None);
            }
        }
        (size, probes)
    }

    #[test]
    fn finds_every_size_in_few_probes() {
        for mtu in 1200..=9000 {
            let (size, probes) = search(1200, mtu, 8972, Phase::Searching);
            assert!(
                size <= mtu && size + PRECISION >= mtu.min(8972),
                "{mtu}: {size}"
            );
            assert!(probes <= 12 * MAX_PROBES, "{mtu}: {probes}");
        }
        assert_eq!(search(1200, 9000, 8972, Phase::Searching), (8972, 1));
        assert_eq!(search(1200, 1472, 8972, Phase::Searching).0, 1472);
        assert_eq!(search(1200, 1452, 8972, Phase::Searching).0, 1452);
    }

    #[test]
    fn a_look_at_a_path_that_has_not_grown_costs_three_probes() {
        assert_eq!(search(4000, 4010, 8972, Phase::Raising), (4000, MAX_PROBES));
        let (size, _) = search(4000, 8972, 8972, Phase::Raising);
        assert_eq!(size, 8972);
        // There is nothing to gain.
        assert_eq!(search(8972, 9000, 8972, Phase::Raising), (8972, 0));
        assert_eq!(search(8970, 9000, 8972, Phase::Raising), (8970, 0));
    }

    #[test]
    fn what_the_network_says_is_tried_next() {
        let mut search = Search::default();
        search.begin(Phase::Searching);
        let probe = |size| Probe {
            space: Space::Response,
            seq: 7,
            size,
        };
        search.probe = Some(probe(8972));
        search.on_told(8972);
        assert!(search.probe.is_some(), "that is no news");
        search.on_told(3972);
        assert_eq!(search.next(1200, 8972, 0), Some(3972));
        // It was a lie.
        for _ in 0..MAX_PROBES {
            search.probe = Some(probe(3972));
            search.on_again(Space::Response, 7);
        }
        assert_eq!(search.next(1200, 8972, 0), Some(1472));
        // What passes already is all that it takes.
        search.probe = Some(probe(3972));
        search.on_told(1472);
        assert_eq!(search.next(1472, 8972, 0), None);
    }

    #[test]
    fn a_probe_that_nothing_is_heard_of_counts_for_nothing() {
        let mut search = Search::default();
        search.begin(Phase::Searching);
        for seq in 0..10 {
            search.probe = Some(Probe {
                space: Space::Request,
                seq,
                size: 8972,
            });
            search.forget_from(Space::Response, 0);
            search.forget_from(Space::Request, seq + 1);
            assert!(search.probe.is_some());
            search.on_again(Space::Request, seq + 1);
            search.forget_from(Space::Request, seq);
            assert!(search.probe.is_none());
        }
        assert_eq!(search.next(1200, 8972, 0), Some(8972));
    }

    #[test]
    fn smaller_datagrams_that_pass_excuse_nothing() {
        let mut search = Search::default();
        assert!(!search.on_round(8972) && !search.on_round(8972));
        search.on_delivered(1200);
        assert!(search.on_round(8972));
        search.on_delivered(8972);
        assert!(!search.on_round(8972));
        assert!(!search.on_timeout(8972) && search.on_timeout(8972));
    }
}
