//! The ring of records of `causeway trace`: processes that are traced write, the tool reads.
//!
//! It is one segment, which the tool makes and the broker hands on. Any number of threads of any
//! number of processes put records in: each claims a slot by a compare-and-swap, fills it, and
//! publishes it by another. Nobody ever waits: where the ring is full the record is lost, and
//! counted. A writer that is killed between its two steps leaves a slot that is claimed and never
//! published; the tool skips it after a while ([`TraceReader::skip`]).
//!
//! Each slot begins with a word that says whose turn it is: twice the lap for a writer, one more
//! for the reader. Zeros are an empty ring. The reader believes none of what the slots say: lengths
//! are checked, and a ring that makes no sense costs its user the trace.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::layout::PAGE;
use crate::mem::Region;
use crate::segment::{Segment, SegmentError};
use crate::sync::Ordering;

/// Bytes of the whole segment.
pub const TRACE_BYTES: usize = PAGE + SLOTS_BYTES;
/// Bytes of the slots.
const SLOTS_BYTES: usize = 32 << 20;
/// Bytes of a slot: least, for headers alone, and most.
pub const TRACE_SLOT_MIN: usize = 512;
/// See [`TRACE_SLOT_MIN`].
pub const TRACE_SLOT_MAX: usize = 16 << 10;
const _: () = assert!(TRACE_SLOT_MAX < 1 << 16);
/// Bytes of a slot before those of the packet.
pub const TRACE_SLOT_HEADER: usize = 64;
/// Most bytes of headers that a datagram has before its payload.
pub const TRACE_HEADERS: usize = TRACE_SLOT_MIN - TRACE_SLOT_HEADER;
/// Most bytes of payload that can be recorded.
pub const TRACE_PAYLOAD_MAX: usize = TRACE_SLOT_MAX - TRACE_SLOT_HEADER - TRACE_HEADERS;
/// First word of the segment: name and version of this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"CWTRACE1");
/// Where the size of a slot stands, the number of slots claimed, and the counts of lost records.
const SLOT_BYTES_AT: usize = 8;
const TAIL_AT: usize = 64;
const LOST_AT: usize = 128;
/// Times that a writer tries to claim a slot while others are quicker.
const CLAIMS_MAX: usize = 64;

/// The way that a packet took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Way {
    /// Copied to or from the peer's memory.
    Direct = 0,
    /// By a ring in shared memory.
    Ring = 1,
    /// A datagram.
    Udp = 2,
}

impl Way {
    /// All of them, by their numbers.
    pub const ALL: [Way; 3] = [Way::Direct, Way::Ring, Way::Udp];

    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::Ring => "ring",
            Way::Udp => "udp",
        }
    }
}

/// What is recorded of a packet beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// When, in nanoseconds since 1970.
    pub time: u64,
    /// The way it took.
    pub way: Way,
    /// The process has sent it, and not received.
    pub outbound: bool,
    /// Bytes of the whole datagram.
    pub original: u32,
    /// The process, as it knows itself.
    pub pid: u32,
    /// Sender: address as IPv6, and port.
    pub src: ([u8; 16], u16),
    /// Receiver.
    pub dst: ([u8; 16], u16),
}

/// Where the parts of a ring are.
#[derive(Debug)]
struct Slots {
    mem: Region,
    slot_bytes: usize,
    /// Number of slots, a power of two, and its logarithm.
    count: u64,
    shift: u32,
}

impl Slots {
    fn new(mem: Region, slot_bytes: usize) -> Option<Slots> {
        let range = TRACE_SLOT_MIN..=TRACE_SLOT_MAX;
        if !slot_bytes.is_power_of_two() || !range.contains(&slot_bytes) {
            return None;
        }
        let count = (SLOTS_BYTES / slot_bytes) as u64;
        Some(Slots {
            mem,
            slot_bytes,
            count,
            shift: count.trailing_zeros(),
        })
    }

    /// Where the slot of a position is, and the word by which a writer finds it free.
    fn at(&self, position: u64) -> (usize, u64) {
        let index = (position & (self.count - 1)) as usize;
        (PAGE + index * self.slot_bytes, (position >> self.shift) * 2)
    }

    fn room(&self) -> usize {
        self.slot_bytes - TRACE_SLOT_HEADER
    }
}

