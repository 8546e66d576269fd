//! The ring wire: a queue pair's units through a lossless ring in shared memory.
//!
//! What is said on it, and in which order, is [`causeway_proto::ring`]'s. Here are the memory and
//! what leads to it, and the short ways, which do what that would do.

mod hurry;
mod local;
mod memory;
mod short;
mod take;
mod traced;
mod transmit;

pub(crate) use hurry::Sent;
pub use hurry::WORD;
pub(crate) use short::{Posted, TwoSided};

use std::sync::Arc;

use causeway_fabric::services::Leave;
use causeway_proto::Instant;
use causeway_proto::host::{Host, Tally};
use causeway_proto::qp::{AtOnce, Bound, PostError, Qp};
use causeway_proto::ring::{Link, News, Shared};
use causeway_proto::types::{QpState, SendOp, SendWr};
use causeway_shm::ring::{Flag, Probe};
use causeway_shm::{Attention, Counter, Grant, Ring, Segment, Side, Watch};

use crate::clock::Now;
use crate::core::Core;
use crate::direct::{Answer, Direct, InProcess, Reaching};
use crate::errno::Errno;
use crate::peer_process;
use crate::peers::{PeerEnd, refused};
use crate::tap::Tap;
use local::Local;
use memory::Memory;
use traced::Traced;

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

/// A queue pair's end of a ring.
#[derive(Debug)]
pub(crate) struct RingLink {
    /// Where it stands in the protocol.
    link: Link,
    memory: Memory,
    generation: u64,
    /// The name of the ring's memory, if it is to be kept for others.
    name: u64,
    /// Records written as they were posted, of which the peer has not been told.
    posted: u64,
    /// The peer's memory, as far as it is mapped.
    direct: Direct,
    /// The program's own, as it was sent from or used directly last, and received into.
    local: Local,
    received: Local,
    /// The broker must be told when the queue pair fails: the peer is outside the trust boundary,
    /// and holds descriptors.
    to_withdraw: bool,
    /// The peer's accesses are not waited for any more, whatever it says.
    evicted: bool,
    /// The peer is inside the trust boundary.
    trusted: bool,
    /// What it is traced by.
    tap: Option<Box<Tap>>,
}

impl RingLink {
    /// Takes the side of the ring that the broker assigned.
    pub fn open(with: Introduced) -> Result<Self, Errno> {
        let peer = with.peer;
        let side = if with.side == 0 { Side::A } else { Side::B };
        let ring = Ring::attach(with.ring, side).map_err(refused)?;
        let in_process = match with.trusted {
            true => InProcess::of(&peer),
            false => InProcess::never(),
        };
        if with.trusted && peer_process::is_allowed() {
            ring.show_mapping();
        }
        Ok(RingLink {
            direct: Direct::new(peer.mrs.clone(), with.peer_qpn, in_process),
            local: Local::default(),
            received: Local::default(),
            to_withdraw: !with.trusted,
            link: Link::new(with.rq_psn, side == Side::B),
            memory: Memory {
                ring,
                peer,
                peer_qpn: with.peer_qpn,
            },
            generation: with.generation,
            name: with.name,
            posted: 0,
            evicted: false,
            trusted: with.trusted,
            tap: None,
        })
    }

    /// Takes what the peer has written. Returns whether it was anything.
    pub fn receive(&mut self, qp: &mut Qp, core: &mut Core, now: &Now) -> bool {
        let RingLink {
            link, memory, tap, ..
        } = self;
        let (mut bound, now) = (qp.bind(core), || now.get());
        match tap {
            None => link.receive(memory, &mut bound, &now),
            Some(tap) => link.receive(&mut Traced { memory, tap }, &mut bound, &now),
        }
    }

    /// Records what goes by the ring and directly, or no longer.
    pub fn set_tap(&mut self, tap: Option<Box<Tap>>) {
        self.link.set_traced(tap.is_some());
        self.tap = tap;
    }

    /// Begins to send requests, numbered from `sq_psn`.
    pub fn start(&mut self, sq_psn: u32) {
        self.link.start(sq_psn);
    }

