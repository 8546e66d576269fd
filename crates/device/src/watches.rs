//! Accesses by peers to this endpoint's memory, as all of its queue pairs see them.
//!
//! An access by a key that was withdrawn has to end before the work request that withdrew it is
//! complete. It is a few microseconds, unless the peer was stopped in the middle of it, or pretends
//! to be: then that work request waits for the lease, and nothing else does.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use causeway_proto::Instant;
use causeway_shm::Watch;
use parking_lot::Mutex;

use crate::clock;
use crate::limits::LEASE;
use crate::window::Withdrawn;

/// Whose accesses to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accesses {
    /// All to a region, or by a window.
    Region(u32),
    /// All of a queue pair's peer.
    QueuePair(u32),
}

/// The accesses of the peers on this host. Thread-safe; its lock is the last that is taken.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    inner: Mutex<Inner>,
    /// Some queue pair's peer was evicted, and the queue pair does not know yet.
    any_late: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    /// How the accesses of a queue pair's peer are seen, by its number.
    watches: BTreeMap<u32, Option<Watch>>,
    /// Keys of windows that were withdrawn while peers were accessing memory by them.
    leaving: Vec<Leaving>,
    /// Queue pairs whose peers were evicted: they are to fail.
    late: Vec<u32>,
}

/// A key by which an access may be under way, though none begins any more.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    what: Withdrawn,
    since: Instant,
}

impl Watches {
    /// A queue pair is there. Room for how its peer's accesses are seen is made now: where it is
    /// connected, memory may be short, and a process that gets none ends.
    pub fn add(&self, qpn: u32) {
        self.inner.lock().watches.entry(qpn).or_default();
    }

    /// It is gone.
    pub fn remove(&self, qpn: u32) {
        self.inner.lock().watches.remove(&qpn);
    }

    /// How the accesses of a queue pair's peer are seen; `None`: there are none, or nobody waits
    /// for their end.
    pub fn set(&self, qpn: u32, watch: Option<Watch>) {
        if let Some(known) = self.inner.lock().watches.get_mut(&qpn) {
            *known = watch;
        }
    }

    /// How many queue pairs there are.
    pub fn len(&self) -> usize {
        self.inner.lock().watches.len()
    }

    /// The queue pairs whose peers are accessing.
    pub fn in_flight(&self, what: Accesses) -> Vec<u32> {
        let inner = self.inner.lock();
        let late = inner.watched().filter(|(qpn, watch)| match what {
            Accesses::Region(key) => watch.peer_in_flight() == u64::from(key),
            Accesses::QueuePair(meant) => *qpn == meant && watch.peer_in_flight() != 0,
        });
        late.map(|(qpn, _)| qpn).collect()
    }

    /// A key has been withdrawn. Returns it if an access by it is under way.
    #[inline]
    pub fn leave(&self, withdrawn: Option<Withdrawn>) -> Option<u32> {
        let withdrawn = withdrawn?;
        self.inner.lock().leave(withdrawn)
    }

    /// The withdrawn keys for which `concerns` says yes, and by which accesses may be under way.
    pub fn keys_leaving(&self, concerns: impl Fn(&Withdrawn) -> bool) -> Vec<u32> {
        let inner = self.inner.lock();
        let concerned = inner.leaving.iter().filter(|one| concerns(&one.what));
        concerned.map(|one| one.what.key).collect()
    }

    /// Whether no access by a withdrawn key is under way any more. A peer that overruns the lease
    /// is evicted.
    pub fn is_quiet(&self, key: u32) -> bool {
        let mut inner = self.inner.lock();
        let Some(at) = inner.leaving.iter().position(|one| one.what.key == key) else {
            return true;
        };
        let Leaving { what, since } = inner.leaving[at];
        if inner.is_used(what) {
            if clock::now().since(since) < LEASE {
                return false;
            }
            self.evict_from(&mut inner, what);
        }
        inner.leaving.swap_remove(at);
        true
    }

    /// Evicts the peer of a queue pair if it is accessing memory by a withdrawn key.
    pub fn expel(&self, qpn: u32, key: u32) {
        let mut inner = self.inner.lock();
        if let Some(at) = inner.leaving.iter().position(|one| one.what.key == key) {
            let Leaving { what, .. } = inner.leaving.swap_remove(at);
            self.evict_from(&mut inner, Withdrawn { qpn, ..what });
        }
    }

    /// Waits no longer for those who are accessing memory by a withdrawn key.
    fn evict_from(&self, inner: &mut Inner, withdrawn: Withdrawn) {
        let Inner { watches, late, .. } = inner;
        for (qpn, place) in watches {
            if let Some(watch) = place.take_if(|watch| withdrawn.is_used(*qpn, watch)) {
                watch.evict();
                late.push(*qpn);
            }
        }
        self.any_late.store(!late.is_empty(), Ordering::Release);
    }

    /// Whether some queue pair is to fail because its peer was evicted.
    #[inline]
    pub fn has_late(&self) -> bool {
        self.any_late.load(Ordering::Relaxed)
    }

    /// Those of these queue pairs, by `is_own`.
    pub fn take_late(&self, is_own: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut inner = self.inner.lock();
        let all = std::mem::take(&mut inner.late);
        let (own, others) = all.into_iter().partition(|qpn| is_own(*qpn));
        inner.late = others;
        self.any_late
            .store(!inner.late.is_empty(), Ordering::Release);
        own
    }
}

impl Inner {
    /// Those that are waited for.
    fn watched(&self) -> impl Iterator<Item = (u32, &Watch)> {
        let all = self.watches.iter();
        all.filter_map(|(qpn, watch)| Some((*qpn, watch.as_ref()?)))
    }

    fn leave(&mut self, withdrawn: Withdrawn) -> Option<u32> {
        if !self.is_used(withdrawn) {
            return None;
        }
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.retain(|one| one.what.key != withdrawn.key && self.is_used(one.what));
        leaving.push(Leaving {
            what: withdrawn,
            since: clock::now(),
        });
        self.leaving = leaving;
        Some(withdrawn.key)
    }

    fn is_used(&self, withdrawn: Withdrawn) -> bool {
        self.watched()
            .any(|(qpn, watch)| withdrawn.is_used(qpn, watch))
    }
}

impl Withdrawn {
    /// Whether the peer of a queue pair is accessing memory by the key, and may have found it.
    fn is_used(&self, qpn: u32, watch: &Watch) -> bool {
        let own = self.qpn == 0 || self.qpn == qpn;
        own && watch.peer_in_flight() == u64::from(self.key)
    }
}
