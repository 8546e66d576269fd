//! Unreliable connections and datagrams: what is taken, what is dropped, and what is said of it.

use super::tests::{Built, KEY, PD, SIGNALED, SIZE, World, carry, pair_of, send_wr};
use super::*;
use crate::bytes::BytesMut;
use crate::grh::{GRH_LEN, Route};
use crate::types::{QpAttrMask as M, QpCap, RecvWr, SendFlags, SendOp, Sge, WcFlags, WcOpcode};

const QKEY: u32 = 0x1111_1111;
const OWN: u32 = 0x8000_0000;

fn run(a: &mut super::tests::End, b: &mut super::tests::End) {
    while carry(a, b, Space::Request, 1100) {}
}

#[test]
fn uc_drops_what_has_no_receive_and_goes_on() {
    let (mut a, mut b) = pair_of(Service::Uc);
    a.send(SendOp::Send, SIGNALED, &[(0, 5000)]);
    a.send(SendOp::SendImm(3), SIGNALED, &[(0, 10)]);
    run(&mut a, &mut b);
    assert!(b.world.recvs.is_empty());
    b.recv(1, &[(100, 50)]);
    // Too long for it: the receive is for the next one.
    a.send(SendOp::Send, SIGNALED, &[(0, 51)]);
    a.send(SendOp::Send, SIGNALED, &[(0, 3000)]);
    a.send(SendOp::SendImm(4), SIGNALED, &[(0, 50)]);
    run(&mut a, &mut b);
    let received: Vec<_> = b.world.recvs.iter().map(|(wc, _)| *wc).collect();
    assert_eq!(received.len(), 1);
    assert_eq!(
        (received[0].wr_id, received[0].byte_len, received[0].imm),
        (1, 50, 4)
    );
    assert_eq!(a.world.sends.len(), 5);
    assert!(
        a.world
            .sends
            .iter()
            .all(|wc| wc.status == WcStatus::Success)
    );
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
}

#[test]
fn uc_drops_what_is_not_allowed() {
    let (mut a, mut b) = pair_of(Service::Uc);
    b.recv(1, &[(100, 50)]);
    let bad = |addr, rkey| SendOp::WriteImm { addr, rkey, imm: 1 };
    a.send(bad(0, KEY + 1), SIGNALED, &[(0, 2000)]);
    a.send(bad(SIZE as u64 - 8, KEY), SIGNALED, &[(0, 2000)]);
    run(&mut a, &mut b);
    assert!(b.world.recvs.is_empty());
    a.send(bad(512, KEY), SIGNALED, &[(0, 2000)]);
    run(&mut a, &mut b);
    assert_eq!(b.world.recvs[0].0.opcode, WcOpcode::RecvRdmaWithImm);
    assert_eq!(b.world.recvs[0].0.byte_len, 2000);
    assert_eq!(b.world.memory.borrow()[512..2512], [0xaa; 2000]);
    assert!(
        a.world
            .sends
            .iter()
            .all(|wc| wc.status == WcStatus::Success)
    );
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn uc_has_no_reads_atomics_or_datagrams() {
    let (mut a, _) = pair_of(Service::Uc);
    let (addr, rkey) = (0, KEY);
    for op in [
        SendOp::Read { addr, rkey },
        SendOp::FetchAdd { addr, rkey, add: 1 },
        datagram(QKEY),
    ] {
        let wr = send_wr(op, SIGNALED, &[(0, 8)]);
        let posted = a.qp.post_send(wr, &mut a.world);
        assert_eq!(posted, Err(PostError::Invalid), "{op:?}");
    }
}

#[test]
fn uc_invalidates_and_drops_in_silence_what_cannot_be() {
    let (mut a, mut b) = pair_of(Service::Uc);
    b.recv(1, &[(100, 50)]);
    a.send(SendOp::SendInv(KEY + 1), SIGNALED, &[(0, 8)]);
    a.send(SendOp::SendInv(KEY), SIGNALED, &[(0, 8)]);
    run(&mut a, &mut b);
    let statuses: Vec<_> = a.world.sends.iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::Success; 2]);
    assert_eq!(b.world.recvs.len(), 1);
    let wc = b.world.recvs[0].0;
    assert_eq!(
        (wc.status, wc.flags, wc.imm),
        (WcStatus::Success, WcFlags::WITH_INV, KEY)
    );
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn uc_local_error_stops_the_sends_until_rts() {
    let (mut a, mut b) = pair_of(Service::Uc);
    b.recv(1, &[(100, 50)]);
    a.recv(2, &[(100, 50)]);
    a.send(SendOp::Send, SIGNALED, &[(SIZE as u64, 8)]);
    a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    run(&mut a, &mut b);
    let statuses: Vec<_> = a.world.sends.iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::LocProtErr, WcStatus::WrFlushErr]);
    assert_eq!(a.qp.state(), QpState::Sqe);
    assert!(a.world.recvs.is_empty());
    let rts = QpAttr {
        state: QpState::Rts,
        ..QpAttr::default()
    };
    a.qp.modify(&rts, M::STATE, &mut a.world).unwrap();
    a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    run(&mut a, &mut b);
    assert_eq!(b.world.recvs.len(), 1);
}

