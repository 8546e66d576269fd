//! The trace that the endpoint records for, if there is one.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::tap::{End, Trace};

/// Whether the process has been told of a trace, as far as messages are concerned that no queue
/// pair sends.
static ANY: AtomicBool = AtomicBool::new(false);
/// That trace, and the process that was told: a forked child is none of it.
static PROCESS: AtomicU32 = AtomicU32::new(0);
static OF_PROCESS: Mutex<Weak<Trace>> = Mutex::new(Weak::new());

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    /// The trace that the broker had told of when it was last asked; 0: none.
    pub heeded: AtomicU64,
    current: Mutex<Option<Arc<Trace>>>,
    /// Held while the broker is asked and queue pairs are given their taps.
    pub changing: Mutex<()>,
    /// Whether what the process sends beside its queue pairs goes to this endpoint's trace.
    of_process: AtomicBool,
}

impl Traces {
    /// The trace that there is.
    pub fn current(&self) -> Option<Arc<Trace>> {
        self.current.lock().clone()
    }

    /// Takes another trace for the one that there is. Called while `changing` is held.
    pub fn set(&self, trace: Option<Arc<Trace>>) {
        *self.current.lock() = trace;
        if self.of_process.load(Ordering::Acquire) {
            self.publish();
        }
    }

    /// From now on what the process sends beside its queue pairs goes to this endpoint's trace.
    pub fn lead(&self) {
        let _alone = self.changing.lock();
        self.of_process.store(true, Ordering::Release);
        self.publish();
    }

    fn publish(&self) {
        let trace = self.current();
        let any = trace.is_some();
        if any || ANY.load(Ordering::Acquire) {
            let trace = trace.as_ref().map_or(Weak::new(), Arc::downgrade);
            let own = std::process::id();
            // A thread of the parent's, which the child lacks, may have held it for ever.
            let slot = match PROCESS.load(Ordering::Acquire) {
                parent if parent != 0 && parent != own => OF_PROCESS.try_lock(),
                _ => Some(OF_PROCESS.lock()),
            };
            let Some(mut slot) = slot else { return };
            *slot = trace;
            PROCESS.store(own, Ordering::Release);
            ANY.store(any, Ordering::Release);
        }
    }
}

/// Records a message of the connection manager that this process has sent (`outbound`) or received,
/// if a trace covers it: `own` and `peer` are addresses as IPv6, with UDP ports. Without a trace it
/// looks at one word. It asks nobody.
pub fn trace_message(outbound: bool, own: ([u8; 16], u16), peer: ([u8; 16], u16), bytes: &[u8]) {
    let told = ANY.load(Ordering::Acquire);
    if !told || PROCESS.load(Ordering::Acquire) != std::process::id() {
        return;
    }
    let trace = OF_PROCESS.lock().clone();
    let Some(trace) = trace.upgrade() else { return };
    let end = |(address, port)| End {
        address,
        port,
        qpn: 0,
    };
    let ends = match outbound {
        true => (end(own), end(peer)),
        false => (end(peer), end(own)),
    };
    trace.message(outbound, ends, bytes);
}
