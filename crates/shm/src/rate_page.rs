//! The page in which processes count what they send, where they share a limit.
//!
//! It has a word for bytes and one for messages of each limit that is shared, a tenant's and a
//! virtual machine's. Each is the theoretical arrival time of the generic cell rate algorithm:
//! nanoseconds of `CLOCK_MONOTONIC`, 0 at first. Whoever sends changes them, and believes none
//! beyond what its limit lets through. The broker makes another page when a limit changes, so none
//! holds what was counted at another rate.

use crate::layout as l;
use crate::mem::Region;
use crate::segment::{Segment, SegmentError};
use crate::sync::{Arc, AtomicU64};

/// Whose limit is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedLimit {
    /// The tenant's.
    Tenant,
    /// The virtual machine's.
    Vm,
}

/// A page, mapped. Clones share the mapping.
#[derive(Clone, Debug)]
pub struct RatePage {
    mem: Region,
}

impl RatePage {
    /// The page in a segment.
    ///
    /// # Errors
    /// [`SegmentError::Format`] if that has another size.
    pub fn open(segment: Arc<Segment>) -> Result<RatePage, SegmentError> {
        let mem = Region::new(segment);
        match mem.len() == l::RATE_PAGE_BYTES {
            true => Ok(RatePage { mem }),
            false => Err(SegmentError::Format),
        }
    }

    /// What was counted of bytes.
    #[must_use]
    pub fn bytes(&self, of: SharedLimit) -> &AtomicU64 {
        self.mem.word(match of {
            SharedLimit::Tenant => l::RATE_BYTES_AT,
            SharedLimit::Vm => l::RATE_VM_BYTES_AT,
        })
    }

    /// What was counted of messages.
    #[must_use]
    pub fn messages(&self, of: SharedLimit) -> &AtomicU64 {
        self.mem.word(match of {
            SharedLimit::Tenant => l::RATE_MESSAGES_AT,
            SharedLimit::Vm => l::RATE_VM_MESSAGES_AT,
        })
    }
}
