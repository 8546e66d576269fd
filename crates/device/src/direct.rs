//! The direct wire: a peer's memory accessed by this process itself, where it is mapped.
//!
//! The check of a region's entry is this side's courtesy, as a NIC's would be the peer's; what
//! protects the peer is that the broker hands out descriptors for no more than was granted. A
//! segment that is not mapped yet is asked for by the helper thread, and the access goes by ring.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use causeway_proto::host::{AtomicOp, MemError, Remote};
use causeway_proto::reach::{NotDone, Reach, Target};
use causeway_proto::types::Access;
use causeway_proto::{Bytes, BytesMut};
use causeway_shm::{Arena, Grant, MrEntry, PeerMrs, Ring, Window};

use crate::copy;

/// Most bytes copied under one look at the region's entry: how long its owner may have to wait to
/// take it back.
const BRACKET: u32 = 256 << 10;
/// Bytes that the kernel maps at once where a page of a file is first read, and not where it is
/// first written (`fault_around_bytes`, unless set otherwise).
const FAULT_AROUND: usize = 64 << 10;
/// Segments that the broker refused, remembered for one queue pair; beyond, they are forgotten and
/// asked for again.
const REFUSED_MAX: usize = 64;

/// The broker's answer to a queue pair that wants a segment.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Here it is.
    Granted(Arc<Arena>),
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

/// A queue pair's view of its peer's memory.
#[derive(Debug)]
pub(crate) struct Direct {
    mrs: PeerMrs,
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
    /// Accesses carried out, not reported yet.
    done: u64,
}

impl Direct {
    /// With the peer's table of memory regions, and the number of its queue pair.
    pub fn new(mrs: PeerMrs, peer_qpn: u32) -> Self {
        Direct {
            mrs,
            peer_qpn,
            arenas: HashMap::new(),
            opened: None,
            refused: Vec::new(),
            wanted: None,
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
            Answer::Refused => {
                if self.refused.len() >= REFUSED_MAX {
                    self.refused.clear();
                }
                self.refused.push((segment, grant));
            }
            Answer::NotNow => {}
        }
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

/// Has the kernel map the pages of a long range by the dozen, before it is written one by one.
#[inline]
fn map_around(at: *mut u8, len: usize) {
    if len < FAULT_AROUND {
        return;
    }
    let mut byte = 0;
    for offset in (0..len).step_by(FAULT_AROUND) {
        // SAFETY: the caller is about to write there; what it reads is not used. Where nothing can
        // be read it will find out, too.
        let _ = unsafe { causeway_recover::copy(&raw mut byte, at.add(offset), 1) };
    }
}

/// A queue pair's reach into its peer's memory, for the length of a call.
pub(crate) struct Reaching<'a> {
    pub ring: &'a Ring,
    pub direct: &'a mut Direct,
}

/// The access that peers must have been given.
fn access(what: Remote) -> u32 {
    match what {
        Remote::Read => Access::REMOTE_READ.bits(),
        Remote::Write => Access::REMOTE_WRITE.bits(),
        Remote::Atomic => Access::REMOTE_ATOMIC.bits(),
    }
}

/// A bracket that has begun: where its bytes are, and how many at most.
struct Bracket {
    at: *mut u8,
    room: u32,
}

impl Reaching<'_> {
    /// The entry of a target and its offset, if the access is allowed.
    #[inline]
    fn check(&self, pd: u32, target: Target, what: Remote) -> Option<(MrEntry, u64)> {
        let entry = self.direct.mrs.get(target.rkey)?;
        let need = access(what);
        let bound_here = entry.qpn == 0 || entry.qpn == self.direct.peer_qpn;
        if entry.pd != pd || !bound_here || entry.access & need != need {
            return None;
        }
        let offset = entry.locate(target.addr, target.len.into())?;
        Some((entry, offset))
    }

    /// Begins a bracket at byte `from` of a target. Whatever it returns, [`Ring::leave`] follows.
    #[inline]
    fn enter(&mut self, target: Target, from: u32, len: u32, what: Remote) -> Option<Bracket> {
        let grant = self.ring.enter(target.rkey);
        if !grant.allows(access(what)) {
            return None;
        }
        let (entry, offset) = self.check(grant.pd(), target, what)?;
        let offset = offset.checked_add(from.into())?;
        if !entry.holds(offset, len.into()) {
            return None;
        }
        let (at, room) = self
            .direct
            .at(entry.segment, offset, what != Remote::Read, grant)?;
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        Some(Bracket { at, room })
    }

    /// Carries out `copy` on the bytes of `part`, bracket by bracket: it is given the offset in the
    /// target, the address, the length.
    #[inline]
    fn in_brackets(
        &mut self,
        target: Target,
        part: Range<u32>,
        what: Remote,
        mut copy: impl FnMut(u32, *mut u8, u32) -> Result<(), MemError>,
    ) -> Result<(), NotDone> {
        let mut from = part.start;
        while from < part.end {
            let len = BRACKET.min(part.end - from);
            let mut done = Err(NotDone::Elsewhere);
            let mut copied = 0;
            if let Some(bracket) = self.enter(target, from, len, what) {
                copied = len.min(bracket.room);
                done = copy(from, bracket.at, copied).map_err(|why| match why {
                    // The peer's memory, for which there was no page.
                    MemError::Elsewhere => NotDone::Elsewhere,
                    why => NotDone::Local(why),
                });
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
        let (entry, offset) = self.check(grant.pd(), target, what)?;
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
        self.in_brackets(target, part, Remote::Write, |from, at, len| {
            let tail = if from + len == end {
                copy::last_word(at.addr() + len as usize, len as usize)
            } else {
                0
            };
            let body = len as usize - tail;
            map_around(at, body);
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
        self.in_brackets(target, 0..target.len, Remote::Read, |from, at, len| {
            // SAFETY: as in `write`.
            take(from, unsafe { Bytes::from_raw(at, len as usize) })
        })
    }

    fn atomic(&mut self, target: Target, op: AtomicOp) -> Result<u64, NotDone> {
        let mut before = Err(NotDone::Elsewhere);
        if let Some(bracket) = self.enter(target, 0, target.len, Remote::Atomic)
            && bracket.at.addr() % 8 == 0
        {
            // SAFETY: as in `write`, and 8 aligned bytes: atomic for whoever else has them mapped.
            before = unsafe { copy::atomic(bracket.at, op) }.map_err(|_| NotDone::Elsewhere);
        }
        if !self.ring.leave() {
            return Err(NotDone::Evicted);
        }
        self.direct.done += u64::from(before.is_ok());
        before
    }
}