#[test]
fn uc_sends_to_a_peer_that_is_gone_complete() {
    let (mut a, _) = pair_of(Service::Uc);
    a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    a.qp.bind(&mut a.world).lost();
    a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    assert_eq!(a.world.sends.len(), 2);
    assert!(
        a.world
            .sends
            .iter()
            .all(|wc| wc.status == WcStatus::Success)
    );
    assert_eq!(a.qp.state(), QpState::Rts);
}

#[test]
fn uc_on_a_lossless_link_completes_when_handed_over() {
    let (mut a, _) = pair_of(Service::Uc);
    a.qp.set_direct(true);
    a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    let mut built = Built::new(1100);
    let next = a.qp.bind(&mut a.world).next(Space::Request, 0, &mut built);
    assert!(next.is_some());
    assert_eq!(a.world.sends.len(), 1);
    // Nothing is done in the peer's memory before it has arrived there.
    assert!(!a.qp.takes_short(false));
    a.qp.bind(&mut a.world).acked(Space::Request, 1);
    assert!(a.qp.takes_short(false));
}

fn datagram(qkey: u32) -> SendOp {
    SendOp::Datagram {
        ah: 3,
        qpn: 2,
        qkey,
        imm: Some(9),
    }
}

pub(super) fn ud(state: QpState) -> (Qp, World) {
    let mut qp = Qp::new(
        TransportType::Iwarp,
        QpConfig {
            qpn: 1,
            service: Service::Ud,
            pd: PD,
            cap: QpCap {
                max_send_wr: 4,
                max_recv_wr: 4,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 64,
            },
            sq_sig_all: true,
            srq: false,
        },
    );
    let mut world = World::new(0xaa);
    let steps = [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::QKEY),
        (QpState::Rtr, M::empty()),
        (QpState::Rts, M::SQ_PSN),
    ];
    for (to, mask) in steps {
        let attr = QpAttr {
            state: to,
            port: 1,
            qkey: QKEY,
            ..QpAttr::default()
        };
        qp.modify(&attr, mask | M::STATE, &mut world).unwrap();
        if to == state {
            break;
        }
    }
    (qp, world)
}

fn post(qp: &mut Qp, world: &mut World, addr: u64, length: u32) {
    let sges = [Sge {
        addr,
        length,
        lkey: KEY,
    }];
    let sges = sges.into_iter().collect();
    qp.post_recv(RecvWr { wr_id: 5, sges }, world).unwrap();
}

fn arrive(qp: &mut Qp, world: &mut World, qkey: u32, payload: &[u8]) -> Fate {
    let route = Route {
        src: [10, 0, 0, 1].into(),
        dst: [10, 0, 0, 2].into(),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        payload: 8,
    };
    let incoming = Incoming {
        src_qpn: 77,
        qkey,
        imm: Some(9),
        solicited: true,
        grh: &route.header(),
        payload,
    };
    qp.take_datagram(&incoming, world)
}

#[test]
fn ud_send_is_complete_when_it_is_taken() {
    let (mut qp, mut world) = ud(QpState::Rts);
    for qkey in [7, OWN | 7] {
        let wr = send_wr(datagram(qkey), SendFlags::SOLICITED, &[(0, 4)]);
        qp.post_send(wr, &mut world).unwrap();
    }
    let mut buffer = [0; 64];
    let mut out = BytesMut::from(&mut buffer[..]);
    let first = qp.next_datagram(&mut out, &mut world).unwrap();
    assert_eq!((first.ah, first.qpn, first.qkey), (3, 2, 7));
    assert_eq!((first.imm, first.solicited, first.len), (Some(9), true, 4));
    // The high bit asks for the queue pair's own.
    let second = qp.next_datagram(&mut out, &mut world).unwrap();
    assert_eq!(second.qkey, QKEY);
    assert_eq!(qp.next_datagram(&mut out, &mut world), None);
    assert_eq!(world.sends.len(), 2);
    assert_eq!(buffer[..5], [0xaa, 0xaa, 0xaa, 0xaa, 0]);
}

