//! Sealed datagrams of a UD queue pair, and the handshakes before them.
//!
//! A datagram to a peer that there is no association with yet waits for it ([`super::waiting`]).

use std::net::SocketAddr;

use causeway_fabric::secure::phase_packets;
use causeway_identity::Slot;
use causeway_proto::Instant;
use causeway_proto::association::{Ask, Associations, Ignored, Letter, Outcome, Peer};
use causeway_proto::qp::Qp;
use causeway_proto::trp::PHASE_PACKETS;
use causeway_shm::Counter;
use causeway_wire::datagram::Datagram;
use causeway_wire::secure::{Handshake, SEALED_HEADER_LEN, Step, TAG_LEN, Why, is_handshake};

use super::waiting::Waiting;
use super::{Arrival, Batch, UdLink};
use crate::broker_request::BrokerRequest;
use crate::core::Core;
use crate::gate::Verdict;
use crate::not_secured;
use crate::udp::UdpWire;

/// What a UD queue pair has whose datagrams are sealed.
#[derive(Debug)]
pub(super) struct Secured {
    associations: Associations,
    waiting: Waiting,
    /// What was received is opened here.
    scratch: Vec<u8>,
    /// The broker thread is to ask for associations.
    asked: bool,
    /// It has been said that a peer refuses; that something came in the clear.
    told: bool,
    told_of_plain: bool,
}

/// A handshake datagram for whom a datagram came from.
pub(crate) type Reply = Handshake<'static>;

fn new_cookie() -> Option<u64> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).ok()?;
    Some(u64::from_ne_bytes(random) | 1)
}

impl UdLink {
    /// Of a queue pair whose datagrams are to be sealed, or not.
    pub fn new(qpn: u32, secured: bool) -> Self {
        let associations = || Associations::new(qpn, phase_packets().unwrap_or(PHASE_PACKETS));
        UdLink {
            secured: secured.then(|| {
                Box::new(Secured {
                    associations: associations(),
                    waiting: Waiting::default(),
                    scratch: Vec::new(),
                    asked: false,
                    told: false,
                    told_of_plain: false,
                })
            }),
            ..UdLink::default()
        }
    }

    /// Bytes that sealing puts before a datagram, and behind it.
    pub(super) fn overhead(&self) -> (usize, usize) {
        let is_secured = self.secured.is_some();
        if is_secured {
            (SEALED_HEADER_LEN, TAG_LEN)
        } else {
            (0, 0)
        }
    }

    pub(super) fn handshake_deadline(&self) -> Option<Instant> {
        self.secured.as_ref()?.associations.deadline()
    }

    /// What the broker thread is to ask of the broker for it.
    pub fn broker_request(&mut self, qpn: u32) -> Option<BrokerRequest> {
        let secured = self.secured.as_mut()?;
        let asks = secured.associations.has_ask() && !std::mem::replace(&mut secured.asked, true);
        asks.then_some(BrokerRequest::Associate(qpn))
    }

    /// What it is to ask next.
    pub fn take_ask(&mut self) -> Option<Ask> {
        let secured = self.secured.as_mut()?;
        let ask = secured.associations.take_ask();
        secured.asked = ask.is_some();
        ask
    }

    /// What the broker has said to that. An earlier link of the same queue pair may have asked.
    pub fn told(&mut self, ask: &Ask, outcome: Outcome) {
        if let Some(secured) = &mut self.secured {
            secured.associations.told(ask, outcome);
        }
    }

    /// Repeats what peers have not answered, and loses what waits for those that have not for long.
    pub(super) fn repeat_handshakes(&mut self, core: &Core, now: Instant) {
        let Some(secured) = &mut self.secured else {
            return;
        };
        for peer in secured.associations.on_timer(now) {
            let lost = secured.waiting.lose(&peer);
            core.stats.add(Counter::Drops, lost as u64);
        }
    }

