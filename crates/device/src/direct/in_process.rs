//! READs from where the memory is in the peer's process ([`crate::peer_process`]), for as long as
//! it is in no segment.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use causeway_proto::Bytes;
use causeway_proto::host::{MemError, Remote};
use causeway_proto::reach::{NotDone, Target};
use causeway_shm::ring::Proof;
use causeway_shm::{Grant, NO_SEGMENT, Ring};

use super::{ACCESS_MAX, Direct, Reaching, access};
use crate::deferred_move::counts_for;
use crate::move_threshold::ACCESSES_BEFORE_MOVE;
use crate::peer_process::{PeerProcess, is_allowed};
use crate::peers::PeerEnd;

/// Regions of which a queue pair remembers how much it has read; beyond, it begins anew.
const REGIONS_MAX: usize = 64;
/// How often the part that is read from the process doubles, each time that the part by ring has
/// not moved the region.
const DOUBLED_MAX: u32 = 16;

/// A queue pair's READs from its peer's process.
#[derive(Debug)]
pub(crate) struct InProcess {
    process: Process,
    /// By key.
    regions: HashMap<u32, Use>,
    /// Makes numbers that nobody can foresee, from a count.
    random: RandomState,
    count: AtomicU64,
}

#[derive(Debug)]
enum Process {
    /// The broker has not been asked yet.
    Unknown,
    Known(Arc<PeerProcess>),
    /// This process does not read that one's memory.
    Refused,
}

/// How a region is read: as much from the process as its owner takes by ring until it moves the
/// region ([`crate::deferred_move`]), then as much by ring. If it has not moved then, perhaps as it
/// cannot be, twice as much from the process, and so on.
#[derive(Debug)]
struct Use {
    by_ring: bool,
    /// What is left of the part under way, in bytes as the owner counts them.
    left: u64,
    /// How often the part from the process has doubled.
    doubled: u32,
}

/// Bytes that the owner counts until it moves a region.
fn enough(len: u64) -> u64 {
    len.max(1).saturating_mul(ACCESSES_BEFORE_MOVE)
}

impl Use {
    fn new(len: u64) -> Use {
        Use {
            by_ring: false,
            left: enough(len),
            doubled: 0,
        }
    }

    /// A READ has been made as it is the turn of. The next part begins with the end of this one.
    fn note(&mut self, len: u64, bytes: u64) {
        self.left = self.left.saturating_sub(counts_for(len, bytes));
        if self.left > 0 {
            return;
        }
        self.by_ring = !self.by_ring;
        self.left = enough(len);
        if !self.by_ring {
            self.doubled = (self.doubled + 1).min(DOUBLED_MAX);
            self.left = self.left.saturating_mul(1 << self.doubled);
        }
    }
}

impl InProcess {
    fn new(process: Process) -> InProcess {
        InProcess {
            process,
            regions: HashMap::new(),
            random: RandomState::new(),
            count: AtomicU64::new(0),
        }
    }

    /// For a queue pair that never reads from its peer's process.
    pub fn never() -> InProcess {
        InProcess::new(Process::Refused)
    }

    /// For a queue pair whose peer is inside the trust boundary.
    pub fn of(peer: &PeerEnd) -> InProcess {
        let mut in_process = InProcess::new(Process::Unknown);
        match peer.known_process() {
            _ if !is_allowed() => in_process.process = Process::Refused,
            Some(known) => in_process.know(known),
            None => {}
        }
        in_process
    }

    /// Whether the broker is to be asked for the process.
    pub fn is_to_ask(&self) -> bool {
        matches!(self.process, Process::Unknown)
    }

    /// It is known which process it is; `None`: one that is not to be read from.
    pub fn know(&mut self, process: Option<Arc<PeerProcess>>) {
        self.process = process.map_or(Process::Refused, Process::Known);
    }

    /// The process, if it can be read from.
    fn process(&self) -> Option<Arc<PeerProcess>> {
        match &self.process {
            Process::Known(process) if process.is_readable() => Some(Arc::clone(process)),
            _ => None,
        }
    }

    fn region(&mut self, key: u32, len: u64) -> &mut Use {
        if self.regions.len() >= REGIONS_MAX && !self.regions.contains_key(&key) {
            self.regions.clear();
        }
        self.regions.entry(key).or_insert_with(|| Use::new(len))
    }

    fn is_turn_of_ring(&self, key: u32) -> bool {
        self.regions.get(&key).is_some_and(|region| region.by_ring)
    }

    /// Whether a READ of so many bytes of a region is made in the process. If not, it counts as
    /// made by ring.
    fn takes(&mut self, key: u32, len: u64, bytes: u64) -> bool {
        if self.process().is_none() {
            return false;
        }
        let region = self.region(key, len);
        if region.by_ring {
            region.note(len, bytes);
            return false;
        }
        true
    }

    /// The memory is not to be had in the process, whatever the reason: the next READs go by ring.
    fn note_failure(&mut self, key: u32, len: u64) {
        let region = self.region(key, len);
        (region.by_ring, region.left) = (true, u64::MAX);
    }

