//! Sealed datagrams of a UD queue pair to multicast groups ([`causeway_proto::group`]).
//!
//! A datagram to a group whose secrets are not known waits for them, as one to a peer does for an
//! association.

use std::net::{IpAddr, SocketAddr};

use causeway_identity::QPN_MULTICAST;
use causeway_proto::Instant;
use causeway_proto::association::{Ask, Outcome, Peer};
use causeway_proto::group::{CLOCK_TOLERANCE, GroupAsk, GroupKey, SALT_LEN, epoch_of};
use causeway_wire::group::GROUP_HEADER_LEN;
use causeway_wire::secure::SEALED_HEADER_LEN;

use super::secured::Secured;
use super::{Batch, UdLink};
use crate::clock::unix_seconds;

/// What a UD queue pair asks of the broker.
pub(crate) enum UdAsk {
    /// A message of a handshake with a peer.
    Peer(Ask),
    /// The secrets of a group.
    Group(GroupAsk),
}

/// What the broker has said to that.
pub(crate) enum UdAnswer {
    /// About a handshake.
    Peer(Outcome),
    /// The secrets of a group, if it has any.
    Group(Option<Vec<GroupKey>>),
}

fn new_salt() -> Option<[u8; SALT_LEN]> {
    let mut salt = [0; SALT_LEN];
    getrandom::fill(&mut salt).ok()?;
    Some(salt)
}

impl UdLink {
    /// Bytes more that sealing puts before a datagram to a group than before others.
    pub(super) fn more_overhead(&self, is_multicast: bool) -> usize {
        if is_multicast && self.secured.is_some() {
            GROUP_HEADER_LEN - SEALED_HEADER_LEN
        } else {
            0
        }
    }

    /// Whether what came for a group is taken, sealed or in the clear.
    pub fn takes_of_group(&mut self, sealed: bool, qpn: u32, from: SocketAddr) -> bool {
        if sealed {
            self.secured.is_some()
        } else {
            self.takes_plain(qpn, from)
        }
    }
}

impl Secured {
    /// Seals a datagram to a group. Returns whether it can be sent, and how many are lost: it may
    /// have to wait.
    pub(super) fn seal_to_group(
        &mut self,
        datagram: &mut [u8],
        batch: &Batch,
        now: Instant,
    ) -> (bool, usize) {
        let (time, peer) = (unix_seconds(), group_peer(batch));
        let epoch = epoch_of(time);
        if self.has_secrets(peer.address, epoch, time) {
            let next = epoch_of(time.saturating_add(CLOCK_TOLERANCE));
            if next != epoch && !self.has_secrets(peer.address, next, time) {
                // In time: what is sent in the next epoch does not wait.
                self.want(peer.address, next, time);
            }
            let sealed = self.seal_as(&peer, datagram, time);
            return (sealed, usize::from(!sealed));
        }
        let lost = self.waiting.push(now, peer, *batch, datagram);
        if self.want(peer.address, epoch, time) {
            return (false, lost);
        }
        (false, lost + self.waiting.lose_all_to(peer.address))
    }

    /// Seals a datagram to a peer, or to a group, that there are keys for.
    pub(super) fn seal_as(&mut self, peer: &Peer, datagram: &mut [u8], time: u32) -> bool {
        if peer.address.is_multicast() {
            let way = (peer.own, peer.address);
            self.senders.seal(way, datagram, time, new_salt)
        } else {
            self.associations.seal(peer, datagram)
        }
    }

    /// Whether the secrets of a group in an epoch are known, to it or to the endpoint.
    fn has_secrets(&mut self, group: IpAddr, epoch: u32, time: u32) -> bool {
        let (ask, keyring) = (GroupAsk { group, epoch }, self.senders.keyring());
        // What waits for an answer leaves in order, when that comes.
        if !keyring.is_ready(&ask)
            && !keyring.awaits(&ask)
            && let Some(keys) = self.known_secrets.of(&ask)
        {
            keyring.learn(ask, keys, time);
        }
        keyring.is_ready(&ask)
    }

    /// Has the broker asked for the secrets of a group. Returns false if it has refused them a
    /// moment ago.
    fn want(&mut self, group: IpAddr, epoch: u32, time: u32) -> bool {
        self.senders.keyring().want(GroupAsk { group, epoch }, time)
    }

