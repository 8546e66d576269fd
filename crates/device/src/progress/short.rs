//! The short way of progress: messages of one segment and acknowledgments that came for the rings
//! that are polled, where there is nothing else to do.

use causeway_biased_lock::hurry;
use causeway_shm::ring::{Probe, Seen};

use super::rings::HOT_RINGS;
use crate::clock::Now;
use crate::core::Core;
use crate::cq::Looked;
use crate::engines::Engine;
use crate::hot::Hot;
use crate::qp_entry::{Link, QpEntry};
use crate::state::State;

/// Looks that were in vain and not short, for one at engines that nobody serves.
const LOOKS_PER_SERVICE: u32 = 8;
/// Looks at the only ring of a program that polls it, in one pass.
const LOOKS: u32 = 64;
/// The same while an answer may be due: in so many passes after something came or was posted, a
/// microsecond or so. A whole fruitless pass takes as long as many looks, and finds what comes
/// meanwhile the long way.
const LOOKS_PATIENT: u32 = 256;
const PATIENT_PASSES: u32 = 4;
/// Passes of which one takes the long way: with several rings before it looks at them, since one
/// may go on receiving while another waits; with one ring if there is nothing on it.
pub(super) const PASSES_PER_LONG_ONE: usize = 16;

/// What the short way has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Something, which was taken.
    Taken,
    /// As that, and more was done on account of it.
    Sent,
    /// Nothing.
    Nothing,
    /// Something that it does not take, or that it may have come by for too long.
    LongWay,
}

impl State {
    /// Makes progress for a program that has found its completion queue empty.
    #[inline(never)]
    pub fn look(&mut self, engine: &Engine) -> Looked {
        self.crowded = engine.is_crowded();
        self.look_anyway::<false>(engine)
    }

    /// As [`State::look`], of the thread that the lock is biased towards. `GLANCED`:
    /// [`State::glance`] has just said that there is nothing where it has looked.
    #[inline(always)]
    pub fn look_inlined<const GLANCED: bool>(&mut self, engine: &Engine) -> Looked {
        self.crowded = false;
        self.look_anyway::<GLANCED>(engine)
    }

    #[inline(always)]
    fn look_anyway<const GLANCED: bool>(&mut self, engine: &Engine) -> Looked {
        self.core.mrs.look_around();
        if engine.take_posted() {
            self.note_posted();
        }
        let now = Now::default();
        match self.take_plain_untimed::<GLANCED>(&now) {
            Found::Taken => {
                self.spin.end();
                engine.note_call();
                Looked::SOME
            }
            Found::Nothing if !self.spin.is_turn() => {
                engine.note_call();
                Looked::NONE
            }
            found => self.look_further(found, engine, &now),
        }
    }

    /// As [`State::look`], where the short way leaves anything to do, or a look at the clock is
    /// due.
    #[cold]
    #[inline(never)]
    fn look_further(&mut self, found: Found, engine: &Engine, now: &Now) -> Looked {
        let mut looked = Looked::SOME.and(Looked::MINDS);
        let came = match found {
            Found::Taken | Found::Sent => true,
            Found::Nothing => false,
            Found::LongWay => self.go_the_long_way(now),
        };
        if came {
            self.spin.end();
        } else {
            looked = looked.and(Looked::YIELDS.only_if(self.spin.turn(now)));
            self.vain_looks = self.vain_looks.wrapping_add(1);
            if self.vain_looks.is_multiple_of(LOOKS_PER_SERVICE) {
                looked = looked.and(Looked::SERVES);
                self.carry_over_counts();
            }
            if self.awaits_reply() {
                self.on_vain_poll(now);
            }
        }
        engine.note_activity(now);
        looked
    }

    /// Takes messages of one segment and acknowledgments from the hot rings, without a look at
    /// anything else.
    pub(super) fn take_plain(&mut self, now: &Now) -> Found {
        if now.known().is_some_and(|now| self.is_due(now)) {
            return Found::LongWay;
        }
        self.take_plain_untimed::<false>(now)
    }

    /// As [`State::take_plain`], for who does not know the time yet.
    #[inline(always)]
    fn take_plain_untimed<const GLANCED: bool>(&mut self, now: &Now) -> Found {
        let port = self.udp.links + self.udp.datagrams > 0;
        if port || !self.pending.is_empty() || !self.inbox.is_empty(self.slots) {
            return Found::LongWay;
        }
        self.core.enough = false;
        // A glance leaves such a pass to a look without one.
        let long = !GLANCED && self.is_long_pass();
        self.turn = self.turn.wrapping_add(1);
        if long {
            return self.take_plain_at_length(now);
        }
        match self.hot.len() {
            1 => self.take_plain_from_one(false, now),
            2..=HOT_RINGS => self.take_plain_from_any::<GLANCED>(now),
            _ => Found::LongWay,
        }
    }

