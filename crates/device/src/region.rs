//! Memory regions as the program sees them (`ibv_reg_mr(3)`).

use std::sync::Arc;
use std::time::Duration;

use causeway_fabric::Attachment;
use causeway_memory::Unmovable;
use causeway_proto::types::Access;
use parking_lot::{Mutex, MutexGuard};

use crate::context::Context;
use crate::endpoint::Shared;
use crate::errno::Errno;
use crate::limits::LIMITS;
use crate::move_threshold;
use crate::mr::{self, Place};
use crate::pd::Pd;
use crate::populate::populate;
use crate::sharing::{Kept, Placed, Sharing};
use crate::watches::Accesses;

/// A memory region (`ibv_reg_mr(3)`).
pub struct Mr {
    context: Arc<Context>,
    inner: Mutex<Registration>,
}

#[derive(Debug)]
struct Registration {
    key: u32,
    pd: u32,
    addr: usize,
    len: usize,
    access: Access,
    /// Its memory, where it is in a segment.
    placed: Option<Placed>,
    ended: bool,
}

impl Pd {
    /// Registers memory (`ibv_reg_mr(3)`): `len` bytes at `addr`, named from `iova` on by work
    /// requests.
    ///
    /// # Errors
    /// EINVAL for flags that need others, EOPNOTSUPP for those this device lacks, EFAULT where the
    /// memory is not mapped or not writable as asked, ENOMEM beyond the device's limit.
    pub fn reg_mr(
        self: &Arc<Self>,
        addr: usize,
        len: usize,
        iova: u64,
        access: u32,
    ) -> Result<Arc<Mr>, Errno> {
        Mr::register(self, (addr, len), iova, access)
    }
}

impl Mr {
    /// See [`Pd::reg_mr`].
    pub(crate) fn register(
        pd: &Arc<Pd>,
        (addr, len): (usize, usize),
        iova: u64,
        access: u32,
    ) -> Result<Arc<Mr>, Errno> {
        // Before there is memory that can go.
        causeway_recover::install();
        let shared = &pd.context.endpoint.shared;
        let iova = if zero_based(access) { 0 } else { iova };
        let access = check_range(shared, (addr, len), iova, access)?;
        let key = shared
            .common
            .mrs
            .write()
            .insert(pd.handle, (addr, len), iova, access)?;
        shared.pds.add_user(pd.handle);
        let region = Arc::new(Mr {
            context: Arc::clone(&pd.context),
            inner: Mutex::new(Registration {
                key,
                pd: pd.handle,
                addr,
                len,
                access,
                placed: None,
                ended: false,
            }),
        });
        region.announce(pd.handle, key, access);
        Ok(region)
    }

    fn shared(&self) -> &Shared {
        &self.context.endpoint.shared
    }

    /// Lets peers on this host map it, now or once there are any.
    fn announce(self: &Arc<Self>, pd: u32, key: u32, access: Access) {
        if access.intersects(Access::REMOTE) && self.shared().sharing.add(pd, key, self) {
            self.settle();
        }
    }

    /// Moves it to where peers can map it, now or once they use it.
    pub(crate) fn settle(&self) {
        let inner = self.inner.lock();
        let (key, pd, range, access) = (inner.key, inner.pd, (inner.addr, inner.len), inner.access);
        drop(inner);
        let shared = self.shared();
        if move_threshold::waits() && !shared.sharing.is_in_place(pd, range, access) {
            shared.common.mrs.write().await_use(key);
        } else {
            self.place();
        }
    }

    /// Moves it to where peers can map it, if that can be.
    pub(crate) fn place(&self) {
        let shared = self.shared();
        let mut inner = self.inner.lock();
        let known = shared.common.mrs.write().has_room(inner.key);
        if inner.ended || inner.placed.is_some() || !known {
            return;
        }
        causeway_fault::point("region.entered");
        let range = (inner.addr, inner.len);
        let placed = shared
            .sharing
            .place(&shared.control, inner.pd, range, inner.access);
        match placed {
            Ok(placed) => {
                causeway_fault::point("region.placed");
                inner.publish(&placed, shared);
                inner.placed = Some(placed);
            }
            Err(Kept::ForNow) => shared.common.mrs.write().await_more_use(inner.key),
            Err(Kept::ForGood) => {}
        }
    }

