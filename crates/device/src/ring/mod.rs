//! The ring wire: a queue pair's segments through a lossless ring in shared memory.
//!
//! What is written arrives, once and in order, so nothing is acknowledged but the number up to
//! which requests have been placed. Only a request refused for want of a receive is written again:
//! the reader drops what follows it until it comes once more.

mod receive;
mod short;
mod transmit;

pub(crate) use receive::receive;
pub use short::OneSided;
pub(crate) use transmit::{transmit, transmit_short};

use std::sync::Arc;

use causeway_fabric::services::Leave;
use causeway_proto::Instant;
use causeway_proto::qp::{Bound, PostError, Qp};
use causeway_proto::types::{SendOp, SendWr};
use causeway_proto::ulp::{Nak, Space, Ulp};
use causeway_shm::ring::Flag;
use causeway_shm::{Attention, Counter, Grant, Ring, Segment, Side, Watch, leave_word, notify};

use crate::clock::earlier;
use crate::core::Core;
use crate::direct::{Answer, Direct, Reaching};
use crate::errno::Errno;
use crate::limits::QPS_PER_SLOT;
use crate::peers::{PeerEnd, refused};

/// What the broker introduced a queue pair with.
pub(crate) struct Introduced {
    pub side: u8,
    pub generation: u64,
    pub ring: Arc<Segment>,
    /// The name of its memory, if that is to be kept for others; else 0.
    pub name: u64,
    pub peer: Arc<PeerEnd>,
    /// The peer is inside the trust boundary.
    pub trusted: bool,
    /// Number of the peer's queue pair.
    pub peer_qpn: u32,
    /// First request number expected.
    pub rq_psn: u32,
}

/// A refusal to be written as soon as there is room.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    NotReady { seq: u64, timer: u8 },
    Final { seq: u64, nak: Nak },
}

/// Where a queue pair stands in its two directions.
#[derive(Debug, Default)]
struct Flow {
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
}

/// A queue pair's end of a ring.
#[derive(Debug)]
pub(crate) struct RingLink {
    ring: Ring,
    flow: Flow,
    peer: Arc<PeerEnd>,
    index: u32,
    generation: u64,
    /// The name of the ring's memory, if it is to be kept for others.
    name: u64,
    /// The peer's queue pair has taken its side, or will not matter any more.
    joined: bool,
    /// When sends to a peer that does not answer fail.
    give_up_at: Option<Instant>,
    /// The peer's queue pair was destroyed, was reset or failed.
    deserted: bool,
    /// The peer is dead, or has broken the ring.
    peer_gone: bool,
    /// The peer's process has exited: as if its queue pair had been destroyed.
    peer_exited: bool,
    /// Records written as they were posted, of which the peer has not been told.
    posted: u64,
    /// Records of a stream published since the peer was last told of all.
    streamed: u32,
    /// Records taken since the peer was last told.
    untold: usize,
    /// The shared word has an acknowledgment that the peer has not been told of.
    ack_untold: bool,
    /// The peer has been told that this queue pair failed.
    said_failed: bool,
    /// The peer's memory, as far as it is mapped.
    direct: Direct,
    /// The broker must be told when the queue pair fails: the peer is outside the trust boundary,
    /// and holds descriptors.
    to_withdraw: bool,
    /// The peer's accesses are not waited for any more, whatever it says.
    evicted: bool,
    /// The peer is inside the trust boundary.
    trusted: bool,
}

impl RingLink {
    /// Takes the side of the ring that the broker assigned.
    pub fn open(with: Introduced) -> Result<Self, Errno> {
        let peer = with.peer;
        let side = if with.side == 0 { Side::A } else { Side::B };
        let ring = Ring::attach(with.ring, side).map_err(refused)?;
        let expected = u64::from(with.rq_psn);
        Ok(RingLink {
            direct: Direct::new(peer.mrs.clone(), with.peer_qpn),
            to_withdraw: !with.trusted,
            ring,
            flow: Flow {
                expected,
                first: expected,
                ..Flow::default()
            },
            peer,
            index: with.peer_qpn % QPS_PER_SLOT,
            generation: with.generation,
            name: with.name,
            joined: side == Side::B,
            give_up_at: None,
            deserted: false,
            peer_gone: false,
            peer_exited: false,
            posted: 0,
            streamed: 0,
            untold: 0,
            ack_untold: false,
            said_failed: false,
            evicted: false,
            trusted: with.trusted,
        })
    }

