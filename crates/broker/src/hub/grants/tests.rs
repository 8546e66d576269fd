//! What is granted to which endpoint, and when it is stale.

use std::time::Instant;

use causeway_fabric::fds::{private_memfd, sealed_memfd};
use causeway_fabric::limits::{RESTORE_GRACE, SEGMENTS_PER_ENDPOINT_MAX};
use causeway_fabric::services::{ConnectBody, PeerChange, RestoreRequest, Wire};

use causeway_identity::Access;

use super::*;
use crate::pairing::Decision;
use crate::rings::RING_BYTES;
use crate::testing::{NETNS, endpoint, qpn};

const READ: u32 = Access::REMOTE_READ.bits();
const WRITE: u32 = Access::REMOTE_WRITE.bits();
const ATOMIC: u32 = Access::REMOTE_ATOMIC.bits();
/// Two users that are neither root nor the broker's.
const ALICE: u32 = 4001;
const BOB: u32 = 4002;
const PD: u32 = 7;

/// Two endpoints: the owner of segments (slot 1) and its peer (slot 2).
struct Pair {
    hub: Hub,
    owner: EndpointId,
    peer: EndpointId,
}

impl Pair {
    fn new(owner: u32, peer: u32) -> Pair {
        let mut hub = Hub::new();
        Pair {
            owner: endpoint(&mut hub, 1, owner, NETNS),
            peer: endpoint(&mut hub, 2, peer, NETNS),
            hub,
        }
    }

    /// Connects the owner's QP `index` with the peer's QP of this index.
    fn connect(&mut self, index: u32, pd: u32, access: u32) {
        connect(
            &mut self.hub,
            self.owner,
            qpn(1) + index,
            qpn(2) + index,
            pd,
            access,
        );
        connect(
            &mut self.hub,
            self.peer,
            qpn(2) + index,
            qpn(1) + index,
            0,
            0,
        );
    }

    fn segment(&mut self, writable: bool) -> u64 {
        let request = CreateSegmentRequest {
            pd: PD,
            writable,
            inside: false,
        };
        self.hub.create_segment(self.owner, &request).unwrap().0
    }

    /// What the peer gets through its QP `index`: whether it may write.
    fn map(&mut self, index: u32, segment: u64) -> Result<bool, Errno> {
        let local_qpn = qpn(2) + index;
        let request = MapRequest { local_qpn, segment };
        let (fd, writable) = self.hub.map_segment(self.peer, &request)?;
        let way = rustix::fs::fcntl_getfl(&fd).unwrap() & rustix::fs::OFlags::ACCMODE;
        assert_eq!(way == rustix::fs::OFlags::RDWR, writable);
        Ok(writable)
    }

    fn stale(&mut self) -> Vec<u64> {
        self.hub.take_stale_of(self.owner)
    }
}

fn connect(hub: &mut Hub, id: EndpointId, local: u32, remote: u32, pd: u32, access: u32) -> u64 {
    let body = ConnectBody {
        local_qpn: local,
        remote_qpn: remote,
        pd,
        access,
        ..Default::default()
    };
    match hub.connect(id, &body).unwrap() {
        Decision::Ring { generation, .. } => generation,
        other => panic!("not a ring: {other:?}"),
    }
}

#[test]
fn the_owners_flags_decide_what_is_granted() {
    let refused = Err(Errno::ACCESS);
    let cases = [
        (0, refused, refused),
        (READ, Ok(false), Ok(false)),
        (WRITE, Ok(true), refused),
        (ATOMIC, Ok(true), refused),
        (READ | WRITE, Ok(true), Ok(false)),
        (READ | ATOMIC, Ok(true), Ok(false)),
        (1 | 1 << 20, refused, refused),
    ];
    for (access, writable, readable) in cases {
        let mut pair = Pair::new(ALICE, BOB);
        pair.connect(1, PD, access);
        let (open, closed) = (pair.segment(true), pair.segment(false));
        assert_eq!(pair.map(1, open), writable, "{access:#x}");
        assert_eq!(pair.map(1, closed), readable, "{access:#x}");
    }
}

#[test]
fn reading_only_is_granted_to_those_whom_it_binds_or_who_are_trusted() {
    for (owner, peer, own, outcome) in [
        (ALICE, BOB, 0, Ok(false)),
        (ALICE, 0, 0, Err(Errno::PERM)),
        (ALICE, 0, BOB, Err(Errno::PERM)),
        (ALICE, BOB, BOB, Err(Errno::PERM)),
        (ALICE, BOB, ALICE, Ok(false)),
        (0, 0, 0, Ok(false)),
        (BOB, BOB, BOB, Ok(false)),
        (0, BOB, 0, Ok(false)),
    ] {
        let mut pair = Pair::new(owner, peer);
        let segment = pair.segment(true);
        pair.connect(1, PD, READ);
        pair.connect(2, PD, WRITE);
        pair.hub.own_uid = own;
        assert_eq!(pair.map(1, segment), outcome, "{owner} {peer} {own}");
        assert_eq!(pair.map(2, segment), Ok(true));
    }
}