    /// What the peer's process alone has, until the next call.
    fn prove(&self, ring: &Ring) -> Option<Proof> {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        ring.challenge(self.random.hash_one(count))
    }
}

impl Direct {
    /// Has the broker asked for the peer's process, if it has not been.
    fn ask_for_process(&mut self, grant: Grant) {
        if self.in_process.is_to_ask() && self.wanted.is_none() {
            self.wanted = Some((NO_SEGMENT, grant));
        }
    }
}

impl Reaching<'_> {
    /// Whether a READ of `bytes` bytes of a region of `len` bytes is made from the peer's process.
    /// Has the broker asked for that process if it is not known yet.
    pub(super) fn reads_in_process(
        &mut self,
        (key, len): (u32, u64),
        bytes: u32,
        grant: Grant,
    ) -> bool {
        self.direct.ask_for_process(grant);
        bytes <= ACCESS_MAX && self.direct.in_process.takes(key, len, bytes.into())
    }

    /// Reads all of a target where it is in the peer's process: one access.
    #[cold]
    pub(super) fn read_in_process(
        &mut self,
        target: Target,
        mut take: impl FnMut(u32, Bytes<'_>) -> Result<(), MemError>,
    ) -> Result<(), NotDone> {
        let direct = &self.direct;
        let Some(process) = direct.in_process.process() else {
            let grant = self.ring.peer_grant();
            let found = self.check(grant.pd(), target, Remote::Read);
            if found.is_some_and(|(entry, _, _)| entry.segment == NO_SEGMENT) {
                self.direct.ask_for_process(grant);
            }
            return Err(NotDone::Elsewhere);
        };
        if target.len > ACCESS_MAX || direct.in_process.is_turn_of_ring(target.rkey) {
            return Err(NotDone::Elsewhere);
        }
        let grant = self.ring.enter(target.rkey);
        let found = self.check(grant.pd(), target, Remote::Read);
        let allowed = grant.allows(access(Remote::Read));
        let found = found.filter(|(entry, _, _)| allowed && entry.segment == NO_SEGMENT);
        let mut done = Err(NotDone::Elsewhere);
        if let Some((_, _, at)) = found {
            done = self.copy_from(&process, at, target, &mut take);
        }
        if !self.ring.leave() {
            return Err(NotDone::Evicted);
        }
        let in_process = &mut self.direct.in_process;
        if let Some((entry, _, _)) = found {
            match done {
                Ok(()) => {
                    let region = in_process.region(target.rkey, entry.len);
                    region.note(entry.len, target.len.into());
                }
                Err(NotDone::Elsewhere) => in_process.note_failure(target.rkey, entry.len),
                Err(_) => {}
            }
        }
        done?;
        self.direct.done += 1;
        Ok(())
    }

    /// Copies a target from an address of the process.
    fn copy_from(
        &self,
        process: &PeerProcess,
        at: u64,
        target: Target,
        take: &mut impl FnMut(u32, Bytes<'_>) -> Result<(), MemError>,
    ) -> Result<(), NotDone> {
        let prove = || self.direct.in_process.prove(self.ring);
        let read = process.read(at, target.len as usize, prove, |from, bytes| {
            let last = from + bytes.len() == target.len as usize;
            if let Some(tap) = self.tap {
                tap.direct(Remote::Read, target, from as u32, bytes, last);
            }
            take(from as u32, bytes)
        });
        match read {
            None => Err(NotDone::Elsewhere),
            Some(read) => read.map_err(NotDone::Local),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many READs of so many bytes come in each part.
    fn parts(len: u64, bytes: u64) -> Vec<(bool, u32)> {
        let mut region = Use::new(len);
        let mut parts = Vec::new();
        for _ in 0..6 {
            let by_ring = region.by_ring;
            let mut count = 0;
            while region.by_ring == by_ring {
                region.note(len, bytes);
                count += 1;
            }
            parts.push((by_ring, count));
        }
        parts
    }

    #[test]
    fn the_owner_gets_what_it_takes_to_move_a_region_and_ever_more_is_read_between() {
        let [process, ring] = [false, true];
        let of_four = [
            (process, 4),
            (ring, 4),
            (process, 8),
            (ring, 4),
            (process, 16),
            (ring, 4),
        ];
        assert_eq!(parts(4096, 8), of_four);
        assert_eq!(parts(64 << 10, 64 << 10), of_four);
        assert_eq!(parts(1 << 20, 64 << 10)[..2], [(process, 64), (ring, 64)]);
        assert_eq!(parts(0, 8)[..2], [(process, 4), (ring, 4)]);
    }

    #[test]
    fn regions_are_counted_by_themselves_and_few_are_remembered() {
        let mut reads = InProcess::never();
        for key in 1..=REGIONS_MAX as u32 {
            reads.region(key, 16).note(16, 16);
        }
        assert_eq!(reads.region(1, 16).left, enough(16) - 16);
        reads.note_failure(1, 16);
        assert!(reads.is_turn_of_ring(1) && !reads.is_turn_of_ring(2));
        reads.region(0, 16);
        assert_eq!(reads.regions.len(), 1);
    }
}
