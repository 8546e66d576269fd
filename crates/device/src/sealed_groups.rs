//! Sealed datagrams that come for multicast groups ([`causeway_proto::group`]).
//!
//! One for which the secrets are not known waits until the broker has been asked: of each group
//! that is when it is joined, and when an epoch ends.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use causeway_proto::group::{GroupAsk, GroupKey, Receivers, Unopened};
use causeway_wire::datagram::Datagram;

use crate::ud::Arrival;

/// Bytes that may wait for secrets. What is beyond is lost, as the network may lose it.
const WAITING_MOST: usize = 1 << 20;

/// A datagram that waits for the secrets of its group.
#[derive(Debug)]
struct Waits {
    of: GroupAsk,
    from: SocketAddr,
    bytes: Vec<u8>,
}

/// What an endpoint knows of senders to its groups.
#[derive(Debug, Default)]
pub(crate) struct SealedGroups {
    receivers: Receivers,
    waiting: VecDeque<Waits>,
    waiting_bytes: usize,
    /// There may be secrets now that something waits for.
    news: bool,
    /// What was received is opened here.
    scratch: Vec<u8>,
}

impl SealedGroups {
    /// Opens what has come for a group. `f` gets it, or nothing if it is lost. It may wait for the
    /// broker to be asked ([`SealedGroups::has_ask`]).
    pub fn take(
        &mut self,
        group: IpAddr,
        arrival: &Arrival<'_>,
        time: u32,
        f: impl FnOnce(Option<&[u8]>),
    ) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.extend_from_slice(arrival.bytes);
        let ends = (arrival.from.ip(), group);
        match self.receivers.open(ends, &mut scratch, time) {
            Ok((text, qpn)) if is_of(text, qpn) => f(Some(text)),
            Err(Unopened::Unknown(of)) if self.wait(of, arrival, time) => {}
            _ => f(None),
        }
        self.scratch = scratch;
    }

    /// Has a datagram wait. Returns false if it is lost: there is no room, or the broker was asked
    /// a moment ago.
    fn wait(&mut self, of: GroupAsk, arrival: &Arrival<'_>, time: u32) -> bool {
        let len = arrival.bytes.len();
        let waits =
            self.receivers.keyring().want(of, time) && self.waiting_bytes + len <= WAITING_MOST;
        if waits {
            self.waiting_bytes += len;
            self.waiting.push_back(Waits {
                of,
                from: arrival.from,
                bytes: arrival.bytes.to_vec(),
            });
        }
        waits
    }

    /// Takes what has waited for what the broker has said meanwhile, as [`SealedGroups::take`]
    /// does.
    pub fn go_on(&mut self, time: u32, mut f: impl FnMut(IpAddr, &Arrival<'_>, Option<&[u8]>)) {
        if !std::mem::take(&mut self.news) {
            return;
        }
        self.waiting_bytes = 0;
        for waits in std::mem::take(&mut self.waiting) {
            let group = waits.of.group;
            let arrival = Arrival {
                from: waits.from,
                to: Some(group),
                bytes: &waits.bytes,
            };
            self.take(group, &arrival, time, |text| f(group, &arrival, text));
        }
    }

    /// The secrets of a group are known before anything has come for it.
    pub fn learn(&mut self, ask: GroupAsk, keys: Vec<GroupKey>, time: u32) {
        self.receivers.keyring().learn(ask, keys, time);
    }

    /// Whether the broker is to be asked something.
    pub fn has_ask(&mut self) -> bool {
        self.receivers.keyring().has_ask()
    }

    /// What it is to be asked next.
    pub fn take_ask(&mut self) -> Option<GroupAsk> {
        self.receivers.keyring().take_ask()
    }

    /// What it has said to that.
    pub fn told(&mut self, ask: &GroupAsk, keys: Option<Vec<GroupKey>>) {
        self.receivers.keyring().told(ask, keys);
        self.news = true;
    }
}

