//! A queue pair over TRP, driven by a random program that checks everything it gets.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use causeway_proto::host::Host;
use causeway_proto::qp::{Qp, QpConfig, rnr_time};
use causeway_proto::trp::{
    Config, Connection, Expecting, Proof, SendConfig, Transmit, Undelivered, reset_for,
};
use causeway_proto::types::{
    Access, QpAttr, QpAttrMask as M, QpCap, QpState, SendWr, Service, Wc, WcFlags, WcStatus,
};
use causeway_proto::{Duration, Instant};
use causeway_wire::trp::Reason;

use crate::memory::{Received, SimHost};
use crate::rng::Rng;
use crate::workload::{self, Generator, MAX_LEN, MAX_RECEIVES, MAX_SENDS, PD, Record};
use crate::world::Node;

/// Queue pair numbers of the two sides.
const QPNS: [u32; 2] = [0x1001, 0x2001];
/// Longest time for which a program forgets to post receives.
const MAX_STARVATION: Duration = Duration::from_millis(3);

/// What both sides can look at: only the checks do.
#[derive(Debug)]
pub struct Shared {
    /// Memory and completion queues.
    pub hosts: [RefCell<SimHost>; 2],
    /// What was posted.
    pub logs: [RefCell<Vec<Record>>; 2],
}

impl Shared {
    /// Two fresh hosts.
    #[must_use]
    pub fn new() -> Rc<Shared> {
        Rc::new(Shared {
            hosts: [0, 1].map(|side| RefCell::new(workload::host(side))),
            logs: [RefCell::default(), RefCell::default()],
        })
    }
}

/// How a queue pair is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// First PSNs: own, and the peer's.
    pub psns: [u32; 2],
    /// Limits of READs and atomics: as requester, as responder.
    pub rd_atomic: [u8; 2],
    /// Code of the acknowledgment time-out.
    pub timeout: u8,
    /// Retries for want of a receive.
    pub rnr_retry: u8,
    /// Code of the time that a refused requester waits.
    pub min_rnr_timer: u8,
    /// Largest datagram.
    pub max_datagram: usize,
    /// Protect datagrams.
    pub crc: bool,
    /// Receives come from a shared queue.
    pub srq: bool,
    /// Work requests that the program posts.
    pub ops: u64,
    /// Chance, at each step, to stop posting receives for a while.
    pub starve: f64,
    /// Bytes of a receive.
    pub receive_len: u64,
    /// The program waits for the completion of each work request before it posts another.
    pub one_by_one: bool,
}

/// A work request that must fail, and how.
pub type Bad = (u64, SendWr, WcStatus);

/// A queue pair, its link and its program.
#[derive(Debug)]
pub struct QpNode {
    side: usize,
    /// The link.
    pub link: Connection,
    /// The queue pair.
    pub qp: Qp,
    shared: Rc<Shared>,
    setup: Setup,
    rng: Rng,
    /// The program.
    pub generator: Generator,
    /// A work request to post instead of the one of this number.
    pub bad: Option<Bad>,
    /// Failures are part of the test: completions may be errors.
    pub may_fail: bool,
    /// Nobody is at home: every datagram is dropped, or answered by a reset.
    pub crashed: Option<Crash>,
    outbox: Vec<Vec<u8>>,
    completed: u64,
    received: u64,
    receives_posted: u64,
    starving_until: Instant,
    arrivals_seen: usize,
    /// When the last work request was posted, if the peer was known, and how often that had asked
    /// for time until then.
    posted_at: Option<(Instant, u64)>,
    /// The longest that the last work request posted has taken, each time, by how often it was
    /// refused for want of a receive. The pauses after that do not count.
    pub slowest: BTreeMap<u64, Duration>,
    /// First completion in error.
    pub error: Option<(u64, WcStatus)>,
    /// When it came.
    pub error_at: Option<Instant>,
}

/// How a host died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Without a trace.
    Silent,
    /// Its endpoint, or another in its place, answers that it knows nothing.
    Resets,
    /// The host lives on, and reports that nobody has the port.
    Port,
}

fn attributes(side: usize, setup: &Setup) -> [(QpAttr, M); 3] {
    let attr = QpAttr {
        path_mtu: 5,
        rq_psn: setup.psns[1],
        sq_psn: setup.psns[0],
        dest_qpn: QPNS[1 - side],
        access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        max_rd_atomic: setup.rd_atomic[0],
        max_dest_rd_atomic: setup.rd_atomic[1],
        min_rnr_timer: setup.min_rnr_timer,
        timeout: setup.timeout,
        retry_cnt: 7,
        rnr_retry: setup.rnr_retry,
        port: 1,
        ..QpAttr::default()
    };
    let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC;
    let rts = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
    let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    [
        (
            QpAttr {
                state: QpState::Init,
                ..attr
            },
            M::STATE | init,
        ),
        (
            QpAttr {
                state: QpState::Rtr,
                ..attr
            },
            M::STATE | rtr | M::MIN_RNR_TIMER,
        ),
        (
            QpAttr {
                state: QpState::Rts,
                ..attr
            },
            M::STATE | rts,
        ),
    ]
}

