//! What a traced queue pair sends and receives, put into the ring of `causeway trace`.
//!
//! Everything is recorded as the datagram that carries it, or would: what goes by ring or directly
//! gets the header that TRP would give it, with cookies that say what it is. Of a queue pair that
//! is not traced nothing here runs: its short ways look at gates that a trace closes, and the
//! general ways, which know of taps, are taken instead.

use std::cell::Cell;
use std::sync::Arc;

use causeway_fabric::trace::TraceRing;
use causeway_proto::Bytes;
use causeway_proto::host::{AtomicOp, Remote};
use causeway_proto::reach::Target;
use causeway_proto::ring::{LAST, Record, kind};
use causeway_recover::copy;
use causeway_shm::{SegmentError, TraceRecord, TraceWriter, Way};
use causeway_wire::group::{GROUP_HEADER_LEN, OPCODE_GROUP};
use causeway_wire::rdmap::{Atomic, MAX_HEADER, Message, Segment};
use causeway_wire::secure::{
    MESSAGE_HEADER_LEN, OPCODE_SEALED, SEALED_HEADER_LEN, is_sealed_message,
};
use causeway_wire::terminate::Terminate;
use causeway_wire::trp::{
    Body, CRC_OFFSET, Common, FLAG_CRC, HEADER_LEN, Opcode, Packet, Position, VERSION,
    emit_data_header,
};
use causeway_wire::{cm, datagram, plain_send};
use rustix::time::{ClockId, clock_gettime};

/// Payload of a segment as which a part of a direct access is recorded: it fits an IP packet.
const DIRECT_SEGMENT: usize = 32 << 10;
/// What the cookies of records begin with that never were datagrams.
const RING_COOKIE: [u8; 4] = *b"ring";
const DIRECT_COOKIE: [u8; 4] = *b"copy";
/// Bytes of a key.
const KEY_LEN: usize = 4;

/// A trace that this endpoint records for.
#[derive(Debug)]
pub(crate) struct Trace {
    /// Its name, as the broker told it.
    pub name: u64,
    writer: TraceWriter,
    qpn: Option<u32>,
    keys: bool,
    /// Most bytes of payload that are recorded.
    payload: usize,
}

impl Trace {
    /// Maps the ring of a trace.
    ///
    /// # Errors
    /// It is none.
    pub fn open(ring: TraceRing) -> Result<Self, SegmentError> {
        Ok(Trace {
            name: ring.what.trace,
            writer: TraceWriter::open(ring.fd)?,
            qpn: ring.what.qpn,
            keys: ring.what.keys,
            payload: ring.what.payload as usize,
        })
    }

    /// Whether a queue pair is to be traced.
    pub fn covers(&self, qpn: u32) -> bool {
        self.qpn.is_none_or(|only| only == qpn)
    }

    /// Records a message of the connection manager, if the trace is of all that is sent. What
    /// follows its header is the program's private data, or sealed.
    pub fn message(&self, outbound: bool, ends: (End, End), bytes: &[u8]) {
        if self.qpn.is_some() {
            return;
        }
        let header = match is_sealed_message(bytes) {
            true => MESSAGE_HEADER_LEN,
            false => cm::HEADER_LEN,
        };
        let most = header + self.payload;
        let kept = most.min(bytes.len()).min(self.writer.room());
        self.put(Way::Udp, outbound, ends, (&bytes[..kept], bytes.len()));
    }

    /// Puts bytes in the ring, of a datagram that has or would have `original`.
    fn put(
        &self,
        way: Way,
        outbound: bool,
        (src, dst): (End, End),
        (bytes, original): (&[u8], usize),
    ) {
        let record = TraceRecord {
            time: now(),
            way,
            outbound,
            original: u32::try_from(original).unwrap_or(u32::MAX),
            pid: std::process::id(),
            src: (src.address, src.port),
            dst: (dst.address, dst.port),
        };
        // What is lost is counted there.
        let _ = self.writer.push(&record, bytes);
    }
}

