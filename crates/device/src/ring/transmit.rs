//! What the queue pair has to send, written as records.

use causeway_proto::BytesMut;
use causeway_proto::qp::{Bound, PostError, Qp};
use causeway_proto::trp::{Budget, RETRY_FLOOR};
use causeway_proto::types::{QpState, SendWr};
use causeway_proto::ulp::{Space, Ulp};
use causeway_shm::layout::{SHORT_BODY, SHORT_WORDS};
use causeway_shm::ring::Flag;
use causeway_shm::{Attention, Corrupt, Counter, Grant};
use causeway_wire::ddp::UNTAGGED_LEN;
use causeway_wire::rdmap::MAX_HEADER;

use super::{Refusal, RingLink};
use crate::clock::Now;
use crate::core::Core;
use crate::qp_entry::QpEntry;
use crate::record::{LAST, flags_of, kind, kind_of};
use crate::silence::patience;

/// Payload of one record: small enough that the reader copies out while the writer copies in.
const CHUNK: usize = 8192;
/// Payload of a message that is built aside and copied to the ring in one go: one line holds it,
/// headers and all. The reader polls that line: built there, it would go back and forth for every
/// store.
const SHORT: usize = SHORT_BODY - UNTAGGED_LEN;
/// Words that hold a short payload.
const PAYLOAD_WORDS: usize = SHORT.div_ceil(8);
/// Records written in one progress.
const TRANSMIT_MOST: usize = 64;
/// How long a send to a queue pair that is gone takes to fail.
const DESERTED_AFTER: std::time::Duration = std::time::Duration::from_secs(1);
/// Writes the only thing a queue pair has to send, where it is a short message and nothing is out
/// of the ordinary: the shortest way from a work request to the peer. Returns false where
/// [`transmit`] must look.
pub(crate) fn transmit_short(entry: &mut QpEntry, core: &mut Core) -> bool {
    let Some((qp, link)) = entry.ring() else {
        return false;
    };
    link.is_plain() && qp.is_last_whole(SHORT as u32) && link.write_short(&mut qp.bind(core))
}

/// Writes what the queue pair has to send. Returns whether something is left that waits for room.
pub(crate) fn transmit(entry: &mut QpEntry, core: &mut Core, now: &Now) -> bool {
    let Some((qp, link)) = entry.ring() else {
        return false;
    };
    let mut bound = qp.bind(core);
    if link.peer_gone {
        if bound.qp.expects_answer() {
            bound.lost();
        }
        return false;
    }
    let left = match link.send_all(&mut bound, now) {
        Ok(left) => left && !link.deserted,
        Err(Corrupt) => {
            link.peer_gone = true;
            bound.lost();
            false
        }
    };
    let untold = std::mem::take(&mut link.streamed) > 1;
    if link.ring.tx.publish() || untold {
        link.notify_published(bound.host);
    }
    let failed = bound.qp.state() == QpState::Err;
    if failed && !left && !link.said_failed {
        link.said_failed = true;
        link.ring.set_grant(Grant::NONE);
        // First: what was received is acknowledged, though nobody has polled since.
        link.publish_ack();
        link.ring.set_flag(Flag::Failed);
        link.notify(Attention::DATA.and(Attention::ACK));
    }
    link.mind_silence(bound.qp, now);
    left
}

impl RingLink {
    /// Sets a limit to waiting for a peer that is not there yet, or not any more. A NIC keeps
    /// silent about a peer that has destroyed its queue pair until the retries are used up, and
    /// programs that end with sends under way rely on it.
    fn mind_silence(&mut self, qp: &Qp, now: &Now) {
        if !qp.expects_answer() || qp.state() == QpState::Err {
            self.give_up_at = None;
        } else if self.give_up_at.is_none() && (self.deserted || !self.joined) {
            let (timeout, retry_cnt) = qp.patience();
            let floor = patience().unwrap_or(RETRY_FLOOR);
            let budget = Budget::new(timeout, retry_cnt, floor).limit();
            let budget = if self.deserted {
                Some(DESERTED_AFTER)
            } else {
                budget
            };
            self.give_up_at = budget.map(|budget| now.get() + budget);
        }
    }

    /// Whether there is a peer, and nothing for it but what the queue pair says next.
    fn is_plain(&self) -> bool {
        let flow = &self.flow;
        self.joined
            && !(self.deserted || self.peer_gone || self.said_failed)
            && self.give_up_at.is_none()
            && flow.refusal.is_none()
            && flow.again.is_none()
            && flow.hold_until.is_none()
    }

    fn write_short(&mut self, qp: &mut Bound<'_, Core>) -> bool {
        let Ok(Some(slot)) = self.ring.tx.reserve_short() else {
            return false;
        };
        let seq = self.flow.next[Space::Request as usize];
        let mut body = [0; SHORT_BODY];
        let Some((meta, len)) = qp.next_whole(seq, &mut BytesMut::from(&mut body[..])) else {
            return false;
        };
        slot.publish(kind::REQUEST, flags_of(meta), seq, words(&body), len);
        self.flow.next[Space::Request as usize] = seq + 1;
        qp.host.stats.add(Counter::RingTxRecords, 1);
        self.notify_published(qp.host);
        true
    }

