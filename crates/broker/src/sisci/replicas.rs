//! Replicas of reflective-memory groups: who has which.

use std::os::fd::OwnedFd;

use causeway_fabric::services::sisci::Backing;
use causeway_fabric::sisci::replicas::{REPLICAS_MAX, file_bytes, offset};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, pread, pwrite};

use super::Tables;
use super::segments::{Holder, Segment};
use crate::ids::SessionId;

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

    /// A replica that no holder has, and empty; of those, one that was given to nobody, so that a
    /// member which has not come back after a restart keeps its own.
    fn free_replica(&self, memory: &OwnedFd) -> Result<usize, Errno> {
        let held = |replica: usize| {
            let mut holders = self.holders.iter();
            holders.any(|holder| holder.replica == Some(replica))
        };
        let mut marks = [0; REPLICAS_MAX];
        pread(memory, &mut marks, 0)?;
        let mut free = (0..REPLICAS_MAX).filter(|replica| !held(*replica));
        let first = free.clone().next().ok_or(Errno::MFILE)?;
        let replica = free.find(|replica| marks[*replica] == 0).unwrap_or(first);
        let empty = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(memory, empty, offset(replica, self.size), self.size)?;
        Ok(replica)
    }
}

impl Tables {
    /// A replica for one more holder of a segment, if its holders have any.
    pub(super) fn take_replica(&self, name: u64) -> Result<Option<usize>, Errno> {
        let segment = self.segments.get(&name).ok_or(Errno::NOENT)?;
        match &segment.memory {
            Some(memory) if segment.replicas => segment.free_replica(memory).map(Some),
            _ => Ok(None),
        }
    }
}
