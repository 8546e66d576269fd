//! Work requests that send nothing: when they take effect, and what comes of those that cannot.

use super::tests::{KEY, PD, SIGNALED, pair, pair_of, run, send_wr};
use super::*;
use crate::host::Via;
use crate::types::{Access, Binding, Payload, SendFlags, SendOp, WcOpcode};

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

#[test]
fn a_key_in_flight_holds_up_its_own_queue_only_and_not_what_comes() {
    let (mut a, mut b) = pair();
    a.world.in_flight = true;
    a.send(SendOp::LocalInv(KEY), SIGNALED, &[]);
    a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    b.recv(1, &[(100, 50)]);
    a.recv(2, &[(100, 50)]);
    b.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    run(&mut a, &mut b);
    assert!(a.world.invalidated && a.qp.is_withdrawing());
    assert!(a.world.sends.is_empty() && b.world.recvs.is_empty());
    assert_eq!((a.world.recvs.len(), b.world.sends.len()), (1, 1));
    a.qp.look_at_withdrawal(&mut a.world);
    assert!(a.qp.is_withdrawing() && !a.qp.has_segment());
    a.world.in_flight = false;
    a.qp.look_at_withdrawal(&mut a.world);
    assert!(!a.qp.is_withdrawing());
    run(&mut a, &mut b);
    let opcodes: Vec<_> = a.world.sends.iter().map(|wc| wc.opcode).collect();
    assert_eq!(opcodes, [WcOpcode::LocalInv, WcOpcode::Send]);
    assert_eq!(b.world.recvs.len(), 1);
}

#[test]
fn what_withdraws_a_key_is_flushed_once_with_the_others() {
    for service in [Service::Rc, Service::Uc] {
        let (mut a, _) = pair_of(service);
        a.world.in_flight = true;
        a.qp.post_send(bind(5, KEY), &mut a.world).unwrap();
        a.qp.post_send(bind(6, KEY), &mut a.world).unwrap();
        a.qp.fail(&mut a.world);
        a.world.in_flight = false;
        a.qp.look_at_withdrawal(&mut a.world);
        let ends: Vec<_> = a
            .world
            .sends
            .iter()
            .map(|wc| (wc.wr_id, wc.status))
            .collect();
        let flushed = WcStatus::WrFlushErr;
        assert_eq!(ends, [(5, flushed), (6, flushed)]);
        assert_eq!(a.world.bound.len(), 1);
    }
}

#[test]
fn a_queue_pair_without_its_peer_waits_for_its_key_too() {
    let (mut a, _) = pair_of(Service::Uc);
    a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    a.world.in_flight = true;
    a.qp.post_send(bind(5, KEY), &mut a.world).unwrap();
    a.qp.bind(&mut a.world).lost();
    a.qp.post_send(bind(6, KEY), &mut a.world).unwrap();
    a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    assert_eq!((a.world.sends.len(), a.world.bound.len()), (1, 1));
    a.qp.look_at_withdrawal(&mut a.world);
    assert_eq!((a.world.sends.len(), a.world.bound.len()), (1, 1));
    a.world.in_flight = false;
    a.qp.look_at_withdrawal(&mut a.world);
    assert_eq!((a.world.sends.len(), a.world.bound.len()), (4, 2));
}

#[test]
fn who_accesses_by_the_key_that_it_gives_up_is_expelled() {
    let (mut a, mut b) = pair();
    b.world.in_flight = true;
    b.recv(1, &[(100, 50)]);
    a.send(SendOp::SendInv(KEY), SIGNALED, &[(0, 8)]);
    run(&mut a, &mut b);
    assert_eq!(b.world.expelled, [(b.qp.qpn(), KEY)]);
}
