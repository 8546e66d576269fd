//! Which of the program's memory peers on this host can map: registered memory, moved in place into
//! segments.
//!
//! A segment holds the memory of one *grant set*: the regions of one protection domain that peers
//! may write, or those that they may only read. Nothing is moved before a queue pair of the domain
//! is connected to a peer on this host; then a part of what is registered (`at_connect`), and the
//! rest, and what will be, once it is used (`deferred_move`).
//!
//! Locks are taken in this order: a region's own, the domains, an engine's state. Neither an
//! engine's state nor the domains are held while memory is moved or the broker asked.

mod accesses;
mod at_connect;
mod registration;

pub(crate) use registration::Region;

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use causeway_memory::{Mappings, Moved, Mover, Store, Unmovable};
use causeway_proto::types::Access;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::clock;
use crate::fork;
use crate::shared::Shared;

/// How long memory is waited for that a read under way, an io_uring or a pipe has hold of, before
/// taking it back fails: such a read is over in milliseconds.
const PINNED_MAX: Duration = Duration::from_secs(2);
/// Time between two looks at such memory, which hold up threads that use it: at first, at last.
const PINNED_NAP: Duration = Duration::from_millis(1);
const PINNED_NAP_MAX: Duration = Duration::from_millis(100);

/// A protection domain, as far as peers may map its memory.
#[derive(Debug, Default)]
struct Domain {
    /// A peer on this host may ask for its memory.
    shared: bool,
    /// What was registered before the first connection has been moved ([`at_connect`]).
    moved_at_connect: bool,
    /// A peer outside the trust boundary has been connected: its segments are for all peers from
    /// then on, and hold registered memory only.
    exposed: bool,
    /// Where regions that peers may only read, and those they may write, are moved to.
    stores: [Option<Arc<Store>>; 2],
    /// The broker is being asked for such a segment, without the lock.
    asked: [bool; 2],
    /// Segments of before, in which regions may be yet.
    former: Vec<u64>,
    /// Its regions with remote access, by key.
    regions: HashMap<u32, Weak<Region>>,
}

/// The memory that an endpoint shares.
pub(crate) struct Sharing {
    /// The rest of that.
    pub shared: Arc<Shared>,
    mover: OnceLock<Mover>,
    mappings: OnceLock<Option<Mappings>>,
    domains: Mutex<HashMap<u32, Domain>>,
    /// The broker has answered who asked for a segment.
    answered: Condvar,
    /// Held while a segment is given up for another.
    renewing: Mutex<()>,
    /// Domains of which memory was moved as they were connected.
    moved_at_connect: AtomicUsize,
}

/// Those by their numbers, locked.
type Domains<'a> = MutexGuard<'a, HashMap<u32, Domain>>;

/// Whether peers may write a region.
fn is_writable(access: Access) -> bool {
    access.intersects(Access::REMOTE_CHANGE)
}

impl Sharing {
    /// Nothing shared yet.
    pub fn new(shared: Arc<Shared>) -> Self {
        Sharing {
            shared,
            mover: OnceLock::new(),
            mappings: OnceLock::new(),
            domains: Mutex::default(),
            answered: Condvar::new(),
            renewing: Mutex::default(),
            moved_at_connect: AtomicUsize::new(0),
        }
    }

    /// What moves memory. The broker may have to lend what it takes; where it does not answer, the
    /// next call asks again.
    fn mover(&self) -> Result<&Mover, Kept> {
        if let Some(mover) = self.mover.get() {
            return Ok(mover);
        }
        let control = &self.shared.control;
        let is_in_guest = causeway_fabric::guest::is_used();
        let (userfaultfd, asker) = match is_in_guest {
            true => (None, None),
            false => (lent(control.userfaultfd())?, lent(control.asker())?),
        };
        Ok(self.mover.get_or_init(|| {
            let mover = match is_in_guest {
                true => Mover::in_guest(),
                false => Mover::lent(userfaultfd, asker),
            };
            if fork::is_fork_initialized() {
                mover.fork_mode(true);
            }
            mover
        }))
    }

