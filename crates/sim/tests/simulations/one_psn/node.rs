//! A queue pair over the transport, and its program.

use std::rc::Rc;

use causeway_proto::trp::{Transmit, Undelivered};
use causeway_proto::{Duration, Instant};
use causeway_sim::program::{Program, Setup, Shared};
use causeway_sim::rng::Rng;
use causeway_sim::world::Node;

use super::Defect;
use super::packet::Header;
use super::requester::Requester;
use super::responder::Responder;

/// Tries for want of an acknowledgment, and one: `retry_cnt` of the simulator's queue pairs is 7.
const TRIES: u32 = 8;
/// A program with work left looks again so soon, though nothing is under way: it stops posting now
/// and then, and what it posted last may have needed no packet.
const LOOK: Duration = Duration::from_millis(100);

/// A queue pair, its transport and its program.
#[derive(Debug)]
pub struct OneNode {
    /// Queue pair and program.
    pub program: Program,
    /// What sends its requests.
    pub requester: Requester,
    /// What takes the peer's.
    pub responder: Responder,
    /// Nobody listens any more.
    pub crashed: bool,
    look_at: Option<Instant>,
}

impl OneNode {
    /// A queue pair ready to send packets of so many bytes of payload.
    pub fn new(
        side: usize,
        setup: Setup,
        mtu: u32,
        shared: &Rc<Shared>,
        defect: Option<Defect>,
        rng: &mut Rng,
    ) -> Self {
        // `ibv_modify_qp(3)`, `timeout`.
        let patience = Duration::from_nanos(4096 << setup.timeout) * TRIES;
        let [own, peer] = setup.psns;
        OneNode {
            program: Program::new(side, setup, Rc::clone(shared), rng),
            requester: Requester::new(own, mtu, patience, defect),
            responder: Responder::new(peer, mtu, setup.rd_atomic[1], defect),
            crashed: false,
            look_at: None,
        }
    }
}

impl Node for OneNode {
    fn step(&mut self, now: Instant) -> bool {
        if self.crashed {
            return false;
        }
        let stepped = self.program.step(now, true, self.requester.refusals);
        let idle = !self.program.is_done() && self.requester.deadline().is_none();
        self.look_at = idle.then_some(now + LOOK);
        stepped
    }

    fn on_datagram(&mut self, now: Instant, datagram: &[u8]) {
        let Some((header, body)) = Header::parse(datagram).filter(|_| !self.crashed) else {
            return;
        };
        let OneNode {
            requester,
            responder,
            ..
        } = self;
        self.program.with(|qp, host| {
            let mut bound = qp.bind(host);
            if header.opcode.is_request() {
                responder.receive(&header, body, &mut bound);
            } else {
                requester.receive(&header, body, &mut bound, now);
            }
        });
    }

    /// Anybody can forge one.
    fn on_report(&mut self, _now: Instant, _what: Undelivered, _quote: &[u8]) {}

    fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<Transmit> {
        if self.crashed {
            return None;
        }
        let OneNode {
            requester,
            responder,
            ..
        } = self;
        let (header, room) = self.program.with(|qp, host| {
            let mut bound = qp.bind(host);
            // What a program sends in reply shows that it has got the message.
            let answer = responder.build(&mut bound);
            answer.or_else(|| requester.build(&mut bound, now))
        })?;
        Some(Transmit {
            len: header.emit(room.built().1, out),
            may_fragment: false,
            alone: false,
            ecn: false,
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let own = [
            self.requester.deadline(),
            self.program.comes_back(),
            self.look_at,
        ];
        own.into_iter().flatten().min().filter(|_| !self.crashed)
    }

    fn on_timeout(&mut self, now: Instant) {
        self.program.on_timeout(now);
        self.look_at = None;
        let requester = &mut self.requester;
        self.program
            .with(|qp, host| requester.on_timeout(&mut qp.bind(host), now));
    }

    fn poll_in_vain(&mut self) -> bool {
        false
    }
}
