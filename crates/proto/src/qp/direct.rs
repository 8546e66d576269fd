//! One-sided work requests carried out here, where the peer's memory is mapped.
//!
//! They are carried out in their turn, when all before them are complete: so order across the two
//! ways is that of the queue. Whatever is not plainly possible is sent as segments, for the peer to
//! carry out or to refuse.

use super::segments::{gather, scatter};
use super::sendq::{SendWqe, Way};
use super::{PostError, Qp};
use crate::host::{AtomicOp, Completions, Host, Remote};
use crate::reach::{NotDone, Reach, Target};
use crate::types::{Payload, QpState, SendFlags, SendOp, SendWr, Service, WcOpcode, WcStatus};

/// From so many bytes on a WRITE waits for the sends before it, to be placed directly; a shorter
/// one costs less to send behind them. READs and atomics always wait: their answer would anyway.
const WAIT_FROM: u32 = 4096;
/// So many shorter WRITEs in a row go behind each other; the next one waits. Else a stream of them
/// that began while the peer's memory was out of reach would never go directly.
const BEHIND_MOST: u32 = 64;
/// Most bytes of a work request that is carried out before it is even queued.
const AT_ONCE: u32 = 256 << 10;
/// Least bytes that are placed directly of a WRITE that is also sent in part.
const PART_FROM: u32 = 4096;

impl SendWqe {
    /// Where in the peer's memory it goes, if it is one-sided.
    fn target(&self) -> Option<(Target, Remote)> {
        let (addr, rkey, what) = match self.wr.op {
            SendOp::Write { addr, rkey } | SendOp::WriteImm { addr, rkey, .. } => {
                (addr, rkey, Remote::Write)
            }
            SendOp::Read { addr, rkey } => (addr, rkey, Remote::Read),
            SendOp::FetchAdd { addr, rkey, .. } | SendOp::CmpSwap { addr, rkey, .. } => {
                (addr, rkey, Remote::Atomic)
            }
            SendOp::Send
            | SendOp::SendImm(_)
            | SendOp::SendInv(_)
            | SendOp::LocalInv(_)
            | SendOp::BindMw(_)
            | SendOp::Datagram { .. } => return None,
        };
        let len = self.len;
        Some((Target { rkey, addr, len }, what))
    }
}

/// What became of a work request.
enum Outcome {
    /// It is complete, with these bytes read.
    Done,
    /// It goes, or the rest of it, as segments.
    Segments,
    /// It has failed.
    Failed(WcStatus),
}

/// What became of a work request that was to be carried out as it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtOnce {
    /// It is complete.
    Done,
    /// Nothing has been done: it is to be posted.
    Declined,
    /// It was carried out at the peer, or can't be, and has failed: [`Qp::post_failed`]. To post it
    /// would carry an atomic out again.
    Failed(WcStatus),
}

impl Qp {
    /// Its link can carry one-sided work requests directly, if it says so: each is looked at by
    /// [`Qp::run_direct`] before it is sent.
    pub fn set_direct(&mut self, direct: bool) {
        self.direct = direct;
        self.set_gates();
    }

    /// Whether a work request must not be sent, because it may go, or will, directly.
    #[inline]
    pub(super) fn goes_directly(&self, wqe: &SendWqe) -> bool {
        self.direct && wqe.way != Way::Segments && wqe.wr.op.is_one_sided()
    }

    /// Whether [`Qp::run_direct`] has something to look at.
    #[inline]
    #[must_use]
    pub fn has_direct(&self) -> bool {
        self.direct
            && self.attr.state == QpState::Rts
            && !self.sq.halted
            && self.sq.current().is_some_and(|wqe| {
                let decided = wqe.way == Way::Direct && !self.is_next();
                !wqe.begun() && !decided && self.goes_directly(wqe)
            })
    }

    /// Whether a WRITE or READ of one range could be carried out here and now, as
    /// [`Qp::post_direct`] would: it would be accepted, and nothing is before it.
    #[inline(always)]
    #[must_use]
    pub fn takes_short(&self, read: bool, inline: bool, len: u32) -> bool {
        let cap = &self.config.cap;
        self.gates.direct
            && self.sq.is_empty()
            && !self.trails()
            && self.sq.used() < cap.max_send_wr
            && (!inline || (!read && len <= cap.max_inline_data))
            && (!read || (self.attr.max_rd_atomic > 0 && self.config.service == Service::Rc))
    }