fn queue_pair(side: usize, setup: &Setup, host: &mut SimHost) -> Qp {
    let cap = QpCap {
        max_send_wr: MAX_SENDS,
        max_recv_wr: MAX_RECEIVES,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: 64,
    };
    let qpn = QPNS[side];
    let mut qp = Qp::new(QpConfig {
        service: Service::Rc,
        qpn,
        pd: PD,
        cap,
        sq_sig_all: false,
        srq: setup.srq,
    });
    for (attr, mask) in attributes(side, setup) {
        qp.modify(&attr, mask, host).expect("a legal transition");
    }
    qp
}

impl QpNode {
    /// A queue pair ready to send.
    #[must_use]
    pub fn new(side: usize, setup: Setup, shared: Rc<Shared>, rng: &mut Rng) -> Self {
        let qp = queue_pair(side, &setup, &mut shared.hosts[side].borrow_mut());
        let cookie = rng.next_u64() | 1;
        let config = Config {
            max_datagram: setup.max_datagram,
            crc: setup.crc,
            ..Config::new(QPNS[side], QPNS[1 - side], cookie, setup.psns[1])
        };
        let mut link = Connection::new(config, Instant(0));
        let (sq_psn, timeout) = (setup.psns[0], setup.timeout);
        link.start(SendConfig {
            sq_psn,
            timeout,
            retry_cnt: 7,
        });
        QpNode {
            side,
            link,
            qp,
            shared,
            setup,
            generator: Generator::new(side, rng.fork()),
            rng: rng.fork(),
            bad: None,
            may_fail: false,
            crashed: None,
            outbox: Vec::new(),
            completed: 0,
            received: 0,
            receives_posted: 0,
            starving_until: Instant(0),
            arrivals_seen: 0,
            posted_at: None,
            slowest: BTreeMap::new(),
            error: None,
            error_at: None,
        }
    }

    fn posted(&self) -> u64 {
        self.shared.logs[self.side].borrow().len() as u64
    }

