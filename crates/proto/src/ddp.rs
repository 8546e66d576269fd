//! Units as DDP segments with RDMAP headers (docs/WIRE.md, "DDP and RDMAP"): how TRP's datagrams
//! and the ring's records carry them.

use causeway_wire::ddp::{TAGGED_LEN, UNTAGGED_LEN};
use causeway_wire::plain_send;
use causeway_wire::rdmap::{self, Atomic, Message};

use crate::bytes::{Bytes, BytesMut};
use crate::host::AtomicOp;
use crate::unit::{Frame, Kind, Unit};

/// Largest header of a segment.
pub const MAX_HEADER: usize = rdmap::MAX_HEADER;
/// Length of the header of a SEND.
pub const SEND_HEADER: usize = UNTAGGED_LEN;

/// Segments with more payload than this carry whole cache lines, so that copies stay aligned.
const LONG: usize = 4096;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Room for one segment.
#[derive(Debug)]
pub struct Segment<'a> {
    out: BytesMut<'a>,
    header: usize,
    len: usize,
}

impl<'a> Segment<'a> {
    /// A segment of at most as many bytes as `out` has.
    #[inline]
    #[must_use]
    pub fn new(out: impl Into<BytesMut<'a>>) -> Self {
        Segment {
            out: out.into(),
            header: 0,
            len: 0,
        }
    }

    /// Bytes of the header of the segment that was built.
    #[inline]
    #[must_use]
    pub fn header(&self) -> usize {
        self.header
    }

    /// Bytes of the segment that was built.
    #[inline]
    #[must_use]
    #[allow(
        clippy::len_without_is_empty,
        reason = "no segment is empty: it has a header"
    )]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Frame for Segment<'_> {
    #[inline]
    fn room(&self, kind: Kind) -> Option<u32> {
        let header = match kind {
            Kind::Send => UNTAGGED_LEN,
            Kind::Write | Kind::ReadAnswer => TAGGED_LEN,
            Kind::Other => MAX_HEADER,
        };
        let room = self.out.len().checked_sub(header)?;
        let room = if room > LONG {
            room - room % LINE
        } else {
            room
        };
        u32::try_from(room).ok()
    }

    #[inline]
    fn put(&mut self, unit: &Unit, last: bool, len: usize) -> Option<BytesMut<'_>> {
        let header = match as_plain_send(unit) {
            Some(msn) if last => {
                let header = plain_send::emit(msn);
                self.out.put(0, &header).then_some(header.len())?
            }
            _ => put_header(unit, last, &mut self.out)?,
        };
        (self.header, self.len) = (header, header + len);
        let body = self.out.slice(header, len);
        (body.len() == len).then_some(body)
    }
}

/// Reads a segment: what it says, and its payload.
#[inline]
#[must_use]
pub fn read(segment: Bytes<'_>) -> (Unit, Bytes<'_>) {
    if let Some(msn) = segment
        .first_chunk()
        .and_then(|head| plain_send::parse(&head))
    {
        return (Unit::plain_send(msn), segment.split_at(SEND_HEADER).1);
    }
    if let Some((rkey, addr)) = segment
        .first_chunk()
        .and_then(|head| rdmap::parse_write(&head))
    {
        return (Unit::Write { rkey, addr }, segment.split_at(TAGGED_LEN).1);
    }
    let mut head = [0; MAX_HEADER];
    let n = segment.copy_to(&mut head);
    match rdmap::Segment::parse(&head[..n]) {
        Ok((parsed, header)) => (unit_of(parsed.message), segment.split_at(header).1),
        Err(_) => (Unit::Unreadable, segment),
    }
}

#[inline]
fn as_plain_send(unit: &Unit) -> Option<u32> {
    match *unit {
        Unit::Send {
            msn,
            offset: 0,
            solicited: false,
            invalidate: None,
            imm: None,
        } => Some(msn),
        _ => None,
    }
}

/// Writes a segment's header to the start of `out`; `None` where it does not fit.
fn put_header(unit: &Unit, last: bool, out: &mut BytesMut<'_>) -> Option<usize> {
    let message = message_of(unit)?;
    let mut header = [0; MAX_HEADER];
    let len = rdmap::Segment { message, last }.emit(&mut header)?;
    out.put(0, &header[..len]).then_some(len)
}

/// What carries a unit; `None` for what is never sent.
#[inline]
fn message_of(unit: &Unit) -> Option<Message> {
    Some(match *unit {
        Unit::Send {
            msn,
            offset,
            solicited,
            invalidate,
            imm,
        } => Message::Send {
            msn,
            mo: offset,
            solicited,
            invalidate,
            imm,
        },
        Unit::Write { rkey, addr } => Message::Write {
            stag: rkey,
            to: addr,
        },
        Unit::ReadAnswer { id, offset } => Message::ReadResponse {
            stag: id,
            to: offset,
        },
        _ => return single_message_of(unit),
    })
}

/// As [`message_of`], of units that are whole messages without payload.
fn single_message_of(unit: &Unit) -> Option<Message> {
    Some(match *unit {
        Unit::Immediate {
            msn,
            solicited,
            imm,
            written,
        } => Message::Immediate {
            msn,
            solicited,
            imm,
            written,
        },
        Unit::Read {
            msn,
            id,
            len,
            rkey,
            addr,
        } => Message::ReadRequest {
            msn,
            sink_stag: id,
            sink_to: 0,
            len,
            src_stag: rkey,
            src_to: addr,
        },
        Unit::Atomic {
            msn,
            id,
            rkey,
            addr,
            op,
        } => Message::AtomicRequest {
            msn,
            request_id: id,
            stag: rkey,
            to: addr,
            op: match op {
                AtomicOp::FetchAdd(add) => Atomic::FetchAdd { add },
                AtomicOp::CmpSwap { compare, swap } => Atomic::CmpSwap { compare, swap },
            },
        },
        Unit::AtomicAnswer { msn, id, original } => Message::AtomicResponse {
            msn,
            request_id: id,
            original,
        },
        Unit::Send { .. } | Unit::Write { .. } | Unit::ReadAnswer { .. } | Unit::Unreadable => {
            return None;
        }
    })
}

