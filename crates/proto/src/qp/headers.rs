//! What a send work request is to the peer: opcodes and units.

use super::sendq::SendWqe;
use crate::host::AtomicOp;
use crate::types::{SendFlags, SendOp, WcOpcode};
use crate::unit::{Kind, Unit};

impl SendOp {
    pub(super) fn opcode(&self) -> WcOpcode {
        match self {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) | SendOp::Datagram { .. } => {
                WcOpcode::Send
            }
            SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOpcode::RdmaWrite,
            SendOp::Read { .. } => WcOpcode::RdmaRead,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            SendOp::CmpSwap { .. } => WcOpcode::CompSwap,
            SendOp::LocalInv(_) => WcOpcode::LocalInv,
            SendOp::BindMw(_) => WcOpcode::BindMw,
        }
    }

    /// Whether it accesses the peer's memory by key.
    #[inline]
    #[must_use]
    pub fn is_one_sided(&self) -> bool {
        !matches!(
            self,
            SendOp::Send
                | SendOp::SendImm(_)
                | SendOp::SendInv(_)
                | SendOp::LocalInv(_)
                | SendOp::BindMw(_)
                | SendOp::Datagram { .. }
        )
    }

    /// Whether it is carried out here, and nothing is sent.
    pub(super) fn is_local(&self) -> bool {
        matches!(self, SendOp::LocalInv(_) | SendOp::BindMw(_))
    }

    /// What it does to the peer's 8 bytes, if it is an atomic.
    #[inline]
    pub(super) fn atomic(&self) -> Option<AtomicOp> {
        match *self {
            SendOp::FetchAdd { add, .. } => Some(AtomicOp::FetchAdd(add)),
            SendOp::CmpSwap { compare, swap, .. } => Some(AtomicOp::CmpSwap { compare, swap }),
            _ => None,
        }
    }

    /// An atomic on 8 bytes of the peer's.
    #[must_use]
    pub fn atomic_at(op: AtomicOp, addr: u64, rkey: u32) -> SendOp {
        match op {
            AtomicOp::FetchAdd(add) => SendOp::FetchAdd { addr, rkey, add },
            AtomicOp::CmpSwap { compare, swap } => SendOp::CmpSwap {
                addr,
                rkey,
                compare,
                swap,
            },
        }
    }

    /// Whether the peer answers it with data.
    pub(super) fn is_answered(&self) -> bool {
        matches!(
            self,
            SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. }
        )
    }
}

impl SendWqe {
    pub(super) fn begun(&self) -> bool {
        self.emitted > 0 || self.end.is_some()
    }

    /// Whether it is still to be sent, and one unit with `room` bytes of payload is all of it.
    pub(super) fn is_whole(&self, room: u32) -> bool {
        let plain = matches!(
            self.wr.op,
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) | SendOp::Write { .. }
        );
        plain && self.len <= room && !self.begun() && self.placed.is_none()
    }

    /// The next bytes to send as units, at most `room` of them from `offset` on, which must not
    /// be inside what was placed directly: offset, length, and whether they are the last.
    pub(super) fn next_part(&self, offset: u32, room: u32) -> (u32, u32, bool) {
        let total = self.outgoing();
        let (from, to) = self.placed.unwrap_or((total, total));
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
            msn: self.msn,
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
                msn: self.msn,
                solicited,
                imm,
                written: self.len,
            },
            SendOp::Write { addr, rkey } | SendOp::WriteImm { addr, rkey, .. } => Unit::Write {
                rkey,
                addr: addr.wrapping_add(u64::from(offset)),
            },
            SendOp::Read { addr, rkey } => Unit::Read {
                msn: self.msn,
                id,
                len: self.len,
                rkey,
                addr,
            },
            SendOp::FetchAdd { addr, rkey, add } => Unit::Atomic {
                msn: self.msn,
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
                msn: self.msn,
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
