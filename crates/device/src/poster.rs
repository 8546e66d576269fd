//! What who posts reaches of the device by the queue pair's lock alone, for what is frequent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use causeway_proto::host::Completions;
use causeway_proto::types::Wc;
use causeway_shm::{Counter, Stats};
use causeway_two_ended::Alone;

use crate::completion_queue::{CompletionQueue, Put};
use crate::completions::Frees;
use crate::mr::MrReader;
use crate::released::Released;

/// What posting counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    Messages,
    Bytes,
    Direct,
    Records,
    Doorbells,
}

/// The endpoint's counters for these, in their order.
const COUNTERS: [Counter; 5] = [
    Counter::TxMessages,
    Counter::TxBytes,
    Counter::Direct,
    Counter::RingTxRecords,
    Counter::DoorbellsRung,
];

/// Counts of one queue pair. They grow under its lock, and are carried over to the engine's
/// counters under that one's, by a thread that may be another one: it writes nothing to their line.
#[derive(Debug, Default)]
pub(crate) struct PostCounts {
    counted: Alone<[AtomicU64; COUNTERS.len()]>,
    carried: Alone<[AtomicU64; COUNTERS.len()]>,
}

impl PostCounts {
    #[inline(always)]
    pub fn add(&self, what: Count, more: u64) {
        let count = &self.counted.0[what as usize];
        // One thread at a time: no addition is lost.
        let before = count.load(Ordering::Relaxed);
        count.store(before.wrapping_add(more), Ordering::Relaxed);
    }

    /// Adds to the engine's counters what has been counted since this was called last.
    pub fn carry_over(&self, stats: &Stats) {
        for (at, counter) in COUNTERS.into_iter().enumerate() {
            let counted = self.counted.0[at].load(Ordering::Relaxed);
            let carried = self.carried.0[at].load(Ordering::Relaxed);
            if counted != carried {
                stats.add(counter, counted.wrapping_sub(carried));
                self.carried.0[at].store(counted, Ordering::Relaxed);
            }
        }
    }
}

/// What a post reaches, and a poll that takes what has come.
pub(crate) struct Poster {
    pub mrs: MrReader,
    pub send_cq: Arc<CompletionQueue>,
    /// Where its receives complete: what has come by its ring is completed without a look for it.
    pub recv_cq: Arc<CompletionQueue>,
    pub released: Arc<Released>,
    pub counts: Arc<PostCounts>,
    /// The completion queue has overrun, and nobody has been told yet.
    pub overran: bool,
}

impl Completions for Poster {
    #[inline(always)]
    fn complete_send(&mut self, qp: u32, wc: Wc, places: u32) {
        self.succeeded_silently(qp, wc.byte_len);
        let put = self.send_cq.put(wc, Frees::Send(places), false);
        self.overran |= put == Put::Overrun;
    }

    #[inline(always)]
    fn succeeded_silently(&mut self, _: u32, bytes: u32) {
        self.counts.add(Count::Messages, 1);
        self.counts.add(Count::Bytes, u64::from(bytes));
    }
}
