//! Send requests of one range, where the program has them: the device reads what it needs from
//! there (`ibv_post_send(3)`).

use crate::abi::{IbvSendWr, IbvSge, wr_opcode};
use causeway_device::{Atomic, OneSided, Request, WORD};
use causeway_proto::host::AtomicOp;
use causeway_proto::types::SendFlags;
use core::ffi::c_int;

/// A request of one range, where the program has it.
pub(crate) struct OneRange(pub *const IbvSendWr);

/// How many ranges a request has, and its opcode: words that lie side by side, in one, which one
/// comparison tells from others.
#[inline(always)]
const fn shape(ranges: c_int, opcode: u32) -> u64 {
    ranges.cast_unsigned() as u64 | (opcode as u64) << u32::BITS
}

impl OneRange {
    /// The shapes of a WRITE and of a SEND of one range ([`OneRange::shape`]).
    pub const WRITE: u64 = shape(1, wr_opcode::RDMA_WRITE);
    pub const SEND: u64 = shape(1, wr_opcode::SEND);

    /// The first request of a chain, if nothing follows it, however many ranges it has.
    ///
    /// # Safety
    /// As [`OneRange::of`].
    #[inline(always)]
    pub unsafe fn alone(head: *const IbvSendWr) -> Option<OneRange> {
        // SAFETY: the caller's promise.
        let wr = unsafe { head.as_ref() }?;
        let known = wr.send_flags & !SendFlags::all().bits() == 0;
        (wr.next.is_null() && known).then_some(OneRange(head))
    }

    /// How many ranges it has, and its opcode.
    #[inline(always)]
    pub fn shape(&self) -> u64 {
        shape(self.wr().num_sge, self.wr().opcode)
    }

    /// Whether its range is a word ([`WORD`]). It has one.
    #[inline(always)]
    pub fn is_word(&self) -> bool {
        self.entry().length == WORD
    }

    /// Whether it asks for a completion.
    #[inline(always)]
    pub fn is_signaled(&self) -> bool {
        self.wr().send_flags & SendFlags::SIGNALED.bits() != 0
    }

    /// The first request of a chain, if it has one range and nothing follows it.
    ///
    /// # Safety
    /// `head` is null or begins a valid chain, which outlives this.
    #[inline(always)]
    pub unsafe fn of(head: *const IbvSendWr) -> Option<OneRange> {
        // SAFETY: the caller's promise.
        unsafe { OneRange::alone(head) }.filter(|one| one.wr().num_sge == 1)
    }

    #[inline(always)]
    pub fn wr(&self) -> &IbvSendWr {
        // SAFETY: a valid request ([`OneRange::of`]).
        unsafe { &*self.0 }
    }

    #[inline(always)]
    fn entry(&self) -> &IbvSge {
        // SAFETY: a valid request, whose list has an entry.
        unsafe { &*self.wr().sg_list }
    }
}

impl Request for OneRange {
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        self.wr().wr_id
    }

    #[inline(always)]
    fn flags(&self) -> SendFlags {
        SendFlags::from_bits_truncate(self.wr().send_flags)
    }

    #[inline(always)]
    fn addr(&self) -> u64 {
        self.entry().addr
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        self.entry().length
    }

    #[inline(always)]
    fn lkey(&self) -> u32 {
        self.entry().lkey
    }
}

/// A WRITE or READ.
impl OneSided for OneRange {
    #[inline(always)]
    fn remote_addr(&self) -> u64 {
        // SAFETY: WRITEs and READs define `rdma`.
        unsafe { self.wr().wr.rdma.remote_addr }
    }

    #[inline(always)]
    fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.wr().wr.rdma.rkey }
    }
}

/// An atomic of one range.
pub(crate) struct OneAtomic(pub OneRange);

impl Request for OneAtomic {
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        self.0.wr_id()
    }

    #[inline(always)]
    fn flags(&self) -> SendFlags {
        self.0.flags()
    }

    #[inline(always)]
    fn addr(&self) -> u64 {
        self.0.addr()
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        self.0.length()
    }

    #[inline(always)]
    fn lkey(&self) -> u32 {
        self.0.lkey()
    }
}

impl OneSided for OneAtomic {
    #[inline(always)]
    fn remote_addr(&self) -> u64 {
        // SAFETY: atomics define these fields of `atomic`.
        unsafe { self.0.wr().wr.atomic.remote_addr }
    }

    #[inline(always)]
    fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.0.wr().wr.atomic.rkey }
    }
}

impl Atomic for OneAtomic {
    #[inline(always)]
    fn op(&self) -> AtomicOp {
        let wr = self.0.wr();
        // SAFETY: as above; a compare-and-swap defines `swap` too.
        unsafe {
            match wr.opcode {
                wr_opcode::ATOMIC_CMP_AND_SWP => AtomicOp::CmpSwap {
                    compare: wr.wr.atomic.compare_add,
                    swap: wr.wr.atomic.swap,
                },
                _ => AtomicOp::FetchAdd(wr.wr.atomic.compare_add),
            }
        }
    }
}
