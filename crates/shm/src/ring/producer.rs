//! The producer of one direction of a ring: it writes records.

use super::record::{PADDING, Ready};
use super::{Corrupt, Side};
use crate::layout as l;
use crate::mem::{Circle, Region};
use crate::sync::Ordering;

/// Offset in the circle from which short records go back to its beginning: queue pairs that
/// exchange nothing else touch no more of the ring.
const LAP: usize = if cfg!(any(loom, shuttle)) {
    usize::MAX
} else {
    64 << 10
};
/// Largest record that is short in this sense.
const LAP_RECORD: usize = 1024;
/// Bytes after which that is tried again, where the reader is far behind.
const LAP_STEP: u64 = 4096;

/// A position that no record has.
const NOWHERE: u64 = u64::MAX;

/// Writes records. See the module for the protocol.
#[derive(Debug)]
pub struct Producer {
    mem: Region,
    /// The records.
    circle: Circle,
    /// Offset of the reader's `head`.
    head_at: usize,
    capacity: usize,
    /// Bytes written since the beginning, published or not.
    tail: u64,
    /// The reader's `head` when last read.
    head_seen: u64,
    /// Records written since the beginning.
    number: u64,
    /// A position where a ready word has been zeroed beforehand, and nothing written since;
    /// [`NOWHERE`] if there is none.
    zeroed: u64,
    /// A tail below this has room for a record of one cell, and nothing else to be looked at.
    short_below: u64,
    /// The next record goes to the beginning of the circle, wherever the tail is.
    lapping: bool,
    /// Where that was tried last, in steps.
    lap_tried: u64,
    /// Offset and value of the ready word that publishes the batch.
    first: Option<(usize, u64)>,
    /// Acknowledgment the next record carries, and that of the last one written, and published.
    ack: u64,
    ack_written: u64,
    ack_published: u64,
    broken: bool,
}

/// Room for a record. Dropped without [`Slot::commit`], it leaves no trace.
#[derive(Debug)]
pub struct Slot<'a> {
    producer: &'a mut Producer,
    /// Bytes to skip first.
    padding: usize,
    len: usize,
}

/// Room for a record of one cell. Dropped without [`ShortSlot::publish`], it leaves no trace.
#[derive(Debug)]
pub struct ShortSlot<'a>(&'a mut Producer);

impl Producer {
    pub(super) fn new(mem: Region, side: Side, capacity: usize) -> Producer {
        Producer {
            circle: Circle::new(mem.clone(), side.data(capacity), capacity),
            mem,
            head_at: side.other().words() + l::HEAD,
            capacity,
            tail: 0,
            head_seen: 0,
            number: 0,
            zeroed: NOWHERE,
            short_below: 0,
            lapping: false,
            lap_tried: 0,
            first: None,
            ack: 0,
            ack_written: 0,
            ack_published: 0,
            broken: false,
        }
    }

    /// Largest body of a record.
    #[must_use]
    pub fn max_body(&self) -> usize {
        l::max_body(self.capacity)
    }

