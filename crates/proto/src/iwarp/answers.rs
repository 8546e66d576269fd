//! The answers to READs and atomics: accepted in order, sent in order, kept until acknowledged.

use std::collections::VecDeque;

use super::entry::Runs;
use super::requester::not_last;
use super::{Iwarp, Queues};
use crate::bytes::PayloadsMut;
use crate::host::{AtomicOp, Host, Remote};
use crate::types::{Access, QpEvent, QpState};
use crate::ulp::{Nak, SegMeta};
use crate::unit::{Frame, Kind, Unit};

/// What an answer consists of.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    Read {
        id: u32,
        rkey: u32,
        addr: u64,
        len: u32,
    },
    Atomic {
        id: u32,
        msn: u32,
        original: u64,
    },
}

/// An answer, from the request's execution until the peer has acknowledged its last unit.
#[derive(Debug)]
struct Response {
    answer: Answer,
    /// Number of the request, for a refusal found late.
    request: u64,
    first: u64,
    end: Option<u64>,
    emitted: u32,
    runs: Runs,
}

/// The answers under way.
#[derive(Debug, Default)]
pub struct Answers {
    queue: VecDeque<Response>,
    /// How many of `queue`, from the front, are built whole.
    built: usize,
    /// Message sequence number of the last request of queue 1 (RFC 5040, section 4.3).
    read_msn: u32,
    /// Message sequence number of the last atomic response (RFC 7306, section 5.2).
    atomic_msn: u32,
}

impl Answers {
    /// Whether an answer is still to be built, whole or in part.
    pub fn is_due(&self) -> bool {
        self.built < self.queue.len()
    }

    /// Payload that the answer to be sent next has left.
    pub fn next_len(&self) -> Option<u32> {
        let next = self.queue.get(self.built)?;
        Some(next.len() - next.emitted)
    }

    /// The peer has placed responses below `upto`.
    pub fn acked(&mut self, upto: u64) {
        while self
            .queue
            .front()
            .is_some_and(|r| r.end.is_some_and(|end| end <= upto))
        {
            self.queue.pop_front();
            self.built = self.built.saturating_sub(1);
        }
    }

    /// Forgets what is not answered yet.
    pub fn drop_all(&mut self) {
        self.queue.clear();
        self.built = 0;
    }

    /// Finds the answer that response `seq` belongs to.
    fn find(&self, seq: u64) -> Option<&Response> {
        let at = self
            .queue
            .partition_point(|r| r.end.is_some_and(|end| end <= seq));
        self.queue
            .get(at)
            .filter(|r| r.first <= seq && (r.end.is_some() || r.emitted > 0))
    }
}

impl Response {
    fn len(&self) -> u32 {
        match self.answer {
            Answer::Read { len, .. } => len,
            Answer::Atomic { .. } => 0,
        }
    }

    /// The kind that all its units are of.
    fn kind(&self) -> Kind {
        match self.answer {
            Answer::Read { .. } => Kind::ReadAnswer,
            Answer::Atomic { .. } => Kind::Other,
        }
    }

    fn unit(&self, offset: u32) -> Unit {
        match self.answer {
            Answer::Read { id, .. } => Unit::ReadAnswer {
                id,
                offset: u64::from(offset),
            },
            Answer::Atomic { id, msn, original } => Unit::AtomicAnswer { msn, id, original },
        }
    }
}

impl Iwarp {
    /// Accepts a READ of memory that may be read.
    pub(super) fn accept_read<H: Host>(
        &mut self,
        work: &mut Queues,
        request: u64,
        msn: u32,
        answer: Answer,
        host: &mut H,
    ) -> Result<(), Nak> {
        if !work.attr.access.contains(Access::REMOTE_READ) {
            return Err(Nak::InvalidRequest);
        }
        if let Answer::Read {
            rkey, addr, len, ..
        } = answer
            && len > 0
        {
            host.check_remote(work.via(), rkey, addr, u64::from(len), Remote::Read)
                .map_err(|_| Nak::RemoteAccess)?;
        }
        self.queue_answer(work, request, msn, answer)
    }

    /// Executes an atomic at once; its answer keeps the value there was.
    pub(super) fn execute_atomic<H: Host>(
        &mut self,
        work: &mut Queues,
        request: u64,
        msn: u32,
        (id, rkey, addr): (u32, u32, u64),
        op: AtomicOp,
        host: &mut H,
    ) -> Result<(), Nak> {
        let allowed = work.attr.access.contains(Access::REMOTE_ATOMIC);
        if !allowed || addr % 8 != 0 || !self.may_queue_answer(work, msn) {
            return Err(Nak::InvalidRequest);
        }
        let original = host
            .atomic(work.via(), rkey, addr, op)
            .map_err(|_| Nak::RemoteAccess)?;
        self.answers.atomic_msn = self.answers.atomic_msn.wrapping_add(1);
        let msn_out = self.answers.atomic_msn;
        self.queue_answer(
            work,
            request,
            msn,
            Answer::Atomic {
                id,
                msn: msn_out,
                original,
            },
        )
    }

