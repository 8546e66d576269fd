//! Progress: what arrives is handled, what can be sent is sent. Runs in whichever thread posts,
//! polls or waits, under an engine's lock.

mod at_once;
mod rings;
mod short;

use std::sync::atomic::Ordering;

use causeway_fabric::services::Leave;
use causeway_proto::Instant;
use causeway_proto::ulp::Ulp;
use causeway_shm::Counter;

use crate::arrivals;
use crate::broker_request::BrokerRequest;
use crate::clock::{self, Now};
use crate::core::Core;
use crate::qp_entry::{Link, QpEntry, QueuePairs};
use crate::qps::Numbered;
use crate::state::State;
use crate::udp::{GATHER_POSTS, Port};
use short::Found;

/// Passes over the rings for one look at the clock, where nothing else needs it. It costs as much
/// as the rest of a fruitless pass.
const PASSES_PER_TIME: u32 = 16;
/// Long passes for one in which what was posted is counted: that takes a line from who posts.
const ADVANCES_PER_COUNT: u32 = 64;
/// Passes over the ring of a queue pair that is about to end; its peer may go on writing.
const CATCH_UP_PASSES: usize = 32;
/// How long sends to a peer that is nowhere take to fail.
const NOWHERE_AFTER: std::time::Duration = std::time::Duration::from_millis(500);

impl State {
    /// Makes progress. Returns whether there was any.
    pub fn progress(&mut self, now: &Now) -> bool {
        self.core.mrs.look_around();
        match self.take_plain(now) {
            Found::Taken | Found::Sent => true,
            Found::Nothing => false,
            Found::LongWay => self.go_the_long_way(now),
        }
    }

    /// Whether a timer is due.
    fn is_due(&self, now: Instant) -> bool {
        self.timers.next().is_some_and(|due| due <= now)
    }

    /// Makes progress where the short way leaves anything to do.
    fn go_the_long_way(&mut self, now: &Now) -> bool {
        let port = self.udp.links + self.udp.datagrams > 0;
        self.advance(port.then_some(Port::InUse), now)
    }

    /// As [`State::progress`], without a look at the port, for a thread that is about to sleep on
    /// it.
    pub fn progress_but_port(&mut self, now: &Now) -> bool {
        self.carry_over_counts();
        matches!(self.take_plain(now), Found::Taken | Found::Sent) || self.advance(None, now)
    }

    fn advance(&mut self, port: Option<Port>, now: &Now) -> bool {
        if self.failure.has_happened() {
            return self.abandon();
        }
        self.advances = self.advances.wrapping_add(1);
        if self.advances.is_multiple_of(ADVANCES_PER_COUNT) {
            self.carry_over_counts();
        }
        let mut worked = self.poll_rings(now);
        if let Some(port) = port {
            worked |= self.poll_udp(now.get(), port);
        }
        if self.timers.next().is_some_and(|d| self.is_time(d, now)) {
            self.on_timers(now.get());
        }
        self.check_silence(now);
        if self.udp.held > 0 {
            self.deliver_held();
        }
        self.fail_overrun();
        self.flush_pending(now);
        worked
    }

    /// Counts for `causeway status` what was posted without this lock, all of which went by hot
    /// rings.
    pub fn carry_over_counts(&self) {
        for hot in &self.hot {
            hot.cell.counts.carry_over(&self.core.stats);
        }
    }

    /// Whether a timer is due. A program that polls does not look at the clock for it every time.
    fn is_time(&mut self, deadline: Instant, now: &Now) -> bool {
        self.passes = self.passes.wrapping_add(1);
        let look = now.known().is_some() || self.passes.is_multiple_of(PASSES_PER_TIME);
        look && deadline <= now.get()
    }

    /// As [`State::progress`], on time, and where that finds nothing it looks at all of the port:
    /// strangers may have written to it, and a descriptor left readable would keep its watcher
    /// awake.
    pub fn progress_everywhere(&mut self, now: &Now) -> bool {
        self.carry_over_counts();
        now.get();
        self.progress(now) || self.advance(Some(Port::Everywhere), now)
    }