/// Whether what was sealed is a datagram of the queue pair that has sealed it.
fn is_of(datagram: &[u8], qpn: u32) -> bool {
    Datagram::parse(datagram).is_ok_and(|(header, _)| header.src_qpn == qpn)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use causeway_identity::QPN_MULTICAST;
    use causeway_proto::group::{
        EPOCH_SECONDS, GroupSecret, SALT_LEN, SECRET_LEN, Senders, epoch_of,
    };
    use causeway_wire::group::GROUP_HEADER_LEN;
    use causeway_wire::secure::TAG_LEN;

    use super::*;

    const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
    const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const QPN: u32 = 0x1001;
    const T0: u32 = 3_000_000 * EPOCH_SECONDS + EPOCH_SECONDS / 2;

    fn keys() -> Vec<GroupKey> {
        vec![GroupKey {
            id: [1; 8],
            secret: GroupSecret::new([7; SECRET_LEN]),
        }]
    }

    fn ask() -> GroupAsk {
        let epoch = epoch_of(T0);
        GroupAsk {
            group: GROUP,
            epoch,
        }
    }

    /// Datagrams of one sender, which says that it is another or not.
    fn sealed(src_qpn: u32, count: usize) -> Vec<Vec<u8>> {
        let header = Datagram {
            dst_qpn: QPN_MULTICAST,
            src_qpn,
            ..Datagram::default()
        };
        let header = header.emit().unwrap();
        let mut senders = Senders::new(QPN, 1 << 20);
        senders.keyring().learn(ask(), keys(), T0);
        let seal = |_| {
            let mut bytes = [
                &[0; GROUP_HEADER_LEN][..],
                &header,
                &[9; 100],
                &[0; TAG_LEN],
            ]
            .concat();
            let salt = || Some([src_qpn as u8; SALT_LEN]);
            assert!(senders.seal((OWN, GROUP), &mut bytes, T0, salt));
            bytes
        };
        (0..count).map(seal).collect()
    }

    /// What comes of a datagram: whether it was taken; `None` if it waits.
    fn take(it: &mut SealedGroups, bytes: &[u8]) -> Option<bool> {
        let from = SocketAddr::new(OWN, 20481);
        let to = Some(GROUP);
        let mut outcome = None;
        let arrival = Arrival { from, to, bytes };
        it.take(GROUP, &arrival, T0, |text| outcome = Some(text.is_some()));
        outcome
    }

    fn go_on(it: &mut SealedGroups) -> Vec<bool> {
        let mut outcomes = Vec::new();
        it.go_on(T0, |group, _, text| {
            assert_eq!(group, GROUP);
            outcomes.push(text.is_some());
        });
        outcomes
    }

    #[test]
    fn what_comes_before_the_secrets_waits_for_them_in_order() {
        let mut it = SealedGroups::default();
        let datagrams = sealed(QPN, 3);
        assert!(datagrams.iter().all(|bytes| take(&mut it, bytes).is_none()));
        assert!(go_on(&mut it).is_empty(), "nothing was told yet");
        assert!(it.has_ask());
        let ask = it.take_ask().unwrap();
        assert!(!it.has_ask(), "once for all");
        it.told(&ask, Some(keys()));
        assert_eq!(go_on(&mut it), [true; 3]);
        assert_eq!(take(&mut it, &datagrams[0]), Some(false), "replayed");
        assert_eq!(it.waiting_bytes, 0);
    }

    #[test]
    fn what_waits_is_lost_if_the_broker_says_nothing_and_beyond_its_bound() {
        let mut it = SealedGroups::default();
        let datagrams = sealed(QPN, 2 * WAITING_MOST / 200);
        let lost = datagrams
            .iter()
            .filter(|bytes| take(&mut it, bytes).is_some());
        let lost = lost.count();
        assert!(lost > 0 && it.waiting_bytes <= WAITING_MOST);
        let ask = it.take_ask().unwrap();
        it.told(&ask, None);
        assert_eq!(go_on(&mut it), vec![false; datagrams.len() - lost]);
        assert_eq!(it.waiting_bytes, 0);
    }

    #[test]
    fn a_datagram_is_of_who_has_sealed_it() {
        let mut it = SealedGroups::default();
        it.learn(ask(), keys(), T0);
        assert_eq!(take(&mut it, &sealed(QPN, 1)[0]), Some(true));
        assert_eq!(take(&mut it, &sealed(QPN + 1, 1)[0]), Some(false));
    }
}
