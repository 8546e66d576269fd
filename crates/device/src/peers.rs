//! The endpoints of peers on this host, to notify.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};

use causeway_fabric::PeerFds;
use causeway_identity::Slot;
use causeway_owned::Owned;
use causeway_shm::layout::{INBOX_LEN, MR_TABLE_BYTES, RING_CAPACITY, ring_len};
use causeway_shm::{Arena, Bell, Doorbell, Inbox, PeerMrs, Segment};
use parking_lot::Mutex;

use crate::closed_fds::Failure;
use crate::errno::Errno;
use crate::peer_process::PeerProcess;

/// Where a peer's endpoint is told that something happened on a ring.
#[derive(Debug)]
pub(crate) struct PeerEnd {
    pub inbox: Inbox,
    pub bell: PeerBell,
    /// Its memory regions.
    pub mrs: PeerMrs,
    /// The guest table of this endpoint's regions that it reads, if it does not read their table.
    pub guest_table: OnceLock<Arc<Segment>>,
    /// Rings shared with it that no queue pair uses, by name: those of later ones.
    rings: Mutex<HashMap<u64, Arc<Segment>>>,
    /// Its process, if this one may read its memory; nothing while nobody has asked for that.
    process: OnceLock<Option<Arc<PeerProcess>>>,
    /// Its memory segments that queue pairs use, by number and whether they may be written.
    arenas: Mutex<HashMap<(u64, bool), Weak<Arena>>>,
}

/// A peer's doorbell.
#[derive(Debug)]
pub(crate) struct PeerBell {
    doorbell: Doorbell,
    failure: Arc<Failure>,
}

impl Bell for PeerBell {
    /// It can be rung as long as there is a descriptor of it, whatever the peer does.
    #[cold]
    #[inline(never)]
    fn ring(&self) -> std::io::Result<()> {
        let rung = self.doorbell.ring();
        rung.inspect_err(|_| self.failure.report())
    }
}

impl PeerEnd {
    fn open(fds: PeerFds, failure: Arc<Failure>) -> Result<Self, Errno> {
        let inbox = Segment::map(fds.inbox, INBOX_LEN).map_err(refused)?;
        let table = Segment::map_read_only(fds.table, MR_TABLE_BYTES).map_err(refused)?;
        Ok(PeerEnd {
            inbox: Inbox::open(Arc::new(inbox)).map_err(refused)?,
            bell: PeerBell {
                doorbell: Doorbell::from_fd(fds.doorbell),
                failure,
            },
            mrs: PeerMrs::open(Arc::new(table)).map_err(refused)?,
            guest_table: OnceLock::new(),
            rings: Mutex::default(),
            process: OnceLock::new(),
            arenas: Mutex::default(),
        })
    }

    /// Its process, as it is known; the outer `None`: the broker has not been asked.
    pub fn known_process(&self) -> Option<Option<Arc<PeerProcess>>> {
        self.process.get().cloned()
    }

    /// The broker has said which process it is; `None`: one that is not to be read from. Returns
    /// the one that was known first.
    pub fn note_process(&self, found: Option<Arc<PeerProcess>>) -> Option<Arc<PeerProcess>> {
        self.process.get_or_init(|| found).clone()
    }

    /// Keeps a ring mapped for a later queue pair.
    pub fn keep_ring(&self, name: u64, ring: Arc<Segment>) {
        self.rings.lock().insert(name, ring);
    }

    /// The memory of a ring that the broker has handed out: kept from an earlier queue pair, or
    /// mapped now.
    pub fn ring(&self, name: u64, fd: Option<OwnedFd>) -> Result<Arc<Segment>, Errno> {
        if let Some(kept) = self.rings.lock().remove(&name) {
            return Ok(kept);
        }
        let fd = fd.ok_or(Errno(libc::EPROTO))?;
        let segment = Segment::map(fd, ring_len(RING_CAPACITY)).map_err(refused)?;
        Ok(Arc::new(segment))
    }

