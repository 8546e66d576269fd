//! Two queue pairs over a perfect link: semantics without the reliability protocol.

use smallvec::smallvec;

use super::*;
use crate::bytes::BytesMut;
use crate::types::{
    Access, Payload, QpAttrMask as M, QpCap, QpEvent, SendFlags, SendOp, Sge, WcFlags, WcOpcode,
};
use crate::unit::Kind;

pub(super) use crate::world::{KEY, PD, SIZE, World};

/// One end: a queue pair, its world, and the numbers of its link.
pub(super) struct End {
    pub(super) qp: Qp,
    pub(super) world: World,
    sent: [u64; 2],
}

impl End {
    fn new(transport: TransportType, service: Service, qpn: u32, fill: u8) -> Self {
        let cap = QpCap {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        let config = QpConfig {
            service,
            qpn,
            pd: PD,
            cap,
            sq_sig_all: false,
            srq: false,
        };
        let mut qp = Qp::new(transport, config);
        let mut world = World::new(fill);
        connect(&mut qp, &mut world);
        End {
            qp,
            world,
            sent: [0; 2],
        }
    }

    /// Takes it through RESET to where it was.
    pub(super) fn reset(&mut self) {
        let reset = QpAttr::default();
        self.qp.modify(&reset, M::STATE, &mut self.world).unwrap();
        connect(&mut self.qp, &mut self.world);
        self.sent = [0; 2];
    }

    pub(super) fn send(&mut self, op: SendOp, flags: SendFlags, sges: &[(u64, u32)]) {
        let wr = send_wr(op, flags, sges);
        self.qp.post_send(wr, &mut self.world).unwrap();
    }

    pub(super) fn recv(&mut self, wr_id: u64, sges: &[(u64, u32)]) {
        let sges = sges
            .iter()
            .map(|&(addr, length)| Sge {
                addr,
                length,
                lkey: KEY,
            })
            .collect();
        self.qp
            .post_recv(RecvWr { wr_id, sges }, &mut self.world)
            .unwrap();
    }
}

pub(super) fn send_wr(op: SendOp, flags: SendFlags, sges: &[(u64, u32)]) -> SendWr {
    let entry = |&(addr, length): &(u64, u32)| Sge {
        addr,
        length,
        lkey: KEY,
    };
    SendWr {
        wr_id: 1,
        op,
        flags,
        payload: Payload::Sges(sges.iter().map(entry).collect()),
    }
}

/// The transitions to RTS of a queue pair of a service.
pub(super) fn path_steps(service: Service) -> [(QpAttr, M); 3] {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let attr = QpAttr {
        access,
        port: 1,
        path_mtu: 5,
        max_rd_atomic: 2,
        max_dest_rd_atomic: 2,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 1,
        ..QpAttr::default()
    };
    let path = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let retries = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    let (answers, retries) = match service {
        Service::Rc => (M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER, retries),
        _ => (M::empty(), M::empty()),
    };
    [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (QpState::Rtr, path | answers),
        (QpState::Rts, M::SQ_PSN | retries),
    ]
    .map(|(state, mask)| (QpAttr { state, ..attr }, mask | M::STATE))
}

fn connect(qp: &mut Qp, world: &mut World) {
    for (attr, mask) in path_steps(qp.config().service) {
        qp.modify(&attr, mask, world).unwrap();
    }
}

/// A unit, as it is: nobody encodes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Built {
    room: usize,
    unit: Unit,
    last: bool,
    payload: Vec<u8>,
}

impl Built {
    pub(super) fn new(room: usize) -> Self {
        Built {
            room,
            unit: Unit::Unreadable,
            last: false,
            payload: Vec::new(),
        }
    }
}

impl Built {
    /// What was built.
    pub(super) fn sent(&self) -> (Unit, &[u8]) {
        (self.unit, &self.payload)
    }
}

impl Frame for Built {
    fn room(&self, _: Kind) -> Option<u32> {
        u32::try_from(self.room).ok()
    }

    fn put(&mut self, unit: &Unit, last: bool, len: usize) -> Option<BytesMut<'_>> {
        assert_ne!(*unit, Unit::Unreadable);
        (self.unit, self.last) = (*unit, last);
        self.payload = vec![0; len];
        (len <= self.room).then_some(BytesMut::from(&mut self.payload[..]))
    }
}

