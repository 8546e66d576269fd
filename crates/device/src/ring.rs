//! The ring wire: a queue pair's segments through a lossless ring in shared memory.
//!
//! What is written arrives, once and in order, so nothing is acknowledged but the number up to
//! which requests have been placed. Only a request refused for want of a receive is written again:
//! the reader drops what follows it until it comes once more.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use causeway_proto::qp::{Bound, Qp};
use causeway_proto::trp::Budget;
use causeway_proto::types::QpState;
use causeway_proto::ulp::{Nak, SegMeta, Space, Ulp, Verdict};
use causeway_proto::{Bytes, BytesMut, Instant};
use causeway_shm::layout::{RING_CAPACITY, ring_len};
use causeway_shm::ring::Flag;
use causeway_shm::{Attention, Corrupt, Counter, Record, Ring, Segment, Side, notify};
use causeway_wire::rdmap::MAX_HEADER;

use crate::clock::{Now, earlier};
use crate::core::Core;
use crate::errno::Errno;
use crate::peers::{PeerEnd, Peers, refused};
use crate::qp_entry::{Link, QpEntry};
use crate::record::{LAST, kind, kind_of};

/// Payload of one record: small enough that the reader copies out while the writer copies in.
const CHUNK: usize = 8192;
/// Payload of a message that is built aside and copied to the ring in one go. The reader polls the
/// line that such a message fills: built there, the line would go back and forth for every store.
const SHORT: usize = 32;
/// Records handled in one progress, so that other queue pairs get their turn.
const RECEIVE_MOST: usize = 64;
/// Records written in one progress.
const TRANSMIT_MOST: usize = 64;
/// How long a send to a queue pair that is gone takes to fail.
const DESERTED_AFTER: std::time::Duration = std::time::Duration::from_secs(1);
/// Records taken after which the peer is told at once.
const TELL_AFTER: usize = 16;
/// What the broker introduced a queue pair with.
pub(crate) struct Introduced {
    pub side: u8,
    pub generation: u64,
    pub ring: OwnedFd,
    pub peer: u64,
    pub peer_inbox: OwnedFd,
    pub peer_doorbell: OwnedFd,
    /// Index of the peer's queue pair.
    pub index: u32,
    /// First request number expected.
    pub rq_psn: u32,
}

/// A refusal to be written as soon as there is room.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    NotReady { seq: u64, timer: u8 },
    Final { seq: u64, nak: Nak },
}

/// Where a queue pair stands in its two directions.
#[derive(Debug, Default)]
struct Flow {
    /// Next number of each space to write.
    next: [u64; 2],
    /// Requests below are acknowledged.
    acked: u64,
    /// Next request expected, and the first of its message.
    expected: u64,
    first: u64,
    /// Next response expected.
    expected_response: u64,
    /// Requests from here on are to be written again, not before the time given.
    again: Option<u64>,
    hold_until: Option<Instant>,
    refusal: Option<Refusal>,
    /// One of the peer's requests was refused for good: no more are taken.
    refused: bool,
}

/// A queue pair's end of a ring.
#[derive(Debug)]
pub(crate) struct RingLink {
    ring: Ring,
    flow: Flow,
    peer: Arc<PeerEnd>,
    index: u32,
    generation: u64,
    /// The peer's queue pair has taken its side, or will not matter any more.
    joined: bool,
    /// When sends to a peer that does not answer fail.
    give_up_at: Option<Instant>,
    /// The peer's queue pair was destroyed, was reset or failed.
    deserted: bool,
    /// The peer is dead, or has broken the ring.
    peer_gone: bool,
    /// Records taken since the peer was last told.
    untold: usize,
    /// The peer has been told that this queue pair failed.
    said_failed: bool,
}

impl RingLink {
    /// Takes the side of the ring that the broker assigned.
    pub fn open(peers: &Peers, with: Introduced) -> Result<Self, Errno> {
        let peer = peers.get(with.peer, with.peer_inbox, with.peer_doorbell)?;
        let segment = Segment::map(with.ring, ring_len(RING_CAPACITY)).map_err(refused)?;
        let side = if with.side == 0 { Side::A } else { Side::B };
        let ring = Ring::attach(Arc::new(segment), side).map_err(refused)?;
        let expected = u64::from(with.rq_psn);
        Ok(RingLink {
            ring,
            flow: Flow {
                expected,
                first: expected,
                ..Flow::default()
            },
            peer,
            index: with.index,
            generation: with.generation,
            joined: side == Side::B,
            give_up_at: None,
            deserted: false,
            peer_gone: false,
            untold: 0,
            said_failed: false,
        })
    }