    /// What the broker has said of a group's secrets.
    pub(super) fn told_of_group(&mut self, ask: &GroupAsk, keys: Option<Vec<GroupKey>>) {
        let (time, group) = (unix_seconds(), ask.group);
        self.senders.keyring().told(ask, keys);
        if self.senders.is_ready(group, time) {
            self.news = true;
        } else if epoch_of(time) == ask.epoch || !self.want(group, epoch_of(time), time) {
            // Else the epoch has ended meanwhile.
            self.lost += self.waiting.lose_all_to(group);
        }
    }
}

/// A group, as the peer of whoever sends to it.
fn group_peer(batch: &Batch) -> Peer {
    Peer {
        own: batch.src,
        address: batch.dst.ip(),
        qpn: QPN_MULTICAST,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use causeway_identity::MULTICAST_PORT;
    use causeway_proto::group::{GroupSecret, SECRET_LEN};
    use causeway_wire::group::{GROUP_OVERHEAD, is_group_sealed};

    use super::*;
    use crate::known_secrets::KnownSecrets;

    const T0: Instant = Instant(1_000_000_000_000);
    const LEN: usize = 100;

    fn batch(last: u8) -> Batch {
        Batch {
            dst: SocketAddr::new(Ipv4Addr::new(239, 1, 2, last).into(), MULTICAST_PORT),
            src: Ipv4Addr::LOCALHOST.into(),
            class: 0,
            segment: LEN + GROUP_OVERHEAD,
            may_fragment: false,
            rank: 0,
        }
    }

    fn secured(known: &Arc<KnownSecrets>) -> Secured {
        let link = UdLink::new(0x2001, Some(Arc::clone(known)));
        *link.secured.expect("it is to be secured")
    }

    fn keys() -> Vec<GroupKey> {
        vec![GroupKey {
            id: [1; 8],
            secret: GroupSecret::new([7; SECRET_LEN]),
        }]
    }

    /// Posts a datagram. Returns whether it leaves sealed, and how many are lost.
    fn post(it: &mut Secured, last: u8) -> (bool, usize) {
        let mut datagram = [0; LEN + GROUP_OVERHEAD];
        let (sealed, lost) = it.seal_to_group(&mut datagram, &batch(last), T0);
        assert_eq!(sealed, is_group_sealed(&datagram));
        (sealed, lost)
    }

    #[test]
    fn what_the_endpoint_knows_the_secrets_for_leaves_at_once() {
        let (known, time) = (Arc::default(), unix_seconds());
        let mut it = secured(&known);
        let group = batch(3).dst.ip();
        // The epoch may end while this runs.
        for epoch in epoch_of(time)..=epoch_of(time) + 1 {
            known.learn(GroupAsk { group, epoch }, keys(), time);
        }
        assert_eq!(post(&mut it, 3), (true, 0));
        assert!(!it.senders.keyring().has_ask());
    }

    #[test]
    fn what_is_sent_to_an_unknown_group_waits_until_the_broker_has_answered() {
        let mut it = secured(&Arc::default());
        assert_eq!([post(&mut it, 3), post(&mut it, 3)], [(false, 0); 2]);
        let ask = it.senders.keyring().take_ask().expect("it asks");
        assert!(it.take_ready(unix_seconds()).is_empty());
        for epoch in ask.epoch..=ask.epoch + 1 {
            let ask = GroupAsk { epoch, ..ask };
            it.senders.keyring().want(ask, unix_seconds());
            it.told_of_group(&ask, Some(keys()));
        }
        let mut ready = it.take_ready(unix_seconds());
        assert_eq!(ready.len(), 2);
        for (peer, _, bytes) in &mut ready {
            assert!(it.seal_as(peer, bytes, unix_seconds()));
            assert!(is_group_sealed(bytes));
        }
    }

    #[test]
    fn what_waits_is_lost_where_the_broker_has_no_secrets() {
        let mut it = secured(&Arc::default());
        assert_eq!([post(&mut it, 3), post(&mut it, 4)], [(false, 0); 2]);
        // Where an epoch ends meanwhile it asks again.
        while let Some(ask) = it.senders.keyring().take_ask() {
            it.told_of_group(&ask, None);
        }
        assert_eq!(it.lost, 2);
        assert!(it.take_ready(unix_seconds()).is_empty());
    }
}
