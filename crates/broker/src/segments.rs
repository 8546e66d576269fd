//! Segments: which endpoints may map them, and which are stale.
//!
//! A segment belongs to one endpoint and to one of its protection domains. Another endpoint is
//! entitled to it as long as a ring that both have joined leads to a QP of that domain whose
//! access flags allow it. [`Rights`] counts those rings, so that a connection that ends costs no
//! search unless it was the last.
//!
//! The descriptor is the protection, and can't be taken back. So the broker keeps a list of the
//! endpoints that were given one: an endpoint outside the owner's trust boundary that loses what
//! entitled it makes the segment stale, and its owner moves on to a new one. Those inside
//! ([`crate::boundary`]) could reach into its memory without us; they are on no list.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use causeway_fabric::limits::SEGMENT_BYTES;
use causeway_identity::Access;

use crate::ids::EndpointId;
use crate::memory::Memory;

// The broker's protocol and what endpoints map must agree.
const _: () = assert!(SEGMENT_BYTES == causeway_shm::layout::MEMORY_SEGMENT_BYTES);

/// What a descriptor of a segment allows. The greater allows what the lesser does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// To read.
    Read,
    /// To read and write.
    Write,
}

/// A segment of an endpoint.
#[derive(Debug)]
pub struct Segment {
    /// The memfd, open for reading and writing.
    pub fd: Memory,
    /// Protection domain of the QPs whose peers may map it.
    pub pd: u32,
    /// Whether they may write to it.
    pub writable: bool,
    /// Whether it is granted inside the owner's trust boundary only.
    pub inside: bool,
    /// Whether an endpoint holds it that should not any more: it is granted to nobody.
    pub stale: bool,
    /// Endpoints outside that boundary which were granted it, and what.
    pub holders: BTreeMap<EndpointId, Right>,
}

/// How many joined rings entitle an endpoint to segments of one protection domain of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Rings to QPs that allow READ.
    pub reads: usize,
    /// Rings to QPs that allow WRITE or atomics.
    pub writes: usize,
    /// All rings.
    pub rings: usize,
}

impl Rights {
    /// What one ring to a QP with these access flags counts.
    pub(crate) fn of(access: u32) -> Rights {
        let access = Access::from_bits_retain(access);
        Rights {
            reads: usize::from(access.contains(Access::REMOTE_READ)),
            writes: usize::from(access.intersects(Access::REMOTE_CHANGE)),
            rings: 1,
        }
    }

    /// Counts more rings.
    pub(crate) fn add(&mut self, more: Rights) {
        self.reads += more.reads;
        self.writes += more.writes;
        self.rings += more.rings;
    }

    /// Counts rings no more.
    pub(crate) fn remove(&mut self, less: Rights) {
        self.reads -= less.reads;
        self.writes -= less.writes;
        self.rings -= less.rings;
    }

    /// The greatest right to a segment.
    pub(crate) fn to(self, writable: bool) -> Option<Right> {
        if writable && self.writes > 0 {
            Some(Right::Write)
        } else {
            (self.reads > 0).then_some(Right::Read)
        }
    }
}

impl Segment {
    /// A segment that nobody was granted.
    pub(crate) fn new(fd: OwnedFd, pd: u32, writable: bool, inside: bool) -> Segment {
        Segment {
            fd: fd.into(),
            pd,
            writable,
            inside,
            stale: false,
            holders: BTreeMap::new(),
        }
    }

    /// An endpoint outside the owner's trust boundary has been granted it.
    pub(crate) fn note_holder(&mut self, id: EndpointId, right: Right) {
        let held = self.holders.entry(id).or_insert(right);
        *held = right.max(*held);
    }
}