    /// Tells peers what the first `most` unsettled rings have taken and acknowledged. Not in the
    /// pass that received it: the program is likely to answer, and the answer carries it.
    #[inline(always)]
    fn settle(&mut self, most: usize) {
        // As it is most of the time: without the loop.
        if most == 1
            && let &[qpn] = self.unsettled.as_slice()
            && let Some(mut entry) = self.qps.hurry(qpn)
        {
            entry.settle(&self.core);
            self.unsettled.clear();
        } else if most > 0 {
            self.settle_several(most);
        }
    }

    /// As [`State::settle`], of however many.
    #[inline(never)]
    fn settle_several(&mut self, most: usize) {
        let State {
            qps,
            core,
            unsettled,
            ..
        } = self;
        for qpn in &unsettled[..most] {
            if let Some(mut entry) = qps.hurry(*qpn) {
                entry.settle(core);
            } else {
                lock_to_settle(qps, *qpn, core);
            }
        }
        // Seldom is it not all of them: to draw out a part takes more.
        if most == unsettled.len() {
            unsettled.clear();
        } else {
            unsettled.drain(..most);
        }
    }

    /// Tells every peer everything: for a program about to end.
    pub fn settle_all(&mut self) {
        self.settle(self.unsettled.len());
        let qpns: Vec<u32> = self.qps.iter().map(Numbered::qpn).collect();
        for qpn in qpns {
            self.flush_acks(qpn);
        }
        self.send_posted();
    }

    /// Takes what has come for a queue pair that is about to end: a NIC would have taken it when it
    /// came. What the peer has acknowledged was sent, though nobody has looked since.
    pub fn catch_up(&mut self, qpn: u32) {
        let now = Now::default();
        for _ in 0..CATCH_UP_PASSES {
            self.core.enough = false;
            if !self.poll_ring(qpn, &now) {
                break;
            }
        }
        if self.udp.links > 0 {
            self.poll_udp(now.get(), Port::InUse);
        }
    }

    pub fn poll_ring(&mut self, qpn: u32, now: &Now) -> bool {
        let Some(mut guard) = self.qps.lock(qpn) else {
            return false;
        };
        let entry = &mut *guard;
        let worked = entry
            .ring()
            .is_some_and(|(qp, ring)| ring.receive(qp, &mut self.core, now));
        if worked
            && entry.hot
            && let Some(hot) = self.hot.iter_mut().find(|hot| hot.qpn == qpn)
            && let Link::Ring(ring) = &entry.link
        {
            ring.renew(&mut hot.probe);
        }
        if let Some(key) = self.core.mrs.table.take_wanted() {
            self.broker_requests.push(BrokerRequest::Place(key));
        }
        let Link::Ring(ring) = &entry.link else {
            return worked;
        };
        if ring.is_unsettled() && !std::mem::replace(&mut entry.unsettled, true) {
            self.unsettled.push(qpn);
        }
        if worked && ring.has_work(&entry.qp) && !std::mem::replace(&mut entry.pending, true) {
            self.pending.push(qpn);
        }
        worked
    }

    fn poll_udp(&mut self, now: Instant, port: Port) -> bool {
        let mut touched = std::mem::take(&mut self.touched);
        let State { udp, qps, core, .. } = self;
        let any = arrivals::receive(udp, qps, core, (now, port), &mut touched);
        touched.dedup();
        touched.drain(..).for_each(|qpn| self.touch(qpn));
        self.touched = touched;
        any
    }

    /// Notes that a queue pair may have something to send.
    pub fn touch(&mut self, qpn: u32) {
        if let Some(mut entry) = self.qps.find(qpn)
            && !std::mem::replace(&mut entry.pending, true)
        {
            self.pending.push(qpn);
        }
    }