    /// As [`State::take_plain_untimed`], in a pass that may take the long way.
    #[cold]
    #[inline(never)]
    fn take_plain_at_length(&mut self, now: &Now) -> Found {
        match self.hot.len() {
            1 if !self.has_to_mind(now) => self.take_plain_from_one(true, now),
            _ => Found::LongWay,
        }
    }

    /// Whether the device has failed, or a timer is due. A deadline may be that of a wait which is
    /// over: it alone does not make the way long.
    fn has_to_mind(&self, now: &Now) -> bool {
        let timed = self.timers.next().is_some();
        self.failure.has_happened() || (timed && self.is_due(now.get()))
    }

    /// Looks at the only ring a few times: what comes now is found at once, and not a whole
    /// fruitless call later.
    #[inline(always)]
    fn take_plain_from_one(&mut self, long: bool, now: &Now) -> Found {
        // What was received is acknowledged by the next pass, if no answer does it before.
        let owed = self.unsettled.len();
        let looks = match self.fruitless < PATIENT_PASSES && owed == 0 {
            _ if self.crowded => 1,
            true => LOOKS_PATIENT,
            false => LOOKS,
        };
        let found = self.take_plain_from(looks, now);
        if matches!(found, Found::Taken | Found::Sent) {
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

    /// Looks at each of several rings until one has something, beginning behind the one that had
    /// something last: none of them keeps the others waiting, and where they have something by
    /// turns, the first look finds it.
    #[inline(always)]
    fn take_plain_from_any<const GLANCED: bool>(&mut self, now: &Now) -> Found {
        // One that goes on receiving must not keep the others' peers waiting for acknowledgments.
        if !self.unsettled.is_empty() {
            self.settle(self.unsettled.len());
        }
        let State {
            hot,
            core,
            unsettled,
            ..
        } = self;
        let (rings, mut at) = (hot.as_mut_slice(), self.first_ring);
        let taken = 'found: {
            // Apart, since it is the one most of the time where any has something.
            if !GLANCED && let Some(ring) = rings.get_mut(at) {
                let taken = ring.look(core, unsettled);
                if taken != Taken::Nothing {
                    break 'found taken;
                }
            }
            for _ in 1..rings.len() {
                at += 1;
                // The last may have gone since, and more than that.
                if at >= rings.len() {
                    at = 0;
                }
                let Some(ring) = rings.get_mut(at) else {
                    break;
                };
                let taken = ring.look(core, unsettled);
                if taken != Taken::Nothing {
                    break 'found taken;
                }
            }
            return Found::Nothing;
        };
        self.first_ring = match at + 1 < rings.len() {
            true => at + 1,
            false => 0,
        };
        self.follow(at, taken, now)
    }

    /// Looks at the only one of the hot rings up to `looks` times, and takes what has come.
    #[inline(always)]
    fn take_plain_from(&mut self, looks: u32, now: &Now) -> Found {
        let Some(hot) = self.hot.first_mut() else {
            return Found::LongWay;
        };
        let mut seen = hot.probe.look();
        let waited = seen == Seen::Nothing;
        for _ in 1..looks {
            if seen != Seen::Nothing {
                break;
            }
            seen = hot.probe.look();
        }
        if seen == Seen::Nothing {
            return Found::Nothing;
        }
        let taken = hot.take(seen, &mut self.core, &mut self.unsettled, waited);
        self.follow(0, taken, now)
    }

    /// Does what follows from what was taken from one of the hot rings.
    #[inline(always)]
    fn follow(&mut self, at: usize, taken: Taken, now: &Now) -> Found {
        match taken {
            Taken::Some if !self.has_failures() => Found::Taken,
            Taken::Some => self.go_on(at, false, now),
            Taken::Unsent => self.go_on(at, true, now),
            Taken::Nothing => Found::Nothing,
            Taken::Unclear => Found::LongWay,
        }
    }

    /// Something was taken from one of the hot rings, and has consequences; `unsent`: something
    /// waited for an acknowledgment.
    #[cold]
    #[inline(never)]
    fn go_on(&mut self, at: usize, unsent: bool, now: &Now) -> Found {
        let qpn = self.hot.get(at).map(|hot| hot.qpn);
        self.fail_overrun();
        if let Some(qpn) = qpn
            && unsent
        {
            self.touch(qpn);
            self.flush_pending(now);
        }
        Found::Sent
    }
}

/// What was taken from one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// Something.
    Some,
    /// Something, and the queue pair has something to send.
    Unsent,
    /// Nothing: there is nothing.
    Nothing,
    /// Nothing the short way, and something is there.
    Unclear,
}

