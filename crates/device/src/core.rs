//! Memory and queues of the device: what queue pairs see of it ([`Host`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use causeway_proto::host::{AtomicOp, Host, MemError, Memory, Remote, Tally, Via};
use causeway_proto::types::{Binding, QpEvent, RecvWr, Wc, WcStatus};
use causeway_proto::{Bytes, BytesMut};
use causeway_shm::{Counter, Stats, Watch};

use crate::at::At;
use crate::borrowed_payload::Outsides;
use crate::channel::EventQueue;
use crate::completions::{Completions, Cqe, Frees};
use crate::events::{AsyncEvent, AsyncQueue, EventSource, EventType};
use crate::limits::LIMITS;
use crate::mr::MrReader;
use crate::qps::Numbering;
use crate::slab::Slab;
use crate::watches::Watches;

/// Completions at once for a program that waits for events.
const ENOUGH: usize = 16;

/// Which completions a completion queue announces (`ibv_req_notify_cq(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    Solicited,
    Any,
}

/// The part of a completion queue that queue pairs reach. Nothing of another thread's lies in the
/// same line.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct CqState {
    pub queue: Completions,
    pub armed: Armed,
    pub overrun: bool,
    /// Completions carry the time.
    pub timestamps: bool,
    pub channel: Option<Arc<EventQueue<usize>>>,
    pub events: Arc<AsyncQueue>,
    pub cookie: usize,
    /// Completion events handed to the channel, ever.
    pub announced: u64,
    /// Queue pairs that complete here.
    pub users: u32,
    /// Where it is.
    pub at: Arc<At>,
}

/// The part of a shared receive queue that queue pairs reach.
#[derive(Debug)]
pub(crate) struct SrqState {
    pub queue: VecDeque<RecvWr>,
    /// The protection domain that its receives are checked against.
    pub pd: u32,
    pub max_wr: u32,
    pub limit: u32,
    pub events: Arc<AsyncQueue>,
    pub cookie: usize,
    pub users: u32,
    /// Where it is.
    pub at: Arc<At>,
}

/// Where a queue pair's completions and events go.
#[derive(Debug)]
pub(crate) struct Route {
    /// Number of the queue pair.
    pub qpn: u32,
    pub send_cq: u32,
    pub recv_cq: u32,
    pub srq: Option<u32>,
    pub events: Arc<AsyncQueue>,
    pub cookie: usize,
    /// Its peer is on this host.
    pub is_near: bool,
}

/// How many queued completions there are of queue pairs that have been reset or destroyed, by
/// number: one that is here is not issued again.
#[derive(Debug, Default)]
pub(crate) struct Outliving(BTreeMap<u32, u32>);

impl Outliving {
    /// Whether any queue holds a completion of `qpn`.
    pub fn has(&self, qpn: u32) -> bool {
        self.0.contains_key(&qpn)
    }

    fn add(&mut self, qpn: u32) {
        *self.0.entry(qpn).or_default() += 1;
    }

    /// One of `qpn` has left its queue.
    #[cold]
    pub fn remove(&mut self, qpn: u32) {
        if let Some(left) = self.0.get_mut(&qpn) {
            *left -= 1;
            if *left == 0 {
                self.0.remove(&qpn);
            }
        }
    }
}

/// Memory, completion queues, shared receive queues.
#[derive(Debug)]
pub(crate) struct Core {
    pub mrs: MrReader,
    /// Accesses of peers on this host to this endpoint's memory.
    pub watches: Arc<Watches>,
    pub cqs: Slab<CqState>,
    /// Completions that outlive their queue pairs' reset or destruction, by number.
    pub outliving: Outliving,
    pub srqs: Slab<SrqState>,
    numbering: Numbering,
    /// By the queue pair's place.
    routes: Vec<Option<Route>>,
    /// Completion queues that have overrun since last looked at: their queue pairs fail.
    pub overrun: Vec<u32>,
    /// A program that waits for events has enough to do: since this was last cleared there was an
    /// event for it, or a completion where [`ENOUGH`] wait.
    pub enough: bool,
    /// The pass is a look of a thread that goes back to the program with the next event: what comes
    /// after it is left for the next call. To tell another channel of it would cost two system
    /// calls or three, and perftest waits at one channel for its sends and at another for the rest.
    pub stops_at_event: bool,
    /// Counters for `causeway status`.
    pub stats: Stats,
    /// Payload that is not copied into the datagrams being written.
    pub outsides: Outsides,
}

