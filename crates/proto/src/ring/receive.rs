//! Takes what the peer has written to the ring: records, acknowledgments and refusals.

use super::{Corrupt, DIRECT, LAST, Link, Record, Refusal, Shared, kind};
use crate::ddp;
use crate::host::Tally;
use crate::time::Instant;
use crate::ulp::{Nak, SegMeta, Space, Ulp, Verdict};

/// Records handled in one pass, so that other queue pairs get their turn.
const RECEIVE_MOST: usize = 64;
/// Records taken after which the peer is told at once.
const TELL_AFTER: usize = 16;
/// Records taken before a program that has enough to do is left to do it.
const ENOUGH: usize = 16;

/// Whether so many records are enough for one pass. `sated`: the program has enough to do.
#[inline(always)]
#[must_use]
pub fn is_enough(taken: usize, sated: bool) -> bool {
    taken >= RECEIVE_MOST || (taken >= ENOUGH && sated)
}

impl Link {
    /// Takes what the peer has written. Returns whether it was anything.
    pub fn receive<S: Shared, U: Ulp>(
        &mut self,
        shm: &mut S,
        ulp: &mut U,
        now: &impl Fn() -> Instant,
    ) -> bool {
        let worked = match self.take_records(shm, ulp, now) {
            Ok(worked) => worked,
            Err(Corrupt) if self.gone => false,
            Err(Corrupt) => {
                self.give_up(ulp);
                true
            }
        };
        self.set_gate();
        worked
    }

    fn take_records<S: Shared, U: Ulp>(
        &mut self,
        shm: &mut S,
        ulp: &mut U,
        now: &impl Fn() -> Instant,
    ) -> Result<bool, Corrupt> {
        let mut taken = 0;
        let (mut leaving, mut drained) = (false, false);
        while taken < RECEIVE_MOST && !(taken >= ENOUGH && ulp.has_enough()) {
            let Some(record) = shm.peek()? else {
                if leaving || !shm.is_peer_leaving() {
                    drained = true;
                    break;
                }
                // Look again: what was published before a flag is visible once the flag is.
                leaving = true;
                continue;
            };
            // Before it: programs free a request when its answer has come.
            self.take_ack(record.ack, ulp)?;
            self.on_record(&record, ulp, now)?;
            shm.consume();
            taken += 1;
        }
        if taken > 0 {
            self.peer_joined();
            shm.set_ack(self.expected);
        }
        let progress = self.take_ack_word(shm, ulp)?;
        let deserted = leaving && drained && !self.deserted;
        self.deserted |= deserted;
        if taken > 0 {
            ulp.tally(Tally::Taken, taken as u64);
            self.untold += taken;
            if self.untold >= TELL_AFTER {
                let woken = self.settle(shm);
                ulp.tally(Tally::Woken, u64::from(woken));
            }
        }
        Ok(taken > 0 || progress || deserted)
    }

    /// Handles one record.
    fn on_record<U: Ulp>(
        &mut self,
        record: &Record<'_>,
        ulp: &mut U,
        now: &impl Fn() -> Instant,
    ) -> Result<(), Corrupt> {
        match record.kind {
            kind::MESSAGE if record.flags != LAST => return Err(Corrupt),
            kind::REQUEST | kind::MESSAGE => self.on_request(record, ulp),
            kind::RESPONSE => {
                if record.seq != self.expected_response {
                    return Err(Corrupt);
                }
                self.expected_response += 1;
                let meta = SegMeta {
                    seq: record.seq,
                    first: record.seq,
                    last: record.flags & LAST != 0,
                    direct: false,
                };
                let (unit, payload) = ddp::read(record.body);
                ulp.receive(Space::Response, meta, &unit, payload, true);
            }
            kind::NOT_READY => {
                if !(self.acked..self.next_request()).contains(&record.seq) {
                    return Err(Corrupt);
                }
                self.acknowledge(record.seq, ulp);
                ulp.tally(Tally::NotReadyReceived, 1);
                self.not_ready += 1;
                self.hold_until = ulp.not_ready(record.seq, record.flags, now());
                self.again = self.hold_until.map(|_| record.seq);
            }
            kind::REFUSED => {
                // A READ may be accepted, and be refused when its memory is gone by the time that
                // it is answered.
                if record.seq >= self.next_request() {
                    return Err(Corrupt);
                }
                let nak = match record.flags {
                    0 => Nak::InvalidRequest,
                    1 => Nak::RemoteAccess,
                    _ => Nak::RemoteOperation,
                };
                ulp.refused(record.seq, nak);
            }
            _ => return Err(Corrupt),
        }
        Ok(())
    }

