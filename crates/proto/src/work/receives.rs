//! The receives that messages are placed into, of the queue pair's own queue or of an SRQ.

use super::{Numbering, WorkQueues};
use crate::host::Host;
use crate::types::{QpEvent, QpState, RecvWr, Service, Sge, WcStatus};

impl<T: Numbering> WorkQueues<T> {
    /// The first request of the peer has been carried out.
    #[inline]
    pub fn note_established<H: Host>(&mut self, host: &mut H) {
        if self.established {
            return;
        }
        self.established = true;
        self.set_gates();
        if self.attr.state == QpState::Rtr {
            host.event(self.config.qpn, QpEvent::CommEstablished);
        }
    }

    /// Bytes that the next receive has room for.
    pub fn peek_recv<H: Host>(&self, host: &H) -> Option<u64> {
        if self.config.srq {
            host.peek_srq(self.config.qpn)
        } else {
            self.rq.front().map(|(_, sges)| capacity(sges))
        }
    }

    /// Takes the next receive, and the protection domain that its entries are checked against.
    pub fn pop_recv<H: Host>(&mut self, host: &mut H) -> Option<(RecvWr, u32)> {
        if self.config.srq {
            // An unreliable connection may have one left from a message that it dropped.
            let left = self.from_srq.take();
            left.or_else(|| host.pop_srq(self.config.qpn))
        } else {
            self.rq.pop().map(|wr| (wr, self.config.pd))
        }
    }

    /// Whether a message that ends so leaves the receive to the next one.
    pub fn spares(&self, status: WcStatus) -> bool {
        let drops = matches!(status, WcStatus::LocLenErr | WcStatus::LocAccessErr);
        self.config.service == Service::Uc && drops
    }

    /// Drops the receive that a SEND was placed into, and returns its name.
    pub fn end_recv(&mut self) -> Option<u64> {
        if let Some((wr, _)) = self.from_srq.take() {
            return Some(wr.wr_id);
        }
        self.rq.pop().map(|wr| wr.wr_id)
    }

    /// The ranges that a message is placed into, and the protection domain that they are checked
    /// against: those of a receive that came from an SRQ, or of the queue pair's own first one.
    #[inline]
    pub fn receiving(&self) -> Option<(&[Sge], u32)> {
        match &self.from_srq {
            Some((wr, pd)) => Some((&wr.sges, *pd)),
            None => self.rq.front().map(|(_, sges)| (sges, self.config.pd)),
        }
    }

    /// As [`WorkQueues::receiving`], where a message begins: of an SRQ it takes the next one.
    pub fn begin_recv<H: Host>(&mut self, host: &mut H) -> Option<(&[Sge], u32)> {
        // An unreliable connection may have one left from a message that it dropped.
        if self.config.srq && self.from_srq.is_none() {
            self.from_srq = host.pop_srq(self.config.qpn);
        }
        self.receiving()
    }
}

/// Bytes that a scatter list has room for.
pub fn capacity(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}
