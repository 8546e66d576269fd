//! The direct wire: a peer's memory accessed by this process itself, where it is mapped.
//!
//! The check of a region's entry is this side's courtesy, as a NIC's would be the peer's; what
//! protects the peer is that the broker hands out descriptors for no more than was granted. A
//! segment that is not mapped yet is asked for by the broker thread, and the access goes by ring.

mod in_process;
#[cfg(test)]
mod tests;

pub(crate) use in_process::InProcess;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use causeway_proto::host::{AtomicOp, MemError, Remote};
use causeway_proto::reach::{NotDone, Reach, Target};
use causeway_proto::types::Access;
use causeway_proto::{Bytes, BytesMut};
use causeway_shm::{Arena, Grant, MrEntry, NO_SEGMENT, PeerMrs, Publication, Ring, Stamp, Window};

use crate::copy;
use crate::peer_process::PeerProcess;
use crate::tap::Tap;

/// Most bytes copied under one look at the region's entry: how long its owner may have to wait to
/// take it back.
const ACCESS_MAX: u32 = 256 << 10;
/// Most bytes of a work request that goes the short way, which is one access.
pub(crate) const LONGEST: u32 = ACCESS_MAX;
/// Segments that the broker refused, remembered for one queue pair; beyond, they are forgotten and
/// asked for again.
const REFUSED_MAX: usize = 64;

/// The broker's answer to a queue pair that wants a segment.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Here it is.
    Granted(Arc<Arena>),
    /// This is the peer's process, where that was asked for ([`NO_SEGMENT`]); `None`: one that is
    /// not to be read from.
    Process(Option<Arc<PeerProcess>>),
    /// Not for this queue pair, as long as its peer grants what it does.
    Refused,
    /// It could not be asked, or does not know both ends yet.
    NotNow,
}

/// A segment of a peer, in use by a queue pair.
#[derive(Clone, Debug)]
struct Opened {
    segment: u64,
    arena: Arc<Arena>,
    window: Window,
}

/// Where a region of the peer's was found last.
#[derive(Debug)]
struct Translation {
    key: u32,
    /// What peers may do with it: its entry, what was granted and how it is mapped taken together.
    access: u32,
    /// The addresses that are in the window, and where the first one is mapped.
    from: u64,
    to: u64,
    at: *mut u8,
    /// In how many places from there on 8 bytes may begin that are written.
    words: u64,
    /// What all that was found by: as long as the peer says the same, it holds.
    publication: Publication,
    grant: Grant,
    /// Keeps the window mapped.
    _arena: Arc<Arena>,
}

// SAFETY: the address leads into a segment that is mapped as long as the arena is held, whichever
// thread holds it.
unsafe impl Send for Translation {}

/// Where a target is, as long as what it was found by holds.
pub(crate) struct Cached<'a> {
    pub at: *mut u8,
    by: &'a Translation,
}

impl Cached<'_> {
    /// Whether it does, between [`Ring::enter`], which said what is granted, and [`Ring::leave`].
    #[inline(always)]
    pub fn still_holds(&self, grant: Grant) -> bool {
        grant == self.by.grant && self.by.publication.is_still()
    }
}

/// A queue pair's view of its peer's memory.
#[derive(Debug)]
pub(crate) struct Direct {
    mrs: PeerMrs,
    translation: Option<Translation>,
    /// The peer's queue pair.
    peer_qpn: u32,
    /// Segments the broker has handed out for this queue pair.
    arenas: HashMap<u64, Arc<Arena>>,
    /// The one used last.
    opened: Option<Opened>,
    /// Segments that are not to be had, by what was granted when they were asked for.
    refused: Vec<(u64, Grant)>,
    /// A segment to ask the broker for, and what is granted.
    wanted: Option<(u64, Grant)>,
    /// READs from where the peer's memory is in its process.
    in_process: InProcess,
    /// Accesses carried out, not reported yet.
    done: u64,
}

