//! What the short ways take, and what they leave to the long ones.

use super::tests::{KEY, PD, World, pair, pair_of, path_steps};
use super::{PostError, Qp, QpConfig, TransportType};
use crate::bytes::Bytes;
use crate::host::Host;
use crate::transports::with_transport;
use crate::types::{QpAttr, QpAttrMask as M, QpCap, QpState, RecvWr, Service, Sge, WcStatus};

const RANGE: Sge = Sge {
    addr: 64,
    length: 8,
    lkey: KEY,
};

fn queue_pair(srq: bool, max_recv_sge: u32) -> Qp {
    let cap = QpCap {
        max_send_wr: 2,
        max_recv_wr: 2,
        max_send_sge: 1,
        max_recv_sge,
        max_inline_data: 0,
    };
    Qp::new(
        TransportType::Iwarp,
        QpConfig {
            qpn: 1,
            service: Service::Rc,
            pd: PD,
            cap,
            sq_sig_all: false,
            srq,
        },
    )
}

fn go_to(qp: &mut Qp, world: &mut World, state: QpState) {
    let attr = QpAttr {
        state,
        ..QpAttr::default()
    };
    qp.modify(&attr, M::STATE, world).unwrap();
}

/// What the long way says of a receive that the short one declined.
fn long_way(qp: &mut Qp, world: &mut World, wr_id: u64) -> Result<(), PostError> {
    let sges = [RANGE].into_iter().collect();
    qp.post_recv(RecvWr { wr_id, sges }, world)
}

#[test]
fn receives_are_posted_the_short_way_where_the_long_one_would_but_queue_them() {
    let mut world = World::new(0);
    let mut qp = queue_pair(false, 1);
    assert!(!qp.post_recv_range(1, RANGE), "it is reset");
    assert_eq!(long_way(&mut qp, &mut world, 1), Err(PostError::Invalid));
    for (at, (attr, mask)) in path_steps(Service::Rc).into_iter().enumerate() {
        qp.modify(&attr, mask, &mut world).unwrap();
        if at == 0 {
            assert!(!qp.post_recv_range(0, RANGE), "its array has no places yet");
            assert_eq!(long_way(&mut qp, &mut world, 0), Ok(()));
        } else {
            assert_eq!(qp.post_recv_range(at as u64, RANGE), at < 2, "two fit");
        }
    }
    assert_eq!(long_way(&mut qp, &mut world, 2), Err(PostError::Full));
    assert!(world.recvs.is_empty());
    go_to(&mut qp, &mut world, QpState::Err);
    qp.release_recvs(1);
    assert!(!qp.post_recv_range(2, RANGE), "it would be flushed");
    assert_eq!(long_way(&mut qp, &mut world, 2), Ok(()));
    let flushed = world.recvs.iter().map(|(wc, _)| (wc.wr_id, wc.status));
    assert!(flushed.eq((0..3).map(|id| (id, WcStatus::WrFlushErr))));
    go_to(&mut qp, &mut world, QpState::Reset);
    assert!(!qp.post_recv_range(3, RANGE));
    for mut other in [queue_pair(true, 1), queue_pair(false, 0)] {
        let (attr, mask) = path_steps(Service::Rc)[0];
        other.modify(&attr, mask, &mut world).unwrap();
        assert!(!other.post_recv_range(1, RANGE));
        let refused = long_way(&mut other, &mut world, 1);
        assert_eq!(refused, Err(PostError::Invalid));
    }
}

#[test]
fn messages_are_taken_the_short_way_where_nothing_is_out_of_the_ordinary() {
    let (_, mut b) = pair();
    let taken = |qp: &Qp, len| qp.takes_message(len);
    assert_eq!(taken(&b.qp, 8), None, "no receive is posted");
    b.recv(1, &[(64, 8)]);
    assert_eq!(taken(&b.qp, 8), None, "it would be the first");
    with_transport!(&mut b.qp.0, |work, _| work.note_established(&mut b.world));
    assert_eq!(taken(&b.qp, 8), Some((1, RANGE)));
    assert_eq!(taken(&b.qp, 1), Some((1, RANGE)));
    assert_eq!((taken(&b.qp, 0), taken(&b.qp, 9)), (None, None));
    go_to(&mut b.qp, &mut b.world, QpState::Sqd);
    assert_eq!(taken(&b.qp, 8), None);
    go_to(&mut b.qp, &mut b.world, QpState::Rts);
    assert_eq!(taken(&b.qp, 8), Some((1, RANGE)));
    b.qp.set_traced(true);
    assert_eq!(taken(&b.qp, 8), None, "what is traced goes the long way");
    b.qp.set_traced(false);
    let wc = b.qp.took_message(1, 8);
    b.world.complete_recv(wc.qp_num, wc, false);
    b.recv(2, &[(0, 4), (4, 4)]);
    assert_eq!(taken(&b.qp, 8), None, "two ranges");
    let wrong_key = Sge { lkey: 1, ..RANGE };
    assert!(b.qp.post_recv_range(3, wrong_key));
    let used = with_transport!(&b.qp.0, |work, _| work.rq_used);
    assert_eq!(used, 3);
    let bytes = Bytes::from(&b"12345678"[..]);
    with_transport!(&mut b.qp.0, |work, _| work.rq.pop());
    assert!(!b.qp.receive_plain(bytes, &mut b.world));
    assert_eq!(taken(&b.qp, 8), Some((3, wrong_key)), "nothing was done");
    go_to(&mut b.qp, &mut b.world, QpState::Err);
    assert_eq!(taken(&b.qp, 8), None);
    assert_eq!(b.world.recvs.len(), 2);
    let (_, mut unreliable) = pair_of(Service::Uc);
    unreliable.recv(1, &[(64, 8)]);
    with_transport!(&mut unreliable.qp.0, |work, _| work
        .note_established(&mut unreliable.world));
    assert_eq!(taken(&unreliable.qp, 8), None);
}
