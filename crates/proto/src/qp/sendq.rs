//! The send queue: work requests from posting to the polling of their completion.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::plain::{PlainSend, PlainSends};
use crate::types::{SendWr, WcStatus};

/// Segments of equal size that follow each other in one message. The size changes where a message
/// begins in a datagram that it shares with others, or when the path's does: a message nearly
/// always has one run or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub first: u64,
    pub offset: u32,
    pub chunk: u32,
}

/// Where the segments of a message lie in its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Runs(SmallVec<[Run; 2]>);

impl Runs {
    /// Notes that segment `seq` carries up to `chunk` bytes from `offset`.
    #[inline(always)]
    pub fn note(&mut self, seq: u64, offset: u32, chunk: u32) {
        if self.0.last().is_none_or(|run| run.chunk != chunk) {
            self.begin(seq, offset, chunk);
        }
    }

    /// As [`Runs::note`], where the segment does not follow the one before it.
    pub fn begin(&mut self, seq: u64, offset: u32, chunk: u32) {
        self.0.push(Run {
            first: seq,
            offset,
            chunk,
        });
    }

    /// The range of bytes that segment `seq` of a message of `len` bytes carries.
    pub fn range(&self, seq: u64, len: u32) -> Option<(u32, u32)> {
        let at = self
            .0
            .partition_point(|run| run.first <= seq)
            .checked_sub(1)?;
        let run = self.0[at];
        let index = u32::try_from(seq - run.first).ok()?;
        let offset = run.offset.checked_add(index.checked_mul(run.chunk)?)?;
        if offset > len {
            return None;
        }
        Some((offset, run.chunk.min(len - offset)))
    }
}

/// How a work request travels on a link whose peer's memory may be mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Way {
    /// It has not been looked at.
    #[default]
    Unknown,
    /// Directly, once those before it are complete.
    Direct,
    /// As segments.
    Segments,
}

/// A send work request on its way.
#[derive(Debug)]
pub(super) struct SendWqe {
    pub wr: SendWr,
    /// Bytes of its gather list.
    pub len: u32,
    /// Numbers of its segments: `first..end`. `end` is set when the last one is built.
    pub first: u64,
    pub end: Option<u64>,
    /// Bytes built so far.
    pub emitted: u32,
    pub runs: Runs,
    /// Untagged message sequence number of its SEND, immediate data or request.
    pub msn: u32,
    /// READ and atomics: bytes of the answer placed, and whether it is complete.
    pub answered_bytes: u32,
    pub answered: bool,
    /// Set where it has failed; it completes so when it becomes the oldest.
    pub failed: Option<WcStatus>,
    pub way: Way,
    /// The range of its bytes that was placed directly, if any: not sent as segments.
    pub placed: Option<(u32, u32)>,
}

impl SendWqe {
    /// One of `len` bytes that was sent whole as unit `seq`, the message `msn`.
    pub fn sent(wr: SendWr, len: u32, seq: u64, msn: u32) -> SendWqe {
        let mut runs = Runs::default();
        runs.note(seq, 0, len);
        SendWqe {
            wr,
            len,
            first: seq,
            end: Some(seq + 1),
            emitted: len,
            runs,
            msn,
            answered_bytes: 0,
            answered: false,
            failed: None,
            way: Way::Unknown,
            placed: None,
        }
    }
}

/// The send queue. In this order: of two numbers side by side that are counted up together,
/// compilers make one load of twice the width, and such a load waits until the stores that it spans
/// are in the cache.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct SendQueue {
    /// Plain sends that are under way. The others are behind them.
    plain: PlainSends,
    wqes: VecDeque<SendWqe>,
    /// Position of the oldest in the life of the queue.
    base: u64,
    /// Position of the one being built or to be built next.
    pub cursor: u64,
    /// READs and atomics started and not answered.
    pub reads_out: u32,
    /// Work requests that occupy the queue: posted, less those released by polling.
    used: u32,
    /// Unreported work requests since the last completion.
    since_completion: u64,
    /// Next untagged message sequence numbers of queues 0 and 1 (RFC 5040 section 5.1: from 1).
    pub send_msn: u32,
    pub read_msn: u32,
    /// No further work request is started: an earlier one has failed.
    pub halted: bool,
    /// The key that the work request at the cursor has withdrawn, and by which a peer is accessing
    /// memory yet: nothing is started until that has ended.
    pub withdrawing: Option<u32>,
    /// Refusals for want of a receive counted against request number `.0`.
    pub rnr: Option<(u64, u8)>,
    /// All request numbers below are acknowledged.
    pub acked: u64,
}

