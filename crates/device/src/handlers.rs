//! What the helper thread does about completion events itself.
//!
//! A program that only passes on what arrives would sleep on a channel, to be woken by the helper,
//! which was woken by the network: two wakes for one message. So such a channel may have a handler
//! ([`CompChannel::set_handler`](crate::CompChannel::set_handler)), which the helper calls once its
//! pass over the engines has ended and it holds no lock. What other threads of the program announce
//! makes the descriptor readable as ever, and so does what the handler leaves.

use std::cell::RefCell;
use std::sync::Arc;

/// A channel with a handler.
pub(crate) trait Handled {
    /// Calls it.
    fn handle(&self);
}

thread_local! {
    /// Those whose handlers this thread is to call, where it calls any.
    static DUE: RefCell<Option<Vec<Arc<dyn Handled>>>> = const { RefCell::new(None) };
}

/// Runs `pass`, then the handlers of what it has announced.
pub(crate) fn run_after<R>(pass: impl FnOnce() -> R) -> R {
    DUE.set(Some(Vec::new()));
    let result = pass();
    for channel in DUE.take().unwrap_or_default() {
        channel.handle();
    }
    result
}

/// Has this thread call a channel's handler once its pass has ended. Whether it does that.
pub(crate) fn run_later(channel: Arc<dyn Handled>) -> bool {
    DUE.with_borrow_mut(|due| due.as_mut().map(|due| due.push(channel)).is_some())
}
