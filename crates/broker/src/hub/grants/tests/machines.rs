//! What virtual machines are granted.

use super::*;

#[test]
fn a_machine_has_so_many_segments_however_many_endpoints() {
    crate::testing::allow_many_descriptors();
    let mut hub = Hub::new();
    let vm = Some(1 << 63 | 5);
    let ids: Vec<EndpointId> = (1..=5)
        .map(|slot| {
            let id = endpoint(&mut hub, slot, ALICE, NETNS);
            hub.endpoints.get_mut(&id).unwrap().vm = vm;
            id
        })
        .collect();
    let request = CreateSegmentRequest {
        pd: PD,
        writable: true,
        inside: false,
    };
    for id in &ids[..SEGMENTS_PER_VM_MAX / SEGMENTS_PER_ENDPOINT_MAX] {
        // Any descriptor will do for the tables.
        for name in 0..SEGMENTS_PER_ENDPOINT_MAX as u64 {
            let segment = Segment::new(crate::testing::descriptor(), PD, true, false);
            let endpoint = hub.endpoints.get_mut(id).unwrap();
            endpoint.segments.insert(name + 1, segment);
        }
    }
    let last = ids[4];
    let more = hub.create_segment(last, &request).map(drop);
    assert_eq!(more, Err(Errno::DQUOT));
    hub.endpoints.get_mut(&last).unwrap().vm = None;
    assert!(hub.create_segment(last, &request).is_ok());
}

/// Another machine is shown memory for writing; the own one has it anyway. The users of a machine
/// are not the host's, whatever their numbers.
#[test]
fn a_machine_gets_nothing_to_read_of_others() {
    let (one, other) = (Some(1 << 63 | 5), Some(1 << 63 | 6));
    let refused = Err(Errno::PERM);
    for (owner, peer, user, outcome) in [
        (None, one, ALICE, refused),
        (None, one, 0, refused),
        (one, other, ALICE, refused),
        (one, one, ALICE, Ok(false)),
        (one, one, 0, Ok(false)),
        (one, None, BOB, Ok(false)),
        (one, None, 0, refused),
    ] {
        let mut pair = Pair::new(ALICE, user);
        for (id, vm) in [(pair.owner, owner), (pair.peer, peer)] {
            pair.hub.endpoints.get_mut(&id).unwrap().vm = vm;
        }
        let segment = pair.segment(true);
        pair.connect(1, PD, READ);
        pair.connect(2, PD, WRITE);
        pair.hub.own_uid = 0;
        assert_eq!(pair.map(1, segment), outcome, "{owner:?} {peer:?} {user}");
        assert_eq!(pair.map(2, segment), Ok(true));
        let holders = &pair.hub.endpoints[&pair.owner].segments[&segment].holders;
        let trusted = owner == peer && user == ALICE;
        assert_eq!(holders.is_empty(), trusted, "its holders");
    }
}
