//! Where completion queues and shared receive queues are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Polls of an empty queue in a row that leave progress to other threads.
const SKIPPED_MOST: u32 = 1024;

/// Where an object's state is, and what can be told of it without the engine's lock. Nothing of
/// another thread's lies in the same line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct At {
    /// The number of an engine.
    engine: AtomicU8,
    /// How many calls had made progress at the engine when this queue was polled last, and how
    /// often it was not even looked at since.
    seen: AtomicU64,
    skipped: AtomicU32,
}

impl At {
    /// With the first engine.
    pub fn first() -> Arc<At> {
        Arc::default()
    }

    pub fn get(&self) -> u8 {
        self.engine.load(Ordering::Acquire)
    }

    /// The queue has been polled, with progress at its engine, where so many calls have made some.
    #[inline]
    pub fn note_polled(&self, calls: u64) {
        self.seen.store(calls, Ordering::Relaxed);
    }

    /// Whether a poll may leave progress to another thread: some call has made some since this
    /// queue was polled last.
    pub fn skip(&self, calls: u64) -> bool {
        let skipped = self.skipped.load(Ordering::Relaxed);
        let served = self.seen.load(Ordering::Relaxed) != calls && skipped < SKIPPED_MOST;
        self.seen.store(calls, Ordering::Relaxed);
        let skipped = if served { skipped + 1 } else { 0 };
        self.skipped.store(skipped, Ordering::Relaxed);
        served
    }

    /// Called under the locks of both engines.
    pub fn set(&self, engine: u8) {
        self.engine.store(engine, Ordering::Release);
    }
}
