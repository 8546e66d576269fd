//! A pair of lossless queues of records between two connected queue pairs.
//!
//! # How a record travels
//!
//! The queue of a direction is a circle of 64-byte cells; a record takes whole cells, its header
//! first, its body right behind and in one piece. There is no shared tail: the header's first word
//! is the *ready word*, zero until the record may be read. So the reader polls the very line that
//! will hold the header and, for a short message, the body, and such a message costs one transfer
//! of one line.
//!
//! That is right because of three rules:
//!
//! 1. Before the producer makes a record ready it zeroes the word behind it, where the next header
//!    will stand. It always keeps that cell free ([`Producer::reserve`] never hands out the last
//!    one). So when the reader, having seen a ready word (acquire) that was stored last (release),
//!    goes on to the next header, it finds either that zero or a later header: never bytes of an
//!    earlier lap, which might look like anything.
//! 2. Of a batch only the first ready word is stored late, with release. The reader can't get past
//!    it, and once it does, all the rest was stored before.
//! 3. Cells are written again only after the reader's `head` (release, read with acquire) has
//!    passed them.
//!
//! After publishing, the producer zeroes one cell further on as well: if the next record takes one
//! cell, that is the zero it needs, and its ready word waits for no other store. After a long
//! record that was published by itself it zeroes the word behind another of that length.
//!
//! # Attention
//!
//! Each side has a word that says what it wants to be *told* of. Hot: nothing, it polls this ring,
//! and only if its endpoint sleeps must it be woken. Otherwise a set of events, for which the other
//! side sets the ring's bit in the inbox ([`mod@crate::notify`]). A side that goes from hot to cold
//! uses [`Ring::set_cold`], which looks again after the word is visible: so either the other side
//! sees the word, or this one sees the event.

#[cfg(not(any(loom, shuttle)))]
mod challenge;
mod consumer;
mod direct;
#[cfg(not(any(loom, shuttle)))]
mod probe;
mod producer;
mod record;
#[cfg(not(any(loom, shuttle)))]
mod reuse;

#[cfg(not(any(loom, shuttle)))]
pub use challenge::Proof;
pub use consumer::{Consumer, Record, ShortRecord, WordRecord};
use direct::AccessWords;
pub use direct::{Grant, Watch};
#[cfg(not(any(loom, shuttle)))]
pub use probe::{Probe, Seen};
pub use producer::{Producer, ShortSlot, Slot};
pub use record::KIND_MAX;

use crate::layout as l;
use crate::mem::{Region, Spots};
use crate::segment::{Segment, SegmentError};
use crate::sync::{Arc, Ordering, fence};

/// The other side wrote what it must not: the ring is unusable, its queue pair fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer has corrupted the ring")]
pub struct Corrupt;

/// Which of a ring's two sides an endpoint is; the broker decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Side {
    /// The first one
    A = 0,
    /// The second one
    B = 1,
}

impl Side {
    /// The peer's.
    #[must_use]
    pub fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }

    /// Offset of the words this side writes.
    fn words(self) -> usize {
        l::SIDES_AT + self as usize * l::SIDE_STRIDE
    }

    /// Offset of the records this side produces.
    fn data(self, capacity: usize) -> usize {
        l::PAGE + self as usize * capacity
    }
}

/// A set of events, of which one side tells the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention(u64);

impl Attention {
    /// Polls the ring: is to be told nothing, except when its endpoint sleeps.
    pub const HOT: Attention = Attention(0);
    /// Records were published, or flags set.
    pub const DATA: Attention = Attention(1);
    /// Requests were acknowledged in the acknowledgment word.
    pub const ACK: Attention = Attention(2);
    /// Records were consumed: there is room again.
    pub const ROOM: Attention = Attention(4);

    /// The set of those that are so.
    #[inline(always)]
    #[must_use]
    pub const fn of(data: bool, ack: bool, room: bool) -> Attention {
        Attention(data as u64 | (ack as u64) << 1 | (room as u64) << 2)
    }

    /// Both sets together.
    #[must_use]
    pub const fn and(self, other: Attention) -> Attention {
        Attention(self.0 | other.0)
    }

    /// Whether the sets have an event in common.
    #[must_use]
    pub const fn meets(self, other: Attention) -> bool {
        self.0 & other.0 != 0
    }
}

/// What a side has said about itself once and for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Flag {
    /// Its queue pair was destroyed or reset in good order; nothing more will come.
    Closed = 1,
    /// Its queue pair went to the error state.
    Failed = 2,
}

/// Which of a ring's spots is which: this side's words, and the peer's.
const OWN_ACK: usize = 0;
const OWN_PLACED: usize = 1;
const PEERS_ACK: usize = 2;
const PEERS_ATTENTION: usize = 3;