    /// The key for local use.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.inner.lock().key
    }

    /// The key for peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.inner.lock().key
    }

    /// Ends the registration (`ibv_dereg_mr(3)`): when it returns, no access under its keys is
    /// going on or will succeed, and peers outside the trust boundary see nothing of what the
    /// memory holds later. Where only processes inside it can have the memory, which could see it
    /// without us, it stays where it is until it is unmapped or registered elsewhere: it costs
    /// nothing to register it again.
    ///
    /// # Errors
    /// EINVAL if it has ended already, EBUSY while a memory window is bound to it, or where a peer
    /// outside the boundary, or one that was evicted, can have the memory and for 2 s something
    /// else refers to it (a read under way, a buffer of an io_uring), ENOMEM where memory is short.
    /// Then it goes on.
    pub fn dereg(&self) -> Result<(), Errno> {
        let shared = self.shared();
        let mut inner = self.inner.lock();
        shared.common.mrs.write().freeze(inner.key)?;
        shared.send_posted();
        let evicted = match inner.end(shared) {
            Ok(evicted) => evicted,
            Err(why) => return Err(self.go_on(inner, None, why)),
        };
        shared.common.mrs.write().remove(inner.key)?;
        // From here on nobody of this process reads or writes the memory.
        shared.reclaim();
        inner.ended = true;
        shared.sharing.remove(inner.pd, inner.key);
        shared.pds.drop_user(inner.pd);
        drop(inner);
        shared.give_up_segments(&evicted);
        Ok(())
    }

    /// Changes a registration (`ibv_rereg_mr(3)`). The keys change with the range only.
    ///
    /// # Errors
    /// As [`Pd::reg_mr`], and as [`Mr::dereg`] where the old memory cannot be let go of; then the
    /// old registration stays.
    pub fn rereg(
        self: &Arc<Self>,
        pd: Option<&Arc<Pd>>,
        range: Option<(usize, usize)>,
        access: Option<u32>,
    ) -> Result<(), Errno> {
        let shared = self.shared();
        let mut inner = self.inner.lock();
        let (addr, len) = range.unwrap_or((inner.addr, inner.len));
        let access = match access {
            Some(flags) => flags,
            None => inner.access.bits(),
        };
        let iova = if zero_based(access) { 0 } else { addr as u64 };
        let access = check_range(shared, (addr, len), iova, access)?;
        let handle = pd.map_or(inner.pd, |pd| pd.handle);
        if inner.ended {
            return Err(Errno(libc::EINVAL));
        }
        // Before anything is given up: if the table is full, the old registration stays as it is.
        let fresh = {
            shared.send_posted();
            let mut mrs = shared.common.mrs.write();
            let fresh = match range {
                Some(_) if causeway_fault::fails("rereg.full") => return Err(Errno(libc::ENOMEM)),
                Some(range) => Some(mrs.insert(handle, range, iova, access)?),
                None => None,
            };
            if let Err(busy) = mrs.freeze(inner.key) {
                fresh.map(|key| mrs.remove(key)).transpose()?;
                return Err(busy);
            }
            fresh
        };
        causeway_fault::point("rereg.entered");
        let evicted = match inner.end(shared) {
            Ok(evicted) => evicted,
            Err(why) => return Err(self.go_on(inner, fresh, why)),
        };
        let key = if let Some(key) = fresh {
            shared.common.mrs.write().remove(inner.key)?;
            key
        } else {
            shared.common.mrs.write().change(inner.key, handle, access);
            inner.key
        };
        shared.reclaim();
        shared.pds.drop_user(inner.pd);
        shared.pds.add_user(handle);
        shared.sharing.remove(inner.pd, inner.key);
        *inner = Registration {
            key,
            pd: handle,
            addr,
            len,
            access,
            placed: None,
            ended: false,
        };
        drop(inner);
        shared.give_up_segments(&evicted);
        self.announce(handle, key, access);
        Ok(())
    }

    /// A frozen registration goes on as it was, without what was to take its place. Returns why.
    fn go_on(
        &self,
        inner: MutexGuard<'_, Registration>,
        fresh: Option<u32>,
        (evicted, errno): (Vec<u32>, Errno),
    ) -> Errno {
        let shared = self.shared();
        let mut mrs = shared.common.mrs.write();
        mrs.thaw(inner.key);
        let gone = fresh.map_or(Ok(()), |key| mrs.remove(key));
        drop(mrs);
        drop(inner);
        shared.give_up_segments(&evicted);
        gone.err().unwrap_or(errno)
    }

    /// See [`Sharing::retry`].
    pub(crate) fn follow(self: &Arc<Self>, segment: u64) -> bool {
        let shared = self.shared();
        shared.sharing.retry(self, shared, segment)
    }

    /// Keeps it as it is and where it is until dropped.
    pub(crate) fn hold(&self) -> LockedRegistration<'_> {
        LockedRegistration(self.inner.lock())
    }
}