    /// Posts a send, and writes it at once where it is a message of one segment, the only thing to
    /// send, and nothing is out of the ordinary: the shortest way from a work request to the peer.
    /// It is queued behind that: nobody looks at the queue before the endpoint's lock is given
    /// back, and the peer need not wait for it. [`RingLink::tell_posted`] follows.
    ///
    /// # Errors
    /// Those of [`Qp::post_send`].
    #[inline]
    pub fn post_send(
        &mut self,
        qp: &mut Qp,
        wr: &mut SendWr,
        core: &mut Core,
    ) -> Result<(), PostError> {
        let Some(len) = self.write_posted(qp, wr, core) else {
            return qp.post_send(wr.take(), core);
        };
        let seq = &mut self.flow.next[Space::Request as usize];
        qp.post_built(wr.take(), len, *seq);
        *seq += 1;
        self.posted += 1;
        Ok(())
    }

    /// Writes a message that has not been queued. Returns its length; `None`, with nothing done,
    /// where it is to go the way of all others.
    #[inline]
    fn write_posted(&mut self, qp: &Qp, wr: &SendWr, core: &Core) -> Option<u32> {
        if !self.is_plain() {
            return None;
        }
        let len = qp.plain_len(wr)?;
        match len as usize {
            short @ ..=SHORT => self.write_posted_short(short, qp, wr, core)?,
            long @ ..=CHUNK => self.write_posted_long(long, qp, wr, core)?,
            _ => return None,
        }
        Some(len)
    }

    /// Writes a message whose segment one line of the ring holds.
    #[inline]
    fn write_posted_short(&mut self, len: usize, qp: &Qp, wr: &SendWr, core: &Core) -> Option<()> {
        let slot = self.ring.tx.reserve_short().ok()??;
        // Words of its own: to load words that header and payload share would have to wait until
        // both were stored.
        let mut payload = [0; 8 * PAYLOAD_WORDS];
        let header = qp.gather_plain(wr, BytesMut::from(&mut payload[..len]), core)?;
        let words = short_words(&header, &payload);
        let seq = self.flow.next[Space::Request as usize];
        slot.publish(kind::REQUEST, LAST, seq, words, UNTAGGED_LEN + len);
        Some(())
    }

    /// As [`RingLink::write_posted_short`], where the segment takes several lines.
    fn write_posted_long(&mut self, len: usize, qp: &Qp, wr: &SendWr, core: &Core) -> Option<()> {
        let size = UNTAGGED_LEN + len;
        let mut slot = self.ring.tx.reserve(size, size).ok()??;
        // SAFETY: as in `write_next`.
        let mut out = unsafe { BytesMut::from_raw(slot.as_mut_ptr(), slot.len()) };
        let header = qp.gather_plain(wr, out.slice(UNTAGGED_LEN, len), core)?;
        if !out.put(0, &header) {
            return None;
        }
        let seq = self.flow.next[Space::Request as usize];
        slot.commit(kind::REQUEST, LAST, seq, size);
        self.ring.tx.publish();
        Some(())
    }

    /// Tells the peer of what was written as it was posted.
    #[inline]
    pub fn tell_posted(&mut self, core: &Core) {
        let posted = std::mem::take(&mut self.posted);
        if posted > 0 {
            core.stats.add(Counter::RingTxRecords, posted);
            self.notify_published(core);
        }
    }

    /// Tells the peer of the records published, which carry the acknowledgment.
    fn notify_published(&mut self, core: &Core) {
        let also = if self.untold > 0 {
            Attention::ROOM
        } else {
            Attention::DATA
        };
        self.untold = 0;
        self.notify_counted(Attention::DATA.and(also), core);
    }

    /// Sends what there is, each thing its way, in order.
    fn send_all(&mut self, qp: &mut Bound<'_, Core>, now: &Now) -> Result<bool, Corrupt> {
        loop {
            self.run_direct(qp);
            let left = self.write_records(qp, now)?;
            if left || !qp.qp.has_direct() {
                return Ok(left);
            }
        }
    }

