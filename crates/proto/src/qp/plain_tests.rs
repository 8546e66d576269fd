//! Plain sends, written by the link as they were posted.

use super::tests::{Built, End, KEY, SIGNALED, pair, pair_of};
use super::*;
use crate::types::{SendOp, Sge, Wc};

/// Numbers of requests begin here.
const FIRST: u64 = 5;
const NEVER: Instant = Instant(0);

/// Posts a plain send as request `seq`, of bytes at `addr` or inline.
fn post(end: &mut End, wr_id: u64, seq: u64, payload: PlainPayload) {
    let inline = matches!(payload, PlainPayload::Inline(_));
    assert!(end.qp.takes_plain(8, inline, seq));
    let send = PlainSend {
        wr_id,
        flags: SIGNALED,
        len: 8,
        payload,
    };
    end.qp.post_plain(send, seq);
}

fn range(addr: u64) -> PlainPayload {
    PlainPayload::Range(Sge {
        addr,
        length: 8,
        lkey: KEY,
    })
}

fn inline(bytes: [u8; 8]) -> PlainPayload {
    PlainPayload::Inline([u64::from_ne_bytes(bytes), 0, 0, 0, 0])
}

/// Names and outcomes of the completions of sends.
fn ended(end: &End) -> Vec<(u64, WcStatus)> {
    let of = |wc: &Wc| (wc.wr_id, wc.status);
    end.world.sends.iter().map(of).collect()
}

fn meta(seq: u64) -> SegMeta {
    SegMeta {
        seq,
        first: seq,
        last: true,
        direct: false,
    }
}

fn message(end: &mut End, seq: u64, bytes: &[u8]) -> Verdict {
    let mut bound = end.qp.bind(&mut end.world);
    bound.message(meta(seq), Bytes::from(bytes))
}

#[test]
fn they_complete_in_order_with_those_behind_them_and_free_their_places() {
    let (mut a, _) = pair();
    post(&mut a, 10, FIRST, range(0));
    post(&mut a, 11, FIRST + 1, inline([7; 8]));
    a.send(SendOp::SendImm(1), SIGNALED, &[(0, 4)]);
    assert!(!a.qp.takes_plain(8, false, FIRST + 2), "one is before it");
    let mut built = Built::new(100);
    let mut bound = a.qp.bind(&mut a.world);
    assert!(bound.next(Space::Request, FIRST + 2, &mut built).is_some());
    bound.acked(Space::Request, FIRST + 1);
    assert_eq!(ended(&a), [(10, WcStatus::Success)]);
    a.qp.bind(&mut a.world).acked(Space::Request, FIRST + 3);
    let all = [10, 11, 1].map(|id| (id, WcStatus::Success));
    assert_eq!(ended(&a), all);
    assert_eq!(a.world.places, [1; 3]);
    assert!(!a.qp.has_sends());
    assert!(a.qp.takes_plain(8, false, FIRST + 3));
}

#[test]
fn one_that_was_refused_for_a_while_is_built_again_with_its_bytes() {
    let (mut a, _) = pair();
    a.world.memory.borrow_mut()[64..72].copy_from_slice(b"in range");
    post(&mut a, 10, FIRST, range(64));
    post(&mut a, 11, FIRST + 1, inline(*b"inlined!"));
    for (seq, bytes) in [(FIRST, b"in range"), (FIRST + 1, b"inlined!")] {
        let mut bound = a.qp.bind(&mut a.world);
        assert!(bound.not_ready(seq, 1, NEVER).is_some());
        let mut built = Built::new(100);
        assert_eq!(
            bound.again(Space::Request, seq, &mut built),
            Some(meta(seq))
        );
        let msn = u32::try_from(seq - FIRST).unwrap() + 1;
        assert_eq!(built.sent(), (Unit::plain_send(msn), &bytes[..]));
        bound.acked(Space::Request, seq + 1);
    }
    assert_eq!(ended(&a), [10, 11].map(|id| (id, WcStatus::Success)));
}

