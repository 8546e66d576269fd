//! The requester half: units of requests become packets, and go again until they are answered.

use std::collections::VecDeque;

use causeway_proto::host::AtomicOp;
use causeway_proto::ulp::{Nak, SegMeta, Space, Ulp};
use causeway_proto::unit::Unit;
use causeway_proto::{Bytes, Duration, Instant};

use super::Defect;
use super::packet::{Header, Opcode, Room, flag, packets, start, widen};

/// Packets, or numbers kept free for answers, that may be under way when another request goes.
const WINDOW: u64 = 64;
/// So many packets apart a long message asks for an acknowledgment.
const ASK_EVERY: u64 = 16;
/// First time after which everything goes again, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// See there.
const LONGEST_WAIT: Duration = Duration::from_millis(800);

/// A request packet on its way.
#[derive(Debug)]
struct Entry {
    /// Its number, and how many numbers it takes: those of its answer, or one.
    psn: u64,
    count: u64,
    /// The queue pair's number of the unit.
    unit: u64,
    /// What names it in answers to the queue pair, if it is answered with data.
    id: Option<u32>,
    /// Packets of its answer that have come.
    got: u64,
}

impl Entry {
    fn end(&self) -> u64 {
        self.psn + self.count
    }

    fn has(&self, psn: u64) -> bool {
        (self.psn..self.end()).contains(&psn)
    }
}

/// One side's requester.
#[derive(Debug)]
pub struct Requester {
    mtu: u32,
    /// Numbers of the next new unit, of the next new packet, and of the packet to be sent next:
    /// below `next_psn` where packets go again.
    next_unit: u64,
    next_psn: u64,
    send_psn: u64,
    entries: VecDeque<Entry>,
    /// Numbers below have been carried out by the peer, which is not to say that answers came.
    executed: u64,
    /// Answers to atomics, and packets of answers, that have come.
    atomics: u32,
    answers: u64,
    /// It has gone back, and nothing has come of that yet.
    went_back: bool,
    hold_until: Option<Instant>,
    /// When all goes again, after which time of silence, and since when nothing has moved.
    timer: Instant,
    wait: Duration,
    still_since: Instant,
    /// How long nothing may move.
    patience: Duration,
    /// Times that the peer has asked for time.
    pub refusals: u64,
    /// Packets that went again, and READs that asked for what was left of their answer.
    pub repeated: u64,
    /// See there.
    pub resumed: u64,
    defect: Option<Defect>,
}

impl Requester {
    /// One whose first packet has number `psn`.
    pub fn new(psn: u32, mtu: u32, patience: Duration, defect: Option<Defect>) -> Self {
        let psn = start(psn);
        Requester {
            mtu,
            next_unit: 0,
            next_psn: psn,
            send_psn: psn,
            entries: VecDeque::new(),
            executed: psn,
            atomics: 0,
            answers: 0,
            went_back: false,
            hold_until: None,
            timer: Instant(0),
            wait: FIRST_WAIT,
            still_since: Instant(0),
            patience,
            refusals: 0,
            repeated: 0,
            resumed: 0,
            defect,
        }
    }

    /// When it wants attention, whatever comes.
    pub fn deadline(&self) -> Option<Instant> {
        let timer = (!self.entries.is_empty()).then_some(self.timer);
        self.hold_until.or(timer)
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, ulp: &mut impl Ulp, now: Instant) {
        self.check_failed(ulp);
        if self.hold_until.is_some_and(|when| when <= now) {
            self.hold_until = None;
            self.timer = now + self.wait;
        }
        if self.hold_until.is_some() || self.entries.is_empty() || self.timer > now {
            return;
        }
        if now.since(self.still_since) >= self.patience {
            ulp.lost();
            return self.check_failed(ulp);
        }
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        self.timer = now + self.wait;
        self.went_back = false;
        self.go_back();
    }

    /// The next packet, new or again: its header and its payload.
    pub fn build(&mut self, ulp: &mut impl Ulp, now: Instant) -> Option<(Header, Room)> {
        self.check_failed(ulp);
        if self.hold_until.is_some() {
            return None;
        }
        self.send_psn = self.send_psn.max(self.base());
        if self.send_psn < self.next_psn {
            return self.build_again(ulp);
        }
        if self.next_psn - self.base() >= WINDOW || !ulp.has_next(Space::Request) {
            return None;
        }
        let mut room = Room::new(self.mtu);
        let meta = ulp.next(Space::Request, self.next_unit, &mut room)?;
        let mut header = header(&room.built().0, &meta, self.next_psn)?;
        if meta.last || self.next_psn.is_multiple_of(ASK_EVERY) {
            header.flags |= flag::ASKS;
        }
        self.note_sent(&room.built().0, now);
        Some((header, room))
    }