    /// Begins to send requests, numbered from `sq_psn`.
    pub fn start(&mut self, sq_psn: u32) {
        if self.flow.next[Space::Request as usize] == 0 {
            self.flow.next[Space::Request as usize] = u64::from(sq_psn);
            self.flow.acked = u64::from(sq_psn);
        }
    }

    /// The number by which the broker names this ring.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn deadline(&self) -> Option<Instant> {
        earlier(self.flow.hold_until, self.give_up_at)
    }

    /// Gives up on a peer that never joined. What was held back is written by the next transmit.
    pub fn on_timer(&mut self, qp: &mut Qp, core: &mut Core, now: Instant) {
        if self.give_up_at.is_some_and(|when| when <= now) {
            self.give_up_at = None;
            self.give_up(qp, core);
        }
    }

    /// Whether there is a peer to answer.
    pub fn is_awaited(&self) -> bool {
        self.joined && !(self.deserted || self.peer_gone || self.peer_exited)
    }

    /// Whether the peer has asked for time, which is not over.
    pub fn is_held_back(&self) -> bool {
        self.flow.hold_until.is_some()
    }

    /// Whether the peer is inside the trust boundary.
    pub fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// What the peer has done so far: requests acknowledged, answers, requests of its own, and
    /// times that it asked for time.
    pub fn done(&self) -> [u64; 4] {
        let flow = &self.flow;
        let (own, answers) = (flow.expected, flow.expected_response);
        [flow.acked, answers, own, flow.not_ready]
    }

    /// The peer does not answer.
    pub fn give_up(&mut self, qp: &mut Qp, core: &mut Core) {
        self.peer_gone = true;
        qp.bind(core).lost();
    }

    /// The peer's queue pair has taken its side, as the broker or a sign of it says.
    pub fn peer_joined(&mut self) {
        self.joined = true;
        if !self.deserted {
            self.give_up_at = None;
        }
    }

    /// The peer's process is dead.
    pub fn peer_died(&mut self) {
        self.peer_gone = true;
        self.joined = true;
        self.give_up_at = None;
    }

    /// The peer's process has exited. A NIC would say nothing of that, but let sends fail: so this
    /// is as if its queue pair had been destroyed.
    pub fn peer_exited(&mut self) {
        self.peer_exited = true;
        self.peer_joined();
        self.ring.close_for_peer();
    }

    /// Says whether this endpoint polls the ring from now on. Returns false where it cannot stop
    /// yet, because something has just come.
    pub fn set_hot(&mut self, hot: bool) -> bool {
        if hot {
            self.ring.heat();
            return true;
        }
        let events = Attention::DATA.and(Attention::ACK).and(Attention::ROOM);
        self.ring.cool(events).unwrap_or(true)
    }

    /// Carries out what can be done directly in the peer's memory.
    pub fn run_direct(&mut self, qp: &mut Bound<'_, Core>) {
        if qp.qp.has_direct() {
            self.show_ack();
        }
        let mut reaching = Reaching {
            ring: &self.ring,
            direct: &mut self.direct,
        };
        qp.qp.run_direct(qp.host, &mut reaching);
        self.count_direct(qp.host);
    }

    /// Carries out a work request directly before it is queued, if that can be.
    ///
    /// # Errors
    /// Those of posting it.
    #[inline]
    pub fn post_direct(
        &mut self,
        qp: &mut Qp,
        wr: &SendWr,
        core: &mut Core,
    ) -> Result<bool, PostError> {
        if !matches!(wr.op, SendOp::Read { .. }) {
            self.show_ack();
        }
        let mut reaching = Reaching {
            ring: &self.ring,
            direct: &mut self.direct,
        };
        let done = qp.post_direct(wr, core, &mut reaching)?;
        self.count_direct(core);
        Ok(done)
    }

    /// Shows the peer what has been received from it, before its memory is changed: it may take the
    /// change for the answer to a request, which is complete then. A message brings the
    /// acknowledgment along.
    #[inline]
    fn show_ack(&mut self) {
        if self.untold > 0 {
            self.ack_untold |= self.publish_ack();
        }
    }

    #[inline]
    fn count_direct(&mut self, core: &Core) {
        let done = self.direct.take_done();
        if done > 0 {
            core.stats.add(Counter::Direct, done);
        }
    }

    /// The peer's memory segment to be asked for, and whom it belongs to.
    pub fn wanted(&self) -> Option<(u64, &Arc<PeerEnd>)> {
        Some((self.direct.wanted()?, &self.peer))
    }

    /// The broker's answer about the segment wanted.
    pub fn answer(&mut self, answer: Answer) {
        self.direct.answer(answer);
    }

    /// The queue pair has failed. Returns whether the broker must be told, once.
    pub fn take_trust(&mut self) -> bool {
        std::mem::take(&mut self.to_withdraw)
    }

    /// Says what the peer may do in this endpoint's memory from now on.
    pub fn set_grant(&self, grant: Grant) {
        self.ring.set_grant(grant);
    }

    /// The region the peer is accessing, as far as that is waited for; 0 for none. An evicted peer
    /// is not waited for again, whatever it says: who evicted it sees to what it may yet store
    /// into.
    pub fn peer_in_flight(&self) -> u64 {
        if self.evicted {
            return 0;
        }
        self.ring.peer_in_flight()
    }

    /// A view of the peer's accesses that does without this link.
    pub fn watch(&self) -> Watch {
        self.ring.watch()
    }

    /// Waits no longer for the peer to end its access, nor for any other. The queue pair must fail.
    pub fn evict(&mut self) {
        self.evicted = true;
        self.ring.evict();
    }

    /// Tells the peer that this queue pair is reset or destroyed. A peer that waits for nothing of
    /// it is not woken for that. Returns what to tell the broker of the ring, which is not used any
    /// more.
    pub fn close(&mut self, qp: &Qp) -> Leave {
        self.ring.set_grant(Grant::NONE);
        self.publish_ack();
        self.ring.set_flag(Flag::Closed);
        let events = Attention::DATA.and(Attention::ACK);
        let midway = self.flow.first != self.flow.expected;
        if self.deserted || self.peer_gone || self.peer_exited {
            // It waits for nothing.
        } else if self.is_ready() || midway || self.has_work(qp) {
            self.notify(events);
        } else {
            leave_word(&self.ring, events, &self.peer.inbox, self.index);
        }
        self.give_back(qp.qpn())
    }

    /// As [`RingLink::close`], of a ring that no queue pair has used.
    pub fn abandon(&mut self, local_qpn: u32) -> Leave {
        self.ring.set_flag(Flag::Closed);
        self.notify(Attention::DATA);
        self.give_back(local_qpn)
    }

    /// Keeps the ring's memory for a later queue pair, if it is fit for that.
    fn give_back(&mut self, local_qpn: u32) -> Leave {
        // Of one that was evicted nobody knows what it may yet do.
        let ended = self.peer_gone || self.peer_exited;
        let fit = self.name != 0 && !self.evicted && !ended && !self.ring.is_spent();
        let wiped = fit && self.ring.wipe();
        if fit {
            self.peer.keep_ring(self.name, self.ring.segment());
        }
        Leave {
            local_qpn,
            ring: self.name,
            kept: fit,
            wiped,
        }
    }

    /// Whom it leads to.
    pub fn peer(&self) -> &Arc<PeerEnd> {
        &self.peer
    }

    /// Whether the peer has not been told of something taken.
    pub fn is_unsettled(&self) -> bool {
        self.untold > 0
    }

    /// Tells the peer what has been taken and acknowledged.
    pub fn settle(&mut self, core: &Core) {
        if self.untold == 0 && !self.ring.ack_pending() {
            return;
        }
        self.untold = 0;
        let acked = self.publish_ack() | std::mem::take(&mut self.ack_untold);
        let events = if acked {
            Attention::ROOM.and(Attention::ACK)
        } else {
            Attention::ROOM
        };
        self.notify_counted(events, core);
    }

    fn publish_ack(&mut self) -> bool {
        self.ring.ack_pending() && self.ring.publish_ack()
    }

    /// Tells the peer of what has just become visible. Returns whether its doorbell was rung.
    fn notify(&self, events: Attention) -> bool {
        // A bell can be rung as long as there is a descriptor of it, whatever the peer does.
        notify(
            &self.ring,
            events,
            &self.peer.inbox,
            &self.peer.bell,
            self.index,
        )
        .unwrap_or_else(|_| {
            crate::lost::report();
            false
        })
    }

    fn notify_counted(&self, events: Attention, core: &Core) {
        if self.notify(events) {
            core.stats.add(Counter::DoorbellsRung, 1);
        }
    }
}