/// Carries one unit from `from` to `to`, in the manner of a lossless link.
pub(super) fn carry(from: &mut End, to: &mut End, space: Space, room: usize) -> bool {
    let mut built = Built::new(room);
    let seq = from.sent[space as usize];
    let next = from.qp.bind(&mut from.world).next(space, seq, &mut built);
    let Some(meta) = next else {
        return false;
    };
    assert_eq!((meta.seq, meta.last), (seq, built.last));
    from.sent[space as usize] += 1;
    let verdict = offer(to, space, meta, &built);
    let mut back = from.qp.bind(&mut from.world);
    match verdict {
        Verdict::Placed => back.acked(space, seq + 1),
        Verdict::NotReady(timer) => {
            if back.not_ready(seq, timer, Instant(0)).is_some() {
                let mut repeated = Built::new(room);
                let again = back.again(space, seq, &mut repeated);
                assert_eq!((again, &repeated), (Some(meta), &built));
                return retry(from, to, meta, &built);
            }
        }
        Verdict::Refused(nak) => back.refused(seq, nak),
        Verdict::Later | Verdict::Ignore => {}
    }
    true
}

fn offer(to: &mut End, space: Space, meta: SegMeta, built: &Built) -> Verdict {
    let payload = Bytes::from(&built.payload[..]);
    to.qp
        .bind(&mut to.world)
        .receive(space, meta, &built.unit, payload, true)
}

fn retry(from: &mut End, to: &mut End, meta: SegMeta, built: &Built) -> bool {
    let again = offer(to, Space::Request, meta, built);
    let mut back = from.qp.bind(&mut from.world);
    match again {
        Verdict::Placed => back.acked(Space::Request, meta.seq + 1),
        Verdict::NotReady(timer) => assert!(back.not_ready(meta.seq, timer, Instant(0)).is_none()),
        other => panic!("unexpected verdict {other:?}"),
    }
    true
}

pub(super) fn run(a: &mut End, b: &mut End) {
    loop {
        let mut moved = false;
        for space in [Space::Response, Space::Request] {
            moved |= carry(a, b, space, 1100);
            moved |= carry(b, a, space, 1100);
        }
        if !moved {
            break;
        }
    }
}

pub(super) fn pair() -> (End, End) {
    pair_of(Service::Rc)
}

pub(super) fn pair_of(service: Service) -> (End, End) {
    let end = |qpn, fill| End::new(TransportType::Iwarp, service, qpn, fill);
    (end(1, 0xaa), end(2, 0xbb))
}

pub(super) fn pair_over(transport: TransportType) -> (End, End) {
    let end = |qpn, fill| End::new(transport, Service::Rc, qpn, fill);
    (end(1, 0xaa), end(2, 0xbb))
}

pub(super) const SIGNALED: SendFlags = SendFlags::SIGNALED;

#[test]
fn a_send_of_many_segments_fills_a_scatter_list() {
    let (mut a, mut b) = pair();
    a.world.memory.borrow_mut()[..5000].copy_from_slice(&[1; 5000]);
    b.recv(9, &[(100, 1000), (8000, 7000)]);
    a.send(
        SendOp::SendImm(42),
        SIGNALED | SendFlags::SOLICITED,
        &[(0, 3000), (3000, 2000)],
    );
    run(&mut a, &mut b);
    let (wc, solicited) = b.world.recvs[0];
    assert_eq!(
        (wc.wr_id, wc.byte_len, wc.imm, solicited),
        (9, 5000, 42, true)
    );
    assert_eq!(wc.flags, WcFlags::WITH_IMM);
    let memory = b.world.memory.borrow();
    assert!(
        memory[100..1100]
            .iter()
            .chain(&memory[8000..12000])
            .all(|b| *b == 1)
    );
    assert_eq!(
        (memory[99], memory[1100], memory[12000]),
        (0xbb, 0xbb, 0xbb)
    );
    assert_eq!(a.world.sends[0].status, WcStatus::Success);
}

