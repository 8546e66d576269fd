//! Memory and queues of the device: what queue pairs see of it ([`Host`]).

use std::collections::VecDeque;
use std::sync::Arc;

use causeway_proto::host::{AtomicOp, Completions, Host, MemError, Memory, Remote, Tally, Via};
use causeway_proto::types::{Binding, QpEvent, RecvWr, Wc, WcStatus};
use causeway_proto::{Bytes, BytesMut, Payloads, PayloadsMut};
use causeway_shm::{Counter, Stats, Watch};

use crate::at::At;
use crate::borrowed_payload::Outsides;
use crate::completion_queue::{CompletionQueue, Put};
use crate::completions::{AtHand, Frees};
use crate::events::{AsyncEvent, AsyncQueue, EventSource, EventType};
use crate::gate::Gate;
use crate::limits::LIMITS;
use crate::mr::MrReader;
use crate::qps::Numbering;
use crate::slab::Slab;
use crate::watches::Watches;

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
pub(crate) struct Route {
    /// Number of the queue pair.
    pub qpn: u32,
    pub send_cq: Arc<CompletionQueue>,
    pub recv_cq: Arc<CompletionQueue>,
    pub srq: Option<u32>,
    pub events: Arc<AsyncQueue>,
    pub cookie: usize,
    /// Its peer is on this host.
    pub is_near: bool,
}

/// Memory, completion queues, shared receive queues.
pub(crate) struct Core {
    pub mrs: MrReader,
    /// Accesses of peers on this host to this endpoint's memory.
    pub watches: Arc<Watches>,
    pub cqs: Slab<Arc<CompletionQueue>>,
    pub srqs: Slab<SrqState>,
    numbering: Numbering,
    /// By the queue pair's place.
    routes: Vec<Option<Route>>,
    /// Completion queues that have overrun since last looked at: their queue pairs fail.
    pub overrun: Vec<u32>,
    /// A program that waits for events has enough to do: since this was last cleared there was an
    /// event for it, or a completion where several wait.
    pub enough: bool,
    /// What the poll that looks gets beside its queue. A queue pair's lock is held: what it has
    /// completed before is in the queue, or polled.
    pub at_hand: AtHand,
    /// Receives that completed in a pass over the ports, until their acknowledgment is noted
    /// ([`Core::hold_receives`]).
    held_receives: Vec<(u32, Wc, bool)>,
    holds_receives: bool,
    /// The pass is a look of a thread that goes back to the program with the next event: what comes
    /// after it is left for the next call. To tell another channel of it would cost two system
    /// calls or three, and perftest waits at one channel for its sends and at another for the rest.
    pub stops_at_event: bool,
    /// Counters for `causeway status`.
    pub stats: Stats,
    /// Payload that is not copied into the datagrams being written.
    pub outsides: Outsides,
    /// Lets handshakes of secured connections in.
    pub gate: Arc<Gate>,
}

