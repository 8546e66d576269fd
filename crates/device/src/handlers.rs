//! What the helper thread does about completion events itself.
//!
//! A program that only passes on what arrives would sleep on a channel, to be woken by the helper,
//! which was woken by the network: two wakes for one message. So such a channel may have a handler
//! ([`CompChannel::set_handler`](crate::CompChannel::set_handler)), which the helper calls once its
//! pass over the engines has ended and it holds no lock. What other threads of the program announce
//! makes the descriptor readable as ever, or once a handler that is about to run has ended; so does
//! what the handler leaves, and its failure.

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

/// Whether this thread calls handlers once its pass has ended.
pub(crate) fn runs_here() -> bool {
    DUE.with_borrow(Option::is_some)
}

/// Has this thread call a channel's handler once its pass has ended, where it calls any.
pub(crate) fn run_later(channel: Arc<dyn Handled>) {
    DUE.with_borrow_mut(|due| {
        if let Some(due) = due {
            due.push(channel);
        }
    });
}
