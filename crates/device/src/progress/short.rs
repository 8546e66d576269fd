//! The short way of progress: messages of one segment and acknowledgments that came for the rings
//! that are polled, where there is nothing else to mind.

use std::sync::atomic::Ordering;

use super::HOT_RINGS;
use crate::clock::Now;
use crate::hot::Hot;
use crate::state::State;

/// Looks at the only ring of a program that polls it, in one pass.
const LOOKS: u32 = 64;
/// The same while an answer may be due: in so many passes after something came or was posted, a
/// microsecond or so. A whole fruitless pass takes as long as many looks, and finds what comes
/// meanwhile the long way.
const LOOKS_PATIENT: u32 = 256;
const PATIENT_PASSES: u32 = 4;
/// Passes of which one takes the long way: with several rings before it looks at them, since one
/// may go on receiving while another waits; with one ring if there is nothing on it.
const PASSES_PER_LONG_ONE: usize = 16;

/// What the short way has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Something, which was taken.
    Taken,
    /// Nothing.
    Nothing,
    /// Something that it does not take, or that it may have come by for too long.
    LongWay,
}

impl State {
    /// Takes messages of one segment and acknowledgments from the hot rings, without a look at
    /// anything else.
    #[inline(always)]
    pub(super) fn take_plain(&mut self, now: &Now) -> Found {
        let port = self.udp.links + self.udp.datagrams > 0;
        let lost = self.lost.load(Ordering::Relaxed);
        if port || lost || !self.pending.is_empty() || !self.inbox.is_empty(self.slots) {
            return Found::LongWay;
        }
        // A deadline may be that of a wait which is over: it alone does not make the way long.
        if self.timers.next().is_some_and(|d| self.is_time(d, now)) {
            return Found::LongWay;
        }
        self.core.enough = false;
        self.turn = self.turn.wrapping_add(1);
        let long = self.turn.is_multiple_of(PASSES_PER_LONG_ONE);
        match self.hot.len() {
            1 => self.take_plain_from_one(long, now),
            2..=HOT_RINGS if !long => self.take_plain_from_any(now),
            _ => Found::LongWay,
        }
    }

    /// Looks at the only ring a few times: what comes now is found at once, and not a whole
    /// fruitless call later.
    #[inline(always)]
    fn take_plain_from_one(&mut self, long: bool, now: &Now) -> Found {
        // What was received is acknowledged by the next pass, if no answer does it before.
        let owed = self.unsettled.len();
        let looks = match self.crowded {
            true => 1,
            false => self.looks_alone(owed),
        };
        let found = self.take_plain_from(0, looks, now);
        if found == Found::Taken {
            self.fruitless = 0;
            return found;
        }
        self.fruitless = self.fruitless.saturating_add(1);
        self.settle(owed);
        match found {
            Found::Nothing if long => Found::LongWay,
            found => found,
        }
    }

    /// Looks of the only thread that polls.
    #[inline(always)]
    fn looks_alone(&self, owed: usize) -> u32 {
        match self.fruitless < PATIENT_PASSES && owed == 0 {
            true => LOOKS_PATIENT,
            false => LOOKS,
        }
    }

    /// Looks at each of several rings, beginning with another each time, until one has something.
    #[inline]
    fn take_plain_from_any(&mut self, now: &Now) -> Found {
        // One that goes on receiving must not keep the others' peers waiting for acknowledgments.
        self.settle(self.unsettled.len());
        let rings = self.hot.len();
        let mut at = self.turn % rings;
        for _ in 0..rings {
            let found = self.take_plain_from(at, 1, now);
            if found != Found::Nothing {
                return found;
            }
            at += 1;
            if at == rings {
                at = 0;
            }
        }
        Found::Nothing
    }

    /// Looks at one of the hot rings up to `looks` times, and takes what has come.
    #[inline(always)]
    fn take_plain_from(&mut self, at: usize, looks: u32, now: &Now) -> Found {
        let Some(Hot { probe, .. }) = self.hot.get_mut(at) else {
            return Found::LongWay;
        };
        let waited = !probe.has_news();
        if waited && !(1..looks).any(|_| probe.has_news()) {
            return Found::Nothing;
        }
        self.take_news(at, waited, now)
    }

    /// Takes what has come on one of the hot rings; `waited`: it came just now.
    #[inline(always)]
    fn take_news(&mut self, at: usize, waited: bool, now: &Now) -> Found {
        let State { hot, qps, core, .. } = self;
        let Some(Hot { qpn, probe }) = hot.get_mut(at) else {
            return Found::LongWay;
        };
        let qpn = *qpn;
        let Some(entry) = qps.place_mut(qpn) else {
            return Found::LongWay;
        };
        let Some((qp, ring)) = entry.ring() else {
            return Found::LongWay;
        };
        if !ring.take_plain(qp, core, waited) {
            return match ring.is_ready() {
                true => Found::LongWay,
                false => Found::Nothing,
            };
        }
        ring.renew(probe);
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
        Found::Taken
    }
}
