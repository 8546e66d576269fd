//! Connecting, disconnecting and dying endpoints, against a real broker.

mod common;

use causeway_fabric::{ConnectRequest, Event, Introduction, WirePref};
use causeway_identity::Slot;
use common::{Host, final_acks, ring, same_file};

#[test]
fn two_qps_share_one_ring_and_each_others_doorbells() {
    let host = Host::with_broker("0");
    let (a, b) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Auto));
    let first = ring(a.connect(1, &b, 2));
    let second = ring(b.connect(2, &a, 1));
    assert_eq!((first.side, second.side), (0, 1));
    assert_eq!(first.generation, second.generation);
    assert!(same_file(&first.ring, &second.ring));
    assert!(same_file(&first.peer_inbox, &b.inbox) && same_file(&second.peer_inbox, &a.inbox));
    assert_eq!(first.peer, b.attachment.endpoint().unwrap());
    assert_eq!(second.peer, a.attachment.endpoint().unwrap());
    // All eventfds share one inode: ring one, and see who hears it.
    rustix::io::write(&first.peer_doorbell, &1u64.to_ne_bytes()).unwrap();
    assert!(common::readable(&b.doorbell, common::PATIENCE));
    assert!(!common::readable(&a.doorbell, std::time::Duration::ZERO));
    let generation = first.generation;
    let local_qpn = a.qpn(1);
    assert_eq!(
        a.events(),
        [Event::PeerJoined {
            local_qpn,
            generation
        }]
    );
    assert_eq!(b.events_so_far(), []);
}

#[test]
fn who_knows_its_peer_is_not_sent_its_descriptors_again() {
    let host = Host::with_broker("0");
    let (a, b) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Auto));
    let own = a.attachment.endpoint().unwrap();
    let peer = b.attachment.endpoint().unwrap();
    let mut index = 0;
    for (known, sent) in [(0, true), (peer, false), (own, true)] {
        // Side 0 of a new ring, then side 1 of one that waits.
        for side in [0, 1] {
            index += 1;
            if side == 1 {
                b.connect(index, &a, index);
            }
            let request = ConnectRequest {
                local_qpn: a.qpn(index),
                remote_gid: None,
                gid_is_local: false,
                remote_qpn: b.qpn(index),
                pd: 0,
                access: 0,
                known,
            };
            let introduction = a.attachment.connect(&request).unwrap();
            let Introduction::Ring {
                peer_fds, side: is, ..
            } = introduction
            else {
                panic!("not a ring: {introduction:?}");
            };
            assert_eq!((is, peer_fds.is_some()), (side, sent));
        }
    }
}

#[test]
fn rings_do_not_mix_up_qps() {
    let host = Host::with_broker("0");
    let (a, b) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Auto));
    let a1 = ring(a.connect(1, &b, 1));
    let a2 = ring(a.connect(2, &b, 2));
    // b's QP 1 wants a's QP 2, which wants b's QP 2: not a pair.
    let b1 = ring(b.connect(1, &a, 2));
    assert_eq!(b1.side, 0);
    assert!(b1.generation != a1.generation && b1.generation != a2.generation);
    let b2 = ring(b.connect(2, &a, 2));
    assert_eq!((b2.side, b2.generation), (1, a2.generation));
}

#[test]
fn one_process_may_connect_to_itself() {
    let host = Host::with_broker("0");
    let a = host.endpoint(WirePref::Auto);
    let (first, second) = (ring(a.connect(1, &a, 2)), ring(a.connect(2, &a, 1)));
    assert_eq!((first.side, second.side), (0, 1));
    assert!(same_file(first.ring, second.ring));
    assert!(
        matches!(a.connect(3, &a, 3), Introduction::Udp),
        "one QP has but one side"
    );
}