/// The writers' end.
#[derive(Debug)]
pub struct TraceWriter(Slots);

impl TraceWriter {
    /// Maps a ring that another process has made.
    ///
    /// # Errors
    /// [`SegmentError`] if it is none.
    pub fn open(fd: OwnedFd) -> Result<TraceWriter, SegmentError> {
        let mem = Region::new(Arc::new(Segment::map(fd, TRACE_BYTES)?));
        let slot_bytes = mem.word(SLOT_BYTES_AT).load(Ordering::Acquire);
        let known = mem.word(0).load(Ordering::Acquire) == MAGIC;
        usize::try_from(slot_bytes)
            .ok()
            .filter(|_| known)
            .and_then(|bytes| Slots::new(mem, bytes))
            .map(TraceWriter)
            .ok_or(SegmentError::Format)
    }

    /// Bytes of a packet that are kept; what is longer is cut.
    #[must_use]
    pub fn room(&self) -> usize {
        self.0.room()
    }

    /// Puts in a packet, of which `bytes` are kept as far as there is room. Returns false if it is
    /// lost, since the ring is full.
    pub fn push(&self, record: &TraceRecord, bytes: &[u8]) -> bool {
        let Some((at, turn)) = self.claim() else {
            let lost = self.0.mem.word(LOST_AT + 8 * record.way as usize);
            lost.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        let kept = &bytes[..bytes.len().min(self.0.room())];
        let half = |address: &[u8; 16], from: usize| {
            u64::from_ne_bytes(std::array::from_fn(|i| address[from + i]))
        };
        let (src, dst) = (&record.src, &record.dst);
        let words = [
            record.time,
            u64::from(record.original) | (kept.len() as u64) << 32 | u64::from(src.1) << 48,
            u64::from(record.pid)
                | (record.way as u64) << 32
                | u64::from(record.outbound) << 40
                | u64::from(dst.1) << 48,
            half(&src.0, 0),
            half(&src.0, 8),
            half(&dst.0, 0),
            half(&dst.0, 8),
        ];
        for (i, word) in words.into_iter().enumerate() {
            self.0
                .mem
                .word(at + 8 + 8 * i)
                .store(word, Ordering::Relaxed);
        }
        self.0.mem.copy_in(at + TRACE_SLOT_HEADER, kept);
        let word = self.0.mem.word(at);
        // It fails where the reader has waited for too long, and has counted the record as lost.
        word.compare_exchange(turn, turn + 1, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }

    /// Claims a slot: where it is, and the word that it has until it is published.
    fn claim(&self) -> Option<(usize, u64)> {
        let tail = self.0.mem.word(TAIL_AT);
        for _ in 0..CLAIMS_MAX {
            let position = tail.load(Ordering::Relaxed);
            let (at, turn) = self.0.at(position);
            let found = self.0.mem.word(at).load(Ordering::Acquire);
            if found < turn {
                // Not read yet since the lap before.
                return None;
            }
            let next = position.wrapping_add(1);
            if found == turn
                && tail
                    .compare_exchange(position, next, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                return Some((at, turn));
            }
        }
        None
    }
}

/// The reader's end.
#[derive(Debug)]
pub struct TraceReader {
    slots: Slots,
    segment: Arc<Segment>,
    /// The position that is read next.
    position: u64,
}

impl TraceReader {
    /// Makes a ring whose records have at most `room` bytes of a packet, or a little more.
    ///
    /// # Errors
    /// As [`Segment::create`]; [`SegmentError::Format`] where `room` is beyond
    /// [`TRACE_SLOT_MAX`].
    pub fn create(room: usize) -> Result<TraceReader, SegmentError> {
        let slot = room.saturating_add(TRACE_SLOT_HEADER).max(TRACE_SLOT_MIN);
        let slot = slot.checked_next_power_of_two().unwrap_or(usize::MAX);
        let segment = Arc::new(Segment::create("causeway-trace", TRACE_BYTES)?);
        let mem = Region::new(Arc::clone(&segment));
        let slots = Slots::new(mem, slot).ok_or(SegmentError::Format)?;
        let word = slots.mem.word(SLOT_BYTES_AT);
        word.store(slot as u64, Ordering::Release);
        slots.mem.word(0).store(MAGIC, Ordering::Release);
        Ok(TraceReader {
            slots,
            segment,
            position: 0,
        })
    }

    /// Its descriptor, for the broker.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.segment.fd()
    }

    /// Takes the next record, and puts its bytes in the place of what `bytes` holds. `None` if
    /// none is there, or it is not whole yet; what makes no sense is dropped as one that is empty.
    pub fn pop(&mut self, bytes: &mut Vec<u8>) -> Option<TraceRecord> {
        loop {
            let (at, turn) = self.slots.at(self.position);
            let word = self.slots.mem.word(at);
            if word.load(Ordering::Acquire) != turn + 1 {
                return None;
            }
            let record = self.read(at, bytes);
            word.store(turn + 2, Ordering::Release);
            self.position += 1;
            if record.is_some() {
                return record;
            }
        }
    }

    fn read(&self, at: usize, bytes: &mut Vec<u8>) -> Option<TraceRecord> {
        let word = |i: usize| self.slots.mem.word(at + 8 * i).load(Ordering::Relaxed);
        // Each word is read once: another process may be writing them, whatever it should do.
        let [lengths, what] = [word(2), word(3)];
        let kept = usize::from((lengths >> 32) as u16);
        let original = lengths as u32;
        let way = *Way::ALL.get((what >> 32 & 0xff) as usize)?;
        if kept > self.slots.room() || kept > original as usize {
            return None;
        }
        let address = |i: usize| {
            let mut address = [0; 16];
            address[..8].copy_from_slice(&word(i).to_ne_bytes());
            address[8..].copy_from_slice(&word(i + 1).to_ne_bytes());
            address
        };
        bytes.clear();
        bytes.resize(kept, 0);
        self.slots.mem.copy_out(at + TRACE_SLOT_HEADER, bytes);
        Some(TraceRecord {
            time: word(1),
            way,
            outbound: what >> 40 & 1 != 0,
            original,
            pid: what as u32,
            src: (address(4), (lengths >> 48) as u16),
            dst: (address(6), (what >> 48) as u16),
        })
    }

    /// Whether the next slot is claimed and not published: a writer is filling it, or was killed
    /// meanwhile.
    #[must_use]
    pub fn is_held_up(&self) -> bool {
        let (at, turn) = self.slots.at(self.position);
        let tail = self.slots.mem.word(TAIL_AT).load(Ordering::Relaxed);
        tail > self.position && self.slots.mem.word(at).load(Ordering::Acquire) == turn
    }

    /// Goes on behind a slot that [`TraceReader::is_held_up`]. Returns false if it has been
    /// published meanwhile.
    pub fn skip(&mut self) -> bool {
        let (at, turn) = self.slots.at(self.position);
        let word = self.slots.mem.word(at);
        let skipped = word.compare_exchange(turn, turn + 2, Ordering::Relaxed, Ordering::Relaxed);
        self.position += u64::from(skipped.is_ok());
        skipped.is_ok()
    }

    /// How many records of a way were lost for want of room, as the writers say.
    #[must_use]
    pub fn lost(&self, way: Way) -> u64 {
        let word = self.slots.mem.word(LOST_AT + 8 * way as usize);
        word.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(time: u64) -> TraceRecord {
        TraceRecord {
            time,
            way: Way::Ring,
            outbound: true,
            original: 9000,
            pid: 77,
            src: ([1; 16], 20_481),
            dst: (std::array::from_fn(|i| i as u8), 20_482),
        }
    }

    fn pair(room: usize) -> (TraceReader, TraceWriter) {
        let reader = TraceReader::create(room).unwrap();
        let fd = reader.fd().try_clone_to_owned().unwrap();
        (reader, TraceWriter::open(fd).unwrap())
    }

    #[test]
    fn what_is_put_in_comes_out_and_long_packets_are_cut() {
        let (mut reader, writer) = pair(1);
        assert_eq!(writer.room(), TRACE_SLOT_MIN - TRACE_SLOT_HEADER);
        let long: Vec<u8> = (0..2000).map(|i| i as u8).collect();
        assert!(writer.push(&record(1), b"short") && writer.push(&record(2), &long));
        let mut bytes = Vec::new();
        assert_eq!(reader.pop(&mut bytes), Some(record(1)));
        assert_eq!(bytes, b"short");
        assert_eq!(reader.pop(&mut bytes), Some(record(2)));
        assert_eq!(bytes, long[..writer.room()]);
        assert_eq!(reader.pop(&mut bytes), None);
        assert!(!reader.is_held_up());
    }

    #[test]
    fn what_finds_no_room_is_counted_and_laps_follow_each_other() {
        let (mut reader, writer) = pair(TRACE_SLOT_MAX - TRACE_SLOT_HEADER);
        let count = (SLOTS_BYTES / TRACE_SLOT_MAX) as u64;
        let mut bytes = Vec::new();
        for lap in 0..3 {
            for i in 0..count {
                assert!(writer.push(&record(lap * count + i), b"x"));
            }
            assert!(!writer.push(&record(0), b"x"));
            assert_eq!(reader.lost(Way::Ring), lap + 1);
            for i in 0..count {
                let time = reader.pop(&mut bytes).map(|record| record.time);
                assert_eq!(time, Some(lap * count + i));
            }
        }
        assert_eq!((reader.lost(Way::Direct), reader.lost(Way::Udp)), (0, 0));
    }

    #[test]
    fn a_slot_of_a_killed_writer_is_skipped_and_a_late_one_is_not_believed() {
        let (mut reader, writer) = pair(1);
        let (at, turn) = writer.claim().unwrap();
        assert!(writer.push(&record(5), b"next"));
        let mut bytes = Vec::new();
        assert_eq!(reader.pop(&mut bytes), None);
        assert!(reader.is_held_up() && reader.skip());
        assert_eq!(reader.pop(&mut bytes), Some(record(5)));
        let late = writer.0.mem.word(at).compare_exchange(
            turn,
            turn + 1,
            Ordering::Release,
            Ordering::Relaxed,
        );
        assert!(late.is_err());
    }

    #[test]
    fn a_slot_that_lies_is_dropped() {
        let (mut reader, writer) = pair(1);
        let lies = [(2, u64::MAX), (2, 500 << 32), (3, 0xff << 32)];
        for (position, (word, lie)) in (0..).zip(lies) {
            assert!(writer.push(&record(1), b"x"));
            let (at, _) = reader.slots.at(position);
            writer
                .0
                .mem
                .word(at + 8 * word)
                .store(lie, Ordering::Relaxed);
        }
        assert!(writer.push(&record(2), b"y"));
        let mut bytes = Vec::new();
        assert_eq!(reader.pop(&mut bytes), Some(record(2)));
    }

    #[test]
    fn what_is_no_ring_is_refused() {
        let other = Segment::create("t", TRACE_BYTES).unwrap();
        let fd = other.fd().try_clone_to_owned().unwrap();
        assert!(matches!(TraceWriter::open(fd), Err(SegmentError::Format)));
        let short = Segment::create("t", PAGE).unwrap();
        let fd = short.fd().try_clone_to_owned().unwrap();
        assert!(matches!(
            TraceWriter::open(fd),
            Err(SegmentError::Size { .. })
        ));
        assert!(TraceReader::create(TRACE_SLOT_MAX).is_err());
    }

    /// Several threads write while one reads: nothing is torn, and nothing is gone but what is
    /// counted.
    #[test]
    fn writers_do_not_meet() {
        const WRITERS: u64 = 4;
        const EACH: u64 = 20_000;
        let (mut reader, writer) = pair(TRACE_SLOT_MAX / 4);
        let writer = &writer;
        let mut next = [0; WRITERS as usize];
        let (mut bytes, mut taken) = (Vec::new(), 0);
        let mut take = |reader: &mut TraceReader| {
            while let Some(found) = reader.pop(&mut bytes) {
                let (by, number) = ((found.time / EACH) as usize, found.time % EACH);
                assert!(number >= next[by] && bytes == found.time.to_ne_bytes().repeat(40));
                next[by] = number + 1;
                taken += 1;
            }
        };
        std::thread::scope(|scope| {
            let threads = (0..WRITERS).map(|by| {
                scope.spawn(move || {
                    for time in by * EACH..(by + 1) * EACH {
                        writer.push(&record(time), &time.to_ne_bytes().repeat(40));
                    }
                })
            });
            let threads: Vec<_> = threads.collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                take(&mut reader);
            }
        });
        take(&mut reader);
        assert_eq!(taken + reader.lost(Way::Ring), WRITERS * EACH);
    }
}