    fn write_records(&mut self, qp: &mut Bound<'_, Core>, now: &Now) -> Result<bool, Corrupt> {
        if self.flow.refusal.is_some() && !self.write_refusal()? {
            return Ok(true);
        }
        if self.flow.hold_until.is_some_and(|when| when <= now.get()) {
            self.flow.hold_until = None;
        }
        for _ in 0..TRANSMIT_MOST {
            let held = self.flow.hold_until.is_some();
            let again = self.flow.again.filter(|_| !held);
            let wrote = if qp.has_next(Space::Response) {
                self.write_next(Space::Response, qp)?
            } else if let Some(seq) = again {
                self.write_again(seq, qp)?
            } else if !held && qp.has_next(Space::Request) {
                self.write_next(Space::Request, qp)?
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

    fn write_refusal(&mut self) -> Result<bool, Corrupt> {
        let Some(slot) = self.ring.tx.reserve(0, 0)? else {
            return Ok(false);
        };
        match self.flow.refusal.take() {
            Some(Refusal::NotReady { seq, timer }) => slot.commit(kind::NOT_READY, timer, seq, 0),
            Some(Refusal::Final { seq, nak }) => {
                slot.commit(kind::REFUSED, nak as u8, seq, 0);
            }
            None => {}
        }
        Ok(true)
    }

    fn write_next(&mut self, space: Space, qp: &mut Bound<'_, Core>) -> Result<Wrote, Corrupt> {
        let size = CHUNK + MAX_HEADER;
        let Some(mut slot) = self.ring.tx.reserve(size, size)? else {
            return Ok(Wrote::NoRoom);
        };
        let seq = self.flow.next[space as usize];
        let built = if qp.qp.is_next_short(space, SHORT) {
            let mut short = [0; MAX_HEADER + SHORT];
            let built = qp.next(space, seq, &mut BytesMut::from(&mut short[..]));
            if let Some((_, len)) = built {
                slot.write(0, &short[..len]);
            }
            built
        } else {
            // SAFETY: the slot's body is ours to write until it is committed.
            let mut out = unsafe { BytesMut::from_raw(slot.as_mut_ptr(), slot.len()) };
            qp.next(space, seq, &mut out)
        };
        if let Some((seq, nak)) = qp.qp.take_late_refusal() {
            self.flow.refusal = Some(Refusal::Final { seq, nak });
            self.flow.refused = true;
            // In the room that the answer would have taken; the queue pair, in error now, may not
            // come here again.
            let written = self.write_refusal()?;
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
        self.flow.next[space as usize] += 1;
        if space == Space::Response {
            // Written is delivered.
            qp.acked(space, seq + 1);
        }
        qp.host.stats.add(Counter::RingTxRecords, 1);
        if len > CHUNK / 2 && self.ring.tx.publish() {
            self.streamed += 1;
            // A peer that sleeps had better wake at once; one that polls finds the rest itself, and
            // a fence for each would wait for all that was copied.
            if self.streamed == 1 {
                self.notify_counted(Attention::DATA, qp.host);
            }
        }
        Ok(Wrote::Record)
    }

    fn write_again(&mut self, seq: u64, qp: &mut Bound<'_, Core>) -> Result<Wrote, Corrupt> {
        if seq >= self.flow.next[Space::Request as usize] {
            self.flow.again = None;
            return Ok(Wrote::Record);
        }
        let size = CHUNK + MAX_HEADER;
        let Some(mut slot) = self.ring.tx.reserve(size, size)? else {
            return Ok(Wrote::NoRoom);
        };
        // SAFETY: as in `write_next`.
        let mut out = unsafe { BytesMut::from_raw(slot.as_mut_ptr(), slot.len()) };
        let Some((meta, len)) = qp.again(Space::Request, seq, &mut out) else {
            self.flow.again = None;
            return Ok(Wrote::Nothing);
        };
        slot.commit(kind::REQUEST, flags_of(meta), seq, len);
        self.flow.again = Some(seq + 1);
        Ok(Wrote::Record)
    }
}

/// The words of a short body.
fn words(body: &[u8; SHORT_BODY]) -> [u64; SHORT_WORDS] {
    let (words, _) = body.as_chunks::<8>();
    std::array::from_fn(|i| u64::from_ne_bytes(words[i]))
}

/// The words of a short body: a header, and a payload right behind it.
#[inline]
fn short_words(
    header: &[u8; UNTAGGED_LEN],
    payload: &[u8; 8 * PAYLOAD_WORDS],
) -> [u64; SHORT_WORDS] {
    const WHOLE: usize = UNTAGGED_LEN / 8;
    const SHIFT: u32 = 8 * (UNTAGGED_LEN % 8) as u32;
    let mut last = [0; 8];
    last[..UNTAGGED_LEN % 8].copy_from_slice(&header[8 * WHOLE..]);
    let (whole, _) = header.as_chunks::<8>();
    let (parts, _) = payload.as_chunks::<8>();
    let mut carried = u64::from_le_bytes(last);
    std::array::from_fn(|i| {
        let word = if i < WHOLE {
            u64::from_le_bytes(whole[i])
        } else {
            let part = parts.get(i - WHOLE).map_or(0, |p| u64::from_le_bytes(*p));
            let word = carried | (part << SHIFT);
            carried = part >> (64 - SHIFT);
            word
        };
        u64::from_ne_bytes(word.to_le_bytes())
    })
}

/// How an attempt to write a record ended.
enum Wrote {
    Record,
    Nothing,
    NoRoom,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_short_body_are_its_bytes() {
        let header: [u8; UNTAGGED_LEN] = std::array::from_fn(|i| 1 + i as u8);
        for len in 0..=SHORT {
            let mut payload = [0; 8 * PAYLOAD_WORDS];
            let mut body = [0; SHORT_BODY];
            body[..UNTAGGED_LEN].copy_from_slice(&header);
            for i in 0..len {
                payload[i] = 100 + i as u8;
                body[UNTAGGED_LEN + i] = 100 + i as u8;
            }
            assert_eq!(short_words(&header, &payload), words(&body));
        }
    }
}