    /// Children made by fork(2) do without the memory from now on, also that moved already.
    pub fn keep_from_children(&self) {
        if let Some(mover) = self.mover.get() {
            mover.fork_mode(true);
        }
    }

    /// Whether all of a range is in segments already, and stays as it is: it needs no populating.
    fn covers(&self, addr: usize, len: usize) -> bool {
        self.mover
            .get()
            .is_some_and(|mover| mover.covers(addr, len))
    }

    /// Whether a range is ordinary memory that may be written: if it was populated once, it needs
    /// no populating.
    fn is_plain(&self, addr: usize, len: usize) -> bool {
        let mappings = self.mappings.get_or_init(Mappings::open).as_ref();
        mappings.is_some_and(|mappings| mappings.are_private_and_writable(addr, len))
    }

    /// A region with remote access was registered. Returns whether it may be moved now.
    fn add(&self, pd: u32, key: u32, region: &Arc<Region>) -> bool {
        let mut domains = self.domains.lock();
        let domain = domains.entry(pd).or_default();
        domain.regions.insert(key, Arc::downgrade(region));
        domain.shared
    }

    /// A region's registration has ended.
    fn remove(&self, pd: u32, key: u32) {
        let mut domains = self.domains.lock();
        if let Some(domain) = domains.get_mut(&pd) {
            domain.regions.remove(&key);
        }
    }

    /// A protection domain has ended. What lies idle in its segments is taken back as far as that
    /// can be at once; the rest stays with the processes that have them mapped.
    pub fn forget(&self, pd: u32) {
        let Some(domain) = self.domains.lock().remove(&pd) else {
            return;
        };
        let control = &self.shared.control;
        for store in domain.stores.into_iter().flatten() {
            if let Some(mover) = self.mover.get() {
                mover.reclaim(&store);
            }
            let _ = control.destroy_segment(store.id());
        }
        for segment in domain.former {
            let _ = control.destroy_segment(segment);
        }
    }

    /// A peer on this host may ask for the domain's memory: moves what is registered in it. For a
    /// peer outside the trust boundary there are segments of another kind, which hold nothing but
    /// what is registered: what is in the others moves there, if nobody else refers to it now.
    pub fn share(&self, pd: u32, trusted: bool) {
        if !trusted {
            self.expose(pd);
        }
        self.move_shared(pd);
    }

    fn expose(&self, pd: u32) {
        let _one = self.renewing.lock();
        let (old, regions) = {
            let mut domains = self.domains.lock();
            let domain = domains.entry(pd).or_default();
            if std::mem::replace(&mut domain.exposed, true) {
                return;
            }
            let old = std::mem::take(&mut domain.stores);
            let old: Vec<Arc<Store>> = old.into_iter().flatten().collect();
            domain.former.extend(old.iter().map(|store| store.id()));
            let regions: Vec<Arc<Region>> =
                domain.regions.values().filter_map(Weak::upgrade).collect();
            (old, regions)
        };
        for store in old {
            // What cannot move now stays where peers inside the boundary reach it.
            let left = self.vacate(&regions, store.id(), Duration::ZERO);
            left.iter()
                .for_each(|region| region.hold().publish_again(&self.shared));
        }
    }

    fn move_shared(&self, pd: u32) {
        let regions: Vec<Arc<Region>> = {
            let mut domains = self.domains.lock();
            let domain = domains.entry(pd).or_default();
            if std::mem::replace(&mut domain.shared, true) {
                return;
            }
            domain.regions.values().filter_map(Weak::upgrade).collect()
        };
        for region in regions {
            region.settle(self);
        }
    }

    /// A region with remote access.
    fn region(&self, pd: u32, key: u32) -> Option<Arc<Region>> {
        let domains = self.domains.lock();
        domains.get(&pd)?.regions.get(&key)?.upgrade()
    }

    /// Moves a region that has been used ([`crate::deferred_move`]).
    pub fn place_used(&self, key: u32) {
        let mrs = &self.shared.common.mrs;
        let pd = mrs.write().get(key).map(|region| region.pd);
        let region = pd.and_then(|pd| self.region(pd, key));
        if let Some(region) = region {
            region.place_or_wait(self);
        }
    }