    /// Sends handshake datagrams, and what has waited for associations that there are now.
    pub(super) fn go_on_with_handshakes(
        &mut self,
        wire: &mut UdpWire,
        core: &Core,
        rank: usize,
        now: Instant,
    ) {
        while let Some(letter) = self.next_letter() {
            let to = (letter.to.ip(), letter.to.port());
            self.record(true, letter.from, to, &letter.bytes);
            core.stats.add(Counter::UdpTxDatagrams, 1);
            core.stats
                .add(Counter::UdpTxBytes, letter.bytes.len() as u64);
            if let Some(port) = wire.ports.get(rank) {
                // What can't be sent is lost, and repeated.
                let _ = port.send(letter.to, Some(letter.from), &letter.bytes, None, false);
            }
        }
        let Some(secured) = &mut self.secured else {
            return;
        };
        while let Some((peer, why)) = secured.associations.next_refusal() {
            secured.tell(peer, why);
        }
        if !secured.associations.take_news() {
            secured.begin_handshakes(core, now);
            return;
        }
        let Secured {
            associations,
            waiting,
            ..
        } = &mut **secured;
        let taken = waiting.take_ready(|peer| associations.is_ready(peer));
        secured.begin_handshakes(core, now);
        let mut ready = Vec::new();
        for (peer, batch, mut bytes) in taken {
            if secured.associations.seal(&peer, &mut bytes) {
                ready.push((batch, bytes));
            } else {
                core.stats.add(Counter::Drops, 1);
            }
        }
        for (batch, bytes) in ready {
            wire.buffer[..bytes.len()].copy_from_slice(&bytes);
            self.send(batch, wire, bytes.len(), core);
        }
    }

    fn next_letter(&mut self) -> Option<Letter> {
        self.secured.as_mut()?.associations.next_letter()
    }

    /// Seals a datagram in place, if that is to be. Returns whether it can be sent now: it may have
    /// to wait for an association.
    pub(super) fn seal(
        &mut self,
        datagram: &mut [u8],
        (batch, qpn): (&Batch, u32),
        core: &Core,
        now: Instant,
    ) -> bool {
        let Some(secured) = &mut self.secured else {
            return true;
        };
        let peer = Peer {
            own: batch.src,
            address: batch.dst.ip(),
            qpn,
        };
        // Groups have no address handles on a secured wire: should one have come about, nothing
        // leaves by it.
        if batch.dst.ip().is_multicast() {
            core.stats.add(Counter::Drops, 1);
            return false;
        }
        if secured.associations.is_ready(&peer) {
            let sealed = secured.associations.seal(&peer, datagram);
            core.stats.add(Counter::Drops, u64::from(!sealed));
            return sealed;
        }
        let lost = secured.waiting.push(peer, *batch, datagram);
        core.stats.add(Counter::Drops, lost as u64);
        secured.begin_handshakes(core, now);
        false
    }

    /// Takes what came in the clear, where that is allowed. Returns whether it is.
    pub fn takes_plain(&mut self, qpn: u32, from: SocketAddr) -> bool {
        let Some(secured) = &mut self.secured else {
            return true;
        };
        if !std::mem::replace(&mut secured.told_of_plain, true) {
            not_secured::tell_of_plain(qpn, from);
        }
        false
    }