#[test]
fn only_a_joined_ring_of_ones_own_leads_to_a_segment() {
    let mut pair = Pair::new(ALICE, BOB);
    let segment = pair.segment(true);
    assert_eq!(pair.map(1, segment), Err(Errno::NOTCONN));
    // The owner waits for the peer, or the peer for the owner: not joined yet.
    connect(&mut pair.hub, pair.owner, qpn(1) + 1, qpn(2) + 1, PD, WRITE);
    assert_eq!(pair.map(1, segment), Err(Errno::NOTCONN));
    connect(&mut pair.hub, pair.peer, qpn(2) + 2, qpn(1) + 2, PD, WRITE);
    assert_eq!(pair.map(2, segment), Err(Errno::NOTCONN));
    connect(&mut pair.hub, pair.peer, qpn(2) + 1, qpn(1) + 1, 0, 0);
    assert_eq!(pair.map(1, segment), Ok(true));
    // A third endpoint that knows all numbers.
    let third = endpoint(&mut pair.hub, 3, BOB, NETNS);
    for local_qpn in [qpn(2) + 1, qpn(1) + 1, qpn(3)] {
        let request = MapRequest { local_qpn, segment };
        let outcome = pair
            .hub
            .map_segment(third, &request)
            .map(|granted| granted.1);
        assert_eq!(outcome, Err(Errno::NOTCONN));
    }
    assert_eq!(pair.hub.destroy_segment(third, segment), Err(Errno::NOENT));
    // Another protection domain; no such segment; one of the peer's own.
    pair.connect(3, PD + 1, WRITE);
    assert_eq!(pair.map(3, segment), Err(Errno::ACCESS));
    assert_eq!(pair.map(1, segment ^ 1), Err(Errno::NOENT));
    let request = CreateSegmentRequest {
        pd: 0,
        writable: true,
        inside: false,
    };
    let own = pair.hub.create_segment(pair.peer, &request).unwrap().0;
    assert_eq!(pair.map(1, own), Err(Errno::NOENT));
    pair.hub.destroy_segment(pair.owner, segment).unwrap();
    assert_eq!(pair.map(1, segment), Err(Errno::NOENT));
}

#[test]
fn the_end_of_the_last_entitling_ring_makes_what_was_granted_stale() {
    let mut pair = Pair::new(ALICE, BOB);
    let (held, other) = (pair.segment(true), pair.segment(true));
    pair.connect(1, PD, WRITE);
    pair.connect(2, PD, WRITE);
    pair.connect(3, PD + 1, WRITE);
    assert_eq!(pair.map(1, held), Ok(true));
    pair.hub.disconnect(pair.owner, qpn(1) + 1);
    assert_eq!(pair.stale(), [0u64; 0], "another QP entitles it");
    pair.hub.disconnect(pair.peer, qpn(2) + 2);
    assert_eq!(pair.stale(), [held]);
    pair.connect(1, PD, WRITE);
    assert_eq!(pair.map(1, held), Err(Errno::NOENT), "never again");
    assert_eq!(pair.map(1, other), Ok(true));
    pair.hub.disconnect(pair.owner, qpn(1) + 1);
    assert_eq!(pair.stale(), [other], "and each is told of once");
}

#[test]
fn connecting_again_ends_what_was_before() {
    let mut pair = Pair::new(ALICE, BOB);
    let segment = pair.segment(true);
    pair.connect(1, PD, WRITE);
    assert_eq!(pair.map(1, segment), Ok(true));
    connect(&mut pair.hub, pair.owner, qpn(1) + 1, qpn(2) + 9, PD, WRITE);
    assert_eq!(pair.stale(), [segment]);
}

