//! The completions that wait in a completion queue.

use causeway_proto::types::{Wc, WcFlags, WcOpcode, WcStatus};

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

/// The first completion that a look finds for the poll that looks, if nothing waits in the queue:
/// the poll gets it without the queue between.
#[derive(Debug, Default)]
pub(crate) struct AtHand {
    /// The number of the completion queue whose poll looks, plus one; 0 where none does, or it has
    /// its completion.
    open: u32,
    found: Option<Wc>,
}

impl AtHand {
    /// A poll of the completion queue with this number looks.
    #[inline(always)]
    pub fn open(&mut self, cq: u32) {
        self.open = cq.wrapping_add(1);
    }

    /// It has looked.
    #[inline(always)]
    pub fn close(&mut self) {
        self.open = 0;
    }

    /// What it has found.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Wc> {
        self.found.take()
    }

    /// Whether that poll takes the next completion of this completion queue.
    #[inline(always)]
    pub fn is_open(&self, cq: u32) -> bool {
        self.open == cq.wrapping_add(1)
    }

    /// The poll gets this one, and no other.
    #[inline(always)]
    pub fn give(&mut self, wc: Wc) {
        self.open = 0;
        self.found = Some(wc);
    }
}
