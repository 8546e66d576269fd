//! Segments of this endpoint, and those it is granted.
//!
//! A *segment* holds the memory of one *grant set*: what QPs of one protection domain let their
//! peers read, or read and write. The broker makes every segment and owns its inode, so that the
//! descriptor which a peer of another user gets is what binds it: one for reading can't be turned
//! into one for writing.
//!
//! A descriptor once given can't be taken back. So when a peer of another user loses its last QP
//! that entitles it to a segment it was granted, the segment is *stale*: its owner moves what is
//! in it to a new one and destroys it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{MutexGuard, PoisonError};

use causeway_identity::Access;
use causeway_owned::Owned;
use rustix::io::Errno;

use crate::attachment::{Attachment, State, duplicate, single, with_copy};
use crate::control::{Control, Event};
use crate::error::{Error, Result};
use crate::limits::RESERVE_UNIT;
use crate::services::{
    AccessRequest, BrokerStub, CreateSegmentRequest, DisconnectRequest, GuestTableRequest, Leave,
    MapRequest, PeerChange, PeerEvent, PeerRequest, ReserveRequest, RestoreRequest,
    RestoreSegmentRequest, SegmentRequest, Wire,
};

/// What descriptors are called if the program closes them.
const SEGMENT: &str = "a segment of registered memory";
const PEER_SEGMENT: &str = "a segment of a peer's memory";

/// The segments of an endpoint, to be presented to the next broker.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    kept: BTreeMap<u64, Kept>,
}

/// Memory reserved for segments, in bytes. Has a lock of its own: most of what is reserved and
/// given back needs no call, and must not wait for those of others. Locked before the state.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    /// By the program.
    used: u64,
    /// At the broker.
    granted: u64,
}

#[derive(Debug)]
struct Kept {
    pd: u32,
    writable: bool,
    /// No peer outside the trust boundary gets it.
    inside: bool,
    /// `None` once it is stale: no broker shall hear of it again.
    fd: Option<Owned>,
}

impl Segments {
    /// Notes that a segment is stale. False if that is known, or the segment is not.
    pub(crate) fn spoil(&mut self, segment: u64) -> bool {
        let kept = self.kept.get_mut(&segment);
        kept.is_some_and(|kept| kept.fd.take().is_some())
    }

    /// Segments that the peer of a connection may hold: what counts when no broker is left that
    /// knows better.
    pub(crate) fn exposed_to(&self, connection: &RestoreRequest) -> Vec<u64> {
        let granted = connection.wire == Wire::Ring
            && !connection.trusted
            && Access::from_bits_retain(connection.access).intersects(Access::REMOTE);
        let exposed =
            |kept: &Kept| granted && !kept.inside && kept.pd == connection.pd && kept.fd.is_some();
        self.kept
            .iter()
            .filter(|(_, kept)| exposed(kept))
            .map(|(segment, _)| *segment)
            .collect()
    }

    /// Whether a segment may be held by peers outside the trust boundary, as far as `connections`
    /// tells.
    fn is_exposed<'a>(
        &self,
        segment: u64,
        mut connections: impl Iterator<Item = &'a RestoreRequest>,
    ) -> bool {
        let kept = self.kept.get(&segment).filter(|kept| kept.fd.is_some());
        // One that is stale has been held by somebody; of one that is unknown nothing is known.
        kept.is_none_or(|kept| {
            connections.any(|connection| {
                connection.wire == Wire::Ring && !connection.trusted && connection.pd == kept.pd
            })
        })
    }

    /// Presents all that are not stale; returns those that the broker refuses, and those whose
    /// descriptors the program has closed.
    pub(crate) fn present(&self, control: &mut Control) -> Result<Vec<u64>> {
        let mut refused = Vec::new();
        for (&segment, kept) in &self.kept {
            let Some(fd) = &kept.fd else { continue };
            if !fd.is_intact() {
                refused.push(segment);
                continue;
            }
            let request = RestoreSegmentRequest {
                segment,
                pd: kept.pd,
                writable: kept.writable,
                inside: kept.inside,
            };
            match BrokerStub(control).restore_segment(&request, &[fd.as_fd()]) {
                Ok(_) => {}
                Err(Error::Refused { .. }) => refused.push(segment),
                Err(error) => return Err(error),
            }
        }
        Ok(refused)
    }
}

