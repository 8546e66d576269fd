//! The reading end of a direction.

use super::record::{PADDING, Ready};
use super::{Corrupt, Side};
use crate::layout as l;
use crate::mem::Region;
use crate::sync::Ordering;

/// Reads records in order. See the module for the protocol.
#[derive(Debug)]
pub struct Consumer {
    mem: Region,
    /// Offset of the records.
    data: usize,
    /// Offset of our `head`.
    head_at: usize,
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
        Consumer {
            mem,
            data: side.other().data(capacity),
            head_at: side.words() + l::HEAD,
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
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Record<'_>>, Corrupt> {
        if self.broken {
            return Err(Corrupt);
        }
        match self.ready_word() {
            0 => Ok(None),
            word => self.record(word).map(Some),
        }
    }

    /// Gives the room of the record that [`Consumer::peek`] showed back to the peer, who is to be
    /// notified of [`super::Attention::ROOM`] at the end of the batch. Without such a record it
    /// does nothing.
    #[inline]
    pub fn consume(&mut self) {
        let Some(size) = self.peeked.take() else {
            return;
        };
        self.head += size as u64;
        self.number += 1;
        self.mem
            .word(self.head_at)
            .store(self.head, Ordering::Release);
        causeway_fault::point("ring.consumed");
    }

    pub(super) fn ack_seen(&self) -> u64 {
        self.ack_seen
    }

    pub(super) fn note_ack(&mut self, ack: u64) {
        self.ack_seen = self.ack_seen.max(ack);
    }

    fn offset(&self) -> usize {
        (self.head & (self.capacity as u64 - 1)) as usize
    }

    #[inline]
    fn ready_word(&self) -> u64 {
        let at = self.data + self.offset() + l::RECORD_READY;
        self.mem.word(at).load(Ordering::Acquire)
    }

    fn record(&mut self, word: u64) -> Result<Record<'_>, Corrupt> {
        let mut ready = self.decode(word)?;
        if ready.kind == PADDING {
            self.head += (self.capacity - self.offset()) as u64;
            self.number += 1;
            // Padding is published with the record it makes room for, which isn't padding.
            ready = self.decode(self.ready_word())?;
            if ready.kind == PADDING {
                return Err(self.poison());
            }
        }
        let at = self.data + self.offset();
        let cell = self.mem.cell(at);
        let seq = cell.word(l::RECORD_SEQ).load(Ordering::Relaxed);
        let ack = cell.word(l::RECORD_ACK).load(Ordering::Relaxed);
        self.ack_seen = self.ack_seen.max(ack);
        let len = ready.len as usize;
        self.peeked = Some(l::record_size(len));
        let at = at + l::RECORD_HEADER;
        Ok(Record {
            kind: ready.kind,
            flags: ready.flags,
            seq,
            ack,
            mem: &self.mem,
            at,
            len,
        })
    }

    fn decode(&mut self, word: u64) -> Result<Ready, Corrupt> {
        let room = self.capacity - self.offset();
        Ready::decode(word, self.number, room, l::max_body(self.capacity))
            .map_err(|_| self.poison())
    }

    fn poison(&mut self) -> Corrupt {
        self.broken = true;
        self.peeked = None;
        Corrupt
    }
}
