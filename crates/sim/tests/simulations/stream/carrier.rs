//! The made-up carrier: units as frames in a byte stream.
//!
//! The stream keeps order and loses nothing, but it has no borders, no acknowledgment that a
//! program can see, and no word for a receive that is missing. So both are frames of the carrier's
//! own. A frame that the stream took in part is finished before another one begins.

use std::collections::VecDeque;

use causeway_proto::ddp::{self, Segment};
use causeway_proto::ulp::{Nak, SegMeta, Space, Ulp, Verdict};
use causeway_proto::{Bytes, Instant};

use super::socket::Socket;

/// Bytes of a frame's header: length of the body, kind, argument, number.
const HEADER: usize = 4 + 1 + 1 + 8;
/// Most bytes of a body.
const MAX_BODY: usize = 4096;
/// Most bytes read at a time.
const READ_MOST: usize = 6000;

/// What a frame is.
mod kind {
    /// A unit of a request; the argument is whether it is its message's last.
    pub const REQUEST: u8 = 0;
    /// A unit of an answer; the argument as of a request.
    pub const RESPONSE: u8 = 1;
    /// All requests below the number have been placed.
    pub const ACK: u8 = 2;
    /// The request with this number found no receive; the argument is the time to wait.
    pub const NOT_READY: u8 = 3;
    /// The request with this number was refused for good; the argument is why.
    pub const REFUSED: u8 = 4;
}

/// What the carrier or its stream does wrong, to show that somebody notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// The stream loses a byte.
    LosesBytes,
    /// The stream changes a byte.
    ChangesBytes,
    /// The stream delivers some bytes twice.
    RepeatsBytes,
    /// The rest of a frame that came in part is taken for a frame.
    ForgetsParts,
    /// What the stream did not take of a frame is never written.
    LosesRests,
    /// A request more than was placed is acknowledged.
    AcknowledgesEarly,
    /// Nothing is acknowledged.
    NeverAcknowledges,
    /// After a refusal for want of a receive nothing is sent again.
    NeverGoesBack,
}

/// The peer has broken the framing.
struct Broken;

/// One side's state.
#[derive(Debug)]
pub struct Carrier {
    /// Next number of each space to send, and the next one expected.
    next: [u64; 2],
    expected: [u64; 2],
    /// First unit of the request expected.
    first: u64,
    /// Requests below are acknowledged, by the peer and to it.
    acked: u64,
    ack_sent: u64,
    /// Requests from here on go again, not before the time given.
    again: Option<u64>,
    hold_until: Option<Instant>,
    /// Times that the peer has asked for time.
    pub refusals: u64,
    /// One of the peer's requests was refused for good: no more are taken.
    refused: bool,
    /// Refusals to be sent.
    controls: VecDeque<(u8, u8, u64)>,
    /// A frame that the stream has taken in part, and a frame that has come in part.
    out: Vec<u8>,
    input: Vec<u8>,
    /// The stream has ended.
    ended: bool,
    closed: bool,
    defect: Option<Defect>,
}

impl Carrier {
    /// A side that sends requests numbered from the first PSN and expects them from the other.
    pub fn new(psns: [u32; 2], defect: Option<Defect>) -> Self {
        let [own, peer] = psns.map(u64::from);
        Carrier {
            next: [own, 0],
            expected: [peer, 0],
            first: peer,
            acked: own,
            ack_sent: peer,
            again: None,
            hold_until: None,
            refusals: 0,
            refused: false,
            controls: VecDeque::new(),
            out: Vec::new(),
            input: Vec::new(),
            ended: false,
            closed: false,
            defect,
        }
    }

    /// When it wants attention, whatever comes.
    pub fn deadline(&self) -> Option<Instant> {
        self.hold_until
    }

    /// Takes what the stream has, and writes what there is. Returns whether there was anything.
    pub fn progress(&mut self, socket: &mut Socket, ulp: &mut impl Ulp, now: Instant) -> bool {
        // Also where the stream is full: what is due has no deadline any more.
        self.hold_until = self.hold_until.filter(|when| *when > now);
        let received = self.receive(socket, ulp, now);
        let mut sent = false;
        while self.send_one(socket, ulp, now) {
            sent = true;
        }
        if self.out.is_empty() && !self.has_more(ulp) {
            self.check_end(socket, ulp);
        }
        received || sent
    }