impl SendQueue {
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Whether no further work request may be started.
    #[inline]
    pub fn is_held(&self) -> bool {
        self.halted || self.withdrawing.is_some()
    }

    pub fn push(&mut self, wr: SendWr, len: u32) {
        self.used += 1;
        self.wqes.push_back(SendWqe {
            wr,
            len,
            first: 0,
            end: None,
            emitted: 0,
            runs: Runs::default(),
            msn: 0,
            answered_bytes: 0,
            answered: false,
            failed: None,
            way: Way::Unknown,
            placed: None,
        });
    }

    /// As pushed behind nothing unsent, and then built: the next message of queue 0, whole in
    /// segment `seq`. [`SendQueue::takes_plain`] has said that it can be.
    #[inline(always)]
    pub fn push_plain(&mut self, send: PlainSend, seq: u64) {
        self.send_msn = self.send_msn.wrapping_add(1);
        self.used += 1;
        self.cursor += 1;
        self.plain.push(send, seq, self.send_msn);
    }

    /// As pushed behind nothing unsent, and then built whole.
    pub fn push_sent(&mut self, wqe: SendWqe) {
        self.used += 1;
        self.cursor += 1;
        self.wqes.push_back(wqe);
    }

    /// Whether a message can be posted and sent at once as segment `seq`, and be plain.
    #[inline(always)]
    pub fn takes_plain(&self, seq: u64) -> bool {
        self.wqes.is_empty() && !self.halted && self.plain.takes(seq)
    }

    /// Removes the oldest plain one, if it is acknowledged.
    #[inline(always)]
    pub fn pop_plain(&mut self) -> Option<PlainSend> {
        let send = self.plain.pop_below(self.acked)?;
        self.popped();
        Some(send)
    }

    /// Makes all of them like others.
    #[cold]
    fn widen(&mut self) {
        let mut wide = VecDeque::with_capacity(self.wqes.len() + self.plain.len() as usize);
        while let Some(wqe) = self.plain.pop_wide() {
            wide.push_back(wqe);
        }
        wide.append(&mut self.wqes);
        self.wqes = wide;
    }

    /// Removes the oldest, complete or flushed. Its completion, if any, is to be noted with
    /// [`SendQueue::completed`].
    pub fn pop(&mut self) -> Option<SendWqe> {
        let wqe = self.plain.pop_wide().or_else(|| self.wqes.pop_front())?;
        self.popped();
        Some(wqe)
    }

    /// As [`SendQueue::pop`] of one that [`SendQueue::front`] has shown and nobody needs.
    #[inline(always)]
    pub fn drop_front(&mut self) {
        if self.wqes.pop_front().is_some() {
            self.popped();
        }
    }

    /// A work request was complete as soon as it was posted, with nothing before it: as if it had
    /// been pushed and popped.
    #[inline(always)]
    pub fn pass(&mut self) {
        self.used += 1;
        self.base += 1;
        self.cursor = self.base;
        self.since_completion += 1;
    }

