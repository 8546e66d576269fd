//! The endpoints of peers on this host, to notify.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use causeway_shm::layout::INBOX_LEN;
use causeway_shm::{Doorbell, Inbox, Segment};
use parking_lot::Mutex;

use crate::errno::Errno;

/// Where a peer's endpoint is told that something happened on a ring.
#[derive(Debug)]
pub(crate) struct PeerEnd {
    pub inbox: Inbox,
    pub bell: Doorbell,
}

/// The peers' endpoints, one entry for each however many queue pairs lead there.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<HashMap<u64, Weak<PeerEnd>>>);

impl Peers {
    /// The endpoint numbered `peer`, to which these descriptors lead.
    pub fn get(&self, peer: u64, inbox: OwnedFd, bell: OwnedFd) -> Result<Arc<PeerEnd>, Errno> {
        let mut known = self.0.lock();
        if let Some(end) = known.get(&peer).and_then(Weak::upgrade) {
            return Ok(end);
        }
        known.retain(|_, end| end.strong_count() > 0);
        let segment = Segment::map(inbox, INBOX_LEN).map_err(refused)?;
        let inbox = Inbox::open(Arc::new(segment)).map_err(refused)?;
        let end = Arc::new(PeerEnd {
            inbox,
            bell: Doorbell::from_fd(bell),
        });
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
