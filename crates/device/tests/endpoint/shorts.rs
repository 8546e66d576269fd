//! Short messages: the short ways of posting, taking and polling them, and where those leave it to
//! the long ones.

use std::sync::atomic::Ordering;

use causeway_device::{Errno, Glance, Request, Waiting};
use causeway_proto::types::{QpState, RecvWr, SendFlags, SendOp, Sge, Wc, WcStatus};

use crate::broker::{Broker, until};
use crate::side::{DEPTH, Side, connect, connected, exchange};

/// A SEND as a program posts it.
#[derive(Clone, Copy)]
pub struct Send {
    pub wr_id: u64,
    pub flags: SendFlags,
    pub range: Sge,
}

impl Request for Send {
    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    fn flags(&self) -> SendFlags {
        self.flags
    }

    fn addr(&self) -> u64 {
        self.range.addr
    }

    fn length(&self) -> u32 {
        self.range.length
    }

    fn lkey(&self) -> u32 {
        self.range.lkey
    }
}

pub fn send(range: Sge) -> Send {
    Send {
        wr_id: 9,
        flags: SendFlags::SIGNALED,
        range,
    }
}

/// Posts a receive the long way.
fn post_recv(side: &Side, wr_id: u64) -> Result<(), (usize, Errno)> {
    let sges = [side.sge(0, 8)].into_iter().collect();
    side.qp
        .post_recv_list([Ok(RecvWr { wr_id, sges })].into_iter())
}

/// Two that have exchanged messages, so that nothing is the first.
pub fn talking(broker: &Broker) -> (Side, Side) {
    let (a, b) = connected(broker);
    (1..4).for_each(|value| exchange(&a, &b, value));
    (a, b)
}

/// The completions that both get until each has one.
pub fn both(a: &Side, b: &Side) -> [Wc; 2] {
    let mut found = [None; 2];
    until("a completion on each side", || {
        for (side, found) in [a, b].into_iter().zip(&mut found) {
            if found.is_none() {
                side.cq.poll(1, |wc, _| *found = Some(*wc)).unwrap();
            }
        }
        found.iter().all(Option::is_some)
    });
    found.map(Option::unwrap)
}

#[test]
fn messages_of_each_length_go_the_short_way_and_arrive_whole() {
    let broker = Broker::start();
    let (a, b) = talking(&broker);
    for (round, len) in [1, 7, 8, 9, 39, 40, 41, 64, 1000, 8192]
        .into_iter()
        .enumerate()
    {
        let value = u64::from_ne_bytes([round as u8 + 1; 8]);
        (0..1024).for_each(|at| a.memory.word(8 * at).store(value, Ordering::Relaxed));
        (0..1025).for_each(|at| b.memory.word(8 * at).store(0, Ordering::Relaxed));
        assert!(b.qp.post_recv_range(7, b.sge(0, 8200)));
        assert!(a.qp.post_two_sided(send(a.sge(0, len))), "{len} bytes");
        let [sent, received] = both(&a, &b);
        assert_eq!((sent.wr_id, sent.status), (9, WcStatus::Success));
        let of = (received.wr_id, received.status, received.byte_len);
        assert_eq!(of, (7, WcStatus::Success, len));
        let bytes =
            (0..1025).flat_map(|at| b.memory.word(8 * at).load(Ordering::Relaxed).to_ne_bytes());
        let same = bytes.enumerate().all(|(at, byte)| {
            let expected = if at < len as usize {
                round as u8 + 1
            } else {
                0
            };
            byte == expected
        });
        assert!(same, "{len} bytes");
    }
}