    fn on_request<U: Ulp>(&mut self, record: &Record<'_>, ulp: &mut U) {
        let seq = record.seq;
        // Behind a refused request everything is dropped until that one comes again.
        if seq != self.expected || self.refused {
            return;
        }
        let last = record.flags & LAST != 0;
        let meta = SegMeta {
            seq,
            first: self.first,
            last,
            direct: record.flags & DIRECT != 0,
        };
        let verdict = match record.kind {
            kind::MESSAGE => ulp.message(meta, record.body),
            _ => {
                let (unit, payload) = ddp::read(record.body);
                ulp.receive(Space::Request, meta, &unit, payload, true)
            }
        };
        match verdict {
            Verdict::Placed => self.placed(last),
            Verdict::NotReady(timer) => {
                ulp.tally(Tally::NotReadySent, 1);
                self.refusal = Some(Refusal::NotReady { seq, timer });
            }
            Verdict::Refused(nak) => {
                self.refuse();
                self.refusal = Some(Refusal::Final { seq, nak });
            }
            Verdict::Later | Verdict::Ignore => {}
        }
    }

    /// One of the peer's requests is refused for good.
    pub(super) fn refuse(&mut self) {
        self.refused = true;
        self.set_gate();
    }

    /// The request expected has been placed.
    #[inline(always)]
    fn placed(&mut self, last: bool) {
        self.expected += 1;
        if last {
            self.first = self.expected;
        }
    }

    /// Takes what has come if it is messages of one unit without options, and nothing is out of the
    /// ordinary, until that is enough. Returns false, with nothing taken, where [`Link::receive`]
    /// must look. `waited`: what is there came just now. `taken`: how many were taken already.
    #[inline(always)]
    pub fn take_plain<S: Shared, U: Ulp>(
        &mut self,
        shm: &mut S,
        ulp: &mut U,
        waited: bool,
        mut taken: usize,
    ) -> bool {
        while self.take_one(shm, ulp) {
            taken += 1;
            // Behind what has just come nothing is to be expected, and to look for it would have
            // its completion wait for the line that the peer is about to write.
            if waited || is_enough(taken, ulp.has_enough()) || !shm.is_ready() {
                break;
            }
        }
        taken > 0 || ulp.is_sated()
    }

    /// Takes one of them.
    #[inline(always)]
    fn take_one<S: Shared, U: Ulp>(&mut self, shm: &mut S, ulp: &mut U) -> bool {
        let Ok(Some(record)) = shm.peek() else {
            return false;
        };
        let due = record.kind == kind::MESSAGE && record.flags == LAST;
        if !due || !self.takes_message(record.seq, record.ack, ulp) {
            return false;
        }
        if ulp.is_sated() || !ulp.message_plain(record.body) {
            return false;
        }
        shm.consume();
        self.took_message(shm, ulp);
        true
    }

    /// Whether a message may be taken as request `seq` the short way. Takes what its record
    /// acknowledges, before it: programs free a request when its answer has come. What was never
    /// sent is acknowledged by a faulty peer, which [`Link::receive`] is to find.
    #[inline(always)]
    pub fn takes_message(&mut self, seq: u64, ack: u64, ulp: &mut impl Ulp) -> bool {
        self.takes_next(seq) && self.take_ack(ack, ulp).is_ok()
    }

    /// Requests below are acknowledged.
    #[inline(always)]
    #[must_use]
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// Whether a record that acknowledges so much may have news of what this side has sent, or says
    /// what it must not.
    #[inline(always)]
    #[must_use]
    pub fn is_news(&self, ack: u64) -> bool {
        ack > self.acked
    }