    /// Moves a range into the segment of its grant set.
    ///
    /// # Errors
    /// It stays where it is, and travels by ring.
    fn place(&self, pd: u32, (addr, len): (usize, usize), access: Access) -> Result<Placed, Kept> {
        let control = &self.shared.control;
        let mover = self.mover()?;
        if !mover.can_move() {
            return Err(Kept::ForGood);
        }
        // The broker may be gone for a moment, or what it allows be used up by others.
        let found = self.store(pd, is_writable(access));
        let (store, inside) = found.ok_or(Kept::Unserved)?;
        if !inside && !self.may_ask(mover) {
            return Err(Kept::ForNow);
        }
        control.reserve(len as u64).map_err(|_| Kept::Unserved)?;
        causeway_fault::point("region.reserved");
        match mover.move_in(&store, addr, len) {
            Ok(moved) => {
                tracing::debug!(len, "memory of a region is shared in place");
                Ok(Placed {
                    store,
                    moved,
                    reserved: len as u64,
                    inside,
                })
            }
            Err(why) => {
                tracing::debug!(len, ?why, "memory of a region stays where it is");
                let _ = control.release(len as u64);
                Err(Kept::by(why))
            }
        }
    }

    /// Whether the kernel tells of memory that peers have mapped whether anybody else refers to it:
    /// else none is moved for peers outside the trust boundary, from which it has to come back.
    fn may_ask(&self, mover: &Mover) -> bool {
        if !mover.asks_for_others()
            && let Some(asker) = self.shared.control.asker().ok().flatten()
        {
            mover.lend_asker(asker);
        }
        mover.asks_for_others()
    }

    /// A registration ends, and no peer accesses its range any more. Where only peers inside the
    /// trust boundary can have the segment, the memory stays in it until it is unmapped or wanted
    /// elsewhere; else it becomes private again. So it does if one of those was evicted
    /// (`evicted`), or has been from this segment: it may yet store into it.
    ///
    /// # Errors
    /// Part of it cannot come back for [`PINNED_MAX`], since somebody else refers to it (a read
    /// under way, an io_uring), or memory is short.
    fn end(&self, placed: Placed, pd: u32, evicted: bool) -> Result<(), (Placed, Unmovable)> {
        let Some(mover) = self.mover.get() else {
            return Ok(());
        };
        if !placed.inside || evicted || self.is_given_up(pd, placed.store.id()) {
            return self.take_back(placed, PINNED_MAX);
        }
        let left = if mover.keeps_idle() {
            placed
        } else {
            match self.take_back(placed, Duration::ZERO) {
                Ok(()) => return Ok(()),
                Err((left, _)) => left,
            }
        };
        let _ = self.shared.control.release(left.reserved);
        mover.release(left.moved);
        Ok(())
    }

    /// Whether a segment of a domain has been given up because of a peer that may store into it.
    fn is_given_up(&self, pd: u32, segment: u64) -> bool {
        let domains = self.domains.lock();
        let Some(domain) = domains.get(&pd) else {
            return true;
        };
        let mut stores = domain.stores.iter().flatten();
        !stores.any(|store| store.id() == segment) && !domain.former.contains(&segment)
    }

    /// Whether all that is to be moved of a range is where it is to be: registered before, or yet.
    fn is_in_place(&self, pd: u32, (addr, len): (usize, usize), access: Access) -> bool {
        let Some(mover) = self.mover.get() else {
            return false;
        };
        let domains = self.domains.lock();
        let domain = domains.get(&pd);
        let store = domain.and_then(|d| d.stores[usize::from(is_writable(access))].as_ref());
        store.is_some_and(|store| mover.holds(store, addr, len))
    }

    /// Gives a range back to the program, once no peer accesses it any more. Tries for `patience`.
    ///
    /// # Errors
    /// As [`Sharing::end`].
    fn take_back(&self, mut placed: Placed, patience: Duration) -> Result<(), (Placed, Unmovable)> {
        let begun = clock::now();
        let mut nap = PINNED_NAP;
        let Some(mover) = self.mover.get() else {
            return Ok(());
        };
        loop {
            let Err((left, why)) = mover.take_back(placed.moved) else {
                let _ = self.shared.control.release(placed.reserved);
                return Ok(());
            };
            placed.moved = left;
            if clock::now().since(begun) >= patience {
                return Err((placed, why));
            }
            self.may_ask(mover);
            std::thread::sleep(nap);
            nap = (2 * nap).min(PINNED_NAP_MAX);
        }
    }

