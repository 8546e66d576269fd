//! Operations of the send queue by what they ask for.

use crate::host::AtomicOp;
use crate::types::{SendOp, WcOpcode};

impl SendOp {
    pub(crate) fn opcode(&self) -> WcOpcode {
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
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, SendOp::LocalInv(_) | SendOp::BindMw(_))
    }

    /// What it does to the peer's 8 bytes, if it is an atomic.
    #[inline]
    pub(crate) fn atomic(&self) -> Option<AtomicOp> {
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
    pub(crate) fn is_answered(&self) -> bool {
        matches!(
            self,
            SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. }
        )
    }
}
