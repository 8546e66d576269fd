//! Which of an endpoint's rings want attention, and whether it sleeps.
//!
//! An endpoint owns one inbox. Each peer that has a ring with it maps the inbox too, and sets the
//! bit of the ring's queue pair when the owner isn't polling that ring.
//!
//! A peer may die or stand still between any two stores, and the others must not suffer for it. So
//! a peer that finds the owner asleep rings first and clears the armed word then: a peer that finds
//! it clear knows that the doorbell has been rung. Each sleep has a number, so that a late peer
//! does not take a later sleep for the one that it has ended.
//!
//! All peers of an endpoint write the same words, so a malicious one can set bits for nothing,
//! which costs the owner a look at a ring each, or clear bits and the armed word, which delays a
//! wake-up of the owner until the next one. They share a tenant; data is not in danger.

use crate::doorbell::Bell;
use crate::layout as l;
use crate::mem::{Region, Spots};
use crate::segment::{Segment, SegmentError};
use crate::sync::{Arc, AtomicU64, Ordering, fence};
use std::io;

/// Which of an inbox's spots is which.
const ARMED: usize = 0;
const SUMMARY: usize = 1;

/// An endpoint's inbox: its own, or a peer's.
#[derive(Clone, Debug)]
pub struct Inbox {
    mem: Region,
    /// The words at [`ARMED`] and [`SUMMARY`].
    spots: Spots<2>,
    /// The owner's sleeps so far.
    sleeps: Arc<AtomicU64>,
}

/// Some of an endpoint's slots, of which the bits are looked at together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slots(u64);

/// Bits of the summary for each slot.
const SUMMARY_PER_SLOT: usize = l::BITMAP_WORDS / l::SUMMARY_WORDS / l::INBOX_SLOTS;

impl Slots {
    /// These and others.
    #[must_use]
    pub fn and(self, others: Slots) -> Slots {
        Slots(self.0 | others.0)
    }

    /// All that an endpoint can have.
    pub const ALL: Slots = Slots(u64::MAX);

    /// These, and the slot of a queue pair: a slot has [`l::QP_INDEXES`] / [`l::INBOX_SLOTS`]
    /// numbers in a row.
    #[must_use]
    pub fn with_slot_of(self, qpn: u32) -> Slots {
        let indexes = l::QP_INDEXES as usize;
        let slot = qpn as usize % indexes / (indexes / l::INBOX_SLOTS);
        let bits = u64::MAX >> (64 - SUMMARY_PER_SLOT);
        Slots(self.0 | bits << (slot * SUMMARY_PER_SLOT))
    }
}

impl Inbox {
    /// Creates the segment of an inbox, with its page of statistics.
    ///
    /// # Errors
    /// Those of [`Segment::create`].
    pub fn create() -> Result<Arc<Segment>, SegmentError> {
        Ok(Inbox::create_in(Segment::create(
            "causeway-inbox",
            l::INBOX_LEN,
        )?))
    }

    /// As [`Inbox::create`], in a segment of zeroes that is there already.
    #[must_use]
    pub fn create_in(segment: Segment) -> Arc<Segment> {
        let segment = Arc::new(segment);
        let mem = Region::new(Arc::clone(&segment));
        mem.word(l::VERSION_AT)
            .store(l::INBOX_VERSION, Ordering::Relaxed);
        mem.word(l::MAGIC_AT)
            .store(l::INBOX_MAGIC, Ordering::Release);
        segment
    }

    /// The inbox in a segment.
    ///
    /// # Errors
    /// [`SegmentError::Format`] if there is none.
    pub fn open(segment: Arc<Segment>) -> Result<Inbox, SegmentError> {
        let mem = Region::new(segment);
        let ours = mem.len() == l::INBOX_LEN
            && mem.word(l::MAGIC_AT).load(Ordering::Acquire) == l::INBOX_MAGIC
            && mem.word(l::VERSION_AT).load(Ordering::Relaxed) == l::INBOX_VERSION;
        if ours {
            let sleeps = Arc::new(AtomicU64::new(0));
            let spots = Spots::new(&mem, [l::ARMED_AT, l::SUMMARY_AT]);
            Ok(Inbox { mem, spots, sleeps })
        } else {
            Err(SegmentError::Format)
        }
    }

