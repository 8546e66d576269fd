//! What the queue pair has to send, written as records.

use std::time::Duration;

use causeway_proto::ddp::Segment;
use causeway_proto::host::{Host, Tally};
use causeway_proto::qp::{Bound, PLAIN_INLINE, PlainPayload, PlainSend, Qp};
use causeway_proto::ring::{CHUNK, LAST, Link, SHORT, flags_of, kind};
use causeway_proto::trp::{Budget, RETRY_FLOOR};
use causeway_proto::types::{QpState, SendFlags, Sge};
use causeway_recover::copy;
use causeway_shm::layout::{SHORT_BODY, SHORT_WORDS};

use super::memory::Memory;
use super::traced::Traced;
use super::{RingLink, count_direct};
use crate::clock::Now;
use crate::copy::copy_short;
use crate::core::Core;
use crate::direct::{Direct, Reaching};
use crate::mr::MrReader;
use crate::poster::{Count, PostCounts};
use crate::request::Request;
use crate::silence::patience;
use crate::tap::Tap;

const _: () = assert!(SHORT_BODY == causeway_proto::ring::SHORT_BODY);
const _: () = assert!(SHORT_BODY == PLAIN_INLINE);

/// How long the peer of a queue pair is waited for that has not come yet.
fn budget(qp: &Qp) -> Option<Duration> {
    let (timeout, retry_cnt) = qp.patience();
    let floor = patience().unwrap_or(RETRY_FLOOR);
    Budget::new(timeout, retry_cnt, floor).limit()
}

/// Carries out what can be done directly in the peer's memory.
fn run_direct(
    link: &mut Link,
    (memory, tap): (&mut Memory, Option<&Tap>),
    direct: &mut Direct,
    qp: &mut Bound<'_, Core>,
) {
    if qp.qp.has_direct() {
        link.show_ack(memory);
    }
    let ring = &memory.ring;
    let mut reaching = Reaching {
        ring,
        direct: &mut *direct,
        tap,
    };
    qp.qp.run_direct(qp.host, &mut reaching);
    count_direct(direct, qp.host);
}

impl RingLink {
    /// Writes the only thing a queue pair has to send, where it is a short message and nothing is
    /// out of the ordinary: the shortest way from a work request to the peer. Returns false where
    /// [`RingLink::transmit`] must look.
    pub fn transmit_short(&mut self, qp: &mut Qp, core: &mut Core) -> bool {
        self.link.is_plain()
            && qp.is_last_whole(SHORT as u32)
            && self.write_short(&mut qp.bind(core))
    }

    /// Writes what the queue pair has to send. Returns whether something is left that waits for
    /// room.
    pub fn transmit(&mut self, qp: &mut Qp, core: &mut Core, now: &Now) -> bool {
        let RingLink {
            link,
            memory,
            direct,
            tap,
            ..
        } = self;
        let now = || now.get();
        let mut bound = qp.bind(core);
        let left = match tap {
            None => link.transmit(memory, &mut bound, &now, |link, memory, bound| {
                run_direct(link, (memory, None), direct, bound);
            }),
            Some(tap) => {
                let traced = &mut Traced { memory, tap };
                link.transmit(traced, &mut bound, &now, |link, traced, bound| {
                    run_direct(link, (traced.memory, Some(traced.tap)), direct, bound);
                })
            }
        };
        let waits = qp.expects_answer() && qp.state() != QpState::Err;
        link.check_silence(waits, || budget(qp), now);
        left
    }

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
    /// is queued behind its writing: nobody looks at the queue before its lock is given
    /// back, and the peer need not wait for it. The peer is to be told, at once
    /// ([`RingLink::tell_one`]) or of several ([`RingLink::note_posted`]).
    #[inline(always)]
    pub fn post_plain(&mut self, qp: &mut Qp, wr: &impl Request, mrs: &MrReader) -> bool {
        let (flags, length) = (wr.flags(), wr.length());
        let others = SendFlags::SOLICITED | SendFlags::FENCE | SendFlags::INLINE;
        // From one byte on.
        if flags.intersects(others) || length.wrapping_sub(1) as usize >= SHORT_BODY {
            return self.post_other(qp, wr, mrs);
        }
        let seq = self.link.next_request();
        if !self.link.is_plain() || !qp.takes_plain(length, false, seq) {
            return false;
        }
        let (addr, lkey) = (wr.addr(), wr.lkey());
        let pd = || qp.config().pd;
        let Ok(at) = self.local.find(mrs, pd, (addr, length, lkey), false) else {
            return false;
        };
        let written = match length <= 8 {
            true => self.write_word(at as *const u8, length, seq),
            false => self.write_words(at as *const u8, length, seq),
        };
        if !written {
            return false;
        }
        let range = Sge { addr, length, lkey };
        qp.post_plain(
            PlainSend {
                wr_id: wr.wr_id(),
                flags,
                len: length,
                payload: PlainPayload::Range(range),
            },
            seq,
        );
        self.link.wrote_request();
        true
    }

