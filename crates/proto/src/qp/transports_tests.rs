//! The same programs over each transport.

use super::tests::{Built, End, KEY, SIGNALED, carry, pair_over, run};
use super::*;
use crate::express;
use crate::time::Duration;
use crate::trp::{Config, Connection, SendConfig};
use crate::types::{QpEvent, SendFlags, SendOp, Sge, Wc, WcFlags, WcOpcode};

const ALL: [TransportType; 2] = [TransportType::Iwarp, TransportType::StopAndWait];

const WRITE: SendOp = SendOp::Write {
    addr: 20_000,
    rkey: KEY,
};
const READ: SendOp = SendOp::Read {
    addr: 20_001,
    rkey: KEY,
};

fn ends(sends: &[Wc]) -> Vec<(WcOpcode, WcStatus)> {
    sends.iter().map(|wc| (wc.opcode, wc.status)).collect()
}

/// Messages of many units, and one whose turn it is to be carried out here.
fn post_program(a: &mut End, b: &mut End) {
    a.world.memory.borrow_mut()[..5000].copy_from_slice(&[1; 5000]);
    b.recv(9, &[(100, 1000), (8000, 7000)]);
    a.send(SendOp::SendImm(42), SIGNALED, &[(0, 3000), (3000, 2000)]);
    a.send(SendOp::LocalInv(KEY), SIGNALED, &[]);
    a.send(WRITE, SendFlags::empty(), &[(0, 2500)]);
    a.send(READ, SIGNALED | SendFlags::FENCE, &[(30_000, 2500)]);
    a.send(WRITE, SIGNALED | SendFlags::FENCE, &[(0, 0)]);
}

fn check_program(a: &End, b: &End) {
    let ok = WcStatus::Success;
    let expected = [
        (WcOpcode::Send, ok),
        (WcOpcode::LocalInv, ok),
        (WcOpcode::RdmaRead, ok),
        (WcOpcode::RdmaWrite, ok),
    ];
    assert_eq!(ends(&a.world.sends), expected);
    assert!(a.world.invalidated);
    let (wc, _) = b.world.recvs[0];
    assert_eq!((wc.wr_id, wc.byte_len, wc.imm), (9, 5000, 42));
    assert_eq!(wc.flags, WcFlags::WITH_IMM);
    let memory = b.world.memory.borrow();
    for placed in [100..1100, 8000..12_000, 20_000..22_500] {
        assert!(memory[placed].iter().all(|byte| *byte == 1));
    }
    assert_eq!(
        (memory[99], memory[12_000], memory[22_500]),
        (0xbb, 0xbb, 0xbb)
    );
    let memory = a.world.memory.borrow();
    assert!(memory[30_000..32_499].iter().all(|byte| *byte == 1));
    assert_eq!((memory[32_499], memory[32_500]), (0xbb, 0xaa));
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
}

#[test]
fn a_program_sees_the_same_over_each() {
    for transport in ALL {
        let (mut a, mut b) = pair_over(transport);
        post_program(&mut a, &mut b);
        run(&mut a, &mut b);
        check_program(&a, &b);
        assert!(!a.qp.has_sends() && !a.qp.expects_answer());
    }
}

/// Which transport it is shows in what it has under way.
#[test]
fn one_has_many_units_under_way_and_the_other_has_one() {
    let under_way = ALL.map(|transport| {
        let (mut a, _) = pair_over(transport);
        a.send(WRITE, SIGNALED, &[(0, 5000)]);
        let mut seq = 0;
        while a
            .qp
            .bind(&mut a.world)
            .next(Space::Request, seq, &mut Built::new(1000))
            .is_some()
        {
            seq += 1;
        }
        seq
    });
    assert_eq!(under_way, [5, 1]);
}

#[test]
fn each_tells_a_program_that_no_receive_was_posted() {
    for transport in ALL {
        let (mut a, mut b) = pair_over(transport);
        a.send(SendOp::Send, SendFlags::empty(), &[(0, 10)]);
        a.send(SendOp::Send, SendFlags::empty(), &[(0, 10)]);
        run(&mut a, &mut b);
        let statuses = ends(&a.world.sends).into_iter().map(|(_, status)| status);
        let expected = [WcStatus::RnrRetryExcErr, WcStatus::WrFlushErr];
        assert!(statuses.eq(expected), "{transport:?}");
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Rts));
    }
}

#[test]
fn each_fails_both_sides_for_a_bad_key_and_is_as_new_after_a_reset() {
    for transport in ALL {
        let (mut a, mut b) = pair_over(transport);
        let bad = SendOp::Read {
            addr: 0,
            rkey: KEY + 1,
        };
        a.send(WRITE, SIGNALED, &[(0, 1500)]);
        a.send(bad, SIGNALED, &[(0, 10)]);
        a.send(SendOp::Send, SIGNALED, &[(0, 10)]);
        run(&mut a, &mut b);
        let statuses = ends(&a.world.sends).into_iter().map(|(_, status)| status);
        assert!(statuses.eq([
            WcStatus::Success,
            WcStatus::RemAccessErr,
            WcStatus::WrFlushErr
        ]));
        assert_eq!(b.world.events, [QpEvent::AccessError]);
        for end in [&mut a, &mut b] {
            end.reset();
            (end.world.sends, end.world.recvs) = (Vec::new(), Vec::new());
        }
        post_program(&mut a, &mut b);
        run(&mut a, &mut b);
        check_program(&a, &b);
    }
}

