//! READs from where the memory is in the peer's process ([`crate::peer_process`]), for as long as
//! it is in no segment.

use std::sync::Arc;

use causeway_proto::Bytes;
use causeway_proto::host::{MemError, Remote};
use causeway_proto::reach::{NotDone, Target};
use causeway_shm::{Grant, NO_SEGMENT};

use super::{ACCESS_MAX, Direct, Reaching, access};
use crate::peer_process::PeerProcess;
use crate::peers::PeerEnd;

/// READs from the peer's process before the first one that goes by ring.
const INTERVAL_FIRST: u32 = 8;
/// The longest such interval, which doubles each time.
const INTERVAL_MAX: u32 = 4096;

/// Whether a queue pair can read from its peer's process, and when it does not.
///
/// The peer does not notice a READ from its process. It moves a region to a segment once that has
/// been used often enough by ring ([`crate::deferred_move`]), and a segment is read several times
/// as fast. So now and then a READ goes by ring. As the peer may have memory that cannot be moved,
/// that happens ever more seldom.
#[derive(Debug)]
pub(crate) struct InProcess {
    process: Process,
    /// READs from the process since the last one by ring.
    reads: u32,
    /// How many there are before the next one by ring.
    interval: u32,
}

#[derive(Debug)]
enum Process {
    /// The broker has not been asked yet.
    Unknown,
    Known(Arc<PeerProcess>),
    /// This process does not read that one's memory.
    Refused,
}

impl InProcess {
    fn new(process: Process) -> InProcess {
        InProcess {
            process,
            reads: 0,
            interval: INTERVAL_FIRST,
        }
    }

    /// For a queue pair that never reads from its peer's process.
    pub fn never() -> InProcess {
        InProcess::new(Process::Refused)
    }

    /// For a queue pair whose peer is inside the trust boundary.
    pub fn of(peer: &PeerEnd) -> InProcess {
        InProcess::new(match peer.known_process() {
            Some(Some(process)) => Process::Known(process),
            None if peer.mrs.proof().is_some() => Process::Unknown,
            _ => Process::Refused,
        })
    }

    /// Whether the broker is to be asked for the process.
    pub fn is_to_ask(&self) -> bool {
        matches!(self.process, Process::Unknown)
    }

    /// The broker has said which process it is.
    pub fn found(&mut self, process: Arc<PeerProcess>) {
        self.process = Process::Known(process);
    }

    /// The broker does not say which process it is.
    pub fn refuse(&mut self) {
        self.process = Process::Refused;
    }

    /// The process, if the next READ is made in it.
    pub fn process(&self) -> Option<Arc<PeerProcess>> {
        match &self.process {
            Process::Known(process) if self.reads < self.interval && process.is_readable() => {
                Some(Arc::clone(process))
            }
            _ => None,
        }
    }

    /// Whether the next READ is made in the process. When it is the ring's turn, this returns false
    /// once, and a new interval begins.
    pub fn takes_next(&mut self) -> bool {
        if self.reads >= self.interval {
            self.reads = 0;
            self.interval = (2 * self.interval).min(INTERVAL_MAX);
            return false;
        }
        self.process().is_some()
    }

    /// A READ was made in the process.
    pub fn note_read(&mut self) {
        self.reads += 1;
    }
}

impl Direct {
    /// Has the broker asked for the peer's process, if it has not been.
    pub(super) fn ask_for_process(&mut self, grant: Grant) {
        if self.in_process.is_to_ask() && self.wanted.is_none() {
            self.wanted = Some((NO_SEGMENT, grant));
        }
    }
}

impl Reaching<'_> {
    /// Whether a READ of `len` bytes is made from the peer's process. Has the broker asked for that
    /// process if it is not known yet.
    pub(super) fn reads_in_process(&mut self, len: u32, grant: Grant) -> bool {
        self.direct.ask_for_process(grant);
        len <= ACCESS_MAX && self.direct.in_process.takes_next()
    }

    /// Reads all of a target where it is in the peer's process: one access.
    #[cold]
    pub(super) fn read_in_process(
        &mut self,
        target: Target,
        mut take: impl FnMut(u32, Bytes<'_>) -> Result<(), MemError>,
    ) -> Result<(), NotDone> {
        let Some(process) = self.direct.in_process.process() else {
            let grant = self.ring.peer_grant();
            let found = self.check(grant.pd(), target, Remote::Read);
            if found.is_some_and(|(entry, _, _)| entry.segment == NO_SEGMENT) {
                self.direct.ask_for_process(grant);
            }
            return Err(NotDone::Elsewhere);
        };
        let grant = self.ring.enter(target.rkey);
        let found = self.check(grant.pd(), target, Remote::Read);
        let at = found.filter(|(entry, _, _)| entry.segment == NO_SEGMENT);
        let allowed = grant.allows(access(Remote::Read)) && target.len <= ACCESS_MAX;
        let mut done = Err(NotDone::Elsewhere);
        if let Some((_, _, at)) = at.filter(|_| allowed) {
            let tap = self.tap;
            let read = process.read(at, target.len as usize, |from, bytes| {
                let last = from + bytes.len() == target.len as usize;
                if let Some(tap) = tap {
                    tap.direct(Remote::Read, target, from as u32, bytes, last);
                }
                take(from as u32, bytes)
            });
            done = match read {
                None => Err(NotDone::Elsewhere),
                Some(read) => read.map_err(NotDone::Local),
            };
        }
        if !self.ring.leave() {
            return Err(NotDone::Evicted);
        }
        done?;
        self.direct.in_process.note_read();
        self.direct.done += 1;
        Ok(())
    }
}