impl Direct {
    /// With the peer's table of memory regions, and the number of its queue pair.
    pub fn new(mrs: PeerMrs, peer_qpn: u32, in_process: InProcess) -> Self {
        Direct {
            mrs,
            translation: None,
            peer_qpn,
            arenas: HashMap::new(),
            opened: None,
            refused: Vec::new(),
            wanted: None,
            in_process,
            done: 0,
        }
    }

    /// How many accesses were carried out since this was last asked.
    #[inline]
    pub fn take_done(&mut self) -> u64 {
        std::mem::take(&mut self.done)
    }

    /// The segment to ask the broker for.
    pub fn wanted(&self) -> Option<u64> {
        self.wanted.map(|(segment, _)| segment)
    }

    /// The broker's answer about the segment that was wanted.
    pub fn answer(&mut self, answer: Answer) {
        let Some((segment, grant)) = self.wanted.take() else {
            return;
        };
        match answer {
            Answer::Granted(arena) => _ = self.arenas.insert(segment, arena),
            Answer::Process(process) => self.in_process.know(process),
            Answer::Refused => {
                if self.refused.len() >= REFUSED_MAX {
                    self.refused.clear();
                }
                self.refused.push((segment, grant));
            }
            Answer::NotNow => {}
        }
    }

    /// Where a range was found before, if that was inside the region used last.
    #[inline(always)]
    pub fn cached(&self, key: u32, addr: u64, len: u32, what: Remote) -> Option<Cached<'_>> {
        let known = self.translation.as_ref()?;
        if known.key != key || known.access & access(what) == 0 {
            return None;
        }
        let before = addr.checked_sub(known.from)?;
        if addr.checked_add(len.into())? > known.to {
            return None;
        }
        Some(Cached {
            at: known.at.wrapping_add(before as usize),
            by: known,
        })
    }

    /// As [`Direct::cached`], of 8 bytes that are to be written.
    #[inline(always)]
    pub fn cached_word(&self, key: u32, addr: u64) -> Option<Cached<'_>> {
        let known = self.translation.as_ref()?;
        let before = addr.wrapping_sub(known.from);
        if known.key != key || before >= known.words {
            return None;
        }
        Some(Cached {
            at: known.at.wrapping_add(before as usize),
            by: known,
        })
    }

    /// Remembers where a region is whose byte at an offset of the segment was just found. The
    /// entry may lie: what counts is that all it makes of addresses is inside the window.
    fn remember(&mut self, entry: &MrEntry, (stamp, grant): (Stamp, Grant), offset: u64) {
        let same = |known: &Translation| {
            known.key == entry.key && known.publication.stamp() == stamp && known.grant == grant
        };
        if self.translation.as_ref().is_some_and(same) {
            return;
        }
        let Some(opened) = &self.opened else { return };
        // From the region's start, unless that is in another window.
        let begin = entry.start.max(entry.offset);
        let begin = opened.window.at(begin).map_or(offset, |_| begin);
        let end = entry.offset.saturating_add(entry.len).min(entry.end);
        let (Some((at, room)), Some(before)) =
            (opened.window.at(begin), begin.checked_sub(entry.offset))
        else {
            return;
        };
        let (Some(from), Some(publication)) = (
            entry.iova.checked_add(before),
            self.mrs.watch(entry.key, stamp),
        ) else {
            return;
        };
        let len = end.saturating_sub(begin).min(room as u64);
        let writes = access(Remote::Write) | access(Remote::Atomic);
        let mapped = if opened.arena.is_writable() {
            u32::MAX
        } else {
            !writes
        };
        let allowed = entry.access & grant.access() & mapped;
        let to = from.saturating_add(len);
        let words = match allowed & access(Remote::Write) {
            0 => 0,
            _ => (to - from).saturating_sub(size_of::<u64>() as u64 - 1),
        };
        self.translation = Some(Translation {
            key: entry.key,
            access: allowed,
            from,
            to,
            at,
            words,
            publication,
            grant,
            _arena: Arc::clone(&opened.arena),
        });
    }

    /// Where an offset of a segment is mapped, and how many bytes from there on.
    #[inline]
    fn at(
        &mut self,
        segment: u64,
        offset: u64,
        write: bool,
        grant: Grant,
    ) -> Option<(*mut u8, usize)> {
        if let Some(opened) = &self.opened
            && opened.segment == segment
            && (opened.arena.is_writable() || !write)
            && let Some(found) = opened.window.at(offset)
        {
            return Some(found);
        }
        self.open(segment, offset, write, grant)
    }

    #[cold]
    fn open(
        &mut self,
        segment: u64,
        offset: u64,
        write: bool,
        grant: Grant,
    ) -> Option<(*mut u8, usize)> {
        let Some(arena) = self.arenas.get(&segment) else {
            if self.wanted.is_none() && !self.refused.contains(&(segment, grant)) {
                self.wanted = Some((segment, grant));
            }
            return None;
        };
        if write && !arena.is_writable() {
            return None;
        }
        let window = arena.window(offset).ok()?;
        let arena = Arc::clone(arena);
        self.opened = Some(Opened {
            segment,
            arena,
            window,
        });
        window.at(offset)
    }
}