#[test]
fn each_answers_no_more_once_the_program_has_failed_the_queue_pair() {
    for transport in ALL {
        let (mut a, mut b) = pair_over(transport);
        a.send(READ, SIGNALED, &[(0, 2500)]);
        assert!(carry(&mut a, &mut b, Space::Request, 1000));
        assert!(b.qp.has_segment(), "the answer is due");
        let attr = QpAttr {
            state: QpState::Err,
            ..QpAttr::default()
        };
        b.qp.modify(&attr, QpAttrMask::STATE, &mut b.world).unwrap();
        assert!(!b.qp.has_segment(), "{transport:?}");
        assert!(!carry(&mut b, &mut a, Space::Response, 1000));
    }
}

/// It completes as an operation that this side does not offer, and nothing was sent.
#[test]
fn an_operation_that_a_transport_does_not_know_fails_where_it_is_posted() {
    let (mut a, mut b) = pair_over(TransportType::StopAndWait);
    let atomic = SendOp::FetchAdd {
        addr: 0,
        rkey: KEY,
        add: 1,
    };
    a.send(WRITE, SIGNALED, &[(0, 8)]);
    a.send(atomic, SIGNALED, &[(0, 8)]);
    run(&mut a, &mut b);
    let statuses = ends(&a.world.sends).into_iter().map(|(_, status)| status);
    assert!(statuses.eq([WcStatus::Success, WcStatus::LocQpOpErr]));
    assert_eq!(b.qp.state(), QpState::Rts);
}

/// A transport without short ways declines each, and nothing has changed.
#[test]
fn short_ways_that_a_transport_does_not_have_decline() {
    let (mut a, mut b) = pair_over(TransportType::StopAndWait);
    b.recv(9, &[(0, 1000)]);
    a.qp.set_direct(true);
    let range = Sge {
        addr: 0,
        length: 8,
        lkey: KEY,
    };
    let request = Express {
        wr_id: 1,
        flags: SIGNALED,
        content: Content::Range(range),
        to: None,
    };
    let mut conn = Connection::new(Config::new(1, 2, 7, 0), Instant(0));
    let mut out = vec![0; conn.max_datagram()];
    let posting = (&mut conn, &mut a.qp, &mut a.world);
    assert!(express::post(posting, Instant(0), &request, &mut out).is_none());
    assert!(!a.qp.takes_plain(8, false, 0) && !a.qp.has_plain_place(8, 0));
    assert!(!a.qp.takes_short(false) && !a.qp.has_direct());
    assert!(!a.qp.is_last_whole(1000) && a.qp.one_acked(1).is_none());
    assert!(b.qp.takes_message(8).is_none());
    let bytes = [0; 8];
    assert!(!b.qp.receive_plain(Bytes::from(&bytes[..]), &mut b.world));
    assert!(!a.qp.has_sends() && b.world.recvs.is_empty());
    a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    run(&mut a, &mut b);
    assert_eq!(ends(&a.world.sends), [(WcOpcode::Send, WcStatus::Success)]);
    assert_eq!(b.world.recvs.len(), 1);
}

/// Carries datagrams between two connections until nothing is left to do, and loses a quarter of
/// them. Returns how many it has lost.
fn run_over_trp(ends: [&mut End; 2]) -> u32 {
    const COOKIES: [u64; 2] = [7, 8];
    const MOST: Duration = Duration::from_secs(60);
    let mut links = [0, 1].map(|side: usize| {
        let config = Config::new(side as u32 + 1, 2 - side as u32, COOKIES[side], 0);
        let mut link = Connection::new(config, Instant(0));
        link.start(SendConfig {
            sq_psn: 0,
            timeout: 14,
            retry_cnt: 7,
        });
        link
    });
    let (mut now, mut lost) = (Instant(0), 0);
    // A linear congruential generator (Knuth): what is regular may lose each repetition.
    let mut random = 1_u64;
    let mut out = vec![0; 2048];
    while ends.iter().any(|end| end.qp.has_sends()) {
        assert!(now < Instant(0) + MOST, "stuck: {links:?}");
        let mut idle = true;
        for side in [0, 1] {
            let from = &mut *ends[side];
            let mut bound = from.qp.bind(&mut from.world);
            let Some(sent) = links[side].poll_transmit(now, &mut bound, &mut out) else {
                continue;
            };
            idle = false;
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            if random >> 62 == 0 {
                lost += 1;
            } else {
                let to = &mut *ends[1 - side];
                let mut bound = to.qp.bind(&mut to.world);
                let datagram = &out[..sent.len];
                let _ = links[1 - side].on_datagram(now, datagram, &mut bound);
            }
        }
        now = now + Duration::from_micros(1);
        if idle {
            let due = links.iter().filter_map(Connection::poll_timeout).min();
            now = due.map_or(now, |at| at.max(now));
        }
        for side in [0, 1] {
            let end = &mut *ends[side];
            links[side].on_timeout(now, &mut end.qp.bind(&mut end.world));
            links[side].on_vain_pass();
        }
    }
    lost
}

#[test]
fn each_goes_over_a_carrier_that_sends_again_what_is_lost() {
    for transport in ALL {
        let (mut a, mut b) = pair_over(transport);
        post_program(&mut a, &mut b);
        assert!(run_over_trp([&mut a, &mut b]) > 0);
        check_program(&a, &b);
    }
}
