//! The endpoints of peers on this host, to notify.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use causeway_shm::layout::{INBOX_LEN, MR_TABLE_BYTES};
use causeway_shm::{Arena, Doorbell, Inbox, PeerMrs, Segment};
use parking_lot::Mutex;

use crate::errno::Errno;

/// Where a peer's endpoint is told that something happened on a ring.
#[derive(Debug)]
pub(crate) struct PeerEnd {
    pub inbox: Inbox,
    pub bell: Doorbell,
    /// Its memory regions.
    pub mrs: PeerMrs,
    /// Its memory segments that queue pairs use, by number and whether they may be written.
    arenas: Mutex<HashMap<(u64, bool), Weak<Arena>>>,
}

/// The descriptors that lead to a peer's endpoint.
#[derive(Debug)]
pub(crate) struct PeerFds {
    pub inbox: OwnedFd,
    pub bell: OwnedFd,
    pub mr_table: OwnedFd,
}

impl PeerEnd {
    fn open(fds: PeerFds) -> Result<Self, Errno> {
        let inbox = Segment::map(fds.inbox, INBOX_LEN).map_err(refused)?;
        let table = Segment::map_read_only(fds.mr_table, MR_TABLE_BYTES).map_err(refused)?;
        Ok(PeerEnd {
            inbox: Inbox::open(Arc::new(inbox)).map_err(refused)?,
            bell: Doorbell::from_fd(fds.bell),
            mrs: PeerMrs::open(Arc::new(table)).map_err(refused)?,
            arenas: Mutex::default(),
        })
    }

    /// A memory segment as the broker has handed it out: mapped once, however many queue pairs it
    /// was handed out for.
    pub fn arena(&self, segment: u64, fd: OwnedFd, writable: bool) -> Result<Arc<Arena>, Errno> {
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

/// The peers' endpoints, one entry for each however many queue pairs lead there.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<HashMap<u64, Weak<PeerEnd>>>);

impl Peers {
    /// The endpoint numbered `peer`, to which these descriptors lead.
    pub fn get(&self, peer: u64, fds: PeerFds) -> Result<Arc<PeerEnd>, Errno> {
        let mut known = self.0.lock();
        if let Some(end) = known.get(&peer).and_then(Weak::upgrade) {
            return Ok(end);
        }
        known.retain(|_, end| end.strong_count() > 0);
        let end = Arc::new(PeerEnd::open(fds)?);
        known.insert(peer, Arc::downgrade(&end));
        Ok(end)
    }
}

/// The errno for a segment that cannot be used.
pub(crate) fn refused(e: causeway_shm::SegmentError) -> Errno {
    match e {
        causeway_shm::SegmentError::Os(e) => e.into(),
        _ => Errno(libc::EPROTO),
    }
}