#[test]
fn reduced_access_makes_stale_what_it_no_longer_covers() {
    let both = READ | WRITE;
    for (granted_by, left, is_stale) in [
        (both, READ, true),
        (both, WRITE, false),
        (both, ATOMIC, false),
        (both, 0, true),
        (READ, both, false),
        (READ, WRITE, false),
        (READ, 0, true),
    ] {
        let mut pair = Pair::new(ALICE, BOB);
        let segment = pair.segment(true);
        pair.connect(1, PD, granted_by);
        pair.map(1, segment).unwrap();
        pair.hub.set_access(pair.owner, qpn(1) + 1, left);
        assert_eq!(!pair.stale().is_empty(), is_stale, "{granted_by} to {left}");
    }
    // What may be read only does not care for the right to write.
    let mut pair = Pair::new(ALICE, BOB);
    let segment = pair.segment(false);
    pair.connect(1, PD, both);
    assert_eq!(pair.map(1, segment), Ok(false));
    pair.hub.set_access(pair.owner, qpn(1) + 1, READ);
    assert_eq!(pair.stale(), [0u64; 0]);
    pair.hub.set_access(pair.owner, qpn(1) + 1, WRITE);
    assert_eq!(pair.stale(), [segment]);
    // An endpoint that is not connected, or not the owner of the QP, changes nothing.
    pair.hub.set_access(pair.owner, qpn(1) + 5, 0);
    pair.hub.set_access(pair.peer, qpn(1) + 1, 0);
}

#[test]
fn one_users_processes_hold_what_they_like() {
    let mut pair = Pair::new(ALICE, ALICE);
    let segment = pair.segment(true);
    pair.connect(1, PD, WRITE);
    assert_eq!(pair.map(1, segment), Ok(true));
    pair.hub.disconnect(pair.owner, qpn(1) + 1);
    assert_eq!(pair.stale(), [0u64; 0]);
    pair.connect(1, PD, WRITE);
    assert_eq!(pair.map(1, segment), Ok(true));
    assert!(pair.hub.detach(pair.owner, PeerChange::Dead).is_empty());
}

#[test]
fn death_counts_as_the_end_of_every_ring() {
    let mut pair = Pair::new(ALICE, BOB);
    let segment = pair.segment(true);
    pair.connect(1, PD, WRITE);
    pair.map(1, segment).unwrap();
    pair.hub.detach(pair.peer, PeerChange::Dead);
    assert_eq!(pair.hub.take_stale(), [(pair.owner, segment)]);
    // The owner's: what a peer may hold is to be emptied, and nobody is told.
    let mut pair = Pair::new(ALICE, BOB);
    let (held, _) = (pair.segment(true), pair.segment(true));
    pair.connect(1, PD, WRITE);
    pair.map(1, held).unwrap();
    assert_eq!(pair.hub.detach(pair.owner, PeerChange::Dead).len(), 1);
    assert_eq!(pair.hub.take_stale(), []);
}

#[test]
fn segments_are_limited_and_named() {
    let mut pair = Pair::new(ALICE, BOB);
    let first = pair.segment(true);
    for _ in 1..SEGMENTS_PER_ENDPOINT_MAX {
        assert_ne!(pair.segment(false), 0);
    }
    let request = CreateSegmentRequest {
        pd: PD,
        writable: true,
        inside: false,
    };
    let refused = pair.hub.create_segment(pair.owner, &request);
    assert_eq!(refused.map(drop), Err(Errno::DQUOT));
    pair.hub.destroy_segment(pair.owner, first).unwrap();
    pair.segment(true);
}

/// A segment as an endpoint keeps it over a restart.
fn kept() -> OwnedFd {
    private_memfd("kept", SEGMENT_BYTES).unwrap()
}

fn presented(segment: u64) -> RestoreSegmentRequest {
    RestoreSegmentRequest {
        segment,
        pd: PD,
        writable: true,
        inside: false,
    }
}

#[test]
fn only_what_a_broker_made_is_restored() {
    let mut pair = Pair::new(ALICE, BOB);
    let mut restore = |name, fd| pair.hub.restore_segment(pair.owner, &presented(name), fd);
    let refused = Err(Errno::INVAL);
    let short = private_memfd("short", SEGMENT_BYTES / 2).unwrap();
    assert_eq!(restore(1, short), refused);
    assert_eq!(
        restore(1, sealed_memfd("mode", SEGMENT_BYTES).unwrap()),
        refused
    );
    assert_eq!(restore(1, crate::testing::descriptor()), refused);
    // One that was granted for reading, to be traded for one to write.
    assert_eq!(restore(1, reopen(kept(), false).unwrap()), refused);
    assert_eq!(restore(0, kept()), refused);
    assert_eq!(restore(1, kept()), Ok(()));
    assert_eq!(restore(1, kept()), Err(Errno::EXIST));
    pair.hub.own_uid += 1;
    let foreign = pair.hub.restore_segment(pair.owner, &presented(2), kept());
    assert_eq!(foreign, refused, "another user's");
    let table = crate::guest_tables::new_table(None).unwrap();
    assert_eq!(pair.hub.check_table(&table), refused);
    pair.hub.own_uid -= 1;
    assert_eq!(pair.hub.check_table(&table), Ok(()));
    assert_eq!(pair.hub.check_table(&kept()), refused);
}