impl State {
    /// Presents all connections. Those that the broker refuses are over, and with them what their
    /// peers may hold is stale.
    pub(crate) fn present_connections(&mut self, control: &mut Control) -> Result<()> {
        let mut lost = Vec::new();
        for (request, ring) in self.connections.iter() {
            let ring = ring.map(AsFd::as_fd);
            match BrokerStub(control).restore(request, ring.as_slice()) {
                Ok(_) if self.connections.is_secured(request.local_qpn) => {
                    let local_qpn = request.local_qpn;
                    // For people only, so a broker that does not know it is no obstacle.
                    match BrokerStub(control).restore_secured(&PeerRequest { local_qpn }, &[]) {
                        Ok(_) | Err(Error::Refused { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(_) => {}
                Err(Error::Refused { .. }) => lost.push(request.clone()),
                Err(error) => return Err(error),
            }
        }
        for request in lost {
            let exposed = self.segments.exposed_to(&request);
            for &segment in &exposed {
                // So that it is not granted to anybody while its owner moves out.
                match BrokerStub(control).destroy_segment(&SegmentRequest { segment }, &[]) {
                    Ok(_) | Err(Error::Refused { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            self.absorb_stale(exposed);
            self.absorb(&PeerEvent {
                local_qpn: request.local_qpn,
                generation: request.generation,
                change: PeerChange::Dead,
            });
        }
        Ok(())
    }

    /// Takes in that segments are stale; the program is told of each once.
    pub(crate) fn absorb_stale(&mut self, segments: Vec<u64>) {
        let news = self.fresh_news(segments);
        self.queue_stale(&news);
    }

    /// Tells the program of segments that are stale.
    pub(crate) fn queue_stale(&mut self, segments: &[u64]) {
        let stale = |&segment: &u64| Event::SegmentStale { segment };
        self.events.extend(segments.iter().map(stale));
    }

    /// Those of `segments` that were not known to be stale; now they are.
    fn fresh_news(&mut self, segments: Vec<u64>) -> Vec<u64> {
        segments
            .into_iter()
            .filter(|&segment| self.segments.spoil(segment))
            .collect()
    }
}

impl Attachment {
    /// Creates a segment for memory that peers of QPs of the protection domain `pd` may map:
    /// [`crate::limits::SEGMENT_BYTES`] long, sparse, sealed, empty. If `writable`, they get it
    /// for reading and writing. If it is `inside`, peers outside the trust boundary do not get it.
    /// Returns its name, never 0 and unknown to others, and its
    /// descriptor, for reading and writing. Keeps a duplicate of it until
    /// [`Attachment::destroy_segment`].
    ///
    /// # Errors
    /// [`Error::Refused`]: `EDQUOT` beyond the limit, which is
    /// [`crate::limits::SEGMENTS_PER_ENDPOINT_MAX`] unless the broker's configuration has a lower
    /// one; `EMFILE` or `ENFILE` if the broker has no descriptors left, `ENOMEM`.
    pub fn create_segment(&self, pd: u32, writable: bool, inside: bool) -> Result<(u64, Owned)> {
        let request = CreateSegmentRequest {
            pd,
            writable,
            inside,
        };
        let mut state = self.lock()?;
        let (segment, fd, copy) = self.with_broker(&mut state, |control, _| {
            let (reply, fds) = BrokerStub(control).create_segment(&request, &[])?;
            let both = with_copy(fds);
            if both.is_err() {
                let request = SegmentRequest {
                    segment: reply.segment,
                };
                // Without a broker nobody keeps it.
                let _ = BrokerStub(&mut control.one_way()).destroy_segment(&request, &[]);
            }
            let (fd, copy) = both?;
            Ok((reply.segment, fd, copy))
        })?;
        let kept = Kept {
            pd,
            writable,
            inside,
            fd: Some(Owned::new(copy, SEGMENT)),
        };
        state.segments.kept.insert(segment, kept);
        Ok((segment, Owned::new(fd, SEGMENT)))
    }

    /// Forgets a segment, stale or not, that nothing of this program lies in any more. Peers that
    /// have mapped it keep their mappings: what is not to be seen by them must have been removed
    /// from it. Succeeds without broker.
    ///
    /// # Errors
    /// [`Error::System`] with `ENOENT` for a segment that this endpoint does not have,
    /// [`Error::Timeout`], [`Error::Forked`].
    pub fn destroy_segment(&self, segment: u64) -> Result<()> {
        let mut state = self.lock()?;
        if state.segments.kept.remove(&segment).is_none() {
            return Err(Error::System {
                what: "destroy a segment",
                errno: Errno::NOENT,
            });
        }
        let Some(control) = state.control.as_mut() else {
            return Ok(());
        };
        let outcome = BrokerStub(control).destroy_segment(&SegmentRequest { segment }, &[]);
        self.settle(&mut state);
        match outcome {
            // Refused: it was stale when this broker came, and never presented.
            Ok(_) | Err(Error::BrokerGone | Error::Refused { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether a peer of another user may hold a descriptor of a segment. Asks nobody.
    pub fn is_exposed(&self, segment: u64) -> bool {
        let Ok(state) = self.lock_quietly() else {
            return true;
        };
        let connections = state.connections.iter().map(|(connection, _)| connection);
        state.segments.is_exposed(segment, connections)
    }

    /// The endpoint's table of memory regions, for reading and writing: a sealed memfd of the
    /// broker's, of `causeway_shm::layout::MR_TABLE_BYTES`, the same for the life of the
    /// attachment. Connected peers get it for reading.
    ///
    /// # Errors
    /// [`Error::System`] with `EMFILE`, [`Error::Forked`].
    pub fn mr_table(&self) -> Result<OwnedFd> {
        let state = self.lock()?;
        let table = state.mr_table.as_ref().ok_or(Error::BrokerGone)?;
        duplicate(table.as_fd())
    }

    /// A guest table of the table of memory regions, for reading and writing, in which the endpoint
    /// does whatever it does in the table from now on: peers in a virtual machine read it in the
    /// table's place. Returns with it the names of those that somebody may read; any other can be
    /// given up.
    ///
    /// # Errors
    /// [`Error::Refused`] with `ENOENT` for a name that this broker has not given, `EMFILE` or
    /// `ENFILE` if it has no descriptors left; as [`Attachment::reattach`].
    pub fn guest_table(&self, guest_table: u64) -> Result<(OwnedFd, Vec<u64>)> {
        let request = GuestTableRequest { guest_table };
        let mut state = self.lock()?;
        let (reply, fds) = self.with_broker(&mut state, |control, _| {
            BrokerStub(control).guest_table(&request, &[])
        })?;
        Ok((single(fds)?, reply.live))
    }

    /// Changes what the peer of a QP may do (`IBV_QP_ACCESS_FLAGS` of `ibv_modify_qp(3)`), and
    /// returns the segments that became stale by it, as [`Attachment::disconnect`] does. Nothing
    /// happens for a QP without connection: what is to hold from the beginning is named in
    /// [`Attachment::connect`].
    ///
    /// # Errors
    /// As [`Attachment::reattach`]. Whether the change was made is unknown then, and segments that
    /// are stale by it are told by [`Event::SegmentStale`].
    pub fn set_access(&self, local_qpn: u32, access: u32) -> Result<Vec<u64>> {
        let mut state = self.lock()?;
        let Some(connection) = state.connections.get(local_qpn).cloned() else {
            return Ok(Vec::new());
        };
        // A broker that is told of the connection meanwhile hears the old rights first: only so
        // can it know that they were reduced.
        let request = AccessRequest { local_qpn, access };
        let outcome = self.with_broker(&mut state, |control, _| {
            BrokerStub(control).set_access(&request, &[])
        });
        match outcome {
            Ok((reply, _)) => {
                state.connections.set_access(local_qpn, access);
                Ok(state.fresh_news(reply.segments))
            }
            Err(error) => Err(self.unanswered(&mut state, &connection, error)),
        }
    }

    /// Asks for a segment of the endpoint to which a QP of this one is connected by a ring that
    /// both have joined. Returns its descriptor and whether it may be written through: so it is
    /// if that endpoint's QP allows WRITE or atomics and the segment is writable; else it is for
    /// reading, if that QP allows READ.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOTCONN` if the QP has no ring that both ends have joined; `ENOENT`
    /// if the peer has no such segment, or it is stale; `EACCES` if the peer's QP is of another
    /// protection domain or gives no right to it; `EPERM` if it may only be read, and this
    /// process could get around that.
    pub fn map_segment(&self, local_qpn: u32, segment: u64) -> Result<(Owned, bool)> {
        let request = MapRequest { local_qpn, segment };
        let mut state = self.lock()?;
        let (reply, fds) = self.with_broker(&mut state, |control, _| {
            BrokerStub(control).map_segment(&request, &[])
        })?;
        Ok((Owned::new(single(fds)?, PEER_SEGMENT), reply.writable))
    }

    /// A pidfd of the process at the other end of a QP's ring, which both have joined.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOTCONN` if the QP has no such ring; `EPERM` if that process is
    /// outside this endpoint's trust boundary, in a virtual machine, or not known to the broker by
    /// a number; `ESRCH` if it has ended; another if the broker does not know this request.
    pub fn peer_process(&self, local_qpn: u32) -> Result<OwnedFd> {
        let request = PeerRequest { local_qpn };
        let mut state = self.lock()?;
        let (_, fds) = self.with_broker(&mut state, |control, _| {
            BrokerStub(control).peer_process(&request, &[])
        })?;
        single(fds)
    }

    /// Whether the peer of a QP is inside this endpoint's trust boundary, and held up: stopped by a
    /// signal or a debugger, or frozen with its control group.
    ///
    /// # Errors
    /// As [`Attachment::reattach`].
    pub fn is_peer_suspended(&self, local_qpn: u32) -> Result<bool> {
        let request = PeerRequest { local_qpn };
        let mut state = self.lock()?;
        let (held, _) = self.with_broker(&mut state, |control, _| {
            BrokerStub(control).is_suspended(&request, &[])
        })?;
        Ok(held)
    }

    /// The broker's `/dev/userfaultfd`, open, if it has one and trusts this process's user with it
    /// (`USERFAULTFD_IOC_NEW` of `ioctl_userfaultfd(2)` makes a userfaultfd that handles the
    /// kernel's faults too).
    ///
    /// # Errors
    /// As [`Attachment::reattach`].
    pub fn userfaultfd(&self) -> Result<Option<OwnedFd>> {
        let mut state = self.lock()?;
        let (_, fds) = self.with_broker(&mut state, |control, _| {
            BrokerStub(control).userfaultfd(&(), &[])
        })?;
        Ok(fds.into_iter().next())
    }

    /// A socket by which the broker can be asked whether anybody refers to pages of this endpoint's
    /// segments (crate `causeway-pins`), if it can tell and trusts this process's user with its
    /// userfaultfd. It ends with the broker.
    ///
    /// # Errors
    /// As [`Attachment::reattach`].
    pub fn asker(&self) -> Result<Option<OwnedFd>> {
        let mut state = self.lock()?;
        let (_, fds) =
            self.with_broker(&mut state, |control, _| BrokerStub(control).asker(&(), &[]))?;
        Ok(fds.into_iter().next())
    }

    /// Reserves memory that is to be moved into segments, within the limit that the broker's
    /// configuration sets (twice as much as is used, in units of
    /// [`crate::limits::RESERVE_UNIT`], where there is room, so that few calls ask the broker).
    ///
    /// The limit is for libraries that keep to it: memory moved without being reserved is not taken
    /// away. What a hostile endpoint may use is for its memory cgroup to bound, as for all memory.
    ///
    /// # Errors
    /// [`Error::Refused`] with `EDQUOT` beyond the limit; as [`Attachment::reattach`].
    pub fn reserve(&self, bytes: u64) -> Result<()> {
        let mut quota = self.quota()?;
        let used = quota.used.saturating_add(bytes);
        if used > quota.granted {
            let ample = used
                .saturating_mul(2)
                .checked_next_multiple_of(RESERVE_UNIT);
            let ample = self.reserve_all(&mut quota, ample.unwrap_or(u64::MAX));
            if ample.as_ref().is_err_and(Error::is_quota) {
                self.reserve_all(&mut quota, used)?;
            } else {
                ample?;
            }
        }
        quota.used = used;
        Ok(())
    }

    /// Gives back what was reserved. What the broker is not told at once, it hears when more is
    /// reserved or given back.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn release(&self, bytes: u64) -> Result<()> {
        let mut quota = self.quota()?;
        quota.used = quota.used.saturating_sub(bytes);
        let ample = quota.used.saturating_mul(2);
        let ample = ample.checked_next_multiple_of(RESERVE_UNIT);
        let ample = ample.unwrap_or(u64::MAX);
        // A unit more may stay, lest one at the edge comes and goes.
        if quota.granted.saturating_sub(ample) > RESERVE_UNIT && self.is_attached()? {
            // What it does not hear now it hears from the next call.
            let _ = self.reserve_all(&mut quota, ample);
        }
        Ok(())
    }

    fn quota(&self) -> Result<MutexGuard<'_, Quota>> {
        self.check_process()?;
        Ok(self.quota.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn reserve_all(&self, quota: &mut Quota, bytes: u64) -> Result<()> {
        let request = ReserveRequest { bytes };
        let mut state = self.lock()?;
        self.with_broker(&mut state, |control, _| {
            BrokerStub(control).reserve(&request, &[])
        })?;
        // What the next broker is told.
        state.identity.reserved = bytes;
        quota.granted = bytes;
        Ok(())
    }

    /// Tells the broker that a QP's connection ended, and returns the segments that are stale by
    /// it. Without broker those are all that the peer may hold.
    pub(crate) fn leave_locked(&self, state: &mut State, leave: &Leave) -> Result<Vec<u64>> {
        let local_qpn = leave.local_qpn;
        let connection = state.connections.remove(local_qpn);
        if connection.is_none() && leave.ring == 0 {
            return Ok(Vec::new());
        }
        let Some(connection) = connection.filter(|connection| !connection.trusted) else {
            // Nothing that a peer of the same user holds becomes stale: no news to wait for.
            if let Some(control) = state.control.as_mut() {
                // What this broker does not hear does not matter to the next.
                let _ = BrokerStub(&mut control.one_way()).leave(leave, &[]);
            }
            self.settle(state);
            return Ok(Vec::new());
        };
        let outcome = match state.control.as_mut() {
            None => Err(Error::BrokerGone),
            Some(control) => BrokerStub(control).disconnect(&DisconnectRequest { local_qpn }, &[]),
        };
        self.settle(state);
        let stale = match outcome {
            Ok((reply, _)) => reply.segments,
            Err(Error::BrokerGone) => state.segments.exposed_to(&connection),
            Err(error) => return Err(self.unanswered(state, &connection, error)),
        };
        Ok(state.fresh_news(stale))
    }

    /// A reply is given up that might have named stale segments: all that may be are taken for it.
    fn unanswered(&self, state: &mut State, connection: &RestoreRequest, error: Error) -> Error {
        let exposed = state.segments.exposed_to(connection);
        state.absorb_stale(exposed);
        self.announce(state);
        error
    }
}

/// Takes over the MR table of an attach reply; a broker that was shown one sends none.
pub(crate) fn take_table(kept: &mut Option<OwnedFd>, fds: Vec<OwnedFd>) -> Result<()> {
    if kept.is_none() {
        *kept = Some(single(fds)?);
    }
    Ok(())
}

/// The descriptors of an attach request.
pub(crate) fn attach_fds<'a>(
    inbox: &'a OwnedFd,
    doorbell: &'a OwnedFd,
    last: [Option<&'a OwnedFd>; 2],
) -> Vec<BorrowedFd<'a>> {
    [Some(inbox), Some(doorbell)]
        .into_iter()
        .chain(last)
        .flatten()
        .map(AsFd::as_fd)
        .collect()
}
