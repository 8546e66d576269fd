//! What an engine's lock guards, and what all engines of an endpoint have in common.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use causeway_identity::Slot;
use causeway_proto::Instant;
use causeway_shm::{Inbox, MrTable as Directory, Segment, Slots, Stats};

use crate::broker_request::BrokerRequest;
use crate::closed_fds::{Descriptors, Failure};
use crate::completion_queue::CompletionQueue;
use crate::core::Core;
use crate::errno::Errno;
use crate::evicted_from::EvictedFrom;
use crate::gate::Gate;
use crate::hot::Hot;
use crate::limited::CurrentLimits;
use crate::mr::{MrReader, MrTable};
use crate::outliving::Outliving;
use crate::ports::Ports;
use crate::poster::{PostCounts, Poster};
use crate::posters::Posters;
use crate::qp_entry::{QpCell, QpGuard, QueuePairs};
use crate::qps::Numbering;
use crate::released::Released;
use crate::spin::Spin;
use crate::timers::Timers;
use crate::traces::Traces;
use crate::udp::UdpWire;
use crate::watches::Watches;
use crate::ways::{WayReader, Ways};

/// What an engine's lock guards.
pub(crate) struct State {
    /// The engine's number.
    pub number: u8,
    pub core: Core,
    pub qps: QueuePairs,
    /// How many of them are connected by rings.
    pub rings: u32,
    /// Where address handles lead.
    pub ways: WayReader,
    pub inbox: Inbox,
    /// The slots whose queue pairs' bits in the inbox are looked at.
    pub slots: Slots,
    pub udp: UdpWire,
    /// Ring queue pairs polled on every progress; the others announce themselves in the inbox.
    pub hot: Vec<Hot>,
    /// Passes over them, and which of them the next short one begins with.
    pub turn: usize,
    pub first_ring: usize,
    /// Which of them the next long one begins with.
    pub next_ring: usize,
    /// Rings on which something was received that the peer has not been told of.
    pub unsettled: Vec<u32>,
    /// Connections over UDP whose acknowledgment waits for a reply of the program's to carry it.
    pub awaiting: Vec<u32>,
    /// Queue pairs with something to send that could not be sent yet.
    pub pending: Vec<u32>,
    /// Room for the queue pairs that a look at the ports finds something for.
    pub touched: Vec<u32>,
    /// When something is to be done without any input.
    pub timers: Timers,
    /// What the broker thread is to ask of the broker.
    pub broker_requests: Vec<BrokerRequest>,
    /// Protection domains from which a peer was evicted.
    pub evicted_from: Arc<EvictedFrom>,
    /// Passes that had a deadline to check.
    pub passes: u32,
    /// Long passes.
    pub advances: u32,
    /// Looks at the only ring in vain since something came or was posted.
    pub fruitless: u32,
    /// Polls of completion queues since something last came.
    pub spin: Spin,
    /// The pass is that of one of several threads: it looks once, and lets the others go on.
    pub crowded: bool,
    /// Looks of polls that were in vain and not short, ever.
    pub vain_looks: u32,
    /// Some peer may owe an answer, and when that is looked at next.
    pub unanswered: Arc<AtomicBool>,
    pub look_at: Instant,
    /// Passes over that.
    pub unanswered_passes: u32,
    /// Whether the device has failed.
    pub failure: Arc<Failure>,
    /// The trace that there is.
    pub traces: Arc<Traces>,
}

/// What all engines of an endpoint have in common. Each part is thread-safe.
pub(crate) struct Common {
    numbering: Numbering,
    /// That of the inbox.
    segment: Arc<Segment>,
    inbox: Inbox,
    /// Memory regions and windows.
    pub mrs: Arc<MrTable>,
    /// Accesses of peers on this host to them.
    pub watches: Arc<Watches>,
    /// Lets handshakes of secured connections in.
    gate: Arc<Gate>,
    pub evicted_from: Arc<EvictedFrom>,
    /// Where address handles lead.
    pub ways: Arc<Ways>,
    pub failure: Arc<Failure>,
    /// What it knows the endpoint's descriptors by.
    pub descriptors: Arc<Descriptors>,
    /// What polls have freed of queue pairs' queues.
    pub released: Arc<Released>,
    /// Completions of queue pairs that are gone.
    pub outliving: Arc<Outliving>,
    /// Queue pairs that look regions up under their own lock.
    pub posters: Posters<QpCell>,
    /// The trace that there is.
    pub traces: Arc<Traces>,
    /// The limits on what queue pairs send.
    pub limits: CurrentLimits,
}