    /// Takes the numbers that a new unit needs.
    fn note_sent(&mut self, unit: &Unit, now: Instant) {
        if self.entries.is_empty() {
            (self.still_since, self.timer) = (now, now + self.wait);
        }
        let (count, id) = match *unit {
            Unit::Read { id, .. } if self.defect == Some(Defect::KeepsNoNumbers) => (1, Some(id)),
            Unit::Read { id, len, .. } => (packets(u64::from(len), self.mtu), Some(id)),
            Unit::Atomic { id, .. } => (1, Some(id)),
            _ => (1, None),
        };
        self.entries.push_back(Entry {
            psn: self.next_psn,
            count,
            unit: self.next_unit,
            id,
            got: 0,
        });
        self.next_unit += 1;
        self.next_psn += count;
        self.send_psn = self.next_psn;
    }

    /// A READ whose answer has come in part asks for the rest.
    fn build_again(&mut self, ulp: &mut impl Ulp) -> Option<(Header, Room)> {
        let entry = self.entries.iter().find(|e| e.has(self.send_psn))?;
        let mut room = Room::new(self.mtu);
        let meta = ulp.again(Space::Request, entry.unit, &mut room)?;
        let mut header = header(&room.built().0, &meta, entry.psn + entry.got)?;
        header.flags |= flag::ASKS;
        if header.opcode == Opcode::Read {
            let come = entry.got * u64::from(self.mtu);
            header.args[0] -= come;
            if self.defect != Some(Defect::AsksFromTheStart) {
                header.addr += come;
            }
        }
        self.send_psn = entry.end();
        self.repeated += 1;
        self.resumed += u64::from(entry.got > 0);
        Some((header, room))
    }

    /// Takes what came from the peer's responder.
    pub fn receive(&mut self, header: &Header, body: &[u8], ulp: &mut impl Ulp, now: Instant) {
        self.check_failed(ulp);
        let psn = widen(header.psn, self.next_psn);
        if !(self.base()..self.next_psn).contains(&psn) {
            return;
        }
        match header.opcode {
            Opcode::Ack => self.note_executed(psn + 1, ulp, now),
            Opcode::ReadAnswer | Opcode::AtomicAnswer => {
                let first = self.entries.iter().find(|e| e.has(psn)).map(|e| e.psn);
                self.note_executed(first.unwrap_or(psn), ulp, now);
                self.take_answer(psn, header, body, ulp, now);
            }
            Opcode::OutOfOrder => {
                self.note_executed(psn, ulp, now);
                self.go_back();
            }
            Opcode::NotReady | Opcode::Refused => {
                self.note_executed(psn, ulp, now);
                self.take_refusal(psn, header, ulp, now);
            }
            _ => {}
        }
    }

    fn take_answer(
        &mut self,
        psn: u64,
        header: &Header,
        body: &[u8],
        ulp: &mut impl Ulp,
        now: Instant,
    ) {
        let mtu = u64::from(self.mtu);
        let any_order = self.defect == Some(Defect::TakesAnyAnswer);
        let Some(front) = self.entries.front_mut() else {
            return;
        };
        let (Some(id), true) = (front.id, any_order || psn == front.psn + front.got) else {
            // What is before it has been lost. It may also be one that has come already.
            if psn >= front.psn + front.got {
                self.go_back();
            }
            return;
        };
        let unit = match header.opcode {
            Opcode::ReadAnswer => Unit::ReadAnswer {
                id,
                offset: front.got * mtu,
            },
            _ => {
                self.atomics += 1;
                Unit::AtomicAnswer {
                    msn: self.atomics,
                    id,
                    original: header.args[0],
                }
            }
        };
        front.got += 1;
        let whole = front.got == front.count;
        let meta = SegMeta {
            seq: self.answers,
            first: self.answers + 1 - front.got,
            last: whole,
            direct: false,
        };
        self.answers += 1;
        ulp.receive(Space::Response, meta, &unit, Bytes::from(body), true);
        self.note_progress(now);
        self.retire(ulp, now);
    }