#[test]
fn a_new_incarnation_never_gets_an_old_ring() {
    let host = Host::with_broker("0");
    let (a, b) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Auto));
    let old = ring(a.connect(1, &b, 1)).generation;
    assert_eq!(ring(b.connect(1, &a, 1)).generation, old);
    a.attachment.disconnect(a.qpn(1)).unwrap();
    assert_eq!(
        b.events(),
        [Event::PeerLeft {
            local_qpn: b.qpn(1),
            generation: old
        }]
    );
    // a's next incarnation connects before b has reset its old one.
    let new = ring(a.connect(1, &b, 1));
    assert_eq!(new.side, 0);
    assert_ne!(new.generation, old);
    b.attachment.disconnect(b.qpn(1)).unwrap();
    let joined = ring(b.connect(1, &a, 1));
    assert_eq!((joined.side, joined.generation), (1, new.generation));
    assert!(same_file(joined.ring, new.ring));
}

#[test]
fn connecting_again_replaces_the_connection() {
    let host = Host::with_broker("0");
    let (a, b) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Auto));
    let old = ring(a.connect(1, &b, 1)).generation;
    let new = ring(a.connect(1, &b, 2)).generation;
    assert_eq!(
        ring(b.connect(1, &a, 1)).side,
        0,
        "the abandoned ring is gone"
    );
    assert_ne!(old, new);
    assert_eq!(ring(b.connect(2, &a, 1)).generation, new);
}

#[test]
fn death_is_told_to_joined_and_waiting_peers_alike() {
    let host = Host::with_broker("0");
    let (a, b) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Auto));
    let joined = ring(a.connect(1, &b, 1)).generation;
    ring(b.connect(1, &a, 1));
    assert_eq!(a.events().len(), 1);
    let waiting = ring(a.connect(2, &b, 2)).generation;
    drop(b);
    let mut told = Vec::new();
    while told.len() < 2 {
        told.extend(a.events());
    }
    for (index, generation) in [(1, joined), (2, waiting)] {
        assert!(told.contains(&Event::PeerDead {
            local_qpn: a.qpn(index),
            generation
        }));
    }
    assert!(
        causeway_fabric::status::status(&host.address())
            .unwrap()
            .unwrap()[0]
            .qps
            .is_empty()
    );
}

#[test]
fn a_slot_is_free_again_after_its_owner_died() {
    use std::os::fd::AsFd;
    let host = Host::with_broker("0");
    let (a, b) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Auto));
    let (slot, socket) = (b.slot, b.socket.try_clone().unwrap());
    let taken = a
        .attachment
        .add_slot(slot, socket.as_fd(), final_acks().as_fd())
        .unwrap_err();
    assert_eq!(taken.errno(), rustix::io::Errno::ADDRINUSE.raw_os_error());
    ring(a.connect(1, &b, 1));
    drop(b);
    a.events();
    a.attachment
        .add_slot(slot, socket.as_fd(), final_acks().as_fd())
        .unwrap();
}

#[test]
fn slots_are_proved_and_given_up() {
    use std::os::fd::AsFd;
    let host = Host::with_broker("0");
    let a = host.endpoint(WirePref::Auto);
    let wrong = a
        .attachment
        .add_slot(
            Slot::wrapping(a.slot.number()),
            a.socket.as_fd(),
            final_acks().as_fd(),
        )
        .unwrap_err();
    assert_eq!(wrong.errno(), rustix::io::Errno::INVAL.raw_os_error());
    let b = host.endpoint(WirePref::Auto);
    ring(a.connect(1, &b, 1));
    let busy = a.attachment.remove_slot(a.slot).unwrap_err();
    assert_eq!(busy.errno(), rustix::io::Errno::BUSY.raw_os_error());
    // b has no QP of its own; what a made for it ends with the slot.
    b.attachment.remove_slot(b.slot).unwrap();
    assert!(matches!(a.events()[..], [Event::PeerDead { .. }]));
    a.attachment.remove_slot(a.slot).unwrap();
}

