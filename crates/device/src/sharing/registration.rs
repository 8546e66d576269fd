//! Memory regions: their registration, its end, and where their memory is meanwhile.

use std::sync::Arc;
use std::time::Duration;

use causeway_memory::Unmovable;
use causeway_proto::types::Access;
use parking_lot::{Mutex, MutexGuard};

use super::{Kept, Placed, Sharing};
use crate::errno::Errno;
use crate::limits::LIMITS;
use crate::move_threshold;
use crate::mr::{self, Place};
use crate::peer_process::is_allowed;
use crate::populate::populate;
use crate::shared::Shared;
use crate::watches::Accesses;

/// Queue pairs up to which regions are shown where they are in this process: the end of each such
/// registration looks at what the peer of every one of them accesses.
const WATCHED_MAX: usize = 64;
/// How long a READ from this process may keep a region from being moved.
const READ_MAX: Duration = Duration::from_millis(10);

/// A memory region.
#[derive(Debug)]
pub(crate) struct Region(Mutex<Registration>);

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

impl Sharing {
    /// Registers memory of a protection domain: `len` bytes at `addr`, named from `iova` on by work
    /// requests.
    ///
    /// # Errors
    /// EINVAL for flags that need others, EOPNOTSUPP for those this device lacks, EFAULT where the
    /// memory is not mapped or not writable as asked, ENOMEM beyond the device's limit.
    pub fn register(
        &self,
        pd: u32,
        (addr, len): (usize, usize),
        iova: u64,
        access: u32,
    ) -> Result<Arc<Region>, Errno> {
        let iova = if zero_based(access) { 0 } else { iova };
        let access = check_range(self, (addr, len), iova, access)?;
        let mrs = &self.shared.common.mrs;
        let key = mrs.write().insert(pd, (addr, len), iova, access)?;
        self.shared.pds.add_user(pd);
        let region = Arc::new(Region(Mutex::new(Registration {
            key,
            pd,
            addr,
            len,
            access,
            placed: None,
            ended: false,
        })));
        region.announce(self, pd, key, access);
        Ok(region)
    }
}

impl Region {
    /// Its key.
    pub fn key(&self) -> u32 {
        self.0.lock().key
    }

    /// Lets peers on this host map it, now or once there are any.
    fn announce(self: &Arc<Self>, sharing: &Sharing, pd: u32, key: u32, access: Access) {
        if access.intersects(Access::REMOTE) && sharing.add(pd, key, self) {
            self.settle(sharing);
        }
    }

    /// Moves it to where peers can map it, now or once they use it.
    pub(super) fn settle(&self, sharing: &Sharing) {
        let inner = self.0.lock();
        let (key, pd, range, access) = (inner.key, inner.pd, (inner.addr, inner.len), inner.access);
        drop(inner);
        let mrs = &sharing.shared.common.mrs;
        if move_threshold::waits() && !sharing.is_in_place(pd, range, access) {
            mrs.write().await_use(key);
            self.0.lock().show_in_process(sharing);
        } else {
            self.place_or_wait(sharing);
        }
    }

    /// Moves it to where peers can map it, or has it wait until it has been used more.
    pub(super) fn place_or_wait(&self, sharing: &Sharing) {
        if let Err(Kept::Unserved | Kept::ForNow) = self.place(sharing) {
            let inner = self.0.lock();
            let mrs = sharing.shared.common.mrs.write();
            if !inner.ended && inner.placed.is_none() {
                mrs.await_more_use(inner.key);
            }
        }
    }

    /// Moves it to where peers can map it, if that can be. One that has ended, or is there already,
    /// stays as it is.
    ///
    /// # Errors
    /// It could not be moved.
    pub(super) fn place(&self, sharing: &Sharing) -> Result<(), Kept> {
        let shared = &*sharing.shared;
        let mut inner = self.0.lock();
        let known = shared.common.mrs.write().has_room(inner.key);
        if inner.ended || inner.placed.is_some() || !known {
            return Ok(());
        }
        causeway_fault::point("region.entered");
        inner.hide_in_process(shared);
        let range = (inner.addr, inner.len);
        let placed = match sharing.place(inner.pd, range, inner.access) {
            Ok(placed) => placed,
            Err(why) => {
                inner.show_in_process(sharing);
                return Err(why);
            }
        };
        causeway_fault::point("region.placed");
        inner.publish(&placed, shared);
        inner.placed = Some(placed);
        Ok(())
    }

    /// What peers may do, and its bytes, if it waits to be moved, and nobody is about that.
    pub(super) fn waits(&self) -> Option<(Access, usize)> {
        let inner = self.0.try_lock()?;
        let waits = !inner.ended && inner.placed.is_none();
        waits.then_some((inner.access, inner.len))
    }

    /// Ends the registration: when it returns, no access under its keys is going on or will
    /// succeed, and peers outside the trust boundary see nothing of what the memory holds later.
    ///
    /// # Errors
    /// EINVAL if it has ended already, EBUSY while a memory window is bound to it, or where a peer
    /// outside the boundary, or one that was evicted, can have the memory and for [`PINNED_MAX`]
    /// something else refers to it, ENOMEM where memory is short. Then it goes on.
    ///
    /// [`PINNED_MAX`]: super::PINNED_MAX
    pub fn end(&self, sharing: &Arc<Sharing>) -> Result<(), Errno> {
        let shared = &*sharing.shared;
        let mut inner = self.0.lock();
        shared.common.mrs.write().freeze(inner.key)?;
        shared.send_posted();
        let evicted = match inner.end(sharing) {
            Ok(evicted) => evicted,
            Err(why) => return Err(go_on(sharing, inner, None, why)),
        };
        shared.common.mrs.write().remove(inner.key)?;
        // From here on nobody of this process reads or writes the memory.
        shared.reclaim();
        inner.ended = true;
        sharing.remove(inner.pd, inner.key);
        shared.pds.drop_user(inner.pd);
        drop(inner);
        sharing.give_up_segments(&evicted);
        Ok(())
    }