    /// Whether every work request has been posted and has completed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let all = self.error.is_some() || self.posted() == self.setup.ops;
        all && self.completed == self.posted()
    }

    /// Whether every message of the peer has arrived.
    #[must_use]
    pub fn has_everything(&self) -> bool {
        let log = self.shared.logs[1 - self.side].borrow();
        let expected = log.iter().filter(|r| r.arrival.is_some()).count() as u64;
        self.received == expected
    }

    /// Checks the peer's memory after the end.
    ///
    /// # Panics
    /// If it is not as this side's work requests, carried out once each, must have left it.
    pub fn check_end(&self) {
        let peer = self.shared.hosts[1 - self.side].borrow();
        let area = workload::Area::Counters;
        let bytes = peer.peek(area.key(), area.base(), 16);
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8"));
        assert_eq!((word(0), word(8)), self.generator.counters(), "atomics");
        workload::check(
            &workload::Effect::HotAtLeast(self.generator.stamp()),
            &peer,
            &peer,
        );
    }

    /// Progress in words.
    #[must_use]
    pub fn summary(&self) -> String {
        format!(
            "side {}: {:?}, posted {} of {}, completed {}, received {}, error {:?}, {:?}\n{:?}",
            self.side,
            self.qp.state(),
            self.posted(),
            self.setup.ops,
            self.completed,
            self.received,
            self.error,
            self.shared.hosts[self.side]
                .try_borrow()
                .map(|h| h.events.clone()),
            self.link.stats()
        )
    }

    fn poll_sends(&mut self, now: Instant) {
        loop {
            let wc = self.shared.hosts[self.side].borrow_mut().sends.pop_front();
            let Some(wc) = wc else { return };
            self.qp.release_send();
            self.check_send(now, &wc);
            let Some((at, refused)) = self.posted_at else {
                continue;
            };
            let refused = self.link.stats().rnr_received - refused;
            // Both sides of a test about time ask for the same.
            let pauses = rnr_time(self.setup.min_rnr_timer) * refused as u32;
            let slowest = self.slowest.entry(refused).or_default();
            *slowest = now.since(at).saturating_sub(pauses).max(*slowest);
        }
    }

    fn check_send(&mut self, now: Instant, wc: &Wc) {
        let shared = Rc::clone(&self.shared);
        let log = shared.logs[self.side].borrow();
        assert!(
            wc.wr_id >= self.completed,
            "completions out of order: {wc:?}"
        );
        assert_eq!(wc.qp_num, QPNS[self.side]);
        let own = shared.hosts[self.side].borrow();
        let peer = shared.hosts[1 - self.side].borrow();
        for id in self.completed..wc.wr_id {
            let record = &log[id as usize];
            assert!(
                !record.signaled && self.error.is_none(),
                "no completion of {id}"
            );
            workload::check(&record.effect, &own, &peer);
        }
        self.completed = wc.wr_id + 1;
        let record = &log[wc.wr_id as usize];
        if wc.status == WcStatus::Success {
            assert!(self.error.is_none(), "success after an error: {wc:?}");
            assert!(
                record.signaled && record.opcode == wc.opcode,
                "{wc:?} {record:?}"
            );
            workload::check(&record.effect, &own, &peer);
            return;
        }
        assert!(
            self.may_fail,
            "{wc:?}\n{record:?}\n{:?} {:?}",
            own.events, peer.events
        );
        match self.error {
            // One that had failed already when all was flushed keeps its own status.
            Some(_) if matches!(wc.status, WcStatus::LocProtErr | WcStatus::RemAccessErr) => {}
            Some(_) => assert_eq!(wc.status, WcStatus::WrFlushErr),
            None => {
                self.error = Some((wc.wr_id, wc.status));
                self.error_at = Some(now);
            }
        }
    }

    fn poll_receives(&mut self) {
        loop {
            let polled = self.shared.hosts[self.side]
                .borrow_mut()
                .receives
                .pop_front();
            let Some(received) = polled else {
                return;
            };
            self.qp.release_recv();
            if received.wc.status == WcStatus::Success {
                self.check_receive(&received);
            } else {
                assert!(self.may_fail, "{:?}", received.wc);
            }
        }
    }

    fn check_receive(&mut self, received: &Received) {
        let wc = &received.wc;
        let shared = Rc::clone(&self.shared);
        let log = shared.logs[1 - self.side].borrow();
        let at = log[self.arrivals_seen..]
            .iter()
            .position(|r| r.arrival.is_some());
        let at = self.arrivals_seen + at.expect("a message nobody sent");
        self.arrivals_seen = at + 1;
        if !self.may_fail {
            let own = shared.logs[self.side].borrow();
            workload::check_order(&own, log[at].heard, received.sends_before);
        }
        let arrival = log[at].arrival.as_ref().expect("just found");
        assert_eq!(wc.wr_id, self.received, "receives out of order");
        self.received += 1;
        assert_eq!((wc.opcode, wc.byte_len), (arrival.opcode, arrival.byte_len));
        assert_eq!(received.solicited, arrival.solicited);
        assert_eq!(wc.src_qp, QPNS[1 - self.side]);
        let has = |flag| wc.flags.contains(flag).then_some(wc.imm);
        assert_eq!(
            (has(WcFlags::WITH_IMM), has(WcFlags::WITH_INV)),
            (arrival.imm, arrival.invalidated)
        );
        let addr = workload::receive(wc.wr_id, MAX_LEN).sges[0].addr;
        let area = workload::Area::Receive;
        let got = shared.hosts[self.side]
            .borrow()
            .peek(area.key(), addr, arrival.bytes.len());
        assert!(got == arrival.bytes, "wrong bytes received");
    }

    fn post_receives(&mut self, now: Instant) {
        if now < self.starving_until {
            return;
        }
        if self.rng.chance(self.setup.starve) {
            let pause = self.rng.below(MAX_STARVATION.as_nanos() as u64);
            self.starving_until = now + Duration::from_nanos(pause);
        }
        while self.receives_posted < self.received + u64::from(MAX_RECEIVES) {
            let wr = workload::receive(self.receives_posted, self.setup.receive_len);
            let mut host = self.shared.hosts[self.side].borrow_mut();
            if self.setup.srq {
                host.srq.push_back(wr);
            } else if self.qp.post_recv(wr, &mut *host).is_err() {
                // In error, completions of flushed receives may outnumber what was received.
                assert!(self.may_fail);
                return;
            }
            self.receives_posted += 1;
        }
    }

    fn post_sends(&mut self, now: Instant) {
        while self.error.is_none() && self.posted() < self.setup.ops {
            let used = self.posted() - self.completed;
            let most = if self.setup.one_by_one { 1 } else { MAX_SENDS };
            if used >= u64::from(most) || self.rng.chance(0.2) && used > 0 {
                return;
            }
            let refused = self.link.stats().rnr_received;
            self.posted_at = self.link.is_confirmed().then_some((now, refused));
            let n = self.posted();
            let last = n + 1 == self.setup.ops || self.setup.one_by_one;
            let (mut wr, mut record) = self.generator.next(last);
            record.heard = self.arrivals_seen;
            if let Some((_, bad, _)) = self.bad.as_ref().filter(|(at, ..)| *at == n) {
                wr = SendWr {
                    wr_id: n,
                    ..bad.clone()
                };
            }
            self.shared.logs[self.side].borrow_mut().push(record);
            let mut host = self.shared.hosts[self.side].borrow_mut();
            self.qp
                .post_send(wr, &mut *host)
                .expect("room in the send queue");
        }
    }

    fn with_link<T>(&mut self, f: impl FnOnce(&mut Connection, &mut Qp, &mut SimHost) -> T) -> T {
        let mut host = self.shared.hosts[self.side].borrow_mut();
        let result = f(&mut self.link, &mut self.qp, &mut host);
        if let Some((seq, nak)) = self.qp.take_late_refusal() {
            self.link.refuse(seq, nak);
        }
        result
    }

    fn expectation(&self) -> Expecting {
        if self.qp.expects_answer() {
            Expecting::Answers
        } else {
            self.qp.expects_peer().into()
        }
    }
}

