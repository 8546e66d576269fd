//! Moves as a protection domain's first queue pair is connected.
//!
//! What a program has registered by then outlives one transfer, so it is moved at once, where it is
//! little enough: the first requests find it in place, instead of filling rings that the target's
//! library has to empty ([`crate::deferred_move`]).
//!
//! The thread that connects moves it itself. A program of one thread can't close or replace
//! descriptors while that thread is in here, so none of those that a move uses for a moment can
//! become its own.

use std::cmp::Reverse;
use std::sync::{Arc, Weak};

use causeway_proto::types::Access;

use super::{Kept, Region, Sharing};
use crate::move_threshold;

/// Bytes that are moved, all regions together: the thread that connects waits for it, some 0.3 ms
/// and 0.5 ms a MiB.
const BYTES_MAX: usize = 8 << 20;
/// Regions that are moved.
const MOVES_MAX: usize = 16;
/// Regions that are tried, whether they can be moved or not.
const TRIES_MAX: usize = 64;

impl Sharing {
    /// Moves what is registered in a domain and lets peers do something of `access`: the longest
    /// first, within the limits above. The rest waits to be used. A queue pair of the domain has
    /// just been connected to a peer on this host.
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
            .collect();
        waiting.sort_by_key(|(len, _)| Reverse(*len));
        let (mut room, mut moves) = (BYTES_MAX, MOVES_MAX);
        for (len, region) in waiting.into_iter().take(TRIES_MAX) {
            if len > room {
                continue;
            }
            match region.place(self) {
                Ok(()) => (room, moves) = (room - len, moves - 1),
                Err(Kept::Unserved) => break,
                Err(Kept::ForNow | Kept::ForGood) => {}
            }
            if moves == 0 {
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
