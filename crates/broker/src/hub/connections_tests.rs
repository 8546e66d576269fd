//! Restoration after a broker's restart, under a clock of the test's own.

use std::time::Duration;

use causeway_fabric::fds::sealed_memfd;
use causeway_fabric::limits::RETURN_GRACE;
use causeway_identity::Slot;

use super::*;
use crate::testing::{self, NETNS, qpn};

fn endpoint(hub: &mut Hub, slot: u16) -> EndpointId {
    endpoint_in(hub, slot, NETNS)
}

fn endpoint_in(hub: &mut Hub, slot: u16, netns: u64) -> EndpointId {
    testing::endpoint(hub, slot, 0, netns)
}

fn connect(hub: &mut Hub, id: EndpointId, local: u32, remote: u32) -> (u8, u64) {
    let body = ConnectBody {
        local_qpn: local,
        remote_qpn: remote,
        ..Default::default()
    };
    match hub.connect(id, &body).unwrap() {
        Decision::Ring {
            side, generation, ..
        } => (side, generation),
        other => panic!("not a ring: {other:?}"),
    }
}

fn half(local: u32, remote: u32, side: u8) -> RestoreRequest {
    RestoreRequest {
        local_qpn: local,
        remote_qpn: remote,
        wire: Wire::Ring,
        side,
        generation: 5,
        ..Default::default()
    }
}

fn ring() -> OwnedFd {
    sealed_memfd("ring", RING_BYTES).unwrap()
}

fn told(hub: &mut Hub) -> Vec<(EndpointId, PeerChange)> {
    hub.take_outbox()
        .into_iter()
        .map(|(to, event)| (to, event.change))
        .collect()
}

/// Nothing about rings is left once no QP is connected.
fn assert_empty(hub: &Hub) {
    assert!(hub.pairings.is_empty());
    for endpoint in hub.endpoints.values() {
        assert!(endpoint.links.is_empty() && endpoint.invitations.is_empty());
        assert_eq!(endpoint.open_rings, 0);
        assert!(endpoint.rights.is_empty());
    }
}

#[test]
fn no_ring_is_made_while_its_other_half_may_be_on_its_way() {
    let now = Instant::now();
    let body = ConnectBody {
        local_qpn: qpn(1),
        remote_qpn: qpn(2),
        ..Default::default()
    };
    let mut hub = Hub::new();
    let a = endpoint(&mut hub, 1);
    hub.note_return(now);
    assert!(matches!(hub.connect(a, &body), Err(Errno::AGAIN)));
    let b = endpoint(&mut hub, 2);
    assert!(matches!(hub.connect(a, &body), Err(Errno::AGAIN)));
    let presented = half(qpn(2), qpn(1), 0);
    hub.restore(b, &presented, Some(ring()), now).unwrap();
    assert_eq!(connect(&mut hub, a, qpn(1), qpn(2)), (1, 5));

    let mut settled = Hub::new();
    let a = endpoint(&mut settled, 1);
    endpoint(&mut settled, 2);
    settled.note_return(now.checked_sub(RETURN_GRACE).unwrap());
    assert_eq!(connect(&mut settled, a, qpn(1), qpn(2)).0, 0);
}

#[test]
fn namespaces_keep_their_slots_apart() {
    let mut hub = Hub::new();
    let a = endpoint(&mut hub, 1);
    let far = endpoint_in(&mut hub, 2, NETNS + 1);
    let body = ConnectBody {
        local_qpn: qpn(1),
        remote_qpn: qpn(2),
        ..Default::default()
    };
    assert!(matches!(hub.connect(a, &body), Ok(Decision::Udp)));
    // The same number in the own namespace is another endpoint.
    let near = endpoint(&mut hub, 2);
    hub.disconnect(a, qpn(1));
    let (_, generation) = connect(&mut hub, a, qpn(1), qpn(2));
    assert_ne!(connect(&mut hub, near, qpn(2), qpn(1) + 1).1, generation);
    assert_eq!(connect(&mut hub, near, qpn(2), qpn(1)), (1, generation));
    let own = hub.add_slot(far, Slot::new(2).unwrap(), NETNS);
    assert_eq!(own, Err(Errno::ADDRINUSE));
}

#[test]
fn both_halves_restored_are_one_ring_again() {
    let (mut hub, now) = (Hub::new(), Instant::now());
    let (a, b) = (endpoint(&mut hub, 1), endpoint(&mut hub, 2));
    hub.restore(a, &half(qpn(1), qpn(2), 0), None, now).unwrap();
    assert!(!hub.is_joined(5));
    hub.restore(b, &half(qpn(2), qpn(1), 1), None, now).unwrap();
    assert!(hub.is_joined(5));
    hub.expire(now + RESTORE_GRACE);
    assert_eq!(told(&mut hub), []);
    hub.detach(b, PeerChange::Dead);
    assert_eq!(told(&mut hub), [(a, PeerChange::Dead)]);
    assert_empty(&hub);
}

