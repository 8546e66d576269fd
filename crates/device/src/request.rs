//! Work requests of one range as whoever posts them has them: what the short ways read.

use causeway_proto::host::AtomicOp;
use causeway_proto::types::SendFlags;

/// A send work request of one range, where whoever posts it has it (`ibv_post_send(3)`): no copy of
/// it is built, and what is asked for is read from there when it is needed, once.
pub trait Request {
    /// The program's name for it.
    fn wr_id(&self) -> u64;
    /// What it asks for beside being carried out.
    fn flags(&self) -> SendFlags;
    /// Where the program's memory begins.
    fn addr(&self) -> u64;
    /// Bytes.
    fn length(&self) -> u32;
    /// The key of the program's memory; of no meaning for inline bytes.
    fn lkey(&self) -> u32;
}

/// A WRITE or READ of one range.
pub trait OneSided: Request {
    /// Where the peer's memory begins.
    fn remote_addr(&self) -> u64;
    /// The key of the peer's memory.
    fn rkey(&self) -> u32;
}

/// An atomic of one range.
pub trait Atomic: OneSided {
    /// What it does.
    fn op(&self) -> AtomicOp;
}
