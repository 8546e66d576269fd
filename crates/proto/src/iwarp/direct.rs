//! One-sided work requests carried out here, where the peer's memory is mapped.
//!
//! They are carried out in their turn, when all before them are complete: so order across the two
//! ways is that of the queue. Whatever is not plainly possible is sent as segments, for the peer to
//! carry out or to refuse.

use super::entry::Way;
use super::{Iwarp, Queues, Wqe};
use crate::host::{AtomicOp, Host, Remote};
use crate::reach::{NotDone, Reach, Target};
use crate::transport::AtOnce;
use crate::types::{Payload, QpState, SendFlags, SendOp, SendWr, Service, WcStatus};
use crate::work::{Part, PostError, gather, scatter};

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

impl Wqe {
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

impl Iwarp {
    /// A work request has been posted.
    pub(super) fn posted(&mut self, one_sided: bool) {
        if !one_sided {
            self.behind = 0;
        }
    }

    /// Whether a work request must not be sent, because it may go, or will, directly.
    #[inline]
    pub(super) fn goes_directly(&self, work: &Queues, wqe: &Wqe) -> bool {
        work.direct && wqe.part.way != Way::Segments && wqe.wr.op.is_one_sided()
    }

    /// Whether [`Iwarp::run_direct`] has something to look at.
    #[inline]
    pub(super) fn has_direct(&self, work: &Queues) -> bool {
        work.direct
            && work.attr.state == QpState::Rts
            && !work.sq.is_held()
            && work.sq.current().is_some_and(|wqe| {
                let decided = wqe.part.way == Way::Direct && !self.is_next(work);
                !wqe.part.is_begun() && !decided && self.goes_directly(work, wqe)
            })
    }

    /// Whether a WRITE or READ of one range of registered memory, or an inline WRITE that is not
    /// too long for that, could be carried out here and now, as [`Iwarp::post_direct`] would: it
    /// would be accepted, and nothing is before it.
    #[inline(always)]
    pub(super) fn takes_short(&self, work: &Queues, read: bool) -> bool {
        let cap = &work.config.cap;
        work.gates.direct
            && work.sq.is_empty()
            && !self.trails()
            && work.sq.used() < cap.max_send_wr
            && (!read || (work.attr.max_rd_atomic > 0 && work.config.service == Service::Rc))
    }

    /// Carries out a WRITE, READ or atomic without queueing it, where nothing is before it and its
    /// target is within reach: the shortest way.
    ///
    /// # Errors
    /// As [`WorkQueues::post_send`](crate::work::WorkQueues::post_send).
    #[inline]
    pub(super) fn post_direct<H: Host, R: Reach>(
        &mut self,
        work: &mut Queues,
        wr: &SendWr,
        host: &mut H,
        reach: &mut R,
    ) -> Result<AtOnce, PostError> {
        let first = work.direct
            && work.attr.state == QpState::Rts
            && work.sq.is_empty()
            && !self.trails()
            && !work.is_paced();
        if !first {
            return Ok(AtOnce::Declined);
        }
        let answered = work.attr.max_rd_atomic > 0;
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
        work.check_room(1)?;
        let len = work.check_send(wr)?;
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
        let pd = work.config.pd;
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
        work.sq.pass();
        let signaled = work.signaled(wr.flags);
        work.succeed(host, (wr.wr_id, wr.op.opcode()), signaled, len);
        Ok(AtOnce::Done)
    }

    /// Carries out the work requests whose turn it is and whose targets are within reach, and
    /// decides of the next one how it goes.
    pub(super) fn run_direct<H: Host, R: Reach>(
        &mut self,
        work: &mut Queues,
        host: &mut H,
        reach: &mut R,
    ) {
        while self.has_direct(work) {
            let Some(wqe) = work.sq.current() else { return };
            let Some((target, what)) = wqe.target() else {
                return;
            };
            let fenced = wqe.wr.flags.contains(SendFlags::FENCE);
            let part = reach.part(target, what).filter(|part| {
                let whole = *part == (0..target.len);
                let worth = what == Remote::Write && part.len() >= PART_FROM as usize;
                // What takes no READs is for the sending path to say.
                (whole || worth) && (what == Remote::Write || work.attr.max_rd_atomic > 0)
            });
            let at_front = self.is_next(work);
            let waits = what != Remote::Write || target.len >= WAIT_FROM || fenced;
            let waits = waits || self.behind >= BEHIND_MOST;
            let way = match part {
                Some(_) if at_front || waits => Way::Direct,
                _ => Way::Segments,
            };
            if let Some(wqe) = work.sq.current_mut() {
                wqe.part.way = way;
            }
            self.behind = match (&part, way) {
                (Some(_), Way::Segments) => self.behind + 1,
                _ => 0,
            };
            let Some(part) = part.filter(|_| at_front) else {
                return;
            };
            match self.carry_out(work, target, part, host, reach) {
                Outcome::Done => work.succeed_front(host),
                Outcome::Segments => {
                    if let Some(wqe) = work.sq.current_mut() {
                        wqe.part.way = Way::Segments;
                    }
                    return;
                }
                Outcome::Failed(status) => return work.fail_at(self, work.sq.cursor, status, host),
            }
        }
    }

    /// Carries out the oldest work request.
    fn carry_out<H: Host, R: Reach>(
        &mut self,
        work: &mut Queues,
        target: Target,
        part: core::ops::Range<u32>,
        host: &mut H,
        reach: &mut R,
    ) -> Outcome {
        let pd = work.config.pd;
        let Some(wqe) = work.sq.current_mut() else {
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
        wqe.part.placed = Some((part.start, part.end));
        Outcome::Segments
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
