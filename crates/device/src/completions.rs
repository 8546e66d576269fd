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
