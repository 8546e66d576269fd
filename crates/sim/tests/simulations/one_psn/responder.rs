//! The responder half: packets become units in their order, answers go in the order of requests.

use std::collections::VecDeque;

use causeway_proto::Bytes;
use causeway_proto::host::AtomicOp;
use causeway_proto::ulp::{Nak, SegMeta, Space, Ulp, Verdict};
use causeway_proto::unit::Unit;

use super::Defect;
use super::packet::{Header, Opcode, Room, flag, packets, start, widen};

/// The answer to a READ or an atomic, which may be asked for again.
#[derive(Debug)]
struct Kept {
    /// Numbers of its packets.
    psn: u64,
    count: u64,
    /// The queue pair's numbers of the request, and of the first unit of the answer.
    request: u64,
    answer: u64,
    /// Whether it answers a READ, and what was asked for: key, address, arguments.
    read: bool,
    asked: (u32, u64, [u64; 2]),
    /// The packet to be sent next, if any is.
    due: Option<u64>,
}

impl Kept {
    fn end(&self) -> u64 {
        self.psn + self.count
    }

    fn answer_end(&self) -> u64 {
        self.answer + self.count
    }

    /// Whether a request that came again asks for what is left from number `psn` on.
    fn agrees(&self, psn: u64, header: &Header, mtu: u32) -> bool {
        let (key, addr, [first, second]) = self.asked;
        let come = (psn - self.psn) * u64::from(mtu);
        header.key == key
            && header.addr == addr + come
            && header.args == [first.wrapping_sub(come), second]
    }
}

/// What is rebuilt from the order of packets, since they do not say it.
#[derive(Clone, Copy, Debug, Default)]
struct Message {
    /// SENDs and immediate data so far, and READs and atomics.
    sends: u32,
    reads: u32,
    /// Bytes of the message under way so far, and where a WRITE began.
    len: u64,
    target: (u32, u64),
}

/// One side's responder.
#[derive(Debug)]
pub struct Responder {
    mtu: u32,
    /// The number expected.
    expected: u64,
    /// The queue pair's numbers: of the next request, of the first one of its message, of the next
    /// answer to be built, and of the first one of the next request that has one.
    request: u64,
    first: u64,
    answer: u64,
    next_answer: u64,
    message: Message,
    /// The last answers, and most of them: the peer never has more requests under way.
    kept: VecDeque<Kept>,
    depth: usize,
    /// An acknowledgment is due, or something else that says what is expected.
    ack_due: bool,
    control: Option<Header>,
    /// The peer has been told to go back, and has not.
    told: bool,
    /// The request that was refused for good.
    refused: Option<(u64, Nak)>,
    /// Requests that came once more and were acknowledged again, and those answered again from what
    /// was kept: READs, atomics.
    pub acknowledged_again: u64,
    /// See there.
    pub answered_again: [u64; 2],
    defect: Option<Defect>,
}

impl Responder {
    /// One that expects number `psn` first, and keeps `depth` answers.
    pub fn new(psn: u32, mtu: u32, depth: u8, defect: Option<Defect>) -> Self {
        Responder {
            mtu,
            expected: start(psn),
            request: 0,
            first: 0,
            answer: 0,
            next_answer: 0,
            message: Message::default(),
            kept: VecDeque::new(),
            depth: usize::from(depth),
            ack_due: false,
            control: None,
            told: false,
            refused: None,
            acknowledged_again: 0,
            answered_again: [0; 2],
            defect,
        }
    }

    /// The last READ with key `key` that it could answer again, as it came.
    pub fn last_read(&self, key: u32) -> Option<Header> {
        let is_asked = |k: &&Kept| k.read && k.asked.0 == key;
        let last = self.kept.iter().rev().find(is_asked)?;
        let (key, addr, args) = last.asked;
        Some(Header {
            key,
            addr,
            args,
            ..Header::new(Opcode::Read, last.psn, 0)
        })
    }

