//! Acknowledgments over UDP that wait for a reply of the program's to carry them, and how they
//! learn that none is coming.

use causeway_proto::trp::Connection;

use crate::clock::Now;
use crate::qp_entry::Link;
use crate::state::State;

impl State {
    /// Has a queue pair send the acknowledgments that it owes with what it sends next.
    pub fn flush_acks(&mut self, qpn: u32) {
        let Some(mut entry) = self.qps.find(qpn) else {
            return;
        };
        if let Link::Udp(udp) = &mut entry.link {
            udp.conn.flush_acks();
            drop(entry);
            self.touch(qpn);
        }
    }

    /// Whether an acknowledgment waits for a reply of the program's.
    #[inline]
    pub fn awaits_reply(&self) -> bool {
        !self.awaiting.is_empty()
    }

    /// The program has polled in vain. If it did so often enough, no reply is coming.
    pub fn on_vain_poll(&mut self, now: &Now) {
        for at in (0..self.awaiting.len()).rev() {
            self.stop_awaiting(at, |conn| _ = conn.on_vain_pass());
        }
        self.flush_pending(now);
    }

    /// Sends acknowledgments that wait for a reply: the program sleeps, or has had its chance.
    pub fn give_up_replies(&mut self, now: &Now) {
        for at in (0..self.awaiting.len()).rev() {
            self.stop_awaiting(at, Connection::give_up_reply);
        }
        self.flush_pending(now);
    }

    /// Does something to a connection in the list of those that wait for replies, and takes it out
    /// if it does not any more.
    fn stop_awaiting(&mut self, at: usize, f: impl FnOnce(&mut Connection)) {
        let qpn = self.awaiting[at];
        let Some(mut entry) = self.qps.find(qpn) else {
            self.awaiting.swap_remove(at);
            return;
        };
        if let Link::Udp(udp) = &mut entry.link
            && udp.conn.awaits_reply()
        {
            f(&mut udp.conn);
            if udp.conn.awaits_reply() {
                return;
            }
        }
        entry.awaiting = false;
        drop(entry);
        self.awaiting.swap_remove(at);
        self.touch(qpn);
    }
}
