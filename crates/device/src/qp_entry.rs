//! A queue pair as the endpoint holds it: protocol state, address vector, link.

use std::sync::Arc;
use std::time::Duration;

use causeway_biased_lock::{BiasedGuard, BiasedLock, Hurried, hurry};
use causeway_identity::Slot;
use causeway_proto::Instant;
use causeway_proto::qp::{AtOnce, PostError, Qp};
use causeway_proto::types::{QpAttr, QpState, SendWr, Service, WcStatus};
use causeway_proto::ulp::Ulp;
use causeway_shm::Grant;

use crate::av::Av;
use crate::broker_request::BrokerRequest;
use crate::clock::{Now, earlier};
use crate::core::Core;
use crate::gid;
use crate::limited::Limits;
use crate::pace::Pace;
use crate::peer_news::EarlyNews;
use crate::poster::{PostCounts, Poster};
use crate::qps::{Numbered, Table};
use crate::released::Seen;
use crate::ring::{RingLink, TwoSided};
use crate::silence::Silence;
use crate::tap::{End, Tap, Trace};
use crate::timers::Listed;
use crate::ud::UdLink;
use crate::udp::{self, UdpLink};

/// How long after a key was withdrawn while a peer was accessing memory by it that is looked at
/// again; twice as long each time, up to the most.
const LOOK_FIRST: Duration = Duration::from_micros(50);
const LOOK_LAST: Duration = Duration::from_millis(5);

/// What carries the segments of a queue pair.
pub(crate) enum Link {
    /// Not connected yet.
    None,
    /// A ring in shared memory.
    Ring(Box<RingLink>),
    /// TRP over UDP.
    Udp(Box<UdpLink>),
    /// Datagrams, each to where its work request says.
    Datagrams(Box<UdLink>),
    /// No such peer on this host, and no other way to it: sends fail at the time given, which is
    /// set when the first is posted.
    Nowhere(Option<Instant>),
}

impl Link {
    /// For people.
    pub fn wire_name(&self) -> &'static str {
        match self {
            Link::None => "none",
            Link::Ring(_) => "shm",
            Link::Udp(_) => "udp",
            Link::Datagrams(_) => "datagrams",
            Link::Nowhere(_) => "nowhere",
        }
    }
}

/// A queue pair.
pub(crate) struct QpEntry {
    pub qp: Qp,
    pub av: Av,
    pub link: Link,
    /// It is in the engine's list of those with something left to send.
    pub pending: bool,
    /// It is in the engine's list of rings with something the peer has not been told of.
    pub unsettled: bool,
    /// It is in the engine's list of connections whose acknowledgment waits for a reply.
    pub awaiting: bool,
    /// It is in the engine's list of rings polled on every progress.
    pub hot: bool,
    /// The helper was sent for a segment it wants to reach.
    pub wanting: bool,
    /// A thread that posts waits for that: the last answer was a segment, or there was none yet.
    pub patient: bool,
    /// How long its peer has been silent.
    pub silence: Silence,
    /// When it is to be looked whether the accesses have ended that its send queue waits for, and
    /// how long after that for the next time.
    look: Option<(Instant, Duration)>,
    /// The limits on what it sends.
    pace: Pace,
    /// The earlier of the times of that look and at which a limit is asked again.
    wakes: Option<Instant>,
    /// By which time it is listed among the engine's timers.
    pub listed: Listed,
    /// What the broker has told of the peer on a ring that is not its link yet.
    pub early: Option<EarlyNews>,
    /// What polls had freed of its queues when that was last taken into account.
    released: Seen,
    /// What who posts reaches by this queue pair's lock alone.
    pub poster: Poster,
}

/// A queue pair behind its lock. Who posts takes that alone, for what is frequent; who makes
/// progress takes the engine's first.
pub(crate) struct QpCell {
    qpn: u32,
    pub entry: BiasedLock<QpEntry>,
    pub counts: Arc<PostCounts>,
}

/// A queue pair whose lock is held.
pub(crate) type QpGuard<'a> = BiasedGuard<'a, QpEntry>;

/// An engine's queue pairs.
pub(crate) type QueuePairs = Table<Arc<QpCell>>;

impl Numbered for Arc<QpCell> {
    #[inline]
    fn qpn(&self) -> u32 {
        self.qpn
    }
}

impl QpCell {
    pub fn new(entry: QpEntry) -> Arc<Self> {
        Arc::new(QpCell {
            qpn: entry.qp.qpn(),
            counts: Arc::clone(&entry.poster.counts),
            entry: BiasedLock::new(entry),
        })
    }
}

