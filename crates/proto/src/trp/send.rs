//! The sender's side of one sequence space: which numbers are outstanding, acknowledged and lost.

use std::collections::VecDeque;

use crate::time::{Duration, Instant};

/// Transmissions delivered after a segment that make it lost rather than reordered
/// (RFC 9002 section 6.1.1).
const PACKET_THRESHOLD: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InFlight,
    /// The peer has it, out of order.
    Sacked,
    /// To be sent again.
    Lost,
}

/// A segment sent and not acknowledged cumulatively.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    /// Position in the order of transmission, which a retransmission changes and `seq` does not.
    order: u64,
    /// Datagram bytes, without those of segments that joined it.
    size: u32,
    /// All bytes of its datagram; of a segment that joined one, its own.
    whole: u32,
    state: State,
    again: bool,
    /// Longer than others, to find out whether such a datagram passes.
    probe: bool,
}

impl Sent {
    #[inline]
    fn new(at: Instant, order: u64, size: u32) -> Sent {
        Sent {
            at,
            order,
            size,
            whole: size,
            state: State::InFlight,
            again: false,
            probe: false,
        }
    }
}

/// What an acknowledgment brought.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acked {
    /// Bytes newly known to be delivered.
    pub bytes: u64,
    /// When the newest of them was sent.
    pub sent: Instant,
    /// The same, if it was sent only once and so measures the round trip (Karn).
    pub sample: Option<Instant>,
    /// Size of the largest datagram among them.
    pub largest: u32,
}

/// What loss detection found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Losses {
    /// When the newest lost segment had been sent. That of a probe says nothing of congestion (RFC
    /// 8899 section 3).
    pub newest: Option<Instant>,
    /// Size of the largest datagram among them.
    pub largest: u32,
    /// When a segment that is late now will count as lost.
    pub deadline: Option<Instant>,
}

/// Sender's side of one sequence space.
#[derive(Debug)]
pub struct SendSpace {
    /// First number not acknowledged.
    una: u64,
    /// `una ..` the next new number.
    sent: VecDeque<Sent>,
    in_flight: u64,
    sacked: u32,
    lost: u32,
    /// No number before it is lost.
    lost_hint: u64,
    /// Segments outstanding that were sent more than once.
    again: u32,
    next_order: u64,
    /// Transmission order of the newest delivered transmission, plus one; 0: none yet.
    delivered: u64,
}

impl SendSpace {
    /// A space whose first number is `first`.
    #[must_use]
    pub fn new(first: u64) -> Self {
        SendSpace {
            una: first,
            sent: VecDeque::new(),
            in_flight: 0,
            sacked: 0,
            lost: 0,
            lost_hint: first,
            again: 0,
            next_order: 0,
            delivered: 0,
        }
    }

    /// First number not acknowledged.
    #[must_use]
    pub fn una(&self) -> u64 {
        self.una
    }

