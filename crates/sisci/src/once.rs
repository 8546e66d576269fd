//! Work that the copy engine does by looking whether a transfer may go on.
//!
//! The engine copies memory, and cannot do more. What goes to another host is done by the function
//! that it calls to look whether the memory is there still.

use causeway_dma::Valid;
use parking_lot::Mutex;

use crate::error::Result;

/// Does `work` when first called; says whether that went well, then and later. Whoever else calls
/// meanwhile waits.
pub(crate) fn once(work: impl FnOnce() -> Result<()> + Send + 'static) -> Valid {
    let state = Mutex::new((Some(work), true));
    Box::new(move || {
        let mut state = state.lock();
        if let Some(work) = state.0.take() {
            state.1 = work().is_ok();
        }
        state.1
    })
}
