//! Sends that wait until a limit lets them through.

use super::tests::{End, KEY, SIGNALED, pair, path_steps, run, send_wr};
use super::unreliable_tests::ud;
use super::*;
use crate::types::{QpAttrMask as M, SendOp, Sge, WcOpcode};

/// Lets `count` work requests through. Returns the bytes of those that were asked for.
fn admit(end: &mut End, count: usize) -> Vec<u32> {
    let mut asked = Vec::new();
    end.qp.admit(|bytes| {
        asked.push(bytes);
        asked.len() <= count
    });
    asked
}

fn opcodes(end: &End) -> Vec<WcOpcode> {
    end.world.sends.iter().map(|wc| wc.opcode).collect()
}

#[test]
fn work_requests_start_one_after_the_other_as_they_are_let_through() {
    let (mut a, mut b) = pair();
    a.qp.set_paced(true);
    b.recv(1, &[(0, 5000)]);
    let (write, read) = (
        SendOp::Write {
            addr: 64,
            rkey: KEY,
        },
        SendOp::Read {
            addr: 64,
            rkey: KEY,
        },
    );
    a.send(SendOp::Send, SIGNALED, &[(0, 5000)]);
    a.send(write, SIGNALED, &[(0, 8)]);
    a.send(read, SIGNALED, &[(0, 3000)]);
    run(&mut a, &mut b);
    assert!(opcodes(&a).is_empty() && !a.qp.has_segment() && a.qp.has_unsent());
    assert_eq!(admit(&mut a, 1), [5000, 8], "the second was refused");
    run(&mut a, &mut b);
    assert_eq!(opcodes(&a), [WcOpcode::Send]);
    assert_eq!(admit(&mut a, 9), [8, 3000], "none is asked for twice");
    run(&mut a, &mut b);
    let all = [WcOpcode::Send, WcOpcode::RdmaWrite, WcOpcode::RdmaRead];
    assert_eq!(opcodes(&a), all);
    assert_eq!(admit(&mut a, 9), [0; 0]);
    a.send(write, SIGNALED, &[(0, 8)]);
    assert!(
        !a.qp.has_segment(),
        "what is let through is not kept for later"
    );
}

#[test]
fn what_is_begun_when_a_limit_is_set_goes_on() {
    let (mut a, mut b) = pair();
    b.recv(1, &[(0, 5000)]);
    b.recv(2, &[(0, 5000)]);
    a.send(SendOp::Send, SIGNALED, &[(0, 5000)]);
    a.send(SendOp::Send, SIGNALED, &[(0, 5000)]);
    assert!(super::tests::carry(&mut a, &mut b, Space::Request, 1100));
    a.qp.set_paced(true);
    run(&mut a, &mut b);
    assert_eq!(b.world.recvs.len(), 1);
    a.qp.set_paced(false);
    run(&mut a, &mut b);
    assert_eq!(b.world.recvs.len(), 2);
}

#[test]
fn the_short_ways_decline_while_a_limit_is_set() {
    let (mut a, mut b) = pair();
    a.qp.set_direct(true);
    let ways = |end: &End| {
        let range = Sge {
            addr: 0,
            length: 8,
            lkey: KEY,
        };
        let express = Express {
            wr_id: 1,
            flags: SIGNALED,
            content: Content::Range(range),
            to: None,
        };
        let plain = end.qp.takes_plain(8, false, 0);
        let short = end.qp.takes_short(false);
        [plain, short, end.qp.takes_express(&express)]
    };
    assert_eq!(ways(&a), [true; 3]);
    a.qp.set_paced(true);
    assert_eq!(ways(&a), [false; 3]);
    // Receiving goes on as it was.
    b.qp.set_paced(true);
    b.recv(1, &[(64, 8)]);
    with_transport!(&mut b.qp.0, |work, _| work.note_established(&mut b.world));
    assert!(b.qp.takes_message(8).is_some());
    a.qp.set_paced(false);
    assert_eq!(ways(&a), [true; 3]);
}

#[test]
fn what_sends_nothing_is_free_and_keeps_its_place() {
    let (mut a, mut b) = pair();
    a.qp.set_paced(true);
    b.recv(1, &[(0, 8)]);
    a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    let wr = send_wr(SendOp::LocalInv(KEY + 1), SIGNALED, &[]);
    a.qp.post_send(wr, &mut a.world).unwrap();
    assert!(a.world.sends.is_empty());
    assert_eq!(admit(&mut a, 1), [8], "only the SEND is asked for");
    run(&mut a, &mut b);
    assert_eq!(opcodes(&a), [WcOpcode::Send, WcOpcode::LocalInv]);
}

#[test]
fn states_hold_as_without_a_limit() {
    let (mut a, mut b) = pair();
    a.qp.set_paced(true);
    a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    let to = |state| QpAttr {
        state,
        ..QpAttr::default()
    };
    a.qp.modify(&to(QpState::Sqd), M::STATE, &mut a.world)
        .unwrap();
    assert_eq!(
        admit(&mut a, 9),
        [0; 0],
        "nothing is started while it drains"
    );
    a.qp.modify(&to(QpState::Err), M::STATE, &mut a.world)
        .unwrap();
    assert_eq!(a.world.sends.len(), 1);
    assert_eq!(a.world.sends[0].status, WcStatus::WrFlushErr);
    a.qp.modify(&to(QpState::Reset), M::STATE, &mut a.world)
        .unwrap();
    for (attr, mask) in path_steps(Service::Rc) {
        a.qp.modify(&attr, mask, &mut a.world).unwrap();
    }
    b.recv(1, &[(0, 8)]);
    a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    assert!(a.qp.is_paced() && !a.qp.has_segment());
    assert_eq!(admit(&mut a, 9), [8]);
    assert!(a.qp.has_segment());
}

#[test]
fn datagrams_wait_too() {
    let (mut qp, mut world) = ud(QpState::Rts);
    qp.set_paced(true);
    let op = SendOp::Datagram {
        ah: 1,
        qpn: 2,
        qkey: 3,
        imm: None,
    };
    for range in [(0, 8), (8, 16)] {
        let wr = send_wr(op, SIGNALED, &[range]);
        qp.post_send(wr, &mut world).unwrap();
    }
    let mut sent = Vec::new();
    for (admitted, asked) in [(0, 1), (1, 2), (1, 1)] {
        let mut calls = 0;
        qp.admit(|_| {
            calls += 1;
            calls <= admitted
        });
        assert_eq!(calls, asked);
        let mut room = [0; 64];
        let mut out = crate::BytesMut::from(&mut room[..]);
        let next = qp.next_datagram(&mut out, &mut world);
        sent.push(next.map(|sent| sent.len));
        assert!(qp.next_datagram(&mut out, &mut world).is_none());
    }
    assert_eq!(sent, [None, Some(8), Some(16)]);
}