    /// Number of the next new segment.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.una + self.sent.len() as u64
    }

    /// Whether anything awaits acknowledgment.
    #[must_use]
    pub fn outstanding(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Whether anything is to be sent again.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// Bytes presumed in the network.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Size of the oldest unacknowledged datagram, or 0.
    #[must_use]
    pub fn oldest_size(&self) -> u32 {
        self.sent.front().map_or(0, |s| s.whole)
    }

    /// Records the transmission of the next new segment. `joined`: in the datagram of the one
    /// recorded before it, so that they arrive together.
    #[inline]
    pub fn on_new(&mut self, now: Instant, size: usize, joined: bool) {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        self.next_order += u64::from(!joined);
        let order = self.next_order - 1;
        self.sent.push_back(Sent::new(now, order, size));
        self.in_flight += u64::from(size);
    }

    /// Records the transmission of `count` new segments, each in a datagram of its own.
    pub fn on_run(&mut self, now: Instant, size: usize, count: usize) {
        let first = self.next_order;
        let sent = Sent::new(now, first, u32::try_from(size).unwrap_or(u32::MAX));
        self.next_order += count as u64;
        self.sent.extend((0..count).map(|i| Sent {
            order: first + i as u64,
            ..sent
        }));
        self.in_flight += u64::from(sent.size) * count as u64;
    }

    /// The datagram that begins with `seq` has so many bytes, with the segments that joined it.
    #[inline]
    pub fn note_whole(&mut self, seq: u64, bytes: usize) {
        let index = usize::try_from(seq.saturating_sub(self.una)).unwrap_or(usize::MAX);
        if let Some(s) = self.sent.get_mut(index) {
            s.whole = u32::try_from(bytes).unwrap_or(u32::MAX);
        }
    }

    /// The segment recorded last goes in a probe.
    pub fn note_probe(&mut self) {
        if let Some(s) = self.sent.back_mut() {
            s.probe = true;
        }
    }

    /// Whether the peer has `seq`, which was sent.
    #[must_use]
    pub fn is_delivered(&self, seq: u64) -> bool {
        let Some(ahead) = seq.checked_sub(self.una) else {
            return true;
        };
        let index = usize::try_from(ahead).ok();
        index
            .and_then(|i| self.sent.get(i))
            .is_some_and(|s| s.state == State::Sacked)
    }

    fn take_order(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order - 1
    }

    /// The first number to be sent again.
    pub fn next_lost(&mut self) -> Option<u64> {
        if self.lost == 0 {
            return None;
        }
        let start = self.lost_hint.max(self.una);
        let skip = usize::try_from(start - self.una).ok()?;
        let ahead = self
            .sent
            .iter()
            .skip(skip)
            .position(|s| s.state == State::Lost)?;
        self.lost_hint = start + ahead as u64;
        Some(self.lost_hint)
    }

    /// The newest number the peer is not known to have: what a probe sends again.
    #[must_use]
    pub fn probe(&self) -> Option<u64> {
        let back = self
            .sent
            .iter()
            .rev()
            .position(|s| s.state != State::Sacked)?;
        Some(self.next() - 1 - back as u64)
    }

    /// Records that `seq` was sent again, as `size` bytes.
    pub fn on_again(&mut self, seq: u64, now: Instant, size: usize) {
        let order = self.take_order();
        let Some(index) = seq
            .checked_sub(self.una)
            .and_then(|i| usize::try_from(i).ok())
        else {
            return;
        };
        let Some(s) = self.sent.get_mut(index) else {
            return;
        };
        match s.state {
            State::Lost => self.lost -= 1,
            State::Sacked => self.sacked -= 1,
            State::InFlight => self.in_flight -= u64::from(s.size),
        }
        if !s.again {
            self.again += 1;
        }
        s.size = u32::try_from(size).unwrap_or(u32::MAX);
        s.whole = s.size;
        self.in_flight += u64::from(s.size);
        (s.state, s.at, s.order, s.again) = (State::InFlight, now, order, true);
        s.probe = false;
    }

    /// Segments that cannot be built any more are not sent again.
    pub fn give_up(&mut self, range: core::ops::Range<u64>) {
        for seq in range.start.max(self.una)..range.end.min(self.next()) {
            let Ok(index) = usize::try_from(seq - self.una) else {
                return;
            };
            let s = &mut self.sent[index];
            match s.state {
                State::Sacked => continue,
                State::Lost => self.lost -= 1,
                State::InFlight => self.in_flight -= u64::from(s.size),
            }
            s.state = State::Sacked;
            self.sacked += 1;
        }
    }

    /// Everything before `upto` is placed. The caller has checked that `upto <= next()`.
    pub fn ack(&mut self, upto: u64, now: Instant, least_rtt: Duration, acked: &mut Acked) {
        if self.sacked == 0 && self.lost == 0 && self.again == 0 {
            return self.ack_regular(upto, acked);
        }
        while self.una < upto {
            let Some(s) = self.sent.pop_front() else {
                break;
            };
            self.una += 1;
            self.again -= u32::from(s.again);
            match s.state {
                State::Sacked => {
                    self.sacked -= 1;
                    continue;
                }
                State::Lost => self.lost -= 1,
                State::InFlight => self.in_flight -= u64::from(s.size),
            }
            self.delivered(&s, now, least_rtt, acked);
        }
    }

    /// As [`SendSpace::ack`], where each segment was sent once and none is lost or known to have
    /// arrived: the newest is the one sent last.
    fn ack_regular(&mut self, upto: u64, acked: &mut Acked) {
        let count = usize::try_from(upto.saturating_sub(self.una)).unwrap_or(usize::MAX);
        let count = count.min(self.sent.len());
        let (mut bytes, mut largest) = (0, acked.largest);
        let mut newest = None;
        for s in self.sent.drain(..count) {
            bytes += u64::from(s.size);
            largest = largest.max(s.whole);
            newest = Some(s);
        }
        let Some(newest) = newest else { return };
        self.una += count as u64;
        self.in_flight -= bytes;
        acked.bytes += bytes;
        acked.largest = largest;
        self.delivered = self.delivered.max(newest.order + 1);
        if newest.at >= acked.sent {
            (acked.sent, acked.sample) = (newest.at, Some(newest.at));
        }
    }

    /// The peer has `start .. end` out of order.
    pub fn sack(
        &mut self,
        range: core::ops::Range<u64>,
        now: Instant,
        least_rtt: Duration,
        acked: &mut Acked,
    ) {
        let start = range.start.max(self.una);
        let end = range.end.min(self.next());
        for seq in start..end {
            let Ok(index) = usize::try_from(seq - self.una) else {
                return;
            };
            let s = self.sent[index];
            match s.state {
                State::Sacked => continue,
                State::Lost => self.lost -= 1,
                State::InFlight => self.in_flight -= u64::from(s.size),
            }
            self.sent[index].state = State::Sacked;
            self.sacked += 1;
            self.delivered(&s, now, least_rtt, acked);
        }
    }

    #[inline]
    fn delivered(&mut self, s: &Sent, now: Instant, least_rtt: Duration, acked: &mut Acked) {
        acked.bytes += u64::from(s.size);
        acked.largest = acked.largest.max(s.whole);
        // An acknowledgment that comes sooner than the path allows answers an earlier transmission
        // (RFC 8985 section 6.2): it says nothing about the order in which this one arrived.
        if s.again && now.since(s.at) < least_rtt {
            return;
        }
        self.delivered = self.delivered.max(s.order + 1);
        if s.at >= acked.sent {
            acked.sent = s.at;
            acked.sample = (!s.again).then_some(s.at);
        }
    }

    /// Marks as lost what was sent before something delivered, by `PACKET_THRESHOLD` transmissions
    /// or by `delay` (RFC 9002 section 6.1 on transmission order instead of packet numbers).
    pub fn detect(&mut self, now: Instant, delay: Duration, found: &mut Losses) {
        // In-order delivery of first transmissions leaves nothing behind: the common case is free.
        if self.sacked == 0 && self.again == 0 {
            return;
        }
        for (i, s) in self.sent.iter_mut().enumerate() {
            if s.state != State::InFlight || s.order + 1 >= self.delivered {
                continue;
            }
            let due = s.at + delay;
            if self.delivered - 1 - s.order < PACKET_THRESHOLD && now < due {
                found.deadline = Some(found.deadline.map_or(due, |d| d.min(due)));
                continue;
            }
            s.state = State::Lost;
            self.lost += 1;
            self.in_flight -= u64::from(s.size);
            self.lost_hint = self.lost_hint.min(self.una + i as u64);
            if !s.probe {
                found.newest = found.newest.max(Some(s.at));
                found.largest = found.largest.max(s.whole);
            }
        }
    }

    /// Declares everything from `seq` on unsent: a time-out, or a receiver that was not ready.
    /// `sacked`: also what the peer reported to have, because it dropped that.
    pub fn lose_from(&mut self, seq: u64, sacked: bool) {
        let skip = usize::try_from(seq.saturating_sub(self.una)).unwrap_or(usize::MAX);
        for s in self.sent.iter_mut().skip(skip) {
            match s.state {
                State::InFlight => self.in_flight -= u64::from(s.size),
                State::Sacked if sacked => self.sacked -= 1,
                State::Sacked | State::Lost => continue,
            }
            s.state = State::Lost;
            self.lost += 1;
        }
        self.lost_hint = self.lost_hint.min(seq.max(self.una));
    }

    /// Whether the accounts agree with what they count.
    ///
    /// # Panics
    /// If not.
    #[cfg(test)]
    pub fn check(&self) {
        let count = |state| self.sent.iter().filter(|s| s.state == state).count() as u32;
        let bytes = |s: &Sent| {
            if s.state == State::InFlight {
                u64::from(s.size)
            } else {
                0
            }
        };
        assert_eq!(self.sacked, count(State::Sacked));
        assert_eq!(self.lost, count(State::Lost));
        assert_eq!(self.in_flight, self.sent.iter().map(bytes).sum::<u64>());
        assert_eq!(
            self.again,
            self.sent.iter().filter(|s| s.again).count() as u32
        );
        let first = self.sent.iter().position(|s| s.state == State::Lost);
        assert!(first.is_none_or(|at| self.una + at as u64 >= self.lost_hint));
    }

    /// Forgets everything outstanding.
    pub fn abandon(&mut self) {
        let next = self.next();
        let (order, delivered) = (self.next_order, self.delivered);
        *self = SendSpace {
            next_order: order,
            delivered,
            ..SendSpace::new(next)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(1);

    fn at(us: u64) -> Instant {
        Instant(us * 1000)
    }

    fn sent(n: u64) -> SendSpace {
        let mut s = SendSpace::new(100);
        for i in 0..n {
            s.on_new(at(i), 1000, false);
        }
        s
    }

    #[test]
    fn cumulative_acknowledgment_measures_the_newest() {
        let mut s = sent(4);
        let mut acked = Acked::default();
        s.ack(103, at(50), Duration::ZERO, &mut acked);
        assert_eq!((s.una(), s.next(), s.in_flight()), (103, 104, 1000));
        assert_eq!((acked.bytes, acked.sample), (3000, Some(at(2))));
    }

    #[test]
    fn an_acknowledgment_brings_the_same_whether_something_is_lost_or_not() {
        for lost in [false, true] {
            let mut s = sent(0);
            s.on_new(at(0), 1000, false);
            s.on_new(at(1), 200, true);
            s.note_whole(100, 1300);
            s.on_run(at(2), 1400, 3);
            if lost {
                s.lose_from(104, false);
            }
            s.check();
            let mut acked = Acked::default();
            s.ack(104, at(50), Duration::ZERO, &mut acked);
            s.check();
            assert_eq!((s.una(), s.next(), s.delivered), (104, 105, 3));
            assert_eq!((acked.bytes, acked.largest), (4000, 1400));
            assert_eq!((acked.sent, acked.sample), (at(2), Some(at(2))));
            // What was heard before is not newer.
            s.ack(104, at(60), Duration::ZERO, &mut acked);
            assert_eq!((acked.bytes, s.una()), (4000, 104));
        }
    }

    #[test]
    fn holes_are_lost_after_three_later_deliveries() {
        let mut s = sent(5);
        let mut acked = Acked::default();
        let mut found = Losses::default();
        s.sack(101..103, at(10), Duration::ZERO, &mut acked);
        s.detect(at(10), DELAY, &mut found);
        assert_eq!(s.next_lost(), None);
        assert_eq!(found.deadline, Some(at(1000)));
        s.sack(103..104, at(10), Duration::ZERO, &mut acked);
        s.detect(at(10), DELAY, &mut found);
        assert_eq!(s.next_lost(), Some(100));
        assert_eq!(s.in_flight(), 1000);
        s.on_again(100, at(11), 1000);
        assert_eq!(s.next_lost(), None);
        // Its acknowledgment is no measurement: which transmission does it answer?
        let mut acked = Acked::default();
        s.ack(105, at(30), Duration::ZERO, &mut acked);
        assert_eq!(acked.sample, None);
        assert!(!s.outstanding() && s.in_flight() == 0);
    }

    #[test]
    fn a_lost_retransmission_is_noticed() {
        let mut s = sent(5);
        let mut acked = Acked::default();
        s.sack(101..105, at(10), Duration::ZERO, &mut acked);
        s.detect(at(10), DELAY, &mut Losses::default());
        s.on_again(100, at(11), 1000);
        for i in 0..3 {
            s.on_new(at(12 + i), 1000, false);
        }
        s.sack(105..108, at(40), Duration::ZERO, &mut acked);
        s.detect(at(40), DELAY, &mut Losses::default());
        assert_eq!(s.next_lost(), Some(100));
    }

    #[test]
    fn not_ready_takes_back_selective_acknowledgments() {
        let mut s = sent(5);
        s.sack(102..104, at(10), Duration::ZERO, &mut Acked::default());
        s.lose_from(101, true);
        assert_eq!(s.next_lost(), Some(101));
        for seq in 101..105 {
            assert_eq!(s.next_lost(), Some(seq));
            s.on_again(seq, at(20), 1000);
        }
        assert_eq!((s.next_lost(), s.in_flight()), (None, 5000));
    }

    #[test]
    fn the_probe_is_the_newest_unconfirmed() {
        let mut s = sent(4);
        s.sack(103..104, at(10), Duration::ZERO, &mut Acked::default());
        assert_eq!(s.probe(), Some(102));
        s.abandon();
        assert_eq!((s.probe(), s.next(), s.in_flight()), (None, 104, 0));
    }
}
