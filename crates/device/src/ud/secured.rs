//! Sealed datagrams of a UD queue pair, and the handshakes before them.
//!
//! A datagram to a peer that there is no association with yet waits for it ([`super::waiting`]).

use std::net::SocketAddr;
use std::sync::Arc;

use causeway_fabric::secure::phase_packets;
use causeway_identity::Slot;
use causeway_proto::Instant;
use causeway_proto::association::{Associations, Ignored, Letter, Peer};
use causeway_proto::group::Senders;
use causeway_proto::qp::Qp;
use causeway_proto::trp::PHASE_PACKETS;
use causeway_shm::Counter;
use causeway_wire::datagram::Datagram;
use causeway_wire::secure::{Handshake, SEALED_HEADER_LEN, Step, TAG_LEN, Why, is_handshake};

use super::waiting::Waiting;
use super::{Arrival, Batch, UdAnswer, UdAsk, UdLink};
use crate::broker_request::BrokerRequest;
use crate::clock::{earlier, unix_seconds};
use crate::core::Core;
use crate::gate::Verdict;
use crate::known_secrets::KnownSecrets;
use crate::not_secured;
use crate::udp::UdpWire;

/// What a UD queue pair has whose datagrams are sealed.
#[derive(Debug)]
pub(super) struct Secured {
    pub(super) associations: Associations,
    /// What seals its datagrams to groups.
    pub(super) senders: Senders,
    /// What the endpoint knows of their secrets.
    pub(super) known_secrets: Arc<KnownSecrets>,
    pub(super) waiting: Waiting,
    /// What was received is opened here.
    scratch: Vec<u8>,
    /// The broker thread is to ask for associations.
    asked: bool,
    /// There are secrets of a group that were not there before.
    pub(super) news: bool,
    /// Datagrams that are lost, and not counted yet.
    pub(super) lost: usize,
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
    /// Of a queue pair whose datagrams are to be sealed, to groups by these secrets, or not.
    pub fn new(qpn: u32, secured: Option<Arc<KnownSecrets>>) -> Self {
        let packets = || phase_packets().unwrap_or(PHASE_PACKETS);
        UdLink {
            secured: secured.map(|known_secrets| {
                Box::new(Secured {
                    associations: Associations::new(qpn, packets()),
                    senders: Senders::new(qpn, packets()),
                    known_secrets,
                    waiting: Waiting::default(),
                    scratch: Vec::new(),
                    asked: false,
                    news: false,
                    lost: 0,
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
        self.secured.as_ref()?.deadline()
    }

    /// What the broker thread is to ask of the broker for it.
    pub fn broker_request(&mut self, qpn: u32) -> Option<BrokerRequest> {
        let secured = self.secured.as_mut()?;
        let has_ask = secured.associations.has_ask() || secured.senders.keyring().has_ask();
        let asks = has_ask && !std::mem::replace(&mut secured.asked, true);
        asks.then_some(BrokerRequest::Associate(qpn))
    }

    /// What it is to ask next.
    pub fn take_ask(&mut self) -> Option<UdAsk> {
        let secured = self.secured.as_mut()?;
        let of_peer = secured.associations.take_ask().map(UdAsk::Peer);
        let of_group = || secured.senders.keyring().take_ask().map(UdAsk::Group);
        let ask = of_peer.or_else(of_group);
        secured.asked = ask.is_some();
        ask
    }

    /// What the broker has said to that. An earlier link of the same queue pair may have asked.
    pub fn told(&mut self, ask: &UdAsk, answer: UdAnswer) {
        let Some(secured) = &mut self.secured else {
            return;
        };
        match (ask, answer) {
            (UdAsk::Peer(ask), UdAnswer::Peer(outcome)) => secured.associations.told(ask, outcome),
            (UdAsk::Group(ask), UdAnswer::Group(keys)) => secured.told_of_group(ask, keys),
            _ => {}
        }
    }

    /// Repeats what peers have not answered, and loses what has waited for long.
    pub(super) fn repeat_handshakes(&mut self, core: &Core, now: Instant) {
        let Some(secured) = &mut self.secured else {
            return;
        };
        let lost = secured.repeat_handshakes(now);
        core.stats.add(Counter::Drops, lost as u64);
    }

    /// Sends handshake datagrams, and what has waited for associations that there are now.
    pub(super) fn go_on_with_handshakes(
        &mut self,
        wire: &mut UdpWire,
        core: &Core,
        rank: usize,
        now: Instant,
    ) {
        let Some(secured) = &mut self.secured else {
            return;
        };
        let time = unix_seconds();
        let taken = secured.take_ready(time);
        // Before the letters are sent: it may write some.
        let lost = secured.begin_handshakes(now) + std::mem::take(&mut secured.lost);
        core.stats.add(Counter::Drops, lost as u64);
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
        let mut ready = Vec::new();
        for (peer, batch, mut bytes) in taken {
            if secured.seal_as(&peer, &mut bytes, time) {
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
        if batch.dst.ip().is_multicast() {
            let (sealed, lost) = secured.seal_to_group(datagram, batch, now);
            core.stats.add(Counter::Drops, lost as u64);
            return sealed;
        }
        let peer = Peer {
            own: batch.src,
            address: batch.dst.ip(),
            qpn,
        };
        if secured.associations.is_ready(&peer) {
            let sealed = secured.associations.seal(&peer, datagram);
            core.stats.add(Counter::Drops, u64::from(!sealed));
            return sealed;
        }
        let lost = secured.waiting.push(now, peer, *batch, datagram);
        let lost = lost + secured.begin_handshakes(now);
        core.stats.add(Counter::Drops, lost as u64);
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
            let busy = !secured.associations.may_ask();
            match core.gate.judge(now, (from, from), &handshake, busy) {
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
    /// Takes what has waited for associations, or secrets of groups, that there are now.
    pub(super) fn take_ready(&mut self, time: u32) -> Vec<(Peer, Batch, Vec<u8>)> {
        let news = std::mem::take(&mut self.news);
        if !self.associations.take_news() && !news {
            return Vec::new();
        }
        let is_ready = |peer: &Peer| match peer.address.is_multicast() {
            true => self.senders.is_ready(peer.address, time),
            false => self.associations.is_ready(peer),
        };
        self.waiting.take_ready(is_ready)
    }

    fn deadline(&self) -> Option<Instant> {
        earlier(self.associations.deadline(), self.waiting.deadline())
    }

    /// Repeats what peers have not answered, and lets others have their turn. Returns how many
    /// datagrams are lost, since they have waited for long.
    fn repeat_handshakes(&mut self, now: Instant) -> usize {
        let lost = self.waiting.lose_old(now);
        let others = self.waiting.unbegun();
        for peer in self.associations.on_timer(now, others) {
            self.waiting.wait_for_turn(&peer);
        }
        lost + self.begin_handshakes(now)
    }

    /// Begins handshakes with peers for which something waits, as many as may be under way. Returns
    /// how many datagrams are lost, since there is no cookie for them.
    fn begin_handshakes(&mut self, now: Instant) -> usize {
        let mut lost = 0;
        while !self.associations.is_busy()
            && let Some((peer, to)) = self.waiting.next_unbegun()
        {
            // A group's secrets are asked for when something is sent to it.
            if peer.address.is_multicast() {
                continue;
            }
            if let Some(cookie) = new_cookie() {
                self.associations.begin(now, peer, to, cookie);
            } else {
                lost += self.waiting.lose(&peer);
            }
        }
        lost
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use causeway_proto::association::{BEGUN_MAX, GIVE_UP_AFTER, Outcome};
    use causeway_proto::trp::Turn;

    use super::*;

    const T0: Instant = Instant(1_000_000_000_000);
    const LEN: usize = 100;
    /// How soon a peer behind silent ones has its turn.
    const TURN_WITHIN: Duration = Duration::from_secs(1);

    fn peer(n: usize) -> Peer {
        Peer {
            own: Ipv4Addr::LOCALHOST.into(),
            address: Ipv4Addr::from(0x0A00_0000 + n as u32).into(),
            qpn: 0x1001,
        }
    }

    fn secured() -> Secured {
        let link = UdLink::new(0x2001, Some(Arc::default()));
        *link.secured.expect("it is to be secured")
    }

    /// Posts a datagram to a peer. Returns how many are lost.
    fn post(it: &mut Secured, now: Instant, n: usize) -> usize {
        let batch = Batch {
            dst: SocketAddr::new(peer(n).address, 20482),
            src: peer(n).own,
            class: 0,
            segment: LEN,
            may_fragment: false,
            rank: 0,
        };
        it.waiting.push(now, peer(n), batch, &[0; LEN]) + it.begin_handshakes(now)
    }

    /// A broker begins all that it is asked to. Returns the peers that are sent something.
    fn serve(it: &mut Secured) -> Vec<Peer> {
        while let Some(ask) = it.associations.take_ask() {
            assert_eq!(ask.turn, Turn::Begin);
            let message = ask.cookie.to_ne_bytes().to_vec();
            it.associations.told(&ask, Outcome::Begun(message));
        }
        let letters = std::iter::from_fn(|| it.associations.next_letter());
        let to_peer = |letter: Letter| Peer {
            own: letter.from,
            address: letter.to.ip(),
            qpn: 0x1001,
        };
        letters.map(to_peer).collect()
    }

    #[test]
    fn a_live_peer_behind_silent_ones_has_its_turn_soon() {
        let mut it = secured();
        let live = BEGUN_MAX + 44;
        for n in 0..=live {
            assert_eq!(post(&mut it, T0, n), 0);
        }
        let mut sent = serve(&mut it);
        while !sent.contains(&peer(live)) {
            let now = it.deadline().expect("handshakes are repeated");
            assert!(now <= T0 + TURN_WITHIN);
            assert_eq!(it.repeat_handshakes(now), 0);
            sent.extend(serve(&mut it));
        }
        assert!((0..=live).all(|n| sent.contains(&peer(n))));
    }

    #[test]
    fn every_line_ends_at_its_age_and_is_counted_once() {
        let mut it = secured();
        let all = 16 * BEGUN_MAX;
        for n in 0..all {
            assert_eq!(post(&mut it, T0, n), 0);
        }
        assert_eq!(post(&mut it, T0, all), 1, "there are as many as may be");
        let mut sent = std::collections::HashSet::new();
        let mut now = T0;
        let mut lost = 0;
        while let Some(at) = it.deadline() {
            sent.extend(serve(&mut it));
            assert!(at > now);
            now = at;
            lost += it.repeat_handshakes(now);
            let (before, wait) = (now < T0 + GIVE_UP_AFTER, it.waiting.deadline());
            assert_eq!(
                (lost, wait.is_some()),
                if before { (0, true) } else { (all, false) }
            );
        }
        assert_eq!(sent.len(), all, "each had a turn");
        assert_eq!(post(&mut it, now, all), 0);
    }
}