    /// Peer: sets the bit of the queue pair with this number, of which those beyond
    /// [`l::QP_INDEXES`] wrap.
    pub fn set(&self, qpn: u32) {
        let index = qpn as usize % l::QP_INDEXES as usize;
        let (word, bit) = (index / 64, index % 64);
        self.mem
            .word(l::BITMAP_AT + 8 * word)
            .fetch_or(1 << bit, Ordering::AcqRel);
        causeway_fault::point("inbox.marked");
        self.mem
            .word(l::SUMMARY_AT)
            .fetch_or(1 << (word / l::SUMMARY_WORDS), Ordering::AcqRel);
    }

    /// Peer: rings the owner's doorbell if it sleeps, after what it should see was stored and a
    /// SeqCst fence. Returns whether it rang.
    ///
    /// # Errors
    /// The bell's.
    #[inline(always)]
    pub fn ring_if_armed(&self, bell: &impl Bell) -> io::Result<bool> {
        match self.spots.word(ARMED).load(Ordering::Relaxed) {
            0 => Ok(false),
            sleep => self.ring(sleep, bell),
        }
    }

    /// Peer: whether [`Inbox::ring_if_armed`] would ring.
    #[inline(always)]
    pub(crate) fn is_armed(&self) -> bool {
        self.spots.word(ARMED).load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn ring(&self, sleep: u64, bell: &impl Bell) -> io::Result<bool> {
        bell.ring()?;
        causeway_fault::point("inbox.rung");
        let armed = self.spots.word(ARMED);
        // Of no consequence if it fails: the owner, or another peer, has been quicker.
        let _ = armed.compare_exchange(sleep, 0, Ordering::AcqRel, Ordering::Relaxed);
        Ok(true)
    }

    /// Owner: takes the bits that are set of some slots, calling `each` with the low bits of every
    /// queue pair's number. Returns how many there were: at most [`l::QP_INDEXES`], whatever peers
    /// do meanwhile.
    pub fn take(&self, of: Slots, mut each: impl FnMut(u32)) -> usize {
        if self.is_empty(of) {
            return 0;
        }
        let summary = self.mem.word(l::SUMMARY_AT);
        let mut summary = summary.fetch_and(!of.0, Ordering::AcqRel) & of.0;
        let mut taken = 0;
        while summary != 0 {
            let first = summary.trailing_zeros() as usize * l::SUMMARY_WORDS;
            summary &= summary - 1;
            for word in (first..first + l::SUMMARY_WORDS).take_while(|w| *w < l::BITMAP_WORDS) {
                let mut bits = self.take_word(word);
                while bits != 0 {
                    each(64 * word as u32 + bits.trailing_zeros());
                    bits &= bits - 1;
                    taken += 1;
                }
            }
        }
        taken
    }

    /// Takes the bits of a word of the bitmap. Most have none, and are only looked at.
    fn take_word(&self, word: usize) -> u64 {
        let word = self.mem.word(l::BITMAP_AT + 8 * word);
        match word.load(Ordering::Acquire) {
            0 => 0,
            _ => word.swap(0, Ordering::AcqRel),
        }
    }

    /// Owner: whether no bit of these slots is set. Touches one line.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self, of: Slots) -> bool {
        self.spots.word(SUMMARY).load(Ordering::Acquire) & of.0 == 0
    }

    /// Owner: asks for the doorbell to be rung. Then, *before* sleeping, the owner looks once more:
    /// [`Inbox::is_empty`], and each hot ring ([`crate::Consumer::ready`], acknowledgment, room).
    /// If there is something, [`Inbox::disarm`]; otherwise it may sleep on the doorbell.
    pub fn arm(&self) {
        let sleep = self.sleeps.fetch_add(1, Ordering::Relaxed) + 1;
        // An exchange, so that the model checkers too know it to come after a peer's that cleared
        // the number before.
        self.mem.word(l::ARMED_AT).swap(sleep, Ordering::AcqRel);
        // Pairs with the fence in `notify`: one of the two sees the other's store.
        fence(Ordering::SeqCst);
    }

    /// Owner: asks no longer. A doorbell rung meanwhile stays readable until drained.
    pub fn disarm(&self) {
        // An exchange as in `arm`.
        self.mem.word(l::ARMED_AT).swap(0, Ordering::AcqRel);
    }
}