    /// Room for a record whose body has at most `max` bytes; what is there may be less, but never
    /// less than `min` (both are cut to [`Producer::max_body`]). `None`: not now, the reader must
    /// consume first. A record of `min` always fits into an empty ring.
    ///
    /// # Errors
    /// [`Corrupt`] if the reader's index makes no sense, now or earlier.
    pub fn reserve(&mut self, min: usize, max: usize) -> Result<Option<Slot<'_>>, Corrupt> {
        let max = max.max(min).min(self.max_body());
        let min = min.min(max);
        if self.broken {
            return Err(Corrupt);
        }
        if l::record_size(max) <= LAP_RECORD {
            self.check_lap()?;
        }
        // The line with the reader's index moves only if the copy of it says that the room is
        // short.
        if self.room() < self.skip(min) + l::record_size(max) {
            self.refresh()?;
        }
        let padding = self.skip(min);
        let room = self.room().saturating_sub(padding);
        if room < l::record_size(min) {
            return Ok(None);
        }
        let to_end = if padding > 0 {
            self.capacity
        } else {
            self.to_end()
        };
        let len = (room.min(to_end) - l::RECORD_HEADER).min(max);
        if l::record_size(len) > l::CELL {
            // Bytes may be written there, whatever is committed in the end.
            self.zeroed = NOWHERE;
        }
        Ok(Some(Slot {
            producer: self,
            padding,
            len,
        }))
    }

    /// Bytes of records written since the beginning.
    #[cfg(not(any(loom, shuttle)))]
    pub(super) fn written(&self) -> u64 {
        self.tail
    }

    /// Bytes of the circle.
    #[cfg(not(any(loom, shuttle)))]
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Makes everything committed visible to the reader. Returns false if there was nothing; else
    /// the reader must be notified of [`super::Attention::DATA`].
    pub fn publish(&mut self) -> bool {
        let Some((at, ready)) = self.first.take() else {
            return false;
        };
        causeway_fault::point("ring.written");
        self.mem.word(at).store(ready, Ordering::Release);
        causeway_fault::point("ring.published");
        self.ack_published = self.ack_written;
        self.zero_ahead(l::CELL);
        true
    }

    /// A record of `size` bytes is likely to follow. Zero behind it now: before its ready word,
    /// that store would wait for a line that the reader's processor may have fetched ahead.
    #[inline(always)]
    fn zero_ahead(&mut self, size: usize) {
        if self.room() >= size {
            self.zero_behind(size);
        }
    }

    /// As [`Producer::zero_ahead`], where there is room for that record.
    #[inline(always)]
    fn zero_behind(&mut self, size: usize) {
        let next = self.tail + size as u64;
        self.zero(next);
        self.zeroed = next;
    }

    /// Room for a record of one cell, to be written and published in one go. `None`: not now, or
    /// not before what is committed is published.
    ///
    /// # Errors
    /// As [`Producer::reserve`].
    #[inline(always)]
    pub fn reserve_short(&mut self) -> Result<Option<ShortSlot<'_>>, Corrupt> {
        if self.tail < self.short_below || self.look_for_short()? {
            return Ok(Some(ShortSlot(self)));
        }
        Ok(None)
    }

    /// As [`Producer::reserve_short`], if it is known already that there is room. Calls nothing.
    #[inline(always)]
    #[must_use]
    pub fn reserve_short_at_once(&mut self) -> Option<ShortSlot<'_>> {
        match self.tail < self.short_below {
            true => Some(ShortSlot(self)),
            false => None,
        }
    }

    /// Whether there is room for a record of one cell now. Notes up to where that is known.
    #[cold]
    #[inline(never)]
    fn look_for_short(&mut self) -> Result<bool, Corrupt> {
        if self.broken {
            return Err(Corrupt);
        }
        self.check_lap()?;
        if self.room() < l::CELL {
            self.refresh()?;
        }
        if self.lapping || self.first.is_some() || self.room() < l::CELL {
            return Ok(false);
        }
        let full = self.tail + (self.room() - l::CELL) as u64;
        let offset = self.offset(self.tail);
        // Where the circle may begin again, and may be tried to.
        let lap = match offset < LAP {
            true => self.tail.saturating_add((LAP - offset) as u64),
            false => (self.tail / LAP_STEP + 1) * LAP_STEP,
        };
        self.short_below = lap.min(full + 1);
        Ok(true)
    }

    /// As [`Producer::reserve`] of `len` bytes, for a record that is to be published by itself
    /// ([`Slot::publish`]). `None` where that is to look: what is committed is not published, the
    /// circle begins again, or the reader's index as last read leaves too little room.
    #[inline(always)]
    pub fn reserve_alone(&mut self, len: usize) -> Option<Slot<'_>> {
        let size = l::record_size(len);
        let offset = self.offset(self.tail);
        let open = !self.broken && !self.lapping && self.first.is_none() && offset < LAP;
        let fits = len <= self.max_body() && size <= self.capacity - offset && size <= self.room();
        if !open || !fits {
            return None;
        }
        // Bytes may be written before it, whether or not the record is published.
        if self.zeroed < self.tail + size as u64 {
            self.zeroed = NOWHERE;
        }
        Some(Slot {
            producer: self,
            padding: 0,
            len,
        })
    }

    /// Whether there are records committed but not published.
    #[must_use]
    pub fn unpublished(&self) -> bool {
        self.first.is_some()
    }

    pub(super) fn set_ack(&mut self, ack: u64) {
        self.ack = self.ack.max(ack);
    }

    pub(super) fn ack(&self) -> u64 {
        self.ack
    }

    pub(super) fn ack_published(&self) -> u64 {
        self.ack_published
    }

    /// Whether the reader has consumed something since its index was last read.
    pub(super) fn room_grew(&mut self) -> Result<bool, Corrupt> {
        let before = self.head_seen;
        self.refresh()?;
        Ok(self.head_seen != before)
    }

    /// Bytes that may be written, not counting the cell that is kept free.
    fn room(&self) -> usize {
        // `refresh` admits no head that makes this negative or larger than the capacity.
        self.capacity - l::CELL - (self.tail - self.head_seen) as usize
    }

    fn to_end(&self) -> usize {
        self.capacity - self.offset(self.tail)
    }

    /// Bytes to skip so that a body of `min` bytes is in one piece.
    fn skip(&self, min: usize) -> usize {
        if self.lapping || self.to_end() < l::record_size(min) {
            self.to_end()
        } else {
            0
        }
    }

    /// Before a short record: far enough into the circle it begins again.
    #[inline(always)]
    fn check_lap(&mut self) -> Result<(), Corrupt> {
        let beyond = self.offset(self.tail) >= LAP;
        if beyond && !self.lapping && self.tail / LAP_STEP != self.lap_tried {
            self.try_lap()?;
        }
        Ok(())
    }

    #[cold]
    fn try_lap(&mut self) -> Result<(), Corrupt> {
        self.lap_tried = self.tail / LAP_STEP;
        self.refresh()?;
        self.lapping = self.room() >= self.to_end() + LAP_RECORD;
        self.short_below = 0;
        Ok(())
    }

    fn refresh(&mut self) -> Result<(), Corrupt> {
        let head = self.mem.word(self.head_at).load(Ordering::Acquire);
        // Nothing beyond what was published can have been consumed. Where a batch is open, its
        // start would be the exact bound; the tail is enough for the arithmetic above.
        let sane =
            head >= self.head_seen && head <= self.tail && head.is_multiple_of(l::CELL as u64);
        if !sane {
            self.broken = true;
            self.short_below = 0;
            return Err(Corrupt);
        }
        self.head_seen = head;
        Ok(())
    }

    /// Offset in the circle of a position.
    fn offset(&self, position: u64) -> usize {
        (position & (self.capacity as u64 - 1)) as usize
    }

    #[inline(always)]
    fn zero(&self, position: u64) {
        let ready = self.circle.cell(position).word(l::RECORD_READY);
        ready.store(0, Ordering::Relaxed);
    }

    /// Writes the header at the tail and goes past the record.
    fn append(&mut self, ready: Ready, seq: u64, size: usize) {
        let at = self.circle.offset(self.tail);
        let word = ready.encode(self.number);
        self.mem
            .word(at + l::RECORD_SEQ)
            .store(seq, Ordering::Relaxed);
        self.mem
            .word(at + l::RECORD_ACK)
            .store(self.ack, Ordering::Relaxed);
        if self.first.is_none() {
            self.first = Some((at + l::RECORD_READY, word));
            self.short_below = 0;
        } else {
            self.mem
                .word(at + l::RECORD_READY)
                .store(word, Ordering::Relaxed);
        }
        self.ack_written = self.ack;
        self.number += 1;
        self.tail += size as u64;
    }
}