    /// A memory segment as the broker has handed it out: mapped once, however many queue pairs it
    /// was handed out for.
    pub fn arena(&self, segment: u64, fd: Owned, writable: bool) -> Result<Arc<Arena>, Errno> {
        let mut arenas = self.arenas.lock();
        let key = (segment, writable);
        if let Some(known) = arenas.get(&key).and_then(Weak::upgrade) {
            return Ok(known);
        }
        arenas.retain(|_, arena| arena.strong_count() > 0);
        let arena = Arc::new(Arena::new(fd, writable)?);
        arenas.insert(key, Arc::downgrade(&arena));
        Ok(arena)
    }
}

/// Peers kept in mind though no queue pair leads to them.
const RECENT_MOST: usize = 8;

/// Where a queue pair was said to be: the GID, `None` for this host, and the slot.
pub(crate) type Place = (Option<[u8; 16]>, Slot);

/// The peers' endpoints, one entry for each however many queue pairs lead there.
#[derive(Debug)]
pub(crate) struct Peers {
    known: Mutex<Known>,
    failure: Arc<Failure>,
}

#[derive(Debug, Default)]
struct Known {
    /// By the numbers that the broker has given them.
    ends: HashMap<u64, Weak<PeerEnd>>,
    /// Where each peer was found last.
    places: HashMap<Place, u64>,
    /// Those connected to last, which are likely to be again: to map what leads to them, and to map
    /// rings, takes longer than a connection.
    recent: VecDeque<Arc<PeerEnd>>,
}

impl Known {
    fn note_recent(&mut self, end: &Arc<PeerEnd>) {
        if self.recent.iter().any(|known| Arc::ptr_eq(known, end)) {
            return;
        }
        self.recent.truncate(RECENT_MOST - 1);
        self.recent.push_front(Arc::clone(end));
    }
}

impl Peers {
    /// None yet; `failure` is that of the endpoint whose peers they are.
    pub fn new(failure: Arc<Failure>) -> Self {
        Peers {
            known: Mutex::default(),
            failure,
        }
    }

    /// The endpoint that is most likely at a place, and its number: the broker need not send its
    /// descriptors.
    pub fn at(&self, place: &Place) -> Option<(u64, Arc<PeerEnd>)> {
        let known = self.known.lock();
        let number = *known.places.get(place)?;
        Some((number, known.ends.get(&number)?.upgrade()?))
    }

    /// The endpoint numbered `peer`, found at a place, to which these descriptors lead.
    pub fn get(&self, peer: u64, place: Place, fds: PeerFds) -> Result<Arc<PeerEnd>, Errno> {
        let known = &mut *self.known.lock();
        let end = match known.ends.get(&peer).and_then(Weak::upgrade) {
            Some(end) => end,
            None => {
                known.ends.retain(|_, end| end.strong_count() > 0);
                let end = Arc::new(PeerEnd::open(fds, Arc::clone(&self.failure))?);
                known.ends.insert(peer, Arc::downgrade(&end));
                let Known { ends, places, .. } = known;
                places.retain(|_, number| ends.contains_key(number));
                end
            }
        };
        known.places.insert(place, peer);
        known.note_recent(&end);
        Ok(end)
    }

    /// A peer is dead. What is kept of it goes with the last queue pair that leads there.
    pub fn forget(&self, end: &Arc<PeerEnd>) {
        let recent = &mut self.known.lock().recent;
        recent.retain(|known| !Arc::ptr_eq(known, end));
    }

    /// A ring will not be used again.
    pub fn forget_ring(&self, name: u64) {
        let ends = self.known.lock();
        for end in ends.ends.values().filter_map(Weak::upgrade) {
            end.rings.lock().remove(&name);
        }
    }

    /// The broker is gone: to the next one peers have other numbers, and rings other names.
    pub fn forget_all(&self) {
        self.known.lock().recent.clear();
    }
}

/// The errno for a segment that cannot be used.
pub(crate) fn refused(e: causeway_shm::SegmentError) -> Errno {
    match e {
        causeway_shm::SegmentError::Os(error) | causeway_shm::SegmentError::Call { error, .. } => {
            error.into()
        }
        _ => Errno(libc::EPROTO),
    }
}
