//! The words in a ring by which one side accesses the other's memory directly.
//!
//! The *owner* of memory says in its grant word what the peer's queue pair may do, and in its table
//! of memory regions ([`crate::MrTable`]) where they are. The peer accesses them in pieces; for
//! each *access* it names the region in its in-flight word, checks grant and entry, copies, and
//! clears the word.
//!
//! # No access outlives a region
//!
//! The owner takes a region (or the grant) back by clearing the entry (or the grant word), then
//! waits for in-flight words that name the region. Each side's store and its look at the other's
//! are sequentially consistent: so either the peer finds the entry gone before it copies, or the
//! owner sees it in flight and waits. A peer that is in flight for too long, because it was
//! stopped, is *evicted*: told for good, in the grant word, that the owner no longer waits. It
//! looks for that after each access, when its in-flight word is clear: an access that ended too
//! late is never reported as done.

use super::{Ring, Side};
use crate::layout as l;
use crate::mem::Region;
use crate::sync::{AtomicU64, Ordering, fence, model_fence};

/// The grant is in force.
const GRANTED: u64 = 1;
/// The owner did not wait for an access to end.
const EVICTED: u64 = 1 << 4;
/// The kinds of remote access, as `enum ibv_access_flags` has them (write 2, read 4, atomic 8).
const ACCESS: u64 = 0b1110;
/// Where the protection domain stands.
const PD_SHIFT: u32 = 32;

/// What a queue pair lets its peer do (`ibv_modify_qp(3)`, `qp_access_flags`), and the protection
/// domain to which it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant(u64);

impl Grant {
    /// Nothing.
    pub const NONE: Grant = Grant(0);

    /// The remote accesses in `access` (`enum ibv_access_flags`; other bits are dropped) to the
    /// memory regions of protection domain `pd`.
    #[must_use]
    pub fn new(pd: u32, access: u32) -> Grant {
        Grant(GRANTED | (u64::from(access) & ACCESS) | (u64::from(pd) << PD_SHIFT))
    }

    /// Whether all of `access` (`enum ibv_access_flags`) is granted.
    #[must_use]
    pub fn allows(self, access: u32) -> bool {
        let access = u64::from(access);
        self.0 & (GRANTED | EVICTED) == GRANTED && self.0 & access == access
    }

    /// The remote accesses that are granted (`enum ibv_access_flags`), none if it is not in force.
    #[must_use]
    pub fn access(self) -> u32 {
        match self.0 & (GRANTED | EVICTED) {
            GRANTED => (self.0 & ACCESS) as u32,
            _ => 0,
        }
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(self) -> u32 {
        (self.0 >> PD_SHIFT) as u32
    }
}

/// Where a ring has the two words that an access begins and ends by.
#[derive(Debug)]
pub(super) struct AccessWords {
    /// This side's word for the key under way, and the peer's for what it grants.
    in_flight: *const AtomicU64,
    granted: *const AtomicU64,
    /// Keeps both mapped.
    _mem: Region,
}

// SAFETY: the pointers lead to atomics in the segment that it owns a share of.
unsafe impl Send for AccessWords {}
// SAFETY: as above.
unsafe impl Sync for AccessWords {}

impl AccessWords {
    /// The words of this side's accesses.
    pub fn new(mem: &Region, side: Side) -> AccessWords {
        AccessWords {
            in_flight: mem.word(side.words() + l::IN_FLIGHT),
            granted: mem.word(side.other().words() + l::GRANT),
            _mem: mem.clone(),
        }
    }

    #[inline(always)]
    fn words(&self) -> (&AtomicU64, &AtomicU64) {
        // SAFETY: both are words of the segment, which is mapped as long as `_mem` holds it.
        unsafe { (&*self.in_flight, &*self.granted) }
    }
}

/// What the owner of memory sees of a peer's accesses to it, beside the ring itself.
#[derive(Clone, Debug)]
pub struct Watch {
    mem: Region,
    side: Side,
}

impl Watch {
    /// As [`Ring::peer_in_flight`].
    #[must_use]
    pub fn peer_in_flight(&self) -> u64 {
        let at = self.side.other().words() + l::IN_FLIGHT;
        self.mem.word(at).load(Ordering::SeqCst)
    }

    /// As [`Ring::evict`].
    pub fn evict(&self) {
        let at = self.side.words() + l::GRANT;
        self.mem.word(at).store(EVICTED, Ordering::SeqCst);
        // Not for models alone: the owner waits for nothing hereafter that would keep its accesses
        // to the memory behind this store. Pairs with `leave`.
        fence(Ordering::SeqCst);
        causeway_fault::point("grant.evicted");
    }
}

impl Ring {
    /// Owner: a second view of the peer's accesses.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch {
            mem: self.mem.clone(),
            side: self.side,
        }
    }

    /// Owner: says what the peer may do from now on. Where that is less than before, accesses may
    /// be under way: see [`Ring::peer_in_flight`].
    pub fn set_grant(&self, grant: Grant) {
        // Eviction is for good, also one by another thread at this moment.
        let change = |found| Some(grant.0 | (found & EVICTED));
        let word = self.own(l::GRANT);
        let _ = word.fetch_update(Ordering::SeqCst, Ordering::Relaxed, change);
        model_fence();
        causeway_fault::point("grant.set");
    }

    /// Owner: no longer waits for the peer's access under way, which will not be reported as done.
    /// The queue pair cannot go on.
    pub fn evict(&self) {
        self.watch().evict();
    }

    /// Owner: the key of the region that the peer is accessing, 0 for none. To be asked after
    /// [`crate::MrTable::retract`] or [`Ring::set_grant`]. The peer's word: it may lie, and then is
    /// waited for in vain.
    #[must_use]
    pub fn peer_in_flight(&self) -> u64 {
        // Pairs with the exchange in `leave` too: what was stored before that is seen.
        self.peers(l::IN_FLIGHT).load(Ordering::SeqCst)
    }

    /// Peer: begins an access to the region `key`, and returns what is granted. To be
    /// followed by a look at the region's entry, and in any case by [`Ring::leave`].
    #[inline(always)]
    pub fn enter(&self, key: u32) -> Grant {
        let (in_flight, granted) = self.access.words();
        in_flight.swap(u64::from(key), Ordering::SeqCst);
        model_fence();
        causeway_fault::point("direct.entered");
        Grant(granted.load(Ordering::SeqCst))
    }

    /// Peer: what is granted at the moment, without beginning anything.
    #[inline]
    #[must_use]
    pub fn peer_grant(&self) -> Grant {
        Grant(self.peers(l::GRANT).load(Ordering::Acquire))
    }

    /// Peer: ends an access. Returns false if the owner did not wait for it: then nothing is known
    /// about the bytes accessed, and the queue pair cannot go on.
    #[inline(always)]
    #[must_use]
    pub fn leave(&self) -> bool {
        let (in_flight, granted) = self.access.words();
        causeway_fault::point("direct.copied");
        in_flight.swap(0, Ordering::SeqCst);
        model_fence();
        granted.load(Ordering::SeqCst) & EVICTED == 0
    }
}