impl Node for QpNode {
    fn step(&mut self, now: Instant) -> bool {
        if self.crashed.is_some() {
            return false;
        }
        let before = (self.posted(), self.completed, self.received);
        self.poll_sends(now);
        self.poll_receives();
        self.post_receives(now);
        self.post_sends(now);
        let expecting = self.expectation();
        self.link.set_expecting(now, expecting);
        before != (self.posted(), self.completed, self.received)
    }

    fn on_datagram(&mut self, now: Instant, datagram: &[u8]) {
        match self.crashed {
            Some(Crash::Silent | Crash::Port) => {}
            Some(Crash::Resets) => {
                let mut out = vec![0; 64];
                if let Some(len) = reset_for(datagram, Reason::Unknown, &mut out) {
                    out.truncate(len);
                    self.outbox.push(out);
                }
            }
            // Drops are the protocol's business, and counted there.
            None => self.with_link(|link, qp, host| {
                let _ = link.on_datagram(now, datagram, &mut qp.bind(host));
            }),
        }
    }

    fn on_report(&mut self, now: Instant, what: Undelivered, quote: &[u8]) {
        if self.crashed.is_none() {
            self.with_link(|link, qp, host| {
                link.undelivered(now, what, Proof::Quote(quote), &mut qp.bind(host));
            });
        }
    }

    fn is_deserted(&self) -> bool {
        self.crashed == Some(Crash::Port)
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<Transmit> {
        if self.crashed.is_some() {
            let datagram = self.outbox.pop()?;
            out[..datagram.len()].copy_from_slice(&datagram);
            return Some(Transmit {
                len: datagram.len(),
                may_fragment: false,
            });
        }
        self.with_link(|link, qp, host| link.poll_transmit(now, &mut qp.bind(host), out))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.crashed.is_some() {
            return None;
        }
        // A starving program comes back by itself.
        let program = Some(self.starving_until).filter(|t| *t > Instant(0));
        let late = self.link.poll_timeout();
        [late, program.filter(|_| self.is_starving())]
            .into_iter()
            .flatten()
            .min()
    }

    fn on_timeout(&mut self, now: Instant) {
        if self.starving_until <= now {
            self.starving_until = Instant(0);
        }
        if self.crashed.is_none() {
            self.with_link(|link, qp, host| link.on_timeout(now, &mut qp.bind(host)));
        }
    }

    fn poll_in_vain(&mut self) -> bool {
        self.crashed.is_none() && self.link.on_vain_pass()
    }
}

impl QpNode {
    fn is_starving(&self) -> bool {
        self.starving_until > Instant(0)
    }

    /// Never posts a receive again.
    pub fn starve_for_ever(&mut self) {
        self.starving_until = Instant(u64::MAX);
    }

    /// Events that only failures bring.
    #[must_use]
    pub fn events(&self) -> usize {
        let events = &self.shared.hosts[self.side].borrow().events;
        let harmless = causeway_proto::types::QpEvent::CommEstablished;
        events.iter().filter(|e| **e != harmless).count()
    }

    /// The host, to arrange for failures.
    pub fn with_host<T>(&mut self, f: impl FnOnce(&mut SimHost) -> T) -> T {
        f(&mut self.shared.hosts[self.side].borrow_mut())
    }
}

const _: fn(&mut SimHost) = |h| {
    fn is_host(_: &mut impl Host) {}
    is_host(h);
};