impl Registration {
    /// Lets peers find it, if all of what is in the segment lies in a row there.
    fn publish(&self, placed: &Placed, shared: &Shared) {
        let moved = &placed.moved;
        if !moved.is_whole() {
            return;
        }
        let place = Place {
            segment: placed.store.id(),
            start: moved.start(),
            end: moved.end(),
        };
        shared
            .common
            .mrs
            .write()
            .settle(self.key, place, &placed.store);
    }

    /// No access by peers themselves begins any more. Returns the keys by which some may be under
    /// way.
    fn retract(&self, shared: &Shared) -> Vec<u32> {
        if self.placed.is_none() {
            return Vec::new();
        }
        shared.retract(self.key)
    }

    /// Takes the memory back from where peers outside the trust boundary can map it, or one that
    /// was evicted may store into it, once those that are accessing it have finished. Returns the
    /// protection domains of which a peer did not.
    ///
    /// # Errors
    /// As [`Mr::dereg`], and peers find it again; with those domains.
    fn end(&mut self, shared: &Shared) -> Result<Vec<u32>, (Vec<u32>, Errno)> {
        let keys = self.retract(shared);
        let Some(placed) = self.placed.take() else {
            return Ok(Vec::new());
        };
        causeway_fault::point("revoke.retracted");
        let wait = |key| shared.await_accesses(Accesses::Region(key));
        let evicted: Vec<u32> = keys.into_iter().flat_map(wait).collect();
        causeway_fault::point("revoke.quiet");
        let late = shared.common.evicted_from.has(self.pd);
        let ended = shared.sharing.end(placed, &shared.control, self.pd, late);
        causeway_fault::point("revoke.done");
        let Err((placed, why)) = ended else {
            return Ok(evicted);
        };
        self.publish(&placed, shared);
        self.placed = Some(placed);
        let errno = match why {
            Unmovable::Pinned => libc::EBUSY,
            _ => libc::ENOMEM,
        };
        Err((evicted, Errno(errno)))
    }
}

/// A region that neither ends nor moves.
pub(crate) struct LockedRegistration<'a>(MutexGuard<'a, Registration>);

impl LockedRegistration<'_> {
    /// Whether its memory is in a segment.
    pub fn is_in(&self, segment: u64) -> bool {
        let placed = self.0.placed.as_ref();
        placed.is_some_and(|placed| placed.store.id() == segment)
    }

    /// Ends all accesses of peers themselves. Returns the protection domains of which a peer had
    /// to be evicted.
    pub fn quiesce(&self, shared: &Shared) -> Vec<u32> {
        let keys = self.0.retract(shared);
        let wait = |key| shared.await_accesses(Accesses::Region(key));
        keys.into_iter().flat_map(wait).collect()
    }

    /// Takes its memory back, for `patience`; peers have been kept off it by
    /// [`LockedRegistration::quiesce`]. False if it could not be, all or part of it.
    pub fn take_back(
        &mut self,
        sharing: &Sharing,
        control: &Attachment,
        patience: Duration,
    ) -> bool {
        let Some(placed) = self.0.placed.take() else {
            return true;
        };
        match sharing.take_back(placed, control, patience) {
            Ok(()) => true,
            Err((placed, _)) => {
                self.0.placed = Some(placed);
                false
            }
        }
    }

    /// Peers find it again where it is.
    pub fn publish_again(&self, shared: &Shared) {
        if let Some(placed) = &self.0.placed {
            self.0.publish(placed, shared);
        }
    }
}

fn zero_based(access: u32) -> bool {
    Access::from_bits_truncate(access).contains(Access::ZERO_BASED)
}

fn check_range(
    shared: &Shared,
    (addr, len): (usize, usize),
    iova: u64,
    access: u32,
) -> Result<Access, Errno> {
    let access = mr::check_access(access)?;
    let wraps = addr.checked_add(len).is_none() || iova.checked_add(len as u64).is_none();
    if wraps || len as u64 > LIMITS.max_mr_size {
        return Err(Errno(libc::EINVAL));
    }
    let sharing = &shared.sharing;
    let known = || shared.common.mrs.write().at.known.holds((addr, len));
    // What is in a segment is populated and writable.
    let populated = sharing.covers(addr, len) || known() && sharing.is_plain(addr, len);
    if !populated {
        populate(addr, len, access.contains(Access::LOCAL_WRITE))?;
    }
    Ok(access)
}