/// All of these borrow the table: no thread has two queue pairs locked.
impl QueuePairs {
    /// The queue pair with a number that the endpoint has issued itself, and that is still its.
    #[inline(always)]
    pub fn lock(&mut self, qpn: u32) -> Option<QpGuard<'_>> {
        Some(self.place(qpn)?.entry.lock())
    }

    /// As [`QueuePairs::lock`], and only if the lock is biased towards this thread.
    #[inline(always)]
    pub fn hurry(&mut self, qpn: u32) -> Option<Hurried<'_, QpEntry>> {
        hurry(&self.place(qpn)?.entry)
    }

    /// The queue pair with a number, wherever that comes from.
    #[inline]
    pub fn find(&mut self, qpn: u32) -> Option<QpGuard<'_>> {
        Some(self.get(qpn)?.entry.lock())
    }

    /// Calls on one after the other.
    pub fn each(&mut self, mut f: impl FnMut(&mut QpEntry)) {
        self.iter().for_each(|cell| f(&mut cell.entry.lock()));
    }
}

impl QpEntry {
    pub fn new(qp: Qp, poster: Poster) -> Self {
        QpEntry {
            released: poster.released.seen(qp.qpn()),
            poster,
            qp,
            av: Av::default(),
            link: Link::None,
            pending: false,
            unsettled: false,
            awaiting: false,
            hot: false,
            wanting: false,
            patient: true,
            silence: Silence::default(),
            look: None,
            pace: Pace::default(),
            wakes: None,
            listed: Listed::default(),
            early: None,
        }
    }

    /// The queue pair and its ring, if that is its link.
    #[inline]
    pub fn ring(&mut self) -> Option<(&mut Qp, &mut RingLink)> {
        match &mut self.link {
            Link::Ring(link) => Some((&mut self.qp, link)),
            _ => None,
        }
    }

    /// Tells its peer what its ring has taken and acknowledged, if it has one.
    #[inline(always)]
    pub fn settle(&mut self, core: &Core) {
        if let Link::Ring(ring) = &mut self.link {
            self.unsettled = false;
            ring.settle(core);
        }
    }

    /// As [`QpEntry::settle`], where that calls nothing. Returns false where it must follow.
    #[inline(always)]
    pub fn settle_at_once(&mut self) -> bool {
        let settled = match &mut self.link {
            Link::Ring(ring) => ring.settle_at_once(),
            _ => false,
        };
        self.unsettled &= !settled;
        settled
    }

    /// Takes into account what polls have freed of its queues.
    #[inline(always)]
    pub fn take_released(&mut self) {
        let seen = self.poster.released.seen(self.qp.qpn());
        let (sends, receives) = seen.since(self.released);
        self.released = seen;
        self.qp.release_send(sends);
        self.qp.release_recvs(receives);
    }

    /// Its queues have just been emptied, and none of its completions frees anything any more.
    pub fn forget_released(&mut self) {
        self.released = self.poster.released.seen(self.qp.qpn());
    }

    /// Posts a send, which may be carried out at once. It is moved from where it is only when it is
    /// queued: on the way there each move would wait for the one before.
    ///
    /// # Errors
    /// Those of [`Qp::post_send`].
    #[inline]
    pub fn post_send(&mut self, wr: &mut SendWr, core: &mut Core) -> Result<(), PostError> {
        if let Link::Ring(ring) = &mut self.link {
            let plain = TwoSided::of(wr);
            if plain.is_some_and(|plain| ring.post_plain(&mut self.qp, &plain, &core.mrs)) {
                ring.note_posted();
                return Ok(());
            }
            if wr.op.is_one_sided() {
                match ring.post_direct(&mut self.qp, wr, core)? {
                    AtOnce::Done => return Ok(()),
                    AtOnce::Failed(status) => return self.post_failed(wr.take(), status, core),
                    AtOnce::Declined => {}
                }
            }
        }
        self.qp.post_send(wr.take(), core)
    }

    /// Posts one that has failed as it was posted.
    ///
    /// # Errors
    /// Those of [`Qp::post_send`].
    #[cold]
    pub fn post_failed(
        &mut self,
        wr: SendWr,
        status: WcStatus,
        core: &mut Core,
    ) -> Result<(), PostError> {
        self.qp.post_failed(wr, status, core)
    }

    /// The device can't go on with it.
    pub fn break_off(&mut self, core: &mut Core) {
        match self.qp.service() {
            Service::Rc => self.qp.bind(core).lost(),
            Service::Uc | Service::Ud => self.qp.fail(core),
        }
    }

    /// Tells a peer on this host what it may do. Returns whether there is one.
    pub fn grant(&mut self) -> bool {
        let pd = self.qp.config().pd;
        let access = self.qp.attr().access.bits();
        let Some((_, ring)) = self.ring() else {
            return false;
        };
        ring.set_grant(Grant::new(pd, access));
        true
    }