    /// The segment for a region, and whether only peers inside the trust boundary get it. `None` if
    /// the broker gives none.
    fn store(&self, pd: u32, writable: bool) -> Option<(Arc<Store>, bool)> {
        let which = usize::from(writable);
        let mut domains = self.domains.lock();
        let mut waited = false;
        loop {
            let domain = domains.get_mut(&pd)?;
            let inside = !domain.exposed;
            if let Some(store) = &domain.stores[which] {
                return Some((Arc::clone(store), inside));
            }
            if domain.asked[which] {
                self.answered.wait(&mut domains);
                waited = true;
            } else if waited {
                // What another thread was refused is not asked for again at once.
                return None;
            } else {
                self.ask(&mut domains, pd, writable)?;
            }
        }
    }

    /// Asks the broker for a segment, which becomes the domain's. The lock is given up for so long:
    /// an answer may take seconds, and others register meanwhile. Who has something to ask of the
    /// broker waits for it all the same.
    fn ask(&self, domains: &mut Domains<'_>, pd: u32, writable: bool) -> Option<()> {
        let which = usize::from(writable);
        let control = &self.shared.control;
        let store = loop {
            let Some(domain) = domains.get_mut(&pd) else {
                break None;
            };
            domain.asked[which] = true;
            let inside = !domain.exposed;
            let create = || control.create_segment(pd, writable, inside);
            let Ok((id, fd)) = MutexGuard::unlocked(domains, create) else {
                break None;
            };
            causeway_fault::point("segment.created");
            let domain = domains.get(&pd);
            if domain.is_some_and(|domain| domain.exposed != inside) {
                break Some(Arc::new(Store::of(fd, id)));
            }
            // A peer outside the boundary was connected meanwhile: this is of the wrong kind.
            MutexGuard::unlocked(domains, || _ = control.destroy_segment(id));
        };
        self.answered.notify_all();
        let domain = domains.get_mut(&pd)?;
        domain.asked[which] = false;
        domain.stores[which] = store;
        domain.stores[which].as_ref().map(|_| ())
    }

    /// Moves everything in a segment to another: a peer outside the trust boundary holds a
    /// descriptor of it that nothing entitles it to any more, or may yet store into it. What
    /// somebody else refers to for too long follows as soon as it can, and travels by ring until
    /// then.
    pub fn renew(self: &Arc<Self>, segment: u64) {
        let one = self.renewing.lock();
        let Some((pd, at)) = self.find(segment) else {
            return;
        };
        causeway_fault::point("renew.created");
        let Some(regions) = self.retire(pd, at) else {
            return;
        };
        let left = self.vacate(&regions, segment, PINNED_MAX);
        drop(one);
        causeway_fault::point("renew.moved");
        let _ = self.shared.control.destroy_segment(segment);
        if !left.is_empty() {
            follow(self, &left, segment);
        }
    }

    /// Moves regions out of a segment, and to the one that is their domain's now. Returns those
    /// that could not move.
    fn vacate(
        &self,
        regions: &[Arc<Region>],
        segment: u64,
        patience: Duration,
    ) -> Vec<Arc<Region>> {
        let shared = &*self.shared;
        // Held until they are where they will be: none ends or moves meanwhile.
        let held = regions.iter().map(|region| (region, region.hold()));
        let mut held: Vec<_> = held.filter(|(_, held)| held.is_in(segment)).collect();
        let evicted: Vec<u32> = held
            .iter()
            .flat_map(|(_, held)| held.quiesce(shared))
            .collect();
        causeway_fault::point("renew.quiet");
        let begun = clock::now();
        let mut left = Vec::new();
        let mut moves = Vec::new();
        for (region, held) in &mut held {
            let rest = patience.saturating_sub(clock::now().since(begun));
            if held.take_back(self, rest) {
                moves.push(Arc::clone(region));
            } else {
                left.push(Arc::clone(region));
            }
        }
        drop(held);
        // Those that peers use already need not wait to be used.
        moves.iter().for_each(|region| region.place_or_wait(self));
        // One registered meanwhile may have been the first in the new segment; and one that a peer
        // kept out, by putting pages where it should go, gets in where that peer has no business.
        regions.iter().for_each(|region| region.settle(self));
        shared.give_up_segments_later(&evicted);
        left
    }