    /// The peer keeps to the number of READs and atomics agreed on (`max_dest_rd_atomic`).
    fn may_queue_answer(&self, work: &Queues, msn: u32) -> bool {
        let unbuilt = self.answers.queue.len() - self.answers.built;
        msn == self.answers.read_msn.wrapping_add(1)
            && unbuilt < usize::from(work.attr.max_dest_rd_atomic)
    }

    fn queue_answer(
        &mut self,
        work: &mut Queues,
        request: u64,
        msn: u32,
        answer: Answer,
    ) -> Result<(), Nak> {
        if !self.may_queue_answer(work, msn) {
            return Err(Nak::InvalidRequest);
        }
        self.answers.read_msn = msn;
        self.answers.queue.push_back(Response {
            answer,
            request,
            first: 0,
            end: None,
            emitted: 0,
            runs: Runs::default(),
        });
        Ok(())
    }

    pub(super) fn next_response<H: Host>(
        &mut self,
        work: &mut Queues,
        seq: u64,
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        let at = self.answers.built;
        let room = frame.room(self.answers.queue.get(at)?.kind())?;
        let response = self.answers.queue.get_mut(at)?;
        if response.emitted == 0 && response.end.is_none() {
            response.first = seq;
        }
        let offset = response.emitted;
        let len = room.min(response.len() - offset);
        let meta = self.build_response(work, at, seq, (offset, len), frame, host)?;
        let response = self.answers.queue.get_mut(at)?;
        response.runs.note(seq, offset, room);
        response.emitted += len;
        if meta.last {
            response.end = Some(seq + 1);
            self.answers.built += 1;
        }
        Some(meta)
    }

    /// See [`Ulp::next_alike`](crate::ulp::Ulp::next_alike). What fails is for
    /// [`Iwarp::next_response`] to find.
    pub(super) fn next_answer_alike<H: Host>(
        &mut self,
        work: &Queues,
        bodies: PayloadsMut<'_>,
        host: &mut H,
    ) -> usize {
        let built = self.answers.built;
        let Some(response) = self.answers.queue.get_mut(built) else {
            return 0;
        };
        let (offset, Ok(each)) = (response.emitted, u32::try_from(bodies.each())) else {
            return 0;
        };
        let Answer::Read {
            rkey, addr, len, ..
        } = response.answer
        else {
            return 0;
        };
        let count = not_last(len.saturating_sub(offset), each);
        if !response.runs.ends_with(each) || offset == 0 || count == 0 {
            return 0;
        }
        let addr = addr.wrapping_add(u64::from(offset));
        let bodies = bodies.at_most(count as usize);
        let built = host.read_remote_parts(work.via(), rkey, addr, bodies);
        // No more than `count`, which fits.
        response.emitted += built as u32 * each;
        built
    }

    pub(super) fn response_again<H: Host>(
        &mut self,
        work: &mut Queues,
        seq: u64,
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        let response = self.answers.find(seq)?;
        let range = response.runs.range(seq, response.len())?;
        let first = response.first;
        let at = self.answers.queue.iter().position(|r| r.first == first)?;
        self.build_response(work, at, seq, range, frame, host)
    }

    /// Whether response `seq` can be built again.
    pub(super) fn can_repeat<H: Host>(&self, work: &Queues, seq: u64, host: &H) -> bool {
        match self.answers.find(seq).map(|response| response.answer) {
            Some(Answer::Read {
                rkey, addr, len, ..
            }) if len > 0 => host
                .check_remote(work.via(), rkey, addr, u64::from(len), Remote::Read)
                .is_ok(),
            found => found.is_some(),
        }
    }

    fn build_response<H: Host>(
        &mut self,
        work: &mut Queues,
        at: usize,
        seq: u64,
        (offset, len): (u32, u32),
        frame: &mut impl Frame,
        host: &mut H,
    ) -> Option<SegMeta> {
        let response = self.answers.queue.get(at)?;
        let last = offset + len == response.len();
        let body = frame.put(&response.unit(offset), last, len as usize)?;
        if let Answer::Read { rkey, addr, .. } = response.answer
            && len > 0
        {
            let addr = addr.wrapping_add(u64::from(offset));
            if host.read_remote(work.via(), rkey, addr, body).is_err() {
                self.refuse_late(work, response.request, host);
                return None;
            }
        }
        let first = response.first;
        Some(SegMeta {
            seq,
            first,
            last,
            direct: false,
        })
    }

    /// The memory of a READ that was accepted has gone before its answer was built.
    fn refuse_late<H: Host>(&mut self, work: &mut Queues, request: u64, host: &mut H) {
        self.responder.late_refusal = Some((request, Nak::RemoteAccess));
        self.answers.queue.truncate(self.answers.built);
        if work.attr.state != QpState::Err {
            host.event(work.config.qpn, QpEvent::AccessError);
            work.enter_error(host);
        }
    }
}
