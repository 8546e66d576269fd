//! The ring: a queue pair's units through lossless memory that both sides share.
//!
//! What is written arrives, once and in order, so nothing is acknowledged but the number up to
//! which requests have been placed. Only a request refused for want of a receive is written again:
//! the reader drops what follows it until it comes once more.
//!
//! [`Link`] is one side's state. It touches the memory by [`Shared`] alone, so that a simulated one
//! will do, and the queue pair by [`Ulp`].

mod receive;
mod shared;
mod transmit;

pub use receive::is_enough;
pub use shared::{Corrupt, DIRECT, LAST, News, Record, Shared, Slot, kind};
pub use transmit::{CHUNK, SHORT, SHORT_BODY, flags_of};

use crate::time::{Duration, Instant};
use crate::ulp::{Nak, Space, Ulp};

/// How long a send to a queue pair that is gone takes to fail.
const DESERTED_AFTER: Duration = Duration::from_secs(1);

/// A refusal to be written as soon as there is room.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    NotReady { seq: u64, timer: u8 },
    Final { seq: u64, nak: Nak },
}

/// A queue pair's end of a ring: where it stands in its two directions.
#[derive(Debug, Default)]
pub struct Link {
    /// Next number of each space to write.
    next: [u64; 2],
    /// Requests below are acknowledged.
    acked: u64,
    /// Next request expected, and the first of its message.
    expected: u64,
    first: u64,
    /// Next response expected.
    expected_response: u64,
    /// Requests from here on are to be written again, not before the time given.
    again: Option<u64>,
    hold_until: Option<Instant>,
    refusal: Option<Refusal>,
    /// One of the peer's requests was refused for good: no more are taken.
    refused: bool,
    /// Times that the peer has asked for time.
    not_ready: u64,
    /// The peer's queue pair has taken its side, or will not matter any more.
    joined: bool,
    /// When sends to a peer that does not answer fail.
    give_up_at: Option<Instant>,
    /// The peer's queue pair was destroyed, was reset or failed.
    deserted: bool,
    /// The peer is dead, or has broken the ring.
    gone: bool,
    /// The peer's process has exited: as if its queue pair had been destroyed.
    exited: bool,
    /// Records of a stream published since the peer was last told of all.
    streamed: u32,
    /// Records taken since the peer was last told.
    untold: usize,
    /// The acknowledgment word has news that the peer has not been told of.
    ack_untold: bool,
    /// The peer has been told that this queue pair failed.
    said_failed: bool,
    /// What is written is recorded: nothing is plain.
    traced: bool,
    /// See [`Link::is_plain`].
    plain: bool,
    /// The peer is there, and what it asks for is taken.
    receives: bool,
}

impl Link {
    /// A side that expects requests numbered from `rq_psn`. `joined`: the peer is there.
    #[must_use]
    pub fn new(rq_psn: u32, joined: bool) -> Self {
        let mut link = Link {
            expected: u64::from(rq_psn),
            first: u64::from(rq_psn),
            joined,
            ..Link::default()
        };
        link.set_gate();
        link
    }

    /// Begins to send requests, numbered from `sq_psn`.
    pub fn start(&mut self, sq_psn: u32) {
        if self.next_request() == 0 {
            self.next[Space::Request as usize] = u64::from(sq_psn);
            self.acked = u64::from(sq_psn);
        }
    }

    /// When [`Link::on_timer`] is to be called.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match (self.hold_until, self.give_up_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Gives up on a peer that never joined, or has left. What was held back is written by the next
    /// [`Link::transmit`].
    pub fn on_timer(&mut self, ulp: &mut impl Ulp, now: Instant) {
        if self.give_up_at.is_some_and(|when| when <= now) {
            self.give_up_at = None;
            self.give_up(ulp);
        }
    }

    /// The peer does not answer, or has broken the ring.
    pub fn give_up(&mut self, ulp: &mut impl Ulp) {
        self.gone = true;
        self.set_gate();
        ulp.lost();
    }