#[inline]
fn unit_of(message: Message) -> Unit {
    match message {
        Message::Send {
            msn,
            mo,
            solicited,
            invalidate,
            imm,
        } => Unit::Send {
            msn,
            offset: mo,
            solicited,
            invalidate,
            imm,
        },
        Message::Write { stag, to } => Unit::Write {
            rkey: stag,
            addr: to,
        },
        Message::ReadResponse { stag, to } => Unit::ReadAnswer {
            id: stag,
            offset: to,
        },
        single => single_unit_of(single),
    }
}

/// As [`unit_of`], of messages without payload.
fn single_unit_of(message: Message) -> Unit {
    match message {
        Message::Immediate {
            msn,
            solicited,
            imm,
            written,
        } => Unit::Immediate {
            msn,
            solicited,
            imm,
            written,
        },
        // The sink's offset is 0: answers count from the start of the message.
        Message::ReadRequest {
            msn,
            sink_stag,
            len,
            src_stag,
            src_to,
            ..
        } => Unit::Read {
            msn,
            id: sink_stag,
            len,
            rkey: src_stag,
            addr: src_to,
        },
        Message::AtomicRequest {
            msn,
            request_id,
            stag,
            to,
            op,
        } => Unit::Atomic {
            msn,
            id: request_id,
            rkey: stag,
            addr: to,
            op: match op {
                Atomic::FetchAdd { add } => AtomicOp::FetchAdd(add),
                Atomic::CmpSwap { compare, swap } => AtomicOp::CmpSwap { compare, swap },
            },
        },
        Message::AtomicResponse {
            msn,
            request_id,
            original,
        } => Unit::AtomicAnswer {
            msn,
            id: request_id,
            original,
        },
        Message::Send { .. } | Message::Write { .. } | Message::ReadResponse { .. } => {
            Unit::Unreadable
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One unit of each kind that is sent, and whether others of its message may follow.
    fn units() -> Vec<(Unit, bool)> {
        let send = |offset, solicited, invalidate, imm| Unit::Send {
            msn: 9,
            offset,
            solicited,
            invalidate,
            imm,
        };
        let atomic = |op| Unit::Atomic {
            msn: 2,
            id: 3,
            rkey: 4,
            addr: 8,
            op,
        };
        vec![
            (send(0, false, None, None), true),
            (send(77, true, None, None), true),
            (send(0, false, Some(5), None), true),
            (send(1, true, None, Some(6)), true),
            (Unit::Write { rkey: 1, addr: 2 }, true),
            (
                Unit::Immediate {
                    msn: 1,
                    solicited: true,
                    imm: 2,
                    written: 3,
                },
                false,
            ),
            (
                Unit::Read {
                    msn: 1,
                    id: 2,
                    len: 3,
                    rkey: 4,
                    addr: 5,
                },
                false,
            ),
            (atomic(AtomicOp::FetchAdd(5)), false),
            (
                atomic(AtomicOp::CmpSwap {
                    compare: 6,
                    swap: 7,
                }),
                false,
            ),
            (Unit::ReadAnswer { id: 1, offset: 2 }, true),
            (
                Unit::AtomicAnswer {
                    msn: 1,
                    id: 2,
                    original: 3,
                },
                false,
            ),
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        for (unit, may_go_on) in units() {
            for last in [true, false] {
                let payload: &[u8] = if may_go_on { b"payload" } else { b"" };
                let mut memory = [0; 200];
                let mut frame = Segment::new(&mut memory[..]);
                let body = frame.put(&unit, last, payload.len());
                if !last && !may_go_on {
                    assert!(body.is_none(), "{unit:?}");
                    continue;
                }
                assert!(body.expect("room").put(0, payload), "{unit:?}");
                let len = frame.len();
                let (got, bytes) = read(Bytes::from(&memory[..len]));
                assert_eq!((got, &bytes.to_vec()[..]), (unit, payload));
            }
        }
    }

    #[test]
    fn a_frame_takes_as_much_as_it_says_and_no_more() {
        for size in [0, 13, 14, 17, 18, 71, 72, 100, 4096, 5000, 8264] {
            for (kind, unit) in [
                (Kind::Send, units()[0].0),
                (Kind::Write, units()[4].0),
                (Kind::ReadAnswer, units()[9].0),
                (Kind::Other, units()[7].0),
            ] {
                let mut memory = vec![0; size];
                let mut frame = Segment::new(&mut memory[..]);
                match frame.room(kind) {
                    None => assert!(kind == Kind::Other || frame.put(&unit, true, 0).is_none()),
                    Some(room) => {
                        assert!(frame.put(&unit, true, room as usize).is_some());
                        assert!(frame.put(&unit, true, size).is_none());
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_no_segment_is_unreadable() {
        for bytes in [&[][..], &[0xff; 40], &[0x41; 13]] {
            assert_eq!(read(Bytes::from(bytes)).0, Unit::Unreadable);
        }
        let mut memory = [0; 100];
        assert!(
            Segment::new(&mut memory[..])
                .put(&Unit::Unreadable, true, 0)
                .is_none()
        );
    }
}