    fn take_refusal(&mut self, psn: u64, header: &Header, ulp: &mut impl Ulp, now: Instant) {
        let Some(front) = self.entries.front() else {
            return;
        };
        // It may be an answer before it that was lost.
        if !front.has(psn) {
            return self.go_back();
        }
        if header.opcode == Opcode::Refused {
            ulp.refused(front.unit, nak(header.args[0]));
            return self.check_failed(ulp);
        }
        if self.hold_until.is_some() {
            return;
        }
        self.refusals += 1;
        self.hold_until = ulp.not_ready(front.unit, header.args[0] as u8, now);
        self.note_progress(now);
        self.send_psn = self.base();
        self.check_failed(ulp);
    }

    /// The peer has carried out everything below `upto`.
    fn note_executed(&mut self, upto: u64, ulp: &mut impl Ulp, now: Instant) {
        self.executed = self.executed.max(upto);
        self.retire(ulp, now);
        // It goes on behind a READ whose answer has not come: that was lost.
        if self.entries.front().is_some_and(|e| e.end() <= upto) {
            self.go_back();
        }
    }

    /// Forgets requests that are done: others when they are acknowledged, these when their answers
    /// have come.
    fn retire(&mut self, ulp: &mut impl Ulp, now: Instant) {
        let executed = self.executed;
        let done = |e: &Entry| match e.id {
            Some(_) => e.got >= e.count,
            None => e.psn < executed,
        };
        let mut upto = None;
        while let Some(entry) = self.entries.front().filter(|e| done(e)) {
            upto = Some(entry.unit + 1);
            self.entries.pop_front();
        }
        if let Some(upto) = upto {
            ulp.acked(Space::Request, upto);
            self.note_progress(now);
        }
    }

    fn note_progress(&mut self, now: Instant) {
        self.wait = FIRST_WAIT;
        (self.still_since, self.timer) = (now, now + self.wait);
        self.went_back = false;
    }

    /// The oldest packet that is not done, and all behind it, go again. Once, until that shows.
    fn go_back(&mut self) {
        if self.went_back || self.defect == Some(Defect::NeverGoesBack) {
            return;
        }
        self.went_back = true;
        self.send_psn = self.base();
    }

    /// The oldest number that is not done.
    fn base(&self) -> u64 {
        let front = self.entries.front();
        front.map_or(self.next_psn, |e| e.psn + e.got)
    }

    fn check_failed(&mut self, ulp: &impl Ulp) {
        if ulp.is_failed() {
            self.entries.clear();
            self.hold_until = None;
        }
    }
}

/// What the packet of a unit says: only what the peer cannot know from the packets before it.
fn header(unit: &Unit, meta: &SegMeta, psn: u64) -> Option<Header> {
    let mut header = Header::new(Opcode::Send, psn, 0);
    let first = meta.seq == meta.first;
    header.flags |= if first { flag::FIRST } else { 0 };
    header.flags |= if meta.last { flag::LAST } else { 0 };
    match *unit {
        Unit::Send {
            solicited,
            invalidate,
            imm,
            ..
        } if meta.last => {
            header.flags |= if solicited { flag::SOLICITED } else { 0 };
            header.flags |= imm.map_or(0, |_| flag::IMMEDIATE);
            header.flags |= invalidate.map_or(0, |_| flag::INVALIDATE);
            header.key = imm.or(invalidate).unwrap_or(0);
        }
        Unit::Send { .. } => {}
        Unit::Write { rkey, addr } => {
            header.opcode = Opcode::Write;
            (header.key, header.addr) = if first { (rkey, addr) } else { (0, 0) };
        }
        Unit::Immediate {
            solicited,
            imm,
            written,
            ..
        } => {
            header.opcode = Opcode::Immediate;
            header.flags |= if solicited { flag::SOLICITED } else { 0 };
            (header.key, header.args[0]) = (imm, u64::from(written));
        }
        Unit::Read {
            len, rkey, addr, ..
        } => {
            header.opcode = Opcode::Read;
            (header.key, header.addr, header.args[0]) = (rkey, addr, u64::from(len));
        }
        Unit::Atomic { rkey, addr, op, .. } => {
            (header.opcode, header.args) = match op {
                AtomicOp::FetchAdd(add) => (Opcode::FetchAdd, [add, 0]),
                AtomicOp::CmpSwap { compare, swap } => (Opcode::CmpSwap, [compare, swap]),
            };
            (header.key, header.addr) = (rkey, addr);
        }
        Unit::ReadAnswer { .. } | Unit::AtomicAnswer { .. } | Unit::Unreadable => return None,
    }
    Some(header)
}

fn nak(code: u64) -> Nak {
    match code {
        0 => Nak::InvalidRequest,
        1 => Nak::RemoteAccess,
        _ => Nak::RemoteOperation,
    }
}
