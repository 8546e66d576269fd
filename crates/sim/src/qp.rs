//! A queue pair over TRP, and its program.

use std::collections::VecDeque;
use std::rc::Rc;
use std::slice::Chunks;

use causeway_proto::qp::{Content, Express, Qp, Target};
use causeway_proto::trp::{
    Config, Connection, Expecting, Proof, SendConfig, Transmit, Undelivered, reset_for,
};
use causeway_proto::types::{Payload, SendOp, SendWr};
use causeway_proto::{Instant, express};
use causeway_wire::secure::{COOKIE_LEN, HANDSHAKE_MAX, Handshake, Step};
use causeway_wire::trp::Reason;

use crate::broker::Broker;
use crate::memory::SimHost;
use crate::program::{Program, QPNS, Setup, Shared};
use crate::rng::Rng;
use crate::world::Node;

/// Part of the sends that are offered to the short way.
const EXPRESS: f64 = 0.5;
/// Most datagrams of a run.
const MOST_AT_ONCE: usize = 43;
/// Part of the handshakes begun that are to come again with this cookie.
const ASKED: f64 = 0.5;
const COOKIE: [u8; COOKIE_LEN] = [0xC0; COOKIE_LEN];

/// A queue pair, its link and its program.
#[derive(Debug)]
pub struct QpNode {
    /// Queue pair and program.
    pub program: Program,
    /// The link.
    pub link: Connection,
    /// What makes and understands its handshakes.
    broker: Broker,
    /// Nobody listens: every datagram is dropped, or answered by a reset.
    pub crashed: Option<Crash>,
    /// Datagrams that were written before they were asked for.
    outbox: VecDeque<Vec<u8>>,
    /// Decides which sends are offered to the short way, and which handshakes are to come again.
    rng: Rng,
    /// How many went it.
    pub express: u64,
    /// How many handshakes came with the cookie.
    pub proved: u64,
    /// How many datagrams were sent, and taken, as parts of runs.
    pub in_runs: [u64; 2],
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

impl QpNode {
    /// A queue pair ready to send.
    #[must_use]
    pub fn new(side: usize, setup: Setup, shared: Rc<Shared>, rng: &mut Rng) -> Self {
        let cookie = rng.next_u64() | 1;
        let config = Config {
            max_datagram: setup.max_datagram,
            crc: setup.crc,
            secured: setup.sealed > 0,
            phase_packets: setup.sealed.max(1),
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
            program: Program::new(side, setup, shared, rng),
            link,
            broker: Broker::default(),
            crashed: None,
            outbox: VecDeque::new(),
            rng: rng.fork(),
            express: 0,
            proved: 0,
            in_runs: [0; 2],
        }
    }

    /// Progress in words.
    #[must_use]
    pub fn summary(&self) -> String {
        format!("{}\n{:?}", self.program.summary(), self.link.stats())
    }

    fn with_link<T>(&mut self, f: impl FnOnce(&mut Connection, &mut Qp, &mut SimHost) -> T) -> T {
        let link = &mut self.link;
        self.program.with(|qp, host| {
            let result = f(link, qp, host);
            if let Some((seq, nak)) = qp.take_late_refusal() {
                link.refuse(seq, nak);
            }
            result
        })
    }

    /// The datagram that asks for a cookie, where what begins a handshake has none and is to have.
    fn ask_for_cookie(&mut self, datagram: &[u8]) -> Option<Vec<u8>> {
        let begin = self.link.asks_broker(datagram)?;
        if matches!(begin.step, Step::Proved(COOKIE, _)) {
            self.proved += 1;
            return None;
        }
        let answer = Handshake {
            dst_qpn: begin.src_qpn,
            src_qpn: begin.dst_qpn,
            receiver: begin.sender,
            sender: 0,
            step: Step::Cookie(COOKIE),
        };
        let mut out = vec![0; HANDSHAKE_MAX];
        let len = answer.emit(&mut out).filter(|_| self.rng.chance(ASKED))?;
        out.truncate(len);
        Some(out)
    }

    fn expectation(&self) -> Expecting {
        if self.program.qp.expects_answer() {
            Expecting::Answers
        } else {
            self.program.qp.expects_peer().into()
        }
    }
}

/// A send as the short way takes it, if it is of a kind that may.
fn request(wr: &SendWr) -> Option<Express<'_>> {
    let to = match wr.op {
        SendOp::Send => None,
        SendOp::Write { addr, rkey } => Some(Target { addr, rkey }),
        _ => return None,
    };
    let content = match &wr.payload {
        Payload::Inline(bytes) => Content::Inline(bytes),
        Payload::Sges(sges) => match sges[..] {
            [sge] => Content::Range(sge),
            _ => return None,
        },
        Payload::Window(_) => return None,
    };
    Some(Express {
        wr_id: wr.wr_id,
        flags: wr.flags,
        content,
        to,
    })
}