#[test]
fn a_half_whose_peer_never_returns_is_told_of_its_death_once() {
    let (mut hub, now) = (Hub::new(), Instant::now());
    let a = endpoint(&mut hub, 1);
    hub.restore(a, &half(qpn(1), qpn(2), 0), None, now).unwrap();
    assert_eq!(hub.next_expiry(), Some(now + RESTORE_GRACE));
    hub.expire(now + RESTORE_GRACE - Duration::from_nanos(1));
    assert_eq!(told(&mut hub), []);
    hub.expire(now + RESTORE_GRACE);
    assert_eq!(told(&mut hub), [(a, PeerChange::Dead)]);
    assert_empty(&hub);
    assert_eq!(hub.next_expiry(), None);
}

#[test]
fn an_unjoined_ring_can_be_joined_after_the_restart() {
    let (mut hub, now) = (Hub::new(), Instant::now());
    let a = endpoint(&mut hub, 1);
    hub.restore(a, &half(qpn(1), qpn(2), 0), Some(ring()), now)
        .unwrap();
    let b = endpoint(&mut hub, 2);
    assert_eq!(connect(&mut hub, b, qpn(2), qpn(1)), (1, 5));
    assert_eq!(told(&mut hub), [(a, PeerChange::Joined)]);
    hub.expire(now + RESTORE_GRACE);
    assert_eq!(told(&mut hub), []);
    hub.disconnect(a, qpn(1));
    assert_empty(&hub);
}

#[test]
fn an_unjoined_ring_waits_beyond_the_grace_if_its_peer_is_there() {
    let (mut hub, now) = (Hub::new(), Instant::now());
    let (a, b) = (endpoint(&mut hub, 1), endpoint(&mut hub, 2));
    hub.restore(a, &half(qpn(1), qpn(2), 0), Some(ring()), now)
        .unwrap();
    hub.expire(now + RESTORE_GRACE);
    assert_eq!(told(&mut hub), []);
    assert_eq!(connect(&mut hub, b, qpn(2), qpn(1)), (1, 5));
    assert_eq!(told(&mut hub), [(a, PeerChange::Joined)]);
}

#[test]
fn the_side_that_kept_its_ring_learns_that_the_other_had_joined() {
    for joiner_first in [false, true] {
        let (mut hub, now) = (Hub::new(), Instant::now());
        let (a, b) = (endpoint(&mut hub, 1), endpoint(&mut hub, 2));
        let creator = |hub: &mut Hub| hub.restore(a, &half(qpn(1), qpn(2), 0), Some(ring()), now);
        if !joiner_first {
            creator(&mut hub).unwrap();
        }
        hub.restore(b, &half(qpn(2), qpn(1), 1), None, now).unwrap();
        if joiner_first {
            creator(&mut hub).unwrap();
        }
        assert_eq!(told(&mut hub), [(a, PeerChange::Joined)]);
        hub.detach(a, PeerChange::Dead);
        assert_eq!(told(&mut hub), [(b, PeerChange::Dead)]);
        assert_empty(&hub);
    }
}

#[test]
fn a_peer_that_was_reset_meanwhile_gets_a_new_ring() {
    let (mut hub, now) = (Hub::new(), Instant::now());
    let (a, b) = (endpoint(&mut hub, 1), endpoint(&mut hub, 2));
    // Both had joined, so a has no ring to give; b does not restore but connects anew.
    hub.restore(a, &half(qpn(1), qpn(2), 0), None, now).unwrap();
    let (side, generation) = connect(&mut hub, b, qpn(2), qpn(1));
    assert_eq!(side, 0);
    assert_ne!(generation, 5);
    hub.expire(now + RESTORE_GRACE);
    assert_eq!(told(&mut hub), [(a, PeerChange::Dead)]);
    assert_eq!(connect(&mut hub, a, qpn(1), qpn(2)), (1, generation));
}

