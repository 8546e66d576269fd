//! The work queues alone, over a transport that does nothing but number.

use smallvec::smallvec;

use super::*;
use crate::types::{RecvWr, WcOpcode};
use crate::world::{KEY, PD, World};

/// Work requests with lower numbers are done.
#[derive(Debug, Default)]
struct Numbers {
    done: u64,
}

/// The number of a work request that was sent.
#[derive(Debug, Default)]
struct Number(Option<u64>);

impl Part for Number {
    fn is_begun(&self) -> bool {
        self.0.is_some()
    }
}

impl Numbering for Numbers {
    type Part = Number;

    fn is_done(&self, entry: &Entry<Number>) -> bool {
        entry.part.0.is_some_and(|number| number < self.done)
    }

    fn done_below(&self) -> u64 {
        self.done
    }

    fn skip(&self, queue: &mut SendQueue<Number>) {
        let before = queue.before_cursor().and_then(|wqe| wqe.part.0);
        if let Some(wqe) = queue.current_mut() {
            wqe.part = Number(before.or(Some(0)));
        }
    }
}

struct End {
    work: WorkQueues<Numbers>,
    transport: Numbers,
    world: World,
    sent: u64,
}

impl End {
    /// One that is ready to send, whose transport has sent nothing.
    fn new() -> End {
        let cap = QpCap {
            max_send_wr: 4,
            max_recv_wr: 2,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut work = WorkQueues::new(QpConfig {
            qpn: 1,
            service: Service::Rc,
            pd: PD,
            cap,
            sq_sig_all: true,
            srq: false,
        });
        work.set_state(QpState::Rts);
        End {
            work,
            transport: Numbers { done: 1 },
            world: World::new(0),
            sent: 1,
        }
    }

    fn post(&mut self, wr_id: u64, op: SendOp) -> Result<(), PostError> {
        let sge = Sge {
            addr: 0,
            length: 8,
            lkey: KEY,
        };
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::empty(),
            payload: Payload::Sges(smallvec![sge]),
        };
        self.work.post_send(&self.transport, wr, &mut self.world)
    }

    /// The transport sends what is at the cursor.
    fn send(&mut self) {
        let wqe = self.work.sq.current_mut().unwrap();
        wqe.part = Number(Some(self.sent));
        self.sent += 1;
        self.work.sq.cursor += 1;
        self.work.run_local(&self.transport, &mut self.world);
    }

    /// What has been sent of numbers below `done` is done.
    fn finish(&mut self, done: u64) {
        self.transport.done = done;
        self.work.retire(&self.transport, &mut self.world);
    }

    fn completed(&self) -> Vec<(u64, WcStatus)> {
        let sends = self.world.sends.iter();
        sends.map(|wc| (wc.wr_id, wc.status)).collect()
    }
}

#[test]
fn completions_come_in_the_order_of_posting() {
    let mut end = End::new();
    end.post(1, SendOp::Send).unwrap();
    end.post(2, SendOp::LocalInv(KEY)).unwrap();
    end.post(3, SendOp::Send).unwrap();
    assert!(!end.world.invalidated, "its turn has not come");
    end.send();
    assert!(end.world.invalidated);
    assert_eq!(end.completed(), [], "what is before it is not done");
    end.send();
    assert_eq!((end.work.sq.unsent(), end.work.sq.under_way()), (0, 3));
    end.finish(2);
    let success = |id| (id, WcStatus::Success);
    assert_eq!(end.completed(), [success(1), success(2)]);
    end.finish(3);
    assert_eq!(end.completed(), [1, 2, 3].map(success));
    assert_eq!(end.world.sends[1].opcode, WcOpcode::LocalInv);
    // Their places are free when they have been polled.
    end.post(4, SendOp::Send).unwrap();
    assert_eq!(end.post(5, SendOp::Send), Err(PostError::Full));
    end.work.release_send(end.world.places.iter().sum());
    end.post(5, SendOp::Send).unwrap();
}

#[test]
fn what_is_behind_a_failure_is_flushed_and_what_is_before_it_is_not() {
    let mut end = End::new();
    let sges = smallvec![Sge::default()];
    let recv = RecvWr { wr_id: 9, sges };
    end.work.post_recv(recv, &mut end.world).unwrap();
    for id in 1..4 {
        end.post(id, SendOp::Send).unwrap();
    }
    end.send();
    end.send();
    let status = WcStatus::RemAccessErr;
    let second = end.work.sq.find(|wqe| wqe.part.0 < Some(2));
    let (position, _) = second.unwrap();
    end.work
        .fail_at(&end.transport, position, status, &mut end.world);
    assert_eq!(end.completed(), []);
    assert!(end.work.sq.is_held());
    end.finish(2);
    let flushed = WcStatus::WrFlushErr;
    let sends = [(1, WcStatus::Success), (2, status), (3, flushed)];
    assert_eq!(end.completed(), sends);
    assert_eq!(end.work.attr.state, QpState::Err);
    let receives = end.world.recvs.iter().map(|(wc, _)| (wc.wr_id, wc.status));
    assert!(receives.eq([(9, flushed)]));
}

#[test]
fn plain_sends_complete_by_number_and_become_like_others_where_one_is_looked_for() {
    let mut end = End::new();
    let plain = |wr_id| PlainSend {
        wr_id,
        len: 8,
        ..PlainSend::default()
    };
    for number in 1..4 {
        assert!(end.work.sq.takes_plain(number));
        end.work.sq.push_plain(plain(number), number);
    }
    assert!(!end.work.sq.takes_plain(5));
    end.finish(2);
    assert_eq!(end.completed(), [(1, WcStatus::Success)]);
    let part = |number, len| {
        assert_eq!(len, 8);
        Number(Some(number))
    };
    end.work.sq.widen_at(1, part);
    assert_eq!(end.work.sq.plain_end(), Some(4), "it is done");
    end.work.sq.widen_at(3, part);
    assert_eq!(end.work.sq.plain_end(), None);
    let found = end.work.sq.find(|wqe| wqe.part.0 < Some(3));
    let id = found.map(|(position, wqe)| (position, wqe.wr.wr_id));
    assert_eq!(id, Some((2, 3)));
    end.finish(4);
    assert_eq!(end.completed(), [1, 2, 3].map(|id| (id, WcStatus::Success)));
}
