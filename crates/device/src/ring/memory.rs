//! The memory of a ring as its protocol sees it, and the way to tell the peer of something.

use std::sync::Arc;

use causeway_proto::ring::{self, News, Shared};
use causeway_proto::{Bytes, BytesMut};
use causeway_shm::ring::{Flag, Slot};
use causeway_shm::{Attention, Corrupt, Grant, Ring, is_looking, leave_word, notify};

use crate::peers::PeerEnd;

/// A side's end of a ring, and where its peer is told.
#[derive(Debug)]
pub(super) struct Memory {
    pub ring: Ring,
    pub peer: Arc<PeerEnd>,
    /// Number of the peer's queue pair.
    pub peer_qpn: u32,
}

/// Room for a record.
#[derive(Debug)]
pub(super) struct Room<'a>(Slot<'a>);

impl ring::Slot for Room<'_> {
    #[inline]
    fn body(&mut self) -> BytesMut<'_> {
        // SAFETY: the body is ours to write until the slot is committed, and stays mapped while the
        // ring is borrowed.
        unsafe { BytesMut::from_raw(self.0.as_mut_ptr(), self.0.len()) }
    }

    #[inline]
    fn commit(self, kind: u8, flags: u8, seq: u64, len: usize) {
        self.0.commit(kind, flags, seq, len);
    }
}

impl Memory {
    /// Leaves word for a peer that waits for nothing.
    pub fn leave_word(&self, news: News) {
        leave_word(&self.ring, events(news), &self.peer.inbox, self.peer_qpn);
    }
}

impl Shared for Memory {
    type Slot<'a> = Room<'a>;

    #[inline]
    fn reserve(&mut self, len: usize) -> Result<Option<Room<'_>>, ring::Corrupt> {
        let slot = self.ring.tx.reserve(len, len).map_err(corrupt)?;
        Ok(slot.map(Room))
    }

    #[inline]
    fn publish(&mut self) -> bool {
        self.ring.tx.publish()
    }

    #[inline(always)]
    fn peek(&mut self) -> Result<Option<ring::Record<'_>>, ring::Corrupt> {
        let record = self.ring.rx.peek().map_err(corrupt)?;
        Ok(record.map(|record| ring::Record {
            kind: record.kind,
            flags: record.flags,
            seq: record.seq,
            ack: record.ack,
            // SAFETY: the body stays mapped while the ring is borrowed, and is only copied.
            body: unsafe { Bytes::from_raw(record.as_ptr(), record.len()) },
        }))
    }

    #[inline(always)]
    fn consume(&mut self) {
        self.ring.rx.consume();
    }

    #[inline(always)]
    fn is_ready(&self) -> bool {
        self.ring.rx.ready()
    }

    #[inline(always)]
    fn set_ack(&mut self, upto: u64) {
        self.ring.set_req_ack(upto);
    }

    #[inline]
    fn ack_pending(&self) -> bool {
        self.ring.ack_pending()
    }

    #[inline]
    fn publish_ack(&mut self) -> bool {
        self.ring.publish_ack()
    }

    #[inline(always)]
    fn ack(&mut self) -> u64 {
        self.ring.req_ack()
    }

    fn last_ack(&mut self) -> u64 {
        self.ring.last_req_ack()
    }

    /// Takes back, too, what the peer may do in this endpoint's memory.
    fn leave(&mut self, closed: bool) {
        self.ring.set_grant(Grant::NONE);
        self.ring.set_flag(match closed {
            true => Flag::Closed,
            false => Flag::Failed,
        });
    }

    #[inline]
    fn is_peer_leaving(&self) -> bool {
        self.ring.is_peer_leaving()
    }

    #[inline(always)]
    fn tell(&mut self, news: News) -> bool {
        let Memory {
            ring,
            peer,
            peer_qpn,
        } = self;
        notify(ring, events(news), &peer.inbox, &peer.bell, *peer_qpn).unwrap_or(false)
    }
}

impl Memory {
    /// Whether the peer finds by itself what was published, and need not be told.
    #[inline(always)]
    pub fn is_peer_looking(&self) -> bool {
        is_looking(&self.ring, &self.peer.inbox)
    }
}

#[inline(always)]
fn events(news: News) -> Attention {
    Attention::of(news.data, news.ack, news.room)
}

#[inline]
fn corrupt(_: Corrupt) -> ring::Corrupt {
    ring::Corrupt
}
