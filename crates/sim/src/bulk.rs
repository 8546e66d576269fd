//! An upper layer that sends WRITEs of one length, or takes them: nothing but quantity.

use std::collections::VecDeque;

use causeway_proto::ulp::{Nak, SegMeta, Space, Ulp, Verdict};
use causeway_proto::unit::{Frame, Kind, Unit};
use causeway_proto::{Bytes, Instant};

/// Names the target of all WRITEs.
const RKEY: u32 = 7;

/// A unit sent and not acknowledged.
#[derive(Clone, Copy, Debug)]
struct Sent {
    meta: SegMeta,
    addr: u64,
    len: usize,
}

/// The upper layer.
#[derive(Debug, Default)]
pub struct Bulk {
    message: u64,
    depth: u64,
    messages: u64,
    /// Messages built whole, and acknowledged.
    built: u64,
    done: u64,
    /// Bytes and units of the message that is being built.
    offset: u64,
    units: u64,
    sent: VecDeque<Sent>,
    /// Bytes received whose predecessors had all been, too.
    received: u64,
    lost: bool,
}

impl Bulk {
    /// Sends so many messages of `message` bytes, `depth` at a time.
    #[must_use]
    pub fn sender(messages: u64, message: u64, depth: u64) -> Self {
        Bulk {
            message,
            depth,
            messages,
            ..Bulk::default()
        }
    }

    /// Sends nothing.
    #[must_use]
    pub fn receiver() -> Self {
        Bulk::default()
    }

    /// Whether all messages have been acknowledged.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.done == self.messages
    }

    /// Bytes of messages that have been acknowledged.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.done * self.message
    }

    /// Whether the peer was declared lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost
    }
}

fn write(sent: &Sent, frame: &mut impl Frame) {
    let unit = Unit::Write {
        rkey: RKEY,
        addr: sent.addr,
    };
    // What the bytes are is not looked at: `crate::mock` does.
    let put = frame.put(&unit, sent.meta.last, sent.len);
    assert!(put.is_some(), "a unit does not fit again");
}

impl Ulp for Bulk {
    fn has_next(&self, space: Space) -> bool {
        space == Space::Request
            && !self.lost
            && self.built < self.messages.min(self.done + self.depth)
    }

    fn next(&mut self, space: Space, seq: u64, frame: &mut impl Frame) -> Option<SegMeta> {
        if !self.has_next(space) {
            return None;
        }
        let room = u64::from(frame.room(Kind::Write)?);
        let len = room.min(self.message - self.offset);
        let meta = SegMeta {
            seq,
            first: seq - self.units,
            last: self.offset + len == self.message,
            direct: false,
        };
        let sent = Sent {
            meta,
            addr: self.built * self.message + self.offset,
            len: len as usize,
        };
        write(&sent, frame);
        self.sent.push_back(sent);
        (self.offset, self.units) = (self.offset + len, self.units + 1);
        if meta.last {
            (self.offset, self.units) = (0, 0);
            self.built += 1;
        }
        Some(meta)
    }

    fn again(&mut self, _space: Space, seq: u64, frame: &mut impl Frame) -> Option<SegMeta> {
        let first = self.sent.front()?.meta.seq;
        let sent = *self.sent.get((seq - first) as usize)?;
        write(&sent, frame);
        Some(sent.meta)
    }

    fn receive(
        &mut self,
        _space: Space,
        _meta: SegMeta,
        unit: &Unit,
        payload: Bytes<'_>,
        in_order: bool,
    ) -> Verdict {
        let Unit::Write { rkey: RKEY, addr } = *unit else {
            panic!("{unit:?} was not sent");
        };
        if in_order {
            // What was placed early is passed over.
            assert!(addr >= self.received, "{addr} comes again");
            self.received = addr + payload.len() as u64;
        }
        Verdict::Placed
    }

    fn acked(&mut self, _space: Space, upto: u64) {
        while self.sent.front().is_some_and(|sent| sent.meta.seq < upto) {
            let sent = self.sent.pop_front();
            self.done += u64::from(sent.is_some_and(|sent| sent.meta.last));
        }
    }

    fn not_ready(&mut self, _seq: u64, _timer: u8, now: Instant) -> Option<Instant> {
        Some(now)
    }

    fn refused(&mut self, seq: u64, nak: Nak) {
        unreachable!("{seq} was refused: {nak:?}");
    }

    fn other_version(&mut self, theirs: u8, _: u8) {
        unreachable!("both sides are of this build, not of version {theirs}");
    }

    fn expects_answer(&self) -> bool {
        false
    }

    fn is_failed(&self) -> bool {
        false
    }

    fn lost(&mut self) {
        self.lost = true;
    }
}