/// An end of a connection, as datagrams name it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct End {
    pub address: [u8; 16],
    pub port: u16,
    pub qpn: u32,
}

/// Where a segment stands.
#[derive(Clone, Copy)]
struct Place {
    outbound: bool,
    response: bool,
    psn: u32,
    last: bool,
}

/// What a queue pair is traced by.
#[derive(Debug)]
pub(crate) struct Tap {
    trace: Arc<Trace>,
    own: End,
    peer: End,
    /// Tells the connection from others of its queue pair.
    serial: u32,
    /// Numbers of the next direct access, and the next answer to one.
    numbers: [Cell<u32>; 2],
    /// The first number of the message under way, by direction and space.
    firsts: [Cell<Option<u32>>; 4],
}

impl Tap {
    pub fn new(trace: &Arc<Trace>, own: End, peer: End) -> Box<Self> {
        Box::new(Tap {
            trace: Arc::clone(trace),
            own,
            peer,
            serial: now() as u32,
            numbers: Default::default(),
            firsts: Default::default(),
        })
    }

    /// The queue pair's own end.
    pub fn own(&self) -> End {
        self.own
    }

    /// Records a datagram to the peer, or of it.
    pub fn datagram(&self, outbound: bool, bytes: &[u8]) {
        let (src, dst) = self.ends(outbound);
        self.datagram_between(outbound, (src, dst), bytes);
    }

    /// As [`Tap::datagram`], between any two ends.
    pub fn datagram_between(&self, outbound: bool, ends: (End, End), bytes: &[u8]) {
        let most = header_len(bytes) + self.trace.payload;
        let kept = most.min(bytes.len()).min(self.trace.writer.room());
        let mut kept = bytes[..kept].to_vec();
        if !self.trace.keys && mask_datagram(bytes, &mut kept) {
            // The checksum would be wrong.
            kept[1] &= !FLAG_CRC;
            kept[CRC_OFFSET..CRC_OFFSET + 4].fill(0);
        }
        self.trace
            .put(Way::Udp, outbound, ends, (&kept, bytes.len()));
    }

    /// Records a record of a ring.
    pub fn record(&self, outbound: bool, record: &Record<'_>) {
        let psn = record.seq as u32;
        let refusal = match (record.kind, record.flags) {
            (kind::NOT_READY, timer) => Body::Rnr { psn, timer },
            (kind::REFUSED, why) => Body::Nak {
                psn,
                terminate: match why {
                    0 => Terminate::UnexpectedOpcode,
                    1 => Terminate::AccessRights,
                    _ => Terminate::Unspecified,
                },
            },
            _ => return self.record_segment(outbound, record),
        };
        let mut bytes = [0; HEADER_LEN];
        let packet = Packet::Segment(self.common(outbound, RING_COOKIE), refusal);
        if let Some(len) = packet.emit(&mut bytes) {
            self.trace.put(
                Way::Ring,
                outbound,
                self.ends(outbound),
                (&bytes[..len], len),
            );
        }
    }

    fn record_segment(&self, outbound: bool, record: &Record<'_>) {
        let mut ddp = [0; MAX_HEADER];
        let (len, payload) = match record.kind {
            kind::MESSAGE => {
                // Its number is not said; both sides count.
                let header = plain_send::emit(0);
                ddp[..header.len()].copy_from_slice(&header);
                (header.len(), record.body)
            }
            kind::REQUEST | kind::RESPONSE => {
                let found = record.body.copy_to(&mut ddp);
                let Ok((_, len)) = Segment::parse(&ddp[..found]) else {
                    return;
                };
                (len, record.body.split_at(len).1)
            }
            _ => return,
        };
        let place = Place {
            outbound,
            response: record.kind == kind::RESPONSE,
            psn: record.seq as u32,
            last: record.flags & LAST != 0,
        };
        self.segment((Way::Ring, RING_COOKIE), place, &mut ddp[..len], payload);
    }