/// A WRITE with immediate, both atomics, a READ, and an empty fenced WRITE.
fn post_one_of_each(a: &mut End) {
    a.send(
        SendOp::WriteImm {
            addr: 64,
            rkey: KEY,
            imm: 5,
        },
        SIGNALED,
        &[(0, 2500)],
    );
    a.send(
        SendOp::FetchAdd {
            addr: 0,
            rkey: KEY,
            add: 1,
        },
        SIGNALED,
        &[(4096, 8)],
    );
    a.send(
        SendOp::CmpSwap {
            addr: 0,
            rkey: KEY,
            compare: 0,
            swap: 3,
        },
        SIGNALED,
        &[(4104, 8)],
    );
    a.send(
        SendOp::Read {
            addr: 64,
            rkey: KEY,
        },
        SIGNALED,
        &[(5000, 2500)],
    );
    a.send(
        SendOp::Write {
            addr: 9000,
            rkey: KEY,
        },
        SIGNALED | SendFlags::FENCE,
        &[(0, 0)],
    );
}

#[test]
fn write_read_and_atomics_complete_in_order() {
    let (mut a, mut b) = pair();
    b.recv(3, &[]);
    post_one_of_each(&mut a);
    run(&mut a, &mut b);
    let opcodes: Vec<_> = a
        .world
        .sends
        .iter()
        .map(|wc| (wc.opcode, wc.status))
        .collect();
    let ok = WcStatus::Success;
    let expected = [
        (WcOpcode::RdmaWrite, ok),
        (WcOpcode::FetchAdd, ok),
        (WcOpcode::CompSwap, ok),
        (WcOpcode::RdmaRead, ok),
        (WcOpcode::RdmaWrite, ok),
    ];
    assert_eq!(opcodes, expected);
    assert_eq!(
        (b.world.recvs[0].0.byte_len, b.world.recvs[0].0.imm),
        (2500, 5)
    );
    let old = u64::from_ne_bytes([0xbb; 8]);
    let memory = a.world.memory.borrow();
    assert_eq!(memory[4096..4104], old.to_ne_bytes());
    assert_eq!(memory[4104..4112], (old + 1).to_ne_bytes());
    assert!(memory[5000..7500].iter().all(|b| *b == 0xaa));
}

#[test]
fn an_empty_write_with_immediate_may_follow_a_write() {
    let (mut a, mut b) = pair();
    b.recv(3, &[]);
    a.send(
        SendOp::Write {
            addr: 64,
            rkey: KEY,
        },
        SIGNALED,
        &[(0, 100)],
    );
    a.send(
        SendOp::WriteImm {
            addr: 64,
            rkey: KEY,
            imm: 5,
        },
        SIGNALED,
        &[],
    );
    run(&mut a, &mut b);
    assert_eq!(b.world.recvs[0].0.byte_len, 0);
    assert!(
        a.world
            .sends
            .iter()
            .all(|wc| wc.status == WcStatus::Success)
    );
}

#[test]
fn without_a_receive_the_send_waits_and_then_fails() {
    let (mut a, mut b) = pair();
    a.send(SendOp::Send, SendFlags::empty(), &[(0, 10)]);
    a.send(SendOp::Send, SendFlags::empty(), &[(0, 10)]);
    // rnr_retry is 1: one retry, which finds no receive either.
    run(&mut a, &mut b);
    let statuses: Vec<_> = a.world.sends.iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::RnrRetryExcErr, WcStatus::WrFlushErr]);
    assert_eq!(a.qp.state(), QpState::Err);
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn a_bad_rkey_fails_both_ends_and_flushes() {
    let (mut a, mut b) = pair();
    b.recv(3, &[(0, 100)]);
    a.recv(4, &[(0, 100)]);
    a.send(
        SendOp::Write {
            addr: 0,
            rkey: KEY + 1,
        },
        SIGNALED,
        &[(0, 10)],
    );
    a.send(SendOp::Send, SIGNALED, &[(0, 10)]);
    run(&mut a, &mut b);
    let statuses: Vec<_> = a.world.sends.iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::RemAccessErr, WcStatus::WrFlushErr]);
    assert_eq!(a.world.recvs[0].0.status, WcStatus::WrFlushErr);
    assert_eq!(b.world.recvs[0].0.status, WcStatus::WrFlushErr);
    assert_eq!(b.world.events, [QpEvent::AccessError]);
}

#[test]
fn a_send_longer_than_the_receive_is_refused() {
    let (mut a, mut b) = pair();
    b.recv(3, &[(0, 1500)]);
    a.send(SendOp::Send, SIGNALED, &[(0, 1501)]);
    run(&mut a, &mut b);
    assert_eq!(a.world.sends[0].status, WcStatus::RemInvReqErr);
    assert_eq!(b.world.recvs[0].0.status, WcStatus::LocLenErr);
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    let (mut a, mut b) = pair();
    a.send(
        SendOp::FetchAdd {
            addr: 4,
            rkey: KEY,
            add: 1,
        },
        SIGNALED,
        &[(0, 8)],
    );
    run(&mut a, &mut b);
    assert_eq!(a.world.sends[0].status, WcStatus::RemInvReqErr);
}