    /// Takes a sealed datagram, or one of a handshake. Returns how many more are held, and what is
    /// to be sent to where it came from.
    pub fn deliver_sealed(
        &mut self,
        qp: &mut Qp,
        core: &mut Core,
        arrival: &Arrival<'_>,
        (look, now): (u64, Instant),
    ) -> (usize, Option<Reply>) {
        core.stats.add(Counter::UdpRxDatagrams, 1);
        let len = arrival.bytes.len() as u64;
        core.stats.add(Counter::UdpRxBytes, len);
        self.record_arrival(arrival);
        if is_handshake(arrival.bytes) {
            return (0, self.take_handshake(core, arrival, now));
        }
        let (Some(secured), Some(own)) = (&mut self.secured, arrival.to) else {
            core.stats.add(Counter::Drops, 1);
            return (0, None);
        };
        let mut scratch = std::mem::take(&mut secured.scratch);
        scratch.clear();
        scratch.extend_from_slice(arrival.bytes);
        let opened = secured.associations.open(arrival.from, own, &mut scratch);
        let (held, reply) = match opened {
            Ok((text, peer_qpn)) if is_between(text, peer_qpn, qp.qpn()) => {
                let arrival = Arrival {
                    bytes: text,
                    ..*arrival
                };
                (self.hand_over(qp, core, &arrival, look), None)
            }
            outcome => {
                core.stats.add(Counter::Drops, 1);
                match outcome {
                    Err(Ignored::Unknown(reply)) => (0, Some(reply)),
                    _ => (0, None),
                }
            }
        };
        if let Some(secured) = &mut self.secured {
            secured.scratch = scratch;
        }
        (held, reply)
    }

    fn take_handshake(
        &mut self,
        core: &Core,
        arrival: &Arrival<'_>,
        now: Instant,
    ) -> Option<Reply> {
        let handshake = Handshake::parse(arrival.bytes).ok();
        let handshake = handshake.filter(|it| is_port_of(arrival.from, it.src_qpn));
        let (Some(handshake), Some(own)) = (handshake, arrival.to) else {
            core.stats.add(Counter::Drops, 1);
            return None;
        };
        let from = arrival.from;
        let Some(secured) = &mut self.secured else {
            core.stats.add(Counter::Drops, 1);
            return handshake.step.begins().map(|_| Handshake {
                dst_qpn: handshake.src_qpn,
                src_qpn: handshake.dst_qpn,
                receiver: handshake.sender,
                sender: 0,
                step: Step::Refuse(Why::NotSecured),
            });
        };
        if secured.associations.asks_broker(own, from, &handshake) {
            match core.gate.judge(now, from, from, &handshake) {
                Verdict::Take => {}
                Verdict::Answer(reply) => return Some(reply),
                Verdict::Drop => {
                    core.stats.add(Counter::Drops, 1);
                    return None;
                }
            }
        }
        let taken = new_cookie().is_some_and(|cookie| {
            let ends = (own, from);
            let taken = secured
                .associations
                .on_handshake(now, ends, &handshake, cookie);
            taken.is_ok()
        });
        core.stats.add(Counter::Drops, u64::from(!taken));
        None
    }
}

impl Secured {
    /// Begins handshakes with peers for which something waits, as many as may be under way.
    fn begin_handshakes(&mut self, core: &Core, now: Instant) {
        while !self.associations.is_busy()
            && let Some((peer, to)) = self.waiting.next_unbegun()
        {
            if let Some(cookie) = new_cookie() {
                self.associations.begin(now, peer, to, cookie);
            } else {
                let lost = self.waiting.lose(&peer);
                core.stats.add(Counter::Drops, lost as u64);
            }
        }
    }

    /// Tells people of a peer that there can be no association with: once, since all is repeated.
    fn tell(&mut self, peer: Peer, why: Why) {
        if !std::mem::replace(&mut self.told, true) {
            let qpn = self.associations.qpn();
            not_secured::tell_of_datagrams(qpn, (peer.address, peer.qpn), why);
        }
    }
}

/// Whether a queue pair so numbered sends from there.
fn is_port_of(from: SocketAddr, qpn: u32) -> bool {
    Slot::of_qpn(qpn).map(Slot::port) == Some(from.port())
}

/// Whether what was sealed is a datagram between the queue pairs of its association.
fn is_between(datagram: &[u8], src_qpn: u32, dst_qpn: u32) -> bool {
    Datagram::parse(datagram)
        .is_ok_and(|(header, _)| (header.src_qpn, header.dst_qpn) == (src_qpn, dst_qpn))
}
