//! Data in: what is placed at once, what is held, what is refused (DESIGN section 5, udp).

use causeway_wire::trp::{Bundled, Common, Position, Segments};

use super::acks::Kind;
use super::input::expand;
use super::recv::{Arrival, Held};
use super::run::Arriving;
use super::{Connection, DropReason};
use crate::bytes::Bytes;
use crate::ddp;
use crate::time::Instant;
use crate::ulp::{Nak, SegMeta, Space, Ulp, Verdict};
use crate::unit::Unit;

/// A request that the queue pair would not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// For want of a receive; the requester will try again.
    NotReady { seq: u64, timer: u8 },
    /// For good.
    Never { seq: u64, nak: Nak },
}

impl Connection {
    pub(super) fn on_data(
        &mut self,
        now: Instant,
        common: &Common,
        position: &Position,
        segment: &[u8],
        ulp: &mut impl Ulp,
    ) -> Result<(), DropReason> {
        let space = if position.response {
            Space::Response
        } else {
            Space::Request
        };
        let r = &self.rx.spaces[space as usize];
        let seq = expand(position.psn, r.next()).ok_or(DropReason::Window)?;
        let back = u64::from(position.psn.wrapping_sub(position.first));
        let first = seq.checked_sub(back).ok_or(DropReason::Window)?;
        let meta = SegMeta {
            seq,
            first,
            last: position.last,
            direct: false,
        };
        let arrival = self.rx.spaces[space as usize].classify(seq);
        // What lies behind or beyond says nothing of the attempt: it may be old, or wrong.
        if space == Space::Request && matches!(arrival, Arrival::InOrder | Arrival::Early) {
            self.check_attempt(common.epoch)?;
        }
        match arrival {
            Arrival::Duplicate => {
                self.rx.duplicates = self.rx.duplicates.wrapping_add(1);
                self.stats.duplicates += 1;
                self.rx.acks.on_disorder(space);
                self.rx.answer_due |= matches!(self.rx.refused, Some(Refused::Never { .. }));
                Ok(())
            }
            Arrival::Beyond => Err(DropReason::Window),
            _ if space == Space::Response => {
                self.on_response(now, meta, segment, ulp);
                Ok(())
            }
            Arrival::Early => {
                self.stats.out_of_order += 1;
                self.on_early_request(meta, segment, ulp);
                Ok(())
            }
            Arrival::InOrder => {
                self.on_request(now, meta, segment, ulp);
                Ok(())
            }
        }
    }

    /// Takes the segments of a bundle one after the other, as if each had come by itself.
    pub(super) fn on_bundle(
        &mut self,
        now: Instant,
        common: &Common,
        bundled: &Bundled,
        segments: &Segments<'_>,
        ulp: &mut impl Ulp,
    ) -> Result<(), DropReason> {
        let mut position = Position {
            response: bundled.response,
            psn: bundled.psn,
            first: bundled.first,
            last: false,
            relaxed: false,
        };
        let mut result = Ok(());
        for (segment, last) in segments.iter() {
            position.last = last;
            let done = self.on_data(now, common, &position, segment, ulp);
            result = result.and(done);
            position.psn = position.psn.wrapping_add(1);
            if last {
                position.first = position.psn;
            }
        }
        self.rx.run = None;
        result
    }

    /// Requests of an attempt that was refused are stale; a new attempt ends the refusal.
    fn check_attempt(&mut self, epoch: u8) -> Result<(), DropReason> {
        let newer = epoch.wrapping_sub(self.rx.epoch).cast_signed();
        if newer < 0 {
            return Err(DropReason::Stale);
        }
        if newer > 0 {
            self.rx.epoch = epoch;
            if matches!(self.rx.refused, Some(Refused::NotReady { .. })) {
                self.rx.refused = None;
                self.rx.answer_due = false;
            }
        }
        Ok(())
    }

