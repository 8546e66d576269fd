//! Replicas of reflective-memory groups: who has which.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use causeway_fabric::services::sisci::Backing;
use causeway_fabric::sisci::replicas::{REPLICAS_MAX, file_bytes, offset};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, pread, pwrite};

use super::Tables;
use super::segments::{Holder, Segment};
use crate::ids::SessionId;
use crate::session::UNFINISHED;

/// Bytes of a replica that are emptied by one call, which takes some milliseconds at most.
pub(super) const EMPTIED_AT_ONCE: u64 = 16 << 20;
/// How long one turn of the event loop goes on emptying; each makes one call at least. What is
/// empty already takes a microsecond or two. Tests make one call in a turn.
const EMPTYING_TIME: Duration = Duration::from_millis(if cfg!(test) { 0 } else { 5 });

/// Bytes of the memory of a segment of `size`.
pub(super) fn memory_bytes(backing: Backing, size: u64) -> u64 {
    match backing {
        Backing::Group => file_bytes(size).unwrap_or(u64::MAX),
        _ => size,
    }
}

impl Segment {
    /// Where the memory of one of the holders begins.
    pub(super) fn offset_of(&self, by: (SessionId, u32)) -> u64 {
        let is_it = |holder: &&Holder| (holder.session, holder.handle) == by;
        self.place_of(self.holders.iter().find(is_it))
    }

    /// Where a holder's memory begins; without replicas, all have the same.
    pub(super) fn place_of(&self, holder: Option<&Holder>) -> u64 {
        let replica = holder.and_then(|holder| holder.replica);
        replica.map_or(self.offset, |replica| offset(replica, self.size))
    }

    /// Says to those who store to the group whether somebody has a replica.
    pub(super) fn mark(&self, replica: Option<usize>, used: bool) {
        if let (Some(replica), Some(memory)) = (replica, &self.memory) {
            // Without memory for the first page, nothing of the group works.
            let _ = pwrite(memory, &[u8::from(used)], replica as u64);
        }
    }

    fn is_held(&self, replica: usize) -> bool {
        let mut holders = self.holders.iter();
        holders.any(|holder| holder.replica == Some(replica))
    }

    /// A replica that no holder has, and nobody empties; of those, one that was given to nobody, so
    /// that a member which has not come back after a restart keeps its own.
    fn free_replica(&self, memory: &OwnedFd) -> Result<usize, Errno> {
        let mut marks = [0; REPLICAS_MAX];
        pread(memory, &mut marks, 0)?;
        let taken = |replica: &usize| self.is_held(*replica) || self.emptying.contains_key(replica);
        let mut free = (0..REPLICAS_MAX).filter(|replica| !taken(replica));
        let first = free.clone().next().ok_or(Errno::MFILE)?;
        Ok(free.find(|replica| marks[*replica] == 0).unwrap_or(first))
    }
}

/// That a replica is being emptied for its next holder, which gets it when nothing is left of what
/// a former one had there. Who had it before does not get it back from the first part on, also
/// where the session that it is for has ended: then the next that asks begins anew with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Emptying {
    session: SessionId,
    /// Bytes at its beginning that are empty.
    done: u64,
}

impl Emptying {
    /// Empties the next part. True when all is empty.
    fn go_on(&mut self, memory: &OwnedFd, (from, size): (u64, u64)) -> Result<bool, Errno> {
        let empty = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let begun = Instant::now();
        loop {
            let part = EMPTIED_AT_ONCE.min(size - self.done);
            fallocate(memory, empty, from + self.done, part)?;
            self.done += part;
            if self.done == size || begun.elapsed() >= EMPTYING_TIME {
                return Ok(self.done == size);
            }
        }
    }
}

impl Tables {
    /// An empty replica for one more holder of a segment, if its holders have any.
    ///
    /// # Errors
    /// [`UNFINISHED`] if more is to be emptied than can be in one turn of the event loop.
    pub(super) fn take_replica(
        &mut self,
        session: SessionId,
        name: u64,
    ) -> Result<Option<usize>, Errno> {
        let segment = self.segments.get_mut(&name).ok_or(Errno::NOENT)?;
        let Some(memory) = segment.memory.as_ref().filter(|_| segment.replicas) else {
            return Ok(None);
        };
        let own = |of: &Emptying| of.session == session;
        let left = |of: &Emptying| !self.holdings.contains_key(&of.session);
        let begun = |which: &dyn Fn(&Emptying) -> bool| {
            let mut all = segment.emptying.iter();
            all.find(|(_, of)| which(of))
                .map(|(replica, of)| (*replica, *of))
        };
        let anew = Emptying { session, done: 0 };
        let (replica, mut emptying) = match (begun(&own), begun(&left)) {
            (Some(found), _) => found,
            (None, Some((replica, _))) => (replica, anew),
            (None, None) => (segment.free_replica(memory)?, anew),
        };
        let range = (offset(replica, segment.size), segment.size);
        if emptying.go_on(memory, range)? {
            segment.emptying.remove(&replica);
            return Ok(Some(replica));
        }
        segment.emptying.insert(replica, emptying);
        Err(UNFINISHED)
    }
}
