//! The consumer of one direction of a ring: it reads records.

use super::record::{PADDING, Ready};
use super::{Corrupt, Side};
use crate::layout as l;
use crate::mem::{Cell, Circle, Cursor, Region, Spots};
use crate::sync::{AtomicU64, Ordering};

/// Reads records in order. See the module for the protocol.
#[derive(Debug)]
pub struct Consumer {
    /// At the next record.
    next: Cursor,
    /// Our `head`.
    head_word: Spots<1>,
    capacity: usize,
    /// Bytes consumed since the beginning.
    head: u64,
    /// Records consumed since the beginning.
    number: u64,
    /// Size of the record `peek` showed last.
    peeked: Option<usize>,
    /// Newest acknowledgment the peer gave.
    ack_seen: u64,
    broken: bool,
}

/// A record that has arrived. All but the body is a validated copy; the body lies in the ring until
/// [`Consumer::consume`], and a malicious peer may change it meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// What it is, as the peer's user says.
    pub kind: u8,
    /// Flags, as the peer's user says.
    pub flags: u8,
    /// Sequence number, as the peer's user says.
    pub seq: u64,
    /// What the peer acknowledges with it: every request below is placed, as its user says. To be
    /// taken before the record is delivered.
    pub ack: u64,
    mem: &'a Region,
    at: usize,
    len: usize,
}

/// A record of one cell that has arrived, as [`Record`] is one of any size.
#[derive(Clone, Copy, Debug)]
pub struct ShortRecord<'a> {
    /// See [`Record::seq`].
    pub seq: u64,
    /// See [`Record::ack`].
    pub ack: u64,
    /// Bytes of the body.
    pub len: u32,
    #[cfg_attr(any(loom, shuttle), allow(dead_code, reason = "models copy words"))]
    cell: Cell<'a>,
}

impl ShortRecord<'_> {
    /// As [`Record::as_ptr`].
    #[cfg(not(any(loom, shuttle)))]
    #[inline(always)]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.cell.bytes(l::RECORD_HEADER)
    }
}

/// A record whose body has 8 bytes, as [`Consumer::peek_word`] shows it. What it says is read when
/// it is asked for: ask once.
#[derive(Debug)]
pub struct WordRecord<'a> {
    cell: Cell<'a>,
}

impl WordRecord<'_> {
    /// Its sequence number, as the peer says.
    #[inline(always)]
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.cell.word(l::RECORD_SEQ).load(Ordering::Relaxed)
    }

    /// What the peer acknowledges with it, as it says.
    #[inline(always)]
    #[must_use]
    pub fn ack(&self) -> u64 {
        self.cell.word(l::RECORD_ACK).load(Ordering::Relaxed)
    }

    /// The address of the body, to be accessed by raw copies only: the peer may write to it. Valid
    /// as long as the record is borrowed.
    #[cfg(not(any(loom, shuttle)))]
    #[inline(always)]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.cell.bytes(l::RECORD_HEADER)
    }
}

impl Record<'_> {
    /// Bytes of the body.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the body is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the body, [`Record::len`] bytes long, 8-byte aligned, to be read by raw copies.
    /// Valid as long as the record is borrowed.
    #[cfg(not(any(loom, shuttle)))]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.mem.bytes(self.at, self.len)
    }

    /// Copies the body from `at` on.
    ///
    /// # Panics
    /// If `dst` is longer than what there is.
    pub fn read(&self, at: usize, dst: &mut [u8]) {
        assert!(at <= self.len && dst.len() <= self.len - at);
        self.mem.copy_out(self.at + at, dst);
    }
}

impl Consumer {
    pub(super) fn new(mem: Region, side: Side, capacity: usize) -> Consumer {
        let data = side.other().data(capacity);
        Consumer {
            head_word: Spots::new(&mem, [side.words() + l::HEAD]),
            next: Cursor::new(Circle::new(mem, data, capacity)),
            capacity,
            head: 0,
            number: 0,
            peeked: None,
            ack_seen: 0,
            broken: false,
        }
    }

    /// Whether a record seems to be there. Touches one line, the next record's.
    #[inline]
    #[must_use]
    pub fn ready(&self) -> bool {
        self.broken || self.ready_word() != 0
    }