    /// Whether there is a peer to answer.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.joined && !self.has_ended()
    }

    /// Whether the peer's queue pair, process or good behaviour has ended.
    fn has_ended(&self) -> bool {
        self.deserted || self.gone || self.exited
    }

    /// Whether the peer has ended in another way than by destroying its queue pair, or by its
    /// failure.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.gone || self.exited
    }

    /// Whether the peer has asked for time, which is not over.
    #[must_use]
    pub fn is_held_back(&self) -> bool {
        self.hold_until.is_some()
    }

    /// What the peer has done so far: requests acknowledged, answers, requests of its own, and
    /// times that it asked for time.
    #[must_use]
    pub fn done(&self) -> [u64; 4] {
        [
            self.acked,
            self.expected_response,
            self.expected,
            self.not_ready,
        ]
    }

    /// The peer's queue pair has taken its side, as somebody says, or a sign of it.
    #[inline(always)]
    pub fn peer_joined(&mut self) {
        if !self.plain {
            self.join();
        }
    }

    fn join(&mut self) {
        self.joined = true;
        if !self.deserted {
            self.give_up_at = None;
        }
        self.set_gate();
    }

    /// The peer's process is dead.
    pub fn peer_died(&mut self) {
        self.gone = true;
        self.joined = true;
        self.give_up_at = None;
        self.set_gate();
    }

    /// The peer's process has exited. A NIC would say nothing of that, but let sends fail: so this
    /// is as if its queue pair had been destroyed, and somebody says so in its place
    /// ([`Shared::is_peer_leaving`]).
    pub fn peer_exited(&mut self) {
        self.exited = true;
        self.peer_joined();
    }

    /// Number of the next request.
    #[inline]
    #[must_use]
    pub fn next_request(&self) -> u64 {
        self.next[Space::Request as usize]
    }

    /// The next request has been written the short way, as [`Link::is_plain`] allows.
    #[inline]
    pub fn wrote_request(&mut self) {
        self.next[Space::Request as usize] += 1;
    }

    /// Whether there is a peer, and nothing for it but what the queue pair says next.
    #[inline(always)]
    #[must_use]
    pub fn is_plain(&self) -> bool {
        debug_assert_eq!(self.plain, self.looks_plain(), "the gate was not set");
        self.plain
    }

    /// What is written is recorded, if it says so: no short way is taken then.
    pub fn set_traced(&mut self, traced: bool) {
        self.traced = traced;
        self.set_gate();
    }

    /// What [`Link::is_plain`] or [`Link::takes_next`] follows from has changed.
    fn set_gate(&mut self) {
        self.plain = self.looks_plain();
        self.receives = self.looks_open();
    }

    fn looks_open(&self) -> bool {
        self.joined && !self.refused
    }

    fn looks_plain(&self) -> bool {
        self.joined
            && !self.traced
            && !(self.deserted || self.gone || self.said_failed)
            && self.give_up_at.is_none()
            && self.refusal.is_none()
            && self.again.is_none()
            && self.hold_until.is_none()
    }

    /// Whether the peer has not been told of something taken.
    #[inline]
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        self.untold > 0
    }

    /// Tells the peer what has been taken and acknowledged. Returns whether it had to be woken.
    #[inline(always)]
    pub fn settle(&mut self, shm: &mut impl Shared) -> bool {
        let pending = shm.ack_pending();
        if self.untold == 0 && !pending {
            return false;
        }
        self.untold = 0;
        let ack = (pending && shm.publish_ack()) | core::mem::take(&mut self.ack_untold);
        shm.tell(News {
            room: true,
            ack,
            ..News::NONE
        })
    }

    /// Shows the peer what has been received from it, before its memory is changed: it may take the
    /// change for the answer to a request, which is complete then. A message brings the
    /// acknowledgment along.
    #[inline]
    pub fn show_ack(&mut self, shm: &mut impl Shared) {
        if self.untold > 0 {
            self.ack_untold |= publish_ack(shm);
        }
    }

    /// Tells the peer of the records published, which carry the acknowledgment. Returns whether it
    /// had to be woken.
    #[inline]
    pub fn tell_published(&mut self, shm: &mut impl Shared) -> bool {
        let room = core::mem::take(&mut self.untold) > 0;
        shm.tell(News { room, ..News::DATA })
    }

    /// As [`Link::tell_published`], of a peer that looks by itself, and need not be told.
    #[inline(always)]
    pub fn needs_no_telling(&mut self) {
        self.untold = 0;
    }

    /// As [`Link::settle`], of such a peer, which was shown the acknowledgment
    /// ([`Link::show_ack`]).
    #[inline(always)]
    pub fn needs_no_settling(&mut self) {
        (self.untold, self.ack_untold) = (0, false);
    }

    /// The queue pair is reset or destroyed: says so, after a last acknowledgment. Returns whether
    /// the peer waits for something, and must be told; `has_work`: something was to be sent to it.
    pub fn close(&mut self, shm: &mut impl Shared, has_work: bool) -> Option<bool> {
        publish_ack(shm);
        shm.leave(true);
        let midway = self.first != self.expected;
        if self.has_ended() {
            return None;
        }
        Some(shm.is_ready() || midway || self.has_work() || has_work)
    }

    /// Whether [`Link::transmit`] would do anything, whatever the queue pair has to send.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.refusal.is_some() || self.again.is_some() || self.deserted || self.gone
    }

    /// Sets a limit to waiting for a peer that is not there yet, or not any more. A NIC keeps
    /// silent about a peer that has destroyed its queue pair until the retries are used up, and
    /// programs that end with sends under way rely on it. `waits`: something awaits the peer.
    /// `budget`: how long a peer is waited for that has not come yet.
    #[inline]
    pub fn check_silence(
        &mut self,
        waits: bool,
        budget: impl FnOnce() -> Option<Duration>,
        now: impl FnOnce() -> Instant,
    ) {
        if !waits {
            self.give_up_at = None;
        } else if self.give_up_at.is_none() && (self.deserted || !self.joined) {
            let budget = if self.deserted {
                Some(DESERTED_AFTER)
            } else {
                budget()
            };
            self.give_up_at = budget.map(|budget| now() + budget);
        }
        self.set_gate();
    }
}

#[inline(always)]
fn publish_ack(shm: &mut impl Shared) -> bool {
    shm.ack_pending() && shm.publish_ack()
}