    /// Records bytes from `from` on of a WRITE or READ that was carried out directly: they are in
    /// `bytes`. `last`: no others follow.
    pub fn direct(&self, what: Remote, target: Target, from: u32, bytes: Bytes<'_>, last: bool) {
        let reads = what == Remote::Read;
        if reads && from == 0 {
            let id = self.numbers[0].get();
            self.direct_message(
                true,
                true,
                Message::ReadRequest {
                    msn: id,
                    sink_stag: id,
                    sink_to: 0,
                    len: target.len,
                    src_stag: target.rkey,
                    src_to: target.addr,
                },
            );
        }
        let (mut at, mut rest) = (from, bytes);
        loop {
            let (part, others) = rest.split_at(DIRECT_SEGMENT);
            let message = if reads {
                Message::ReadResponse {
                    stag: self.numbers[0].get().wrapping_sub(1),
                    to: at.into(),
                }
            } else {
                Message::Write {
                    stag: target.rkey,
                    to: target.addr.wrapping_add(at.into()),
                }
            };
            let last = last && others.is_empty();
            self.direct_segment(!reads, last, message, part);
            if others.is_empty() {
                return;
            }
            (at, rest) = (at + part.len() as u32, others);
        }
    }

    /// Records an atomic that was carried out directly, and what was there before.
    pub fn direct_atomic(&self, target: Target, op: AtomicOp, before: u64) {
        let id = self.numbers[0].get();
        self.direct_message(
            true,
            true,
            Message::AtomicRequest {
                msn: id,
                request_id: id,
                stag: target.rkey,
                to: target.addr,
                op: match op {
                    AtomicOp::FetchAdd(add) => Atomic::FetchAdd { add },
                    AtomicOp::CmpSwap { compare, swap } => Atomic::CmpSwap { compare, swap },
                },
            },
        );
        self.direct_message(
            false,
            true,
            Message::AtomicResponse {
                msn: id,
                request_id: id,
                original: before,
            },
        );
    }

    fn direct_message(&self, outbound: bool, last: bool, message: Message) {
        self.direct_segment(outbound, last, message, Bytes::from(&[][..]));
    }

    /// Records what would have been a request, or the answer that would have come.
    fn direct_segment(&self, request: bool, last: bool, message: Message, payload: Bytes<'_>) {
        let number = &self.numbers[usize::from(!request)];
        let psn = number.replace(number.get().wrapping_add(1));
        let mut ddp = [0; MAX_HEADER];
        if let Some(len) = (Segment { message, last }).emit(&mut ddp) {
            let place = Place {
                outbound: request,
                response: !request,
                psn,
                last,
            };
            self.segment(
                (Way::Direct, DIRECT_COOKIE),
                place,
                &mut ddp[..len],
                payload,
            );
        }
    }

    /// Records a segment that never was a datagram.
    fn segment(
        &self,
        (way, cookie): (Way, [u8; 4]),
        place: Place,
        ddp: &mut [u8],
        payload: Bytes<'_>,
    ) {
        let Place {
            outbound,
            response,
            psn,
            last,
        } = place;
        if !self.trace.keys {
            mask(ddp);
        }
        let under_way = &self.firsts[usize::from(outbound) * 2 + usize::from(response)];
        let first = under_way.get().unwrap_or(psn);
        under_way.set((!last).then_some(first));
        let position = Position {
            response,
            psn,
            first,
            last,
            relaxed: false,
        };
        let mut bytes = vec![0; HEADER_LEN];
        if emit_data_header(&self.common(outbound, cookie), &position, &mut bytes).is_none() {
            return;
        }
        bytes.extend_from_slice(ddp);
        let original = bytes.len() + payload.len();
        self.add_payload(&mut bytes, payload);
        let ends = self.ends(outbound);
        self.trace.put(way, outbound, ends, (&bytes, original));
    }