#[test]
fn lies_about_a_ring_are_refused() {
    let (mut hub, now) = (Hub::new(), Instant::now());
    let (a, b) = (endpoint(&mut hub, 1), endpoint(&mut hub, 2));
    let mut restore = |id, request: RestoreRequest, ring| hub.restore(id, &request, ring, now);
    restore(a, half(qpn(1), qpn(2), 0), None).unwrap();
    assert_eq!(restore(a, half(qpn(1), qpn(2), 0), None), Err(Errno::EXIST));
    // The same side, another QP, another peer, a stranger's slot.
    assert_eq!(restore(b, half(qpn(2), qpn(1), 0), None), Err(Errno::INVAL));
    assert_eq!(
        restore(b, half(qpn(2) + 1, qpn(1), 1), None),
        Err(Errno::INVAL)
    );
    assert_eq!(
        restore(b, half(qpn(2), qpn(1) + 1, 1), None),
        Err(Errno::INVAL)
    );
    assert_eq!(restore(b, half(qpn(1), qpn(2), 1), None), Err(Errno::INVAL));
    // Impossible rings.
    assert_eq!(restore(b, half(qpn(2), qpn(1), 2), None), Err(Errno::INVAL));
    let zero = RestoreRequest {
        generation: 0,
        ..half(qpn(2), qpn(1), 1)
    };
    assert_eq!(restore(b, zero, None), Err(Errno::INVAL));
    let none = RestoreRequest {
        wire: Wire::None,
        ..half(qpn(2), qpn(1), 1)
    };
    assert_eq!(restore(b, none, None), Err(Errno::INVAL));
    let small = sealed_memfd("small", RING_BYTES - 4096).unwrap();
    assert_eq!(
        restore(b, half(qpn(2), qpn(1), 1), Some(small)),
        Err(Errno::INVAL)
    );
    restore(b, half(qpn(2), qpn(1), 1), None).unwrap();
}

#[test]
fn tenants_do_not_meet_by_what_an_earlier_broker_made_either() {
    let (mut hub, now) = (Hub::new(), Instant::now());
    let (a, b) = (endpoint(&mut hub, 1), endpoint(&mut hub, 2));
    hub.endpoints.get_mut(&b).unwrap().tenant = 1;
    hub.restore(a, &half(qpn(1), qpn(2), 0), Some(ring()), now)
        .unwrap();
    // Though it knows the secret.
    let claim = hub.restore(b, &half(qpn(2), qpn(1), 1), None, now);
    assert_eq!(claim, Err(Errno::INVAL));
    let body = ConnectBody {
        local_qpn: qpn(2),
        remote_qpn: qpn(1),
        ..Default::default()
    };
    assert!(matches!(hub.connect(b, &body), Ok(Decision::Udp)));
    hub.expire(now + RESTORE_GRACE);
    assert_eq!(told(&mut hub), [(a, PeerChange::Dead)]);
    assert!(matches!(hub.connect(b, &body), Ok(Decision::Udp)));
    hub.disconnect(b, qpn(2));
    assert_empty(&hub);
}

#[test]
fn random_histories_keep_the_tables_consistent() {
    let mut state = 12345u64;
    let mut next = |bound: u64| {
        // splitmix64
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((mixed ^ (mixed >> 27)) >> 7) % bound
    };
    let mut hub = Hub::new();
    let mut ids = [1u16, 2, 3].map(|slot| endpoint(&mut hub, slot));
    for _ in 0..3000 {
        let (who, index) = (next(3), next(3) as u32);
        let local = qpn(who as u32 + 1) + index;
        let remote = qpn(next(3) as u32 + 1) + next(3) as u32;
        match next(20) {
            0 => {
                hub.detach(ids[who as usize], PeerChange::Dead);
                ids[who as usize] = endpoint(&mut hub, who as u16 + 1);
            }
            1..=6 => hub.disconnect(ids[who as usize], local),
            _ => {
                let body = ConnectBody {
                    local_qpn: local,
                    remote_qpn: remote,
                    ..Default::default()
                };
                hub.connect(ids[who as usize], &body).unwrap();
            }
        }
        check_consistency(&hub);
    }
    for id in ids {
        hub.detach(id, PeerChange::Dead);
    }
    assert_empty(&hub);
}

/// Every ring is known to exactly those whom its ends name, and the other way round.
fn check_consistency(hub: &Hub) {
    for (generation, pairing) in &hub.pairings {
        let mut open = 0;
        for end in pairing.ends {
            match end {
                End::Joined(id, qpn) => {
                    let wire = hub.endpoints[&id].links[&qpn].wire;
                    assert_eq!(wire, PeerWire::Ring(*generation));
                }
                End::Open(id, _) => {
                    assert!(hub.endpoints[&id].invitations.contains(generation));
                    open += 1;
                }
                End::Absent(..) => panic!("nothing was restored"),
            }
        }
        // One that is used again the broker has always.
        let waits = pairing.ring.is_some() || open == 1 && pairing.kept != 0;
        assert_eq!(waits, open == 1);
    }
    for endpoint in hub.endpoints.values() {
        for link in endpoint.links.values() {
            if let PeerWire::Ring(generation) = link.wire {
                assert!(hub.pairings.contains_key(&generation));
            }
        }
        assert!(
            endpoint
                .invitations
                .iter()
                .all(|g| hub.pairings.contains_key(g))
        );
    }
    let open: usize = hub
        .endpoints
        .values()
        .map(|endpoint| endpoint.open_rings)
        .sum();
    assert_eq!(
        open,
        hub.pairings.values().filter(|p| p.ring.is_some()).count()
    );
}