    /// Sends what a queue pair was just given.
    pub fn send_now(&mut self, qpn: u32, now: &Now) {
        if self
            .qp(qpn)
            .is_some_and(|entry| entry.may_gather(GATHER_POSTS))
        {
            // The next poll sends it, or the acknowledgment of what is under way.
            self.udp.has_gathered.store(true, Ordering::Relaxed);
            self.touch(qpn);
            return;
        }
        if !self.pending.is_empty() || self.pump(qpn, now) {
            self.touch(qpn);
            self.flush_pending(now);
        }
    }

    /// Sends what can be sent now.
    pub fn flush_pending(&mut self, now: &Now) {
        let mut at = 0;
        while at < self.pending.len() {
            let qpn = self.pending[at];
            if self.pump(qpn, now) {
                at += 1;
            } else {
                self.pending.swap_remove(at);
                if let Some(mut entry) = self.qp(qpn) {
                    entry.pending = false;
                }
            }
        }
    }

    /// Sends what a queue pair can send. Returns whether something is left that waits for room.
    fn pump(&mut self, qpn: u32, now: &Now) -> bool {
        let State {
            qps,
            core,
            udp,
            timers,
            broker_requests,
            ways,
            awaiting,
            ..
        } = self;
        let Some(mut guard) = qps.lock(qpn) else {
            return false;
        };
        let entry = &mut *guard;
        if entry.qp.is_paced() {
            entry.admit(now.get());
        }
        let left = match &mut entry.link {
            Link::None => false,
            Link::Ring(ring) => {
                let left = ring.transmit(&mut entry.qp, core, now);
                broker_requests.extend(entry.broker_request());
                left
            }
            Link::Udp(link) => {
                link.pump(&mut entry.qp, core, udp, now.get());
                if link.conn.has_ask() && !std::mem::replace(&mut link.asked, true) {
                    broker_requests.push(BrokerRequest::Secure(qpn));
                }
                if link.conn.awaits_reply() && !std::mem::replace(&mut entry.awaiting, true) {
                    awaiting.push(qpn);
                }
                false
            }
            Link::Datagrams(link) => {
                link.pump(&mut entry.qp, core, udp, ways, now.get());
                broker_requests.extend(link.broker_request(qpn));
                false
            }
            Link::Nowhere(when) => {
                if when.is_none() && entry.qp.expects_answer() {
                    *when = Some(now.get() + NOWHERE_AFTER);
                }
                false
            }
        };
        if core.mrs.table.has_many_retired() {
            broker_requests.push(BrokerRequest::Reclaim);
        }
        entry.watch_withdrawal(now);
        let deadline = entry.deadline();
        timers.list(qpn, &mut entry.listed, deadline);
        left
    }

    /// Calls on every queue pair whose time has come.
    fn on_timers(&mut self, now: Instant) {
        let mut due = Vec::new();
        while let Some(taken) = self.timers.take(now) {
            let (_, qpn) = taken;
            let State {
                qps, core, timers, ..
            } = self;
            let Some(mut guard) = qps.find(qpn) else {
                continue;
            };
            let entry = &mut *guard;
            let deadline = entry.deadline();
            if !timers.is_due(taken, &mut entry.listed, deadline, now) {
                continue;
            }
            entry.look_at_withdrawal(core, now);
            let QpEntry { qp, link, .. } = entry;
            match link {
                Link::Udp(udp) => {
                    udp.conn.on_timeout(now, &mut qp.bind(core));
                    if udp.conn.silence().is_some() {
                        self.unanswered.store(true, Ordering::Relaxed);
                    }
                }
                Link::Ring(ring) => ring.on_timer(qp, core, now),
                Link::Nowhere(when) => {
                    if when.take_if(|when| *when <= now).is_some() {
                        qp.bind(core).lost();
                    }
                }
                Link::Datagrams(ud) => ud.on_timer(core, now),
                Link::None => {}
            }
            due.push(qpn);
        }
        for qpn in due {
            self.touch(qpn);
        }
    }

