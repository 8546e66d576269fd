//! The send queue: work requests from posting to the polling of their completion.

use std::collections::VecDeque;

use super::Part;
use super::plain::{PlainSend, PlainSends};
use crate::types::{SendWr, WcStatus};

/// A send work request on its way.
#[derive(Debug)]
pub struct Entry<P> {
    pub wr: SendWr,
    /// Bytes of its gather list.
    pub len: u32,
    /// Set where it has failed; it completes so when it becomes the oldest.
    pub failed: Option<WcStatus>,
    /// What the transport keeps with it.
    pub part: P,
}

/// The send queue. In this order: of two numbers side by side that are counted up together,
/// compilers make one load of twice the width, and such a load waits until the stores that it spans
/// are in the cache.
#[derive(Debug)]
#[repr(C)]
pub struct SendQueue<P> {
    /// Plain sends that are under way. The others are behind them.
    plain: PlainSends,
    wqes: VecDeque<Entry<P>>,
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
    /// No further work request is started: an earlier one has failed.
    pub halted: bool,
    /// The key that the work request at the cursor has withdrawn, and by which a peer is accessing
    /// memory yet: nothing is started until that has ended.
    pub withdrawing: Option<u32>,
    /// Position of the first that a limit has not let through, and that is not started;
    /// [`UNLIMITED`] where none is set.
    pub paid: u64,
}

/// All that is posted may start.
pub const UNLIMITED: u64 = u64::MAX;

impl<P> Default for SendQueue<P> {
    fn default() -> Self {
        SendQueue {
            plain: PlainSends::default(),
            wqes: VecDeque::new(),
            base: 0,
            cursor: 0,
            reads_out: 0,
            used: 0,
            since_completion: 0,
            halted: false,
            withdrawing: None,
            paid: UNLIMITED,
        }
    }
}