impl Slot<'_> {
    #[inline(always)]
    fn at(&self) -> usize {
        let p = &self.producer;
        p.circle.offset(p.tail + self.padding as u64) + l::RECORD_HEADER
    }

    /// Bytes there are for the body.
    #[must_use]
    #[allow(
        clippy::len_without_is_empty,
        reason = "room for zero bytes is still a slot"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Address of the body, [`Slot::len`] bytes long, 8-byte aligned, to be written by raw copies:
    /// the peer has it mapped. Valid until the slot is committed or dropped.
    #[cfg(not(any(loom, shuttle)))]
    #[inline(always)]
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.producer.mem.bytes(self.at(), self.len)
    }

    /// Copies `src` into the body at `at`.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn write(&mut self, at: usize, src: &[u8]) {
        assert!(at <= self.len && src.len() <= self.len - at);
        self.producer.mem.copy_in(self.at() + at, src);
    }

    /// Turns the first `len` bytes of the body into a record that [`Producer::publish`] will show
    /// to the reader. `kind` is at most [`super::KIND_MAX`].
    ///
    /// # Panics
    /// If `len` is more than the slot has.
    pub fn commit(self, kind: u8, flags: u8, seq: u64, len: usize) {
        assert!(len <= self.len && kind <= super::KIND_MAX);
        let p = self.producer;
        if self.padding > 0 {
            p.lapping = false;
            let len = (self.padding - l::RECORD_HEADER) as u32;
            p.append(
                Ready {
                    len,
                    kind: PADDING,
                    flags: 0,
                },
                0,
                self.padding,
            );
        }
        p.append(
            Ready {
                len: len as u32,
                kind,
                flags,
            },
            seq,
            l::record_size(len),
        );
        if p.zeroed != p.tail {
            p.zero(p.tail);
        }
    }

    /// Turns the whole body into a record, and shows it to the reader with all that is committed
    /// before it. The reader must be notified of [`super::Attention::DATA`]. `kind` is at most
    /// [`super::KIND_MAX`].
    ///
    /// # Panics
    /// If `kind` is not.
    #[inline(always)]
    pub fn publish(self, kind: u8, flags: u8, seq: u64) {
        assert!(kind <= super::KIND_MAX);
        let len = self.len;
        if self.padding > 0 || self.producer.first.is_some() {
            return self.publish_all(kind, flags, seq);
        }
        let (p, size) = (self.producer, l::record_size(len));
        let ready = Ready {
            len: len as u32,
            kind,
            flags,
        };
        let cell = p.circle.cell(p.tail);
        cell.word(l::RECORD_SEQ).store(seq, Ordering::Relaxed);
        cell.word(l::RECORD_ACK).store(p.ack, Ordering::Relaxed);
        let ready = ready.encode(p.number);
        p.number += 1;
        p.tail += size as u64;
        if p.zeroed != p.tail {
            p.zero(p.tail);
        }
        causeway_fault::point("ring.written");
        cell.word(l::RECORD_READY).store(ready, Ordering::Release);
        causeway_fault::point("ring.published");
        (p.ack_written, p.ack_published) = (p.ack, p.ack);
        p.zero_ahead(size);
    }

    /// As [`Slot::publish`], where something comes before the record.
    #[cold]
    #[inline(never)]
    fn publish_all(self, kind: u8, flags: u8, seq: u64) {
        let Slot {
            producer,
            padding,
            len,
        } = self;
        let slot = Slot {
            producer: &mut *producer,
            padding,
            len,
        };
        slot.commit(kind, flags, seq, len);
        producer.publish();
    }
}