    /// Records what it sends and receives for a trace that covers it, or no longer.
    #[cold]
    pub fn set_trace(&mut self, trace: Option<&Arc<Trace>>) {
        let trace = trace.filter(|trace| trace.covers(self.qp.qpn()));
        let tap = trace.map(|trace| {
            let (own, peer) = self.ends();
            Tap::new(trace, own, peer)
        });
        let traced = tap.is_some();
        match &mut self.link {
            Link::Ring(ring) => ring.set_tap(tap),
            Link::Udp(udp) => udp.set_tap(tap),
            Link::Datagrams(ud) => ud.set_tap(tap),
            Link::None | Link::Nowhere(_) => {}
        }
        self.qp.set_traced(traced);
    }

    /// Itself and its peer, as datagrams between them would name them.
    fn ends(&self) -> (End, End) {
        let port = |qpn| Slot::of_qpn(qpn).map_or(0, Slot::port);
        let (qpn, peer_qpn) = (self.qp.qpn(), self.qp.attr().dest_qpn);
        let (address, peer_address, peer_port) = match &self.link {
            Link::Udp(udp) => udp.ends(),
            _ => {
                let table = gid::table();
                let own = table.get(usize::from(self.av.sgid_index));
                let own = own.or(table.first()).map_or([0; 16], |entry| entry.gid);
                let peer = if self.av.is_global { self.av.dgid } else { own };
                (own, peer, port(peer_qpn))
            }
        };
        let own = End {
            address,
            port: port(qpn),
            qpn,
        };
        let peer = End {
            address: peer_address,
            port: peer_port,
            qpn: peer_qpn,
        };
        (own, peer)
    }

    /// Whether what was posted had better wait for more ([`udp::may_gather`]).
    pub fn may_gather(&self, under_way: u64) -> bool {
        matches!(self.link, Link::Udp(_)) && udp::may_gather(&self.qp, under_way)
    }

    /// Whether the thread that has just posted should wait until a segment is mapped.
    #[inline]
    pub fn wants_segment(&self) -> bool {
        match &self.link {
            Link::Ring(ring) => ring.wanted().is_some() && !self.wanting && self.patient,
            _ => false,
        }
    }

    /// What the broker thread is to ask of the broker for it.
    pub fn broker_request(&mut self) -> Option<BrokerRequest> {
        let failed = self.qp.state() == QpState::Err;
        let qpn = self.qp.qpn();
        let Link::Ring(ring) = &mut self.link else {
            return None;
        };
        if failed && ring.take_trust() {
            return Some(BrokerRequest::Withdraw(qpn));
        }
        let wants = !self.wanting && ring.wanted().is_some();
        self.wanting |= wants;
        wants.then_some(BrokerRequest::Fetch(qpn))
    }

    /// Where its send queue waits for the end of accesses, there will be a look.
    #[inline]
    pub fn watch_withdrawal(&mut self, now: &Now) {
        if self.qp.is_withdrawing() && self.look.is_none() {
            self.look = Some((now.get() + LOOK_FIRST, LOOK_FIRST));
            self.note_wakes();
        }
    }

    /// Goes on with the send queue, if the accesses have ended that it waits for.
    pub fn look_at_withdrawal(&mut self, core: &mut Core, now: Instant) {
        let Some((_, pause)) = self.look.filter(|(at, _)| *at <= now) else {
            return;
        };
        self.qp.look_at_withdrawal(core);
        let pause = (2 * pause).min(LOOK_LAST);
        let waits = self.qp.is_withdrawing();
        self.look = waits.then(|| (now + pause, pause));
        self.note_wakes();
    }

    /// Follows the rate and the burst that `ibv_modify_qp(3)` has set, if they are others. Returns
    /// the attributes.
    pub fn note_rate(&mut self) -> QpAttr {
        let attr = self.qp.attr();
        let wanted = (attr.rate_limit, attr.rate_burst);
        if wanted != self.pace.own() {
            self.pace.set_own(wanted);
            self.follow_limits();
        }
        attr
    }

    /// The limits that it shares with others are these from now on.
    pub fn set_limits(&mut self, limits: Arc<Limits>) {
        self.pace.set_shared(limits);
        self.follow_limits();
    }

    fn follow_limits(&mut self) {
        self.qp.set_paced(self.pace.is_set());
        self.note_wakes();
    }

    /// Lets through what its limits allow by now.
    #[cold]
    pub fn admit(&mut self, now: Instant) {
        self.pace.admit(&mut self.qp, now);
        self.note_wakes();
    }

    fn note_wakes(&mut self) {
        self.wakes = earlier(self.look.map(|(at, _)| at), self.pace.again());
    }

    /// When it wants attention without any input.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        match self.wakes {
            None => self.link_deadline(),
            wakes => earlier(wakes, self.link_deadline()),
        }
    }

    fn link_deadline(&self) -> Option<Instant> {
        match &self.link {
            Link::None => None,
            Link::Ring(ring) => ring.deadline(),
            Link::Udp(udp) => udp.deadline(),
            Link::Datagrams(ud) => ud.deadline(),
            Link::Nowhere(when) => *when,
        }
    }
}