impl Core {
    pub fn new(
        numbering: Numbering,
        stats: Stats,
        mrs: MrReader,
        (watches, gate): (Arc<Watches>, Arc<Gate>),
    ) -> Self {
        Core {
            gate,
            enough: false,
            at_hand: AtHand::default(),
            held_receives: Vec::new(),
            holds_receives: false,
            stops_at_event: false,
            stats,
            outsides: Outsides::default(),
            mrs,
            watches,
            cqs: Slab::new(LIMITS.max_cq),
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

    /// No program polls a completion of a receive from now on until [`Core::release_receives`]:
    /// what has come is to be noted as acknowledged first, since a program that has polled it may
    /// end at once. It polls by the completion queue's lock alone, while this pass goes on.
    pub fn hold_receives(&mut self) {
        self.holds_receives = true;
    }

    /// Queues them, in order.
    pub fn release_receives(&mut self) {
        self.holds_receives = false;
        let mut held = std::mem::take(&mut self.held_receives);
        for (qp, wc, solicited) in held.drain(..) {
            self.queue_receive(qp, wc, solicited);
        }
        self.held_receives = held;
    }

    /// Completes a receive that a message has taken, to where its queue pair's receives complete:
    /// as [`Host::complete_recv`], which looks for that.
    #[inline(always)]
    pub fn complete_message(&mut self, to: &CompletionQueue, wc: Wc) {
        self.count_received(wc.byte_len);
        if self.holds_receives {
            self.held_receives.push((wc.qp_num, wc, false));
        } else {
            let put = to.complete(&mut self.at_hand, wc, Frees::Receive, false);
            self.heed(put, to.number);
        }
    }

    /// Counts a message that a poll was given at once.
    #[inline(always)]
    pub fn count_received(&self, bytes: u32) {
        let counts = [
            (Counter::RxMessages, 1),
            (Counter::RxBytes, u64::from(bytes)),
        ];
        self.stats.add_all(counts);
    }

    /// Counts a send whose completion a poll was given at once.
    #[inline(always)]
    pub fn count_sent(&self, bytes: u32) {
        let counts = [
            (Counter::TxMessages, 1),
            (Counter::TxBytes, u64::from(bytes)),
        ];
        self.stats.add_all(counts);
    }

    #[inline(always)]
    fn queue_receive(&mut self, qp: u32, wc: Wc, solicited: bool) {
        let Core { at_hand, .. } = self;
        let route = self.routes.get(self.numbering.index(qp));
        if let Some(Some(Route { recv_cq: cq, .. })) = route {
            let put = cq.complete(at_hand, wc, Frees::Receive, solicited);
            let number = cq.number;
            self.heed(put, number);
        }
    }

    /// Takes all of another engine's, for the engine of this number.
    pub fn absorb(&mut self, other: &mut Core, number: u8) {
        for (number_of_cq, cq) in other.cqs.take_all() {
            cq.at.set(number);
            self.cqs.put(number_of_cq, cq);
        }
        for (srq, state) in other.srqs.take_all() {
            state.at.set(number);
            self.srqs.put(srq, state);
        }
        for route in std::mem::take(&mut other.routes).into_iter().flatten() {
            self.add_route(route);
        }
        self.overrun.append(&mut other.overrun);
        self.enough |= std::mem::take(&mut other.enough);
    }

    /// The queue pairs that complete to `cq`.
    pub fn users_of(&self, cq: u32) -> Vec<u32> {
        let routes = self.routes.iter().flatten();
        let users = routes.filter(|r| r.send_cq.number == cq || r.recv_cq.number == cq);
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

    /// Detaches the completions of a queue pair that is reset or destroyed
    /// ([`CompletionQueue::detach`]).
    pub fn detach_completions(&self, qpn: u32) {
        if let Some(route) = self.route(qpn) {
            route.send_cq.detach(qpn);
            route.recv_cq.detach(qpn);
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

    /// Brings parts from a range that was found by a key, each as [`Outsides::take`] brings one.
    /// Returns how many.
    fn load_parts(&self, key: u32, at: usize, parts: PayloadsMut<'_>) -> usize {
        let load = |at, part: BytesMut<'_>| self.mrs.load(key, at, part);
        if self.outsides.is_on() {
            return self.outsides.take_parts(parts, at, load);
        }
        let each = parts.each();
        let places = (0..).map(|i: usize| at + i * each);
        let one = |(at, part)| load(at, part).is_ok();
        places.zip(parts).map(one).take_while(|done| *done).count()
    }

    /// Heeds what came of a completion.
    #[inline(always)]
    fn heed(&mut self, put: Put, cq: u32) {
        match put {
            Put::Queued | Put::Lost => {}
            Put::Enough => self.enough = true,
            Put::Overrun => self.overrun.push(cq),
        }
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

    fn read_local_parts(&self, pd: u32, lkey: u32, addr: u64, parts: PayloadsMut<'_>) -> usize {
        let found = self.mrs.find_local(pd, lkey, addr, parts.total(), false);
        found.map_or(0, |at| self.load_parts(lkey, at, parts))
    }

    fn write_local_parts(&self, pd: u32, lkey: u32, addr: u64, parts: Payloads<'_>) -> usize {
        self.mrs.write_local_parts(pd, lkey, addr, parts)
    }

    fn read_remote_parts(&self, via: Via, rkey: u32, addr: u64, parts: PayloadsMut<'_>) -> usize {
        let what = Remote::Read;
        let found = self.mrs.find_remote(via, rkey, addr, parts.total(), what);
        found.map_or(0, |at| self.load_parts(rkey, at, parts))
    }

    fn write_remote_parts(&self, via: Via, rkey: u32, addr: u64, parts: Payloads<'_>) -> usize {
        self.note_use(via, rkey, parts.total());
        self.mrs.write_remote_parts(via, rkey, addr, parts)
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

/// A message of so many bytes went to a peer that is reached by UDP.
#[inline(always)]
fn count_udp(stats: &Stats, bytes: u32) {
    stats.add(Counter::UdpTxMessages, 1);
    stats.add(Counter::UdpTxPayload, u64::from(bytes));
}

impl Completions for Core {
    #[inline(always)]
    fn complete_send(&mut self, qp: u32, wc: Wc, places: u32) {
        self.count(&wc, Counter::TxMessages, Counter::TxBytes);
        let Core { at_hand, .. } = self;
        let route = self.routes.get(self.numbering.index(qp));
        if let Some(Some(route)) = route {
            if !route.is_near && wc.status == WcStatus::Success {
                count_udp(&self.stats, wc.byte_len);
            }
            let cq = &route.send_cq;
            let put = cq.complete(at_hand, wc, Frees::Send(places), false);
            let number = cq.number;
            self.heed(put, number);
        }
    }

    #[inline(always)]
    fn succeeded_silently(&mut self, qp: u32, bytes: u32) {
        self.stats.add(Counter::TxMessages, 1);
        self.stats.add(Counter::TxBytes, u64::from(bytes));
        if !self.is_on_this_host(qp) {
            count_udp(&self.stats, bytes);
        }
    }
}

impl Host for Core {
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
        if self.holds_receives {
            self.held_receives.push((qp, wc, solicited));
        } else {
            self.queue_receive(qp, wc, solicited);
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