    fn receive(&mut self, socket: &mut Socket, ulp: &mut impl Ulp, now: Instant) -> bool {
        let mut buffer = [0; READ_MOST];
        let Some(len) = socket.read(now, &mut buffer) else {
            return false;
        };
        if len == 0 {
            return !std::mem::replace(&mut self.ended, true);
        }
        self.input.extend_from_slice(&buffer[..len]);
        if self.take_frames(ulp, now).is_err() {
            self.ended = true;
            socket.shut();
            ulp.lost();
        }
        true
    }

    fn take_frames(&mut self, ulp: &mut impl Ulp, now: Instant) -> Result<(), Broken> {
        let input = std::mem::take(&mut self.input);
        let mut at = 0;
        while let Some(head) = input.get(at..at + HEADER) {
            let len = u32::from_le_bytes(head[..4].try_into().expect("4 bytes")) as usize;
            if len > MAX_BODY {
                return Err(Broken);
            }
            let Some(body) = input.get(at + HEADER..at + HEADER + len) else {
                break;
            };
            let seq = u64::from_le_bytes(head[6..].try_into().expect("8 bytes"));
            self.on_frame((head[4], head[5], seq), body, ulp, now)?;
            at += HEADER + len;
        }
        if self.defect != Some(Defect::ForgetsParts) {
            self.input.extend_from_slice(&input[at..]);
        }
        Ok(())
    }

    fn on_frame(
        &mut self,
        (kind, arg, seq): (u8, u8, u64),
        body: &[u8],
        ulp: &mut impl Ulp,
        now: Instant,
    ) -> Result<(), Broken> {
        let sent = self.next[Space::Request as usize];
        match kind {
            kind::REQUEST => self.on_request(seq, arg != 0, body, ulp),
            kind::RESPONSE if seq == self.expected[Space::Response as usize] => {
                self.expected[Space::Response as usize] += 1;
                let meta = meta(seq, seq, arg != 0);
                let (unit, payload) = ddp::read(Bytes::from(body));
                ulp.receive(Space::Response, meta, &unit, payload, true);
            }
            kind::ACK if seq <= sent => self.acknowledge(seq, ulp),
            kind::NOT_READY if (self.acked..sent).contains(&seq) => {
                self.acknowledge(seq, ulp);
                self.refusals += 1;
                self.hold_until = ulp.not_ready(seq, arg, now);
                let goes_back = self.defect != Some(Defect::NeverGoesBack);
                self.again = self.hold_until.map(|_| seq).filter(|_| goes_back);
            }
            kind::REFUSED if seq < sent => ulp.refused(seq, nak(arg)),
            _ => return Err(Broken),
        }
        Ok(())
    }

    fn on_request(&mut self, seq: u64, last: bool, body: &[u8], ulp: &mut impl Ulp) {
        let expected = &mut self.expected[Space::Request as usize];
        // Behind a refused request everything is dropped until that one comes again.
        if seq != *expected || self.refused {
            return;
        }
        let meta = meta(seq, self.first, last);
        let (unit, payload) = ddp::read(Bytes::from(body));
        match ulp.receive(Space::Request, meta, &unit, payload, true) {
            Verdict::Placed => {
                *expected += 1;
                if last {
                    self.first = *expected;
                }
            }
            Verdict::NotReady(timer) => self.controls.push_back((kind::NOT_READY, timer, seq)),
            Verdict::Refused(nak) => self.refuse(seq, nak),
            Verdict::Later | Verdict::Ignore => {}
        }
    }

    fn refuse(&mut self, seq: u64, nak: Nak) {
        self.refused = true;
        self.controls.push_back((kind::REFUSED, nak as u8, seq));
    }

    fn acknowledge(&mut self, upto: u64, ulp: &mut impl Ulp) {
        if upto > self.acked {
            self.acked = upto;
            ulp.acked(Space::Request, upto);
        }
    }

    /// Writes a frame, or the rest of one. Returns whether there was one and the stream took it.
    fn send_one(&mut self, socket: &mut Socket, ulp: &mut impl Ulp, now: Instant) -> bool {
        if self.out.is_empty() && !self.build(ulp) {
            return false;
        }
        let taken = socket.write(now, &self.out);
        self.out.drain(..taken);
        if self.defect == Some(Defect::LosesRests) && taken > 0 {
            self.out.clear();
        }
        self.out.is_empty()
    }