fn half(local: u32, remote: u32, side: u8, access: u32) -> RestoreRequest {
    RestoreRequest {
        local_qpn: local,
        remote_qpn: remote,
        wire: Wire::Ring,
        side,
        generation: 5,
        pd: PD,
        access,
        ..Default::default()
    }
}

impl Pair {
    /// As [`Pair::new`], of a broker that was restarted: the owner has presented segment 1 and
    /// its half of ring 5, with the ring if its peer is not known to have joined it.
    fn restored(trusted: bool, ring: bool, now: Instant) -> Pair {
        let mut pair = Pair::new(ALICE, BOB);
        pair.hub
            .restore_segment(pair.owner, &presented(1), kept())
            .unwrap();
        let half = RestoreRequest {
            trusted,
            ..half(qpn(1), qpn(2), 0, READ | WRITE)
        };
        let ring = ring.then(|| sealed_memfd("ring", RING_BYTES).unwrap());
        pair.hub.restore(pair.owner, &half, ring, now).unwrap();
        pair
    }
}

#[test]
fn after_a_restart_a_peer_that_returns_is_taken_for_a_holder() {
    let now = Instant::now();
    let mut pair = Pair::restored(false, false, now);
    let half = half(qpn(2), qpn(1), 1, 0);
    pair.hub.restore(pair.peer, &half, None, now).unwrap();
    assert_eq!(pair.map(0, 1), Ok(true));
    pair.hub.disconnect(pair.peer, qpn(2));
    assert_eq!(pair.stale(), [1]);

    let mut pair = Pair::restored(false, false, now);
    pair.hub.restore(pair.peer, &half, None, now).unwrap();
    pair.hub.set_access(pair.owner, qpn(1), READ);
    assert_eq!(pair.stale(), [1], "it asked this broker for nothing");

    // One user's: what the owner says of its peer matters until the peer is here.
    let mut pair = Pair::restored(true, false, now);
    pair.hub.restore(pair.peer, &half, None, now).unwrap();
    pair.hub.disconnect(pair.owner, qpn(1));
    assert_eq!(pair.stale(), [1]);
}

#[test]
fn after_a_restart_a_peer_that_does_not_return_is_taken_for_a_holder() {
    let now = Instant::now();
    let mut pair = Pair::restored(false, false, now);
    pair.hub.expire(now + RESTORE_GRACE);
    assert_eq!(pair.stale(), [1]);
    let told: Vec<_> = pair
        .hub
        .take_outbox()
        .into_iter()
        .map(|t| t.1.change)
        .collect();
    assert_eq!(told, [PeerChange::Dead]);

    let mut pair = Pair::restored(false, false, now);
    pair.hub.disconnect(pair.owner, qpn(1));
    assert_eq!(pair.stale(), [1]);

    let mut pair = Pair::restored(false, false, now);
    pair.hub.set_access(pair.owner, qpn(1), WRITE);
    assert_eq!(pair.stale(), [0u64; 0], "whoever may write may read");
    pair.hub.set_access(pair.owner, qpn(1), READ);
    assert_eq!(pair.stale(), [1]);

    let mut pair = Pair::restored(true, false, now);
    pair.hub.expire(now + RESTORE_GRACE);
    assert_eq!(pair.stale(), [0u64; 0], "a process of the owner's user");
}

#[test]
fn after_a_restart_a_peer_that_connects_anew_is_taken_for_a_holder() {
    let now = Instant::now();
    for late in [false, true] {
        let mut pair = Pair::restored(false, true, now);
        if late {
            pair.hub.expire(now + RESTORE_GRACE);
        }
        assert_eq!(connect(&mut pair.hub, pair.peer, qpn(2), qpn(1), 0, 0), 5);
        pair.hub.disconnect(pair.peer, qpn(2));
        assert_eq!(pair.stale(), [1]);
    }
}

/// splitmix64
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((mixed ^ (mixed >> 27)) >> 7) % bound
    }
}

/// What each endpoint may hold of another's segments, by a count of all rings.
fn rights_recounted(hub: &Hub) -> std::collections::HashMap<(EndpointId, EndpointId, u32), Rights> {
    let mut found = std::collections::HashMap::new();
    for pairing in hub.pairings.values() {
        let [End::Joined(a, a_qpn), End::Joined(b, b_qpn)] = pairing.ends else {
            continue;
        };
        for (owner, qpn, peer) in [(a, a_qpn, b), (b, b_qpn, a)] {
            let link = &hub.endpoints[&owner].links[&qpn];
            let rights: &mut Rights = found.entry((owner, peer, link.pd)).or_default();
            rights.add(Rights::of(link.access));
        }
    }
    found
}