#[test]
fn ud_takes_no_more_than_the_mtu_and_nothing_but_sends() {
    let (mut qp, mut world) = ud(QpState::Rts);
    let too_long = crate::types::MAX_DATAGRAM + 1;
    let refused = [
        send_wr(datagram(0), SIGNALED, &[(0, too_long)]),
        send_wr(SendOp::Send, SIGNALED, &[(0, 8)]),
        send_wr(SendOp::Write { addr: 0, rkey: KEY }, SIGNALED, &[(0, 8)]),
    ];
    for wr in refused {
        assert_eq!(qp.post_send(wr, &mut world), Err(PostError::Invalid));
    }
    let longest = send_wr(datagram(0), SIGNALED, &[(0, too_long - 1)]);
    qp.post_send(longest, &mut world).unwrap();
}

#[test]
fn ud_local_error_stops_the_sends() {
    let (mut qp, mut world) = ud(QpState::Rts);
    for addr in [SIZE as u64, 0] {
        let wr = send_wr(datagram(0), SIGNALED, &[(addr, 8)]);
        qp.post_send(wr, &mut world).unwrap();
    }
    let mut buffer = [0; 64];
    let mut out = BytesMut::from(&mut buffer[..]);
    assert_eq!(qp.next_datagram(&mut out, &mut world), None);
    let statuses: Vec<_> = world.sends.iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::LocProtErr, WcStatus::WrFlushErr]);
    assert_eq!(qp.state(), QpState::Sqe);
    post(&mut qp, &mut world, 0, 100);
    assert_eq!(arrive(&mut qp, &mut world, QKEY, b"x"), Fate::Taken);
}

#[test]
fn ud_receives_behind_40_bytes() {
    let (mut qp, mut world) = ud(QpState::Rtr);
    post(&mut qp, &mut world, 1000, 100);
    assert_eq!(arrive(&mut qp, &mut world, QKEY, b"hello"), Fate::Taken);
    let (wc, solicited) = world.recvs[0];
    assert_eq!((wc.wr_id, wc.byte_len, wc.src_qp, wc.imm), (5, 45, 77, 9));
    let flags = WcFlags::GRH | WcFlags::GRH_IPV4 | WcFlags::WITH_IMM;
    assert_eq!((wc.flags, solicited), (flags, true));
    let memory = world.memory.borrow();
    assert_eq!(memory[1000 + GRH_LEN..1000 + GRH_LEN + 6], *b"hello\xaa");
    assert_eq!(memory[1032..1040], [10, 0, 0, 1, 10, 0, 0, 2]);
}

#[test]
fn ud_drops_what_it_does_not_want() {
    let (mut qp, mut world) = ud(QpState::Rts);
    assert_eq!(arrive(&mut qp, &mut world, QKEY, b"x"), Fate::NoReceive);
    post(&mut qp, &mut world, 0, 100);
    assert_eq!(arrive(&mut qp, &mut world, QKEY + 1, b"x"), Fate::Dropped);
    assert!(world.recvs.is_empty());
    let (mut qp, mut world) = ud(QpState::Init);
    post(&mut qp, &mut world, 0, 100);
    assert_eq!(arrive(&mut qp, &mut world, QKEY, b"x"), Fate::Dropped);
}

#[test]
fn ud_receive_that_is_too_short_stays() {
    let (mut qp, mut world) = ud(QpState::Rts);
    post(&mut qp, &mut world, 0, 44);
    assert_eq!(arrive(&mut qp, &mut world, QKEY, b"hello"), Fate::Dropped);
    assert!(world.recvs.is_empty());
    assert_eq!(arrive(&mut qp, &mut world, QKEY, b"hell"), Fate::Taken);
    assert_eq!(world.recvs[0].0.status, WcStatus::Success);
    assert_eq!(qp.state(), QpState::Rts);
}

#[test]
fn attributes_are_those_of_the_service() {
    let check = |service, mask| {
        let (a, _) = pair_of(Service::Rc);
        let config = QpConfig {
            service,
            ..*a.qp.config()
        };
        let attr = QpAttr {
            state: QpState::Init,
            port: 1,
            ..QpAttr::default()
        };
        Qp::new(TransportType::Iwarp, config)
            .check_modify(&attr, mask | M::STATE)
            .is_ok()
    };
    let common = M::PKEY_INDEX | M::PORT;
    assert!(check(Service::Uc, common | M::ACCESS_FLAGS));
    assert!(!check(Service::Uc, common | M::QKEY));
    assert!(check(Service::Ud, common | M::QKEY));
    assert!(!check(Service::Ud, common | M::ACCESS_FLAGS));
}
