//! What the queue pair has to send, written as records.

use std::time::Duration;

use causeway_proto::BytesMut;
use causeway_proto::ddp::Segment;
use causeway_proto::host::{Host, Memory as _, Tally};
use causeway_proto::qp::{Bound, PLAIN_INLINE, PlainPayload, PlainSend, Qp};
use causeway_proto::ring::{CHUNK, LAST, Link, SHORT, flags_of, kind};
use causeway_proto::trp::{Budget, RETRY_FLOOR};
use causeway_proto::types::{QpState, SendFlags};
use causeway_shm::layout::{SHORT_BODY, SHORT_WORDS};

use super::memory::Memory;
use super::{RingLink, TwoSided, count_direct};
use crate::clock::Now;
use crate::core::Core;
use crate::direct::{Direct, Reaching};
use crate::qp_entry::QpEntry;
use crate::silence::patience;

const _: () = assert!(SHORT_BODY == causeway_proto::ring::SHORT_BODY);
const _: () = assert!(SHORT_BODY == PLAIN_INLINE);

/// Writes the only thing a queue pair has to send, where it is a short message and nothing is out
/// of the ordinary: the shortest way from a work request to the peer. Returns false where
/// [`transmit`] must look.
pub(crate) fn transmit_short(entry: &mut QpEntry, core: &mut Core) -> bool {
    let Some((qp, link)) = entry.ring() else {
        return false;
    };
    link.link.is_plain() && qp.is_last_whole(SHORT as u32) && link.write_short(&mut qp.bind(core))
}

/// Writes what the queue pair has to send. Returns whether something is left that waits for room.
pub(crate) fn transmit(entry: &mut QpEntry, core: &mut Core, now: &Now) -> bool {
    let Some((qp, link)) = entry.ring() else {
        return false;
    };
    let RingLink {
        link,
        memory,
        direct,
        ..
    } = link;
    let now = || now.get();
    let mut bound = qp.bind(core);
    let left = link.transmit(memory, &mut bound, &now, |link, memory, bound| {
        run_direct(link, memory, direct, bound);
    });
    let waits = qp.expects_answer() && qp.state() != QpState::Err;
    link.mind_silence(waits, || budget(qp), now);
    left
}

/// How long the peer of a queue pair is waited for that has not come yet.
fn budget(qp: &Qp) -> Option<Duration> {
    let (timeout, retry_cnt) = qp.patience();
    let floor = patience().unwrap_or(RETRY_FLOOR);
    Budget::new(timeout, retry_cnt, floor).limit()
}

/// Carries out what can be done directly in the peer's memory.
fn run_direct(link: &mut Link, memory: &mut Memory, direct: &mut Direct, qp: &mut Bound<'_, Core>) {
    if qp.qp.has_direct() {
        link.show_ack(memory);
    }
    let ring = &memory.ring;
    let mut reaching = Reaching {
        ring,
        direct: &mut *direct,
    };
    qp.qp.run_direct(qp.host, &mut reaching);
    count_direct(direct, qp.host);
}

impl RingLink {
    fn write_short(&mut self, qp: &mut Bound<'_, Core>) -> bool {
        let seq = self.link.next_request();
        let Ok(Some(slot)) = self.memory.ring.tx.reserve_short() else {
            return false;
        };
        let mut body = [0; SHORT_BODY];
        let mut segment = Segment::new(&mut body[..]);
        let Some(meta) = qp.next_whole(seq, &mut segment) else {
            return false;
        };
        let len = segment.len();
        slot.publish(kind::REQUEST, flags_of(meta), seq, words(&body), len);
        self.link.wrote_request();
        qp.host.tally(Tally::Written, 1);
        self.tell_published(qp.host);
        true
    }

    /// Posts a send without options, and writes it at once where it is a message of one unit, the
    /// only thing to send, and nothing is out of the ordinary: the shortest way from a work request
    /// to the peer. Returns false, with nothing done, where it is to go the way of all others. It
    /// is queued behind its writing: nobody looks at the queue before the endpoint's lock is given
    /// back, and the peer need not wait for it. [`RingLink::tell_posted`] follows.
    #[inline(always)]
    pub fn post_plain(&mut self, qp: &mut Qp, wr: &TwoSided, core: &Core) -> bool {
        let seq = self.link.next_request();
        let plain = !wr.flags.intersects(SendFlags::SOLICITED | SendFlags::FENCE);
        if !plain || !self.link.is_plain() || !qp.takes_plain(wr.len, wr.is_inline(), seq) {
            return false;
        }
        let pd = qp.config().pd;
        let len = wr.len as usize;
        let written = if len <= SHORT_BODY {
            self.write_short_message(pd, wr, core)
        } else if len <= CHUNK {
            self.write_long_message(pd, wr, core)
        } else {
            None
        };
        let Some(payload) = written else {
            return false;
        };
        let send = PlainSend {
            wr_id: wr.wr_id,
            flags: wr.flags,
            len: wr.len,
            payload,
        };
        qp.post_plain(send, seq);
        self.link.wrote_request();
        self.posted += 1;
        true
    }

    /// Writes a message that one line of the ring holds.
    #[inline(always)]
    fn write_short_message(&mut self, pd: u32, wr: &TwoSided, core: &Core) -> Option<PlainPayload> {
        let seq = self.link.next_request();
        let slot = self.memory.ring.tx.reserve_short().ok()??;
        let mut bytes = [0; SHORT_BODY];
        let body = &mut bytes[..wr.len as usize];
        if wr.is_inline() {
            // SAFETY: the program says that it may be read (ibv_post_send(3)).
            unsafe { std::ptr::copy_nonoverlapping(wr.at(), body.as_mut_ptr(), body.len()) };
        } else if !body.is_empty() {
            core.read_local(pd, wr.lkey, wr.addr, body.into()).ok()?;
        }
        let words = words(&bytes);
        slot.publish(kind::MESSAGE, LAST, seq, words, wr.len as usize);
        Some(match wr.is_inline() {
            true => PlainPayload::Inline(words),
            false => PlainPayload::Range(wr.range()),
        })
    }

    /// As [`RingLink::write_short_message`], where it takes several lines.
    fn write_long_message(&mut self, pd: u32, wr: &TwoSided, core: &Core) -> Option<PlainPayload> {
        if wr.is_inline() {
            return None;
        }
        let (seq, len) = (self.link.next_request(), wr.len as usize);
        let mut slot = self.memory.ring.tx.reserve(len, len).ok()??;
        // SAFETY: the slot's body is ours to write until it is committed.
        let out = unsafe { BytesMut::from_raw(slot.as_mut_ptr(), len) };
        core.read_local(pd, wr.lkey, wr.addr, out).ok()?;
        slot.commit(kind::MESSAGE, LAST, seq, len);
        self.memory.ring.tx.publish();
        Some(PlainPayload::Range(wr.range()))
    }

    /// Tells the peer of what was written as it was posted.
    #[inline]
    pub fn tell_posted(&mut self, core: &Core) {
        let posted = std::mem::take(&mut self.posted);
        if posted > 0 {
            core.tally(Tally::Written, posted);
            self.tell_published(core);
        }
    }

    /// Tells the peer of the records published, which carry the acknowledgment.
    fn tell_published(&mut self, core: &Core) {
        if self.link.tell_published(&mut self.memory) {
            core.tally(Tally::Woken, 1);
        }
    }
}

/// The words of a short body.
fn words(body: &[u8; SHORT_BODY]) -> [u64; SHORT_WORDS] {
    let (words, _) = body.as_chunks::<8>();
    std::array::from_fn(|i| u64::from_ne_bytes(words[i]))
}