    /// Whether [`State::fail_overrun`] has anything to do.
    #[inline(always)]
    fn has_failures(&self) -> bool {
        self.core.watches.has_late() || !self.core.overrun.is_empty()
    }

    /// Queue pairs whose completion queue has overrun fail, and those whose peer was evicted.
    #[inline]
    fn fail_overrun(&mut self) {
        if self.core.watches.has_late() {
            self.fail_late();
        }
        if !self.core.overrun.is_empty() {
            self.fail_users();
        }
    }

    /// A queue pair has its link.
    pub fn link_up(&mut self, qpn: u32) {
        let trace = self.traces.current();
        let Some(mut guard) = self.qps.lock(qpn) else {
            return;
        };
        let entry = &mut *guard;
        entry.set_trace(trace.as_ref());
        match &mut entry.link {
            Link::Udp(link) => self.udp.enter(qpn, link),
            Link::Datagrams(_) => self.udp.enter_datagrams(qpn),
            Link::Ring(ring) => {
                let watch = ring.watch();
                entry.grant();
                entry.qp.set_direct(true);
                self.rings += 1;
                self.core.set_watch(qpn, Some(watch));
                drop(guard);
                self.set_hot(qpn);
            }
            _ => {}
        }
    }

    /// Tells `causeway status` how many of each object there are.
    pub fn count_objects(&self, wakeups: u64) {
        self.carry_over_counts();
        let stats = &self.core.stats;
        stats.add(Counter::Wakeups, wakeups);
        stats.set(Counter::QueuePairs, u64::from(self.qps.live()));
        stats.set(Counter::RingsOpen, u64::from(self.rings));
        stats.set(Counter::UdpConnections, u64::from(self.udp.links));
        stats.set(
            Counter::MemoryRegions,
            self.core.mrs.table.write().len() as u64,
        );
    }

    /// A queue pair is reset: its completions free nothing any more.
    pub fn detach_completions(&mut self, qpn: u32) {
        self.core.detach_completions(qpn);
        if let Some(mut entry) = self.qps.lock(qpn) {
            entry.forget_released();
        }
    }

    /// A queue pair gives its link up; the peer is told. Returns what to tell the broker, when the
    /// lock is not held.
    #[must_use]
    pub fn link_down(&mut self, qpn: u32) -> Leave {
        let now = clock::now();
        let State {
            qps,
            core,
            udp,
            rings,
            ..
        } = self;
        let mut leave = Leave {
            local_qpn: qpn,
            ..Leave::default()
        };
        let Some(mut guard) = qps.lock(qpn) else {
            return leave;
        };
        let entry = &mut *guard;
        match &mut entry.link {
            Link::Udp(link) => {
                link.conn.shutdown(causeway_proto::trp::Reason::Closed);
                link.pump(&mut entry.qp, core, udp, now);
                udp.leave(qpn, link);
            }
            Link::Ring(link) => {
                leave = link.close(&entry.qp);
                core.set_watch(qpn, None);
                *rings -= 1;
            }
            Link::Datagrams(link) => {
                udp.leave_datagrams(qpn, link.holds());
            }
            Link::None | Link::Nowhere(_) => {}
        }
        entry.poster.counts.carry_over(&core.stats);
        entry.link = Link::None;
        entry.silence.end();
        entry.qp.set_direct(false);
        entry.wanting = false;
        entry.hot = false;
        entry.pending = false;
        entry.unsettled = false;
        entry.awaiting = false;
        self.unsettled.retain(|unsettled| *unsettled != qpn);
        self.awaiting.retain(|awaiting| *awaiting != qpn);
        self.hot.retain(|hot| hot.qpn != qpn);
        self.first_ring = 0;
        self.pending.retain(|pending| *pending != qpn);
        leave
    }
}

/// As [`QpEntry::settle`], where the lock is not biased towards this thread.
#[cold]
#[inline(never)]
fn lock_to_settle(qps: &mut QueuePairs, qpn: u32, core: &Core) {
    if let Some(mut entry) = qps.lock(qpn) {
        entry.settle(core);
    }
}