    /// Takes a packet of the peer's requester.
    pub fn receive(&mut self, header: &Header, body: &[u8], ulp: &mut impl Ulp) {
        let psn = widen(header.psn, self.expected);
        if let Some((at, nak)) = self.refused.filter(|(at, _)| *at <= psn) {
            // It was not told, or the word was lost.
            self.control = Some(Header::new(Opcode::Refused, at, nak as u64));
            return;
        }
        if psn < self.expected {
            return self.take_again(psn, header, body, ulp);
        }
        if psn > self.expected && self.defect != Some(Defect::TakesAnyRequest) {
            if !self.told {
                self.told = true;
                self.control = Some(Header::new(Opcode::OutOfOrder, self.expected, 0));
            }
            return;
        }
        self.expected = psn;
        self.place(header, body, ulp);
    }

    /// A packet that came before: the requester has not got what answered it.
    fn take_again(&mut self, psn: u64, header: &Header, body: &[u8], ulp: &mut impl Ulp) {
        if !header.opcode.is_answered() {
            self.ack_due = true;
            self.acknowledged_again += 1;
            return;
        }
        if self.defect == Some(Defect::RepeatsAtomics) && header.opcode != Opcode::Read {
            let expected = std::mem::replace(&mut self.expected, psn);
            self.place(header, body, ulp);
            self.expected = expected;
            return;
        }
        if self.defect == Some(Defect::KeepsNoAnswers) {
            return;
        }
        let kept = self
            .kept
            .iter_mut()
            .find(|k| (k.psn..k.end()).contains(&psn));
        if let Some(kept) = kept.filter(|k| k.agrees(psn, header, self.mtu)) {
            kept.due = Some(kept.due.map_or(psn, |due| due.min(psn)));
            self.answered_again[usize::from(header.opcode != Opcode::Read)] += 1;
        }
    }

    /// Offers the packet whose turn it is.
    fn place(&mut self, header: &Header, body: &[u8], ulp: &mut impl Ulp) {
        let (unit, meta) = (self.unit(header), self.meta(header));
        let verdict = ulp.receive(Space::Request, meta, &unit, Bytes::from(body), true);
        match verdict {
            Verdict::Placed => {
                self.told = false;
                self.control = None;
                self.ack_due |= header.has(flag::ASKS) && !header.opcode.is_answered();
                self.advance(header, body.len(), ulp);
            }
            Verdict::NotReady(timer) => {
                let timer = u64::from(timer);
                self.control = Some(Header::new(Opcode::NotReady, self.expected, timer));
                self.told = true;
            }
            Verdict::Refused(nak) => self.refuse(self.expected, nak),
            Verdict::Later | Verdict::Ignore => {}
        }
    }

    fn refuse(&mut self, psn: u64, nak: Nak) {
        self.refused = Some((psn, nak));
        self.control = Some(Header::new(Opcode::Refused, psn, nak as u64));
    }

    fn meta(&self, header: &Header) -> SegMeta {
        SegMeta {
            seq: self.request,
            first: self.first,
            last: header.has(flag::LAST),
            direct: false,
        }
    }

    /// What the packet expected says, together with those before it.
    fn unit(&self, header: &Header) -> Unit {
        let message = &self.message;
        let (rkey, addr) = match header.opcode {
            Opcode::Write if !header.has(flag::FIRST) => message.target,
            _ => (header.key, header.addr),
        };
        let (send, read) = (message.sends.wrapping_add(1), message.reads.wrapping_add(1));
        let atomic = |op| Unit::Atomic {
            msn: read,
            id: read,
            rkey,
            addr,
            op,
        };
        match header.opcode {
            Opcode::Send => Unit::Send {
                msn: send,
                offset: message.len as u32,
                solicited: header.has(flag::SOLICITED),
                invalidate: header.has(flag::INVALIDATE).then_some(header.key),
                imm: header.has(flag::IMMEDIATE).then_some(header.key),
            },
            Opcode::Write => Unit::Write {
                rkey,
                addr: addr.wrapping_add(message.len),
            },
            Opcode::Immediate => Unit::Immediate {
                msn: send,
                solicited: header.has(flag::SOLICITED),
                imm: header.key,
                written: header.args[0] as u32,
            },
            Opcode::Read => Unit::Read {
                msn: read,
                id: read,
                len: header.args[0] as u32,
                rkey,
                addr,
            },
            Opcode::FetchAdd => atomic(AtomicOp::FetchAdd(header.args[0])),
            Opcode::CmpSwap => atomic(AtomicOp::CmpSwap {
                compare: header.args[0],
                swap: header.args[1],
            }),
            _ => Unit::Unreadable,
        }
    }

