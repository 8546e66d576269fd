//! What the queue pair has to send, written as records.

use super::shared::{LAST, kind};
use super::{Corrupt, DIRECT, Link, News, Refusal, Shared, Slot, publish_ack};
use crate::ddp::{MAX_HEADER, SEND_HEADER, Segment};
use crate::host::Tally;
use crate::time::Instant;
use crate::ulp::{SegMeta, Space, Ulp};

/// Payload of one record: small enough that the reader copies out while the writer copies in.
pub const CHUNK: usize = 8192;
/// Body of a record that one cache line holds, header and all.
pub const SHORT_BODY: usize = 40;
/// Payload of a message that is built aside and copied to the ring in one go. The reader polls the
/// line that holds it: built there, it would go back and forth for every store.
pub const SHORT: usize = SHORT_BODY - SEND_HEADER;
/// Records written in one pass.
const TRANSMIT_MOST: usize = 64;

/// How an attempt to write a record ended.
enum Wrote {
    Record,
    Nothing,
    NoRoom,
}

impl Link {
    /// Writes what the queue pair has to send. `direct` carries out what can be without a record;
    /// it is asked first, and as often as the queue pair has such work. Returns whether something
    /// is left that waits for room.
    pub fn transmit<S: Shared, U: Ulp>(
        &mut self,
        shm: &mut S,
        ulp: &mut U,
        now: &impl Fn() -> Instant,
        direct: impl FnMut(&mut Self, &mut S, &mut U),
    ) -> bool {
        if self.gone {
            if ulp.expects_answer() {
                ulp.lost();
            }
            return false;
        }
        let left = match self.send_all(shm, ulp, now, direct) {
            Ok(left) => left && !self.deserted,
            Err(Corrupt) => {
                self.give_up(ulp);
                false
            }
        };
        let untold = core::mem::take(&mut self.streamed) > 1;
        if shm.publish() || untold {
            let woken = self.tell_published(shm);
            ulp.tally(Tally::Woken, u64::from(woken));
        }
        if ulp.is_failed() && !left && !self.said_failed {
            self.said_failed = true;
            // First: what was received is acknowledged, though nobody has polled since.
            publish_ack(shm);
            shm.leave(false);
            shm.tell(News::END);
        }
        self.set_gate();
        left
    }

    /// Sends what there is, each thing its way, in order.
    fn send_all<S: Shared, U: Ulp>(
        &mut self,
        shm: &mut S,
        ulp: &mut U,
        now: &impl Fn() -> Instant,
        mut direct: impl FnMut(&mut Self, &mut S, &mut U),
    ) -> Result<bool, Corrupt> {
        loop {
            direct(self, shm, ulp);
            let left = self.write_records(shm, ulp, now)?;
            if left || !ulp.has_direct() {
                return Ok(left);
            }
        }
    }

    fn write_records<S: Shared, U: Ulp>(
        &mut self,
        shm: &mut S,
        ulp: &mut U,
        now: &impl Fn() -> Instant,
    ) -> Result<bool, Corrupt> {
        if self.refusal.is_some() && !self.write_refusal(shm)? {
            return Ok(true);
        }
        if self.hold_until.is_some_and(|when| when <= now()) {
            self.hold_until = None;
        }
        for _ in 0..TRANSMIT_MOST {
            let held = self.hold_until.is_some();
            let again = self.again.filter(|_| !held);
            let wrote = if ulp.has_next(Space::Response) {
                self.write_next(Space::Response, shm, ulp)?
            } else if let Some(seq) = again {
                self.write_again(seq, shm, ulp)?
            } else if !held && ulp.has_next(Space::Request) {
                self.write_next(Space::Request, shm, ulp)?
            } else {
                return Ok(false);
            };
            match wrote {
                Wrote::Record => {}
                Wrote::Nothing => return Ok(false),
                Wrote::NoRoom => return Ok(true),
            }
        }
        Ok(true)
    }

