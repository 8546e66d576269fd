//! Looks whether anything has come on a ring, with as few instructions as possible.

use super::Ring;
use crate::layout as l;
use crate::mem::Region;
use crate::sync::{AtomicU64, Ordering};

/// The words of a ring that change when its peer has sent or acknowledged something or is leaving,
/// until a record is taken from it: then there is another ([`Ring::probe`]).
#[derive(Debug)]
pub struct Probe {
    /// The next record's ready word, and the peer's acknowledgment.
    ready: *const AtomicU64,
    ack: *const AtomicU64,
    /// What the peer says of its leaving.
    flags: *const AtomicU64,
    /// That acknowledgment when it was last looked at, and no record was there.
    seen: u64,
    /// Those flags when they were last looked at.
    flags_seen: u64,
    /// The record taken last acknowledged nothing new.
    calm: bool,
    /// Keeps both mapped.
    _mem: Region,
}

// SAFETY: the pointers lead to atomics in the segment that it owns a share of.
unsafe impl Send for Probe {}

impl Ring {
    /// Where to look for what comes next.
    #[must_use]
    pub fn probe(&self) -> Probe {
        Probe {
            ready: self.rx.next_ready_word(),
            ack: self.peers(l::ACK),
            flags: self.peers(l::FLAGS),
            // Whatever came before this look may not have been taken.
            seen: self.rx.ack_seen(),
            flags_seen: 0,
            calm: false,
            _mem: self.mem.clone(),
        }
    }

    /// As [`Ring::probe`] of the same ring, after something was taken from it.
    #[inline(always)]
    pub fn renew(&self, probe: &mut Probe) {
        probe.ready = self.rx.next_ready_word();
    }
}

/// What a look at a ring has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing.
    Nothing,
    /// A record seems to have come.
    Record,
    /// None has, but an acknowledgment since this was last asked. It may be one that a record has
    /// brought already.
    Ack,
}

impl Probe {
    /// Whether anything has come.
    #[inline(always)]
    #[must_use]
    pub fn look(&mut self) -> Seen {
        // SAFETY: both are words of the segment, which is mapped as long as `_mem` holds it.
        let (ready, ack) = unsafe { (&*self.ready, &*self.ack) };
        if ready.load(Ordering::Relaxed) != 0 {
            return Seen::Record;
        }
        let ack = ack.load(Ordering::Relaxed);
        if ack == self.seen {
            return Seen::Nothing;
        }
        self.seen = ack;
        Seen::Ack
    }

    /// As [`Probe::look`], but an acknowledgment is news until [`Probe::note_ack`].
    #[inline(always)]
    #[must_use]
    pub fn glance(&self) -> Seen {
        // SAFETY: as in `look`.
        let ready = unsafe { &*self.ready };
        if ready.load(Ordering::Relaxed) != 0 {
            return Seen::Record;
        }
        match self.news() {
            Some(_) => Seen::Ack,
            None => Seen::Nothing,
        }
    }

    /// Whether the record that [`Probe::glance`] has seen seems to have a body of 8 bytes, and is
    /// likely to acknowledge nothing new ([`Probe::note_calm`]). Whoever takes it looks again.
    #[inline(always)]
    #[must_use]
    pub fn has_word(&self) -> bool {
        // SAFETY: as in `look`.
        let word = unsafe { &*self.ready }.load(Ordering::Relaxed);
        self.calm && word as u32 as usize == size_of::<u64>()
    }

    /// Whether the record taken last acknowledged nothing new, as that of a peer which only sends.
    #[inline(always)]
    pub fn note_calm(&mut self, calm: bool) {
        self.calm = calm;
    }

    /// The peer's acknowledgment, if it is another one than when it was last looked at.
    #[inline(always)]
    #[must_use]
    pub fn news(&self) -> Option<u64> {
        // SAFETY: as in `look`.
        let ack = unsafe { &*self.ack }.load(Ordering::Acquire);
        (ack != self.seen).then_some(ack)
    }

    /// An acknowledgment that [`Probe::news`] has shown was taken.
    #[inline(always)]
    pub fn note_ack(&mut self, ack: u64) {
        self.seen = ack;
    }

    /// As [`Probe::look`], and whether the peer has said anything of its leaving since this was
    /// last asked.
    #[must_use]
    pub fn look_at_all(&mut self) -> bool {
        // SAFETY: a word of the segment, which is mapped as long as `_mem` holds it.
        let flags = unsafe { &*self.flags }.load(Ordering::Acquire);
        let said = std::mem::replace(&mut self.flags_seen, flags) != flags;
        said | (self.look() != Seen::Nothing)
    }
}