    /// Whether nothing is posted that is not complete.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.wqes.is_empty() && self.plain.is_empty()
    }

    #[inline(always)]
    fn popped(&mut self) {
        self.base += 1;
        self.cursor = self.cursor.max(self.base);
        self.since_completion += 1;
    }

    /// A completion is queued for the work request just popped. Returns how many places in the
    /// queue are free again once it is polled.
    #[inline(always)]
    pub fn completed(&mut self) -> u32 {
        // Never more than the queue has places.
        std::mem::take(&mut self.since_completion) as u32
    }

    /// A completion was polled that frees so many places.
    #[inline(always)]
    pub fn release(&mut self, places: u32) {
        self.used = self.used.saturating_sub(places);
    }

    /// How many are not completely built yet.
    pub fn unsent(&self) -> u64 {
        self.base + self.plain.len() + self.wqes.len() as u64 - self.cursor
    }

    /// How many are built and not complete.
    pub fn under_way(&self) -> u64 {
        self.cursor - self.base
    }

    /// Length of the one posted last.
    pub fn newest_len(&self) -> u32 {
        let plain = self.plain.newest().map_or(0, |send| send.len);
        self.wqes.back().map_or(plain, |wqe| wqe.len)
    }

    /// Whether the oldest is there, and is not plain.
    #[inline(always)]
    pub fn has_front(&self) -> bool {
        !self.wqes.is_empty() && self.plain.is_empty()
    }

    /// The oldest, if it is not plain.
    pub fn front(&self) -> Option<&SendWqe> {
        self.wqes.front().filter(|_| self.plain.is_empty())
    }

    /// The work request at the cursor.
    pub fn current(&self) -> Option<&SendWqe> {
        self.get(self.cursor)
    }

    /// The one at a position, if it is not plain.
    pub fn get(&self, position: u64) -> Option<&SendWqe> {
        self.wqes.get(self.index(position)?)
    }

    /// As [`SendQueue::get`], to be changed.
    pub fn get_mut(&mut self, position: u64) -> Option<&mut SendWqe> {
        let index = self.index(position)?;
        self.wqes.get_mut(index)
    }

    fn index(&self, position: u64) -> Option<usize> {
        let first = self.base + self.plain.len();
        usize::try_from(position.checked_sub(first)?).ok()
    }

    /// Position of the started work request that the low 32 bits name.
    pub fn position_of(&self, low: u32) -> Option<u64> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the low bits are what is compared"
        )]
        let ahead = low.wrapping_sub(self.base as u32);
        let position = self.base + u64::from(ahead);
        (position <= self.cursor).then_some(position)
    }

    /// Position of the started work request that segment `seq` belongs to, which is not plain any
    /// more then.
    pub fn find(&mut self, seq: u64) -> Option<u64> {
        if self.plain.has(seq) {
            self.widen();
        }
        let first = self.base + self.plain.len();
        let started = usize::try_from(self.cursor - first).ok()?;
        let started = (started + 1).min(self.wqes.len());
        let slice = self.wqes.range(..started);
        // Work requests with segments are in order of `first`; local ones have an empty range.
        let mut low = 0;
        let mut high = slice.len();
        while low < high {
            let mid = usize::midpoint(low, high);
            let wqe = &self.wqes[mid];
            if wqe.end.is_some_and(|end| end <= seq) {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        let wqe = self.wqes.get(low)?;
        let begun = wqe.end.is_some() || wqe.emitted > 0;
        (begun && wqe.first <= seq).then_some(first + low as u64)
    }

    /// Whether the work request at the cursor is the oldest: all before it are complete.
    #[inline]
    pub fn at_front(&self) -> bool {
        self.cursor == self.base
    }

    /// A number that none of the segments sent so far reaches, and that none to be sent is below.
    pub fn sent_before(&self) -> u64 {
        let newest = self.cursor.checked_sub(1).and_then(|at| self.get(at));
        let before = match self.plain.is_empty() {
            true => self.acked,
            false => self.plain.end(),
        };
        newest.and_then(|wqe| wqe.end).unwrap_or(before)
    }

    /// The work request at the cursor, to be changed.
    pub fn current_mut(&mut self) -> Option<&mut SendWqe> {
        self.get_mut(self.cursor)
    }

    /// Position of the oldest, if there is one.
    pub fn position_of_front(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.base)
    }

    /// Whether a started work request is unfinished.
    pub fn in_flight(&self) -> bool {
        self.cursor > self.base
            || self
                .front()
                .is_some_and(|w| w.emitted > 0 && w.end.is_none())
    }

    pub fn reset(&mut self) {
        *self = SendQueue::default();
    }
}