#[test]
fn a_bad_local_key_fails_after_what_was_posted_before_it() {
    let (mut a, mut b) = pair();
    a.send(SendOp::Read { addr: 0, rkey: KEY }, SIGNALED, &[(0, 3000)]);
    let sges = smallvec![Sge {
        addr: 0,
        length: 1,
        lkey: 1
    }];
    let (op, flags) = (SendOp::Write { addr: 0, rkey: KEY }, SIGNALED);
    let wr = SendWr {
        wr_id: 2,
        op,
        flags,
        payload: Payload::Sges(sges),
    };
    a.qp.post_send(wr, &mut a.world).unwrap();
    run(&mut a, &mut b);
    let statuses: Vec<_> = a.world.sends.iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::Success, WcStatus::LocProtErr]);
}

#[test]
fn queues_are_full_until_their_completions_are_polled() {
    let (mut a, mut b) = pair();
    for _ in 0..16 {
        b.recv(0, &[(0, 8)]);
        a.send(SendOp::Send, SIGNALED, &[(0, 8)]);
    }
    run(&mut a, &mut b);
    assert_eq!((a.world.sends.len(), b.world.recvs.len()), (16, 16));
    let wr = RecvWr::default();
    assert_eq!(
        b.qp.post_recv(wr.clone(), &mut b.world),
        Err(PostError::Full)
    );
    b.qp.release_recvs(1);
    assert_eq!(b.qp.post_recv(wr, &mut b.world), Ok(()));
    let wr = SendWr {
        wr_id: 0,
        op: SendOp::Send,
        flags: SIGNALED,
        payload: Payload::Inline(smallvec![1]),
    };
    assert_eq!(
        a.qp.post_send(wr.clone(), &mut a.world),
        Err(PostError::Full)
    );
    let places = a.world.places.pop().unwrap();
    a.qp.release_send(places);
    assert_eq!(a.qp.post_send(wr, &mut a.world), Ok(()));
}

#[test]
fn illegal_transitions_change_nothing() {
    let mut world = World::new(0);
    let (mut end, _) = pair();
    let rtr = QpAttr {
        state: QpState::Rtr,
        ..QpAttr::default()
    };
    assert_eq!(
        end.qp.modify(&rtr, M::STATE, &mut world),
        Err(AttrError::Transition(QpState::Rts, QpState::Rtr))
    );
    let reset = QpAttr {
        state: QpState::Reset,
        ..QpAttr::default()
    };
    end.qp.modify(&reset, M::STATE, &mut world).unwrap();
    let init = QpAttr {
        state: QpState::Init,
        port: 1,
        ..QpAttr::default()
    };
    let missing = M::PKEY_INDEX | M::ACCESS_FLAGS;
    assert_eq!(
        end.qp.modify(&init, M::STATE | M::PORT, &mut world),
        Err(AttrError::Missing(missing))
    );
    let all = M::STATE | M::PORT | missing;
    let extra = end.qp.modify(&init, all | M::QKEY, &mut world);
    assert_eq!(extra, Err(AttrError::NotAllowed(M::QKEY)));
    let bad_port = QpAttr { port: 2, ..init };
    assert_eq!(
        end.qp.modify(&bad_port, all, &mut world),
        Err(AttrError::Range(M::PORT))
    );
    assert_eq!(end.qp.state(), QpState::Reset);
    end.qp.modify(&init, all, &mut world).unwrap();
}

#[test]
fn losing_the_peer_fails_the_oldest_and_flushes_the_rest() {
    let (mut a, _) = pair();
    a.recv(1, &[]);
    a.send(SendOp::Send, SendFlags::empty(), &[(0, 8)]);
    a.send(SendOp::Send, SendFlags::empty(), &[(0, 8)]);
    a.qp.bind(&mut a.world).lost();
    let statuses: Vec<_> = a.world.sends.iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::RetryExcErr, WcStatus::WrFlushErr]);
    assert_eq!(a.world.recvs[0].0.status, WcStatus::WrFlushErr);
    assert_eq!(a.world.events, [QpEvent::Fatal]);
}
