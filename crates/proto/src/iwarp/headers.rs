//! What a send work request is to the peer: units.

use super::Wqe;
use crate::host::AtomicOp;
use crate::types::{SendFlags, SendOp};
use crate::unit::{Kind, Unit};
use crate::work::Part;

impl Wqe {
    /// Whether it is still to be sent, and one unit with `room` bytes of payload is all of it.
    pub(super) fn is_whole(&self, room: u32) -> bool {
        let plain = matches!(
            self.wr.op,
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) | SendOp::Write { .. }
        );
        plain && self.len <= room && !self.part.is_begun() && self.part.placed.is_none()
    }

    /// The next bytes to send as units, at most `room` of them from `offset` on, which must not
    /// be inside what was placed directly: offset, length, and whether they are the last.
    pub(super) fn next_part(&self, offset: u32, room: u32) -> (u32, u32, bool) {
        let total = self.outgoing();
        let (from, to) = self.part.placed.unwrap_or((total, total));
        let offset = if offset == from { to } else { offset };
        let limit = if offset < from { from } else { total };
        let len = room.min(limit - offset);
        let end = offset + len;
        (offset, len, end == total || (end == from && to == total))
    }

    /// The kind that all its units fit into.
    pub(super) fn kind(&self) -> Kind {
        match self.wr.op {
            SendOp::Write { .. } => Kind::Write,
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) => Kind::Send,
            _ => Kind::Other,
        }
    }

    /// The bytes of its own memory that it sends: an answered request sends none.
    pub(super) fn outgoing(&self) -> u32 {
        if self.wr.op.is_answered() {
            0
        } else {
            self.len
        }
    }

    /// The unit that carries its bytes from `offset`, or, with `immediate`, the one that ends a
    /// WRITE_WITH_IMM. `position` is its own in the send queue.
    #[inline]
    pub(super) fn unit(&self, position: u64, offset: u32, immediate: bool) -> Unit {
        let solicited = self.wr.flags.contains(SendFlags::SOLICITED);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the low bits name the request"
        )]
        let id = position as u32;
        let send = |invalidate, imm| Unit::Send {
            msn: self.part.msn,
            offset,
            solicited,
            invalidate,
            imm,
        };
        match self.wr.op {
            SendOp::Send => send(None, None),
            SendOp::SendImm(imm) => send(None, Some(imm)),
            SendOp::SendInv(stag) => send(Some(stag), None),
            SendOp::WriteImm { imm, .. } if immediate => Unit::Immediate {
                msn: self.part.msn,
                solicited,
                imm,
                written: self.len,
            },
            SendOp::Write { addr, rkey } | SendOp::WriteImm { addr, rkey, .. } => Unit::Write {
                rkey,
                addr: addr.wrapping_add(u64::from(offset)),
            },
            SendOp::Read { addr, rkey } => Unit::Read {
                msn: self.part.msn,
                id,
                len: self.len,
                rkey,
                addr,
            },
            SendOp::FetchAdd { addr, rkey, add } => Unit::Atomic {
                msn: self.part.msn,
                id,
                rkey,
                addr,
                op: AtomicOp::FetchAdd(add),
            },
            SendOp::CmpSwap {
                addr,
                rkey,
                compare,
                swap,
            } => Unit::Atomic {
                msn: self.part.msn,
                id,
                rkey,
                addr,
                op: AtomicOp::CmpSwap { compare, swap },
            },
            // None of these is ever sent as a unit.
            SendOp::LocalInv(_) | SendOp::BindMw(_) | SendOp::Datagram { .. } => Unit::Unreadable,
        }
    }
}
