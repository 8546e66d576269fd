//! What a queue pair asks of a link whose peer's memory this process may have mapped.

use core::ops::Range;

use crate::bytes::{Bytes, BytesMut};
use crate::host::{AtomicOp, MemError, Remote};

/// Where in the peer's memory an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Key of the region.
    pub rkey: u32,
    /// Address by which the peer names the first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

/// Why an access was not carried out directly, or not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// It is the peer's to carry out, or to refuse: the memory is not mapped here, or not any more,
    /// or the access would not be allowed. Bytes may have been written; they may be written again.
    Elsewhere,
    /// The local memory does not allow it.
    Local(MemError),
    /// The peer did not wait for it to end: nothing is known about its memory.
    Evicted,
}

/// The peer's memory, as far as this process has it mapped. Every access is checked as a NIC would
/// check it, before and while it goes on.
pub trait Reach {
    /// Which bytes of `target` can be accessed here; `None` if none can, or not for `what`.
    fn part(&mut self, target: Target, what: Remote) -> Option<Range<u32>>;

    /// Writes bytes `part` of `target`: `fill` is called with offsets in the target and the memory
    /// there, ascending. The last aligned 8 bytes become visible last, and in one piece.
    ///
    /// # Errors
    /// See [`NotDone`].
    fn write(
        &mut self,
        target: Target,
        part: Range<u32>,
        fill: impl FnMut(u32, BytesMut<'_>) -> Result<(), MemError>,
    ) -> Result<(), NotDone>;

    /// Reads all of `target`: `take` is called with offsets in it and the memory there, ascending.
    ///
    /// # Errors
    /// See [`NotDone`].
    fn read(
        &mut self,
        target: Target,
        take: impl FnMut(u32, Bytes<'_>) -> Result<(), MemError>,
    ) -> Result<(), NotDone>;

    /// Carries out an atomic on 8 bytes of the peer's, and returns the value before.
    ///
    /// # Errors
    /// See [`NotDone`]; after [`NotDone::Elsewhere`] it has not been carried out.
    fn atomic(&mut self, target: Target, op: AtomicOp) -> Result<u64, NotDone>;
}