impl Taken {
    /// Nothing, the short way; `ready`: something is there.
    #[inline]
    fn none(ready: bool) -> Self {
        match ready {
            true => Taken::Unclear,
            false => Taken::Nothing,
        }
    }

    /// Something; `unsent`: the queue pair has something to send.
    #[inline(always)]
    fn some(unsent: bool) -> Self {
        match unsent {
            true => Taken::Unsent,
            false => Taken::Some,
        }
    }
}

impl Hot {
    /// Looks at it once, and takes what has come.
    #[inline(always)]
    fn look(&mut self, core: &mut Core, unsettled: &mut Vec<u32>) -> Taken {
        match self.probe.look() {
            Seen::Nothing => Taken::Nothing,
            seen => self.take(seen, core, unsettled, false),
        }
    }

    /// Takes what a look has seen; `waited`: it came just now.
    #[inline(always)]
    fn take(
        &mut self,
        seen: Seen,
        core: &mut Core,
        unsettled: &mut Vec<u32>,
        waited: bool,
    ) -> Taken {
        match seen {
            Seen::Record => self.take_messages(core, unsettled, waited),
            Seen::Ack => self.take_acks(core),
            Seen::Nothing => Taken::Nothing,
        }
    }

    /// Takes the messages that have come; `waited`: they came just now.
    #[inline(never)]
    fn take_messages(&mut self, core: &mut Core, unsettled: &mut Vec<u32>, waited: bool) -> Taken {
        if let Some(mut entry) = hurry(&self.cell.entry) {
            entry.take_messages(&mut self.probe, core, unsettled, waited)
        } else {
            self.lock_messages(core, unsettled, waited)
        }
    }

    /// As [`Hot::take_messages`], where the lock is not biased towards this thread.
    #[cold]
    #[inline(never)]
    fn lock_messages(&mut self, core: &mut Core, unsettled: &mut Vec<u32>, waited: bool) -> Taken {
        let Hot { cell, probe, .. } = self;
        let mut entry = cell.entry.lock();
        entry.take_messages(probe, core, unsettled, waited)
    }

    /// Takes the acknowledgment that has come without a record.
    #[inline(never)]
    fn take_acks(&mut self, core: &mut Core) -> Taken {
        if let Some(mut entry) = hurry(&self.cell.entry) {
            entry.take_acks(&mut self.unclear, core)
        } else {
            self.lock_acks(core)
        }
    }

    /// As [`Hot::take_acks`], where the lock is not biased towards this thread.
    #[cold]
    #[inline(never)]
    fn lock_acks(&mut self, core: &mut Core) -> Taken {
        self.cell.entry.lock().take_acks(&mut self.unclear, core)
    }
}

impl QpEntry {
    /// Takes the messages that have come; `waited`: they came just now. Notes in `unsettled` if the
    /// peer is to be told.
    #[inline(always)]
    fn take_messages(
        &mut self,
        probe: &mut Probe,
        core: &mut Core,
        unsettled: &mut Vec<u32>,
        waited: bool,
    ) -> Taken {
        let Link::Ring(ring) = &mut self.link else {
            return Taken::Unclear;
        };
        let qp = &mut self.qp;
        if !ring.take_plain(qp, core, &self.poster.recv_cq, waited) {
            return Taken::none(ring.is_ready());
        }
        ring.renew(probe);
        let unsent = qp.has_unsent();
        if ring.is_unsettled() && !std::mem::replace(&mut self.unsettled, true) {
            unsettled.push(self.qp.qpn());
        }
        Taken::some(unsent)
    }

    /// Takes the acknowledgment that has come without a record. Notes in `unclear` if that was none
    /// which the short way takes.
    #[inline(always)]
    fn take_acks(&mut self, unclear: &mut bool, core: &mut Core) -> Taken {
        let Some((qp, ring)) = self.ring() else {
            return Taken::Unclear;
        };
        if !ring.take_acks(qp, core) {
            *unclear = true;
            return Taken::none(ring.is_ready());
        }
        Taken::some(qp.has_unsent())
    }
}