/// One side's end of a ring: produces into one direction, consumes from the other.
#[derive(Debug)]
pub struct Ring {
    /// Records for the peer.
    pub tx: Producer,
    /// Records of the peer.
    pub rx: Consumer,
    mem: Region,
    /// The words that every message touches.
    spots: Spots<4>,
    access: AccessWords,
    side: Side,
    /// Newest acknowledgment stored in the shared word.
    ack_word: u64,
    /// The peer's flags when they were last looked at, to notice new ones.
    flags_seen: u64,
    attention: Attention,
}

impl Ring {
    /// Creates a segment for a ring of [`l::RING_CAPACITY`] bytes in each direction.
    ///
    /// # Errors
    /// Those of [`Segment::create`].
    pub fn create() -> Result<Segment, SegmentError> {
        let segment = Segment::create("causeway-ring", l::ring_len(l::RING_CAPACITY))?;
        Self::format(segment, l::RING_CAPACITY)
    }

    /// The first bytes of a segment of zeroes, of [`l::ring_len`] bytes for [`l::RING_CAPACITY`],
    /// that make it a ring with nothing in it: for the broker, which makes rings for others, and
    /// maps none.
    #[must_use]
    pub fn header() -> [u8; l::CAPACITY_AT + 8] {
        let mut bytes = [0; l::CAPACITY_AT + 8];
        let words = [
            (l::MAGIC_AT, l::RING_MAGIC),
            (l::VERSION_AT, l::VERSION),
            (l::CAPACITY_AT, l::RING_CAPACITY as u64),
        ];
        for (at, word) in words {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Makes a segment of zeroes, of [`l::ring_len`] bytes, a ring with nothing in it.
    ///
    /// # Errors
    /// [`SegmentError::Format`] if the capacity is not one or does not match the size.
    pub fn format(segment: Segment, capacity: usize) -> Result<Segment, SegmentError> {
        if !l::capacity_ok(capacity) || segment.len() != l::ring_len(capacity) {
            return Err(SegmentError::Format);
        }
        let segment = Arc::new(segment);
        let mem = Region::new(Arc::clone(&segment));
        mem.word(l::VERSION_AT).store(l::VERSION, Ordering::Relaxed);
        mem.word(l::CAPACITY_AT)
            .store(capacity as u64, Ordering::Relaxed);
        mem.word(l::MAGIC_AT)
            .store(l::RING_MAGIC, Ordering::Release);
        drop(mem);
        Arc::try_unwrap(segment).map_err(|_| SegmentError::Format)
    }

    /// Takes one side of a freshly created ring. It begins hot.
    ///
    /// Where a side stands in the ring is its own memory, not the segment's: a side can be taken
    /// once.
    ///
    /// # Errors
    /// [`SegmentError::Format`] if the words that describe the segment are not a ring's.
    pub fn attach(segment: Arc<Segment>, side: Side) -> Result<Ring, SegmentError> {
        let mem = Region::new(segment);
        if mem.len() < l::PAGE
            || mem.word(l::MAGIC_AT).load(Ordering::Acquire) != l::RING_MAGIC
            || mem.word(l::VERSION_AT).load(Ordering::Relaxed) != l::VERSION
        {
            return Err(SegmentError::Format);
        }
        let capacity = mem.word(l::CAPACITY_AT).load(Ordering::Relaxed);
        let capacity = usize::try_from(capacity).map_err(|_| SegmentError::Format)?;
        if !l::capacity_ok(capacity) || mem.len() != l::ring_len(capacity) {
            return Err(SegmentError::Format);
        }
        Ok(Ring {
            tx: Producer::new(mem.clone(), side, capacity),
            rx: Consumer::new(mem.clone(), side, capacity),
            spots: Spots::new(
                &mem,
                [
                    side.words() + l::ACK,
                    side.words() + l::PLACED,
                    side.other().words() + l::ACK,
                    side.other().words() + l::ATTENTION,
                ],
            ),
            access: AccessWords::new(&mem, side),
            mem,
            side,
            ack_word: 0,
            flags_seen: 0,
            attention: Attention::HOT,
        })
    }

    #[inline(always)]
    fn own(&self, word: usize) -> &crate::sync::AtomicU64 {
        self.mem.word(self.side.words() + word)
    }

    #[inline(always)]
    fn peers(&self, word: usize) -> &crate::sync::AtomicU64 {
        self.mem.word(self.side.other().words() + word)
    }

    /// Which side this is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.side
    }

    /// Sets the acknowledgment: every request of the peer numbered below `upto` has been placed. It
    /// travels with the next record published, or by [`Ring::publish_ack`].
    #[inline(always)]
    pub fn set_req_ack(&mut self, upto: u64) {
        self.tx.set_ack(upto);
        // Nobody else reads this line while the process lives: it stays where it is.
        let placed = self.spots.word(OWN_PLACED);
        placed.store(self.tx.ack(), Ordering::Release);
    }

    /// Whether the newest acknowledgment is neither in a published record nor in the shared word.
    #[must_use]
    pub fn ack_pending(&self) -> bool {
        self.tx.ack() > self.tx.ack_published().max(self.ack_word)
    }

    /// Stores the newest acknowledgment in the shared word. Returns whether it was news there: then
    /// the peer must be notified of [`Attention::ACK`].
    #[inline(always)]
    pub fn publish_ack(&mut self) -> bool {
        let ack = self.tx.ack();
        if ack <= self.ack_word {
            return false;
        }
        self.spots.word(OWN_ACK).store(ack, Ordering::Release);
        self.ack_word = ack;
        true
    }

    /// The newest acknowledgment the peer's records have brought. The peer's word, to be checked
    /// against what was sent; it never goes back. Touches no shared memory.
    #[must_use]
    pub fn req_ack_seen(&self) -> u64 {
        self.rx.ack_seen()
    }

    /// The newest acknowledgment, looking into the shared word too: a cache line that moves if the
    /// peer wrote it. As unreliable as [`Ring::req_ack_seen`].
    #[inline(always)]
    pub fn req_ack(&mut self) -> u64 {
        let word = self.spots.word(PEERS_ACK).load(Ordering::Acquire);
        self.rx.note_ack(word);
        self.rx.ack_seen()
    }

    /// An acknowledgment that was found in the shared word, or in a record, is taken.
    #[inline(always)]
    pub fn note_req_ack(&mut self, ack: u64) {
        self.rx.note_ack(ack);
    }

    /// As [`Ring::req_ack`], of a peer whose process has ended: also what it had not come to tell.
    #[must_use]
    pub fn last_req_ack(&mut self) -> u64 {
        let placed = self.peers(l::PLACED).load(Ordering::Acquire);
        self.rx.note_ack(placed);
        self.req_ack()
    }

    /// Says in the place of a peer whose process has ended what it would have said had it destroyed
    /// its queue pair: that it is closed, and grants nothing.
    pub fn close_for_peer(&self) {
        self.peers(l::GRANT).store(0, Ordering::SeqCst);
        self.peers(l::FLAGS)
            .fetch_or(Flag::Closed as u64, Ordering::Release);
    }

    /// Sets one of this side's flags for good. The peer must be notified of [`Attention::DATA`].
    pub fn set_flag(&self, flag: Flag) {
        self.own(l::FLAGS).fetch_or(flag as u64, Ordering::Release);
    }

    /// Whether the peer has set a flag. Records published before it are visible afterwards.
    #[must_use]
    pub fn peer_flag(&self, flag: Flag) -> bool {
        self.peers(l::FLAGS).load(Ordering::Acquire) & flag as u64 != 0
    }

    /// Whether the peer has set any flag. Records published before it are visible afterwards.
    #[inline]
    #[must_use]
    pub fn is_peer_leaving(&self) -> bool {
        self.peers(l::FLAGS).load(Ordering::Acquire) != 0
    }

    /// What this side wants to be told of now.
    #[must_use]
    pub fn attention(&self) -> Attention {
        self.attention
    }

    /// Says that this side polls the ring from now on.
    pub fn set_hot(&mut self) {
        if self.attention != Attention::HOT {
            self.attention = Attention::HOT;
            self.own(l::ATTENTION).store(0, Ordering::Relaxed);
        }
    }

    /// Stops polling the ring, to be told of `events` instead (at least [`Attention::DATA`]; with
    /// [`Attention::ACK`] while requests are unacknowledged, [`Attention::ROOM`] while something
    /// waits for room). Returns true if nothing happened meanwhile. On false there is something to
    /// do: the ring is hot, as before.
    ///
    /// # Errors
    /// [`Corrupt`] if the peer broke the ring.
    pub fn set_cold(&mut self, events: Attention) -> Result<bool, Corrupt> {
        let events = events.and(Attention::DATA);
        self.own(l::ATTENTION).store(events.0, Ordering::Relaxed);
        self.attention = events;
        // Pairs with the fence in `notify`: one of the two sees the other's store.
        fence(Ordering::SeqCst);
        let flags = self.peers(l::FLAGS).load(Ordering::Acquire);
        let news = self.rx.ready()
            || flags != self.flags_seen
            || (events.meets(Attention::ACK)
                && self.peers(l::ACK).load(Ordering::Acquire) > self.rx.ack_seen())
            || (events.meets(Attention::ROOM) && self.tx.room_grew()?);
        self.flags_seen = flags;
        if news {
            self.set_hot();
        }
        Ok(!news)
    }

    /// What the peer wants to be told of. An unknown bit is ignored.
    #[inline(always)]
    pub(crate) fn peer_attention(&self) -> Attention {
        Attention(self.spots.word(PEERS_ATTENTION).load(Ordering::Relaxed))
    }
}