    /// The number by which the broker names this ring.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.link.deadline()
    }

    /// Gives up on a peer that never joined. What was held back is written by the next transmit.
    pub fn on_timer(&mut self, qp: &mut Qp, core: &mut Core, now: Instant) {
        self.link.on_timer(&mut qp.bind(core), now);
    }

    /// Whether there is a peer to answer.
    pub fn is_awaited(&self) -> bool {
        self.link.is_awaited()
    }

    /// Whether the peer has asked for time, which is not over.
    pub fn is_held_back(&self) -> bool {
        self.link.is_held_back()
    }

    /// Whether the peer is inside the trust boundary.
    pub fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// What the peer has done so far ([`Link::done`]).
    pub fn done(&self) -> [u64; 4] {
        self.link.done()
    }

    /// The peer does not answer.
    pub fn give_up(&mut self, qp: &mut Qp, core: &mut Core) {
        self.link.give_up(&mut qp.bind(core));
    }

    /// The peer's queue pair has taken its side, as the broker says.
    pub fn peer_joined(&mut self) {
        self.link.peer_joined();
    }

    /// The peer's process is dead.
    pub fn peer_died(&mut self) {
        self.link.peer_died();
    }

    /// The peer's process has exited.
    pub fn peer_exited(&mut self) {
        self.link.peer_exited();
        self.memory.ring.close_for_peer();
    }

    /// Takes the acknowledgment of a peer whose process has ended, also what it had not come to
    /// tell.
    pub fn take_last_ack(&mut self, qp: &mut Bound<'_, Core>) {
        self.link.take_last_ack(&mut self.memory, qp);
    }

    /// Whether a record seems to have come.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.memory.is_ready()
    }

    /// Requests below are acknowledged.
    #[inline(always)]
    pub fn acked(&self) -> u64 {
        self.link.acked()
    }

    /// Whether [`RingLink::transmit`] would do anything.
    pub fn has_work(&self, qp: &Qp) -> bool {
        self.link.has_work() || qp.has_segment() || qp.state() == QpState::Err
    }

    /// Says whether this endpoint polls the ring from now on. Returns false where it cannot stop
    /// yet, because something has just come.
    pub fn set_hot(&mut self, hot: bool) -> bool {
        if hot {
            self.memory.ring.set_hot();
            return true;
        }
        let events = Attention::DATA.and(Attention::ACK).and(Attention::ROOM);
        self.memory.ring.set_cold(events).unwrap_or(true)
    }

    /// Where to look for what comes next.
    pub fn probe(&self) -> Probe {
        self.memory.ring.probe()
    }

    /// As [`RingLink::probe`], after something was taken.
    #[inline(always)]
    pub fn renew(&self, probe: &mut Probe) {
        self.memory.ring.renew(probe);
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
    ) -> Result<AtOnce, PostError> {
        if !matches!(wr.op, SendOp::Read { .. }) {
            self.show_ack();
        }
        let mut reaching = Reaching {
            ring: &self.memory.ring,
            direct: &mut self.direct,
            tap: self.tap.as_deref(),
        };
        let done = qp.post_direct(wr, core, &mut reaching)?;
        count_direct(&mut self.direct, core);
        Ok(done)
    }

    /// See [`Link::show_ack`].
    #[inline]
    fn show_ack(&mut self) {
        self.link.show_ack(&mut self.memory);
    }

    /// The peer's memory segment to be asked for, and its owner.
    pub fn wanted(&self) -> Option<(u64, &Arc<PeerEnd>)> {
        Some((self.direct.wanted()?, &self.memory.peer))
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
        self.memory.ring.set_grant(grant);
    }

    /// A view of the peer's accesses that does without this link.
    pub fn watch(&self) -> Watch {
        self.memory.ring.watch()
    }

    /// Waits no longer for the peer to end its access, nor for any other. The queue pair must fail.
    pub fn evict(&mut self) {
        self.evicted = true;
        self.memory.ring.evict();
    }

    /// Tells the peer that this queue pair is reset or destroyed. A peer that waits for nothing of
    /// it is not woken for that. Returns what to tell the broker of the ring, which is not used any
    /// more.
    pub fn close(&mut self, qp: &Qp) -> Leave {
        let has_work = qp.has_segment() || qp.state() == QpState::Err;
        self.memory.ring.set_grant(Grant::NONE);
        match self.link.close(&mut self.memory, has_work) {
            // It waits for nothing.
            None => {}
            Some(true) => {
                self.memory.tell(News::END);
            }
            Some(false) => self.memory.leave_word(News::END),
        }
        self.give_back(qp.qpn())
    }

    /// As [`RingLink::close`], of a ring that no queue pair has used.
    pub fn abandon(&mut self, local_qpn: u32) -> Leave {
        self.memory.ring.set_flag(Flag::Closed);
        self.memory.tell(News::DATA);
        self.give_back(local_qpn)
    }

    /// Keeps the ring's memory for a later queue pair, if it is fit for that.
    fn give_back(&mut self, local_qpn: u32) -> Leave {
        // Of one that was evicted nobody knows what it may yet do.
        let ended = self.link.is_dead();
        let fit = self.name != 0 && !self.evicted && !ended && !self.memory.ring.is_spent();
        let wiped = fit && self.memory.ring.wipe();
        if fit {
            self.memory
                .peer
                .keep_ring(self.name, self.memory.ring.segment());
        }
        Leave {
            local_qpn,
            ring: self.name,
            kept: fit,
            wiped,
        }
    }

    /// The peer that it leads to.
    pub fn peer(&self) -> &Arc<PeerEnd> {
        &self.memory.peer
    }

    /// Whether the peer has not been told of something taken.
    #[inline]
    pub fn is_unsettled(&self) -> bool {
        self.link.is_unsettled()
    }

    /// Tells the peer what has been taken and acknowledged.
    #[inline]
    pub fn settle(&mut self, core: &Core) {
        if self.link.settle(&mut self.memory) {
            core.tally(Tally::Woken, 1);
        }
    }
}

/// Counts what was carried out directly.
#[inline]
fn count_direct(direct: &mut Direct, core: &Core) {
    let done = direct.take_done();
    if done > 0 {
        core.stats.add(Counter::Direct, done);
    }
}
