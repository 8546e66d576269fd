//! Unreliable connections (UC): the machinery of reliable ones, with other promises.
//!
//! The link below may well deliver everything; it is the responder that drops in silence what it
//! has no receive for, what does not fit, and what is not allowed, and the requester that never
//! hears of it. A send is complete when the link has taken it, or has given it up: with success
//! either way. Local errors stop the send queue (SQE), and leave receives as they are.

use super::{Iwarp, Queues};
use crate::bytes::Bytes;
use crate::host::Host;
use crate::types::Service;
use crate::ulp::{Nak, SegMeta, Verdict};
use crate::unit::Unit;

impl Iwarp {
    /// Request `seq` has been put where the peer will find it.
    #[inline]
    pub(super) fn handed_over<H: Host>(&mut self, work: &mut Queues, seq: u64, host: &mut H) {
        if work.config.service == Service::Uc && work.direct {
            self.handed = seq + 1;
            self.requests_acked(work, seq + 1, host);
        }
    }

    /// Whether what is complete here is not yet placed there: nothing may overtake it.
    #[inline]
    pub(super) fn trails(&self) -> bool {
        self.handed > self.placed
    }

    /// Whether the work request at the cursor is the next to take effect at the peer.
    #[inline]
    pub(super) fn is_next(&self, work: &Queues) -> bool {
        work.sq.at_front() && !self.trails()
    }

    /// Places a unit of an unreliable connection, or drops the message that it belongs to.
    pub(super) fn on_unreliable<H: Host>(
        &mut self,
        work: &mut Queues,
        meta: SegMeta,
        unit: &Unit,
        body: Bytes<'_>,
        in_order: bool,
        host: &mut H,
    ) -> Verdict {
        if !in_order {
            return Verdict::Later;
        }
        if self.responder.dropping == Some(meta.first) {
            return Verdict::Placed;
        }
        let (msn, offered) = match *unit {
            Unit::Send { msn, .. } | Unit::Immediate { msn, .. } => (Some(msn), true),
            Unit::Write { .. } => (None, true),
            _ => (None, false),
        };
        if !offered {
            self.drop_message(meta, msn);
            return Verdict::Placed;
        }
        match self.execute(work, meta, unit, body, host) {
            Ok(Verdict::Placed) => work.note_established(host),
            // Its own memory is at fault, not the message.
            Err(Nak::RemoteOperation) => work.fail(host),
            _ => self.drop_message(meta, msn),
        }
        Verdict::Placed
    }

    /// Drops what comes of the message from now on. The receive that it was placed into is used
    /// for the next.
    fn drop_message(&mut self, meta: SegMeta, msn: Option<u32>) {
        self.responder.dropping = Some(meta.first);
        self.responder.current = None;
        if let Some(msn) = msn {
            self.responder.send_msn = msn;
        }
    }
}