    /// The packet expected has been placed.
    fn advance(&mut self, header: &Header, len: usize, ulp: &mut impl Ulp) {
        let message = &mut self.message;
        let last = header.has(flag::LAST);
        if header.opcode == Opcode::Write && header.has(flag::FIRST) {
            message.target = (header.key, header.addr);
        }
        message.len = if last { 0 } else { message.len + len as u64 };
        if last && matches!(header.opcode, Opcode::Send | Opcode::Immediate) {
            message.sends = message.sends.wrapping_add(1);
        }
        let mut count = 1;
        if header.opcode.is_answered() {
            message.reads = message.reads.wrapping_add(1);
            if header.opcode == Opcode::Read {
                count = packets(header.args[0], self.mtu);
            }
            self.keep(header, count, ulp);
        }
        self.expected += count;
        self.request += 1;
        if last {
            self.first = self.request;
        }
    }

    /// Notes an answer that is due. The oldest goes: with as many requests under way as agreed on,
    /// its requester has got it.
    fn keep(&mut self, header: &Header, count: u64, ulp: &mut impl Ulp) {
        self.kept.push_back(Kept {
            psn: self.expected,
            count,
            request: self.request,
            answer: self.next_answer,
            read: header.opcode == Opcode::Read,
            asked: (header.key, header.addr, header.args),
            due: Some(self.expected),
        });
        self.next_answer += count;
        let built = self.answer;
        while self.kept.len() > self.depth.max(1)
            && let Some(old) = self.kept.front().filter(|k| k.answer_end() <= built)
        {
            ulp.acked(Space::Response, old.answer_end());
            self.kept.pop_front();
        }
    }

    /// The next packet: answers first, in their order, then what says how far it has come.
    pub fn build(&mut self, ulp: &mut impl Ulp) -> Option<(Header, Room)> {
        if let Some(packet) = self.build_answer(ulp) {
            return Some(packet);
        }
        if let Some(control) = self.control.take() {
            self.ack_due = false;
            return Some((control, Room::new(self.mtu)));
        }
        if !std::mem::take(&mut self.ack_due) {
            return None;
        }
        let upto = self.refused.map_or(self.expected, |(at, _)| at);
        let early = u64::from(self.defect == Some(Defect::AcknowledgesEarly));
        let ack = Header::new(Opcode::Ack, upto + early - 1, 0);
        Some((ack, Room::new(self.mtu)))
    }

    fn build_answer(&mut self, ulp: &mut impl Ulp) -> Option<(Header, Room)> {
        let kept = self.kept.iter_mut().find(|k| k.due.is_some())?;
        let psn = kept.due?;
        kept.due = Some(psn + 1).filter(|next| *next < kept.end());
        let seq = kept.answer + (psn - kept.psn);
        let repeats = seq < self.answer;
        if repeats && self.defect != Some(Defect::RepeatsBlindly) && !ulp.can_repeat(seq) {
            // The requester fails if it misses the answer, and else does not listen.
            kept.due = None;
            let nak = Nak::RemoteAccess as u64;
            self.control = Some(Header::new(Opcode::Refused, psn, nak));
            return None;
        }
        let mut room = Room::new(self.mtu);
        let built = if !repeats {
            ulp.next(Space::Response, seq, &mut room)
        } else {
            let wrong = self.defect == Some(Defect::AnswersFromTheStart);
            let seq = if wrong { kept.answer } else { seq };
            ulp.again(Space::Response, seq, &mut room)
        };
        if built.is_none() {
            self.give_up(ulp);
            return None;
        }
        self.answer = self.answer.max(seq + 1);
        let header = match room.built().0 {
            Unit::AtomicAnswer { original, .. } => Header::new(Opcode::AtomicAnswer, psn, original),
            _ => Header::new(Opcode::ReadAnswer, psn, 0),
        };
        Some((header, room))
    }

    /// An answer cannot be built: its memory has gone, and with it all that comes behind it.
    fn give_up(&mut self, ulp: &mut impl Ulp) {
        let late = ulp.take_late_refusal();
        let at = late.and_then(|(request, nak)| {
            let kept = self.kept.iter().find(|k| k.request == request)?;
            Some((kept.psn, nak))
        });
        for kept in &mut self.kept {
            kept.due = None;
        }
        if let Some((psn, nak)) = at {
            self.refuse(psn, nak);
        }
    }
}