impl Core {
    pub fn new(numbering: Numbering, stats: Stats, mrs: MrReader, watches: Arc<Watches>) -> Self {
        Core {
            enough: false,
            stops_at_event: false,
            stats,
            outsides: Outsides::default(),
            mrs,
            watches,
            cqs: Slab::new(LIMITS.max_cq),
            outliving: Outliving::default(),
            srqs: Slab::new(LIMITS.max_srq),
            numbering,
            routes: Vec::new(),
            overrun: Vec::new(),
        }
    }

    #[inline(always)]
    fn route(&self, qpn: u32) -> Option<&Route> {
        self.routes.get(self.numbering.index(qpn))?.as_ref()
    }

    /// A queue pair is there.
    pub fn add_route(&mut self, route: Route) {
        let index = self.numbering.index(route.qpn);
        self.watches.add(route.qpn);
        if self.routes.len() <= index {
            self.routes.resize_with(index + 1, || None);
        }
        self.routes[index] = Some(route);
    }

    /// It is gone.
    pub fn remove_route(&mut self, qpn: u32) {
        self.watches.remove(qpn);
        if let Some(route) = self.routes.get_mut(self.numbering.index(qpn)) {
            *route = None;
        }
    }

    /// Takes all of another engine's, for the engine of this number.
    pub fn absorb(&mut self, other: &mut Core, number: u8) {
        for (cq, state) in other.cqs.take_all() {
            state.at.set(number);
            self.cqs.put(cq, state);
        }
        for (srq, state) in other.srqs.take_all() {
            state.at.set(number);
            self.srqs.put(srq, state);
        }
        for route in std::mem::take(&mut other.routes).into_iter().flatten() {
            self.add_route(route);
        }
        self.outliving.0.append(&mut other.outliving.0);
        self.overrun.append(&mut other.overrun);
        self.enough |= std::mem::take(&mut other.enough);
    }

    /// The queue pairs that complete to `cq`.
    pub fn users_of(&self, cq: u32) -> Vec<u32> {
        let routes = self.routes.iter().flatten();
        let users = routes.filter(|route| route.send_cq == cq || route.recv_cq == cq);
        users.map(|route| route.qpn).collect()
    }

    /// How the accesses of a queue pair's peer are seen, if that is on this host.
    pub fn set_watch(&mut self, qpn: u32, watch: Option<Watch>) {
        let index = self.numbering.index(qpn);
        if let Some(Some(route)) = self.routes.get_mut(index) {
            route.is_near = watch.is_some();
        }
        self.watches.set(qpn, watch);
    }

    /// Whether the peer of a queue pair is on this host.
    pub fn is_on_this_host(&self, qpn: u32) -> bool {
        self.route(qpn).is_some_and(|route| route.is_near)
    }

    /// Detaches the completions of a queue pair that is reset or destroyed. What it has earned
    /// stays until it is polled: what was done is done. What failed or was flushed goes: nobody
    /// asks for that any more.
    pub fn detach_completions(&mut self, qpn: u32) {
        let Some((send, recv)) = self.route(qpn).map(|r| (r.send_cq, r.recv_cq)) else {
            return;
        };
        for cq in [send, recv] {
            let Some(state) = self.cqs.get_mut(cq) else {
                continue;
            };
            state.queue.retain_mut(|cqe| {
                // Where both queues are one, or after an earlier reset, they are detached already.
                if cqe.wc.qp_num != qpn || cqe.frees == Frees::Nothing {
                    return true;
                }
                let earned = cqe.wc.status == WcStatus::Success;
                if earned {
                    cqe.frees = Frees::Nothing;
                    self.outliving.add(qpn);
                }
                earned
            });
        }
    }

    /// Takes a completion queue away, with what it holds.
    pub fn remove_cq(&mut self, cq: u32) {
        let Some(state) = self.cqs.take(cq) else {
            return;
        };
        for cqe in state.queue.iter().filter(|cqe| cqe.frees == Frees::Nothing) {
            self.outliving.remove(cqe.wc.qp_num);
        }
    }