/// A queue pair's reach into its peer's memory, for the length of a call.
pub(crate) struct Reaching<'a> {
    pub ring: &'a Ring,
    pub direct: &'a mut Direct,
    /// What the queue pair is traced by.
    pub tap: Option<&'a Tap>,
}

/// The access that peers must have been given.
fn access(what: Remote) -> u32 {
    match what {
        Remote::Read => Access::REMOTE_READ.bits(),
        Remote::Write => Access::REMOTE_WRITE.bits(),
        Remote::Atomic => Access::REMOTE_ATOMIC.bits(),
    }
}

/// An access that has begun: where its bytes are, and how many at most.
struct OpenAccess {
    at: *mut u8,
    room: u32,
}

impl Reaching<'_> {
    /// The entry of a target, its stamp and the target's offset, if the access is allowed.
    #[inline]
    fn check(&self, pd: u32, target: Target, what: Remote) -> Option<(MrEntry, Stamp, u64)> {
        let (entry, stamp) = self.direct.mrs.find(target.rkey)?;
        let need = access(what);
        let bound_here = entry.qpn == 0 || entry.qpn == self.direct.peer_qpn;
        if entry.pd != pd || !bound_here || entry.access & need != need {
            return None;
        }
        let offset = entry.locate(target.addr, target.len.into())?;
        Some((entry, stamp, offset))
    }

    /// Begins an access at byte `from` of a target. Whatever it returns, [`Ring::leave`] follows.
    #[inline]
    fn enter(&mut self, target: Target, from: u32, len: u32, what: Remote) -> Option<OpenAccess> {
        let grant = self.ring.enter(target.rkey);
        if !grant.allows(access(what)) {
            return None;
        }
        let (entry, stamp, offset) = self.check(grant.pd(), target, what)?;
        let offset = offset.checked_add(from.into())?;
        if !entry.holds(offset, len.into()) {
            return None;
        }
        let (at, room) = self
            .direct
            .at(entry.segment, offset, what != Remote::Read, grant)?;
        self.direct.remember(&entry, (stamp, grant), offset);
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        Some(OpenAccess { at, room })
    }

    /// Carries out `copy` on the bytes of `part`, one access after the other: it is given the
    /// offset in the target, the address, the length.
    #[inline]
    fn in_accesses(
        &mut self,
        target: Target,
        part: Range<u32>,
        what: Remote,
        mut copy: impl FnMut(u32, *mut u8, u32) -> Result<(), MemError>,
    ) -> Result<(), NotDone> {
        let mut from = part.start;
        while from < part.end {
            let len = ACCESS_MAX.min(part.end - from);
            let mut done = Err(NotDone::Elsewhere);
            let mut copied = 0;
            if let Some(part_open) = self.enter(target, from, len, what) {
                copied = len.min(part_open.room);
                done = copy(from, part_open.at, copied).map_err(|why| match why {
                    // The peer's memory, for which there was no page.
                    MemError::Elsewhere => NotDone::Elsewhere,
                    why => NotDone::Local(why),
                });
                if let (Ok(()), Some(tap)) = (&done, self.tap) {
                    // SAFETY: as of the copy that was just made.
                    let bytes = unsafe { Bytes::from_raw(part_open.at, copied as usize) };
                    tap.direct(what, target, from, bytes, from + copied == part.end);
                }
            }
            if !self.ring.leave() {
                return Err(NotDone::Evicted);
            }
            done?;
            from += copied;
        }
        self.direct.done += 1;
        Ok(())
    }
}