    /// The next record, if there is one; the same again until it is consumed.
    ///
    /// # Errors
    /// [`Corrupt`] if the peer wrote what is no record, and ever after.
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Option<Record<'_>>, Corrupt> {
        if self.broken {
            return Err(Corrupt);
        }
        match self.ready_word() {
            0 => Ok(None),
            word => self.record(word).map(Some),
        }
    }

    /// Gives the room of the record that [`Consumer::peek`] showed back to the peer, which is to be
    /// notified of [`super::Attention::ROOM`] at the end of the batch. Without such a record it
    /// does nothing.
    #[inline]
    pub fn consume(&mut self) {
        let Some(size) = self.peeked.take() else {
            return;
        };
        self.give_back(size);
    }

    /// The next record, if it has this kind and these flags, and takes one cell. As
    /// [`Consumer::peek`], but nothing is noted: `None` does not say that there is none.
    #[inline(always)]
    #[must_use]
    pub fn peek_short(&self, kind: u8, flags: u8) -> Option<ShortRecord<'_>> {
        let cell = self.next.cell();
        let word = cell.word(l::RECORD_READY).load(Ordering::Acquire);
        // Of such a record without a body; a body's length is what is added to that.
        let empty = Ready {
            len: 0,
            kind,
            flags,
        };
        let len = word.wrapping_sub(empty.encode(self.number));
        if len > l::SHORT_BODY as u64 || self.broken {
            return None;
        }
        Some(ShortRecord {
            seq: cell.word(l::RECORD_SEQ).load(Ordering::Relaxed),
            ack: cell.word(l::RECORD_ACK).load(Ordering::Relaxed),
            len: len as u32,
            cell,
        })
    }

    /// As [`Consumer::peek_short`], of a record whose body has 8 bytes: all but its sequence number
    /// and acknowledgment is one comparison.
    #[inline(always)]
    #[must_use]
    pub fn peek_word(&self, kind: u8, flags: u8) -> Option<WordRecord<'_>> {
        let cell = self.next.cell();
        let word = cell.word(l::RECORD_READY).load(Ordering::Acquire);
        let due = Ready {
            len: size_of::<u64>() as u32,
            kind,
            flags,
        };
        match word == due.encode(self.number) && !self.broken {
            true => Some(WordRecord { cell }),
            false => None,
        }
    }

    /// As [`Consumer::consume`], of the record that [`Consumer::peek_short`] showed, with what it
    /// acknowledges.
    #[inline(always)]
    pub fn consume_short(&mut self, ack: u64) {
        self.note_ack(ack);
        self.consume_short_alone();
    }

    /// As [`Consumer::consume_short`], of a record whose acknowledgment is no news, or has been
    /// noted ([`super::Ring::note_req_ack`]).
    #[inline(always)]
    pub fn consume_short_alone(&mut self) {
        self.peeked = None;
        self.give_back(l::CELL);
    }

    /// The next record, if it has this kind and these flags, and takes more than one cell. As
    /// [`Consumer::peek`], but nothing is noted: `None` does not say that there is none.
    #[inline(always)]
    #[must_use]
    pub fn peek_long(&self, kind: u8, flags: u8) -> Option<Record<'_>> {
        let cell = self.next.cell();
        let word = cell.word(l::RECORD_READY).load(Ordering::Acquire);
        let ready = Ready {
            len: word as u32,
            kind,
            flags,
        };
        let (len, room) = (ready.len as usize, self.capacity - self.offset());
        let long = len > l::SHORT_BODY && len <= l::max_body(self.capacity);
        let due = word == ready.encode(self.number) && !self.broken;
        if !due || !long || l::record_size(len) > room {
            return None;
        }
        Some(Record {
            kind,
            flags,
            seq: cell.word(l::RECORD_SEQ).load(Ordering::Relaxed),
            ack: cell.word(l::RECORD_ACK).load(Ordering::Relaxed),
            mem: self.next.mem(),
            at: self.next.offset(self.head) + l::RECORD_HEADER,
            len,
        })
    }

    /// As [`Consumer::consume`], of the record of `len` bytes that [`Consumer::peek_long`] showed,
    /// with what it acknowledges.
    #[inline(always)]
    pub fn consume_long(&mut self, ack: u64, len: usize) {
        self.note_ack(ack);
        self.peeked = None;
        self.give_back(l::record_size(len));
    }

    #[inline(always)]
    fn give_back(&mut self, size: usize) {
        self.advance(size);
        self.head_word.word(0).store(self.head, Ordering::Release);
        causeway_fault::point("ring.consumed");
    }

    pub(super) fn ack_seen(&self) -> u64 {
        self.ack_seen
    }

    #[inline(always)]
    pub(super) fn note_ack(&mut self, ack: u64) {
        self.ack_seen = self.ack_seen.max(ack);
    }

    fn offset(&self) -> usize {
        (self.head & (self.capacity as u64 - 1)) as usize
    }

    #[inline(always)]
    fn ready_word(&self) -> u64 {
        self.next_ready_word().load(Ordering::Acquire)
    }

    /// The ready word of the next record.
    #[inline(always)]
    pub(super) fn next_ready_word(&self) -> &AtomicU64 {
        self.next.cell().word(l::RECORD_READY)
    }

    /// Goes past a record of `size` bytes.
    #[inline(always)]
    fn advance(&mut self, size: usize) {
        self.head += size as u64;
        self.number += 1;
        self.next.go_to(self.head);
    }

    #[inline(always)]
    fn record(&mut self, word: u64) -> Result<Record<'_>, Corrupt> {
        let mut ready = self.decode(word)?;
        if ready.kind == PADDING {
            self.advance(self.capacity - self.offset());
            // Padding is published with the record it makes room for, which isn't padding.
            ready = self.decode(self.ready_word())?;
            if ready.kind == PADDING {
                return Err(self.poison());
            }
        }
        let cell = self.next.cell();
        let seq = cell.word(l::RECORD_SEQ).load(Ordering::Relaxed);
        let ack = cell.word(l::RECORD_ACK).load(Ordering::Relaxed);
        self.ack_seen = self.ack_seen.max(ack);
        let len = ready.len as usize;
        self.peeked = Some(l::record_size(len));
        let at = self.next.offset(self.head) + l::RECORD_HEADER;
        Ok(Record {
            kind: ready.kind,
            flags: ready.flags,
            seq,
            ack,
            mem: self.next.mem(),
            at,
            len,
        })
    }

    #[inline(always)]
    fn decode(&mut self, word: u64) -> Result<Ready, Corrupt> {
        let room = self.capacity - self.offset();
        Ready::decode(word, self.number, room, l::max_body(self.capacity))
            .map_err(|_| self.poison())
    }

    #[cold]
    fn poison(&mut self) -> Corrupt {
        self.broken = true;
        self.peeked = None;
        Corrupt
    }
}
