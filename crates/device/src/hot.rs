//! Rings that are polled on every progress.

use causeway_shm::ring::Probe;

/// One of them.
#[derive(Debug)]
pub(crate) struct Hot {
    /// Its queue pair.
    pub qpn: u32,
    /// Where its next record and the next acknowledgment will be.
    pub probe: Probe,
    /// The probe has shown something that has not been taken.
    pub unclear: bool,
}