    /// Changes the registration. The key changes with the range only.
    ///
    /// # Errors
    /// As [`Sharing::register`], and as [`Region::end`] where the old memory cannot be let go of;
    /// then the old registration stays.
    pub fn change(
        self: &Arc<Self>,
        sharing: &Arc<Sharing>,
        pd: Option<u32>,
        range: Option<(usize, usize)>,
        access: Option<u32>,
    ) -> Result<(), Errno> {
        let shared = &*sharing.shared;
        let mut inner = self.0.lock();
        let (addr, len) = range.unwrap_or((inner.addr, inner.len));
        let access = match access {
            Some(flags) => flags,
            None => inner.access.bits(),
        };
        let iova = if zero_based(access) { 0 } else { addr as u64 };
        let access = check_range(sharing, (addr, len), iova, access)?;
        let handle = pd.unwrap_or(inner.pd);
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
        let evicted = match inner.end(sharing) {
            Ok(evicted) => evicted,
            Err(why) => return Err(go_on(sharing, inner, fresh, why)),
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
        sharing.remove(inner.pd, inner.key);
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
        sharing.give_up_segments(&evicted);
        self.announce(sharing, handle, key, access);
        Ok(())
    }

    /// Keeps it as it is and where it is until dropped.
    pub(super) fn hold(&self) -> LockedRegistration<'_> {
        LockedRegistration(self.0.lock())
    }
}

/// A frozen registration goes on as it was, without what was to take its place. Returns why.
fn go_on(
    sharing: &Arc<Sharing>,
    inner: MutexGuard<'_, Registration>,
    fresh: Option<u32>,
    (evicted, errno): (Vec<u32>, Errno),
) -> Errno {
    let mut mrs = sharing.shared.common.mrs.write();
    mrs.thaw(inner.key);
    let gone = fresh.map_or(Ok(()), |key| mrs.remove(key));
    drop(mrs);
    drop(inner);
    sharing.give_up_segments(&evicted);
    gone.err().unwrap_or(errno)
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
        if self.placed.is_some() {
            return shared.retract(self.key);
        }
        let was_shown = shared.common.mrs.write().withdraw(self.key);
        was_shown.then_some(self.key).into_iter().collect()
    }

    /// Lets peers read it where it is in this process, while it waits to be moved: ordinary memory
    /// alone, whose pages nobody has to be waited for.
    fn show_in_process(&self, sharing: &Sharing) {
        let common = &sharing.shared.common;
        let shows = !self.ended
            && self.placed.is_none()
            && self.access.contains(Access::REMOTE_READ)
            && is_allowed()
            && common.watches.len() <= WATCHED_MAX
            && sharing.is_plain(self.addr, self.len);
        if shows {
            common.mrs.write().publish_in_process(self.key);
        }
    }

    /// Ends that, before the memory moves: what is lifted out of its place while peers read it
    /// would hold them up. They are waited for, but not for long: another word of theirs may lie.
    fn hide_in_process(&self, shared: &Shared) {
        if shared.common.mrs.write().withdraw(self.key) {
            let _ = shared.are_accesses_over(Accesses::Region(self.key), READ_MAX);
        }
    }

    /// Takes the memory back from where peers outside the trust boundary can map it, or one that
    /// was evicted may store into it, once those that are accessing it have finished. Returns the
    /// protection domains of which a peer did not.
    ///
    /// # Errors
    /// As [`Region::end`], and peers find it again; with those domains.
    fn end(&mut self, sharing: &Sharing) -> Result<Vec<u32>, (Vec<u32>, Errno)> {
        let shared = &*sharing.shared;
        let keys = self.retract(shared);
        if self.placed.is_some() {
            causeway_fault::point("revoke.retracted");
        }
        let wait = |key| shared.await_accesses(Accesses::Region(key));
        let evicted: Vec<u32> = keys.into_iter().flat_map(wait).collect();
        let Some(placed) = self.placed.take() else {
            return Ok(evicted);
        };
        causeway_fault::point("revoke.quiet");
        let late = shared.common.evicted_from.has(self.pd);
        let ended = sharing.end(placed, self.pd, late);
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
pub(super) struct LockedRegistration<'a>(MutexGuard<'a, Registration>);

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
    pub fn take_back(&mut self, sharing: &Sharing, patience: Duration) -> bool {
        let Some(placed) = self.0.placed.take() else {
            return true;
        };
        match sharing.take_back(placed, patience) {
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
    sharing: &Sharing,
    (addr, len): (usize, usize),
    iova: u64,
    access: u32,
) -> Result<Access, Errno> {
    let access = mr::check_access(access)?;
    let wraps = addr.checked_add(len).is_none() || iova.checked_add(len as u64).is_none();
    if wraps || len as u64 > LIMITS.max_mr_size {
        return Err(Errno(libc::EINVAL));
    }
    let mrs = &sharing.shared.common.mrs;
    let known = || mrs.write().at.known.holds((addr, len));
    // Of what is in a segment the program may have given up pages since (MADV_DONTNEED). Those that
    // the monitor has yet to punch would lose what a peer writes before it has. Populating waits
    // for it, as every access by these addresses does.
    let populated = sharing.covers(addr, len) || known() && sharing.is_plain(addr, len);
    if !populated {
        populate(addr, len, access.contains(Access::LOCAL_WRITE))?;
    }
    Ok(access)
}