    /// A work request that [`Qp::takes_short`] said yes to has been carried out.
    #[inline(always)]
    pub fn passed<C: Completions>(
        &mut self,
        host: &mut C,
        (wr_id, opcode): (u64, WcOpcode),
        flags: SendFlags,
        len: u32,
    ) {
        self.sq.pass();
        if self.signaled(flags) {
            self.complete_passed(host, (wr_id, opcode), len);
        } else {
            host.succeeded_silently(len);
        }
    }

    /// The completion of a work request that passed. Apart, for those that have none.
    #[inline(never)]
    fn complete_passed<C: Completions>(
        &mut self,
        host: &mut C,
        (wr_id, opcode): (u64, WcOpcode),
        len: u32,
    ) {
        self.complete_send(host, wr_id, opcode, WcStatus::Success, len);
    }

    /// Posts a work request that [`AtOnce::Failed`]: it completes so, and the queue pair fails.
    ///
    /// # Errors
    /// As [`Qp::post_send`].
    pub fn post_failed<H: Host>(
        &mut self,
        wr: SendWr,
        status: WcStatus,
        host: &mut H,
    ) -> Result<(), PostError> {
        self.check_room(1)?;
        let len = self.check_send(&wr)?;
        let position = self.sq.cursor;
        self.sq.push(wr, len);
        self.fail_at(position, status, host);
        Ok(())
    }

    /// Carries out a WRITE, READ or atomic without queueing it, where nothing is before it and its
    /// target is within reach: the shortest way.
    ///
    /// # Errors
    /// As [`Qp::post_send`].
    #[inline]
    pub fn post_direct<H: Host, R: Reach>(
        &mut self,
        wr: &SendWr,
        host: &mut H,
        reach: &mut R,
    ) -> Result<AtOnce, PostError> {
        let first =
            self.direct && self.attr.state == QpState::Rts && self.sq.is_empty() && !self.trails();
        if !first {
            return Ok(AtOnce::Declined);
        }
        let answered = self.attr.max_rd_atomic > 0;
        let (addr, rkey) = match wr.op {
            SendOp::Write { addr, rkey } => (addr, rkey),
            SendOp::Read { addr, rkey }
            | SendOp::FetchAdd { addr, rkey, .. }
            | SendOp::CmpSwap { addr, rkey, .. }
                if answered =>
            {
                (addr, rkey)
            }
            _ => return Ok(AtOnce::Declined),
        };
        self.check_room(1)?;
        let len = self.check_send(wr)?;
        let target = Target { rkey, addr, len };
        if len == 0 || len > AT_ONCE {
            // In its turn; but what it takes to reach the target is found out now.
            let what = if wr.op.is_answered() {
                Remote::Read
            } else {
                Remote::Write
            };
            reach.part(target, what);
            return Ok(AtOnce::Declined);
        }
        let pd = self.config.pd;
        let done = match (wr.op.atomic(), &wr.payload) {
            (Some(op), payload) => match atomic(payload, target, op, pd, host, reach) {
                Outcome::Done => true,
                Outcome::Segments => false,
                Outcome::Failed(status) => return Ok(AtOnce::Failed(status)),
            },
            (None, Payload::Sges(sges)) if wr.op.is_answered() => {
                let read = reach.read(target, |offset, bytes| {
                    scatter(&*host, pd, sges, offset, bytes)
                });
                read.is_ok()
            }
            (None, payload) => {
                let written = reach.write(target, 0..len, |offset, bytes| {
                    gather(&*host, pd, payload, offset, bytes)
                });
                written.is_ok()
            }
        };
        if !done {
            // What it was, carrying it out in its turn will tell.
            return Ok(AtOnce::Declined);
        }
        self.sq.pass();
        let signaled = self.signaled(wr.flags);
        self.succeed(host, (wr.wr_id, wr.op.opcode()), signaled, len);
        Ok(AtOnce::Done)
    }