    /// Whether a message may be taken as request `seq` the short way, if its record has no news
    /// ([`Link::is_news`]).
    #[inline(always)]
    #[must_use]
    pub fn takes_next(&self, seq: u64) -> bool {
        debug_assert_eq!(self.receives, self.looks_open(), "the gate was not set");
        self.receives && seq == self.expected
    }

    /// The acknowledgment `upto`, which came without a record, was taken: it completed the only
    /// request below that was not complete ([`crate::qp::Qp::take_one_acked`]).
    #[inline(always)]
    pub fn took_ack(&mut self, upto: u64) {
        debug_assert!(
            self.acked < upto && upto <= self.next_request(),
            "it was sent"
        );
        self.acked = upto;
    }

    /// The message that [`Link::takes_message`] said yes to was taken, and its record too.
    #[inline(always)]
    pub fn took_message(&mut self, shm: &mut impl Shared, ulp: &impl Ulp) {
        self.took_one_of_few(shm, ulp);
        if self.untold >= TELL_AFTER {
            self.tell_taken(shm, ulp);
        }
    }

    /// Whether the peer is to be told once one more is taken: [`Link::took_message`] would call.
    #[inline(always)]
    #[must_use]
    pub fn tells_soon(&self) -> bool {
        self.untold >= TELL_AFTER - 1
    }

    /// As [`Link::took_message`], unless [`Link::tells_soon`] has said yes. Calls nothing.
    #[inline(always)]
    pub fn took_one_of_few(&mut self, shm: &mut impl Shared, ulp: &impl Ulp) {
        self.placed(true);
        shm.set_ack(self.expected);
        ulp.tally(Tally::Taken, 1);
        self.untold += 1;
    }

    #[cold]
    #[inline(never)]
    fn tell_taken(&mut self, shm: &mut impl Shared, ulp: &impl Ulp) {
        let woken = self.settle(shm);
        ulp.tally(Tally::Woken, u64::from(woken));
    }

    /// As [`Link::acknowledge`], if the peer may say so. Where nothing is unacknowledged it may say
    /// anything: the first number means nothing to a side that has not begun to send.
    #[inline(always)]
    fn take_ack(&mut self, upto: u64, ulp: &mut impl Ulp) -> Result<(), Corrupt> {
        let sent = self.next_request();
        if self.acked >= sent {
            return Ok(());
        }
        if upto > sent {
            return Err(Corrupt);
        }
        self.acknowledge(upto, ulp);
        Ok(())
    }

    /// All requests below `upto` are placed, says the peer.
    #[inline(always)]
    fn acknowledge(&mut self, upto: u64, ulp: &mut impl Ulp) {
        if upto > self.acked {
            self.acked = upto;
            ulp.acked(Space::Request, upto);
        }
    }

    /// Takes the peer's acknowledgment that came without a record, where one is awaited. Returns
    /// whether there was any.
    ///
    /// # Errors
    /// [`Corrupt`] if it acknowledges what was never sent.
    #[inline(always)]
    pub fn take_ack_word<S: Shared, U: Ulp>(
        &mut self,
        shm: &mut S,
        ulp: &mut U,
    ) -> Result<bool, Corrupt> {
        let sent = self.next_request();
        if self.acked >= sent {
            return Ok(false);
        }
        let upto = shm.ack();
        if upto > sent {
            return Err(Corrupt);
        }
        if upto <= self.acked {
            return Ok(false);
        }
        self.peer_joined();
        self.acknowledge(upto, ulp);
        Ok(true)
    }

    /// Takes the acknowledgment of a peer whose process has ended, also what it had not come to
    /// tell. One that was never sent is left to the check that finds the ring broken.
    pub fn take_last_ack(&mut self, shm: &mut impl Shared, ulp: &mut impl Ulp) {
        let upto = shm.last_ack();
        if upto <= self.next_request() {
            self.acknowledge(upto, ulp);
        }
    }
}