/// Polls as `ibv_poll_cq(3)` does. Whether a lock is biased towards this thread depends on the
/// helper threads, too: so some polls find messages and acknowledgments at once, and others not.
fn poll(side: &Side) -> Option<Wc> {
    if side.cq.waiting() == Waiting::None
        && let Some(mut held) = side.cq.hurry()
    {
        let mut found = None;
        let mut out = |wc: &Wc| found = Some(*wc);
        // SAFETY: the glance shows the ring, and what follows declines before the next is called.
        let taken = unsafe {
            match side.cq.glance(&mut held) {
                Glance::Word(ring) => {
                    side.cq.take_message::<true>(&mut held, ring, &mut out)
                        || side.cq.take_message::<false>(&mut held, ring, &mut out)
                }
                Glance::Record(ring) => side.cq.take_message::<false>(&mut held, ring, &mut out),
                Glance::Ack(ring) => {
                    side.cq.take_ack::<false>(&mut held, ring, &mut out)
                        || side.cq.take_ack::<true>(&mut held, ring, &mut out)
                }
                Glance::Nothing | Glance::All => false,
            }
        };
        assert_eq!(taken, found.is_some());
        if taken {
            return found;
        }
    }
    let mut found = None;
    side.cq.poll(1, |wc, _| found = Some(*wc)).unwrap();
    found
}

#[test]
fn polls_that_find_some_at_once_and_some_otherwise_find_all_in_order() {
    const ROUNDS: u64 = 5000;
    let broker = Broker::start();
    let (a, b) = talking(&broker);
    for round in 0..ROUNDS {
        a.memory.word(0).store(round, Ordering::Relaxed);
        assert!(b.qp.post_recv_range(round, b.sge(8, 8)), "there is room");
        let request = Send {
            wr_id: round,
            ..send(a.sge(0, 8))
        };
        // Where the ring begins again, one goes the long way.
        if !a.qp.hurry_send(&request) && !a.qp.post_two_sided(request) {
            a.post(round, SendOp::Send, 0).expect("there is room");
        }
        for side in [&b, &a] {
            let mut found = None;
            until("a completion", || {
                // The one that has taken the message tells of that when it looks again.
                if std::ptr::eq(side, &raw const a) {
                    assert!(poll(&b).is_none(), "one message, one completion");
                }
                found = poll(side);
                found.is_some()
            });
            let wc = found.unwrap();
            let of = (wc.wr_id, wc.status, wc.byte_len);
            assert_eq!(of, (round, WcStatus::Success, 8));
        }
        assert_eq!(b.memory.word(8).load(Ordering::Relaxed), round);
    }
}

#[test]
fn what_is_out_of_the_ordinary_is_declined_and_nothing_done() {
    let broker = Broker::start();
    let (a, b) = talking(&broker);
    let ordinary = a.sge(0, 8);
    let declined = [
        send(Sge {
            lkey: ordinary.lkey ^ 1,
            ..ordinary
        }),
        send(Sge {
            addr: ordinary.addr - 1,
            ..ordinary
        }),
        send(a.sge(0, 8193)),
        Send {
            flags: SendFlags::SIGNALED | SendFlags::SOLICITED,
            ..send(ordinary)
        },
        Send {
            flags: SendFlags::SIGNALED | SendFlags::FENCE,
            ..send(ordinary)
        },
        Send {
            flags: SendFlags::INLINE,
            ..send(a.sge(0, 65))
        },
    ];
    for request in declined {
        let flags = request.flags;
        assert!(!a.qp.post_two_sided(request), "{flags:?}");
    }
    // The one after them is the next.
    assert!(b.qp.post_recv_range(7, b.sge(0, 8)));
    assert!(a.qp.post_two_sided(send(ordinary)));
    assert_eq!(both(&a, &b).map(|wc| wc.wr_id), [9, 7]);
    // Both queues hold so many, and no more.
    for at in 0..=u64::from(DEPTH) {
        let fits = at < u64::from(DEPTH);
        // The short way does not make the array larger that receives lie in.
        let received = b.qp.post_recv_range(at, b.sge(0, 8)) || post_recv(&b, at).is_ok();
        assert_eq!(received, fits);
        assert_eq!(a.qp.post_two_sided(send(ordinary)), fits);
    }
    assert_eq!(post_recv(&b, 1), Err((0, Errno(libc::ENOMEM))));
    for wr_id in 0..u64::from(DEPTH) {
        let [sent, received] = both(&a, &b);
        assert_eq!((sent.wr_id, received.wr_id), (9, wr_id));
    }
}