    /// Carries out the work requests whose turn it is and whose targets are within reach, and
    /// decides of the next one how it goes.
    pub fn run_direct<H: Host, R: Reach>(&mut self, host: &mut H, reach: &mut R) {
        while self.has_direct() {
            let Some(wqe) = self.sq.current() else { return };
            let Some((target, what)) = wqe.target() else {
                return;
            };
            let fenced = wqe.wr.flags.contains(SendFlags::FENCE);
            let part = reach.part(target, what).filter(|part| {
                let whole = *part == (0..target.len);
                let worth = what == Remote::Write && part.len() >= PART_FROM as usize;
                // What takes no READs is for the sending path to say.
                (whole || worth) && (what == Remote::Write || self.attr.max_rd_atomic > 0)
            });
            let at_front = self.is_next();
            let waits = what != Remote::Write || target.len >= WAIT_FROM || fenced;
            let waits = waits || self.behind >= BEHIND_MOST;
            let way = match part {
                Some(_) if at_front || waits => Way::Direct,
                _ => Way::Segments,
            };
            if let Some(wqe) = self.sq.current_mut() {
                wqe.way = way;
            }
            self.behind = match (&part, way) {
                (Some(_), Way::Segments) => self.behind + 1,
                _ => 0,
            };
            let Some(part) = part.filter(|_| at_front) else {
                return;
            };
            match self.carry_out(target, part, host, reach) {
                Outcome::Done => self.finish_direct(host),
                Outcome::Segments => {
                    if let Some(wqe) = self.sq.current_mut() {
                        wqe.way = Way::Segments;
                    }
                    return;
                }
                Outcome::Failed(status) => return self.fail_at(self.sq.cursor, status, host),
            }
        }
    }

    /// Carries out the oldest work request.
    fn carry_out<H: Host, R: Reach>(
        &mut self,
        target: Target,
        part: core::ops::Range<u32>,
        host: &mut H,
        reach: &mut R,
    ) -> Outcome {
        let pd = self.config.pd;
        let Some(wqe) = self.sq.current_mut() else {
            return Outcome::Segments;
        };
        let payload = &wqe.wr.payload;
        if let Some(op) = wqe.wr.op.atomic() {
            return atomic(payload, target, op, pd, host, reach);
        }
        let done = match wqe.wr.op {
            SendOp::Read { .. } => {
                let Payload::Sges(sges) = payload else {
                    return Outcome::Segments;
                };
                reach.read(target, |offset, bytes| {
                    scatter(&*host, pd, sges, offset, bytes)
                })
            }
            _ => reach.write(target, part.clone(), |offset, bytes| {
                gather(&*host, pd, payload, offset, bytes)
            }),
        };
        if let Err(why) = done {
            return why.into();
        }
        let whole = part == (0..target.len);
        if whole && !matches!(wqe.wr.op, SendOp::WriteImm { .. }) {
            return Outcome::Done;
        }
        wqe.placed = Some((part.start, part.end));
        Outcome::Segments
    }

    /// The oldest work request is complete.
    #[inline]
    fn finish_direct<H: Host>(&mut self, host: &mut H) {
        let Some(wqe) = self.sq.front() else { return };
        let (id, opcode, len) = (wqe.wr.wr_id, wqe.wr.op.opcode(), wqe.len);
        let signaled = self.signaled(wqe.wr.flags);
        self.sq.drop_front();
        self.succeed(host, (id, opcode), signaled, len);
    }
}

/// Carries out an atomic. The local memory is checked first: what has been done at the peer cannot
/// be taken back.
#[inline]
fn atomic<H: Host, R: Reach>(
    payload: &Payload,
    target: Target,
    op: AtomicOp,
    pd: u32,
    host: &H,
    reach: &mut R,
) -> Outcome {
    let Payload::Sges(sges) = payload else {
        return Outcome::Segments;
    };
    let allowed = sges.iter().all(|s| {
        host.check_local(pd, s.lkey, s.addr, s.length.into(), true)
            .is_ok()
    });
    if !allowed {
        return Outcome::Failed(WcStatus::LocProtErr);
    }
    match reach.atomic(target, op) {
        Ok(before) => match scatter(host, pd, sges, 0, before.to_ne_bytes().as_slice().into()) {
            Ok(()) => Outcome::Done,
            Err(_) => Outcome::Failed(WcStatus::LocProtErr),
        },
        Err(why) => why.into(),
    }
}

impl From<NotDone> for Outcome {
    fn from(why: NotDone) -> Self {
        match why {
            NotDone::Elsewhere => Outcome::Segments,
            NotDone::Local(_) => Outcome::Failed(WcStatus::LocProtErr),
            NotDone::Evicted => Outcome::Failed(WcStatus::RetryExcErr),
        }
    }
}
