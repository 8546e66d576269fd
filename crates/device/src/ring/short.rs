//! The short way of one-sided work requests: carried out from where the program has them, in one
//! straight line, where the peer's memory is mapped and nothing is out of the ordinary.
//!
//! It decides nothing that the long way does not: whatever it meets that is not plain, it leaves
//! to that, and then has changed nothing that the long way would not do again alike.

use causeway_proto::host::{MemError, Remote};
use causeway_proto::qp::Qp as ProtoQp;
use causeway_proto::types::{Payload, SendFlags, SendOp, SendWr, Sge, WcOpcode};
use causeway_recover::{Fault, copy};
use causeway_shm::Counter;

use super::RingLink;
use super::local::Local;
use crate::copy::copy_last_word_last;
use crate::core::Core;
use crate::direct::{Cached, LONGEST};

/// A WRITE or READ of one range, as `ibv_post_send(3)` was given it.
#[derive(Clone, Copy, Debug)]
pub struct OneSided {
    /// The program's name for it.
    pub wr_id: u64,
    /// What it asks for beside being carried out.
    pub flags: SendFlags,
    /// Whether the peer's memory is read.
    pub read: bool,
    /// Where the peer's memory begins.
    pub remote_addr: u64,
    /// The key of the peer's memory.
    pub rkey: u32,
    /// Where the program's memory begins.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The key of the program's memory; of no meaning for an inline WRITE.
    pub lkey: u32,
}

/// A SEND of one range, as `ibv_post_send(3)` was given it.
#[derive(Clone, Copy, Debug)]
pub struct TwoSided {
    /// The program's name for it.
    pub wr_id: u64,
    /// What it asks for beside being carried out.
    pub flags: SendFlags,
    /// Where the program's memory begins.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The key of the program's memory; of no meaning for inline bytes.
    pub lkey: u32,
}

impl TwoSided {
    /// The same of a work request that has been copied, if it is such a SEND. Inline bytes are
    /// where that has them.
    pub(crate) fn of(wr: &SendWr) -> Option<Self> {
        let (addr, len, lkey) = match &wr.payload {
            _ if !matches!(wr.op, SendOp::Send) => return None,
            Payload::Inline(bytes) => (bytes.as_ptr().expose_provenance() as u64, bytes.len(), 0),
            Payload::Sges(sges) => match sges.as_slice() {
                [sge] => (sge.addr, sge.length as usize, sge.lkey),
                _ => return None,
            },
            Payload::Window(_) => return None,
        };
        Some(TwoSided {
            wr_id: wr.wr_id,
            flags: wr.flags,
            addr,
            len: u32::try_from(len).ok()?,
            lkey,
        })
    }

    pub(super) fn is_inline(&self) -> bool {
        self.flags.contains(SendFlags::INLINE)
    }

    /// Where its bytes are.
    pub(super) fn at(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.addr as usize)
    }

    /// The program's memory.
    pub(super) fn range(&self) -> Sge {
        Sge {
            addr: self.addr,
            length: self.len,
            lkey: self.lkey,
        }
    }
}

impl OneSided {
    fn is_inline(&self) -> bool {
        self.flags.contains(SendFlags::INLINE)
    }

    /// The program's memory, if it may be used so.
    #[inline(always)]
    fn local(&self, pd: u32, core: &Core, known: &mut Local) -> Result<usize, MemError> {
        if self.is_inline() {
            return Ok(self.addr as usize);
        }
        known.find(&core.mrs, (pd, self.lkey), (self.addr, self.len), self.read)
    }
}

impl RingLink {
    /// Carries out a work request at once. Returns false where it is to go the long way.
    #[inline(always)]
    pub fn post_one_sided(&mut self, qp: &mut ProtoQp, wr: &OneSided, core: &mut Core) -> bool {
        if wr.len == 0 || wr.len > LONGEST || !qp.takes_short(wr.read, wr.is_inline(), wr.len) {
            return false;
        }
        let what = if wr.read { Remote::Read } else { Remote::Write };
        let Some(cached) = self.direct.cached(wr.rkey, wr.remote_addr, wr.len, what) else {
            return false;
        };
        let Ok(local) = wr.local(qp.config().pd, core, &mut self.local) else {
            return false;
        };
        if !wr.read {
            self.link.show_ack(&mut self.memory);
        }
        let grant = self.memory.ring.enter(wr.rkey);
        let done = cached.still_holds(grant) && carry_out(&cached, local, wr).is_ok();
        if !self.memory.ring.leave() || !done {
            return false;
        }
        core.stats.add(Counter::Direct, 1);
        let opcode = if wr.read {
            WcOpcode::RdmaRead
        } else {
            WcOpcode::RdmaWrite
        };
        qp.passed(core, (wr.wr_id, opcode), wr.flags, wr.len);
        true
    }
}

/// Copies the bytes.
#[inline(always)]
fn carry_out(cached: &Cached, local: usize, wr: &OneSided) -> Result<(), Fault> {
    let (at, local) = (cached.at, local as *mut u8);
    let len = wr.len as usize;
    // SAFETY: `at` is inside the peer's segment, which is mapped as long as the cache holds it, and
    // whose size is sealed; `local` is inside a registered region, or is what the program says its
    // inline bytes are. No reference covers either.
    unsafe {
        if wr.read {
            copy(local, at, len)
        } else {
            copy_last_word_last(at, local, len)
        }
    }
}
