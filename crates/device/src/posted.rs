//! Posted requests that wait for more to share a datagram with are sent before their memory goes.
//!
//! A program that ends a registration, or itself, right after posting breaks verbs' rules, since
//! the memory belongs to the work request until that completes; but a NIC has read it by then.

use std::sync::atomic::Ordering;

use crate::clock::Now;
use crate::qp_entry::Link;
use crate::shared::Shared;
use crate::state::State;

impl Shared {
    /// Sends all that was posted, as far as there is room for it.
    pub fn send_posted(&self) {
        let waiting = self.engines.iter().filter(|engine| engine.has_gathered());
        waiting.for_each(|engine| engine.state.lock().send_posted());
    }
}

impl State {
    /// Sends all that was posted, as far as there is room for it.
    pub fn send_posted(&mut self) {
        self.udp.has_gathered.store(false, Ordering::Relaxed);
        if self.udp.gathered.is_empty() && self.pending.is_empty() {
            return;
        }
        self.udp.gathers = false;
        for qpn in std::mem::take(&mut self.udp.gathered) {
            let Some(mut entry) = self.qps.find(qpn) else {
                continue;
            };
            if let Link::Udp(udp) = &mut entry.link {
                udp.gathered = false;
                drop(entry);
                self.touch(qpn);
            }
        }
        self.flush_pending(&Now::default());
        self.udp.gathers = true;
    }
}