impl Reach for Reaching<'_> {
    #[inline]
    fn part(&mut self, target: Target, what: Remote) -> Option<Range<u32>> {
        let grant = self.ring.peer_grant();
        if target.len == 0 || !grant.allows(access(what)) {
            return None;
        }
        let (entry, _, offset) = self.check(grant.pd(), target, what)?;
        if entry.segment == NO_SEGMENT {
            let region = (entry.key, entry.len);
            let reads = what == Remote::Read && self.reads_in_process(region, target.len, grant);
            return reads.then_some(0..target.len);
        }
        let end = offset.checked_add(target.len.into())?;
        let (from, to) = (offset.max(entry.start), end.min(entry.end));
        let misaligned = what == Remote::Atomic && !target.addr.is_multiple_of(8);
        if from >= to || misaligned || !entry.holds(from, to - from) {
            return None;
        }
        let writes = what != Remote::Read;
        self.direct.at(entry.segment, from, writes, grant)?;
        let range = u32::try_from(from - offset).ok()?..u32::try_from(to - offset).ok()?;
        Some(range)
    }

    #[inline]
    fn write(
        &mut self,
        target: Target,
        part: Range<u32>,
        mut fill: impl FnMut(u32, BytesMut<'_>) -> Result<(), MemError>,
    ) -> Result<(), NotDone> {
        let end = part.end;
        self.in_accesses(target, part, Remote::Write, |from, at, len| {
            let tail = if from + len == end {
                copy::last_word(at.addr() + len as usize, len as usize)
            } else {
                0
            };
            let body = len as usize - tail;
            copy::map_around(at, body);
            if body > 0 {
                // SAFETY: inside the peer's segment, which is mapped and whose size is sealed; no
                // reference covers it.
                fill(from, unsafe { BytesMut::from_raw(at, body) })?;
            }
            if tail > 0 {
                let mut word = [0; 8];
                fill(from + body as u32, BytesMut::from(&mut word[..tail]))?;
                // SAFETY: as above.
                unsafe { copy::store_last_word(at.wrapping_add(body), &word[..tail]) }
                    .map_err(|_| MemError::Elsewhere)?;
            }
            Ok(())
        })
    }

    #[inline]
    fn read(
        &mut self,
        target: Target,
        mut take: impl FnMut(u32, Bytes<'_>) -> Result<(), MemError>,
    ) -> Result<(), NotDone> {
        let done = self.in_accesses(target, 0..target.len, Remote::Read, |from, at, len| {
            // SAFETY: as in `write`.
            take(from, unsafe { Bytes::from_raw(at, len as usize) })
        });
        match done {
            Err(NotDone::Elsewhere) => self.read_in_process(target, take),
            done => done,
        }
    }

    fn atomic(&mut self, target: Target, op: AtomicOp) -> Result<u64, NotDone> {
        let mut before = Err(NotDone::Elsewhere);
        if let Some(part_open) = self.enter(target, 0, target.len, Remote::Atomic)
            && part_open.at.addr() % 8 == 0
        {
            // SAFETY: as in `write`, and 8 aligned bytes: atomic for all that have them mapped.
            before = unsafe { copy::atomic(part_open.at, op) }.map_err(|_| NotDone::Elsewhere);
        }
        if !self.ring.leave() {
            return Err(NotDone::Evicted);
        }
        self.direct.done += u64::from(before.is_ok());
        if let (Ok(before), Some(tap)) = (&before, self.tap) {
            tap.direct_atomic(target, op, *before);
        }
        before
    }
}
