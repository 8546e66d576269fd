//! What the peer has written: records taken, acknowledgments, refusals.

use causeway_proto::Bytes;
use causeway_proto::qp::{Bound, Qp};
use causeway_proto::types::QpState;
use causeway_proto::ulp::{Nak, SegMeta, Space, Ulp, Verdict};
use causeway_shm::{Corrupt, Counter, Record};

use super::{Flow, Refusal, RingLink};
use crate::clock::Now;
use crate::core::{Core, ENOUGH};
use crate::qp_entry::QpEntry;
use crate::record::{DIRECT, LAST, kind};

/// Records handled in one progress, so that other queue pairs get their turn.
const RECEIVE_MOST: usize = 64;
/// Records taken after which the peer is told at once.
const TELL_AFTER: usize = 16;

impl Flow {
    /// Handles one record.
    fn on_record(
        &mut self,
        record: &Record<'_>,
        qp: &mut Bound<'_, Core>,
        now: &Now,
    ) -> Result<(), Corrupt> {
        // SAFETY: the body stays readable while the record is borrowed, and is only copied.
        let body = unsafe { Bytes::from_raw(record.as_ptr(), record.len()) };
        match record.kind {
            kind::REQUEST => self.on_request(record.seq, record.flags, body, qp),
            kind::RESPONSE => {
                if record.seq != self.expected_response {
                    return Err(Corrupt);
                }
                self.expected_response += 1;
                let last = record.flags & LAST != 0;
                let meta = SegMeta {
                    seq: record.seq,
                    first: record.seq,
                    last,
                    direct: false,
                };
                qp.receive(Space::Response, meta, body, true);
            }
            kind::NOT_READY => {
                if !self.is_unacknowledged(record.seq) {
                    return Err(Corrupt);
                }
                self.acknowledge(record.seq, qp);
                qp.host.stats.add(Counter::RnrReceived, 1);
                self.not_ready += 1;
                self.hold_until = qp.not_ready(record.seq, record.flags, now.get());
                self.again = self.hold_until.map(|_| record.seq);
            }
            kind::REFUSED => {
                // A READ may be accepted, and be refused when its memory is gone by the time that
                // it is answered.
                if record.seq >= self.next[Space::Request as usize] {
                    return Err(Corrupt);
                }
                let nak = match record.flags {
                    0 => Nak::InvalidRequest,
                    1 => Nak::RemoteAccess,
                    _ => Nak::RemoteOperation,
                };
                qp.refused(record.seq, nak);
            }
            _ => return Err(Corrupt),
        }
        Ok(())
    }

    fn on_request(&mut self, seq: u64, flags: u8, body: Bytes<'_>, qp: &mut Bound<'_, Core>) {
        // Behind a refused request everything is dropped until that one comes again.
        if seq != self.expected || self.refused {
            return;
        }
        let last = flags & LAST != 0;
        let meta = SegMeta {
            seq,
            first: self.first,
            last,
            direct: flags & DIRECT != 0,
        };
        match qp.receive(Space::Request, meta, body, true) {
            Verdict::Placed => {
                self.expected += 1;
                if last {
                    self.first = self.expected;
                }
            }
            Verdict::NotReady(timer) => {
                qp.host.stats.add(Counter::RnrSent, 1);
                self.refusal = Some(Refusal::NotReady { seq, timer });
            }
            Verdict::Refused(nak) => {
                self.refused = true;
                self.refusal = Some(Refusal::Final { seq, nak });
            }
            Verdict::Later | Verdict::Ignore => {}
        }
    }

    fn is_unacknowledged(&self, seq: u64) -> bool {
        (self.acked..self.next[Space::Request as usize]).contains(&seq)
    }

    /// As [`Flow::acknowledge`], if the peer may say so. Where nothing is unacknowledged it may say
    /// anything: the first number means nothing to a side that has not begun to send.
    #[inline]
    fn take_ack(&mut self, upto: u64, qp: &mut Bound<'_, Core>) -> Result<(), Corrupt> {
        let sent = self.next[Space::Request as usize];
        if self.acked >= sent {
            return Ok(());
        }
        if upto > sent {
            return Err(Corrupt);
        }
        self.acknowledge(upto, qp);
        Ok(())
    }

    /// All requests below `upto` are placed, says the peer.
    #[inline]
    fn acknowledge(&mut self, upto: u64, qp: &mut Bound<'_, Core>) {
        if upto > self.acked {
            self.acked = upto;
            qp.acked(Space::Request, upto);
        }
    }
}

/// Takes what the peer has written. Returns whether it was anything.
pub(crate) fn receive(entry: &mut QpEntry, core: &mut Core, now: &Now) -> bool {
    let Some((qp, link)) = entry.ring() else {
        return false;
    };
    let mut bound = qp.bind(core);
    match link.take_records(&mut bound, now) {
        Ok(worked) => worked,
        Err(Corrupt) => {
            if link.peer_gone {
                return false;
            }
            link.peer_gone = true;
            bound.lost();
            true
        }
    }
}