impl Common {
    /// Of an endpoint with this inbox, in that segment, and this table of memory regions.
    pub fn new(
        numbering: Numbering,
        (segment, inbox): (Arc<Segment>, Inbox),
        directory: Directory,
        failure: &Arc<Failure>,
    ) -> Self {
        Common {
            numbering,
            segment,
            inbox,
            mrs: Arc::new(MrTable::new(directory)),
            watches: Arc::default(),
            gate: Arc::default(),
            evicted_from: Arc::default(),
            ways: Arc::new(Ways::new()),
            failure: Arc::clone(failure),
            descriptors: Arc::new(Descriptors::new(Arc::clone(failure))),
            released: Arc::new(Released::new(numbering)),
            outliving: Arc::default(),
            posters: Posters::default(),
            traces: Arc::default(),
            limits: CurrentLimits::default(),
        }
    }

    /// What who posts to a queue pair reaches, to be put under the queue pair's lock. That is to be
    /// in [`Common::posters`] before anything is looked up.
    pub fn new_poster(
        &self,
        send_cq: &Arc<CompletionQueue>,
        recv_cq: &Arc<CompletionQueue>,
    ) -> Poster {
        Poster {
            // SAFETY: it is the queue pair's, which is under one lock, and `Shared::reclaim` waits
            // for that.
            mrs: unsafe { MrReader::new(Arc::clone(&self.mrs)) },
            send_cq: Arc::clone(send_cq),
            recv_cq: Arc::clone(recv_cq),
            released: Arc::clone(&self.released),
            counts: Arc::<PostCounts>::default(),
            overran: false,
        }
    }

    /// The state of an engine without objects, to be put under a lock that [`Shared::reclaim`]
    /// waits for.
    ///
    /// [`Shared::reclaim`]: crate::shared::Shared::reclaim
    ///
    /// # Errors
    /// What epoll_create1(2) reports.
    pub fn new_state(&self, number: u8) -> Result<State, Errno> {
        let set = usize::from(number);
        let stats = Stats::open(Arc::clone(&self.segment), set).map_err(|_| Errno(libc::EPROTO))?;
        // SAFETY: they are the state's, which is under one lock, and `Shared::reclaim` waits for
        // that.
        let (mrs, ways) = unsafe {
            let mrs = MrReader::new(Arc::clone(&self.mrs));
            (mrs, WayReader::new(Arc::clone(&self.ways)))
        };
        let (watches, gate) = (Arc::clone(&self.watches), Arc::clone(&self.gate));
        let core = Core::new(self.numbering, stats, mrs, (watches, gate));
        Ok(State {
            number,
            core,
            qps: QueuePairs::new(self.numbering),
            rings: 0,
            ways,
            inbox: self.inbox.clone(),
            slots: Slots::default(),
            udp: UdpWire::new(Ports::new(self.numbering, &self.descriptors)?),
            hot: Vec::new(),
            turn: 0,
            first_ring: 0,
            next_ring: 0,
            unsettled: Vec::new(),
            awaiting: Vec::new(),
            pending: Vec::new(),
            touched: Vec::new(),
            timers: Timers::default(),
            broker_requests: Vec::new(),
            evicted_from: Arc::clone(&self.evicted_from),
            passes: 0,
            advances: 0,
            fruitless: 0,
            spin: Spin::default(),
            crowded: false,
            vain_looks: 0,
            unanswered: Arc::default(),
            look_at: Instant(0),
            unanswered_passes: 0,
            failure: Arc::clone(&self.failure),
            traces: Arc::clone(&self.traces),
        })
    }
}

impl State {
    /// A slot's queue pairs are this engine's from now on.
    pub fn add_slot(&mut self, slot: Slot) {
        self.qps.add_slot(slot);
        let first = u32::from(slot.number()) << causeway_identity::QPN_INDEX_BITS;
        self.slots = self.slots.with_slot_of(first);
    }

    /// A number for a new queue pair.
    pub fn take_qpn(&mut self, outliving: &Outliving) -> Option<u32> {
        self.qps.take_number(|qpn| outliving.has(qpn))
    }

    /// Whether no thread is in the middle of a post to one of the queue pairs, or of a poll.
    pub fn is_nobody_inside(&self) -> bool {
        let posts = self.qps.iter().any(|cell| cell.entry.is_locked());
        let polls = self.core.cqs.iter().any(|(_, cq)| cq.is_locked());
        !posts && !polls
    }

    pub fn qp(&mut self, qpn: u32) -> Option<QpGuard<'_>> {
        self.qps.find(qpn)
    }
}