    #[inline(always)]
    fn count(&self, wc: &Wc, messages: Counter, bytes: Counter) {
        if wc.status == WcStatus::Success {
            self.stats.add(messages, 1);
            self.stats.add(bytes, u64::from(wc.byte_len));
        } else {
            self.stats.add(Counter::Errors, 1);
        }
    }

    /// Queues a completion. In line where it is made, and given to nobody else: so it is built in
    /// the queue, and nothing has to load what was just stored.
    #[inline(always)]
    fn complete(&mut self, cq: u32, wc: Wc, frees: Frees, solicited: bool) {
        let Some(state) = self.cqs.get_mut(cq) else {
            return;
        };
        if state.queue.is_full() && !state.make_room(&mut self.outliving) {
            return state.overflow(cq, &mut self.overrun);
        }
        let timestamp = if state.timestamps {
            crate::clock::now().0
        } else {
            0
        };
        let failed = wc.status != WcStatus::Success;
        state.queue.put(Cqe {
            wc,
            timestamp,
            frees,
        });
        state.at.ready.store(true, Ordering::Release);
        if state.channel.is_some() {
            self.enough |= state.tell(solicited || failed);
        }
    }
}

impl CqState {
    /// Makes room for another completion, if that can be. In a queue that holds as many as it may,
    /// those of queue pairs that are gone do: programs size a queue for those that they have.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, outliving: &mut Outliving) -> bool {
        if self.queue.grow() {
            return true;
        }
        let gone = self.queue.take_first(|cqe| cqe.frees == Frees::Nothing);
        if let Some(gone) = gone {
            outliving.remove(gone.wc.qp_num);
        }
        gone.is_some()
    }

    /// It has no room for a completion. Notes it where that is looked at.
    #[cold]
    #[inline(never)]
    fn overflow(&mut self, cq: u32, overrun: &mut Vec<u32>) {
        if !std::mem::replace(&mut self.overrun, true) {
            self.at.ready.store(true, Ordering::Release);
            self.events.push(AsyncEvent {
                event_type: EventType::CqErr,
                source: EventSource::Cq(self.cookie),
            });
            overrun.push(cq);
        }
    }

    /// Tells the channel of the newest completion, if that is asked for. Returns whether a program
    /// that waits for events has enough to do.
    #[inline(never)]
    fn tell(&mut self, solicited: bool) -> bool {
        let announce = match self.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => solicited,
        };
        let announced = announce && {
            self.armed = Armed::No;
            self.announce()
        };
        announced || self.queue.len() >= ENOUGH
    }

    /// Tells the channel, if there is one.
    fn announce(&mut self) -> bool {
        let Some(channel) = &self.channel else {
            return false;
        };
        self.announced += 1;
        channel.push(self.cookie);
        true
    }
}

impl Memory for Core {
    fn check_local(
        &self,
        pd: u32,
        lkey: u32,
        addr: u64,
        len: u64,
        write: bool,
    ) -> Result<(), MemError> {
        self.mrs.check_local(pd, lkey, addr, len, write)
    }

    fn check_remote(
        &self,
        via: Via,
        rkey: u32,
        addr: u64,
        len: u64,
        what: Remote,
    ) -> Result<(), MemError> {
        self.note_use(via, rkey, len);
        self.mrs.check_remote(via, rkey, addr, len, what)
    }

    #[inline]
    fn read_local(&self, pd: u32, lkey: u32, addr: u64, dst: BytesMut<'_>) -> Result<(), MemError> {
        if self.outsides.is_on() {
            let found = self.mrs.find_local(pd, lkey, addr, dst.len() as u64, false);
            return self
                .outsides
                .take(dst, found, |at, dst| self.mrs.load(lkey, at, dst));
        }
        self.mrs.read_local(pd, lkey, addr, dst)
    }

    #[inline]
    fn write_local(&self, pd: u32, lkey: u32, addr: u64, src: Bytes<'_>) -> Result<(), MemError> {
        self.mrs.write_local(pd, lkey, addr, src)
    }