    fn on_response(&mut self, now: Instant, meta: SegMeta, segment: &[u8], ulp: &mut impl Ulp) {
        let space = Space::Response;
        let (unit, payload) = ddp::read(Bytes::from(segment));
        if ulp.receive(space, meta, &unit, payload, true) != Verdict::Placed {
            return;
        }
        let r = &mut self.rx.spaces[space as usize];
        let disorder = r.has_holes() || meta.seq != r.next();
        r.mark(meta.seq);
        // Passes over everything contiguous; nothing is ever held in this space.
        let held = r.take_next();
        debug_assert!(held.is_none());
        self.rx.acks.on_segment(now, None);
        if disorder {
            self.stats.out_of_order += 1;
            self.rx.acks.on_disorder(space);
        } else {
            self.rx.run = Arriving::behind(space, &meta, &unit, payload.len());
        }
    }

    fn on_early_request(&mut self, meta: SegMeta, segment: &[u8], ulp: &mut impl Ulp) {
        if self.rx.refused.is_some() {
            // All from the refused one on comes again, or never.
            self.rx.answer_due = true;
            return;
        }
        let space = Space::Request;
        let r = &mut self.rx.spaces[space as usize];
        let mut verdict = Verdict::Later;
        if meta.first <= r.next() && !meta.last {
            let (unit, payload) = ddp::read(Bytes::from(segment));
            verdict = ulp.receive(space, meta, &unit, payload, false);
        }
        match verdict {
            Verdict::Placed => r.mark(meta.seq),
            // A refusal counts only when everything before has been placed: it will be repeated.
            Verdict::Later | Verdict::Refused(_) => {
                r.hold(meta, segment);
            }
            Verdict::NotReady(_) | Verdict::Ignore => return,
        }
        self.rx.acks.on_disorder(space);
    }

    fn on_request(&mut self, now: Instant, meta: SegMeta, segment: &[u8], ulp: &mut impl Ulp) {
        if let Some(Refused::Never { .. }) = self.rx.refused {
            self.rx.answer_due = true;
            return;
        }
        let space = Space::Request;
        let had_holes = self.rx.spaces[space as usize].has_holes();
        let (unit, payload) = ddp::read(Bytes::from(segment));
        let verdict = ulp.receive(space, meta, &unit, payload, true);
        if !self.on_verdict(now, meta, kind(&unit), verdict) {
            return;
        }
        while let Some(Held { meta, segment }) = self.rx.spaces[space as usize].take_next() {
            let (unit, payload) = ddp::read(Bytes::from(&*segment));
            let verdict = ulp.receive(space, meta, &unit, payload, true);
            if !self.on_verdict(now, meta, kind(&unit), verdict) {
                return;
            }
        }
        if had_holes {
            self.rx.acks.on_disorder(space);
        } else {
            self.rx.run = Arriving::behind(space, &meta, &unit, payload.len());
        }
    }

    /// Acts on the verdict on the request whose turn it is. Returns whether to go on.
    pub(super) fn on_verdict(
        &mut self,
        now: Instant,
        meta: SegMeta,
        kind: Kind,
        verdict: Verdict,
    ) -> bool {
        let r = &mut self.rx.spaces[Space::Request as usize];
        match verdict {
            Verdict::Placed => {
                r.advance();
                self.rx.refused = None;
                self.rx.answer_due = false;
                self.rx.acks.on_segment(now, meta.last.then_some(kind));
                return true;
            }
            Verdict::NotReady(timer) => {
                self.stats.rnr_sent += 1;
                self.rx.refused = Some(Refused::NotReady {
                    seq: meta.seq,
                    timer: timer.min(31),
                });
                self.rx.answer_due = true;
            }
            Verdict::Refused(nak) => {
                self.rx.refused = Some(Refused::Never { seq: meta.seq, nak });
                self.rx.answer_due = true;
            }
            Verdict::Later | Verdict::Ignore => {}
        }
        r.drop_held();
        false
    }
}

/// What a request is, by its last unit.
pub(super) fn kind(unit: &Unit) -> Kind {
    match unit {
        Unit::Write { .. } => Kind::Write,
        _ => Kind::Message,
    }
}