    /// Puts the next frame into `out`. Returns whether there is one.
    fn build(&mut self, ulp: &mut impl Ulp) -> bool {
        let held = self.hold_until.is_some();
        // Before all else: what a program sends in reply shows that it has got the message.
        if self.build_ack() {
            return true;
        }
        if let Some((kind, arg, seq)) = self.controls.pop_front() {
            self.frame(kind, arg, seq, &[]);
            return true;
        }
        if ulp.has_next(Space::Response) {
            return self.build_next(Space::Response, ulp);
        }
        if held {
            return false;
        }
        if let Some(seq) = self.again {
            return self.build_again(seq, ulp);
        }
        ulp.has_next(Space::Request) && self.build_next(Space::Request, ulp)
    }

    fn build_ack(&mut self) -> bool {
        let placed = self.expected[Space::Request as usize];
        if placed == self.ack_sent || self.defect == Some(Defect::NeverAcknowledges) {
            return false;
        }
        self.ack_sent = placed;
        let early = u64::from(self.defect == Some(Defect::AcknowledgesEarly));
        self.frame(kind::ACK, 0, placed + early, &[]);
        true
    }

    fn build_next(&mut self, space: Space, ulp: &mut impl Ulp) -> bool {
        let mut body = [0; MAX_BODY];
        let mut segment = Segment::new(&mut body[..]);
        let seq = self.next[space as usize];
        let built = ulp.next(space, seq, &mut segment);
        let len = segment.len();
        if let Some((seq, nak)) = ulp.take_late_refusal() {
            self.refuse(seq, nak);
            return self.build_refusal();
        }
        let Some(meta) = built else {
            return false;
        };
        self.next[space as usize] += 1;
        let kind = match space {
            Space::Request => kind::REQUEST,
            Space::Response => kind::RESPONSE,
        };
        self.frame(kind, u8::from(meta.last), seq, &body[..len]);
        if space == Space::Response {
            // The stream delivers it, or ends.
            ulp.acked(space, seq + 1);
        }
        true
    }

    fn build_refusal(&mut self) -> bool {
        let control = self.controls.pop_front();
        if let Some((kind, arg, seq)) = control {
            self.frame(kind, arg, seq, &[]);
        }
        control.is_some()
    }

    fn build_again(&mut self, seq: u64, ulp: &mut impl Ulp) -> bool {
        self.again = None;
        if seq >= self.next[Space::Request as usize] {
            return ulp.has_next(Space::Request) && self.build_next(Space::Request, ulp);
        }
        let mut body = [0; MAX_BODY];
        let mut segment = Segment::new(&mut body[..]);
        let Some(meta) = ulp.again(Space::Request, seq, &mut segment) else {
            return false;
        };
        let len = segment.len();
        self.again = Some(seq + 1);
        self.frame(kind::REQUEST, u8::from(meta.last), seq, &body[..len]);
        true
    }

    fn frame(&mut self, kind: u8, arg: u8, seq: u64, body: &[u8]) {
        self.out
            .extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.out.extend_from_slice(&[kind, arg]);
        self.out.extend_from_slice(&seq.to_le_bytes());
        self.out.extend_from_slice(body);
    }

    fn has_more(&self, ulp: &impl Ulp) -> bool {
        !self.controls.is_empty() || ulp.has_next(Space::Response)
    }

    /// Ends what there is to end when everything has been written.
    fn check_end(&mut self, socket: &mut Socket, ulp: &mut impl Ulp) {
        if self.ended && ulp.expects_answer() && !ulp.is_failed() {
            ulp.lost();
        }
        if ulp.is_failed() && !self.closed {
            self.closed = true;
            socket.shut();
        }
    }
}

fn meta(seq: u64, first: u64, last: bool) -> SegMeta {
    SegMeta {
        seq,
        first,
        last,
        direct: false,
    }
}

fn nak(code: u8) -> Nak {
    match code {
        0 => Nak::InvalidRequest,
        1 => Nak::RemoteAccess,
        _ => Nak::RemoteOperation,
    }
}
