//! The short way of progress: messages of one segment and acknowledgments that came for the rings
//! that are polled, where there is nothing else to mind.

use super::HOT_RINGS;
use crate::clock::Now;
use crate::core::qp_index;
use crate::endpoint::State;

/// Looks at the only ring of a program that polls it, in one pass.
const LOOKS: u32 = 64;
/// The same while an answer may be due: in so many passes after something came or was posted, a
/// microsecond or so. A whole fruitless pass takes as long as many looks, and finds what comes
/// meanwhile the long way.
const LOOKS_PATIENT: u32 = 256;
const PATIENT_PASSES: u32 = 4;
/// Passes over several rings of which one takes the long way, whatever the others have found.
const PASSES_PER_LONG_ONE: usize = 16;

impl State {
    /// Takes messages of one segment and acknowledgments from the hot rings, without a look at
    /// anything else. Returns false where there is anything else to mind, or to do.
    #[inline]
    pub(super) fn take_plain(&mut self, now: &Now) -> bool {
        let port = self.udp.links + self.udp.datagrams > 0;
        if port || !self.pending.is_empty() || !self.inbox.is_empty() {
            return false;
        }
        // A deadline may be that of a wait which is over: it alone does not make the way long.
        if self.deadline.is_some_and(|d| self.is_time(d, now)) {
            return false;
        }
        self.core.enough = false;
        match self.hot.as_slice() {
            [] => false,
            &[qpn] => {
                let taken = self.take_plain_from(qpn, true, now);
                self.fruitless = match taken {
                    true => 0,
                    false => self.fruitless.saturating_add(1),
                };
                taken
            }
            rings if rings.len() <= HOT_RINGS => self.take_plain_from_any(now),
            _ => false,
        }
    }

    /// Looks at each of several rings, beginning with another each time, until one has something.
    /// What this does not see of the others is not left to wait while one goes on receiving: now
    /// and then it takes nothing, and their peers are acknowledged first.
    #[inline]
    fn take_plain_from_any(&mut self, now: &Now) -> bool {
        let rings = self.hot.len();
        self.turn = self.turn.wrapping_add(1);
        if self.turn.is_multiple_of(PASSES_PER_LONG_ONE) {
            return false;
        }
        self.settle(self.unsettled.len());
        (0..rings).any(|step| {
            let qpn = self.hot.get((self.turn + step) % rings).copied();
            qpn.is_some_and(|qpn| self.take_plain_from(qpn, false, now))
        })
    }

    /// Looks at a ring; at the only one a few times: what comes now is found at once, and not a
    /// whole fruitless call later.
    #[inline]
    fn take_plain_from(&mut self, qpn: u32, only: bool, now: &Now) -> bool {
        let entry = self.qps.get_mut(qp_index(qpn));
        let Some(entry) = entry.and_then(Option::as_deref_mut) else {
            return false;
        };
        let Some((qp, ring)) = entry.ring() else {
            return false;
        };
        let looks = match only {
            false => 1,
            // What was received is acknowledged by the next pass, if no answer does it before.
            true if self.fruitless < PATIENT_PASSES && !ring.is_unsettled() => LOOKS_PATIENT,
            true => LOOKS,
        };
        if !ring.take_plain(qp, &mut self.core, looks) {
            return false;
        }
        let unsent = qp.has_unsent();
        if ring.is_unsettled() && !std::mem::replace(&mut entry.unsettled, true) {
            self.unsettled.push(qpn);
        }
        self.fail_overrun();
        if unsent {
            // What waited for an acknowledgment.
            self.touch(qpn);
            self.flush_pending(now);
        }
        true
    }
}
