//! The trace that the endpoint records for, if there is one.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use crate::tap::Trace;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    /// The trace that the broker had told of when it was last asked; 0: none.
    pub heeded: AtomicU64,
    pub current: Mutex<Option<Arc<Trace>>>,
    /// Held while the broker is asked and queue pairs are given their taps.
    pub changing: Mutex<()>,
}

impl Traces {
    /// The trace that there is.
    pub fn current(&self) -> Option<Arc<Trace>> {
        self.current.lock().clone()
    }
}