fn check_tables(hub: &Hub) {
    let expected = rights_recounted(hub);
    let mut entries = 0;
    for (&owner, endpoint) in &hub.endpoints {
        for (&(peer, pd), rights) in &endpoint.rights {
            assert_eq!(expected.get(&(owner, peer, pd)), Some(rights));
            entries += 1;
        }
        for segment in endpoint.segments.values() {
            assert!(!segment.stale || segment.holders.is_empty());
            for (&peer, &right) in &segment.holders {
                let rights = expected[&(owner, peer, segment.pd)];
                assert!(rights.to(segment.writable) >= Some(right));
                assert_ne!(endpoint.uid, hub.endpoints[&peer].uid);
            }
        }
    }
    assert_eq!(entries, expected.len(), "and no others");
}

/// A history of three endpoints, two of them of one user.
struct History {
    random: Random,
    hub: Hub,
    /// Each endpoint, its slot and its user.
    there: [(EndpointId, u16, u32); 3],
    /// What was granted and of which nobody has been told that it is stale.
    granted: std::collections::BTreeSet<(EndpointId, u64)>,
}

impl History {
    fn new() -> History {
        let mut hub = Hub::new();
        let there = [(1, ALICE), (2, BOB), (3, BOB)]
            .map(|(slot, user)| (endpoint(&mut hub, slot, user, NETNS), slot, user));
        History {
            random: Random(9),
            hub,
            there,
            granted: Default::default(),
        }
    }

    fn one(&mut self) -> usize {
        self.random.below(3) as usize
    }

    fn step(&mut self) {
        let who = self.one();
        let (id, slot, user) = self.there[who];
        let local = qpn(slot.into()) + self.random.below(2) as u32;
        let access = self.random.below(16) as u32;
        match self.random.below(32) {
            0 => {
                drop(self.hub.detach(id, PeerChange::Dead));
                self.granted.retain(|(owner, _)| *owner != id);
                self.there[who].0 = endpoint(&mut self.hub, slot, user, NETNS);
            }
            1..=3 => self.hub.disconnect(id, local),
            4..=6 => self.hub.set_access(id, local, access),
            7..=9 => {
                let (pd, writable) = (self.random.below(2) as u32, self.random.below(2) == 0);
                let request = CreateSegmentRequest {
                    pd,
                    writable,
                    inside: false,
                };
                self.hub.create_segment(id, &request).unwrap();
            }
            10..=20 => self.map_all(id, local),
            _ => self.connect(id, local, access),
        }
    }

    /// Maps all that it can of the endpoint at the other end.
    fn map_all(&mut self, id: EndpointId, local_qpn: u32) {
        let Ok((owner, _)) = self.hub.joined_peer(id, local_qpn) else {
            return;
        };
        let names: Vec<u64> = self.hub.endpoints[&owner]
            .segments
            .keys()
            .copied()
            .collect();
        for segment in names {
            let request = MapRequest { local_qpn, segment };
            if self.hub.map_segment(id, &request).is_ok() {
                self.granted.insert((owner, segment));
            }
        }
    }

    /// Connects a QP with one of anybody's, which mostly connects back.
    fn connect(&mut self, id: EndpointId, local: u32, access: u32) {
        let (other, slot, _) = self.there[self.one()];
        let remote = qpn(slot.into()) + self.random.below(2) as u32;
        let back = self.random.below(16) as u32;
        for (id, local, remote, access) in
            [(id, local, remote, access), (other, remote, local, back)]
        {
            let body = ConnectBody {
                local_qpn: local,
                remote_qpn: remote,
                pd: self.random.below(2) as u32,
                access,
                ..Default::default()
            };
            self.hub.connect(id, &body).unwrap();
            if self.random.below(4) == 0 {
                break;
            }
        }
    }
}

#[test]
fn whoever_holds_a_segment_is_entitled_or_the_owner_is_told() {
    let mut history = History::new();
    let mut told = 0;
    for _ in 0..3000 {
        history.step();
        for (owner, segment) in history.hub.take_stale() {
            let granted = history.granted.remove(&(owner, segment));
            assert!(granted, "only what was granted, and once");
            history.hub.destroy_segment(owner, segment).unwrap();
            told += 1;
        }
        history.hub.take_outbox();
        check_tables(&history.hub);
    }
    assert!(told > 50, "{told}: the history is too dull");
}

mod inside;
mod machines;