impl RingLink {
    fn take_records(&mut self, qp: &mut Bound<'_, Core>, now: &Now) -> Result<bool, Corrupt> {
        let mut taken = 0;
        let (mut leaving, mut drained) = (false, false);
        while taken < RECEIVE_MOST && !(taken >= ENOUGH && qp.host.enough) {
            let Some(record) = self.ring.rx.peek()? else {
                if leaving || !self.ring.is_peer_leaving() {
                    drained = true;
                    break;
                }
                // Look again: what was published before a flag is visible once the flag is.
                leaving = true;
                continue;
            };
            // Before it: programs free a request when its answer has come.
            self.flow.take_ack(record.ack, qp)?;
            self.flow.on_record(&record, qp, now)?;
            self.ring.rx.consume();
            taken += 1;
        }
        if taken > 0 {
            self.peer_joined();
            self.ring.set_req_ack(self.flow.expected);
        }
        let progress = self.take_ack_word(qp)?;
        let deserted = leaving && drained && !self.deserted;
        self.deserted |= deserted;
        if taken > 0 {
            qp.host.stats.add(Counter::RingRxRecords, taken as u64);
            self.untold += taken;
            if self.untold >= TELL_AFTER {
                self.settle(qp.host);
            }
        }
        Ok(taken > 0 || progress || deserted)
    }

    /// Looks up to `looks` times whether something has come, and takes it if it is messages of one
    /// segment without options and nothing is out of the ordinary; if nothing has come, an
    /// acknowledgment. Returns false, with nothing taken, where [`receive`] must look.
    #[inline]
    pub fn take_plain(&mut self, qp: &mut Qp, core: &mut Core, looks: u32) -> bool {
        let waited = !self.is_ready();
        if waited && !(1..looks).any(|_| self.is_ready()) {
            return self.take_ack_word(&mut qp.bind(core)).unwrap_or(false);
        }
        let mut taken = 0;
        while self.take_one(qp, core) {
            taken += 1;
            // Behind what has just come nothing is to be expected, and to look for it would have
            // its completion wait for the line that the peer is about to write.
            let enough = taken >= RECEIVE_MOST || (taken >= ENOUGH && core.enough);
            if waited || enough || !self.is_ready() {
                break;
            }
        }
        taken > 0
    }

    /// Takes one of them.
    #[inline]
    fn take_one(&mut self, qp: &mut Qp, core: &mut Core) -> bool {
        if !self.joined || self.flow.refused {
            return false;
        }
        let Ok(Some(record)) = self.ring.rx.peek() else {
            return false;
        };
        // SAFETY: as in `on_record`.
        let segment = unsafe { Bytes::from_raw(record.as_ptr(), record.len()) };
        let due = record.kind == kind::REQUEST
            && record.flags == LAST
            && record.seq == self.flow.expected;
        // What was never sent is acknowledged by a faulty peer, which `take_records` is to find.
        if !due || self.flow.take_ack(record.ack, &mut qp.bind(core)).is_err() {
            return false;
        }
        if !qp.receive_plain(segment, core) {
            return false;
        }
        self.ring.rx.consume();
        self.flow.expected += 1;
        self.flow.first = self.flow.expected;
        self.ring.set_req_ack(self.flow.expected);
        core.stats.add(Counter::RingRxRecords, 1);
        self.untold += 1;
        if self.untold >= TELL_AFTER {
            self.settle(core);
        }
        true
    }

    /// Whether a record seems to have come.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.ring.rx.ready()
    }

    /// Whether [`super::transmit`] would do anything.
    pub fn has_work(&self, qp: &Qp) -> bool {
        self.flow.refusal.is_some()
            || self.flow.again.is_some()
            || self.deserted
            || self.peer_gone
            || qp.has_segment()
            || qp.state() == QpState::Err
    }

    /// Takes the acknowledgment of a peer whose process has ended, also what it had not come to
    /// tell. One that was never sent is left to who finds the ring broken.
    pub fn take_last_ack(&mut self, qp: &mut Bound<'_, Core>) {
        let upto = self.ring.last_req_ack();
        if upto <= self.flow.next[Space::Request as usize] {
            self.flow.acknowledge(upto, qp);
        }
    }

    /// Takes the peer's acknowledgment that came without a record, where one is awaited.
    fn take_ack_word(&mut self, qp: &mut Bound<'_, Core>) -> Result<bool, Corrupt> {
        let sent = self.flow.next[Space::Request as usize];
        if self.flow.acked >= sent {
            return Ok(false);
        }
        let upto = self.ring.req_ack();
        if upto > sent {
            return Err(Corrupt);
        }
        if upto <= self.flow.acked {
            return Ok(false);
        }
        self.peer_joined();
        self.flow.acknowledge(upto, qp);
        Ok(true)
    }
}
