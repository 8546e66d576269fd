//! The memory of a ring whose records are recorded as they are written and taken.

use causeway_proto::ring::{Corrupt, News, Record, Shared, Slot};
use causeway_proto::{Bytes, BytesMut};

use super::memory::{Memory, Room};
use crate::tap::Tap;

/// A side's end of a ring, and what it is traced by.
pub(super) struct Traced<'a> {
    pub memory: &'a mut Memory,
    pub tap: &'a Tap,
}

/// Room for a record that is recorded.
pub(super) struct TracedRoom<'a> {
    room: Room<'a>,
    tap: &'a Tap,
}

impl Slot for TracedRoom<'_> {
    fn body(&mut self) -> BytesMut<'_> {
        self.room.body()
    }

    fn commit(mut self, kind: u8, flags: u8, seq: u64, len: usize) {
        let mut body = self.room.body();
        let (at, len) = (body.as_mut_ptr(), len.min(body.len()));
        self.tap.record(
            true,
            &Record {
                kind,
                flags,
                seq,
                ack: 0,
                // SAFETY: they are the room's first bytes, which stay mapped while it is borrowed.
                body: unsafe { Bytes::from_raw(at, len) },
            },
        );
        self.room.commit(kind, flags, seq, len);
    }
}

impl Shared for Traced<'_> {
    type Slot<'a>
        = TracedRoom<'a>
    where
        Self: 'a;

    fn reserve(&mut self, len: usize) -> Result<Option<TracedRoom<'_>>, Corrupt> {
        let tap = self.tap;
        let room = self.memory.reserve(len)?;
        Ok(room.map(|room| TracedRoom { room, tap }))
    }

    fn publish(&mut self) -> bool {
        self.memory.publish()
    }

    fn peek(&mut self) -> Result<Option<Record<'_>>, Corrupt> {
        self.memory.peek()
    }

    fn consume(&mut self) {
        // The record that was shown, again.
        if let Ok(Some(record)) = self.memory.peek() {
            self.tap.record(false, &record);
        }
        self.memory.consume();
    }

    fn is_ready(&self) -> bool {
        self.memory.is_ready()
    }

    fn set_ack(&mut self, upto: u64) {
        self.memory.set_ack(upto);
    }

    fn ack_pending(&self) -> bool {
        self.memory.ack_pending()
    }

    fn publish_ack(&mut self) -> bool {
        self.memory.publish_ack()
    }

    fn ack(&mut self) -> u64 {
        self.memory.ack()
    }

    fn last_ack(&mut self) -> u64 {
        self.memory.last_ack()
    }

    fn leave(&mut self, closed: bool) {
        self.memory.leave(closed);
    }

    fn is_peer_leaving(&self) -> bool {
        self.memory.is_peer_leaving()
    }

    fn tell(&mut self, news: News) -> bool {
        self.memory.tell(news)
    }
}
