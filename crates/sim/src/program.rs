//! A queue pair, and a random program that checks everything it gets: whatever carries for them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use causeway_proto::qp::{Qp, QpConfig, TransportType, rnr_time};
use causeway_proto::types::{
    Access, Payload, QpAttr, QpAttrMask as M, QpCap, QpState, RNR_RETRY_INFINITE, SendFlags,
    SendOp, SendWr, Service, SgList, Sge, Wc, WcFlags, WcStatus,
};
use causeway_proto::{Duration, Instant};

use crate::memory::{PD, Received, SimHost};
use crate::rng::Rng;
use crate::workload::{self, Area, Generator, MAX_LEN, MAX_OPS, MAX_RECEIVES, MAX_SENDS, Record};

/// Queue pair numbers of the two sides.
pub const QPNS: [u32; 2] = [0x1001, 0x2001];
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
    /// Seal them, and change keys after so many; 0: they are in the clear.
    pub sealed: u64,
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
    let config = QpConfig {
        service: Service::Rc,
        qpn: QPNS[side],
        pd: PD,
        cap,
        sq_sig_all: false,
        srq: setup.srq,
    };
    let mut qp = Qp::new(TransportType::Iwarp, config);
    for (attr, mask) in attributes(side, setup) {
        qp.modify(&attr, mask, host).expect("a legal transition");
    }
    qp
}