impl ShortSlot<'_> {
    /// Writes the record and shows it to the reader, which must be notified of
    /// [`super::Attention::DATA`]. Its body is the first `len` bytes of `body`, as they would stand
    /// in memory, of which there are no more than [`l::SHORT_BODY`]. `kind` is at most
    /// [`super::KIND_MAX`].
    ///
    /// # Panics
    /// If `len` is more than `body` has.
    #[inline(always)]
    pub fn publish<const N: usize>(
        self,
        kind: u8,
        flags: u8,
        seq: u64,
        body: [u64; N],
        len: usize,
    ) {
        const { assert!(N <= l::SHORT_WORDS) };
        assert!(len <= 8 * N && kind <= super::KIND_MAX);
        let p = self.0;
        let ready = Ready {
            len: len as u32,
            kind,
            flags,
        };
        let cell = p.circle.cell(p.tail);
        cell.word(l::RECORD_SEQ).store(seq, Ordering::Relaxed);
        cell.word(l::RECORD_ACK).store(p.ack, Ordering::Relaxed);
        for (i, word) in body.into_iter().enumerate() {
            let at = l::RECORD_HEADER + 8 * i;
            cell.word(at).store(word, Ordering::Relaxed);
        }
        (p.ack_written, p.ack_published) = (p.ack, p.ack);
        p.tail += l::CELL as u64;
        if p.zeroed != p.tail {
            p.zero(p.tail);
        }
        let ready = ready.encode(p.number);
        p.number += 1;
        causeway_fault::point("short.written");
        cell.word(l::RECORD_READY).store(ready, Ordering::Release);
        causeway_fault::point("short.published");
        // Below that mark there is room, as far as the reader's index was known when it was set.
        if p.tail < p.short_below {
            p.zero_behind(l::CELL);
        }
    }
}
