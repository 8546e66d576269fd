//! What a queue pair asks of the device around it: memory and queues.

use crate::bytes::{Bytes, BytesMut, Payloads, PayloadsMut};
use crate::types::{Binding, QpEvent, RecvWr, Wc};

/// Why an access to registered memory was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemError {
    /// The key names no MR or window of this device, or one that was there earlier.
    #[error("no such key")]
    Key,
    /// The MR belongs to another protection domain than the QP.
    #[error("wrong protection domain")]
    Pd,
    /// The range is not inside the MR.
    #[error("out of bounds")]
    Bounds,
    /// The MR was not registered for this kind of access.
    #[error("access not permitted")]
    Access,
    /// The MR's memory is not there any more: unmapped, protected, or beyond the end of its file.
    #[error("memory is gone")]
    Gone,
    /// What was to be copied to or from the MR is not there.
    #[error("the other side of the copy is gone")]
    Elsewhere,
}

/// A kind of remote access (`ibv_reg_mr(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remote {
    /// RDMA READ
    Read,
    /// RDMA WRITE
    Write,
    /// FETCH_ADD, CMP_SWAP
    Atomic,
}

/// The queue pair through which a peer reaches memory, or that changes what can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Via {
    /// Its protection domain.
    pub pd: u32,
    /// Its number: windows of type 2 are bound to a queue pair.
    pub qpn: u32,
}

/// An atomic operation on 8 bytes in the responder's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds, wrapping.
    FetchAdd(u64),
    /// Stores `swap` if the value equals `compare`.
    CmpSwap {
        /// Expected value
        compare: u64,
        /// New value
        swap: u64,
    },
}

