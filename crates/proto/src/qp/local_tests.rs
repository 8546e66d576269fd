//! Work requests that send nothing: when they take effect, and what comes of those that cannot.

use super::tests::{KEY, PD, SIGNALED, pair, pair_of, run, send_wr};
use super::*;
use crate::types::{Access, Binding};

/// The window's next key.
const WINDOW: u32 = 0x907;

fn bind(wr_id: u64, region: u32) -> SendWr {
    let binding = Binding {
        window: WINDOW - 1,
        region: Some(region),
        access: Access::REMOTE_WRITE,
        addr: 0,
        len: 64,
    };
    SendWr {
        wr_id,
        payload: Payload::Window(binding),
        ..send_wr(SendOp::BindMw(WINDOW), SIGNALED, &[])
    }
}

#[test]
fn a_bind_needs_no_peer() {
    for service in [Service::Rc, Service::Uc] {
        let (mut a, _) = pair_of(service);
        a.qp.post_send(bind(5, KEY), &mut a.world).unwrap();
        let via = Via {
            pd: PD,
            qpn: a.qp.qpn(),
        };
        assert_eq!(a.world.bound, [(via, WINDOW)]);
        let wc = a.world.sends[0];
        assert_eq!((wc.wr_id, wc.status), (5, WcStatus::Success));
        assert_eq!(wc.opcode, WcOpcode::BindMw);
    }
}

#[test]
fn a_bind_takes_effect_and_completes_in_its_turn() {
    let (mut a, mut b) = pair();
    b.recv(1, &[(100, 50)]);
    b.recv(2, &[(100, 50)]);
    a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    a.qp.post_send(bind(5, KEY), &mut a.world).unwrap();
    assert!(a.world.bound.is_empty(), "the send before it is not sent");
    a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    a.send(SendOp::LocalInv(KEY), SIGNALED, &[]);
    run(&mut a, &mut b);
    assert_eq!(a.world.bound.len(), 1);
    let opcodes: Vec<_> = a.world.sends.iter().map(|wc| wc.opcode).collect();
    let send = WcOpcode::Send;
    assert_eq!(opcodes, [send, WcOpcode::BindMw, send, WcOpcode::LocalInv]);
    assert_eq!(b.world.recvs.len(), 2);
}

#[test]
fn a_fenced_bind_waits_for_the_read_before_it() {
    let (mut a, mut b) = pair();
    a.send(SendOp::Read { addr: 0, rkey: KEY }, SIGNALED, &[(0, 3000)]);
    let mut fenced = bind(5, KEY);
    fenced.flags |= SendFlags::FENCE;
    a.qp.post_send(fenced, &mut a.world).unwrap();
    run(&mut a, &mut b);
    let ids: Vec<_> = a.world.sends.iter().map(|wc| wc.opcode).collect();
    assert_eq!(ids, [WcOpcode::RdmaRead, WcOpcode::BindMw]);
}

#[test]
fn a_bind_that_fails_ends_what_is_behind_it() {
    for (service, state) in [(Service::Rc, QpState::Err), (Service::Uc, QpState::Sqe)] {
        let (mut a, mut b) = pair_of(service);
        a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
        a.qp.post_send(bind(5, KEY + 1), &mut a.world).unwrap();
        a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
        assert!(a.world.sends.is_empty());
        b.recv(1, &[(100, 50)]);
        run(&mut a, &mut b);
        let statuses: Vec<_> = a.world.sends.iter().map(|wc| wc.status).collect();
        let failed = [WcStatus::Success, WcStatus::MwBindErr, WcStatus::WrFlushErr];
        assert_eq!(statuses, failed);
        assert_eq!(a.qp.state(), state);
        assert!(a.world.bound.is_empty());
    }
}

#[test]
fn what_binds_says_what_and_nothing_else_does() {
    let (mut a, _) = pair();
    let no_window = send_wr(SendOp::BindMw(WINDOW), SIGNALED, &[]);
    let not_a_bind = SendWr {
        op: SendOp::Send,
        ..bind(1, KEY)
    };
    for wr in [no_window, not_a_bind] {
        let posted = a.qp.post_send(wr, &mut a.world);
        assert_eq!(posted, Err(PostError::Invalid));
    }
}

#[test]
fn a_bind_of_an_unreliable_queue_pair_whose_peer_is_gone_is_done() {
    let (mut a, _) = pair_of(Service::Uc);
    a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    a.qp.post_send(bind(5, KEY), &mut a.world).unwrap();
    a.qp.bind(&mut a.world).lost();
    assert_eq!(a.world.bound.len(), 1);
    a.qp.post_send(bind(6, KEY), &mut a.world).unwrap();
    a.qp.post_send(bind(7, KEY + 1), &mut a.world).unwrap();
    let ends: Vec<_> = a
        .world
        .sends
        .iter()
        .map(|wc| (wc.wr_id, wc.status))
        .collect();
    let ok = WcStatus::Success;
    assert_eq!(ends, [(1, ok), (5, ok), (6, ok), (7, WcStatus::MwBindErr)]);
    assert_eq!(a.qp.state(), QpState::Sqe);
}
