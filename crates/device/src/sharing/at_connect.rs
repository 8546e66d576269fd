//! Moves as a protection domain's first queue pair is connected to a peer on this host that is
//! inside the trust boundary and may access its memory.
//!
//! What a program has registered by then outlives one transfer, so it is moved at once, where it is
//! little enough: the first requests find it in place, instead of filling rings that the target's
//! library has to empty ([`crate::deferred_move`]).
//!
//! The thread that connects moves it itself. A program of one thread can't close or replace
//! descriptors while that thread is in here, so none of those that a move uses for a moment can
//! become its own.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use causeway_proto::types::Access;

use super::{Kept, Region, Sharing};
use crate::move_threshold;

/// Bytes that are moved, all regions together: the thread that connects waits for it, some 0.3 ms
/// and 0.5 ms a MiB.
const BYTES_MAX: usize = 8 << 20;
/// Regions that are moved.
const MOVES_MAX: usize = 16;
/// Regions that cannot be moved, after which no more are tried: each takes as long as one that can.
const FAILURES_MAX: usize = 3;
/// Protection domains of an endpoint of which memory is moved so. Each has segments, and so
/// descriptors, of its own, and pieces of memory that are moved are counted; a program with a
/// domain for each of its many connections has most of them without a request.
const DOMAINS_MAX: usize = 16;

impl Sharing {
    /// Moves what is registered in a domain and lets peers do something of `access`: the longest
    /// first, within the limits above. The rest waits to be used. A queue pair of the domain has
    /// just been connected to a peer on this host, inside the trust boundary.
    pub fn move_at_connect(&self, pd: u32, access: Access) {
        if !move_threshold::waits() || !access.intersects(Access::REMOTE) {
            return;
        }
        let mut waiting: Vec<_> = self
            .take_registered_before(pd)
            .into_iter()
            .filter_map(|region| Some((region.waits()?, region)))
            .filter(|((allowed, _), _)| allowed.intersects(access & Access::REMOTE))
            .map(|((_, len), region)| (len, region))
            .filter(|(len, _)| *len <= BYTES_MAX)
            .collect();
        if waiting.is_empty()
            || self.moved_at_connect.fetch_add(1, Ordering::Relaxed) >= DOMAINS_MAX
        {
            return;
        }
        waiting.sort_by_key(|(len, _)| Reverse(*len));
        let (mut room, mut moves, mut failures) = (BYTES_MAX, 0, 0);
        for (len, region) in waiting {
            if len > room {
                continue;
            }
            match region.place(self) {
                Ok(()) => (room, moves) = (room - len, moves + 1),
                Err(Kept::Unserved) => break,
                Err(Kept::ForNow | Kept::ForGood) => failures += 1,
            }
            if moves == MOVES_MAX || failures == FAILURES_MAX {
                break;
            }
        }
    }

    /// The regions of a domain, once, and none of one with segments for peers outside the trust
    /// boundary.
    fn take_registered_before(&self, pd: u32) -> Vec<Arc<Region>> {
        let mut domains = self.domains.lock();
        let Some(domain) = domains.get_mut(&pd) else {
            return Vec::new();
        };
        if domain.exposed || std::mem::replace(&mut domain.moved_at_connect, true) {
            return Vec::new();
        }
        domain.regions.values().filter_map(Weak::upgrade).collect()
    }
}