#[test]
fn messages_behind_them_do_not_change_their_numbers() {
    let (mut a, _) = pair();
    post(&mut a, 10, FIRST, range(0));
    post(&mut a, 11, FIRST + 1, range(0));
    for op in [SendOp::SendImm(1), SendOp::Write { addr: 0, rkey: KEY }] {
        a.send(op, SIGNALED, &[(0, 8)]);
    }
    let mut room = Built::new(100);
    for seq in [FIRST + 2, FIRST + 3] {
        let mut bound = a.qp.bind(&mut a.world);
        assert!(bound.next(Space::Request, seq, &mut room).is_some());
    }
    let mut numbers = Vec::new();
    for seq in FIRST..FIRST + 3 {
        let mut built = Built::new(100);
        let mut bound = a.qp.bind(&mut a.world);
        bound.again(Space::Request, seq, &mut built).unwrap();
        match built.sent() {
            (Unit::Send { msn, .. }, _) => numbers.push(msn),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(numbers, [1, 2, 3]);
    // The next plain one is the fourth message, once those before it are done.
    a.qp.bind(&mut a.world).acked(Space::Request, FIRST + 4);
    post(&mut a, 12, FIRST + 4, range(0));
    let mut built = Built::new(100);
    let mut bound = a.qp.bind(&mut a.world);
    bound.again(Space::Request, FIRST + 4, &mut built).unwrap();
    assert_eq!(built.sent().0, Unit::plain_send(4));
}

#[test]
fn what_fails_does_so_in_its_turn_and_what_is_behind_it_is_flushed() {
    let failed = WcStatus::WrFlushErr;
    for (nak, status) in [
        (None, WcStatus::RetryExcErr),
        (Some(Nak::RemoteOperation), WcStatus::RemOpErr),
    ] {
        let (mut a, _) = pair();
        for i in 0..3 {
            post(&mut a, i, FIRST + i, range(0));
        }
        let mut bound = a.qp.bind(&mut a.world);
        let before = match nak {
            None => {
                bound.lost();
                0
            }
            Some(nak) => {
                bound.refused(FIRST + 1, nak);
                1
            }
        };
        let mut expected = vec![(0, WcStatus::Success); before];
        expected.push((before as u64, status));
        expected.extend((before as u64 + 1..3).map(|id| (id, failed)));
        assert_eq!(ended(&a), expected);
        assert_eq!(a.qp.state(), QpState::Err);
    }
}

#[test]
fn too_many_refusals_fail_it() {
    let (mut a, _) = pair();
    post(&mut a, 10, FIRST, range(0));
    post(&mut a, 11, FIRST + 1, range(0));
    let mut bound = a.qp.bind(&mut a.world);
    assert!(bound.not_ready(FIRST, 1, NEVER).is_some());
    assert!(bound.not_ready(FIRST, 1, NEVER).is_none());
    let expected = [(10, WcStatus::RnrRetryExcErr), (11, WcStatus::WrFlushErr)];
    assert_eq!(ended(&a), expected);
}

#[test]
fn there_are_no_more_than_the_queue_has_places() {
    let (mut a, _) = pair();
    for seq in FIRST..FIRST + 16 {
        post(&mut a, 1, seq, range(0));
    }
    assert!(!a.qp.takes_plain(8, false, FIRST + 16));
    a.qp.bind(&mut a.world).acked(Space::Request, FIRST + 16);
    assert!(!a.qp.takes_plain(8, false, FIRST + 16), "none is polled");
    a.qp.release_send(a.world.places[0]);
    assert!(a.qp.takes_plain(8, false, FIRST + 16));
    assert!(
        !a.qp.takes_plain(65, true, FIRST + 16),
        "longer than inline data"
    );
}

/// As a poll takes it.
fn take_one_acked(a: &mut End, upto: u64) -> Option<Wc> {
    let wc = a.qp.one_acked(upto)?;
    a.qp.take_one_acked(upto);
    Some(wc)
}

#[test]
fn the_oldest_is_taken_for_a_poll_if_it_alone_is_acknowledged() {
    let (mut a, _) = pair();
    for (wr_id, seq) in (10..26).zip(FIRST..) {
        post(&mut a, wr_id, seq, range(0));
    }
    assert_eq!(take_one_acked(&mut a, FIRST), None, "no news");
    assert_eq!(
        take_one_acked(&mut a, FIRST + 2),
        None,
        "two are acknowledged"
    );
    let wc = take_one_acked(&mut a, FIRST + 1).unwrap();
    assert_eq!((wc.wr_id, wc.status), (10, WcStatus::Success));
    assert_eq!((wc.opcode, wc.byte_len), (crate::types::WcOpcode::Send, 8));
    assert!(ended(&a).is_empty(), "it is the poll's alone");
    // Its place is free at once.
    post(&mut a, 26, FIRST + 16, range(0));
    assert!(!a.qp.takes_plain(8, false, FIRST + 17));
    a.qp.bind(&mut a.world).acked(Space::Request, FIRST + 17);
    let rest: Vec<_> = (11..27).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(ended(&a), rest);
}

#[test]
fn one_with_others_behind_it_or_without_a_completion_is_not_taken_for_a_poll() {
    let (mut a, _) = pair();
    post(&mut a, 10, FIRST, range(0));
    a.send(SendOp::SendImm(1), SIGNALED, &[(0, 4)]);
    assert_eq!(
        take_one_acked(&mut a, FIRST + 1),
        None,
        "another is behind it"
    );
    let (mut a, _) = pair();
    let silent = PlainSend {
        wr_id: 10,
        len: 8,
        ..PlainSend::default()
    };
    a.qp.post_plain(silent, FIRST);
    assert_eq!(take_one_acked(&mut a, FIRST + 1), None);
    // That one's place is free with the next that has a completion.
    post(&mut a, 11, FIRST + 1, range(0));
    a.qp.bind(&mut a.world).acked(Space::Request, FIRST + 1);
    assert_eq!(take_one_acked(&mut a, FIRST + 2).unwrap().wr_id, 11);
    for seq in FIRST + 2..FIRST + 18 {
        post(&mut a, 1, seq, range(0));
    }
}

#[test]
fn a_message_that_a_poll_is_given_frees_its_receive() {
    let (_, mut b) = pair();
    b.recv(0, &[(0, 8)]);
    assert_eq!(message(&mut b, 0, b"12345678"), Verdict::Placed);
    b.qp.release_recvs(1);
    for wr_id in 0..100 {
        b.recv(wr_id, &[(100, 8)]);
        assert_eq!(b.qp.takes_message(9), None, "too long");
        let (taken, range) = b.qp.takes_message(8).expect("a receive");
        assert_eq!((taken, range.addr, range.length), (wr_id, 100, 8));
        let wc = b.qp.took_polled_message(taken, 8);
        assert_eq!((wc.wr_id, wc.byte_len), (wr_id, 8));
    }
    b.recv(100, &[(100, 4), (200, 4)]);
    assert_eq!(b.qp.takes_message(8), None, "two ranges");
}

#[test]
fn a_message_takes_the_next_receive() {
    let (_, mut b) = pair();
    assert_eq!(message(&mut b, 0, b"12345678"), Verdict::NotReady(12));
    b.recv(3, &[(100, 4), (200, 4)]);
    assert_eq!(message(&mut b, 0, b"12345678"), Verdict::Placed);
    b.recv(4, &[(300, 8)]);
    let short = b.qp.bind(&mut b.world);
    assert!(
        short
            .qp
            .receive_plain(Bytes::from(&b"abcdefgh"[..]), short.host)
    );
    let memory = b.world.memory.borrow();
    assert_eq!([&memory[100..104], &memory[200..204]].concat(), b"12345678");
    assert_eq!(&memory[300..308], b"abcdefgh");
    let ids: Vec<_> = b.world.recvs.iter().map(|(wc, _)| wc.wr_id).collect();
    assert_eq!(ids, [3, 4]);
}

#[test]
fn a_message_in_the_middle_of_another_is_refused() {
    let (mut a, mut b) = pair();
    b.recv(3, &[(0, 4000)]);
    a.send(SendOp::Send, SIGNALED, &[(0, 2000)]);
    assert!(super::tests::carry(&mut a, &mut b, Space::Request, 1100));
    let verdict = message(&mut b, 1, b"12345678");
    assert_eq!(verdict, Verdict::Refused(Nak::InvalidRequest));
}

#[test]
fn other_services_have_no_plain_sends() {
    let (a, mut b) = pair_of(Service::Uc);
    assert!(!a.qp.takes_plain(8, false, 0));
    b.recv(3, &[(0, 100)]);
    message(&mut b, 0, b"12345678");
    assert!(b.world.recvs.is_empty());
    assert_eq!(b.world.memory.borrow()[0], 0xbb);
}