    /// As [`RingLink::post_plain`] of a message that is inline, empty, or takes several lines.
    #[inline(never)]
    fn post_other(&mut self, qp: &mut Qp, wr: &impl Request, mrs: &MrReader) -> bool {
        let (seq, flags) = (self.link.next_request(), wr.flags());
        let range = Sge {
            addr: wr.addr(),
            length: wr.length(),
            lkey: wr.lkey(),
        };
        let inline = flags.contains(SendFlags::INLINE);
        let plain = !flags.intersects(SendFlags::SOLICITED | SendFlags::FENCE);
        if !plain || !self.link.is_plain() || !qp.takes_plain(range.length, inline, seq) {
            return false;
        }
        let payload = if inline {
            self.write_inline_message(range).map(PlainPayload::Inline)
        } else if range.length == 0 {
            self.write_empty_message(range)
        } else {
            self.write_long_message(qp.config().pd, range, mrs, seq)
        };
        let Some(payload) = payload else {
            return false;
        };
        let send = PlainSend {
            wr_id: wr.wr_id(),
            flags,
            len: range.length,
            payload,
        };
        qp.post_plain(send, seq);
        self.link.wrote_request();
        true
    }

    /// Writes a message of up to 8 bytes of registered memory, found at `at`. Returns whether there
    /// was room, and memory.
    #[inline(always)]
    fn write_word(&mut self, at: *const u8, len: u32, seq: u64) -> bool {
        let Ok(Some(slot)) = self.memory.ring.tx.reserve_short() else {
            return false;
        };
        let mut word = [0_u64];
        let len = len as usize;
        // SAFETY: the bytes are inside a registered region; the word has room for so many.
        let copied = unsafe { copy_short(word.as_mut_ptr().cast(), at, len) }.is_ok();
        if copied {
            slot.publish(kind::MESSAGE, LAST, seq, word, len);
        }
        copied
    }

    /// As [`RingLink::write_word`], of as many bytes as one line of the ring holds. Not in line:
    /// what is needed afterwards would lie in memory meanwhile, since there are not registers
    /// enough.
    #[inline(never)]
    fn write_words(&mut self, at: *const u8, len: u32, seq: u64) -> bool {
        let Ok(Some(slot)) = self.memory.ring.tx.reserve_short() else {
            return false;
        };
        let mut words = [0; SHORT_WORDS];
        let len = (len as usize).min(SHORT_BODY);
        // SAFETY: as in `write_word`.
        let copied = unsafe { copy_short(words.as_mut_ptr().cast(), at, len) }.is_ok();
        if copied {
            slot.publish(kind::MESSAGE, LAST, seq, words, len);
        }
        copied
    }

    /// Writes a message of no bytes.
    fn write_empty_message(&mut self, from: Sge) -> Option<PlainPayload> {
        let seq = self.link.next_request();
        let slot = self.memory.ring.tx.reserve_short().ok()??;
        slot.publish::<0>(kind::MESSAGE, LAST, seq, [], 0);
        Some(PlainPayload::Range(from))
    }

    /// Writes an inline message that one line of the ring holds. Returns its bytes.
    fn write_inline_message(&mut self, from: Sge) -> Option<[u64; SHORT_WORDS]> {
        let (seq, len) = (self.link.next_request(), from.length as usize);
        if len > SHORT_BODY {
            return None;
        }
        let slot = self.memory.ring.tx.reserve_short().ok()??;
        let at = std::ptr::with_exposed_provenance::<u8>(from.addr as usize);
        let mut words = [0; SHORT_WORDS];
        // SAFETY: the program says that they may be read (ibv_post_send(3)), and there is room.
        unsafe { std::ptr::copy_nonoverlapping(at, words.as_mut_ptr().cast(), len) };
        slot.publish(kind::MESSAGE, LAST, seq, words, len);
        Some(words)
    }

    /// Writes a message of registered memory that takes several lines.
    #[inline(always)]
    fn write_long_message(
        &mut self,
        pd: u32,
        from: Sge,
        mrs: &MrReader,
        seq: u64,
    ) -> Option<PlainPayload> {
        let len = from.length as usize;
        if len > CHUNK {
            return None;
        }
        let range = (from.addr, from.length, from.lkey);
        let at = self.local.find(mrs, || pd, range, false);
        let at = at.ok()? as *const u8;
        let tx = &mut self.memory.ring.tx;
        let mut slot = match tx.reserve_alone(len) {
            Some(slot) => slot,
            None => tx.reserve(len, len).ok()??,
        };
        // SAFETY: the range is inside a registered region; the slot's body has so many bytes, and
        // is ours to write until it is published.
        unsafe { copy(slot.as_mut_ptr(), at, len) }.ok()?;
        slot.publish(kind::MESSAGE, LAST, seq);
        Some(PlainPayload::Range(from))
    }

    /// A message was written as it was posted; [`RingLink::tell_posted`] follows.
    pub fn note_posted(&mut self) {
        self.posted += 1;
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

    /// Tells the peer of the one message that was written as it was posted.
    #[inline(always)]
    pub fn tell_one(&mut self, counts: &PostCounts) {
        counts.add(Count::Records, 1);
        if self.link.tell_published(&mut self.memory) {
            counts.add(Count::Doorbells, 1);
        }
    }

    /// Tells the peer of the records published, which carry the acknowledgment.
    #[inline(always)]
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