#[test]
fn preferences_and_addresses_decide_the_wire() {
    let host = Host::with_broker("0");
    let (auto, udp) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Udp));
    let shm = host.endpoint(WirePref::Shm);
    let nobody = Slot::MAX.qpn(0).unwrap().number();
    assert!(matches!(auto.connect(1, &udp, 1), Introduction::Udp));
    assert!(matches!(udp.connect(1, &auto, 1), Introduction::Udp));
    assert!(matches!(udp.connect(2, &shm, 2), Introduction::Udp));
    assert!(matches!(shm.connect(2, &udp, 2), Introduction::NoPeer));
    assert!(matches!(shm.connect_to(3, nobody), Introduction::NoPeer));
    assert!(matches!(auto.connect_to(3, nobody), Introduction::Udp));
    ring(shm.connect(4, &auto, 4));
    let mut request = ConnectRequest {
        local_qpn: auto.qpn(5),
        remote_gid: Some([1; 16]),
        gid_is_local: false,
        remote_qpn: shm.qpn(5),
        pd: 0,
        access: 0,
        known: 0,
    };
    let elsewhere = auto.attachment.connect(&request).unwrap();
    assert!(
        matches!(elsewhere, Introduction::Udp),
        "an equal slot of another host"
    );
    request.gid_is_local = true;
    request.local_qpn = auto.qpn(6);
    ring(auto.attachment.connect(&request).unwrap());
}

#[test]
fn both_sides_get_the_same_wire() {
    let host = Host::with_broker("0");
    let (a, b) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Auto));
    // As if a had connected while a restarted broker did not know b yet.
    let remote_qpn = b.qpn(1);
    let far = ConnectRequest {
        local_qpn: a.qpn(1),
        remote_gid: Some([9; 16]),
        gid_is_local: false,
        remote_qpn,
        pd: 0,
        access: 0,
        known: 0,
    };
    assert!(matches!(
        a.attachment.connect(&far).unwrap(),
        Introduction::Udp
    ));
    assert!(matches!(b.connect(1, &a, 1), Introduction::Udp));
}

#[test]
fn impossible_numbers_are_refused() {
    let host = Host::with_broker("0");
    let (a, b) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Auto));
    let bad = [
        (a.qpn(1), 0xFF_FFFF),
        (a.qpn(1), 1 << 24),
        (a.qpn(1), 5),
        (5, b.qpn(1)),
        (b.qpn(1), a.qpn(1)),
        (u32::MAX, b.qpn(1)),
    ];
    for (local_qpn, remote_qpn) in bad {
        let request = ConnectRequest {
            local_qpn,
            remote_gid: None,
            gid_is_local: false,
            remote_qpn,
            pd: 0,
            access: 0,
            known: 0,
        };
        let error = a.attachment.connect(&request).unwrap_err();
        assert_eq!(
            error.errno(),
            rustix::io::Errno::INVAL.raw_os_error(),
            "{request:?}"
        );
    }
}

#[test]
fn status_lists_every_endpoint_and_all_its_qps() {
    let host = Host::with_broker("0");
    assert_eq!(
        causeway_fabric::status::status(&host.address()).unwrap(),
        Some(Vec::new())
    );
    let (a, b) = (host.endpoint(WirePref::Auto), host.endpoint(WirePref::Udp));
    // More than one page.
    for index in 0..1100 {
        assert!(matches!(a.connect(index, &b, index), Introduction::Udp));
    }
    let list = causeway_fabric::status::status(&host.address())
        .unwrap()
        .unwrap();
    assert_eq!(list.len(), 2);
    assert_eq!(list[0].pid, std::process::id() as i32);
    assert_eq!(list[0].slots, [a.slot.number()]);
    assert_eq!(
        list[0].netns,
        causeway_fabric::sys::netns_cookie(&a.socket).unwrap()
    );
    let qpns: Vec<u32> = list[0].qps.iter().map(|qp| qp.local_qpn).collect();
    assert_eq!(
        qpns,
        (0..1100).map(|index| a.qpn(index)).collect::<Vec<_>>()
    );
    assert_eq!(list[1].wire, WirePref::Udp);
    assert!(list[1].qps.is_empty());
}