    /// As much of the payload as is wanted, and there is room for.
    fn add_payload(&self, bytes: &mut Vec<u8>, payload: Bytes<'_>) {
        let headers = bytes.len();
        let room = self.trace.writer.room().saturating_sub(headers);
        let len = payload.len().min(self.trace.payload).min(room);
        bytes.resize(headers + len, 0);
        let to = bytes[headers..].as_mut_ptr();
        // SAFETY: there is room for so many bytes, in memory of our own; the payload's view says
        // that its bytes may be read, as far as they are mapped.
        if unsafe { copy(to, payload.as_ptr(), len) }.is_err() {
            bytes.truncate(headers);
        }
    }

    fn common(&self, outbound: bool, cookie: [u8; 4]) -> Common {
        let (src, dst) = self.ends(outbound);
        Common {
            dst_qpn: dst.qpn,
            src_qpn: src.qpn,
            cookie: u64::from(u32::from_be_bytes(cookie)) << 32 | u64::from(self.serial),
            ..Common::default()
        }
    }

    /// Sender and receiver.
    fn ends(&self, outbound: bool) -> (End, End) {
        match outbound {
            true => (self.own, self.peer),
            false => (self.peer, self.own),
        }
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let t = clock_gettime(ClockId::Realtime);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(t.tv_sec).saturating_mul(1_000_000_000) + part(t.tv_nsec)
}

/// Bytes of a datagram before its payload. A bundle's first payload is soon behind its header.
fn header_len(bytes: &[u8]) -> usize {
    let Some(first) = bytes.first().filter(|first| *first >> 4 == VERSION) else {
        return bytes.len();
    };
    match first & 0x0f {
        data if is_data(data) => {
            let segment = bytes.get(HEADER_LEN..).map(Segment::parse);
            HEADER_LEN + segment.and_then(Result::ok).map_or(0, |(_, len)| len)
        }
        bundle if is_bundle(bundle) => HEADER_LEN,
        datagram::OPCODE => datagram::HEADER_LEN,
        OPCODE_SEALED => SEALED_HEADER_LEN,
        OPCODE_GROUP => GROUP_HEADER_LEN,
        _ => bytes.len(),
    }
}

fn is_data(opcode: u8) -> bool {
    opcode == Opcode::Data as u8 || opcode == Opcode::Response as u8
}

fn is_bundle(opcode: u8) -> bool {
    opcode == Opcode::Bundle as u8 || opcode == Opcode::ResponseBundle as u8
}

/// Takes the keys out of what is kept of a datagram. Returns whether there were any.
fn mask_datagram(bytes: &[u8], kept: &mut [u8]) -> bool {
    let opcode = bytes.first().map_or(0, |first| first & 0x0f);
    if !is_data(opcode) && !is_bundle(opcode) {
        return false;
    }
    match Packet::parse(bytes) {
        Ok(Packet::Segment(_, Body::Data(..))) => kept.get_mut(HEADER_LEN..).is_some_and(mask),
        Ok(Packet::Segment(_, Body::Bundle(_, segments))) => {
            let (mut at, mut any) = (HEADER_LEN, false);
            for (segment, _) in segments.iter() {
                let to = kept.len().min(at + segment.len());
                any |= kept.get_mut(at..to).is_some_and(mask);
                at += segment.len();
            }
            any
        }
        _ => false,
    }
}

/// Takes the key out of a DDP segment that names one. Returns whether it did.
fn mask(segment: &mut [u8]) -> bool {
    let Ok((parsed, len)) = Segment::parse(segment) else {
        return false;
    };
    // Behind DDP's header; that of a READ or an atomic is followed by one of RDMAP.
    let at = match parsed.message {
        Message::Write { .. } => 2,
        Message::Send {
            invalidate: Some(_),
            ..
        } => 2,
        Message::ReadRequest { .. } => len - 12,
        Message::AtomicRequest { .. } => len - 44,
        _ => return false,
    };
    let key = segment.get_mut(at..at + KEY_LEN);
    key.map(|key| key.fill(0)).is_some()
}

#[cfg(test)]
mod tests;
