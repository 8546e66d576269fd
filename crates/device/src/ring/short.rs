//! The short way of one-sided work requests: carried out from where the program has them, in one
//! straight line, where the peer's memory is mapped and nothing is out of the ordinary.
//!
//! It decides nothing that the long way does not: whatever it meets that is not plain, it leaves
//! to that, and then has changed nothing that the long way would not do again alike.

use causeway_proto::host::{AtomicOp, Remote};
use causeway_proto::qp::{AtOnce, Qp as ProtoQp};
use causeway_proto::types::{Payload, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus};
use causeway_recover::{Fault, copy};

use super::RingLink;
use crate::copy::{self as copies, copy_last_word_last};
use crate::direct::LONGEST;
use crate::poster::{Count, Poster};
use crate::request::{Atomic, OneSided, Request};

/// A SEND of one range, of a work request that has been copied. Inline bytes are where that has
/// them.
#[derive(Debug)]
pub(crate) struct TwoSided<'a> {
    wr: &'a SendWr,
    range: Sge,
}

impl<'a> TwoSided<'a> {
    /// If it is such a SEND.
    pub fn of(wr: &'a SendWr) -> Option<Self> {
        let range = match &wr.payload {
            _ if !matches!(wr.op, SendOp::Send) => return None,
            Payload::Inline(bytes) => Sge {
                addr: bytes.as_ptr().expose_provenance() as u64,
                length: u32::try_from(bytes.len()).ok()?,
                lkey: 0,
            },
            Payload::Sges(sges) => match sges.as_slice() {
                [sge] => *sge,
                _ => return None,
            },
            Payload::Window(_) => return None,
        };
        Some(TwoSided { wr, range })
    }
}

impl Request for TwoSided<'_> {
    fn wr_id(&self) -> u64 {
        self.wr.wr_id
    }

    fn flags(&self) -> SendFlags {
        self.wr.flags
    }

    fn addr(&self) -> u64 {
        self.range.addr
    }

    fn length(&self) -> u32 {
        self.range.length
    }

    fn lkey(&self) -> u32 {
        self.range.lkey
    }
}

/// What came of a WRITE or READ that was to be carried out at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    /// It is to go the long way.
    Declined,
    /// It is done, and has no completion.
    Silently,
    /// It is done, and its completion is queued.
    Completed,
}

impl RingLink {
    /// Carries out a work request at once, of which `READ` says whether the peer's memory is read.
    #[inline(always)]
    pub fn post_one_sided<const READ: bool>(
        &mut self,
        qp: &mut ProtoQp,
        wr: &impl OneSided,
        poster: &mut Poster,
    ) -> Posted {
        let (flags, len) = (wr.flags(), wr.length());
        let inline = flags.contains(SendFlags::INLINE);
        if len == 0 || len > LONGEST || !qp.takes_short(READ) {
            return Posted::Declined;
        }
        let what = if READ { Remote::Read } else { Remote::Write };
        let rkey = wr.rkey();
        let Some(cached) = self.direct.cached(rkey, wr.remote_addr(), len, what) else {
            return Posted::Declined;
        };
        let addr = wr.addr();
        let local = if inline {
            if READ || len > qp.config().cap.max_inline_data {
                return Posted::Declined;
            }
            addr as usize
        } else {
            let (pd, range) = (|| qp.config().pd, (addr, len, wr.lkey()));
            match self.local.find(&poster.mrs, pd, range, READ) {
                Ok(local) => local,
                Err(_) => return Posted::Declined,
            }
        };
        if !READ {
            self.link.show_ack(&mut self.memory);
        }
        let grant = self.memory.ring.enter(rkey);
        let done = cached.still_holds(grant) && carry_out::<READ>(cached.at, local, len).is_ok();
        if !self.memory.ring.leave() || !done {
            return Posted::Declined;
        }
        poster.counts.add(Count::Direct, 1);
        let opcode = if READ {
            WcOpcode::RdmaRead
        } else {
            WcOpcode::RdmaWrite
        };
        match qp.passed(poster, (wr.wr_id(), opcode), flags, len) {
            true => Posted::Completed,
            false => Posted::Silently,
        }
    }
}

impl RingLink {
    /// Carries out an atomic at once.
    #[inline]
    pub fn post_atomic(
        &mut self,
        qp: &mut ProtoQp,
        wr: &impl Atomic,
        poster: &mut Poster,
    ) -> AtOnce {
        let (flags, len, op) = (wr.flags(), wr.length(), wr.op());
        let inline = flags.contains(SendFlags::INLINE);
        if len as usize != size_of::<u64>() || inline || !qp.takes_short(true) {
            return AtOnce::Declined;
        }
        let rkey = wr.rkey();
        let cached = self
            .direct
            .cached(rkey, wr.remote_addr(), len, Remote::Atomic)
            .filter(|cached| cached.at.addr().is_multiple_of(size_of::<u64>()));
        let (pd, range) = (|| qp.config().pd, (wr.addr(), len, wr.lkey()));
        let local = self.local.find(&poster.mrs, pd, range, true);
        let (Some(cached), Ok(local)) = (cached, local) else {
            return AtOnce::Declined;
        };
        self.link.show_ack(&mut self.memory);
        let grant = self.memory.ring.enter(rkey);
        let before = match cached.still_holds(grant) {
            // SAFETY: as in `carry_out`, and aligned to 8 bytes.
            true => unsafe { copies::atomic(cached.at, op) }.ok(),
            false => None,
        };
        let evicted = !self.memory.ring.leave();
        let Some(before) = before else {
            return AtOnce::Declined;
        };
        if evicted {
            return AtOnce::Failed(WcStatus::RetryExcErr);
        }
        let bytes = before.to_ne_bytes();
        // SAFETY: inside a registered region, which no reference covers.
        let stored = unsafe { copies::store(local as *mut u8, bytes.as_slice().into()) };
        if stored.is_err() {
            return AtOnce::Failed(WcStatus::LocProtErr);
        }
        poster.counts.add(Count::Direct, 1);
        let opcode = match op {
            AtomicOp::FetchAdd(_) => WcOpcode::FetchAdd,
            AtomicOp::CmpSwap { .. } => WcOpcode::CompSwap,
        };
        qp.passed(poster, (wr.wr_id(), opcode), flags, len);
        AtOnce::Done
    }
}

/// Copies the bytes between a place in the peer's memory, as a translation gave it, and the
/// program's.
#[inline(always)]
fn carry_out<const READ: bool>(at: *mut u8, local: usize, len: u32) -> Result<(), Fault> {
    let (local, len) = (local as *mut u8, len as usize);
    // SAFETY: `at` is inside the peer's segment, which is mapped as long as the cache holds it, and
    // whose size is sealed; `local` is inside a registered region, or is what the program says its
    // inline bytes are. No reference covers either.
    unsafe {
        if READ {
            copy(local, at, len)
        } else {
            copy_last_word_last(at, local, len)
        }
    }
}