/// Registered memory. Every call checks key, generation, bounds, protection domain and permission
/// first, and touches nothing if they do not allow the whole range. Where the program has taken the
/// memory away that it registered, a copy may end in the middle ([`MemError::Gone`]).
pub trait Memory {
    /// Checks that a local range may be used, for writing if `write`.
    fn check_local(
        &self,
        pd: u32,
        lkey: u32,
        addr: u64,
        len: u64,
        write: bool,
    ) -> Result<(), MemError>;
    /// Checks that a peer may access a range.
    fn check_remote(
        &self,
        via: Via,
        rkey: u32,
        addr: u64,
        len: u64,
        what: Remote,
    ) -> Result<(), MemError>;
    /// Copies local memory out (gather). `dst` is filled whole.
    fn read_local(&self, pd: u32, lkey: u32, addr: u64, dst: BytesMut<'_>) -> Result<(), MemError>;
    /// Copies into local memory (scatter of a receive, a READ or an atomic response).
    fn write_local(&self, pd: u32, lkey: u32, addr: u64, src: Bytes<'_>) -> Result<(), MemError>;
    /// Copies out for a peer's READ.
    fn read_remote(
        &self,
        via: Via,
        rkey: u32,
        addr: u64,
        dst: BytesMut<'_>,
    ) -> Result<(), MemError>;
    /// Copies in for a peer's WRITE. The last aligned 8 bytes are stored last, with release.
    fn write_remote(&self, via: Via, rkey: u32, addr: u64, src: Bytes<'_>) -> Result<(), MemError>;
    /// As [`Memory::read_local`] of a range that several payloads carry. Returns how many were
    /// filled: where not all were, [`Memory::read_local`] of the next says why, if it fails too.
    fn read_local_parts(&self, pd: u32, lkey: u32, addr: u64, parts: PayloadsMut<'_>) -> usize {
        let each = parts.each() as u64;
        let places = (0..).map(|i: u64| addr.wrapping_add(i.wrapping_mul(each)));
        let read = |(at, part)| self.read_local(pd, lkey, at, part).is_ok();
        places.zip(parts).map(read).take_while(|done| *done).count()
    }
    /// As [`Memory::write_local`], the same.
    fn write_local_parts(&self, pd: u32, lkey: u32, addr: u64, parts: Payloads<'_>) -> usize {
        let each = parts.each() as u64;
        let places = (0..).map(|i: u64| addr.wrapping_add(i.wrapping_mul(each)));
        let write = |(at, part)| self.write_local(pd, lkey, at, part).is_ok();
        places
            .zip(parts)
            .map(write)
            .take_while(|done| *done)
            .count()
    }
    /// As [`Memory::read_remote`], the same.
    fn read_remote_parts(&self, via: Via, rkey: u32, addr: u64, parts: PayloadsMut<'_>) -> usize {
        let each = parts.each() as u64;
        let places = (0..).map(|i: u64| addr.wrapping_add(i.wrapping_mul(each)));
        let read = |(at, part)| self.read_remote(via, rkey, at, part).is_ok();
        places.zip(parts).map(read).take_while(|done| *done).count()
    }
    /// As [`Memory::write_remote`], the same, of parts behind which more of their WRITE follows:
    /// their last bytes are not stored last.
    fn write_remote_parts(&self, via: Via, rkey: u32, addr: u64, parts: Payloads<'_>) -> usize {
        let each = parts.each() as u64;
        let places = (0..).map(|i: u64| addr.wrapping_add(i.wrapping_mul(each)));
        let write = |(at, part)| self.write_remote(via, rkey, at, part).is_ok();
        places
            .zip(parts)
            .map(write)
            .take_while(|done| *done)
            .count()
    }
    /// Carries out an atomic for a peer and returns the value before. `addr` is 8-byte aligned.
    fn atomic(&self, via: Via, rkey: u32, addr: u64, op: AtomicOp) -> Result<u64, MemError>;
    /// Invalidates the key of a memory window of type 2 (LOCAL_INV, a peer's SEND_WITH_INV): no
    /// access by it will begin any more. Returns the key if one is under way, and so not complete
    /// before [`Memory::is_quiet`].
    fn invalidate(&mut self, via: Via, rkey: u32) -> Result<Option<u32>, MemError>;
    /// Binds a memory window, of whose key `rkey` gives the low byte from then on. Returns the key
    /// that it had, if an access by that is under way, and so not complete before
    /// [`Memory::is_quiet`].
    fn bind_window(
        &mut self,
        via: Via,
        rkey: u32,
        binding: &Binding,
    ) -> Result<Option<u32>, MemError>;
    /// Whether the accesses have ended that were under way by a withdrawn key. A peer that does not
    /// end one is not waited for without limit: it fails, and then this is true.
    fn is_quiet(&mut self, key: u32) -> bool;
    /// The peer of queue pair `qp` is in the middle of an access by a key that it has itself asked
    /// to be invalidated, as no honest one is: its queue pair fails, and it is not waited for.
    fn expel(&mut self, qp: u32, key: u32);
}

/// What a link counts, for statistics alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tally {
    /// Records written to a ring.
    Written,
    /// Records taken from one.
    Taken,
    /// Peers asked for time, for want of a receive.
    NotReadySent,
    /// Times that a peer asked for time.
    NotReadyReceived,
    /// Times that a peer had to be woken.
    Woken,
}

/// Where sends complete.
pub trait Completions {
    /// Queues a completion of the send queue of `qp`. When it is polled,
    /// [`Qp::release_send`](crate::qp::Qp::release_send) is to be told of so many `places`.
    fn complete_send(&mut self, qp: u32, wc: Wc, places: u32);
    /// A work request of `qp` of so many bytes succeeded and asked for no completion.
    fn succeeded_silently(&mut self, _qp: u32, _bytes: u32) {}
}

/// The device around a queue pair.
pub trait Host: Memory + Completions {
    /// The link has done something so often.
    fn tally(&self, _what: Tally, _times: u64) {}
    /// Whether the program has been given so much to do that it had better be left to do it.
    fn has_enough(&self) -> bool {
        false
    }
    /// Whether it waits for what it has been given, and goes back to it at once: what comes after
    /// is left for the next call.
    fn is_sated(&self) -> bool {
        false
    }
    /// Queues a completion of the receive queue of `qp`; `solicited` wakes `solicited_only`
    /// waiters.
    /// Errors always wake.
    fn complete_recv(&mut self, qp: u32, wc: Wc, solicited: bool);
    /// Bytes that the next receive of the SRQ of `qp` has room for.
    fn peek_srq(&self, qp: u32) -> Option<u64>;
    /// Takes a receive from the SRQ of `qp`, with the protection domain of the SRQ: its entries are
    /// checked against that, whatever the queue pair's (`ibv_create_srq(3)`).
    fn pop_srq(&mut self, qp: u32) -> Option<(RecvWr, u32)>;
    /// Reports an asynchronous event.
    fn event(&mut self, qp: u32, event: QpEvent);
}