#[test]
fn a_message_that_finds_no_receive_waits_for_one_and_those_behind_it_too() {
    let broker = Broker::start();
    let (a, b) = talking(&broker);
    for wr_id in 0..3 {
        let request = Send {
            wr_id,
            ..send(a.sge(0, 8))
        };
        // The peer's helper thread may have refused the first one already.
        if !a.qp.post_two_sided(request) {
            a.post(wr_id, SendOp::Send, 0).unwrap();
        }
    }
    // It is refused, and the others are dropped.
    for side in [&b, &a] {
        side.cq
            .poll(1, |_, _| panic!("there is no receive"))
            .unwrap();
    }
    for wr_id in 0..3 {
        assert!(b.qp.post_recv_range(10 + wr_id, b.sge(0, 8)));
        let [sent, received] = both(&a, &b);
        assert_eq!((sent.wr_id, received.wr_id), (wr_id, 10 + wr_id));
        assert_eq!(sent.status, WcStatus::Success);
    }
}

#[test]
fn a_full_send_queue_takes_another_the_short_way_once_a_completion_is_polled() {
    let broker = Broker::start();
    let (a, b) = talking(&broker);
    for wr_id in 0..u64::from(DEPTH) {
        post_recv(&b, wr_id).unwrap();
        assert!(a.qp.post_two_sided(send(a.sge(0, 8))), "message {wr_id}");
    }
    assert!(!a.qp.post_two_sided(send(a.sge(0, 8))), "one too many");
    for wr_id in 0..u64::from(DEPTH) {
        let [sent, received] = both(&a, &b);
        assert_eq!(sent.status, WcStatus::Success);
        assert_eq!(received.wr_id, wr_id);
        post_recv(&b, wr_id).unwrap();
        assert!(a.qp.post_two_sided(send(a.sge(0, 8))), "one was polled");
        assert!(!a.qp.post_two_sided(send(a.sge(0, 8))), "but one");
    }
}

#[test]
fn a_receive_with_a_wrong_key_fails_as_the_long_way_says() {
    let broker = Broker::start();
    let (a, b) = talking(&broker);
    let wrong = Sge {
        lkey: b.mr.lkey() ^ 1,
        ..b.sge(0, 8)
    };
    assert!(b.qp.post_recv_range(5, wrong));
    assert!(b.qp.post_recv_range(6, b.sge(0, 8)));
    assert!(a.qp.post_two_sided(send(a.sge(0, 8))));
    let [sent, received] = both(&a, &b);
    assert_eq!((sent.wr_id, sent.status), (9, WcStatus::RemOpErr));
    let failed = (received.wr_id, received.status);
    assert_eq!(failed, (5, WcStatus::LocProtErr));
    let flushed = b.wait();
    assert_eq!((flushed.wr_id, flushed.status), (6, WcStatus::WrFlushErr));
    until("the error state", || a.state() == QpState::Err);
    assert!(!a.qp.post_two_sided(send(a.sge(0, 8))));
    assert!(!b.qp.post_recv_range(7, b.sge(0, 8)));
}

#[test]
fn many_rings_take_turns_and_none_is_forgotten() {
    let broker = Broker::start();
    let first = Side::new(&broker);
    let mut sides = vec![first];
    for _ in 0..3 {
        sides.push(Side::of(sides[0].context.clone()));
    }
    let peers: Vec<_> = sides.iter().map(|_| Side::new(&broker)).collect();
    for (side, peer) in sides.iter().zip(&peers) {
        connect(side, peer);
        (1..4).for_each(|value| exchange(side, peer, value));
    }
    for round in 0..200 {
        for (side, peer) in sides.iter().zip(&peers) {
            assert!(side.qp.post_recv_range(round, side.sge(64, 8)));
            peer.post(round, SendOp::Send, 0).unwrap();
        }
        for (side, peer) in sides.iter().zip(&peers) {
            let [received, sent] = both(side, peer);
            assert_eq!((received.wr_id, sent.wr_id), (round, round));
        }
    }
}
