//! Segments of a hostile peer: well formed, with fields of its choice.

use causeway_wire::rdmap::{Atomic, MAX_HEADER, Message, Segment};

use crate::script::Script;
use crate::victim::{REGION, base};

/// A segment that is well formed, with fields of the script's choice.
pub fn craft(script: &mut Script<'_>) -> Vec<u8> {
    let kind = script.byte().unwrap_or(0);
    let stag = u32::from(script.byte().unwrap_or(0)) % 9;
    let at = script.u16();
    // Mostly inside the region that the key names, or just past its end.
    let to = base(stag).wrapping_add(u64::from(at) % (REGION + 64));
    let to = if at == u16::MAX { u64::MAX - 7 } else { to };
    let msn = u32::from(script.byte().unwrap_or(0));
    let len = u32::from(script.u16()) % 1_100;
    let solicited = kind & 0x40 != 0;
    let message = match kind % 9 {
        0 => Message::Write { stag, to },
        1 | 2 => Message::Send {
            msn,
            mo: u32::from(at) % 2_000,
            solicited,
            invalidate: None,
            imm: (kind & 0x80 != 0).then_some(3),
        },
        3 => Message::Send {
            msn,
            mo: 0,
            solicited,
            invalidate: Some(stag),
            imm: None,
        },
        4 => Message::Immediate {
            msn,
            solicited,
            imm: 3,
            written: len,
        },
        5 => Message::ReadRequest {
            msn,
            sink_stag: stag,
            sink_to: u64::from(at),
            len: if kind & 0x80 == 0 {
                len
            } else {
                u32::MAX - len
            },
            src_stag: stag,
            src_to: to,
        },
        6 => Message::ReadResponse {
            stag: msn,
            to: u64::from(at),
        },
        7 => Message::AtomicRequest {
            msn,
            request_id: msn,
            stag,
            to: to & !7,
            op: atomic(kind, msn),
        },
        _ => Message::AtomicResponse {
            msn,
            request_id: msn,
            original: 5,
        },
    };
    let mut bytes = vec![0; MAX_HEADER];
    let last = kind & 0x20 == 0;
    let head = Segment { message, last }.emit(&mut bytes).unwrap_or(0);
    bytes.truncate(head);
    if message.has_payload() {
        bytes.resize(head + len as usize, 0x77);
    }
    bytes
}

fn atomic(kind: u8, operand: u32) -> Atomic {
    if kind & 0x40 == 0 {
        Atomic::FetchAdd { add: 1 }
    } else {
        Atomic::CmpSwap {
            compare: u64::from(operand),
            swap: 1,
        }
    }
}
