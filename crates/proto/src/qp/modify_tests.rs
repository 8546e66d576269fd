//! State transitions that something of the peer's comes between.

use super::tests::{End, World, pair_of, path_steps};
use super::*;
use crate::types::{QpAttrMask as M, QpEvent};

/// A queue pair that is ready to receive, and what makes it ready to send.
fn ready_to_receive() -> (Qp, World, QpAttr, M) {
    let (End { qp, world, .. }, _) = pair_of(Service::Rc);
    let (mut qp, mut world) = (qp, world);
    let reset = (QpAttr::default(), M::STATE);
    let steps = path_steps(Service::Rc);
    for (attr, mask) in [reset, steps[0], steps[1]] {
        qp.modify(&attr, mask, &mut world).unwrap();
    }
    assert_eq!(qp.state(), QpState::Rtr);
    let (attr, mask) = steps[2];
    (qp, world, attr, mask)
}

#[test]
fn a_peer_that_ends_while_one_connects_fails_no_transition() {
    let (mut qp, mut world, rts, mask) = ready_to_receive();
    qp.bind(&mut world).lost();
    assert_eq!(qp.state(), QpState::Err);
    assert_eq!(world.events, [QpEvent::Fatal]);
    // As if it had ended just after.
    assert_eq!(qp.check_modify(&rts, mask), Ok(()));
    qp.modify(&rts, mask, &mut world).unwrap();
    assert_eq!((qp.state(), qp.attr().timeout), (QpState::Err, rts.timeout));
    // Once: the program knows now that it was connected.
    let again = qp.modify(&rts, mask, &mut world);
    let refused = Err(AttrError::Transition(QpState::Err, QpState::Rts));
    assert_eq!(again, refused);
    // What is missing is missed all the same.
    let (mut qp, mut world, rts, mask) = ready_to_receive();
    qp.bind(&mut world).lost();
    let missing = qp.modify(&rts, mask - M::SQ_PSN, &mut world);
    assert_eq!(missing, Err(AttrError::Missing(M::SQ_PSN)));
    // The program's own step into the error state, and the way through RESET, leave nothing of it.
    let err = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    qp.modify(&err, M::STATE, &mut world).unwrap();
    assert_eq!(qp.modify(&rts, mask, &mut world), refused);
    let (mut qp, mut world, rts, mask) = ready_to_receive();
    qp.modify(&err, M::STATE, &mut world).unwrap();
    qp.bind(&mut world).lost();
    assert_eq!(qp.modify(&rts, mask, &mut world), refused);
}
