//! Rings that are polled on every progress.

use std::sync::Arc;

use causeway_shm::ring::Probe;

use crate::qp_entry::QpCell;

/// One of them. It is one as long as its queue pair has it for a link, so what is here is not
/// looked up.
pub(crate) struct Hot {
    /// The number of its queue pair.
    pub qpn: u32,
    pub cell: Arc<QpCell>,
    /// Where its next record and the next acknowledgment will be.
    pub probe: Probe,
    /// The probe has shown something that has not been taken.
    pub unclear: bool,
}
