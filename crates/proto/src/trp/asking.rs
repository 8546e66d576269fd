//! When a datagram with data asks for an acknowledgment.

use super::Connection;
use super::config::ASKS_PER_WINDOW;

/// What decides it, after one datagram and before the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    /// Bytes that may be in flight. The peer's window may be the smaller one.
    window: u64,
    /// Bytes of the largest datagram.
    datagram: u64,
    /// Bytes in flight, with those of the datagram.
    pub in_flight: u64,
    /// Bytes sent since an acknowledgment was asked for.
    pub unasked: u64,
}

impl Connection {
    #[inline]
    pub(super) fn asking(&self) -> Asking {
        let tx = &self.tx;
        let datagram = tx.datagram as u64;
        Asking {
            window: tx.cc.window().min(tx.window.saturating_mul(datagram)),
            datagram,
            in_flight: tx.in_flight(),
            unasked: tx.unasked,
        }
    }
}

impl Asking {
    /// Accounts for a datagram of `len` bytes. Returns whether it is to ask: where the peer would
    /// wait for more than will come, and, once half the window is used, often enough to make room
    /// for others in time.
    #[inline]
    pub fn on_sent(&mut self, len: usize) -> bool {
        self.unasked += len as u64;
        let full = self.in_flight + self.datagram > self.window;
        let much =
            self.in_flight * 2 >= self.window && self.unasked * ASKS_PER_WINDOW >= self.window;
        if full || much {
            self.unasked = 0;
        }
        full || much
    }
}
