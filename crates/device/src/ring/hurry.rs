//! The short ways of 8 bytes, the length of a flag or a counter. They call nothing but the copy of
//! a word, which names what it changes: so whoever posts saves few registers, and keeps what it
//! knows in the others. What takes a call is declined, with nothing changed that the ways of all
//! lengths ([`super::short`], [`super::transmit`]) would not do again alike.

use causeway_proto::qp::{PlainPayload, PlainSend, Qp as ProtoQp};
use causeway_proto::ring::{LAST, kind};
use causeway_proto::types::{SendFlags, Sge, Wc};
use causeway_recover::copy_word;

use super::RingLink;
use crate::completion_queue::CompletionQueue;
use crate::core::Core;
use crate::poster::{Count, Poster};
use crate::request::{OneSided, Request};

/// Bytes that go these ways.
pub const WORD: u32 = 8;

/// What came of a SEND that was to be written at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is to go another way.
    Declined,
    /// It is written, and the peer finds it.
    Told,
    /// It is written, and the peer is to be told ([`RingLink::tell_one`]).
    Untold,
}

impl RingLink {
    /// Carries out a WRITE of a word at once, which does not ask for a completion. Returns false
    /// where [`RingLink::post_one_sided`] must look.
    #[inline(always)]
    pub fn write_word_silently(
        &mut self,
        qp: &mut ProtoQp,
        wr: &impl OneSided,
        poster: &Poster,
    ) -> bool {
        // What was received and not shown to the peer would have to be first.
        if qp.signals_all() || !qp.takes_short(false) || self.link.is_unsettled() {
            return false;
        }
        let rkey = wr.rkey();
        let to = wr.remote_addr();
        let Some(cached) = self.direct.cached_word(rkey, to) else {
            return false;
        };
        if !cached.at.addr().is_multiple_of(WORD as usize) {
            return false;
        }
        let addr = wr.addr();
        let local = if wr.flags().contains(SendFlags::INLINE) {
            match WORD <= qp.config().cap.max_inline_data {
                true => Some(addr as usize),
                false => None,
            }
        } else {
            self.local.known_word(&poster.mrs, (addr, wr.lkey()), false)
        };
        let Some(local) = local else {
            return false;
        };
        let grant = self.memory.ring.enter(rkey);
        let done = cached.still_holds(grant)
            // SAFETY: `at` is inside the peer's segment, which is mapped as long as the cache holds
            // it, and whose size is sealed, and it is aligned; `local` is inside a registered
            // region, or is what the program says its inline bytes are. No reference covers either.
            && unsafe { copy_word(cached.at, local as *const u8) }.is_ok();
        if !self.memory.ring.leave() || !done {
            return false;
        }
        qp.passed_silently();
        let counts = &*poster.counts;
        counts.add(Count::Direct, 1);
        counts.add(Count::Messages, 1);
        counts.add(Count::Bytes, WORD.into());
        true
    }

    /// Posts a SEND of a word without options, and writes it at once, as [`RingLink::post_plain`]
    /// does.
    #[inline(always)]
    pub fn send_word(&mut self, qp: &mut ProtoQp, wr: &impl Request, poster: &Poster) -> Sent {
        let (seq, flags) = (self.link.next_request(), wr.flags());
        let others = SendFlags::SOLICITED | SendFlags::FENCE | SendFlags::INLINE;
        let plain = !flags.intersects(others) && self.link.is_plain();
        if !plain || !qp.has_plain_place(WORD, seq) {
            return Sent::Declined;
        }
        let range = (wr.addr(), wr.lkey());
        let Some(at) = self.local.known_word(&poster.mrs, range, false) else {
            return Sent::Declined;
        };
        let Some(slot) = self.memory.ring.tx.reserve_short_at_once() else {
            return Sent::Declined;
        };
        let mut word = 0_u64;
        // SAFETY: the bytes are inside a registered region; the word has room for them.
        if unsafe { copy_word((&raw mut word).cast(), at as *const u8) }.is_err() {
            return Sent::Declined;
        }
        slot.publish(kind::MESSAGE, LAST, seq, [word], WORD as usize);
        // From the program's request again: to keep it would take registers from all that is
        // between. If the peer wants the message again, the range is looked up by its key.
        let send = PlainSend {
            wr_id: wr.wr_id(),
            flags: wr.flags(),
            len: WORD,
            payload: PlainPayload::Range(Sge {
                addr: wr.addr(),
                length: WORD,
                lkey: wr.lkey(),
            }),
        };
        qp.put_plain(send, seq);
        self.link.wrote_request();
        if !self.memory.is_peer_looking() {
            return Sent::Untold;
        }
        self.link.needs_no_telling();
        poster.counts.add(Count::Records, 1);
        Sent::Told
    }

    /// As [`RingLink::take_at_once`], of a message of a word that acknowledges nothing new, and
    /// after which the peer need not be told.
    #[inline(always)]
    pub fn take_word_at_once(
        &mut self,
        qp: &mut ProtoQp,
        core: &mut Core,
        to_cq: &CompletionQueue,
    ) -> Option<Wc> {
        let record = self.memory.ring.rx.peek_word(kind::MESSAGE, LAST)?;
        let plain = !self.link.is_news(record.ack()) && self.link.takes_next(record.seq());
        if !plain || self.link.tells_soon() || to_cq.is_ready() {
            return None;
        }
        let (wr_id, range) = qp.takes_message(WORD)?;
        let range = (range.addr, range.lkey);
        let to = self.received.known_word(&core.mrs, range, true)?;
        if !to.is_multiple_of(WORD as usize) {
            return None;
        }
        // SAFETY: `to` is inside a registered region, which is writable, and it is aligned; the
        // record has so many bytes, and stays mapped while the ring is borrowed. No reference
        // covers either.
        unsafe { copy_word(to as *mut u8, record.as_ptr()) }.ok()?;
        self.memory.ring.rx.consume_short_alone();
        core.count_received(WORD);
        self.link.took_one_of_few(&mut self.memory, &qp.bind(core));
        Some(qp.took_polled_message(wr_id, WORD))
    }

    /// As [`RingLink::settle`], of a peer that looks by itself. Returns false where that must
    /// follow.
    #[inline(always)]
    pub fn settle_at_once(&mut self) -> bool {
        if !self.link.is_unsettled() {
            return false;
        }
        self.link.show_ack(&mut self.memory);
        let looking = self.memory.is_peer_looking();
        if looking {
            self.link.needs_no_settling();
        }
        looking
    }
}