/// A queue pair and its program.
#[derive(Debug)]
pub struct Program {
    side: usize,
    /// The queue pair.
    pub qp: Qp,
    shared: Rc<Shared>,
    setup: Setup,
    rng: Rng,
    /// What it asks of the queue pair.
    pub generator: Generator,
    /// A work request to post instead of the one of this number.
    pub bad: Option<Bad>,
    /// Failures are part of the test: completions may be errors.
    pub may_fail: bool,
    /// The peer may say anything: only the order of completions is checked.
    pub lied_to: bool,
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

impl Program {
    /// A queue pair ready to send.
    #[must_use]
    pub fn new(side: usize, setup: Setup, shared: Rc<Shared>, rng: &mut Rng) -> Self {
        let qp = queue_pair(side, &setup, &mut shared.hosts[side].borrow_mut());
        Program {
            side,
            qp,
            shared,
            setup,
            generator: Generator::new(side, rng.fork()),
            rng: rng.fork(),
            bad: None,
            may_fail: false,
            lied_to: false,
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

    /// How it is set up.
    #[must_use]
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The program's turn: it polls and posts. `known`: its link knows the peer, which has asked
    /// for time so often. Returns whether there was anything.
    pub fn step(&mut self, now: Instant, known: bool, refused: u64) -> bool {
        self.step_with(now, known, refused, |_, _, _| false)
    }

    /// As [`Program::step`], where each send is first offered to a short way, which says whether it
    /// has posted it.
    pub fn step_with(
        &mut self,
        now: Instant,
        known: bool,
        refused: u64,
        short: impl FnMut(&mut Qp, &mut SimHost, &SendWr) -> bool,
    ) -> bool {
        let before = (self.posted(), self.completed, self.received);
        self.poll_sends(now, refused);
        self.poll_receives();
        self.post_receives(now);
        self.post_sends(known.then_some((now, refused)), short);
        before != (self.posted(), self.completed, self.received)
    }

    /// When it comes back by itself: one that forgets to post receives does.
    #[must_use]
    pub fn comes_back(&self) -> Option<Instant> {
        Some(self.starving_until).filter(|t| *t > Instant(0))
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.starving_until <= now {
            self.starving_until = Instant(0);
        }
    }

    /// Works on the queue pair and its host.
    pub fn with<T>(&mut self, f: impl FnOnce(&mut Qp, &mut SimHost) -> T) -> T {
        f(&mut self.qp, &mut self.shared.hosts[self.side].borrow_mut())
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
            "side {}: {:?}, posted {} of {}, completed {}, received {}, error {:?}, {:?}",
            self.side,
            self.qp.state(),
            self.posted(),
            self.setup.ops,
            self.completed,
            self.received,
            self.error,
            self.shared.hosts[self.side]
                .try_borrow()
                .map(|h| h.events.clone())
        )
    }

    fn poll_sends(&mut self, now: Instant, refused: u64) {
        loop {
            let polled = self.shared.hosts[self.side].borrow_mut().sends.pop_front();
            let Some((wc, places)) = polled else { return };
            self.qp.release_send(places);
            self.check_send(now, &wc);
            let Some((at, before)) = self.posted_at else {
                continue;
            };
            let refused = refused - before;
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
            self.check_effect(record, &own, &peer);
        }
        self.completed = wc.wr_id + 1;
        let record = &log[wc.wr_id as usize];
        if wc.status == WcStatus::Success {
            assert!(self.error.is_none(), "success after an error: {wc:?}");
            assert!(
                record.signaled && record.opcode == wc.opcode,
                "{wc:?} {record:?}"
            );
            self.check_effect(record, &own, &peer);
            return;
        }
        if self.lied_to {
            self.error.get_or_insert((wc.wr_id, wc.status));
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

    fn check_effect(&self, record: &Record, own: &SimHost, peer: &SimHost) {
        if !self.lied_to {
            workload::check(&record.effect, own, peer);
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
            self.qp.release_recvs(1);
            if received.wc.status == WcStatus::Success {
                self.check_receive(&received);
            } else {
                assert!(self.may_fail, "{:?}", received.wc);
            }
        }
    }

    fn check_receive(&mut self, received: &Received) {
        let wc = &received.wc;
        assert_eq!(wc.wr_id, self.received, "receives out of order");
        if self.lied_to {
            self.received += 1;
            return;
        }
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

    fn post_sends(
        &mut self,
        known: Option<(Instant, u64)>,
        mut short: impl FnMut(&mut Qp, &mut SimHost, &SendWr) -> bool,
    ) {
        while self.error.is_none() && self.posted() < self.setup.ops {
            let used = self.posted() - self.completed;
            let most = if self.setup.one_by_one { 1 } else { MAX_SENDS };
            if used >= u64::from(most) || self.rng.chance(0.2) && used > 0 {
                return;
            }
            self.posted_at = known;
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
            if !short(&mut self.qp, &mut host, &wr) {
                self.qp
                    .post_send(wr, &mut *host)
                    .expect("room in the send queue");
            }
        }
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

/// Code that grants 34 s: at 20 % loss even that many retries may fail in a row otherwise.
const PATIENT: u8 = 20;

/// Two sides set up at random.
#[must_use]
pub fn setups(rng: &mut Rng, crc: bool) -> [Setup; 2] {
    let psns = [0; 2].map(|_| {
        if rng.chance(0.3) {
            0xFF_FFF0
        } else {
            rng.below(1 << 24) as u32
        }
    });
    let depths = [0; 2].map(|_| rng.pick(&[1, 2, 4, 16]));
    let mut one = |me: usize| Setup {
        psns: [psns[me], psns[1 - me]],
        // Each side keeps to what the other one takes.
        rd_atomic: [depths[1 - me], depths[me]],
        timeout: PATIENT,
        rnr_retry: RNR_RETRY_INFINITE,
        min_rnr_timer: rng.pick(&[1, 5, 12]),
        max_datagram: rng.pick(&[600, 1200, 1472, 4000, 9000]),
        crc,
        sealed: 0,
        srq: rng.chance(0.2),
        ops: rng.below(MAX_OPS + 1),
        starve: rng.pick(&[0.0, 0.0, 0.1, 0.5]),
        receive_len: MAX_LEN,
        one_by_one: false,
    };
    [one(0), one(1)]
}

/// A work request that must fail, and the status it must fail with.
#[must_use]
pub fn bad(rng: &mut Rng) -> (SendWr, WcStatus) {
    let sge = |area: Area, length| {
        let sge = Sge {
            addr: area.base(),
            length,
            lkey: area.key(),
        };
        Payload::Sges(SgList::from_slice(&[sge]))
    };
    let write = |area: Area, skew: u64| SendOp::Write {
        addr: area.base() + skew,
        rkey: area.key(),
    };
    let read = |area: Area, skew: u64| SendOp::Read {
        addr: area.base() + skew,
        rkey: area.key(),
    };
    let counters = Area::Counters.base();
    let access = WcStatus::RemAccessErr;
    let (op, payload, status) = match rng.below(9) {
        0 => (
            SendOp::Write {
                addr: 0,
                rkey: 0xBAD,
            },
            sge(Area::Source, 3000),
            access,
        ),
        1 => (write(Area::Hot, 10), sge(Area::Source, 7), access),
        2 => (write(Area::Source, 0), sge(Area::Source, 7), access),
        3 => (write(Area::Foreign, 0), sge(Area::Source, 7), access),
        4 => (read(Area::Target, 0), sge(Area::Sink, 5000), access),
        5 => (read(Area::Hot, 1), sge(Area::Sink, 16), access),
        6 => {
            let op = SendOp::FetchAdd {
                addr: counters + 4,
                rkey: Area::Counters.key(),
                add: 1,
            };
            (op, sge(Area::Sink, 8), WcStatus::RemInvReqErr)
        }
        // One byte more than any receive has.
        7 => (
            SendOp::Send,
            sge(Area::Target, MAX_LEN as u32 + 1),
            WcStatus::RemInvReqErr,
        ),
        _ => (SendOp::Send, sge(Area::Foreign, 7), WcStatus::LocProtErr),
    };
    (
        SendWr {
            wr_id: 0,
            op,
            flags: SendFlags::SIGNALED,
            payload,
        },
        status,
    )
}