impl<P: Part> SendQueue<P> {
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Whether no further work request may be started, limits aside.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        self.halted || self.withdrawing.is_some()
    }

    /// Whether the work request at the cursor may not be started.
    #[inline]
    pub fn is_held(&self) -> bool {
        self.is_stopped() || self.cursor >= self.paid
    }

    pub fn push(&mut self, wr: SendWr, len: u32) {
        self.used += 1;
        self.wqes.push_back(Entry {
            wr,
            len,
            failed: None,
            part: P::default(),
        });
    }

    /// As pushed behind nothing unsent, and then sent whole, with number `number`.
    /// [`SendQueue::takes_plain`] has said that it can be.
    #[inline(always)]
    pub fn push_plain(&mut self, send: PlainSend, number: u64) {
        self.used += 1;
        self.cursor += 1;
        self.plain.push(send, number);
    }

    /// As [`SendQueue::push_plain`], where [`SendQueue::has_plain_place`]. Calls nothing.
    #[inline(always)]
    pub fn put_plain(&mut self, send: PlainSend, number: u64) {
        self.used += 1;
        self.cursor += 1;
        self.plain.put(send, number);
    }

    /// Whether there is a place for another plain one already.
    #[inline(always)]
    pub fn has_plain_place(&self) -> bool {
        self.plain.has_place()
    }

    /// As pushed behind nothing unsent, and then sent whole.
    pub fn push_sent(&mut self, wqe: Entry<P>) {
        self.used += 1;
        self.cursor += 1;
        self.wqes.push_back(wqe);
    }

    /// Whether a message can be posted and sent at once with number `number`, and be plain.
    #[inline(always)]
    pub fn takes_plain(&self, number: u64) -> bool {
        self.wqes.is_empty() && !self.halted && self.plain.takes(number)
    }

    /// Removes the oldest plain one, if its number is below `done`.
    #[inline(always)]
    pub fn pop_plain(&mut self, done: u64) -> Option<PlainSend> {
        let send = self.plain.pop_below(done)?;
        self.popped();
        Some(send)
    }

    /// The oldest, if it is plain, its number is the only one below `done`, and nothing but plain
    /// ones is posted.
    #[inline(always)]
    pub fn only_below(&self, done: u64) -> Option<&PlainSend> {
        match self.wqes.is_empty() {
            true => self.plain.only_below(done),
            false => None,
        }
    }

    /// Removes the one that [`SendQueue::only_below`] has shown, whose completion is given to the
    /// program at once: its place is free, and those of the ones before it without a completion.
    #[inline(always)]
    pub fn drop_polled(&mut self) {
        self.plain.drop_first();
        self.base += 1;
        debug_assert!(self.cursor >= self.base, "plain ones are sent");
        let places = std::mem::take(&mut self.since_completion) as u32 + 1;
        debug_assert!(self.used >= places, "each has a place");
        self.used = self.used.wrapping_sub(places);
    }

    /// Makes all plain ones like others, if `number` is that of one of them. `part` is what the
    /// transport keeps with one of a number and a length.
    #[inline]
    pub fn widen_at(&mut self, number: u64, part: impl Fn(u64, u32) -> P) {
        if self.plain.has(number) {
            self.widen(part);
        }
    }

    #[cold]
    fn widen(&mut self, part: impl Fn(u64, u32) -> P) {
        let mut wide = VecDeque::with_capacity(self.wqes.len() + self.plain.len() as usize);
        while let Some((number, send)) = self.plain.pop() {
            let part = part(number, send.len);
            wide.push_back(send.widen(part));
        }
        wide.append(&mut self.wqes);
        self.wqes = wide;
    }

    /// Removes the oldest, complete or flushed. Its completion, if any, is to be noted with
    /// [`SendQueue::completed`].
    pub fn pop(&mut self) -> Option<Entry<P>> {
        let wqe = match self.plain.pop() {
            Some((_, send)) => send.widen(P::default()),
            None => self.wqes.pop_front()?,
        };
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

    /// A work request was complete as soon as it was posted, with nothing before it. It has no
    /// position: nothing asks for one that was never queued.
    #[inline(always)]
    pub fn pass(&mut self) {
        debug_assert!(
            self.is_empty(),
            "it would overtake one that was posted before"
        );
        self.used += 1;
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

    /// Whether any is not completely built yet. Plain ones are sent as they are posted.
    #[inline(always)]
    pub fn has_unsent(&self) -> bool {
        !self.wqes.is_empty() && self.unsent() > 0
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
    pub fn front(&self) -> Option<&Entry<P>> {
        self.wqes.front().filter(|_| self.plain.is_empty())
    }

    /// The work request at the cursor.
    pub fn current(&self) -> Option<&Entry<P>> {
        self.get(self.cursor)
    }

    /// The one at a position, if it is not plain.
    pub fn get(&self, position: u64) -> Option<&Entry<P>> {
        self.wqes.get(self.index(position)?)
    }

    /// As [`SendQueue::get`], to be changed.
    pub fn get_mut(&mut self, position: u64) -> Option<&mut Entry<P>> {
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

    /// The first started work request, of those that are not plain, that `is_before` is not true
    /// of, and its position. It is true of all up to one of them.
    pub fn find(&self, is_before: impl Fn(&Entry<P>) -> bool) -> Option<(u64, &Entry<P>)> {
        let first = self.base + self.plain.len();
        let started = usize::try_from(self.cursor - first).ok()?;
        let started = (started + 1).min(self.wqes.len());
        let mut low = 0;
        let mut high = started;
        while low < high {
            let mid = usize::midpoint(low, high);
            if is_before(&self.wqes[mid]) {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        let wqe = self.wqes.get(low)?;
        wqe.part.is_begun().then_some((first + low as u64, wqe))
    }

    /// Whether the work request at the cursor is the oldest: all before it are complete.
    #[inline]
    pub fn at_front(&self) -> bool {
        self.cursor == self.base
    }

    /// The one before the work request at the cursor, if it is not plain or complete.
    pub fn before_cursor(&self) -> Option<&Entry<P>> {
        self.get(self.cursor.checked_sub(1)?)
    }

    /// The number behind that of the newest plain one, if there are any.
    pub fn plain_end(&self) -> Option<u64> {
        (!self.plain.is_empty()).then(|| self.plain.end())
    }

    /// The work request at the cursor, to be changed.
    pub fn current_mut(&mut self) -> Option<&mut Entry<P>> {
        self.get_mut(self.cursor)
    }

    /// Position of the oldest, if there is one.
    pub fn position_of_front(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.base)
    }

    /// Whether a started work request is unfinished.
    pub fn in_flight(&self) -> bool {
        self.cursor > self.base || self.front().is_some_and(|wqe| wqe.part.is_begun())
    }

    pub fn reset(&mut self) {
        *self = SendQueue::default();
    }
}