    fn write_refusal<S: Shared>(&mut self, shm: &mut S) -> Result<bool, Corrupt> {
        let Some(slot) = shm.reserve(0)? else {
            return Ok(false);
        };
        match self.refusal.take() {
            Some(Refusal::NotReady { seq, timer }) => slot.commit(kind::NOT_READY, timer, seq, 0),
            Some(Refusal::Final { seq, nak }) => slot.commit(kind::REFUSED, nak as u8, seq, 0),
            None => {}
        }
        Ok(true)
    }

    fn write_next<S: Shared, U: Ulp>(
        &mut self,
        space: Space,
        shm: &mut S,
        ulp: &mut U,
    ) -> Result<Wrote, Corrupt> {
        let Some(mut slot) = shm.reserve(CHUNK + MAX_HEADER)? else {
            return Ok(Wrote::NoRoom);
        };
        let seq = self.next[space as usize];
        let built = if ulp.is_next_short(space, SHORT) {
            let mut short = [0; MAX_HEADER + SHORT];
            let mut segment = Segment::new(&mut short[..]);
            let meta = ulp.next(space, seq, &mut segment);
            let len = segment.len();
            meta.filter(|_| slot.body().put(0, &short[..len]))
                .map(|meta| (meta, len))
        } else {
            let mut segment = Segment::new(slot.body());
            let meta = ulp.next(space, seq, &mut segment);
            meta.map(|meta| (meta, segment.len()))
        };
        if let Some((seq, nak)) = ulp.take_late_refusal() {
            self.refusal = Some(Refusal::Final { seq, nak });
            self.refuse();
            // In the room that the answer would have taken; the queue pair, in error now, may not
            // come here again.
            drop(slot);
            let written = self.write_refusal(shm)?;
            return Ok(if written {
                Wrote::Nothing
            } else {
                Wrote::NoRoom
            });
        }
        let Some((meta, len)) = built else {
            return Ok(Wrote::Nothing);
        };
        slot.commit(kind_of(space), flags_of(meta), seq, len);
        self.next[space as usize] += 1;
        if space == Space::Response {
            // Written is delivered.
            ulp.acked(space, seq + 1);
        }
        ulp.tally(Tally::Written, 1);
        if len > CHUNK / 2 && shm.publish() {
            self.streamed += 1;
            // A peer that sleeps had better wake at once; one that polls finds the rest itself, and
            // a fence for each would wait for all that was copied.
            if self.streamed == 1 {
                let woken = shm.tell(News::DATA);
                ulp.tally(Tally::Woken, u64::from(woken));
            }
        }
        Ok(Wrote::Record)
    }

    fn write_again<S: Shared, U: Ulp>(
        &mut self,
        seq: u64,
        shm: &mut S,
        ulp: &mut U,
    ) -> Result<Wrote, Corrupt> {
        if seq >= self.next_request() {
            self.again = None;
            return Ok(Wrote::Record);
        }
        let Some(mut slot) = shm.reserve(CHUNK + MAX_HEADER)? else {
            return Ok(Wrote::NoRoom);
        };
        let mut segment = Segment::new(slot.body());
        let Some(meta) = ulp.again(Space::Request, seq, &mut segment) else {
            self.again = None;
            return Ok(Wrote::Nothing);
        };
        let len = segment.len();
        slot.commit(kind::REQUEST, flags_of(meta), seq, len);
        self.again = Some(seq + 1);
        Ok(Wrote::Record)
    }
}

/// The flags of a record that carries a unit.
#[inline]
pub fn flags_of(meta: SegMeta) -> u8 {
    let flag = |set, flag| if set { flag } else { 0 };
    flag(meta.last, LAST) | flag(meta.direct, DIRECT)
}

/// The kind that carries a unit of `space`.
fn kind_of(space: Space) -> u8 {
    match space {
        Space::Request => kind::REQUEST,
        Space::Response => kind::RESPONSE,
    }
}
