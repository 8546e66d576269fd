//! An upper layer with long messages.

use super::segment;
use crate::bytes::{Bytes, Payloads, PayloadsMut};
use crate::time::Instant;
use crate::ulp::{Nak, SegMeta, Space, Ulp, Verdict};
use crate::unit::{Frame, Kind, Unit};

/// An upper layer with segments to send, each as long as there is room, of messages of so many. It
/// notes what it is given.
pub struct Long {
    left: u64,
    of_message: u64,
    /// How many units that follow each other it takes at a time.
    pub at_once: usize,
    pub placed: Vec<(u64, Unit)>,
}

impl Long {
    /// With `left` segments, a message of each three.
    pub fn of_three(left: u64) -> Self {
        Long {
            left,
            of_message: 3,
            at_once: 0,
            placed: Vec::new(),
        }
    }

    /// With one message, which never ends.
    pub fn endless() -> Self {
        Long {
            left: u64::MAX,
            of_message: u64::MAX,
            at_once: 0,
            placed: Vec::new(),
        }
    }
}

impl Ulp for Long {
    fn has_next(&self, space: Space) -> bool {
        space == Space::Request && self.left > 0
    }

    fn next(&mut self, _: Space, seq: u64, frame: &mut impl Frame) -> Option<SegMeta> {
        self.left = self.left.checked_sub(1)?;
        let len = frame.room(Kind::Write)? as usize;
        segment(seq, self.of_message, len, frame)
    }

    fn next_alike(&mut self, _: Space, _: u64, bodies: PayloadsMut<'_>) -> usize {
        let sevens = vec![7; bodies.each()];
        let filled = bodies.map(|mut body| body.put(0, &sevens));
        let count = filled.take_while(|filled| *filled).count();
        self.left -= count as u64;
        count
    }

    fn again(&mut self, _: Space, _: u64, _: &mut impl Frame) -> Option<SegMeta> {
        None
    }

    fn receive(&mut self, _: Space, m: SegMeta, unit: &Unit, _: Bytes<'_>, _: bool) -> Verdict {
        self.placed.push((m.seq, *unit));
        Verdict::Placed
    }

    fn receive_alike(&mut self, _: Space, m: SegMeta, unit: &Unit, all: Payloads<'_>) -> usize {
        let before = self.placed.len();
        let Unit::Write { rkey, addr } = *unit else {
            return 0;
        };
        for (i, payload) in (0..).zip(all.take(self.at_once)) {
            let addr = addr + i * payload.len() as u64;
            self.placed.push((m.seq + i, Unit::Write { rkey, addr }));
        }
        self.placed.len() - before
    }

    fn acked(&mut self, _: Space, _: u64) {}

    fn not_ready(&mut self, _: u64, _: u8, _: Instant) -> Option<Instant> {
        None
    }

    fn expects_answer(&self) -> bool {
        false
    }

    fn is_failed(&self) -> bool {
        false
    }

    fn refused(&mut self, _: u64, _: Nak) {}

    fn other_version(&mut self, _: u8, _: u8) {}

    fn lost(&mut self) {}
}