    fn read_remote(
        &self,
        via: Via,
        rkey: u32,
        addr: u64,
        dst: BytesMut<'_>,
    ) -> Result<(), MemError> {
        if self.outsides.is_on() {
            let len = dst.len() as u64;
            let found = self.mrs.find_remote(via, rkey, addr, len, Remote::Read);
            return self
                .outsides
                .take(dst, found, |at, dst| self.mrs.load(rkey, at, dst));
        }
        self.mrs.read_remote(via, rkey, addr, dst)
    }

    fn write_remote(&self, via: Via, rkey: u32, addr: u64, src: Bytes<'_>) -> Result<(), MemError> {
        self.note_use(via, rkey, src.len() as u64);
        self.mrs.write_remote(via, rkey, addr, src)
    }

    fn atomic(&self, via: Via, rkey: u32, addr: u64, op: AtomicOp) -> Result<u64, MemError> {
        self.note_use(via, rkey, 8);
        self.mrs.atomic(via, rkey, addr, op)
    }

    fn invalidate(&mut self, via: Via, rkey: u32) -> Result<Option<u32>, MemError> {
        let withdrawn = self.mrs.table.write().invalidate(via, rkey)?;
        Ok(self.watches.leave(withdrawn))
    }

    fn bind_window(
        &mut self,
        via: Via,
        rkey: u32,
        binding: &Binding,
    ) -> Result<Option<u32>, MemError> {
        let withdrawn = self.mrs.table.write().bind(via, rkey, binding)?;
        Ok(self.watches.leave(withdrawn))
    }

    fn is_quiet(&mut self, key: u32) -> bool {
        self.watches.is_quiet(key)
    }

    fn expel(&mut self, qp: u32, key: u32) {
        self.watches.expel(qp, key);
    }
}

impl Host for Core {
    #[inline(always)]
    fn complete_send(&mut self, qp: u32, wc: Wc, places: u32) {
        self.count(&wc, Counter::TxMessages, Counter::TxBytes);
        if let Some(cq) = self.route(qp).map(|r| r.send_cq) {
            self.complete(cq, wc, Frees::Send(places), false);
        }
    }

    #[inline(always)]
    fn succeeded_silently(&mut self, bytes: u32) {
        self.stats.add(Counter::TxMessages, 1);
        self.stats.add(Counter::TxBytes, u64::from(bytes));
    }

    #[inline(always)]
    fn tally(&self, what: Tally, times: u64) {
        let counter = match what {
            Tally::Written => Counter::RingTxRecords,
            Tally::Taken => Counter::RingRxRecords,
            Tally::NotReadySent => Counter::RnrSent,
            Tally::NotReadyReceived => Counter::RnrReceived,
            Tally::Woken => Counter::DoorbellsRung,
        };
        if times > 0 {
            self.stats.add(counter, times);
        }
    }

    #[inline]
    fn has_enough(&self) -> bool {
        self.enough
    }

    #[inline]
    fn is_sated(&self) -> bool {
        self.stops_at_event && self.enough
    }

    #[inline(always)]
    fn complete_recv(&mut self, qp: u32, wc: Wc, solicited: bool) {
        self.count(&wc, Counter::RxMessages, Counter::RxBytes);
        if let Some(cq) = self.route(qp).map(|r| r.recv_cq) {
            self.complete(cq, wc, Frees::Receive, solicited);
        }
    }

    fn peek_srq(&self, qp: u32) -> Option<u64> {
        let srq = self.route(qp)?.srq?;
        Some(self.srqs.get(srq)?.queue.front()?.capacity())
    }

    fn pop_srq(&mut self, qp: u32) -> Option<(RecvWr, u32)> {
        let srq = self.route(qp)?.srq?;
        let state = self.srqs.get_mut(srq)?;
        let wr = state.queue.pop_front()?;
        if state.limit > 0 && state.queue.len() < state.limit as usize {
            // Announced once per arming (ibv_modify_srq(3)).
            state.limit = 0;
            state.events.push(AsyncEvent {
                event_type: EventType::SrqLimitReached,
                source: EventSource::Srq(state.cookie),
            });
        }
        Some((wr, state.pd))
    }

    fn event(&mut self, qp: u32, event: QpEvent) {
        if let Some(route) = self.route(qp) {
            let source = EventSource::Qp(route.cookie);
            route.events.push(AsyncEvent {
                event_type: event.into(),
                source,
            });
        }
    }
}
