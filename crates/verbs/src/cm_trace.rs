//! What the connection manager sends and receives, for `causeway trace`: our own `librdmacm.so.1`
//! calls it, which knows of no trace. No function of the verbs.

use crate::abi::TracedMessage;

/// `causeway_trace_cm`, see [`TracedMessage`]
pub(crate) unsafe extern "C" fn record(message: *const TracedMessage) {
    // SAFETY: the caller passes a message whose bytes are there until this returns.
    let (message, bytes) = unsafe {
        let message = &*message;
        let bytes = core::slice::from_raw_parts(message.bytes, message.len);
        (message, bytes)
    };
    let own = (message.own, message.own_port);
    let peer = (message.peer, message.peer_port);
    causeway_device::trace_message(message.outbound != 0, own, peer, bytes);
}
