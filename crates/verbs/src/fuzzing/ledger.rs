//! What was posted and has to complete.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::IbvCq;

/// `IBV_WC_SUCCESS`
const SUCCESS: u32 = 0;
/// `IBV_WC_RECV`: set in the opcodes of all completions of receives.
const RECEIVES: u32 = 1 << 7;

/// Requests of this process that have succeeded.
pub(super) static SUCCEEDED: AtomicU64 = AtomicU64::new(0);

/// A request that was posted.
#[derive(Clone, Copy, Debug)]
struct Posted {
    /// The queue pair; none for one of a shared receive queue.
    qpn: Option<u32>,
    /// The completion queue, by its address.
    cq: usize,
    is_send: bool,
    /// A completion is due: it was signalled, or is a receive of a queue pair's own.
    due: bool,
}

#[derive(Default)]
pub(super) struct Ledger {
    last: u64,
    posted: BTreeMap<u64, Posted>,
    /// The last request completed of each queue of a queue pair.
    completed: HashMap<(u32, bool), u64>,
    /// Completion queues that may overrun or have, by their addresses.
    small: Vec<usize>,
}

impl Ledger {
    /// A number that no request has yet.
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A request of a queue pair's was posted.
    pub(super) fn post(&mut self, number: u64, qpn: u32, cq: *mut IbvCq, is_send: bool, due: bool) {
        let posted = Posted {
            qpn: Some(qpn),
            cq: cq.addr(),
            is_send,
            due,
        };
        self.posted.insert(number, posted);
    }

    /// A receive was posted to a shared queue.
    pub(super) fn post_shared(&mut self, number: u64) {
        let posted = Posted {
            qpn: None,
            cq: 0,
            is_send: false,
            due: false,
        };
        self.posted.insert(number, posted);
    }

    /// A completion was polled: its request was posted, and completes now for the first time.
    pub(super) fn complete(&mut self, cq: *mut IbvCq, wr_id: u64, qpn: u32, status: u32, op: u32) {
        let Some(posted) = self.posted.remove(&wr_id) else {
            panic!("{wr_id} completes, which is not posted, or has completed");
        };
        if status == SUCCESS {
            SUCCEEDED.fetch_add(1, Ordering::Relaxed);
        }
        let to = posted.qpn.unwrap_or(qpn);
        assert_eq!(
            to, qpn,
            "{wr_id} completes on another queue pair: {posted:?}"
        );
        if posted.qpn.is_none() {
            return;
        }
        assert_eq!(
            posted.cq,
            cq.addr(),
            "{wr_id} completes elsewhere: {posted:?}"
        );
        if status == SUCCESS {
            let is_send = op & RECEIVES == 0;
            assert_eq!(is_send, posted.is_send, "{wr_id} completes as {op}");
        }
        let before = self.completed.insert((qpn, posted.is_send), wr_id);
        assert!(before < Some(wr_id), "{wr_id} completes after {before:?}");
    }

    /// A queue pair was reset or destroyed: what it has not completed is not due any more.
    pub(super) fn forget(&mut self, qpn: u32) {
        let of_pair = self.posted.values_mut();
        for posted in of_pair.filter(|posted| posted.qpn == Some(qpn)) {
            posted.due = false;
        }
    }

    /// A completion queue is so small that it may overrun.
    pub(super) fn may_overrun(&mut self, cq: *mut IbvCq) {
        self.small.push(cq.addr());
    }

    /// Whether it may overrun.
    pub(super) fn is_small(&self, cq: *mut IbvCq) -> bool {
        self.small.contains(&cq.addr())
    }

    /// What has not completed though it is due.
    pub(super) fn due(&self) -> Vec<String> {
        let due = |posted: &Posted| posted.due && !self.small.contains(&posted.cq);
        let missing = self.posted.iter().filter(|(_, posted)| due(posted));
        missing
            .map(|(number, posted)| format!("{number}: {posted:?}"))
            .collect()
    }
}