    /// Begins to send requests, numbered from `sq_psn`.
    pub fn start(&mut self, sq_psn: u32) {
        if self.flow.next[Space::Request as usize] == 0 {
            self.flow.next[Space::Request as usize] = u64::from(sq_psn);
            self.flow.acked = u64::from(sq_psn);
        }
    }

    /// The number by which the broker names this ring.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn deadline(&self) -> Option<Instant> {
        earlier(self.flow.hold_until, self.give_up_at)
    }

    /// Gives up on a peer that never joined. What was held back is written by the next transmit.
    pub fn on_timer(&mut self, qp: &mut Qp, core: &mut Core, now: Instant) {
        if self.give_up_at.is_some_and(|when| when <= now) {
            self.give_up_at = None;
            self.peer_gone = true;
            qp.bind(core).lost();
        }
    }

    /// The peer's queue pair has taken its side, as the broker or a sign of it says.
    pub fn peer_joined(&mut self) {
        self.joined = true;
        if !self.deserted {
            self.give_up_at = None;
        }
    }

    /// The peer's process is dead.
    pub fn peer_died(&mut self) {
        self.peer_gone = true;
        self.joined = true;
        self.give_up_at = None;
    }

    /// Says whether this endpoint polls the ring from now on. Returns false where it cannot stop
    /// yet, because something has just come.
    pub fn set_hot(&mut self, hot: bool) -> bool {
        if hot {
            self.ring.heat();
            return true;
        }
        let events = Attention::DATA.and(Attention::ACK).and(Attention::ROOM);
        self.ring.cool(events).unwrap_or(true)
    }

    /// Tells the peer that this queue pair is reset or destroyed.
    pub fn close(&mut self) {
        self.publish_ack();
        self.ring.set_flag(Flag::Closed);
        self.notify(Attention::DATA.and(Attention::ACK));
    }

    /// Whether the peer has not been told of something taken.
    pub fn is_unsettled(&self) -> bool {
        self.untold > 0
    }

    /// Tells the peer what has been taken and acknowledged.
    pub fn settle(&mut self, core: &Core) {
        if self.untold == 0 && !self.ring.ack_pending() {
            return;
        }
        self.untold = 0;
        let acked = self.publish_ack();
        let events = if acked {
            Attention::ROOM.and(Attention::ACK)
        } else {
            Attention::ROOM
        };
        self.notify_counted(events, core);
    }

    fn publish_ack(&mut self) -> bool {
        self.ring.ack_pending() && self.ring.publish_ack()
    }

    /// Tells the peer of what has just become visible. Returns whether its doorbell was rung.
    fn notify(&self, events: Attention) -> bool {
        // A bell that cannot be rung belongs to a dead peer; the broker says so.
        notify(
            &self.ring,
            events,
            &self.peer.inbox,
            &self.peer.bell,
            self.index,
        )
        .unwrap_or(false)
    }

    fn notify_counted(&self, events: Attention, core: &Core) {
        if self.notify(events) {
            core.stats.add(Counter::DoorbellsRung, 1);
        }
    }
}

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
            kind::REQUEST => self.on_request(record.seq, record.flags & LAST != 0, body, qp),
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
                };
                qp.receive(Space::Response, meta, body, true);
            }
            kind::NOT_READY => {
                if !self.is_unacknowledged(record.seq) {
                    return Err(Corrupt);
                }
                self.acknowledge(record.seq, qp);
                qp.host.stats.add(Counter::RnrReceived, 1);
                self.hold_until = qp.not_ready(record.seq, record.flags, now.get());
                self.again = self.hold_until.map(|_| record.seq);
            }
            kind::REFUSED => {
                if !self.is_unacknowledged(record.seq) {
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

    fn on_request(&mut self, seq: u64, last: bool, body: Bytes<'_>, qp: &mut Bound<'_, Core>) {
        // Behind a refused request everything is dropped until that one comes again.
        if seq != self.expected || self.refused {
            return;
        }
        let meta = SegMeta {
            seq,
            first: self.first,
            last,
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

    /// All requests below `upto` are placed, says the peer.
    fn acknowledge(&mut self, upto: u64, qp: &mut Bound<'_, Core>) {
        if upto > self.acked {
            self.acked = upto;
            qp.acked(Space::Request, upto);
        }
    }
}

/// Takes what the peer has written. Returns whether it was anything.
pub(crate) fn receive(entry: &mut QpEntry, core: &mut Core, now: &Now) -> bool {
    let QpEntry {
        qp,
        link: Link::Ring(link),
        ..
    } = entry
    else {
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
        // Before the last look for a record: those published before a flag are visible once the
        // flag is.
        let leaving = !self.ring.rx.ready() && self.ring.is_peer_leaving();
        let mut taken = 0;
        while taken < RECEIVE_MOST {
            let Some(record) = self.ring.rx.peek()? else {
                break;
            };
            self.flow.on_record(&record, qp, now)?;
            self.ring.rx.consume();
            taken += 1;
        }
        if taken > 0 {
            self.peer_joined();
            self.ring.set_req_ack(self.flow.expected);
        }
        let progress = self.take_acks(qp)?;
        let deserted = leaving && taken < RECEIVE_MOST && !self.deserted;
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

    /// Whether a record seems to have come.
    pub fn is_ready(&self) -> bool {
        self.ring.rx.ready()
    }

    /// Whether [`transmit`] would do anything.
    pub fn has_work(&self, qp: &Qp) -> bool {
        self.flow.refusal.is_some()
            || self.flow.again.is_some()
            || self.deserted
            || self.peer_gone
            || qp.has_segment()
            || qp.state() == QpState::Err
    }

    /// Takes the peer's acknowledgment, where one is awaited.
    fn take_acks(&mut self, qp: &mut Bound<'_, Core>) -> Result<bool, Corrupt> {
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

/// Writes what the queue pair has to send. Returns whether something is left that waits for room.
pub(crate) fn transmit(entry: &mut QpEntry, core: &mut Core, now: &Now) -> bool {
    let QpEntry {
        qp,
        link: Link::Ring(link),
        ..
    } = entry
    else {
        return false;
    };
    let mut bound = qp.bind(core);
    if link.peer_gone {
        if bound.qp.expects_answer() {
            bound.lost();
        }
        return false;
    }
    let left = match link.write_records(&mut bound, now) {
        Ok(left) => left && !link.deserted,
        Err(Corrupt) => {
            link.peer_gone = true;
            bound.lost();
            false
        }
    };
    if link.ring.tx.publish() {
        // The records carry the acknowledgment.
        let also = if link.untold > 0 {
            Attention::ROOM
        } else {
            Attention::DATA
        };
        link.untold = 0;
        link.notify_counted(Attention::DATA.and(also), bound.host);
    }
    let failed = bound.qp.state() == QpState::Err;
    if failed && !left && !link.said_failed {
        link.said_failed = true;
        link.ring.set_flag(Flag::Failed);
        link.notify(Attention::DATA);
    }
    link.mind_silence(bound.qp, now);
    left
}

impl RingLink {
    /// Sets a limit to waiting for a peer that is not there yet, or not any more. A NIC keeps
    /// silent about a peer that has destroyed its queue pair until the retries are used up, and
    /// programs that end with sends under way rely on it.
    fn mind_silence(&mut self, qp: &Qp, now: &Now) {
        if !qp.expects_answer() || qp.state() == QpState::Err {
            self.give_up_at = None;
        } else if self.give_up_at.is_none() && (self.deserted || !self.joined) {
            let attr = qp.attr();
            let budget = Budget::new(attr.timeout, attr.retry_cnt).limit();
            let budget = if self.deserted {
                Some(DESERTED_AFTER)
            } else {
                budget
            };
            self.give_up_at = budget.map(|budget| now.get() + budget);
        }
    }

    fn write_records(&mut self, qp: &mut Bound<'_, Core>, now: &Now) -> Result<bool, Corrupt> {
        if self.flow.refusal.is_some() && !self.write_refusal()? {
            return Ok(true);
        }
        if self.flow.hold_until.is_some_and(|when| when <= now.get()) {
            self.flow.hold_until = None;
        }
        for _ in 0..TRANSMIT_MOST {
            let held = self.flow.hold_until.is_some();
            let again = self.flow.again.filter(|_| !held);
            let wrote = if qp.has_next(Space::Response) {
                self.write_next(Space::Response, qp)?
            } else if let Some(seq) = again {
                self.write_again(seq, qp)?
            } else if !held && qp.has_next(Space::Request) {
                self.write_next(Space::Request, qp)?
            } else {
                return Ok(false);
            };
            match wrote {
                Wrote::Record => {}
                Wrote::Nothing => return Ok(false),
                Wrote::NoRoom => return Ok(true),
            }
        }
        Ok(true)
    }

    fn write_refusal(&mut self) -> Result<bool, Corrupt> {
        let Some(slot) = self.ring.tx.reserve(0, 0)? else {
            return Ok(false);
        };
        match self.flow.refusal.take() {
            Some(Refusal::NotReady { seq, timer }) => slot.commit(kind::NOT_READY, timer, seq, 0),
            Some(Refusal::Final { seq, nak }) => {
                slot.commit(kind::REFUSED, nak as u8, seq, 0);
            }
            None => {}
        }
        Ok(true)
    }

    fn write_next(&mut self, space: Space, qp: &mut Bound<'_, Core>) -> Result<Wrote, Corrupt> {
        let size = CHUNK + MAX_HEADER;
        let Some(mut slot) = self.ring.tx.reserve(size, size)? else {
            return Ok(Wrote::NoRoom);
        };
        let seq = self.flow.next[space as usize];
        let built = if qp.qp.is_next_short(space, SHORT) {
            let mut short = [0; MAX_HEADER + SHORT];
            let built = qp.next(space, seq, &mut BytesMut::from(&mut short[..]));
            if let Some((_, len)) = built {
                slot.write(0, &short[..len]);
            }
            built
        } else {
            // SAFETY: the slot's body is ours to write until it is committed.
            let mut out = unsafe { BytesMut::from_raw(slot.as_mut_ptr(), slot.len()) };
            qp.next(space, seq, &mut out)
        };
        if let Some((seq, nak)) = qp.qp.take_late_refusal() {
            self.flow.refusal = Some(Refusal::Final { seq, nak });
            self.flow.refused = true;
        }
        let Some((meta, len)) = built else {
            return Ok(Wrote::Nothing);
        };
        slot.commit(kind_of(space), u8::from(meta.last), seq, len);
        self.flow.next[space as usize] += 1;
        if space == Space::Response {
            // Written is delivered.
            qp.acked(space, seq + 1);
        }
        qp.host.stats.add(Counter::RingTxRecords, 1);
        if len > CHUNK / 2 && self.ring.tx.publish() {
            self.notify_counted(Attention::DATA, qp.host);
        }
        Ok(Wrote::Record)
    }

    fn write_again(&mut self, seq: u64, qp: &mut Bound<'_, Core>) -> Result<Wrote, Corrupt> {
        if seq >= self.flow.next[Space::Request as usize] {
            self.flow.again = None;
            return Ok(Wrote::Record);
        }
        let size = CHUNK + MAX_HEADER;
        let Some(mut slot) = self.ring.tx.reserve(size, size)? else {
            return Ok(Wrote::NoRoom);
        };
        // SAFETY: as in `write_next`.
        let mut out = unsafe { BytesMut::from_raw(slot.as_mut_ptr(), slot.len()) };
        let Some((meta, len)) = qp.again(Space::Request, seq, &mut out) else {
            self.flow.again = None;
            return Ok(Wrote::Nothing);
        };
        slot.commit(kind::REQUEST, u8::from(meta.last), seq, len);
        self.flow.again = Some(seq + 1);
        Ok(Wrote::Record)
    }
}

/// How an attempt to write a record ended.
enum Wrote {
    Record,
    Nothing,
    NoRoom,
}
