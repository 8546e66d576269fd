//! The completions that wait in a completion queue.

use causeway_proto::types::{Wc, WcFlags, WcOpcode, WcStatus};

use crate::limits::LIMITS;

/// What is free again once a completion is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frees {
    /// So many places in the send queue.
    Send(u32),
    /// A place in the receive queue.
    Receive,
    /// Nothing: its queue pair has been reset or destroyed since.
    Nothing,
}

/// A queued completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cqe {
    pub wc: Wc,
    /// Nanoseconds of the monotonic clock; 0 unless the queue records them.
    pub timestamp: u64,
    pub frees: Frees,
}

/// What fills a place that holds none.
impl Default for Cqe {
    fn default() -> Self {
        let wc = Wc {
            wr_id: 0,
            status: WcStatus::GeneralErr,
            opcode: WcOpcode::Send,
            vendor_err: 0,
            byte_len: 0,
            imm: 0,
            qp_num: 0,
            src_qp: 0,
            flags: WcFlags::empty(),
        };
        Cqe {
            wc,
            timestamp: 0,
            frees: Frees::Nothing,
        }
    }
}

/// Where the first completion goes that a look finds, if nothing waits in the queue: the poll that
/// looks gets it without the queue between. It is written where the program wants it, and nowhere
/// before: each copy is made of loads that wait for the stores of the one before.
#[derive(Debug)]
pub(crate) struct AtHand {
    /// The number of the completion queue whose poll looks; [`CLOSED`] where none does; [`GIVEN`]
    /// once that has its completion.
    open: u32,
    /// Where that is to go.
    to: *mut Wc,
}

/// No completion queue has numbers so high.
const GIVEN: u32 = u32::MAX;
const CLOSED: u32 = GIVEN - 1;
const _: () = assert!(LIMITS.max_cq < CLOSED);

// SAFETY: `to` is used while a look is open, and no look leaves its thread (`AtHand::open`).
unsafe impl Send for AtHand {}

impl Default for AtHand {
    fn default() -> Self {
        AtHand {
            open: CLOSED,
            to: std::ptr::null_mut(),
        }
    }
}

impl AtHand {
    /// A poll of the completion queue with this number looks.
    ///
    /// # Safety
    /// `to` may be written until [`AtHand::close`], which the same thread calls before it lets the
    /// lock go.
    #[inline(always)]
    pub unsafe fn open(&mut self, cq: u32, to: *mut Wc) {
        self.open = cq;
        self.to = to;
    }

    /// It has looked. Returns whether it has found a completion.
    #[inline(always)]
    pub fn close(&mut self) -> bool {
        std::mem::replace(&mut self.open, CLOSED) == GIVEN
    }

    /// Whether that poll takes the next completion of this completion queue.
    #[inline(always)]
    pub fn is_open(&self, cq: u32) -> bool {
        self.open == cq
    }

    /// The poll gets this one, and no other. It must be open.
    #[inline(always)]
    pub fn give(&mut self, wc: Wc) {
        debug_assert!(!matches!(self.open, CLOSED | GIVEN), "nobody wants it");
        self.open = GIVEN;
        // SAFETY: a look is open, which has promised that (`AtHand::open`).
        unsafe { self.to.write(wc) };
    }
}