/// Posts a send the short way, if that takes it. Returns its datagram.
fn post(
    link: &mut Connection,
    qp: &mut Qp,
    host: &mut SimHost,
    now: Instant,
    request: &Express<'_>,
) -> Option<Vec<u8>> {
    let mut out = vec![0; link.max_datagram()];
    let sent = express::post((link, qp, host), now, request, &mut out)?;
    assert!(!sent.may_fragment, "what is new fits the path");
    out.truncate(sent.len);
    Some(out)
}

impl Node for QpNode {
    fn step(&mut self, now: Instant) -> bool {
        if self.crashed.is_some() {
            return false;
        }
        let (known, refused) = (self.link.is_confirmed(), self.link.stats().rnr_received);
        let QpNode {
            program,
            link,
            outbox,
            rng,
            express,
            ..
        } = self;
        let stepped = program.step_with(now, known, refused, |qp, host, wr| {
            let offered = rng.chance(EXPRESS).then(|| request(wr)).flatten();
            let sent = offered.and_then(|request| post(link, qp, host, now, &request));
            *express += u64::from(sent.is_some());
            outbox.extend(sent.clone());
            sent.is_some()
        });
        let expecting = self.expectation();
        self.link.set_expecting(now, expecting);
        stepped
    }

    fn on_datagram(&mut self, now: Instant, datagram: &[u8]) {
        match self.crashed {
            Some(Crash::Silent | Crash::Port) => {}
            Some(Crash::Resets) => {
                let mut out = vec![0; 64];
                if let Some(len) = reset_for(datagram, Reason::Unknown, &mut out) {
                    out.truncate(len);
                    self.outbox.push_back(out);
                }
            }
            None => match self.ask_for_cookie(datagram) {
                Some(answer) => self.outbox.push_back(answer),
                // Drops are the protocol's business, and counted there.
                None => self.with_link(|link, qp, host| {
                    let _ = link.on_datagram(now, datagram, &mut qp.bind(host));
                }),
            },
        }
    }

    fn on_datagrams(&mut self, now: Instant, mut together: Chunks<'_, u8>) {
        while let Some(datagram) = together.next() {
            let before = self.link.stats().rx_packets;
            self.on_datagram(now, datagram);
            if self.link.stats().rx_packets > before {
                let left = together.len();
                let rest = &mut together;
                self.with_link(|link, qp, host| {
                    link.on_run(now, datagram, rest, &mut qp.bind(host));
                });
                self.in_runs[1] += (left - together.len()) as u64;
            }
        }
    }

    fn on_marked(&mut self, now: Instant, together: Chunks<'_, u8>) {
        let before = self.link.stats().rx_packets;
        self.on_datagrams(now, together);
        let taken = self.link.stats().rx_packets - before;
        self.link.on_marked(taken);
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
        if let Some(datagram) = self.outbox.pop_front() {
            out[..datagram.len()].copy_from_slice(&datagram);
            return Some(Transmit {
                len: datagram.len(),
                may_fragment: false,
                alone: false,
                ecn: false,
            });
        }
        if self.crashed.is_some() {
            return None;
        }
        let sent =
            self.with_link(|link, qp, host| link.poll_transmit(now, &mut qp.bind(host), out));
        if sent.is_some() || !self.link.has_ask() {
            return sent;
        }
        self.broker.serve(&mut self.link, now);
        self.with_link(|link, qp, host| link.poll_transmit(now, &mut qp.bind(host), out))
    }

    fn poll_run(&mut self, now: Instant, out: &mut [u8], len: usize) -> usize {
        let ran = self.with_link(|link, qp, host| {
            link.poll_run(now, &mut qp.bind(host), out, len, MOST_AT_ONCE)
        });
        self.in_runs[0] += ran as u64;
        ran
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.crashed.is_some() {
            return None;
        }
        let late = self.link.poll_timeout();
        [late, self.program.comes_back()]
            .into_iter()
            .flatten()
            .min()
    }

    fn on_timeout(&mut self, now: Instant) {
        self.program.on_timeout(now);
        if self.crashed.is_none() {
            self.with_link(|link, qp, host| link.on_timeout(now, &mut qp.bind(host)));
        }
    }

    fn poll_in_vain(&mut self) -> bool {
        self.crashed.is_none() && self.link.on_vain_pass()
    }
}