    /// The domain of a segment, and which of its segments it is.
    fn find(&self, segment: u64) -> Option<(u32, usize)> {
        let is_it = |store: &Option<Arc<Store>>| store.as_ref().is_some_and(|s| s.id() == segment);
        let domains = self.domains.lock();
        let mut found = domains
            .iter()
            .filter_map(|(pd, domain)| Some((*pd, domain.stores.iter().position(is_it)?)));
        found.next()
    }

    /// Lets go of a segment, in whose place there will be another. Returns the regions of the
    /// domain: those that may be in it, or on their way there, since a region is listed before it
    /// asks where to move.
    fn retire(&self, pd: u32, at: usize) -> Option<Vec<Arc<Region>>> {
        let mut domains = self.domains.lock();
        let domain = domains.get_mut(&pd)?;
        domain.stores[at].take()?;
        Some(domain.regions.values().filter_map(Weak::upgrade).collect())
    }

    /// Takes back memory that did not move with its segment, and moves it to the new one. False if
    /// that still cannot be.
    fn retry(&self, region: &Region, segment: u64) -> bool {
        let mut held = region.hold();
        if held.is_in(segment) && !held.take_back(self, Duration::ZERO) {
            return false;
        }
        drop(held);
        region.place_or_wait(self);
        true
    }

    /// The segments of a domain.
    fn segments(&self, pd: u32) -> Vec<u64> {
        let domains = self.domains.lock();
        let stores = domains.get(&pd).map(|domain| &domain.stores);
        stores
            .into_iter()
            .flatten()
            .flatten()
            .map(|store| store.id())
            .collect()
    }
}

/// Moves regions as soon as nobody else refers to their memory, by a thread that ends then.
fn follow(sharing: &Arc<Sharing>, regions: &[Arc<Region>], segment: u64) {
    let sharing = Arc::downgrade(sharing);
    let mut left: Vec<Weak<Region>> = regions.iter().map(Arc::downgrade).collect();
    let body = move || {
        let mut nap = PINNED_NAP;
        while !left.is_empty() {
            std::thread::sleep(nap);
            nap = (2 * nap).min(PINNED_NAP_MAX);
            left.retain(|region| {
                let (sharing, region) = (sharing.upgrade(), region.upgrade());
                let both = sharing.zip(region);
                both.is_some_and(|(sharing, region)| !sharing.retry(&region, segment))
            });
        }
    };
    // Without a thread the memory stays until its registration ends.
    let _ = crate::threads::spawn("causeway-late", body);
}

/// What the broker lends, if it does. One that refuses may be of an earlier version.
fn lent<T>(answer: Result<Option<T>, causeway_fabric::Error>) -> Result<Option<T>, Kept> {
    match answer {
        Ok(lent) => Ok(lent),
        Err(causeway_fabric::Error::Refused { .. }) => Ok(None),
        Err(_) => Err(Kept::Unserved),
    }
}

/// A region's memory was not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// The broker is away or grants no more, to this or any other.
    Unserved,
    /// Something keeps it that may pass.
    ForNow,
    /// It is memory that cannot be moved, or the process cannot move any.
    ForGood,
}

impl Kept {
    fn by(why: Unmovable) -> Kept {
        match why {
            Unmovable::Pinned
            | Unmovable::Occupied
            | Unmovable::Elsewhere
            | Unmovable::TooMany
            | Unmovable::System(_) => Kept::ForNow,
            _ => Kept::ForGood,
        }
    }
}

/// Where a region's memory is.
#[derive(Debug)]
struct Placed {
    store: Arc<Store>,
    moved: Moved,
    /// Bytes counted against the endpoint's limit.
    reserved: u64,
    /// Only peers inside the trust boundary can have the segment.
    inside: bool,
}
